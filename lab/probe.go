package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Answerer identifies a server and the client address that it saw: so a pod looks to the outside, or a service to its
// clients.
type Answerer struct {
	Name   string
	Source netip.Addr // invalid: any address
}

func (a Answerer) String() string {
	if !a.Source.IsValid() {
		return a.Name
	}
	return a.Name + " saw " + a.Source.String()
}

// is reports whether an answer equals a wanted one.
func (a Answerer) is(seen Answerer) bool {
	return a.Name == seen.Name && (!a.Source.IsValid() || a.Source == seen.Source)
}

// Question is a question that a Probe asks a Responder again and again.
type Question struct {
	Node     string // that asks
	To       netip.AddrPort
	Protocol Protocol      // TCP or UDP; each question is a flow of its own, from another port
	Session  bool          // TCP: all questions go by one connection, as long as it lives
	Every    time.Duration // whole rounds of 10 ms
	Want     []Answerer    // none: any answer is right
}

func (q Question) String() string {
	how := q.Protocol.String()
	if q.Session {
		how = "session"
	}
	return fmt.Sprintf("%s to %s by %s", q.Node, q.To, how)
}

const (
	// probeRound is the time from one round of questions to the next.
	probeRound = 10 * time.Millisecond
	// probeLimit is how long an answer may take; a later one counts as lost.
	probeLimit = time.Second
	// sessionLimit is how long an answer by a connection that stays may take. It is longer since TCP repeats lost
	// packets at growing intervals: a path that was away for four seconds is tried again after up to six (RFC 6298).
	sessionLimit = 10 * time.Second
)

// Probe asks questions at a steady rate: a hundred rounds a second, all on one thread that goes from node to node. A
// question costs five system calls and no thread of its own, so that a few hundred a second go by unnoticed even in a
// kernel that makes each of them ten times as slow.
type Probe struct {
	flows []*flow
	stop  chan struct{}
	done  chan struct{}
	err   error // once done

	mu     sync.Mutex
	began  time.Time // of the latest round
	delays []Delay
}

// Delay is a round of a Probe that began late: the machine was busy with something else.
type Delay struct {
	At time.Time // when it should have begun
	By time.Duration
}

// delayed is how late a round has to be to be noted.
const delayed = 30 * time.Millisecond

// Probe starts asking. It ends with the lab, or by Stop.
func (l *Lab) Probe(questions ...Question) (*Probe, error) {
	p := &Probe{stop: make(chan struct{}), done: make(chan struct{})}
	for _, q := range questions {
		n := l.Nodes[q.Node]
		switch {
		case n == nil:
			return nil, fmt.Errorf("probe %s: no node %q", q, q.Node)
		case q.Every <= 0 || q.Every%probeRound != 0:
			return nil, fmt.Errorf("probe %s: every %s: must be a multiple of %s", q, q.Every, probeRound)
		case q.Protocol != TCP && (q.Protocol != UDP || q.Session):
			return nil, fmt.Errorf("probe %s: protocol must be TCP, or UDP without a session", q)
		}
		p.flows = append(p.flows, newFlow(q, n, int(l.flows.Add(1))))
	}
	// Grouped by node, for the thread's sake.
	slices.SortStableFunc(p.flows, func(x, y *flow) int { return strings.Compare(x.q.Node, y.q.Node) })
	go func() { // owned by Stop
		defer close(p.done)
		// The thread ends with this goroutine: it has been in the nodes' namespaces.
		runtime.LockOSThread()
		p.err = p.run()
		for _, f := range p.flows {
			f.close()
		}
	}()
	l.atEnd(func() { _ = p.Stop() })
	return p, nil
}

// Stop ends the probe; its results stay. The error is the reason why it ended before.
func (p *Probe) Stop() error {
	p.mu.Lock()
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.mu.Unlock()
	<-p.done
	return p.err
}

// run does one round after the other.
func (p *Probe) run() error {
	next := time.Now()
	for round := 0; ; round++ {
		select {
		case <-p.stop:
			return nil
		default:
		}
		now := time.Now()
		if late := now.Sub(next); late > delayed {
			p.mu.Lock()
			p.delays = append(p.delays, Delay{At: next, By: late})
			p.mu.Unlock()
			next = now // missed rounds are not made up for
		}
		if err := p.round(round); err != nil {
			return err
		}
		next = next.Add(probeRound)
		// Not a timer: this thread would have to be woken by another one.
		pause := unix.NsecToTimespec(max(0, time.Until(next)).Nanoseconds())
		if err := unix.Nanosleep(&pause, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("probe: sleep: %w", err)
		}
	}
}

// round asks the questions that are due, and looks for answers.
func (p *Probe) round(round int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began = time.Now()
	var at *Node
	for _, f := range p.flows {
		f.look(time.Now())
		if !f.due(round) {
			continue
		}
		if at != f.node {
			// The network namespace is enough, and quicker to enter than all of them.
			if err := unix.Setns(int(f.node.netns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("probe: enter node %s: %w", f.node.Name, err)
			}
			at = f.node
		}
		f.ask(time.Now())
	}
	return nil
}

// Expect changes by whom a question may be answered from now on, and whom that one may see. Questions that are under way
// may be answered as before too.
func (p *Probe) Expect(of func(Question) []Answerer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.flows {
		f.expect(of(f.q), time.Now())
	}
}

// Delays are the rounds that came late in a span of time.
func (p *Probe) Delays(from, to time.Time) (all []Delay) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.delays {
		if d.At.Add(d.By).After(from) && d.At.Before(to) {
			all = append(all, d)
		}
	}
	return all
}

// Report holds the results of the questions of one kind that were asked in a span of time.
type Report struct {
	Question Question
	Answered int         // in the whole life of the probe
	Lost     []time.Time // when each was asked that was not answered within a second, or that TCP had to send again
	Broken   []time.Time // sessions: when a connection ended, or was given up since it was silent for ten seconds
	Why      string      // sessions: why the latest broken one ended
	Stalled  time.Duration
	Wrong    []Wrong
}

// Wrong is an answer from, or for, another one than expected.
type Wrong struct {
	At   time.Time // when it was asked
	Seen Answerer
}

// Between reports on every kind of question, as far as they were asked in a span of time. Questions of the last second
// may yet be answered; a span that ended earlier has its full result.
func (p *Probe) Between(from, to time.Time) (all []Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.flows {
		all = append(all, f.report(from, to))
	}
	return all
}

// Steady returns nil if all wanted kinds of questions were answered without a loss, and as expected, at least n times
// in a row, all asked after a moment. Otherwise the error names the first kind that was not.
func (p *Probe) Steady(since time.Time, n int, wanted func(Question) bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.flows {
		if !wanted(f.q) {
			continue
		}
		if got := f.steady(since); got < n {
			return fmt.Errorf("%s: %d of the latest questions were answered in a row, want %d; %s", f.q, got, n, f.latest())
		}
	}
	return nil
}
