// Package flows replicates the established egress flows of a host to its standby, so that they survive when the standby
// takes over: with the same source address and port, which only a connection's conntrack entry records.
//
// Host and standby each dial the other. The host sends flows when they begin and end, all flows when a channel comes
// up, and all again from time to time, in parts. So the standby keeps no state of its own, and missed flows are
// repaired or expire. The standby sends the flows that were closed there.
//
// Words of this package:
//
//   - role: this node is host or standby of an ingress IP, with a given peer;
//   - view: the roles and data plane of one pass;
//   - receiver: a peer that receives an ingress IP's flows;
//   - pending, ripe: a flow too young to be sent; old enough;
//   - held: a flow of a local pod, kept in memory until this node takes over.
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

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/kernel/sysctl"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// Counters holds counts since the start of the process.
type Counters struct {
	Sent      uint64 // records sent to other nodes
	Bytes     uint64 // sent for these, without TCP and IP headers
	Received  uint64 // records received from other nodes
	Injected  uint64 // received flows that got a new entry here
	Refreshed uint64 // received flows that had an entry here
	Held      uint64 // received flows of local pods: kept in memory until this node takes over
	Removed   uint64 // received flows that had ended
	Refused   uint64 // received flows that are not planned here, or that an entry here prevents
	Dropped   uint64 // not sent at first because too many were waiting
	Lost      uint64 // times that the kernel had more events than were read; all flows are then listed
}

type counters struct {
	sent, bytes, received, injected, refreshed, held, removed, refused, dropped, lost atomic.Uint64
}

// Carrier replicates flows between this node and others.
type Carrier struct {
	log      *slog.Logger
	node     string
	marks    plan.Marks
	counters counters
	changed  chan struct{} // signals a new view
	due      chan struct{} // signals that a full list is due
	inject   sync.Mutex    // held while entries are created, so that all of them see one view

	mu      sync.Mutex // guards the fields below; never held while waiting
	view    *view
	uses    map[link]int // number of roles of the view that need a channel
	pending *pending
	held    map[key]held
	sources map[netip.Addr]int                     // number of held flows by source
	senders map[netip.Addr]context.CancelCauseFunc // ends the incoming channel of a node
	handing handing
}

// view is this node's part as one pass of the daemon determined it. It is immutable: the goroutines of channels look into
// it between passes.
type view struct {
	port     uint16
	roles    sorted.List[Role]
	channels map[link]*channel // to all peers of the roles
	// Received flows are judged by these, between passes too.
	endpoints sorted.List[plan.Endpoint]
	paths     []plan.Path
}

// of returns the link to a role's peer.
func (v *view) of(r Role) link { return link{r.Local, netip.AddrPortFrom(r.Peer, v.port)} }

// about yields the roles of an ingress IP.
func (v *view) about(ingress netip.Addr) iter.Seq[Role] {
	return func(yield func(Role) bool) {
		for r := range v.roles.From(Role{Ingress: ingress}) {
			if r.Ingress != ingress || !yield(r) {
				return
			}
		}
	}
}

// receivers returns the peers that receive an ingress IP's flows.
func (v *view) receivers(ingress netip.Addr) (all []receiver) {
	for r := range v.about(ingress) {
		if !r.Parted {
			all = append(all, receiver{v.channels[v.of(r)], r.Host})
		}
	}
	return all
}

// role returns this node's role for an ingress IP with a peer.
func (v *view) role(peer, ingress netip.Addr) (role Role, ok bool) {
	for r := range v.about(ingress) {
		if r.Peer == peer {
			return r, true
		}
	}
	return role, false
}

// hears reports whether this node has any role with a peer.
func (v *view) hears(peer netip.Addr) bool {
	for l := range v.channels {
		if l.peer.Addr() == peer {
			return true
		}
	}
	return false
}

// receiver is a peer that receives an ingress IP's flows.
type receiver struct {
	*channel
	host bool // this node is the host
}

// key identifies a flow.
type key struct {
	proto    uint8
	src, dst netip.AddrPort
}

func keyOf(f conntrack.Flow) key { return key{f.Proto, f.Src, f.Dst} }

// New returns a node's Carrier. It does nothing until Run and Set are called.
func New(log *slog.Logger, node string, marks plan.Marks) *Carrier {
	return &Carrier{
		log: log, node: node, marks: marks, changed: make(chan struct{}, 1), due: make(chan struct{}, 1),
		view: &view{}, uses: map[link]int{}, pending: newPending(), held: map[key]held{}, sources: map[netip.Addr]int{},
		senders: map[netip.Addr]context.CancelCauseFunc{},
	}
}

