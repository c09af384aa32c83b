package bfd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// receiveBuffer holds the packets that arrive while this process stands still: one second at packetRate, at the 768
	// bytes that the kernel accounts for each.
	receiveBuffer = 4 << 20

	// readMost limits the packets that are read before other work is done.
	readMost = 256

	// drainMost is more than receiveBuffer holds, so that draining ends even during a flood.
	drainMost = 2 * receiveBuffer / 768

	// Range for the source ports of sessions (RFC 5881, 4).
	leastSource, mostSource = 49152, 65535

	hops         = 255  // TTL
	trafficClass = 0xc0 // class selector 6, network control (RFC 4594)
	priority     = 6    // in the node's own queues: the highest that needs no capability
)

var errFamily = errors.New("this node has no socket of the peer's address family")

// socket is a pair of sockets of one family: one receives on the port that peers send to, one sends.
type socket struct {
	v6       bool
	listener *net.UDPConn
	receiver syscall.RawConn
	source   *net.UDPConn
	sender   syscall.RawConn
	buf      [2 * packetSize]byte // longer packets are truncated: they are not control packets either way
	control  []byte               // buffer for control messages; nil: none are requested
	names    map[uint32]string    // of interfaces, cached since the last Set
}

// open opens the sockets of Bind's family, or of each family that this machine has.
func open(o Options, port uint16) ([]*socket, error) {
	bind := o.Bind.Unmap()
	var all []*socket
	var missing error
	addresses := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	if bind.IsValid() {
		addresses = []netip.Addr{bind}
	}
	for _, at := range addresses {
		s, err := openAt(at, port, o)
		switch {
		case err == nil:
			all = append(all, s)
		case !bind.IsValid() && lacksFamily(err):
			missing = errors.Join(missing, err)
		default:
			for _, s := range all {
				_ = s.close() // unused
			}
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, missing
	}
	return all, nil
}

// lacksFamily reports whether a socket cannot be opened because this machine lacks its address family.
func lacksFamily(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL)
}

func openAt(at netip.Addr, port uint16, o Options) (*socket, error) {
	s := &socket{v6: at.Is6(), names: map[uint32]string{}}
	if o.OneHop {
		s.control = make([]byte, unix.CmsgSpace(4)+unix.CmsgSpace(max(unix.SizeofInet4Pktinfo, unix.SizeofInet6Pktinfo)))
	}
	bound := func(fd int) error {
		if o.Device == "" {
			return nil
		}
		return unix.BindToDevice(fd, o.Device)
	}
	var err error
	s.listener, s.receiver, err = bindUDP(netip.AddrPortFrom(at, port), func(fd int) error {
		if err := bound(fd); err != nil {
			return fmt.Errorf("bind to device %s: %w", o.Device, err)
		}
		if o.OneHop {
			// Every VRF, and the main table, uses this port: their sockets can coexist only if all of them set
			// SO_REUSEADDR.
			on := func(level, option int) error { return unix.SetsockoptInt(fd, level, option, 1) }
			level, ttl, info := unix.IPPROTO_IP, unix.IP_RECVTTL, unix.IP_PKTINFO
			if s.v6 {
				level, ttl, info = unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, unix.IPV6_RECVPKTINFO
			}
			if err := errors.Join(on(unix.SOL_SOCKET, unix.SO_REUSEADDR), on(level, ttl), on(level, info)); err != nil {
				return err
			}
		}
		// SO_RCVBUFFORCE exceeds the administrator's limit, if we have the capability.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) == nil {
			return nil
		}
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	})
	if err != nil {
		return nil, err
	}
	const ports = mostSource - leastSource + 1
	first := rand.N(ports)
	for i := range 100 {
		source := uint16(leastSource + (first+i)%ports)
		s.source, s.sender, err = bindUDP(netip.AddrPortFrom(at, source), func(fd int) error {
			return errors.Join(bound(fd), s.sendOptions(fd))
		})
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		s.listener.Close()
		return nil, err
	}
	return s, nil
}

func (s *socket) sendOptions(fd int) error {
	set := func(level, option, value int) error { return unix.SetsockoptInt(fd, level, option, value) }
	class := errors.Join(set(unix.IPPROTO_IP, unix.IP_TTL, hops), set(unix.IPPROTO_IP, unix.IP_TOS, trafficClass))
	if s.v6 {
		class = errors.Join(set(unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops), set(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, trafficClass))
	}
	// Setting the class also sets the priority, but not to the value we want.
	return errors.Join(class, set(unix.SOL_SOCKET, unix.SO_PRIORITY, priority))
}

func bindUDP(at netip.AddrPort, options func(fd int) error) (*net.UDPConn, syscall.RawConn, error) {
	network := "udp4"
	if at.Addr().Is6() {
		network = "udp6"
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = options(int(fd)) }), err)
	}}
	conn, err := config.ListenPacket(context.Background(), network, at.String())
	if err != nil {
		return nil, nil, err
	}
	udp := conn.(*net.UDPConn)
	raw, err := udp.SyscallConn()
	if err != nil {
		udp.Close()
		return nil, nil, fmt.Errorf("take the descriptor of UDP %s: %w", at, err)
	}
	return udp, raw, nil
}

