// Package kernel makes the kernel of this node equal to a plan: VRF devices, the tunnel, routes, rules and the nftables
// table. Each of our objects bears a mark that the kernel shows (a route protocol, a link group, a table's name);
// nothing else is touched. Each applier lists our objects, compares them with the plan and changes the difference. As
// long as events show no change by others since the last plan was applied, an applier skips the listing and applies the
// difference between the two plans.
//
// Words of this package:
//
//   - taken: our objects that others removed or changed, and that Apply put back (drift);
//   - stir: an event that others changed the kernel; concern: the devices and tables whose events matter to us;
//   - look: a full re-read of the kernel that no event asked for;
//   - audit, doubt: the check of connections against the plan;
//   - refused: planned routes that are left out;
//   - leg: a next hop; held table: one that keeps an earlier run's routes for now;
//   - walk, passage: the simulated way of a packet through our rules;
//   - stray: a packet at the host of a connection that the standby has, or the other way round;
//   - former: addresses that were selected, or ingress IPs here, until a moment ago.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/preflight"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// Node applies plans to the kernel of this node. Only one goroutine may use it, apart from those in Watch.
type Node struct {
	links   *netlink.Handle
	route   route.Socket
	vrfs    link.VRFs
	nft     nft.Table
	taken   taken
	refused route.Refusals // of the plan in force
	stirs   stirs
	audit   conntrack.Audit
	// untunnelled is the reason why the tunnel is not as planned; nil: it is as planned, or none is planned.
	untunnelled error

	facts   knownFacts
	trouble knownProblems
	done    *plan.NodePlan // plan in force since the last Apply, apart from unmade VRFs; nil: unknown
	seen    counts         // event counts when that Apply began
	look    look
	now     func() time.Time // nil: time.Now
}

// look schedules the full re-reads of the kernel that no event asks for.
type look struct {
	next time.Time
	due  bool          // the present pass is one
	cost time.Duration // of this pass, so far
}

// Open opens the sockets that a Node needs.
func Open() (*Node, error) {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink socket: %w", err)
	}
	n := &Node{links: links, refused: route.Refusals{}}
	if n.route.Conn, err = nl.Dial(); err == nil {
		n.stirs.routePort, err = n.route.Port()
	}
	if err == nil {
		err = n.nft.OpenWriter()
	}
	if err != nil {
		n.Close()
		return nil, err
	}
	n.stirs.tablePort = n.nft.Port()
	return n, nil
}

// Close closes the sockets. The applied state stays in the kernel. An nftables table that this process owns becomes
// ownerless.
func (n *Node) Close() {
	n.nft.Close()
	if n.route.Conn != nil {
		n.route.Close()
	}
	n.audit.Close()
	n.links.Close()
}

func (n *Node) clock() time.Time {
	if n.now != nil {
		return n.now()
	}
	return time.Now()
}

// knownFacts caches the result of Facts.
type knownFacts struct {
	plan.Facts
	tables []uint32 // that the caller asked for
	seen   counts   // event counts before the reading
	valid  bool
}

// Facts reads the kernel state that a plan depends on. If no event reported a change since the last reading, it returns
// the cached result. It reads the given tables, every VRF device's table and the main table. If routes of the last
// Apply are missing, Facts first tries to put them back: a plan made from a momentary loss would end connections.
func (n *Node) Facts(ctx context.Context, tables ...uint32) (plan.Facts, error) {
	began := n.clock()
	n.look.due = !began.Before(n.look.next)
	n.look.cost = 0
	seen := n.stirs.now()
	n.trust(seen)
	paths, err := n.nft.PathsInForce()
	if err != nil {
		return plan.Facts{}, err
	}
	if n.facts.valid && !n.look.due && seen.watching && seen.facts == n.facts.seen.facts && slices.Equal(tables, n.facts.tables) {
		n.facts.Paths = paths
		return n.facts.Facts, nil
	}
	n.facts = knownFacts{}
	const tries = 3 // another program may remove them again meanwhile
	f, err := n.readFacts(ctx, tables)
	for range tries {
		if err != nil || !n.taken.lost(f.Routed, tables) || n.guard(ctx, n.taken.before) != nil || n.restore(ctx, n.taken.before) != nil {
			break // Apply reports the error
		}
		f, err = n.readFacts(ctx, tables)
	}
	if err != nil {
		return plan.Facts{}, err
	}
	f.Paths = paths
	n.facts = knownFacts{Facts: f, tables: slices.Clone(tables), seen: seen, valid: true}
	n.look.cost = n.clock().Sub(began)
	return f, nil
}