// Counters returns the present counts.
func (c *Carrier) Counters() Counters {
	n := &c.counters
	return Counters{
		Sent: n.sent.Load(), Bytes: n.bytes.Load(), Received: n.received.Load(), Injected: n.injected.Load(),
		Refreshed: n.refreshed.Load(), Held: n.held.Load(), Removed: n.removed.Load(), Refused: n.refused.Load(),
		Dropped: n.dropped.Load(), Lost: n.lost.Load(),
	}
}

// ReasonFlowsNotSent means that the kernel does not report flows, so that standbys do not learn of them in time.
const ReasonFlowsNotSent cluster.Reason = "FlowsNotSent"

// Problems reports the setting of the kernel that keeps flows from standbys. The daemon does not change it: it concerns all connections of
// the node.
func (c *Carrier) Problems() (problems []cluster.Problem) {
	path := []string{"net", "netfilter", "nf_conntrack_events"}
	if v, ok := sysctl.Read(path...); ok && v == 0 && c.now().roles.Len() > 0 {
		problems = append(problems, cluster.Problem{
			Kind: "Node", Object: c.node, Field: sysctl.Name(path...), Value: "0", Reason: ReasonFlowsNotSent,
			Message: "the kernel does not report new and ended connections: standbys learn of them up to 15 minutes late, " +
				"and most end when this host dies; set it to 2 or 1",
		})
	}
	return problems
}

// Set replaces this node's roles, the port for channels between nodes, and its data plane. Call it before the data
// plane comes into force: where this node takes over, flows of local pods that the former host translated get their
// entries first. Until then their packets are dropped, not sent with another source. The cost depends on the difference
// from the roles before.
func (c *Carrier) Set(port uint16, roles sorted.List[Role], d plan.DataPlane) {
	before := c.now()
	v := &view{port: port, roles: roles, channels: before.channels, endpoints: d.Endpoints, paths: d.Paths}
	former := before.roles
	c.mu.Lock()
	if port != before.port {
		former, v.channels = sorted.List[Role]{}, nil
		c.uses = map[link]int{}
	}
	begun, others := c.countUses(v, former)
	others = others || port != before.port
	if others {
		c.replaceChannels(v)
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

// countUses updates the uses of links to those by the view's roles. It returns the roles that are not in former, and
// reports whether other links than before are in use. c.mu is held.
func (c *Carrier) countUses(v *view, former sorted.List[Role]) (begun []Role, others bool) {
	for was, is := range former.Changes(v.roles) {
		if was != nil {
			others = c.endUse(v.of(*was)) || others
		}
		if is != nil {
			l := v.of(*is)
			others = others || c.uses[l] == 0
			c.uses[l]++
			begun = append(begun, *is)
		}
	}
	return begun, others
}

// endUse removes one use of a link, and reports whether it was the last. c.mu is held.
func (c *Carrier) endUse(l link) (last bool) {
	if c.uses[l] > 1 {
		c.uses[l]--
		return false
	}
	delete(c.uses, l)
	return true
}

// replaceChannels gives the view a channel for each link in use, a new one only where it has none, and ends the incoming
// channels of nodes that are peers no more. c.mu is held.
func (c *Carrier) replaceChannels(v *view) {
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

// had reports whether a role's flows were sent in the same direction before.
func (v *view) had(role Role) bool {
	for r := range v.about(role.Ingress) {
		if r.Peer == role.Peer && r.Local == role.Local && r.Host == role.Host && (role.Parted || !r.Parted) {
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

// restartAfter is the pause before a failed task is tried again.
const restartAfter = time.Second

// Run replicates flows until ctx ends. Injected flows stay.
func (c *Carrier) Run(ctx context.Context) {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { c.serve(ctx, g); return nil })
	g.Go(func() error { c.release(ctx); return nil })
	g.Go(func() error { c.listAll(ctx); return nil })
	_ = g.Wait() // none of them fails
}

// serve keeps the channels and listeners of the view running, and while there are any, the watch. Without a watch, the
// kernel need not create messages about every connection of the node.
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
		if err := conntrack.WatchFlows(ctx, c.marks, c.happened); err != nil {
			c.log.Warn("cannot watch egress flows, trying again", "error", err)
		}
		pause.For(ctx, restartAfter)
	}
}

// follow starts the tasks in wanted that are not running, and ends the running ones that are not in wanted.
func follow[T comparable](
	ctx context.Context, g *errgroup.Group, running map[T]context.CancelFunc, wanted map[T]bool, run func(context.Context, T),
) {
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
