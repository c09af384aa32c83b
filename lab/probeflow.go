package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// flow asks one kind of question. Everything is done on the probe's thread.
type flow struct {
	q    Question
	node *Node
	to   unix.Sockaddr

	every, phase int   // in rounds
	ports        ports // of questions by UDP

	open []*exchange // in the order in which they were asked

	answered int
	lost     []time.Time
	broken   []time.Time
	why      string // the latest was broken
	stalls   []stall
	wrong    []Wrong
	row      []time.Time // when the latest that were all answered were asked; at most steadyMost
	trouble  string      // the latest

	former []Answerer // the wanted answers until since
	since  time.Time
}

// stall is an answer by a session that took its time.
type stall struct {
	asked time.Time
	took  time.Duration
}

// stalled is how long an answer has to take to be noted: TCP repeats lost packets after 200 ms at the earliest.
const stalled = 150 * time.Millisecond

// steadyMost bounds how many answered questions are kept.
const steadyMost = 64

// exchange is a question that waits for its answer.
type exchange struct {
	fd    int
	asked time.Time
	next  time.Time // when to look again
	said  bool      // TCP: the question is on its way
	lived bool      // it is a session that has been answered
	got   []byte
}

// Questions use these source ports in turn: so many that connection tracking has forgotten a flow before its port comes again, from a
// later Probe too. The kernel chooses others (ip_local_port_range).
const firstPort, lastPort = 10000, 32000

// ports are source ports in turn. The kernel would choose at random, and now and then a port whose flow is still known on the way, or at
// the other end: of a connection of another pod with the same source, which a change cut off. That end then acknowledges something else
// than the first packet, and the kernel sends this once more.
type ports uint16

// newPorts begins elsewhere for each number.
func newPorts(number int) ports { return ports(firstPort + number*997%(lastPort-firstPort)) }

func (p *ports) next() uint16 {
	if *p++; *p >= lastPort {
		*p = firstPort
	}
	return uint16(*p)
}

// portsTo returns source ports in turn for questions to an address. All Streams share them, since those of pods with one source outside may
// not meet, and a test begins more Streams than newPorts has beginnings.
func (l *Lab) portsTo(to netip.Addr) (next func() uint16) {
	l.asking.Lock()
	defer l.asking.Unlock()
	if l.asked == nil {
		l.asked = map[netip.Addr]*ports{}
	}
	p := l.asked[to]
	if p == nil {
		first := newPorts(0)
		p = &first
		l.asked[to] = p
	}
	return func() uint16 {
		l.asking.Lock()
		defer l.asking.Unlock()
		return p.next()
	}
}

func newFlow(q Question, n *Node, number int) *flow {
	f := &flow{
		q: q, node: n, to: &unix.SockaddrInet4{Addr: [4]byte{}, Port: int(q.To.Port())},
		every: int(q.Every / probeRound), ports: newPorts(number),
	}
	if a := q.To.Addr(); a.Is4() {
		f.to = &unix.SockaddrInet4{Addr: a.As4(), Port: int(q.To.Port())}
	} else {
		f.to = &unix.SockaddrInet6{Addr: a.As16(), Port: int(q.To.Port())}
	}
	f.phase = number % f.every // not all in the same round
	return f
}

func (f *flow) due(round int) bool {
	if f.q.Session && len(f.open) > 0 && !f.idle() {
		return false
	}
	return round%f.every == f.phase
}

// idle reports whether a session's connection waits for the next question.
func (f *flow) idle() bool { return f.open[0].asked.IsZero() }

// A question is one of many on its connection, or the only one.
var (
	probeQuestion = []byte("{}\n")
	onlyQuestion  = []byte(`{"last":true}` + "\n")
)

// ask sends a question.
func (f *flow) ask(now time.Time) {
	if f.q.Session && len(f.open) > 0 {
		x := f.open[0]
		x.asked, x.next, x.said, x.got = now, now.Add(probeRound), false, x.got[:0]
		_ = f.say(x) // if it fails, it is tried again when the answer is looked for
		return
	}
	x := &exchange{fd: -1, asked: now, next: now.Add(probeRound / 2)}
	if err := f.start(x); err != nil {
		if x.fd >= 0 {
			unix.Close(x.fd)
		}
		f.lose(x, err.Error())
		return
	}
	f.open = append(f.open, x)
}

