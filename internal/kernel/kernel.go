// Package kernel makes the kernel of this node equal to a plan: VRF devices, the tunnel, routes, rules and the nftables
// table. Everything of ours bears a mark that the kernel shows (a route protocol, a link group, a table's name); nothing
// else is touched. Each applier lists what is ours, compares, and changes the difference. What nobody has touched since the last
// plan was brought about is not listed again: then the difference is that of the plans.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// Node is the kernel of this node. One goroutine uses it, beside those of Watch.
type Node struct {
	links   *netlink.Handle
	route   *conn // by which routes and rules are changed; nil: by one for each change
	vrfs    vrfs
	nft     nft
	taken   taken
	refused refusals // of the plan that is in force
	stirs   stirs
	settled settled
	// untunnelled is why the tunnel is not as planned; nil: it is, or none is planned.
	untunnelled error

	flows   *ctConn // by which connections are looked for and ended; nil: it is not open
	facts   knownFacts
	trouble knownProblems
	done    *plan.NodePlan // what is in force since the last Apply, but for unmade VRFs; nil: more of it may not be
	seen    counts         // what had happened when that began
	look    look
	now     func() time.Time // nil: time.Now
}

// look is when everything is looked at without need.
type look struct {
	next time.Time
	due  bool          // the pass that goes on is one
	cost time.Duration // of it, so far
}

// Open opens the sockets that a Node needs.
func Open() (*Node, error) {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink socket: %w", err)
	}
	n := &Node{links: links, refused: refusals{}}
	if n.route, err = dial(); err == nil {
		n.stirs.routePort, err = n.route.sock.GetPid()
	}
	if err == nil {
		n.nft.writer, err = openTableWriter()
	}
	if err != nil {
		n.Close()
		return nil, err
	}
	n.stirs.tablePort = n.nft.writer.port
	return n, nil
}

// Close closes the sockets. What was applied stays. An nftables table that belongs to us is nobody's from then on.
func (n *Node) Close() {
	n.nft.close()
	if n.route != nil {
		n.route.close()
	}
	if n.flows != nil {
		n.flows.close()
	}
	n.links.Close()
}

func (n *Node) clock() time.Time {
	if n.now != nil {
		return n.now()
	}
	return time.Now()
}

// knownFacts is what Facts read.
type knownFacts struct {
	plan.Facts
	tables []uint32 // asked for
	seen   counts   // what had happened when it was read
	valid  bool
}

