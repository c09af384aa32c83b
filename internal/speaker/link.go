package speaker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// link is the agent's end of the connection to a speaker.
type link struct {
	*wire
	socket   string
	wake     func()
	onLink   *sorted.List[plan.OnLink] // of the last OnLink request; guarded as the others are
	unsent   bool                      // the speaker cannot announce all of them
	watching *watching                 // the last confirmed Watch request; guarded by the client's asking

	// Only listen uses these.
	pieces routes // with the parts received so far of changes that are not complete
	hops   sameHops

	mu        sync.Mutex // guards the fields below
	asked     asked      // of the speaker
	confirmed bool       // the speaker has applied asked without error
	partly    bool       // asked is incomplete or uncertain: the next change must be a full one
	unsure    uint64     // number of Again messages received
	heard     heard
	last      uint64 // number of the last request
	awaited   map[uint64]chan *answer
	gone      error // why the link has ended; nil: it has not
}

var (
	errOtherProtocol = errors.New("it speaks another protocol")
	errTakenOver     = errors.New("another agent took over")
	errEnding        = errors.New("it is shutting down")
)

// connect connects to the speaker on the socket and exchanges hellos.
func connect(ctx context.Context, path, version string, wake func()) (*link, hello, error) {
	d := net.Dialer{Timeout: helloWithin}
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, hello{}, err
	}
	l := &link{
		wire: newWire(conn), socket: path, wake: wake, partly: true, asked: asked{},
		pieces: routes{}, awaited: map[uint64]chan *answer{},
	}
	h, err := l.greet(version)
	if err != nil {
		conn.Close()
		return nil, h, err
	}
	return l, h, nil
}

func (l *link) greet(version string) (hello, error) {
	if err := l.write(message{Hello: &hello{Protocol: Protocol, Version: version, Groups: true}}, helloWithin); err != nil {
		return hello{}, err
	}
	h, err := l.readHello()
	switch {
	case err != nil:
		return h, fmt.Errorf("await its hello: %w", err)
	case h.Protocol != Protocol:
		return h, fmt.Errorf("%w: %d, of version %s; this agent speaks %d, of version %s: restart the speaker",
			errOtherProtocol, h.Protocol, h.Version, Protocol, version)
	}
	speakers := make([]plan.Speaker, 0, len(h.Speakers))
	for _, s := range h.Speakers {
		speakers = append(speakers, s.speaker())
	}
	l.asked = askedFor(speakers)
	return h, nil
}

// listen handles the speaker's messages until the link ends, and returns why. It calls complete when the speaker's whole
// state has arrived.
func (l *link) listen(complete func()) error {
	for {
		m, err := l.read()
		if err == nil {
			err = l.hear(m, complete)
		}
		if err != nil {
			l.hangUp(err)
			return err
		}
	}
}

func (l *link) hear(m message, complete func()) error {
	switch {
	case m.Answer != nil:
		l.hearAnswer(m.ID, m.Answer)
	case m.Sessions != nil:
		if l.hearSessions(m.Sessions.All) {
			l.wake()
		}
	case m.Learned != nil:
		if l.hearLearned(*m.Learned) {
			l.wake()
		}
	case m.Nodes != nil:
		l.mu.Lock()
		l.heard.nodes = m.Nodes.sessions()
		l.mu.Unlock()
		l.wake()
	case m.Complete:
		complete()
	case m.Again:
		l.mu.Lock()
		l.confirmed = false
		l.unsure++
		l.mu.Unlock()
		l.wake()
	case m.Superseded != "":
		return fmt.Errorf("%w, of version %s", errTakenOver, m.Superseded)
	case m.Ending:
		return errEnding
	}
	return nil
}

// hearAnswer passes an answer to the function that waits for it.
func (l *link) hearAnswer(id uint64, a *answer) {
	l.mu.Lock()
	waiting := l.awaited[id]
	delete(l.awaited, id)
	l.mu.Unlock()
	if waiting != nil {
		waiting <- a
	}
}

