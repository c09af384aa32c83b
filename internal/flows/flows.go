// Package flows carries the established egress flows of a host to the standby, so that they go on when the standby takes
// over: with the same source address and port, which nothing but a connection's entry in conntrack remembers.
//
// Host and standby dial each other. The host tells what begins and ends, all there is when a channel comes up, and that again
// in parts from time to time; so the standby needs to remember nothing, and whatever was missed is mended or runs out. The
// standby tells what was closed there.
package flows

import (
	"context"
	"iter"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// Counters count since the start of the process.
type Counters struct {
	Sent      uint64 // flows told to other nodes, whatever became of them
	Bytes     uint64 // sent for it, without the headers of TCP and IP
	Received  uint64 // flows that other nodes told
	Injected  uint64 // of them, new here
	Refreshed uint64 // here already
	Held      uint64 // of pods of this node: kept in memory until it takes over
	Removed   uint64 // told to be over
	Refused   uint64 // not planned here, or in the way of what is
	Dropped   uint64 // not told at first because too many were to be told
	Lost      uint64 // times that the kernel had more events than could be read; what is there is listed then
}

type counters struct {
	sent, bytes, received, injected, refreshed, held, removed, refused, dropped, lost atomic.Uint64
}

// Carrier carries flows between this node and others.
type Carrier struct {
	log      *slog.Logger
	node     string
	marks    plan.Marks
	counters counters
	changed  chan struct{} // the view has
	due      chan struct{} // a full list is
	inject   sync.Mutex    // held while entries are made, so that a view is one thing to all of them

	mu      sync.Mutex // guards what follows; never held while waiting
	view    *view
	uses    map[link]int // how many roles of the view need a channel
	pending *pending
	held    map[key]held
	sources map[netip.Addr]int                     // of the held flows
	senders map[netip.Addr]context.CancelCauseFunc // nodes that a channel came from
}

// view is what this node is to do, as one pass of the daemon found it. It does not change.
type view struct {
	port     uint16
	roles    sorted.List[Role]
	channels map[link]*channel // to all peers of the roles
	data     plan.DataPlane
}

// of is how the node of a role is reached.
func (v *view) of(r Role) link { return link{r.Local, netip.AddrPortFrom(r.Peer, v.port)} }

// about goes through the roles of an ingress IP.
func (v *view) about(ingress netip.Addr) iter.Seq[Role] {
	return func(yield func(Role) bool) {
		for r := range v.roles.From(Role{Ingress: ingress}) {
			if r.Ingress != ingress || !yield(r) {
				return
			}
		}
	}
}

// tell lists who hears of an ingress IP's flows.
func (v *view) tell(ingress netip.Addr) (all []told) {
	for r := range v.about(ingress) {
		all = append(all, told{v.channels[v.of(r)], r.Host})
	}
	return all
}

// role is the one that this node has with a peer.
func (v *view) role(peer, ingress netip.Addr) (role Role, ok bool) {
	for r := range v.about(ingress) {
		if r.Peer == peer {
			return r, true
		}
	}
	return role, false
}

// hears says whether this node has any role with a peer.
func (v *view) hears(peer netip.Addr) bool {
	for l := range v.channels {
		if l.peer.Addr() == peer {
			return true
		}
	}
	return false
}

// told is somebody who hears of an ingress IP's flows.
type told struct {
	*channel
	host bool // this node is the host
}

// key is what tells flows apart.
type key struct {
	proto    uint8
	src, dst netip.AddrPort
}

func keyOf(f kernel.Flow) key { return key{f.Proto, f.Src, f.Dst} }

// New returns the Carrier of a node, that carries nothing until it runs and is told to.
func New(log *slog.Logger, node string, marks plan.Marks) *Carrier {
	return &Carrier{
		log: log, node: node, marks: marks, changed: make(chan struct{}, 1), due: make(chan struct{}, 1),
		view: &view{}, uses: map[link]int{}, pending: newPending(), held: map[key]held{}, sources: map[netip.Addr]int{},
		senders: map[netip.Addr]context.CancelCauseFunc{},
	}
}

// Counters returns what has been counted.
func (c *Carrier) Counters() Counters {
	n := &c.counters
	return Counters{
		Sent: n.sent.Load(), Bytes: n.bytes.Load(), Received: n.received.Load(), Injected: n.injected.Load(),
		Refreshed: n.refreshed.Load(), Held: n.held.Load(), Removed: n.removed.Load(), Refused: n.refused.Load(),
		Dropped: n.dropped.Load(), Lost: n.lost.Load(),
	}
}

// Set says what this node is from now on: its roles, the port by which nodes talk, and its data plane. It is to be called
// before the data plane is in force: where this node takes over, flows of its own pods, which the former host changed the
// source of, get their entries first. Until then their packets are dropped, not sent with another source. It costs what
// differs between these roles and those before.
func (c *Carrier) Set(port uint16, roles sorted.List[Role], d plan.DataPlane) {
	before := c.now()
	v := &view{port: port, roles: roles, channels: before.channels, data: d}
	former := before.roles
	c.mu.Lock()
	if port != before.port {
		former, v.channels = sorted.List[Role]{}, nil
		c.uses = map[link]int{}
	}
	var begun []Role
	others := port != before.port // other channels are needed
	for was, is := range former.Changes(roles) {
		if was != nil {
			if l := v.of(*was); c.uses[l] > 1 {
				c.uses[l]--
			} else {
				delete(c.uses, l)
				others = true
			}
		}
		if is != nil {
			l := v.of(*is)
			others = others || c.uses[l] == 0
			c.uses[l]++
			begun = append(begun, *is)
		}
	}
	if others {
		former := v.channels
		v.channels = make(map[link]*channel, len(c.uses))
		for l := range c.uses {
			if v.channels[l] = former[l]; v.channels[l] == nil {
				v.channels[l] = newChannel(l)
			}
		}
		for peer, end := range c.senders {
			if !v.hears(peer) {
				end(errNoRole)
				delete(c.senders, peer)
			}
		}
	}
	for _, r := range begun {
		if !before.had(r) && v.channels[v.of(r)].due() {
			signal(c.due)
		}
	}
	c.view = v
	c.mu.Unlock()
	if others {
		signal(c.changed)
	}
	c.takeOver(before, v)
}

// had says whether flows of a role were told in the same direction before.
func (v *view) had(role Role) bool {
	for r := range v.about(role.Ingress) {
		if r.Peer == role.Peer && r.Local == role.Local && r.Host == role.Host {
			return true
		}
	}
	return false
}

func (c *Carrier) now() *view {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// restartAfter is the pause before something that failed is tried again.
const restartAfter = time.Second

// Run carries until ctx ends. What was injected stays.
func (c *Carrier) Run(ctx context.Context) {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { c.serve(ctx, g); return nil })
	g.Go(func() error { c.release(ctx); return nil })
	g.Go(func() error { c.listAll(ctx); return nil })
	_ = g.Wait() // none of them fails
}

// serve keeps running what the view asks for: channels and listeners, and where there are any, the watch. Without one, the
// kernel does not make up messages about every connection of the node.
func (c *Carrier) serve(ctx context.Context, g *errgroup.Group) {
	watches := map[*Carrier]context.CancelFunc{}
	channels, listeners := map[*channel]context.CancelFunc{}, map[netip.AddrPort]context.CancelFunc{}
	for {
		wanted := map[*channel]bool{}
		c.mu.Lock()
		v := c.view
		c.mu.Unlock()
		for _, ch := range v.channels {
			wanted[ch] = true
		}
		follow(ctx, g, watches, map[*Carrier]bool{c: len(wanted) > 0}, func(ctx context.Context, c *Carrier) { c.watch(ctx) })
		follow(ctx, g, channels, wanted, c.send)
		addrs := map[netip.AddrPort]bool{}
		for l := range v.channels {
			addrs[netip.AddrPortFrom(l.local, v.port)] = true
		}
		follow(ctx, g, listeners, addrs, c.listen)
		select {
		case <-c.changed:
		case <-ctx.Done():
			return
		}
	}
}

func (c *Carrier) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := kernel.WatchFlows(ctx, c.marks, c.happened); err != nil {
			c.log.Warn("egress flows cannot be watched, trying again", "error", err)
		}
		pause.For(ctx, restartAfter)
	}
}

// follow starts what is wanted and does not run, and ends what runs and is not wanted.
func follow[T comparable](ctx context.Context, g *errgroup.Group, running map[T]context.CancelFunc, wanted map[T]bool, run func(context.Context, T)) {
	for t, end := range running {
		if !wanted[t] {
			end()
			delete(running, t)
		}
	}
	for t, yes := range wanted {
		if yes && running[t] == nil {
			each, end := context.WithCancel(ctx)
			running[t] = end
			g.Go(func() error { run(each, t); return nil })
		}
	}
}