// Facts reads what a plan depends on, unless nobody has touched it since it did: then it gives what it gave before. Of tables
// it looks at those named, at every VRF device's and at the main one. Where the routes of the last Apply are gone, they are
// put back first if that can be: a plan made of what holds for a moment would end connections.
func (n *Node) Facts(ctx context.Context, tables ...uint32) (plan.Facts, error) {
	began := n.clock()
	n.look.due = !began.Before(n.look.next)
	n.look.cost = 0
	seen := n.stirs.now()
	n.trust(seen)
	paths, err := n.nft.pathsInForce()
	if err != nil {
		return plan.Facts{}, err
	}
	if n.facts.valid && !n.look.due && seen.watching && seen.facts == n.facts.seen.facts && slices.Equal(tables, n.facts.tables) {
		n.facts.Paths = paths
		return n.facts.Facts, nil
	}
	n.facts = knownFacts{}
	const tries = 3 // somebody may take them away again meanwhile
	f, err := n.readFacts(ctx, tables)
	for range tries {
		if err != nil || !n.taken.lost(f.Routed, tables) || n.guard(ctx, n.taken.before) != nil || n.restore(ctx, n.taken.before) != nil {
			break // what is wrong Apply will say
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

// trust says that the nftables table is as the last Apply left it, if events tell of everything.
func (n *Node) trust(seen counts) {
	n.nft.trusted = seen.watching && seen.table == n.seen.table && n.done != nil && !n.look.due
}

func (n *Node) readFacts(ctx context.Context, tables []uint32) (plan.Facts, error) {
	links, err := readLinks(n.links)
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
	routed, err := readAllRouted(ctx, tables)
	if err != nil {
		return plan.Facts{}, err
	}
	gateways, err := readGateways(ctx)
	if err != nil {
		return plan.Facts{}, err
	}
	return plan.Facts{Links: links, Routed: routed, Gateways: gateways}, nil
}

// Result is what an Apply left.
type Result struct {
	// InForce says that the tunnel, rules and packet filter are as planned: what they serve may be announced.
	InForce bool
	// Unmade has, by the VRF's name, why a VRF device is not as planned. All else is in force without it.
	Unmade map[string]error
	// Contradicted says that connections may contradict the plan: EndContradictions should be called soon.
	Contradicted bool
	// Restored names what was in force after the last Apply and was found to be gone or changed by somebody else. A link that
	// goes down takes its routes along.
	Restored []string
	// Drift counts these by their kind.
	Drift map[Drift]int
	// Refused has, by table, one of the learned routes that the kernel does not take. All else is in force without them.
	Refused map[uint32]Refused
	// Steps are what was done, the parts that one applier does in several places as one.
	Steps []Step
}

// Whole says that the kernel is as planned in every part: devices, routes, rules and packet filter.
func (r Result) Whole() bool {
	return r.InForce && len(r.Unmade) == 0 && !slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Err != nil })
}

// Apply makes the kernel equal to the plan: what packets will need first, then what sends them there; what they no
// longer need goes last. Where the nftables table is missing it comes before all that, and without it nothing is made: a device may
// let packets in. Any other step's failure does not stop the others. A plan is not to be written to any more.
func (n *Node) Apply(ctx context.Context, p *plan.NodePlan) (Result, error) {
	began := n.clock()
	seen := n.stirs.now()
	n.trust(seen)
	if n.done == nil || !sorted.OneSlice(n.done.Routes, p.Routes) || !sorted.OneSlice(n.done.VRFs, p.VRFs) || n.done.Tunnel != p.Tunnel ||
		!sorted.OneSlice(n.done.DataPlane.Uplinks, p.DataPlane.Uplinks) {
		n.stirs.setConcern(concernOf(p)) // what happens from here on to what is made now matters
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
	if !n.nft.trusted && !try(ApplyTable, func() error { return n.guard(ctx, p) }) {
		return r, errors.Join(errs...)
	}
	var routes routeChanges
	known := before != nil && reflect.DeepEqual(before.VRFs, p.VRFs) && reflect.DeepEqual(before.Tunnel, p.Tunnel) && slices.Equal(before.Held, p.Held)
	if known {
		routes, known = changesOf(before.Routes, p.Routes)
	}
	try(ApplyRoutes, func() error {
		if known {
			n.refused.take(&routes)
			err := n.route.addChanged(ctx, n.links, routes, n.refused.judge)
			if len(p.Held) == 0 || !errors.Is(err, unix.EEXIST) {
				return err
			}
			// An earlier run's may be in the way, which only a look at everything tells from others'.
		}
		return n.restore(ctx, p)
	})
	sameRules := before != nil && sorted.SameSlice(before.Rules, p.Rules)
	rules := sameRules || try(ApplyRules, func() error { return n.route.addRules(ctx, p.Rules, n.taken.rule) })

	changed := false
	packets := try(ApplyTable, func() (err error) {
		changed, err = n.nft.apply(ctx, p.DataPlane)
		return err
	})
	if n.nft.missed {
		n.taken.table()
	}
	if changed && n.nft.doubted {
		n.settled.plan = nil // packets may have passed by other rules
	}
	if packets {
		r.Contradicted = n.settled.takes(&p.DataPlane) || n.look.due && n.settled.old(n.clock())
	}
	r.InForce, r.Unmade = rules && packets && n.untunnelled == nil, n.vrfs.unmade
	r.Restored, r.Drift = n.taken.end(p, n.refused)
	r.Refused = n.refused.examples()
	if r.InForce {
		if !sameRules {
			try(ApplyRules, func() error { return n.route.pruneRules(ctx, p.Rules) })
		}
		try(ApplyRoutes, func() error {
			if known {
				return n.route.removeGone(ctx, routes.gone)
			}
			errs := []error{n.route.pruneRoutes(ctx, p.Routes, p.Held...)}
			if former != nil && len(p.Held) > 0 {
				errs = append(errs, n.route.removeGone(ctx, ownGone(former, p)))
			}
			if p.Tunnel == nil {
				errs = append(errs, applyTunnel(ctx, n.links, nil))
			}
			return errors.Join(append(errs, n.vrfs.prune(ctx, n.links, p.VRFs))...)
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

// ForeignHands counts changes of our rules and our table that another program is known to have made.
func (n *Node) ForeignHands() uint64 { return n.stirs.now().foreign }

// NextLook is when Apply looks at everything without need: what no event told of is found then, so it should be called.
func (n *Node) NextLook() time.Time { return n.look.next }

// Forget has the next Apply look at everything, and take no route of a table that is held for one of its own.
func (n *Node) Forget() { n.done = nil }

// ownGone are the routes of tables that were held and still are, which the plan before had and this one has not: not those
// of an earlier run, for which the tables are held.
func ownGone(before, p *plan.NodePlan) []*plan.Route {
	changes, _ := changesOf(before.Routes, p.Routes)
	return slices.DeleteFunc(changes.gone, func(r *plan.Route) bool {
		return !slices.Contains(before.Held, r.Table) || !slices.Contains(p.Held, r.Table)
	})
}

// reread reads where tables lead after routes of ours changed, of which no event tells. Where it is otherwise than Facts
// said, another pass is due.
func (n *Node) reread(ctx context.Context, known bool, changes routeChanges) error {
	if !n.facts.valid || known && len(changes.set)+len(changes.gone) == 0 {
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
	for _, r := range slices.Concat(changes.set, changes.gone) {
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
	routed, err := readAllRouted(ctx, tables)
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

// guard makes the nftables table where there is none. Without routes and rules it drops what they are to lead.
func (n *Node) guard(ctx context.Context, p *plan.NodePlan) error {
	now, err := readTableState()
	if err == nil && !now.exists {
		_, err = n.nft.apply(ctx, p.DataPlane)
		if n.nft.missed {
			n.taken.table()
		}
	}
	return err
}

// restore makes devices and routes that a plan needs.
func (n *Node) restore(ctx context.Context, p *plan.NodePlan) error {
	n.vrfs.taken = &n.taken
	_ = n.vrfs.apply(ctx, n.links, p.VRFs) // a VRF that is not made concerns its network alone: Result.Unmade
	errs := []error{ctx.Err()}
	n.untunnelled = nil
	if p.Tunnel != nil {
		n.untunnelled = applyTunnel(ctx, n.links, p.Tunnel, n.taken.tunnel)
		errs = append(errs, n.untunnelled)
	}
	former := n.refused
	n.refused = refusals{}
	return errors.Join(append(errs, n.route.addRoutes(ctx, n.links, p.Routes, func(r *plan.Route, err error) error {
		if err == nil && !former.has(r) {
			n.taken.route(r)
		}
		return n.refused.judge(r, err)
	}))...)
}

// knownProblems is what Problems found.
type knownProblems struct {
	problems []cluster.Problem
	node     string
	devices  []string
	seen     counts
	err      error
}

// Problems tells what on this node keeps packets from passing by these devices, or takes them past our rules. It is the
// operator's to change. It looks again when somebody has touched what our routes stand on or a setting of it, and whenever
// everything is looked at: it belongs between Facts and Apply.
func (n *Node) Problems(node string, devices []string) ([]cluster.Problem, error) {
	seen, began := n.stirs.now(), n.clock()
	k := &n.trouble
	if !n.look.due && seen.watching && seen.all == k.seen.all && node == k.node && slices.Equal(devices, k.devices) {
		return slices.Concat(k.problems, n.nft.problems(node)), k.err
	}
	bypassed, err := bypassProblems(n.links, node)
	problems := append(sysctlProblems(node, devices), bypassed...)
	*k = knownProblems{problems, node, slices.Clone(devices), seen, err}
	n.look.cost += n.clock().Sub(began)
	return slices.Concat(problems, n.nft.problems(node)), err
}

// Cleanup removes everything of ours from this node, and nothing else. The nftables table is the last to go, and stays where something
// else could not be removed: without routes and rules it drops what they led. Connections whose mark says that they are ours end: their source
// would be wrong on any other way.
func (n *Node) Cleanup(ctx context.Context, m plan.Marks) error {
	if err := n.nft.free(); err != nil {
		return err // a daemon would make everything anew
	}
	if err := cleanup(ctx, n.links); err != nil {
		return err
	}
	endFlows := func() error {
		_, err := n.endContradictions(ctx, plan.DataPlane{Marks: m}, doubt{all: true})
		return err
	}
	if err := endFlows(); err != nil {
		return err
	}
	// Those of the default network need no route of ours: some may have begun meanwhile.
	return errors.Join(n.nft.cleanup(), endFlows())
}