// hearSessions records the state of the sessions, and reports whether it is worth a pass.
func (l *link) hearSessions(all []bgp.Session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	worth := worthAPass(l.heard.sessions, all)
	l.heard.sessions = all
	return worth
}

// hearLearned applies a change of a network's learned routes, and reports whether the change is complete. No other
// function changes learned routes.
func (l *link) hearLearned(m learned) bool {
	if m.Gone {
		delete(l.pieces, m.Network)
		l.setLearned(l.known().learned.without(m.Network))
		return true
	}
	c := m.Routes
	for i, r := range c.Set {
		c.Set[i].NextHops = l.hops.one(r.NextHops)
	}
	if len(m.Groups) > 0 {
		c.Set = ungrouped(m.Groups, &l.hops)
	}
	now, begun := l.pieces[m.Network]
	if !begun {
		now = l.known().learned[m.Network]
	}
	now = applyIn(c, now, routeTo)
	if m.More {
		l.pieces[m.Network] = now
		return false
	}
	delete(l.pieces, m.Network)
	l.setLearned(l.known().learned.with(m.Network, now))
	return true
}

func (l *link) setLearned(r routes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard.learned = r
}

// ask sends a request and waits for the answer.
func (l *link) ask(ctx context.Context, m message) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if deadline, ok := ctx.Deadline(); ok {
		m.Milliseconds = max(1, time.Until(deadline).Milliseconds())
	}
	waiting := make(chan *answer, 1)
	l.mu.Lock()
	if l.gone != nil {
		l.mu.Unlock()
		return nil, absent(l.socket, l.gone)
	}
	l.last++
	m.ID = l.last
	l.awaited[m.ID] = waiting
	l.mu.Unlock()
	if err := l.write(m, writeWithin); err != nil {
		l.hangUp(err)
		return nil, absent(l.socket, err)
	}
	select {
	case a, ok := <-waiting:
		if !ok {
			l.mu.Lock()
			defer l.mu.Unlock()
			return nil, absent(l.socket, l.gone)
		}
		return a, nil
	case <-ctx.Done():
		err := fmt.Errorf("it does not answer: %w", ctx.Err())
		l.hangUp(err) // the request may have been executed or not: only the hello of a new connection says
		return nil, absent(l.socket, err)
	}
}

// hangUp ends the link. Later calls do nothing.
func (l *link) hangUp(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone != nil {
		return
	}
	l.gone = why
	for id, waiting := range l.awaited {
		close(waiting)
		delete(l.awaited, id)
	}
	l.conn.Close()
}

// request is the state of a link from which a request is made.
type request struct {
	now       asked // asked before the request
	confirmed bool
	partly    bool
	unsure    uint64
}

func (l *link) request() request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return request{l.asked, l.confirmed, l.partly, l.unsure}
}

// answered records the state after the request that was made from r.
func (l *link) answered(r request, now asked, confirmed, partly bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.partly = now, partly
	l.confirmed = confirmed && l.unsure == r.unsure // an Again message may have arrived before the answer
}

func (l *link) known() heard {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard
}

func absent(path string, why error) error {
	return fmt.Errorf("%w answers on socket %s: %w", ErrAbsent, path, why)
}

func (a *answer) err() error {
	errs := make([]error, 0, len(a.Errors))
	for _, e := range a.Errors {
		errs = append(errs, errors.New(e))
	}
	return errors.Join(errs...)
}

// End makes the speaker on the socket withdraw everything and exit. If there is no speaker it does nothing.
func End(ctx context.Context, path, version string) error {
	l, _, err := connect(ctx, path, version, func() {})
	if nobody(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end the speaker on socket %s: %w", path, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.listen(func() {}) // the answer below says why it ends
	}()
	a, err := l.ask(ctx, message{End: true})
	if err == nil {
		err = a.err()
	}
	if err != nil {
		l.hangUp(err)
		<-ended
		return fmt.Errorf("end the speaker on socket %s: %s", path, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	<-ended
	return nil
}
