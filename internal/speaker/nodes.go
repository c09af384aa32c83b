package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/config"
)

// watching lists the nodes to run BFD with, and its parameters.
type watching struct {
	Port    uint16            `json:"port"`
	Bind    netip.Addr        `json:"bind,omitzero"`
	Profile config.BFDProfile `json:"profile"`
	Peers   []nodePeer        `json:"peers,omitempty"` // empty: no BFD
}

// nodePeer is a bfd.Peer.
type nodePeer struct {
	Node    string     `json:"node"`
	Address netip.Addr `json:"address"`
	Local   netip.Addr `json:"local,omitzero"`
	Active  bool       `json:"active,omitempty"`

	Profile   config.BFDProfile `json:"profile,omitzero"`
	Interface string            `json:"interface,omitempty"`
}

// nodeSession is a bfd.Session.
type nodeSession struct {
	Node      string        `json:"node"`
	Address   netip.Addr    `json:"address"`
	Active    bool          `json:"active,omitempty"`
	State     bfd.State     `json:"state"`
	Failed    bool          `json:"failed,omitempty"`
	Heard     bool          `json:"heard,omitempty"`
	Losses    uint64        `json:"losses,omitempty"`
	Slowed    int           `json:"slowed,omitempty"`
	Since     time.Time     `json:"since"`
	Detection time.Duration `json:"detectionNanoseconds,omitempty"`
	LastError string        `json:"lastError,omitempty"`
}

// nodes replaces the state of all nodes.
type nodes struct {
	All []nodeSession `json:"all"`
}

func watchingOf(o bfd.Options, peers []bfd.Peer) watching {
	w := watching{Port: o.Port, Bind: o.Bind, Profile: o.Profile}
	for _, p := range peers {
		w.Peers = append(w.Peers, nodePeer(p))
	}
	return w
}

// is reports whether w equals watchingOf(o, peers), without allocating: every pass calls it.
func (w *watching) is(o bfd.Options, peers []bfd.Peer) bool {
	return w.Port == o.Port && w.Bind == o.Bind && w.Profile == o.Profile &&
		slices.EqualFunc(w.Peers, peers, func(x nodePeer, y bfd.Peer) bool { return bfd.Peer(x) == y })
}

// watch runs BFD sessions with other nodes.
type watch struct {
	log  *slog.Logger
	wake func()

	mu     sync.Mutex // guards the fields below
	engine *bfd.Engine
	now    watching
}

// set replaces the sessions by those of w. Sessions that are in both are left alone.
func (n *watch) set(w watching) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	if n.engine != nil && !n.serves(w) {
		errs = append(errs, n.engine.Close())
		n.engine = nil
	}
	if len(w.Peers) == 0 {
		return errors.Join(errs...)
	}
	if err := n.run(w); err != nil {
		return errors.Join(append(errs, fmt.Errorf("BFD with other nodes: %w", err))...)
	}
	peers := make([]bfd.Peer, 0, len(w.Peers))
	for _, p := range w.Peers {
		peers = append(peers, bfd.Peer(p))
	}
	n.engine.Set(peers)
	n.now = w
	return errors.Join(errs...)
}

// serves reports whether the running engine can serve w.
func (n *watch) serves(w watching) bool {
	return len(w.Peers) > 0 && w.Port == n.now.Port && w.Bind == n.now.Bind
}

// run starts an engine unless one runs, and gives it the timers of w.
func (n *watch) run(w watching) (err error) {
	switch {
	case n.engine == nil:
		n.engine, err = bfd.Listen(bfd.Options{Port: w.Port, Bind: w.Bind, Profile: w.Profile, Log: n.log, Wake: n.wake})
	case w.Profile != n.now.Profile:
		err = n.engine.SetProfile(w.Profile)
	}
	return err
}

// sessions returns the state of the BFD sessions with other nodes.
func (n *watch) sessions() (all []nodeSession) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.engine == nil {
		return nil
	}
	for _, s := range n.engine.Sessions() {
		all = append(all, nodeSession(s))
	}
	return all
}

// close sends the diagnostic why to the other nodes, and ends all sessions.
func (n *watch) close(why bfd.Diag) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.engine == nil {
		return nil
	}
	defer func() { n.engine = nil }()
	return n.engine.Leave(why)
}

// sendNodes sends the agent the state of the BFD sessions with other nodes if it changed.
func (d *driver) sendNodes() error {
	d.tellingNodes.Lock()
	defer d.tellingNodes.Unlock()
	now := d.server.nodes.sessions()
	if slices.Equal(now, d.nodes) {
		return nil
	}
	d.nodes = now
	return d.write(message{Nodes: &nodes{now}}, writeWithin)
}

// Watch runs BFD in the speaker with the given nodes, with the Port, Bind and Profile of o; without peers it ends BFD.
// If the speaker does so already it sends no request.
func (c *Client) Watch(ctx context.Context, o bfd.Options, peers []bfd.Peer) error {
	c.asking.Lock()
	defer c.asking.Unlock()
	l, err := c.current()
	if err != nil {
		return err
	}
	if l.watching != nil && l.watching.is(o, peers) {
		return nil
	}
	w := watchingOf(o, peers)
	a, err := l.ask(ctx, message{Watch: &w})
	if err != nil {
		return err
	}
	l.watching = nil
	if len(a.Errors) == 0 {
		l.watching = &w
	}
	return a.err()
}

// Nodes returns the state of BFD sessions with other nodes. Without a speaker it returns that of the last one.
func (c *Client) Nodes() []bfd.Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now().nodes
}

func (n nodes) sessions() []bfd.Session {
	all := make([]bfd.Session, 0, len(n.All))
	for _, s := range n.All {
		all = append(all, bfd.Session(s))
	}
	return all
}
