package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// AskLimit is how long a question waits for its answer if the context has no deadline.
const AskLimit = time.Second

func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, AskLimit)
}

// dial opens a socket in the node.
func (n *Node) dial(ctx context.Context, network, dst string, options []SocketOption) (net.Conn, error) {
	s := socketOptions(options)
	d := net.Dialer{Control: s.control, KeepAlive: -1}
	d.SetMultipathTCP(false)
	if s.source.IsValid() {
		switch network[:3] {
		case "tcp":
			d.LocalAddr = net.TCPAddrFromAddrPort(s.source)
		case "udp":
			d.LocalAddr = net.UDPAddrFromAddrPort(s.source)
		default:
			d.LocalAddr = &net.IPAddr{IP: s.source.Addr().AsSlice()}
		}
	}
	var conn net.Conn
	err := n.Do(func() (err error) {
		conn, err = d.DialContext(ctx, network, dst)
		return err
	})
	return conn, err
}

// bound has reads and writes of conn fail from the end of ctx on. The caller calls what it returns when it is done.
func bound(ctx context.Context, conn net.Conn) (release func() bool, err error) {
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	return context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }), nil
}

// Session is a TCP connection from a node to a Responder.
type Session struct {
	conn net.Conn
	in   *bufio.Reader
	what string
}

// Open connects to a Responder.
func (n *Node) Open(ctx context.Context, dst netip.AddrPort, options ...SocketOption) (*Session, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	what := fmt.Sprintf("node %s to %s by TCP", n.Name, dst)
	conn, err := n.dial(ctx, "tcp", dst.String(), options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return &Session{conn: conn, in: bufio.NewReader(conn), what: what}, nil
}

// Ask sends one question by the connection that is there.
func (s *Session) Ask(ctx context.Context) (Answer, error) { return s.Transfer(ctx, 0, 0) }

// Transfer sends up bytes to the Responder and has it send down bytes.
func (s *Session) Transfer(ctx context.Context, up, down int64) (Answer, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	a, err := s.transfer(ctx, request{Up: up, Down: down})
	if err != nil {
		return Answer{}, fmt.Errorf("%s: %w", s.what, err)
	}
	return a, nil
}

func (s *Session) transfer(ctx context.Context, q request) (a Answer, err error) {
	release, err := bound(ctx, s.conn)
	if err != nil {
		return a, err
	}
	defer release()
	b, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	if _, err := s.conn.Write(append(b, '\n')); err != nil {
		return a, err
	}
	if _, err := io.CopyN(s.conn, zeros{}, q.Up); err != nil {
		return a, err
	}
	line, err := s.in.ReadBytes('\n')
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, err
	}
	_, err = io.CopyN(io.Discard, s.in, q.Down)
	return a, err
}

// Local is the connection's own end.
func (s *Session) Local() netip.AddrPort { return addrPort(s.conn.LocalAddr()) }

// Close ends the connection.
func (s *Session) Close() error { return s.conn.Close() }

// AskTCP opens a connection to a Responder, asks once and closes it.
func (n *Node) AskTCP(ctx context.Context, dst netip.AddrPort, options ...SocketOption) (Answer, error) {
	return n.Transfer(ctx, dst, 0, 0, options...)
}

// Transfer opens a connection to a Responder and moves bytes in both directions by it.
func (n *Node) Transfer(ctx context.Context, dst netip.AddrPort, up, down int64, options ...SocketOption) (Answer, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	s, err := n.Open(ctx, dst, options...)
	if err != nil {
		return Answer{}, err
	}
	defer s.Close()
	return s.Transfer(ctx, up, down)
}

// AskUDP sends one datagram of size bytes to a Responder, whose answer has that size too. Sizes above the MTU are sent
// in fragments.
func (n *Node) AskUDP(ctx context.Context, dst netip.AddrPort, size int, options ...SocketOption) (Answer, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	a, err := n.askUDP(ctx, dst, size, options)
	if err != nil {
		return Answer{}, fmt.Errorf("node %s to %s by UDP with %d bytes: %w", n.Name, dst, size, err)
	}
	return a, nil
}

func (n *Node) askUDP(ctx context.Context, dst netip.AddrPort, size int, options []SocketOption) (a Answer, err error) {
	conn, err := n.dial(ctx, "udp", dst.String(), options)
	if err != nil {
		return a, err
	}
	defer conn.Close()
	release, err := bound(ctx, conn)
	if err != nil {
		return a, err
	}
	defer release()
	if _, err := conn.Write(make([]byte, size)); err != nil {
		return a, err
	}
	buf := make([]byte, maxDatagram)
	got, err := conn.Read(buf)
	if err != nil {
		return a, err
	}
	if got < size {
		return a, fmt.Errorf("the answer has %d bytes", got)
	}
	err = json.Unmarshal(buf[:got], &a)
	return a, err
}

// echoID tells the pings of this process apart.
var echoID atomic.Uint32

// Ping sends one ICMP echo request with size bytes of data and waits for the reply.
func (n *Node) Ping(ctx context.Context, dst netip.Addr, size int, options ...SocketOption) error {
	ctx, cancel := limited(ctx)
	defer cancel()
	if err := n.ping(ctx, dst, size, options); err != nil {
		return fmt.Errorf("node %s pings %s with %d bytes: %w", n.Name, dst, size, err)
	}
	return nil
}

func (n *Node) ping(ctx context.Context, dst netip.Addr, size int, options []SocketOption) error {
	network, ask, reply := "ip4:icmp", byte(8), byte(0)
	if dst.Is6() {
		network, ask, reply = "ip6:ipv6-icmp", 128, 129
	}
	conn, err := n.dial(ctx, network, dst.String(), options)
	if err != nil {
		return err
	}
	defer conn.Close()
	release, err := bound(ctx, conn)
	if err != nil {
		return err
	}
	defer release()
	const header = 8 // type, code, checksum, identifier and sequence number
	echo := make([]byte, header+size)
	echo[0] = ask
	binary.BigEndian.PutUint32(echo[4:], echoID.Add(1)<<16|1)
	if dst.Is4() {
		binary.BigEndian.PutUint16(echo[2:], checksum(echo)) // for IPv6 the kernel does it
	}
	if _, err := conn.Write(echo); err != nil {
		return err
	}
	for buf := make([]byte, maxDatagram); ; {
		got, _, err := conn.(*net.IPConn).ReadFromIP(buf) // unlike Read it takes the IPv4 header off
		if err != nil {
			return err
		}
		if got == len(echo) && buf[0] == reply && bytes.Equal(buf[4:got], echo[4:]) {
			return nil
		}
	}
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i, v := range b {
		if i%2 == 0 {
			sum += uint32(v) << 8
		} else {
			sum += uint32(v)
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
