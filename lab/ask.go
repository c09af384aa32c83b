package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// AskLimit is how long a question waits for its answer if the context has no deadline. Time in which this process, which asks and
// answers, did not run does not count: a machine that does much else loses no question.
const AskLimit = time.Second

// beats are how many parts a limit is counted in. A part that takes longer, since the process did not run, counts as one.
const beats = 20

// limited ends a context after AskLimit, unless it has a deadline of its own.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return Within(ctx, AskLimit)
}

// Within ends a context with os.ErrDeadlineExceeded as its cause once this process has run for so long.
func Within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	var mu sync.Mutex // the first part may be over before the timer has its name
	mu.Lock()
	defer mu.Unlock()
	left := beats
	var timer *time.Timer
	timer = time.AfterFunc(limit/beats, func() {
		mu.Lock()
		defer mu.Unlock()
		if left--; left > 0 && ctx.Err() == nil {
			timer.Reset(limit / beats)
			return
		}
		cancel(os.ErrDeadlineExceeded)
	})
	return ctx, func() { cancel(nil) }
}

// because returns why ctx ended in place of an error that this caused.
func because(ctx context.Context, err error) error {
	if why := context.Cause(ctx); err != nil && why != nil {
		return why
	}
	return err
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

// bound makes reads and writes of conn fail once ctx ends, until the caller calls release.
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

// Open connects to a Responder. Without a deadline, a first packet that had to be sent again is an error: it was lost.
func (n *Node) Open(ctx context.Context, dst netip.AddrPort, options ...SocketOption) (*Session, error) {
	_, patient := ctx.Deadline()
	ctx, cancel := limited(ctx)
	defer cancel()
	what := fmt.Sprintf("node %s to %s by TCP", n.Name, dst)
	conn, err := n.dial(ctx, "tcp", dst.String(), options)
	if err == nil && !patient {
		if err = intact(conn.(*net.TCPConn)); err != nil {
			conn.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, because(ctx, err))
	}
	return &Session{conn: conn, in: bufio.NewReader(conn), what: what}, nil
}

// errRepeated is the error of a question whose first packet TCP had to repeat: the network lost it.
var errRepeated = errors.New("the first packet had to be sent again")

// intact fails if a connection that is new needed more than one attempt.
func intact(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var again bool
	err = raw.Control(func(fd uintptr) { again = repeated(int(fd)) })
	if err == nil && again {
		err = errRepeated
	}
	return err
}

// Ask sends one question by the connection that is there.
func (s *Session) Ask(ctx context.Context) (Answer, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	return s.Transfer(ctx, 0, 0)
}

// Transfer sends up bytes to the Responder and has it send down bytes. It fails once none has moved for Patience, however many are
// to move.
func (s *Session) Transfer(ctx context.Context, up, down int64) (Answer, error) {
	m, release, err := s.move(ctx)
	if err != nil {
		return Answer{}, err
	}
	defer release()
	err = m.ask(request{Up: up, Down: down})
	var a Answer
	if err == nil {
		a, err = m.answer(down)
	}
	return a, m.because(err)
}

// piece is how many bytes each request of Pour is for.
const piece = 256 << 10

// Pour has bytes move without a pause, up to the Responder or down from it, until stop is closed and all that was begun has arrived.
// It counts in moved those that have, and fails once none has moved for Patience.
func (s *Session) Pour(ctx context.Context, up bool, stop <-chan struct{}, moved *atomic.Int64) error {
	m, release, err := s.move(ctx)
	if err != nil {
		return err
	}
	defer release()
	q := request{Down: piece}
	if up {
		q = request{Up: piece}
	}
	asked := make(chan error, 1) // an answer is read while the next request is on its way
	go func() {                  // ends with stop, or with the connection's deadline
		defer close(asked)
		for {
			select {
			case <-stop:
				return
			default:
			}
			err := m.ask(q)
			asked <- err
			if err != nil {
				return
			}
		}
	}()
	for failed := range asked {
		if err == nil {
			err = failed
		}
		if err == nil {
			_, err = m.answer(q.Down)
		}
		if err == nil {
			moved.Add(piece)
		} else {
			m.end(err)
		}
	}
	return m.because(err)
}

// motion is a transfer under way, which goes on as long as bytes move.
type motion struct {
	*Session
	ctx   context.Context
	end   context.CancelCauseFunc
	still *time.Timer
}

func (s *Session) move(ctx context.Context) (m *motion, release func(), err error) {
	m = &motion{Session: s}
	m.ctx, m.end = context.WithCancelCause(ctx)
	m.still = time.AfterFunc(Patience, func() { m.end(fmt.Errorf("nothing moved for %s: %w", Patience, os.ErrDeadlineExceeded)) })
	unbound, err := bound(m.ctx, s.conn)
	release = func() {
		m.still.Stop()
		if err == nil {
			unbound()
		}
		m.end(nil)
	}
	if err != nil {
		release()
		return nil, nil, fmt.Errorf("%s: %w", s.what, err)
	}
	return m, release, nil
}

// Read and Write are those of the connection. Each byte that they move extends the limit.
func (m *motion) Read(b []byte) (int, error)  { return m.moved(m.in.Read(b)) }
func (m *motion) Write(b []byte) (int, error) { return m.moved(m.conn.Write(b)) }

func (m *motion) moved(n int, err error) (int, error) {
	if n > 0 {
		m.still.Reset(Patience)
	}
	return n, err
}

func (m *motion) ask(q request) error {
	b, err := json.Marshal(q)
	if err != nil {
		return err
	}
	if _, err := m.Write(append(b, '\n')); err != nil {
		return err
	}
	_, err = io.CopyN(m, zeros{}, q.Up)
	return err
}

func (m *motion) answer(down int64) (a Answer, err error) {
	line, err := m.in.ReadBytes('\n')
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, err
	}
	_, err = io.CopyN(io.Discard, m, down)
	return a, err
}

func (m *motion) because(err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", m.what, because(m.ctx, err))
	}
	return err
}

// Local is the connection's own end.
func (s *Session) Local() netip.AddrPort { return addrPort(s.conn.LocalAddr()) }

// Close ends the connection.
func (s *Session) Close() error { return s.conn.Close() }

// AskTCP opens a connection to a Responder, asks once and closes it.
func (n *Node) AskTCP(ctx context.Context, dst netip.AddrPort, options ...SocketOption) (Answer, error) {
	s, err := n.Open(ctx, dst, options...)
	if err != nil {
		return Answer{}, err
	}
	defer s.Close()
	return s.Ask(ctx)
}

// Transfer opens a connection to a Responder and moves bytes in both directions by it, see Session.Transfer.
func (n *Node) Transfer(ctx context.Context, dst netip.AddrPort, up, down int64, options ...SocketOption) (Answer, error) {
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
		return Answer{}, fmt.Errorf("node %s to %s by UDP with %d bytes: %w", n.Name, dst, size, because(ctx, err))
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

// echoID numbers the pings of this process.
var echoID atomic.Uint32

// Ping sends one ICMP echo request with size bytes of data and waits for the reply.
func (n *Node) Ping(ctx context.Context, dst netip.Addr, size int, options ...SocketOption) error {
	ctx, cancel := limited(ctx)
	defer cancel()
	if err := n.ping(ctx, dst, size, options); err != nil {
		return fmt.Errorf("node %s pings %s with %d bytes: %w", n.Name, dst, size, because(ctx, err))
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
