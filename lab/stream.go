package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that the lab speaks.
const (
	ICMP   Protocol = 1
	TCP    Protocol = 6
	UDP    Protocol = 17
	ICMPv6 Protocol = 58
)

func (p Protocol) String() string {
	switch p {
	case ICMP:
		return "icmp"
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case ICMPv6:
		return "icmpv6"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// Seen is who answered, and whom it saw.
type Seen struct {
	Protocol Protocol
	Name     string
	Source   netip.Addr
}

// Tally holds the results of a stream of questions.
type Tally struct {
	OK, Failed int
	Seen       map[Seen]int
	Errors     map[string]int // of those that failed, by text
	Lost       []Loss         // the first that failed
}

// Loss is a question that failed.
type Loss struct {
	Asked    time.Time
	Protocol Protocol
	Why      string
}

func (l Loss) String() string {
	return fmt.Sprintf("%s by %s: %s", l.Asked.Format("15:04:05.000"), l.Protocol, l.Why)
}

// lossesKept is how many of them a Tally holds.
const lossesKept = 32

// Stream asks by a new connection, again and again, in the background. No clock says that a question is lost: a machine that does much
// else answers late, and loses nothing.
type Stream struct {
	node    *Node
	dst     netip.AddrPort
	options []SocketOption
	port    func() uint16 // the source port of the next question
	stop    context.CancelFunc
	work    sync.WaitGroup
	mu      sync.Mutex
	tally   Tally
	waiting []*datagram // in the order in which they were sent
}

const (
	// streamMost is how many questions of one stream may be asked at once by TCP. Where all are, the next ones wait, so that a dead
	// path costs no unbounded number of threads.
	streamMost = 16
	// waitingMost is how many questions by UDP may wait for their answers. The oldest of more is lost.
	waitingMost = 64
	// overtaken is how many later questions by UDP are answered before one is lost: packets do not overtake one another, and a
	// Responder answers in order.
	overtaken = 2
)

// Stream makes a node ask a Responder by TCP and by UDP in turn, one question every interval, until Stop or the lab's
// end. A question by UDP is lost once later ones were answered. One by TCP is lost if the kernel had to send its first
// packet again, or if it was not acknowledged for AskLimit.
func (l *Lab) Stream(ctx context.Context, n *Node, dst netip.AddrPort, every time.Duration, options ...SocketOption) *Stream {
	ctx, stop := context.WithCancel(ctx)
	s := &Stream{
		node: n, dst: dst, options: options, port: l.portsTo(dst.Addr()), stop: stop,
		tally: Tally{Seen: map[Seen]int{}, Errors: map[string]int{}},
	}
	s.work.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		slots := make(chan struct{}, streamMost)
		for protocol := TCP; ; protocol = TCP + UDP - protocol {
			ask := s.askUDP
			if protocol == TCP {
				ask = func(ctx context.Context) (Answer, error) {
					defer func() { <-slots }()
					return s.askTCP(ctx)
				}
				select {
				case <-ctx.Done():
					return
				case slots <- struct{}{}:
				}
			}
			s.work.Go(func() {
				asked := time.Now()
				a, err := ask(ctx)
				s.count(ctx, asked, protocol, a, err)
			})
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	l.atEnd(func() { s.Stop() })
	return s
}

func (s *Stream) askTCP(ctx context.Context) (a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	options := append([]SocketOption{fromPort(s.dst.Addr(), s.port())}, s.options...)
	c, err := s.node.Open(ctx, s.dst, append(options, func(o *socket) { o.gone = AskLimit })...)
	if err != nil {
		return a, err
	}
	defer c.Close()
	if err := intact(c.conn.(*net.TCPConn)); err != nil {
		return a, err
	}
	return c.Ask(ctx)
}

// datagram is a question by UDP that waits for its answer.
type datagram struct {
	conn   net.Conn
	passed int // later ones that were answered
	lost   bool
}

// giveUp has a datagram look for its answer a last time.
func (d *datagram) giveUp() { _ = d.conn.SetReadDeadline(time.Unix(1, 0)) }

// Errors of questions by UDP.
var (
	errOvertaken = errors.New("not answered, but later questions were")
	errForgotten = errors.New("not answered yet")
)

func (s *Stream) askUDP(ctx context.Context) (a Answer, err error) {
	// An option that chooses another source comes later and prevails.
	conn, err := s.node.dial(ctx, "udp", s.dst.String(), append([]SocketOption{fromPort(s.dst.Addr(), s.port())}, s.options...))
	if err != nil {
		return a, err
	}
	defer conn.Close()
	d := &datagram{conn: conn}
	s.mu.Lock()
	_, err = conn.Write([]byte{0})
	if err == nil {
		s.waiting = append(s.waiting, d)
		if len(s.waiting) > waitingMost {
			s.lose(s.waiting[0])
		}
	}
	s.mu.Unlock()
	if err != nil {
		return a, err
	}
	defer context.AfterFunc(ctx, d.giveUp)()
	buf := make([]byte, maxDatagram)
	got, err := conn.Read(buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		got, err = lastLook(conn.(*net.UDPConn), buf)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.waiting, d)
	if err != nil {
		if at >= 0 {
			s.waiting = slices.Delete(s.waiting, at, at+1)
		}
		if errors.Is(err, errForgotten) && d.lost {
			err = errOvertaken
		}
		return a, err
	}
	for _, earlier := range slices.Clone(s.waiting[:max(at, 0)]) {
		if earlier.passed++; earlier.passed == overtaken {
			s.lose(earlier)
		}
	}
	if at = slices.Index(s.waiting, d); at >= 0 {
		s.waiting = slices.Delete(s.waiting, at, at+1)
	}
	err = json.Unmarshal(buf[:got], &a)
	return a, err
}

// lose says that a datagram that waits is lost, unless its answer is there and was not read yet.
func (s *Stream) lose(d *datagram) {
	d.lost = true
	s.waiting = slices.DeleteFunc(s.waiting, func(o *datagram) bool { return o == d })
	d.giveUp()
}

// lastLook reads an answer that has already come.
func lastLook(conn *net.UDPConn, buf []byte) (got int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) { got, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT) })
	switch {
	case failed != nil:
		return 0, failed
	case errors.Is(err, unix.EAGAIN):
		return 0, errForgotten
	}
	return got, err
}

// count adds the result of a question.
func (s *Stream) count(ctx context.Context, asked time.Time, protocol Protocol, a Answer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.tally.OK++
		s.tally.Seen[Seen{protocol, a.Name, a.Peer.Addr()}]++
	case ctx.Err() != nil && !errors.Is(err, errOvertaken): // cut off by Stop: says nothing
	default:
		s.tally.Failed++
		s.tally.Errors[cause(err)]++
		if len(s.tally.Lost) < lossesKept {
			s.tally.Lost = append(s.tally.Lost, Loss{asked, protocol, err.Error()})
		}
	}
}

// cause is the part of an error that is the same for all questions: without the ports.
func cause(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return "timeout"
	}
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err.Error()
}

// Tally returns the results so far.
func (s *Stream) Tally() Tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tally
	t.Seen, t.Errors, t.Lost = maps.Clone(t.Seen), maps.Clone(t.Errors), slices.Clone(t.Lost)
	return t
}

// Stop ends the stream. Questions that wait for an answer are forgotten.
func (s *Stream) Stop() Tally {
	s.stop()
	s.work.Wait()
	return s.Tally()
}
