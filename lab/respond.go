package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ResponderPort is where a Responder listens, by TCP and UDP.
const ResponderPort = 8080

// Answer is the answer of a Responder: its name and the client address that it saw.
type Answer struct {
	Name string         `json:"name"` // of its node
	Peer netip.AddrPort `json:"peer"` // source of the request
}

// request opens every exchange by TCP: one line of JSON, then Up bytes. The answer is a line too, then Down bytes follow.
// Any number of exchanges share a connection. By UDP a request is a datagram, and the answer is padded to its size.
type request struct {
	Up   int64 `json:"up,omitempty"`
	Down int64 `json:"down,omitempty"`
	Last bool  `json:"last,omitempty"` // nothing will be asked any more
}

// lastFor is how long a connection may stay after its last answer. Servers end those whose clients are gone, too: one whose end was
// lost on the way would be in the way of a later one by the same port.
const lastFor = 5 * time.Second

// For the same reason a connection ends without acknowledgements: after goneAfter if data was sent; otherwise, after
// idleFor, the kernel asks for a sign of life each second. A connection with its first packet alone is given up within
// 7 s. A session outlives the failures that it has to outlive, see sessionLimit.
const (
	goneAfter     = 12 * time.Second
	idleFor       = 7 * time.Second
	synAckRetries = "2" // net.ipv4.tcp_synack_retries, for IPv6 too
)

var signsOfLife = net.KeepAliveConfig{Enable: true, Idle: idleFor, Interval: time.Second, Count: int((goneAfter - idleFor) / time.Second)}

// maxDatagram holds any datagram.
const maxDatagram = 64 << 10

// Responder answers with its node's name, by TCP and UDP, IPv4 and IPv6, from the address that was asked.
type Responder struct {
	name  string
	tcp   net.Listener
	udp   []*net.UDPConn
	work  sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]bool // nil once closed
}

// Respond starts a Responder on a node of the lab. It ends with the lab, or by Close.
func (l *Lab) Respond(ctx context.Context, n *Node, options ...SocketOption) (*Responder, error) {
	s := socketOptions(options)
	r := &Responder{name: n.Name, conns: map[net.Conn]bool{}}
	s.gone = goneAfter
	config := net.ListenConfig{Control: s.control, KeepAliveConfig: signsOfLife}
	port := strconv.Itoa(int(s.port))
	err := n.Do(func() (err error) {
		if err := os.WriteFile("/proc/sys/net/ipv4/tcp_synack_retries", []byte(synAckRetries), 0); err != nil {
			return err
		}
		if r.tcp, err = config.Listen(ctx, "tcp", ":"+port); err != nil {
			return err
		}
		for _, network := range []string{"udp4", "udp6"} {
			c, err := config.ListenPacket(ctx, network, ":"+port)
			if err != nil {
				return err
			}
			r.udp = append(r.udp, c.(*net.UDPConn))
		}
		return nil
	})
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("node %s: start responder: %w", n.Name, err)
	}
	for _, c := range r.udp {
		r.work.Go(func() { r.serveUDP(c) })
	}
	r.work.Go(r.serveTCP)
	l.atEnd(r.Close)
	return r, nil
}

// RespondOn starts a Responder on each of the nodes.
func (l *Lab) RespondOn(ctx context.Context, nodes ...string) error {
	for _, name := range nodes {
		if _, err := l.Respond(ctx, l.Nodes[name]); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the responder and its connections.
func (r *Responder) Close() {
	if r.tcp != nil {
		r.tcp.Close()
	}
	for _, c := range r.udp {
		c.Close()
	}
	r.mu.Lock()
	for c := range r.conns {
		c.Close()
	}
	r.conns = nil
	r.mu.Unlock()
	r.work.Wait()
}

func (r *Responder) serveTCP() {
	for {
		c, err := r.tcp.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		if r.conns == nil {
			r.mu.Unlock()
			c.Close()
			return
		}
		r.conns[c] = true
		r.mu.Unlock()
		r.work.Go(func() {
			r.serve(c)
			c.Close()
			r.mu.Lock()
			delete(r.conns, c)
			r.mu.Unlock()
		})
	}
}

// serve answers on one connection until the peer ends it.
func (r *Responder) serve(c net.Conn) {
	answer := r.answer(addrPort(c.RemoteAddr()), 0)
	for in := bufio.NewReader(c); ; {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = c.(*net.TCPConn).SetLinger(0) // no client is left to say goodbye to
		}
		if err != nil {
			return
		}
		var q request
		if json.Unmarshal(line, &q) != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, in, q.Up); err != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
		if _, err := io.CopyN(c, zeros{}, q.Down); err != nil {
			return
		}
		if !q.Last {
			continue
		}
		if err := c.SetReadDeadline(time.Now().Add(lastFor)); err != nil {
			return
		}
	}
}