// trust marks the nftables table as unchanged since the last Apply, if events prove that.
func (n *Node) trust(seen counts) {
	n.nft.Trusted = seen.watching && seen.table == n.seen.table && n.done != nil && !n.look.due
}

func (n *Node) readFacts(ctx context.Context, tables []uint32) (plan.Facts, error) {
	links, err := link.ReadLinks(n.links)
	if err != nil {
		return plan.Facts{}, err
	}
	tables = append(slices.Clone(tables), unix.RT_TABLE_MAIN)
	for _, l := range links {
		if l.VRFTable != 0 {
			tables = append(tables, l.VRFTable)
		}
	}
	slices.Sort(tables)
	tables = slices.DeleteFunc(slices.Compact(tables), func(t uint32) bool { return t == 0 })
	routed, err := route.ReadAllRouted(ctx, tables)
	if err != nil {
		return plan.Facts{}, err
	}
	gateways, err := route.ReadGateways(ctx)
	if err != nil {
		return plan.Facts{}, err
	}
	return plan.Facts{Links: links, Routed: routed, Gateways: gateways}, nil
}

// Result is the outcome of an Apply.
type Result struct {
	// InForce is true if the tunnel, rules and packet filter are as planned, so that their ingress IPs may be
	// announced.
	InForce bool
	// Unmade maps a VRF's name to the reason why its device is not as planned. All else is in force without it.
	Unmade map[string]error
	// Contradicted is true if connections may contradict the plan: the caller should call EndContradictions soon.
	Contradicted bool
	// Restored names objects that were in force after the last Apply and that this Apply found removed or changed. A
	// link that goes down takes its routes along.
	Restored []string
	// Drift counts the restored objects by kind.
	Drift map[Drift]int
	// Refused has one route of each table and reason for which routes of the plan are left out, sorted. All else is in
	// force without them.
	Refused []route.Refused
	// Steps lists the appliers' work; several steps of one applier are joined.
	Steps []Step
}

// Whole reports whether every part of the kernel is as planned: devices, routes, rules and packet filter. Routes that
// peers announce and that cannot be do not count.
func (r Result) Whole() bool {
	return r.InForce && len(r.Unmade) == 0 && !slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Err != nil }) &&
		!slices.ContainsFunc(r.Refused, func(one route.Refused) bool { return !one.OfPeer() })
}