func (s *socket) close() error { return errors.Join(s.listener.Close(), s.source.Close()) }

// wait calls readable whenever there may be something to read, until the socket is closed.
func (s *socket) wait(readable func(fd int)) {
	_ = s.receiver.Read(func(fd uintptr) bool { // ends with the socket
		readable(int(fd))
		return false
	})
}

// drain reads waiting packets without waiting for the poller.
func (s *socket) drain(take func(datagram)) {
	_ = s.receiver.Control(func(fd uintptr) { s.read(int(fd), drainMost, take) }) // an error means that it is closed: nothing waits
}

// read handles up to most waiting packets, and reports whether there may be more. It must not be called concurrently.
func (s *socket) read(fd, most int, take func(datagram)) (more bool) {
	for range most {
		n, controls, _, from, err := unix.Recvmsg(fd, s.buf[:], s.control, unix.MSG_DONTWAIT)
		if a := addressOf(from); a.IsValid() {
			take(s.datagram(a, s.buf[:n], s.control[:controls]))
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
	}
	return true
}

// addressOf returns the address of a packet's sender; invalid: no packet was read.
func addressOf(from unix.Sockaddr) netip.Addr {
	switch a := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr)
	}
	return netip.Addr{}
}

// datagram is a received packet.
type datagram struct {
	from   netip.Addr
	device string // receiving interface; empty: unknown
	ttl    int    // 0: unknown
	bytes  []byte
}

// datagram combines a packet with its control messages. The zone of the sender's address would be the VRF, not the
// interface.
func (s *socket) datagram(from netip.Addr, b, control []byte) datagram {
	d := datagram{from: from, bytes: b}
	for len(control) > 0 {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			break
		}
		s.readControl(&d, [2]int32{header.Level, header.Type}, data)
		control = rest
	}
	if from.Is6() && from.IsLinkLocalUnicast() {
		d.from = from.WithZone(d.device)
	}
	return d
}

// readControl adds a control message to its packet. Its kind is a level and a type.
func (s *socket) readControl(d *datagram, kind [2]int32, data []byte) {
	switch {
	case kind == [2]int32{unix.IPPROTO_IP, unix.IP_TTL} && len(data) >= 4,
		kind == [2]int32{unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT} && len(data) >= 4:
		d.ttl = int(binary.NativeEndian.Uint32(data))
	case kind == [2]int32{unix.IPPROTO_IP, unix.IP_PKTINFO} && len(data) >= unix.SizeofInet4Pktinfo:
		d.device = s.name(binary.NativeEndian.Uint32(data))
	case kind == [2]int32{unix.IPPROTO_IPV6, unix.IPV6_PKTINFO} && len(data) >= unix.SizeofInet6Pktinfo:
		d.device = s.name(binary.NativeEndian.Uint32(data[16:])) // after the address
	}
}

// name returns the name of an interface.
func (s *socket) name(index uint32) string {
	name, known := s.names[index]
	if !known {
		if i, err := net.InterfaceByIndex(int(index)); err == nil {
			name = i.Name
		}
		s.names[index] = name
	}
	return name
}

// path describes how to send packets to a peer.
type path struct {
	v6   bool
	to   unix.Sockaddr
	from []byte // control message with the source address; empty: chosen by the routing table
}

// newPath returns the path to a peer's port. It ignores a local address of the other family.
func newPath(p Peer, port uint16) *path {
	if p.Address.Is4() {
		h := &path{to: &unix.SockaddrInet4{Port: int(port), Addr: p.Address.As4()}}
		if p.Local.Is4() {
			h.from = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: p.Local.As4()})
		}
		return h
	}
	to := &unix.SockaddrInet6{Port: int(port), Addr: p.Address.As16()}
	if zone := p.Address.Zone(); zone != "" {
		if i, err := net.InterfaceByName(zone); err == nil { // otherwise sending fails with an error
			to.ZoneId = uint32(i.Index)
		}
	}
	h := &path{v6: true, to: to}
	if p.Local.Is6() {
		h.from = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: p.Local.As16()})
	}
	return h
}

// outgoing is a packet to send.
type outgoing struct {
	session *session
	path    *path
	bytes   [packetSize]byte
	err     error // of sending it
}

// send sends the packets of this socket's family. It does not wait for buffer space: packets that do not fit are lost,
// as on the wire.
func (s *socket) send(out []outgoing) {
	_ = s.sender.Write(func(fd uintptr) bool {
		for i := range out {
			if o := &out[i]; o.path.v6 == s.v6 {
				_, o.err = unix.SendmsgN(int(fd), o.bytes[:], o.path.from, o.path.to, unix.MSG_DONTWAIT)
			}
		}
		return true
	})
}