// start opens a socket in the namespace of the thread.
func (f *flow) start(x *exchange) (err error) {
	family, kind := unix.AF_INET, unix.SOCK_DGRAM
	if f.q.To.Addr().Is6() {
		family = unix.AF_INET6
	}
	if f.q.Protocol == TCP {
		kind = unix.SOCK_STREAM
	}
	if x.fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	if f.q.Protocol == TCP {
		if err := unix.Connect(x.fd, f.to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return fmt.Errorf("connect: %w", err)
		}
		return nil
	}
	for range lastPort - firstPort {
		port := int(f.ports.next())
		var from unix.Sockaddr = &unix.SockaddrInet4{Port: port}
		if family == unix.AF_INET6 {
			from = &unix.SockaddrInet6{Port: port}
		}
		if err = unix.Bind(x.fd, from); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	x.said = true
	if err := unix.Sendto(x.fd, probeQuestion, 0, f.to); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// say sends the question by a connection, once there is one. An error means that the connection is of no use.
func (f *flow) say(x *exchange) (trouble error) {
	question := onlyQuestion
	if f.q.Session {
		question = probeQuestion
	}
	err := unix.Sendto(x.fd, question, unix.MSG_NOSIGNAL, nil)
	switch {
	case err == nil:
		x.said = true
	case !errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// look handles the answers that have come, and gives up questions that have waited too long.
func (f *flow) look(now time.Time) {
	f.open = slices.DeleteFunc(f.open, func(x *exchange) bool {
		if x.asked.IsZero() || now.Before(x.next) {
			return false
		}
		over := f.lookAt(x, now)
		if over {
			unix.Close(x.fd)
		}
		return over
	})
}

// lookAt reports whether the exchange and its socket have ended.
func (f *flow) lookAt(x *exchange, now time.Time) (over bool) {
	if !x.said {
		if err := f.say(x); err != nil {
			f.lose(x, err.Error())
			return true
		}
	}
	whole, err := false, error(nil)
	if x.said {
		whole, err = f.receive(x)
	}
	age := now.Sub(x.asked)
	limit := probeLimit
	if f.q.Session {
		limit = sessionLimit
	}
	switch {
	case err != nil:
		f.lose(x, err.Error())
		return true
	case whole:
		return f.take(x, now)
	case age >= limit:
		f.lose(x, "not answered in time")
		return true
	}
	// Most answers are there at the next round. For the others, it looks at growing intervals.
	x.next = now.Add(min(age, limit-age, time.Second/2))
	return false
}

// receive reports whether the whole answer is there.
func (f *flow) receive(x *exchange) (bool, error) {
	var buf [512]byte
	n, from, err := unix.Recvfrom(x.fd, buf[:], 0)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("receive: %w", err)
	case f.q.Protocol == UDP && sockaddr(from) != f.q.To:
		return false, nil
	case f.q.Protocol == TCP && n == 0:
		return false, errors.New("the connection was ended")
	}
	x.got = append(x.got, buf[:n]...)
	return bytes.HasSuffix(x.got, []byte("\n")), nil
}

// take notes an answer.
func (f *flow) take(x *exchange, now time.Time) (over bool) {
	var a Answer
	if err := json.Unmarshal(x.got, &a); err != nil {
		f.lose(x, err.Error())
		return true
	}
	took := now.Sub(x.asked)
	seen := Answerer{Name: a.Name, Source: a.Peer.Addr()}
	asked := x.asked
	switch {
	case !f.wanted(seen, asked):
		f.wrong = append(f.wrong, Wrong{At: asked, Seen: seen})
		f.trouble, f.row = seen.String(), f.row[:0]
	case f.q.Session && took > stalled:
		f.stalls = append(f.stalls, stall{asked, took})
		f.trouble, f.row = "answered after "+took.String(), f.row[:0]
	case f.q.Protocol == TCP && !f.q.Session && repeated(x.fd):
		f.lose(x, "something was sent again")
		return true
	default:
		f.answered++
		if len(f.row) == steadyMost {
			f.row = slices.Delete(f.row, 0, 1)
		}
		f.row = append(f.row, asked)
	}
	x.asked, x.lived = time.Time{}, true
	return !f.q.Session
}

// repeated reports whether TCP had to send something a second time: at 10 questions a second that hides a loss, which
// would look like an answer that came late.
func repeated(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.Total_retrans > 0
}

func (f *flow) wanted(seen Answerer, asked time.Time) bool {
	if len(f.q.Want) == 0 || slices.ContainsFunc(f.q.Want, func(a Answerer) bool { return a.is(seen) }) {
		return true
	}
	return asked.Before(f.since) && slices.ContainsFunc(f.former, func(a Answerer) bool { return a.is(seen) })
}

func (f *flow) expect(want []Answerer, now time.Time) {
	f.former, f.since = f.q.Want, now
	f.q.Want = want
}

// lose notes a question that was not answered, or a session that is no more.
func (f *flow) lose(x *exchange, why string) {
	switch {
	case !f.q.Session:
		f.lost = append(f.lost, x.asked)
	case x.lived:
		f.broken, f.why = append(f.broken, time.Now()), why
	}
	f.trouble, f.row = why, f.row[:0]
}

// steady is how many of the latest questions were all answered, as far as they were asked after a moment. A question that
// waits for its answer longer than usual is not counted as one that will be.
func (f *flow) steady(since time.Time) (n int) {
	for _, x := range f.open {
		if !x.asked.IsZero() && time.Since(x.asked) > stalled {
			return 0
		}
	}
	for _, asked := range slices.Backward(f.row) {
		if asked.Before(since) {
			break
		}
		n++
	}
	return n
}

func (f *flow) latest() string {
	if f.trouble == "" {
		return "nothing was wrong so far"
	}
	return "the latest trouble: " + f.trouble
}

func (f *flow) report(from, to time.Time) Report {
	within := func(at time.Time) bool { return !at.Before(from) && at.Before(to) }
	outside := func(at time.Time) bool { return !within(at) }
	r := Report{
		Question: f.q, Answered: f.answered, Why: f.why,
		Lost:   slices.DeleteFunc(slices.Clone(f.lost), outside),
		Broken: slices.DeleteFunc(slices.Clone(f.broken), outside),
	}
	slices.SortFunc(r.Lost, time.Time.Compare)
	for _, s := range f.stalls {
		if within(s.asked) {
			r.Stalled = max(r.Stalled, s.took)
		}
	}
	for _, w := range f.wrong {
		if within(w.At) {
			r.Wrong = append(r.Wrong, w)
		}
	}
	return r
}

// close ends all exchanges under way.
func (f *flow) close() {
	for _, x := range f.open {
		unix.Close(x.fd)
	}
	f.open = nil
}

func sockaddr(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}
