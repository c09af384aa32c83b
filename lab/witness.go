package lab

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Packet holds the properties by which a Witness counts packets.
type Packet struct {
	Node, Interface string
	Out             bool // sent by the interface; otherwise received
	Src, Dst        netip.Addr
	Protocol        Protocol
	Fresh           bool  // its hop limit is that of Linux: not yet forwarded
	DSCP            uint8 // of the IP header (RFC 2474)
}

func (p Packet) String() string {
	direction := "in"
	if p.Out {
		direction = "out"
	}
	fresh := ""
	if p.Fresh {
		fresh = " fresh"
	}
	if p.DSCP != 0 {
		fresh += fmt.Sprintf(" DSCP %d", p.DSCP)
	}
	return fmt.Sprintf("%s:%s %s %s > %s %s%s", p.Node, p.Interface, direction, p.Src, p.Dst, p.Protocol, fresh)
}

// Header is the header of the latest packet of a kind, which a Witness keeps to describe it.
type Header struct {
	SrcPort, DstPort uint16
	Flags            uint8 // TCP: FIN 1, SYN 2, RST 4, PSH 8, ACK 16
	Length           uint16
}

func (h Header) String() string {
	what := []string{fmt.Sprintf("port %d > %d, %d bytes", h.SrcPort, h.DstPort, h.Length)}
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK"} {
		if h.Flags&(1<<i) != 0 {
			what = append(what, name)
		}
	}
	return strings.Join(what, " ")
}

// Packets counts packets.
type Packets map[Packet]int

// lost stands for the interface in an entry that counts packets the witness could not look at. Every filter finds it,
// so that a witness that looked away proves nothing.
const lost = "(lost)"

// Witness counts the IP packets that pass interfaces of some nodes. Of a packet in fragments it counts
// all that come in, but only the first that goes out.
type Witness struct {
	views []*view
	work  sync.WaitGroup
}

// view is the witness's socket on one node.
type view struct {
	node   *Node
	only   string // interface; empty: all
	file   *os.File
	raw    syscall.RawConn
	mu     sync.Mutex
	names  map[int]string // of interfaces, empty: not looked at
	counts Packets
	latest map[Packet]Header
}

// Witness starts counting at the given places, each written node or node:interface; a node alone means all its interfaces
// but loopback. It ends with the lab, or by Close.
func (l *Lab) Witness(places ...string) (*Witness, error) {
	w := &Witness{}
	for _, place := range places {
		name, device, _ := strings.Cut(place, ":")
		v, err := newView(l.Nodes[name], device)
		if err != nil {
			w.Close()
			return nil, fmt.Errorf("node %s: start witness: %w", name, err)
		}
		w.views = append(w.views, v)
		w.work.Go(func() {
			// Emptied as packets come, so that the kernel's buffer has room for all packets of a test before it asks.
			_ = v.raw.Read(func(fd uintptr) bool { v.drain(int(fd)); return false })
		})
	}
	l.atEnd(w.Close)
	return w, nil
}

func newView(n *Node, device string) (*view, error) {
	v := &view{node: n, only: device, names: map[int]string{}, counts: Packets{}, latest: map[Packet]Header{}}
	const buffer = 32 << 20
	err := n.Do(func() error {
		all := int(unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8) // in network byte order
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all)
		if err != nil {
			return err
		}
		v.file = os.NewFile(uintptr(fd), "witness")
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer)
	})
	if err != nil {
		return nil, errors.Join(err, v.file.Close())
	}
	if v.raw, err = v.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, v.file.Close())
	}
	return v, nil
}

// drain counts the packets in the socket.
func (v *view) drain(fd int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for buf := make([]byte, 256); ; { // headers are enough
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok || link.Pkttype == unix.PACKET_OTHERHOST {
			continue // for another host that the switch has forgotten: it sends such frames to all ports
		}
		v.count(buf[:n], link)
	}
}

// count counts a packet, unless its interface is not looked at.
func (v *view) count(packet []byte, link *unix.SockaddrLinklayer) {
	name := v.name(link.Ifindex)
	p, ok := parsePacket(packet)
	if !ok || name == "" {
		return
	}
	p.Node, p.Interface, p.Out = v.node.Name, name, link.Pkttype == unix.PACKET_OUTGOING
	if p.Out && laterFragment(packet) {
		return // its memory is shared with the receiver, which may have written new addresses into it
	}
	v.counts[p]++
	if h, ok := parseHeader(p, packet); ok && !laterFragment(packet) {
		v.latest[p] = h
	}
}

// name is that of an interface to look at.
func (v *view) name(index int) string {
	if name, ok := v.names[index]; ok {
		return name
	}
	name := fmt.Sprintf("#%d", index) // already gone
	_ = v.node.Do(func() error {
		d, err := net.InterfaceByIndex(index)
		if err == nil {
			name = d.Name
		}
		return err
	})
	if name == "lo" && v.only != "lo" || v.only != "" && v.only != name {
		name = ""
	}
	v.names[index] = name
	return name
}