// Apply makes the kernel equal to the plan. It first adds the devices and routes that packets will need, then the rules
// that direct packets there; removals come last. A missing nftables table is created before all that, and if that fails
// Apply stops: a new device may let packets in. Any other failing step does not stop the others. The caller must not
// modify the plan afterwards.
func (n *Node) Apply(ctx context.Context, p *plan.NodePlan) (Result, error) {
	began := n.clock()
	seen := n.stirs.now()
	n.trust(seen)
	if n.done == nil || !n.done.Routes.Same(p.Routes) || !sorted.OneSlice(n.done.VRFs, p.VRFs) || n.done.Tunnel != p.Tunnel ||
		!sorted.OneSlice(n.done.DataPlane.Uplinks, p.DataPlane.Uplinks) {
		n.stirs.setConcern(concernOf(p)) // from here on, events about the objects that we make now matter
	}
	before, former := n.done, n.done
	if n.look.due || !seen.watching || seen.all != n.seen.all {
		before = nil
	}
	n.done = nil

	var r Result
	var errs []error
	try := func(by Applier, step func() error) bool {
		began := time.Now()
		err := step()
		r.Steps = joinStep(r.Steps, Step{by, time.Since(began), err})
		errs = append(errs, err)
		return err == nil
	}
	if !n.nft.Trusted && !try(ApplyTable, func() error { return n.guard(ctx, p) }) {
		return r, errors.Join(errs...)
	}
	var routes route.Changes
	known := before != nil && sorted.Same(&before.VRFs, &p.VRFs) && sorted.Same(&before.Tunnel, &p.Tunnel) && sorted.Same(&before.Held, &p.Held)
	if known {
		routes = route.ChangesOf(before.Routes, p.Routes)
	}
	try(ApplyRoutes, func() error {
		if known {
			n.refused.Take(&routes)
			err := n.route.AddChanged(ctx, n.links, routes, func(r *plan.Route, err error) error {
				if errors.Is(err, unix.EEXIST) && slices.Contains(p.Held, r.Table) {
					return err
				}
				return n.refused.Judge(r, err)
			})
			if !errors.Is(err, unix.EEXIST) {
				return err
			}
			// A route of an earlier run may be in the way. Only a full re-read distinguishes it from another program's.
		}
		return n.restore(ctx, p)
	})
	sameRules := before != nil && sorted.SameSlice(before.Rules, p.Rules)
	rules := sameRules || try(ApplyRules, func() error { return n.route.AddRules(ctx, p.Rules, n.taken.rule) })

	changed := false
	packets := try(ApplyTable, func() (err error) {
		changed, err = n.nft.Apply(ctx, p.DataPlane)
		return err
	})
	if n.nft.Missed {
		n.taken.table()
	}
	if changed && n.nft.Doubted {
		n.audit.Reset() // packets may have passed under other rules
	}
	if packets {
		r.Contradicted = n.audit.Applied(&p.DataPlane) || n.look.due && n.audit.Due(n.clock())
	}
	r.InForce, r.Unmade = rules && packets && n.untunnelled == nil, n.vrfs.Unmade
	r.Restored, r.Drift = n.taken.end(p, n.refused)
	r.Refused = n.refused.Examples()
	if r.InForce {
		if !sameRules {
			try(ApplyRules, func() error { return n.route.PruneRules(ctx, p.Rules) })
		}
		try(ApplyRoutes, func() error {
			if known {
				return n.route.RemoveGone(ctx, routes.Gone)
			}
			errs := []error{n.route.PruneRoutes(ctx, p.Routes.Slice(), p.Held...)}
			if former != nil && len(p.Held) > 0 {
				errs = append(errs, n.route.RemoveGone(ctx, ownGone(former, p)))
			}
			if p.Tunnel == nil {
				errs = append(errs, link.ApplyTunnel(ctx, n.links, nil))
			}
			return errors.Join(append(errs, n.vrfs.Prune(ctx, n.links, p.VRFs))...)
		})
	}
	try(ApplyRoutes, func() error { return n.reread(ctx, known, routes) })
	err := errors.Join(errs...)
	if err == nil {
		n.done, n.seen = p, seen
		if before == nil {
			n.look.cost += n.clock().Sub(began)
			n.look.next, n.look.due = began.Add(max(lookEvery, lookShare*n.look.cost)), false
		}
	}
	return r, err
}

// EndContradictions ends the connections that contradict the plan in force, see Audit.End.
func (n *Node) EndContradictions(ctx context.Context, d plan.DataPlane) (ended uint, err error) {
	return n.audit.End(ctx, d, n.clock)
}

// Connections reads the fill level of this node's connection table.
func (*Node) Connections() (conntrack.Connections, error) { return conntrack.CountConnections() }

// Resumed reads from the nftables table of an earlier run the ingress IPs that another node is or was the host of.
func (n *Node) Resumed() (map[netip.Addr]bool, error) { return n.nft.Resumed() }

// CheckRival returns an error if another program serves EgressServices on this node.
func (*Node) CheckRival() error { return preflight.CheckRival() }

// ForeignHands counts changes to our rules and our table that are known to come from another program.
func (n *Node) ForeignHands() uint64 { return n.stirs.now().foreign }

// NextLook returns the time of the next full re-read. Call Apply then: it finds changes that no event reported.
func (n *Node) NextLook() time.Time { return n.look.next }

// Forget makes the next Apply re-read the kernel and treat routes in held tables as left over from an earlier run.
func (n *Node) Forget() { n.done = nil }

// ownGone returns the routes that the plan before has and p lacks, in tables held by both. They are from this run; the
// tables are held for the routes of an earlier run, which stay.
func ownGone(before, p *plan.NodePlan) []*plan.Route {
	return slices.DeleteFunc(route.ChangesOf(before.Routes, p.Routes).Gone, func(r *plan.Route) bool {
		return !slices.Contains(before.Held, r.Table) || !slices.Contains(p.Held, r.Table)
	})
}

