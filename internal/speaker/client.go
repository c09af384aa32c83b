package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// ErrAbsent says that there is no speaker to ask. Errors that wrap it say why.
var ErrAbsent = errors.New("no speaker")

// ClientOptions says how an agent finds its speaker.
type ClientOptions struct {
	Log     *slog.Logger
	Socket  string
	Version string   // of the agent
	Start   []string // the command line that starts a speaker where none answers; nil: somebody else starts it
	Wake    func()   // called when something may have changed; it must neither block nor call back
}

// Client drives the speaker for an agent. What the speaker tells is kept here: Learned, Sessions and the like never wait for
// it. Its methods may be called concurrently.
type Client struct {
	ClientOptions
	asking sync.Mutex // held during a request: one follows the other

	mu      sync.Mutex // guards what follows; never held while something is sent or awaited
	link    *link      // nil: no speaker answers
	heard   heard      // by the last link
	started time.Time  // the last speaker that answered
	problem error      // why there is no link
	told    chan struct{}
	ready   sync.Once // closes told
}

// NewClient makes a client that Run is to connect.
func NewClient(o ClientOptions) *Client {
	return &Client{ClientOptions: o, problem: fmt.Errorf("%w on socket %s yet", ErrAbsent, o.Socket), told: make(chan struct{})}
}

// Ready is closed when a speaker has told all it knows for the first time.
func (c *Client) Ready() <-chan struct{} { return c.told }

// Withdraw is bgp.Speakers.Withdraw in the speaker. Where nothing is to be taken back it does not ask.
func (c *Client) Withdraw(ctx context.Context, desired []plan.Speaker) error {
	c.asking.Lock()
	defer c.asking.Unlock()
	l, err := c.current()
	if err != nil {
		return err
	}
	r := l.request()
	w := r.now.excess(askedFor(desired))
	if len(w.Networks) == 0 && r.confirmed {
		return nil
	}
	a, err := l.ask(ctx, message{Withdraw: &w})
	if err != nil {
		return err
	}
	l.answered(r, r.now.without(w), r.confirmed && len(a.Errors) == 0, r.partly)
	return a.err()
}

// Apply is bgp.Speakers.Apply in the speaker. Where all is as desired it does not ask: the speaker goes on with what is
// not complete yet by itself.
func (c *Client) Apply(ctx context.Context, desired []plan.Speaker) error {
	c.asking.Lock()
	defer c.asking.Unlock()
	l, err := c.current()
	if err != nil {
		return err
	}
	r := l.request()
	next := askedFor(desired)
	var m change
	if r.partly {
		m = asked{}.changeTo(next)
		m.Full = true
	} else if m = r.now.changeTo(next); m.empty() && r.confirmed {
		l.answered(r, next, true, false) // it is the same, and shares more with what comes next
		return nil
	}
	a, err := l.ask(ctx, message{Apply: &m})
	if err != nil {
		return err
	}
	l.answered(r, next, len(a.Errors) == 0, a.Full)
	return a.err()
}

// Announced is what the speaker was asked to announce in each network, by this agent or by the one before it; nil where
// no speaker answers.
func (c *Client) Announced() map[string]sorted.List[plan.Announcement] {
	l, err := c.current()
	if err != nil {
		return nil
	}
	return l.request().now.announced()
}

// Learned is what peers tell, sorted, by network. Routes of a network are the same slice as before while they have not changed.
// Without a speaker it is what the last one told.
func (c *Client) Learned() []plan.NetworkRoutes {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now().learned.list()
}

// Sessions is bgp.Speakers.Sessions. Without a speaker no session is up.
func (c *Client) Sessions() []bgp.Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now().sessions
}

// Started is when the last speaker that answered was started: another time, another speaker.
func (c *Client) Started() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.started
}

// Problem is why there is no speaker; nil: there is one.
func (c *Client) Problem() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// now is what is known. c.mu is held.
func (c *Client) now() heard {
	if c.link != nil {
		return c.link.known()
	}
	return c.heard
}

// current is the connection to the speaker.
func (c *Client) current() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return nil, c.problem
	}
	return c.link, nil
}