// parsePacket reads addresses and protocol from the start of a packet.
func parsePacket(b []byte) (Packet, bool) {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		return Packet{
			Src: netip.AddrFrom4([4]byte(b[12:])), Dst: netip.AddrFrom4([4]byte(b[16:])), Protocol: Protocol(b[9]),
			Fresh: b[8] == hopLimit, DSCP: b[1] >> 2,
		}, true
	case len(b) >= 40 && b[0]>>4 == 6:
		p := Packet{
			Src: netip.AddrFrom16([16]byte(b[8:])), Dst: netip.AddrFrom16([16]byte(b[24:])), Protocol: Protocol(b[6]),
			Fresh: b[7] == hopLimit, DSCP: b[0]<<2&0x3c | b[1]>>6,
		}
		const hopByHop, routing, fragment, options = 0, 43, 44, 60
		for b = b[40:]; len(b) >= 8; {
			length := 8
			switch p.Protocol {
			case hopByHop, routing, options:
				length += 8 * int(b[1])
			case fragment:
			default:
				return p, true
			}
			p.Protocol = Protocol(b[0])
			b = b[min(length, len(b)):]
		}
		return p, true
	}
	return Packet{}, false
}

// parseHeader reads ports and flags. Those behind IPv6 extension headers are not looked for.
func parseHeader(p Packet, b []byte) (h Header, ok bool) {
	length, next := 40, b[6]
	if b[0]>>4 == 4 {
		length, next = int(b[0]&0x0f)*4, b[9]
		h.Length = uint16(b[2])<<8 | uint16(b[3])
	} else {
		h.Length = uint16(b[4])<<8 | uint16(b[5]) + 40
	}
	if Protocol(next) != p.Protocol || p.Protocol != TCP && p.Protocol != UDP || len(b) < length+14 {
		return h, false
	}
	b = b[length:]
	h.SrcPort, h.DstPort = uint16(b[0])<<8|uint16(b[1]), uint16(b[2])<<8|uint16(b[3])
	if p.Protocol == TCP {
		h.Flags = b[13] & 0x1f
	}
	return h, true
}

// hopLimit is Linux's default (net.ipv4.ip_default_ttl, net.ipv6.conf.*.hop_limit).
const hopLimit = 64

// laterFragment reports whether a fragment is not the first of its packet.
func laterFragment(b []byte) bool {
	const fragment = 44 // IPv6 header
	switch {
	case b[0]>>4 == 4:
		return b[6]&0x1f != 0 || b[7] != 0
	case len(b) >= 48 && b[6] == fragment:
		return b[42] != 0 || b[43]&^7 != 0
	}
	return false
}

// Counts returns all packets that passed since the start or the last Reset.
func (w *Witness) Counts() Packets { return w.Find(func(Packet) bool { return true }) }

// Find returns the packets that are wanted, and how many packets were lost if any were.
func (w *Witness) Find(wanted func(Packet) bool) Packets {
	found := Packets{}
	for _, v := range w.views {
		v.look()
		v.mu.Lock()
		for p, n := range v.counts {
			if p.Interface == lost || wanted(p) {
				found[p] += n
			}
		}
		v.mu.Unlock()
	}
	return found
}

// Latest returns the header of the latest packet of a kind, if it was TCP or UDP.
func (w *Witness) Latest(p Packet) (h Header, ok bool) {
	for _, v := range w.views {
		if v.node.Name != p.Node {
			continue
		}
		v.mu.Lock()
		noted, has := v.latest[p]
		v.mu.Unlock()
		if has {
			h, ok = noted, true
		}
	}
	return h, ok
}

// Reset forgets all packets so far.
func (w *Witness) Reset() {
	for _, v := range w.views {
		v.look()
		v.mu.Lock()
		clear(v.counts)
		clear(v.latest)
		v.mu.Unlock()
	}
}

// look counts the packets that have passed up to now.
func (v *view) look() {
	_ = v.raw.Control(func(fd uintptr) {
		v.drain(int(fd))
		stats, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err == nil && stats.Drops > 0 {
			v.mu.Lock()
			v.counts[Packet{Node: v.node.Name, Interface: lost}] += int(stats.Drops)
			v.mu.Unlock()
		}
	})
}

// Close ends the witness. Its counts stay.
func (w *Witness) Close() {
	for _, v := range w.views {
		v.file.Close()
	}
	w.work.Wait()
}

// Total is the number of packets.
func (p Packets) Total() int {
	sum := 0
	for n := range maps.Values(p) {
		sum += n
	}
	return sum
}

// Sources wants packets whose source is in one of the prefixes.
func Sources(prefixes ...netip.Prefix) func(Packet) bool {
	return func(p Packet) bool { return inside(p.Src, prefixes) }
}

// Destinations wants packets whose destination is in one of the prefixes.
func Destinations(prefixes ...netip.Prefix) func(Packet) bool {
	return func(p Packet) bool { return inside(p.Dst, prefixes) }
}

func inside(a netip.Addr, prefixes []netip.Prefix) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