// answer is a line of at least size bytes.
func (r *Responder) answer(peer netip.AddrPort, size int) []byte {
	b, err := json.Marshal(Answer{Name: r.name, Peer: peer})
	if err != nil {
		return nil // it always can be encoded
	}
	for len(b) < size-1 {
		b = append(b, ' ')
	}
	return append(b, '\n')
}

// serveUDP answers datagrams from the address that they were sent to, which on a host with several has to be asked for.
func (r *Responder) serveUDP(c *net.UDPConn) {
	buf, control := make([]byte, maxDatagram), make([]byte, 128)
	for {
		n, nc, _, peer, err := c.ReadMsgUDPAddrPort(buf, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an earlier answer
		}
		answer := r.answer(netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port()), n)
		_, _, _ = c.WriteMsgUDPAddrPort(answer, sameAddress(control[:nc]), peer)
	}
}

// sameAddress turns the note on where a datagram was sent to into one on where to send the answer from. The interface
// is left to routing.
func sameAddress(control []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(m.Data[8:12])})
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: [16]byte(m.Data[:16])})
		}
	}
	return nil
}

func addrPort(a net.Addr) netip.AddrPort {
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// SocketOption varies where a socket of the lab stands.
type SocketOption func(*socket)

type socket struct {
	device string
	source netip.AddrPort
	port   uint16
	dscp   int // of sent packets

	gone time.Duration // TCP: end a connection when sent data is not acknowledged for so long; 0: as the kernel does
}

// OnDevice binds to a device; a VRF device for a socket in that VRF.
func OnDevice(name string) SocketOption { return func(s *socket) { s.device = name } }

// FromAddr sets the source of questions. A zero port is chosen by the kernel.
func FromAddr(a netip.Addr, port uint16) SocketOption {
	return func(s *socket) { s.source = netip.AddrPortFrom(a, port) }
}

// fromPort sets the source port of questions to an address.
func fromPort(dst netip.Addr, port uint16) SocketOption {
	unset := netip.IPv6Unspecified()
	if dst.Is4() {
		unset = netip.IPv4Unspecified()
	}
	return FromAddr(unset, port)
}

// WithDSCP sets the DSCP value of questions.
func WithDSCP(value int) SocketOption { return func(s *socket) { s.dscp = value } }

// OnPort has a Responder listen on another port.
func OnPort(port uint16) SocketOption { return func(s *socket) { s.port = port } }

func socketOptions(options []SocketOption) socket {
	s := socket{port: ResponderPort}
	for _, o := range options {
		o(&s)
	}
	return s
}

// control prepares a socket before it is bound.
func (s socket) control(network, _ string, raw syscall.RawConn) error {
	var err error
	set := func(fd uintptr) {
		if s.device != "" {
			err = unix.BindToDevice(int(fd), s.device)
		}
		if err == nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		if err == nil && s.dscp != 0 {
			err = setDSCP(int(fd), network, s.dscp)
		}
		switch {
		case err != nil:
		case s.gone > 0 && network[:3] == "tcp":
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(s.gone.Milliseconds()))
		case network == "udp4":
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		case network == "udp6":
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
		}
	}
	return errors.Join(raw.Control(set), err)
}

// setDSCP sets the DSCP value of a socket's packets.
func setDSCP(fd int, network string, value int) error {
	if strings.HasSuffix(network, "6") {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, value<<2)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, value<<2)
}
