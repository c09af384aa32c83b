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

// ErrAbsent means that there is no speaker to ask. Errors that wrap it give the reason.
var ErrAbsent = errors.New("no speaker")

// ClientOptions configures how an agent finds its speaker.
type ClientOptions struct {
	Log     *slog.Logger
	Socket  string
	Version string   // of the agent
	Start   []string // the command line that starts a speaker if none answers; nil: another program starts it
	Wake    func()   // called when something may have changed; it must neither block nor call the client
}

// Client drives the speaker for an agent. It keeps a copy of the state that the speaker reports, so Learned, Sessions
// and the like never wait for the speaker. Its methods may be called concurrently.
type Client struct {
	ClientOptions
	asking sync.Mutex // held during a request: requests are sent one after another

	mu       sync.Mutex // guards the fields below; never held while a message is sent or awaited
	link     *link      // nil: no speaker answers
	heard    heard      // from the last link
	started  time.Time  // when the last speaker that answered was started
	problem  error      // why there is no link
	complete chan struct{}
	ready    sync.Once // closes complete
}

// NewClient returns a client that Run connects.
func NewClient(o ClientOptions) *Client {
	return &Client{ClientOptions: o, problem: fmt.Errorf("%w on socket %s yet", ErrAbsent, o.Socket), complete: make(chan struct{})}
}

// Ready returns a channel that is closed when a speaker has reported its whole state for the first time.
func (c *Client) Ready() <-chan struct{} { return c.complete }

// Withdraw calls bgp.Speakers.Withdraw in the speaker. If nothing is to be withdrawn it sends no request.
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

// Apply calls bgp.Speakers.Apply in the speaker. If the speaker already has the desired state it sends no request: the
// speaker itself retries what is not complete yet.
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
		l.answered(r, next, true, false) // equal, but it shares more memory with the state that comes next
		return nil
	}
	a, err := l.ask(ctx, message{Apply: &m})
	if err != nil {
		return err
	}
	l.answered(r, next, len(a.Errors) == 0, a.Full)
	return a.err()
}

// Announced returns the announcements that this agent or the one before it asked the speaker for, by network. It
// returns nil if no speaker answers.
func (c *Client) Announced() map[string]sorted.List[plan.Announcement] {
	l, err := c.current()
	if err != nil {
		return nil
	}
	return l.request().now.announced()
}

// Learned returns the routes that peers announce, sorted, by network. While the routes of a network do not change, it
// returns the same slice. Without a speaker it returns those of the last one.
func (c *Client) Learned() []plan.NetworkRoutes {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now().learned.list()
}

// Sessions returns bgp.Speakers.Sessions of the speaker. Without a speaker no session is up.
func (c *Client) Sessions() []bgp.Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now().sessions
}

// Started returns when the last speaker that answered was started: another time means another speaker.
func (c *Client) Started() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.started
}

// Problem returns why there is no speaker, or nil if there is one.
func (c *Client) Problem() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// now returns the last known state. The caller holds c.mu.
func (c *Client) now() heard {
	if c.link != nil {
		return c.link.known()
	}
	return c.heard
}

// current returns the connection to the speaker.
func (c *Client) current() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return nil, c.problem
	}
	return c.link, nil
}