// reread updates the cached facts about tables after we changed routes there, since no event reports our own changes.
// If a table's usable families changed, it asks for another pass.
func (n *Node) reread(ctx context.Context, known bool, changes route.Changes) error {
	if !n.facts.valid || known && len(changes.Set)+len(changes.Gone) == 0 {
		return nil
	}
	touched := map[uint32]bool{}
	table := uint32(0)
	take := func(r *plan.Route) {
		if r.Table != table {
			table = r.Table
			touched[table] = true
		}
	}
	for _, r := range slices.Concat(changes.Set, changes.Gone) {
		take(r)
	}
	if !known {
		for t := range n.facts.Routed {
			touched[t] = true
		}
	}
	var tables []uint32
	for t := range n.facts.Routed {
		if touched[t] {
			tables = append(tables, t)
		}
	}
	routed, err := route.ReadAllRouted(ctx, tables)
	if err != nil {
		return err
	}
	now := maps.Clone(n.facts.Routed)
	maps.Copy(now, routed)
	if !maps.Equal(now, n.facts.Routed) {
		n.facts.Routed = now
		n.stirs.wakeUp()
	}
	return nil
}

// guard creates the nftables table if it is missing. Until routes and rules exist, the table drops the packets that
// need them.
func (n *Node) guard(ctx context.Context, p *plan.NodePlan) error {
	now, err := nft.ReadState()
	if err == nil && !now.Exists {
		_, err = n.nft.Apply(ctx, p.DataPlane)
		if n.nft.Missed {
			n.taken.table()
		}
	}
	return err
}

// restore creates the devices and routes that a plan needs.
func (n *Node) restore(ctx context.Context, p *plan.NodePlan) error {
	n.vrfs.Made, n.vrfs.Joined = n.taken.vrf, n.taken.port
	_ = n.vrfs.Apply(ctx, n.links, p.VRFs) // a VRF that fails concerns only its network: Result.Unmade
	errs := []error{ctx.Err()}
	n.untunnelled = nil
	if p.Tunnel != nil {
		n.untunnelled = link.ApplyTunnel(ctx, n.links, p.Tunnel, n.taken.tunnel)
		errs = append(errs, n.untunnelled)
	}
	former := n.refused
	n.refused = route.Refusals{}
	return errors.Join(append(errs, n.route.AddRoutes(ctx, n.links, p.Routes.Slice(), func(r *plan.Route, err error) error {
		if err == nil && !former.Has(r) {
			n.taken.route(r)
		}
		return n.refused.Judge(r, err)
	}))...)
}

// knownProblems caches the result of Problems.
type knownProblems struct {
	problems []cluster.Problem
	node     string
	devices  []string
	seen     counts
	err      error
}

// Problems reports settings and programs of this node that keep packets from passing these devices, or take packets
// past our rules. The operator must change them. It checks again after events about objects or settings that our routes
// depend on, and at every full re-read: call it between Facts and Apply.
func (n *Node) Problems(node string, devices []string) ([]cluster.Problem, error) {
	seen, began := n.stirs.now(), n.clock()
	k := &n.trouble
	if !n.look.due && seen.watching && seen.all == k.seen.all && node == k.node && slices.Equal(devices, k.devices) {
		return slices.Concat(k.problems, n.nft.Problems(node)), k.err
	}
	bypassed, err := preflight.Bypasses(n.links, node)
	problems := append(preflight.Sysctls(node, devices), bypassed...)
	*k = knownProblems{problems, node, slices.Clone(devices), seen, err}
	n.look.cost += n.clock().Sub(began)
	return slices.Concat(problems, n.nft.Problems(node)), err
}

// Cleanup removes all our objects from this node, and nothing else. The nftables table goes last, and stays if another
// object could not be removed: without routes and rules it drops selected pods' packets. Connections with our mark end:
// on any other path their source would be wrong.
func (n *Node) Cleanup(ctx context.Context, m plan.Marks) error {
	if err := n.nft.Free(); err != nil {
		return err // a running daemon would recreate everything
	}
	if err := cleanup(ctx, n.links); err != nil {
		return err
	}
	if err := n.audit.EndAll(ctx, m); err != nil {
		return err
	}
	// Connections of the default network need no route of ours: some may have begun meanwhile.
	return errors.Join(n.nft.Cleanup(), n.audit.EndAll(ctx, m))
}
