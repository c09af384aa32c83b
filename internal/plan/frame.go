package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/sorted"
)

// frame holds the paths and the steering that all sources share. It depends on the nodes that sources lead to, and is
// immutable once made.
type frame struct {
	findings
	*ground
	paths   map[PathKey]PathID
	without map[string]bool      // networks for which no path id was left
	lacking map[PathKey]bool     // needed paths without an id
	hosts   map[string]*steering // by node, for nodes steered to
	routed  map[uint32]Families
	heard   map[string]bool
	silent  map[string]bool // nodes that sources lead to, but to which packets may not be steered
	leaving bool            // the node is draining
	// ordered reports that path ids depend on the age of sources, because some ids were not in force before.
	ordered bool

	// Parts of the plan.
	watched  []string
	tunnelTo *Tunnel
	ways     []Path
	uplinks  []Uplink
	rules    []Rule
	routes   []Route   // without those that peers announce
	speakers []Speaker // without Announce and Refuse
}

// newFrame makes a frame for the nodes that sources lead to.
func newFrame(g *ground, s *Snapshot, targets []target) *frame {
	f := &frame{
		ground: g, paths: map[PathKey]PathID{}, without: map[string]bool{}, lacking: map[PathKey]bool{}, hosts: map[string]*steering{},
		routed: maps.Clone(s.Facts.Routed), heard: maps.Clone(s.Heard), leaving: s.Draining,
		silent: map[string]bool{}, routes: make([]Route, 0, 2*(len(g.networks)+len(targets))),
	}
	for _, t := range targets {
		if !s.answers(t.node) {
			f.silent[t.node] = true
		}
		f.watched = append(f.watched, t.node)
	}
	slices.Sort(f.watched)
	f.allotPaths(targets, s.Facts.Paths)
	f.steer(targets)
	f.planPaths()
	f.planRules()
	f.planFloors()
	f.planSpeakers()
	return f
}

// likeFor reports whether another frame on the same ground has the same effect on all sources.
func (f *frame) likeFor(o *frame) bool {
	return maps.Equal(f.paths, o.paths) && maps.Equal(f.without, o.without) && reflect.DeepEqual(f.hosts, o.hosts) &&
		maps.Equal(f.routed, o.routed) && sameHeard(f.heard, o.heard) && f.leaving == o.leaving
}

// sameHeard compares two values of Snapshot.Heard, where nil differs from empty.
func sameHeard(x, y map[string]bool) bool { return (x == nil) == (y == nil) && maps.Equal(x, y) }

// allotPaths assigns a path id to every network and every node steered to. It keeps ids in force, which live packets and
// connections carry. Paths that are useful but not needed get ids last and lose them first.
func (f *frame) allotPaths(targets []target, before map[PathKey]PathID) {
	want, useful := f.wantedPaths(targets)
	a := allotment{paths: f.paths, most: f.marks.MaxPath(), taken: map[PathID]bool{}, inForce: map[PathID]bool{}}
	for _, id := range before {
		a.inForce[id] = true
	}
	for _, k := range slices.Concat(want, useful) {
		if !a.keep(k, before[k]) {
			f.ordered = true
		}
	}
	for _, k := range want {
		if f.paths[k] != 0 || a.assign(k) || a.seize(k, useful) {
			continue
		}
		f.problem("Config", "marks.mask", "", fmt.Sprintf("%#x", f.marks.Mask), ReasonPathsExhausted,
			"%d networks and hosts need a path id each but only %d fit: %s %s is not served, widen the mask",
			len(want), f.marks.MaxPath(), k.Kind, k.Name)
		f.lacking[k] = true
		if k.Kind == PathNetwork {
			f.without[k.Name] = true
		}
	}
	for _, k := range useful {
		if f.paths[k] == 0 {
			a.assign(k)
		}
	}
}

// wantedPaths lists the paths that are needed, and those that are only useful, in the order in which they get ids.
func (f *frame) wantedPaths(targets []target) (want, useful []PathKey) {
	var unlisted []PathKey
	for _, n := range f.networks {
		switch k := (PathKey{PathNetwork, n.name}); {
		case n.listed:
			want = append(want, k)
		case n.usable:
			unlisted = append(unlisted, k)
		}
	}
	for _, t := range targets {
		if t.needed {
			want = append(want, PathKey{PathSteer, t.node})
		} else {
			useful = append(useful, PathKey{PathSteer, t.node})
		}
	}
	return append(want, unlisted...), useful // last: a user who may write EgressServices can name any number of networks
}

// allotment assigns path ids from 1 to most.
type allotment struct {
	paths          map[PathKey]PathID
	most           PathID
	taken, inForce map[PathID]bool
}

// keep assigns the id that a path had before; false: it had none that is valid and still free.
func (a *allotment) keep(k PathKey, id PathID) bool {
	if id == 0 || id > a.most || a.taken[id] {
		return false
	}
	a.paths[k], a.taken[id] = id, true
	return true
}

// assign gives a path an unused id; false: none is left. An id that was just freed may still be in a connection's mark: it
// is used last.
func (a *allotment) assign(k PathKey) bool {
	for _, fresh := range []bool{true, false} {
		for id := PathID(1); id <= a.most; id++ {
			if !a.taken[id] && (!fresh || !a.inForce[id]) {
				a.paths[k], a.taken[id] = id, true
				return true
			}
		}
	}
	return false
}

// seize gives a path the id of the last of the useful paths that has one; false: none has.
func (a *allotment) seize(k PathKey, useful []PathKey) bool {
	for _, from := range slices.Backward(useful) {
		if id := a.paths[from]; id != 0 {
			delete(a.paths, from)
			a.paths[k] = id
			return true
		}
	}
	return false
}

// usable reports whether this node can use a network.
func (f *frame) usable(n *network) bool { return n.usable && !f.without[n.name] }

// out returns the path that leaves this node by the network.
func (f *frame) out(n *network) PathID { return f.paths[PathKey{PathNetwork, n.name}] }

// reachable reports whether the network can carry packets of a family. A network that this node lacks cannot. Where
// packets without a route are dropped, the routing rules drop each of them; where onNoPath allows them out, their pods must
// not be selected in the first place.
func (f *frame) reachable(n *network, ipv4 bool) bool {
	if !f.usable(n) || n.lacks != "" {
		return false
	}
	if f.noPath(n) != config.NoPathAllow {
		return true
	}
	routed := f.routed[n.table]
	if ipv4 {
		return routed.IPv4
	}
	return routed.IPv6
}

// planPaths lists the paths and the uplinks.
func (f *frame) planPaths() {
	for _, n := range f.networks {
		id := f.out(n)
		if id == 0 {
			continue
		}
		p := Path{ID: id, Key: PathKey{PathNetwork, n.name}, Devices: n.devices}
		if f.usable(n) {
			p.Table = n.table
		}
		f.ways = append(f.ways, p)
		for _, device := range n.devices {
			f.uplinks = append(f.uplinks, Uplink{device, id})
		}
	}
	for host, h := range f.hosts {
		key := PathKey{PathSteer, host}
		p := Path{ID: f.paths[key], Key: key, Table: h.routes[0].Table, Devices: h.devices, Tunneled: h.tunneled}
		if !h.tunneled {
			for _, r := range h.routes {
				p.Via = append(p.Via, r.NextHops[0].Gateway)
			}
		}
		f.ways = append(f.ways, p)
	}
	slices.SortFunc(f.ways, func(x, y Path) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(f.uplinks, func(x, y Uplink) int { return compareStrings(x.Device, y.Device) })
}

// planRules plans one rule for each path and three more, so that their number does not depend on the number of endpoints.
func (f *frame) planRules() {
	m, base := f.marks, f.marks.Priority
	add := func(r Rule) { f.rules = append(f.rules, r) }
	add(Rule{Priority: base, Mark: m.Cluster(), Mask: m.Mask, Table: mainTable})
	for _, p := range f.ways {
		if p.Table != 0 {
			add(Rule{Priority: base + 1, Mark: m.Egress(p.ID), Mask: m.Mask, Table: p.Table})
		}
	}
	// Packets without a route in the tables above must not fall through to the tables below.
	add(Rule{Priority: base + 98, Mark: m.Cluster(), Mask: m.Mask, Unreachable: true})
	add(Rule{Priority: base + 99, Mark: m.EgressBit(), Mask: m.EgressBit(), Unreachable: true})
}

// unserved reports, for each source, the needed paths that have no id.
func (f *frame) unserved(sources []*source) (problems findings) {
	if len(f.lacking) == 0 {
		return problems
	}
	for _, s := range sources {
		if s == nil || s.network == nil {
			continue
		}
		report := func(field, value, path string) {
			problems.of(s.id, field, value, ReasonPathsExhausted,
				"node %s has no path id left for %s, and drops packets that need it: marks.mask has room for %d paths, widen it",
				f.node, path, f.marks.MaxPath())
		}
		if f.lacking[PathKey{PathNetwork, s.network.name}] {
			report("spec.network", s.network.name, "network "+s.network.name)
		}
		if f.lacking[PathKey{PathSteer, s.leads.host}] {
			report("status.host", s.leads.host, fmt.Sprintf("host %s in network %s", s.leads.host, s.network.name))
		}
	}
	return problems
}

// needRoutes reports the networks that lack a route of a family in which selected pods leave this node by them.
func (f *frame) needRoutes(sent *sending) (problems findings) {
	for _, n := range f.networks {
		need, routed := sent.by(f, n), f.routed[n.table]
		for _, family := range []struct {
			name    string
			missing bool
		}{{"IPv4", need.IPv4 && !routed.IPv4}, {"IPv6", need.IPv6 && !routed.IPv6}} {
			if family.missing {
				problems.problem("Network", n.name, "table", strconv.Itoa(int(n.table)), ReasonNoRoute,
					"has no %s route on node %s: selected pods' packets are dropped until a peer announces one, or one is added",
					family.name, f.node)
			}
		}
	}
	return problems
}

// learnedMetric makes the kernel prefer an operator's own routes to those learned from peers, as FRR's distance of 20 does.
const learnedMetric = 20

// Learned reports whether a route of ours was learned from a peer.
func (r *Route) Learned() bool { return r.Metric == learnedMetric }

// vrfFloorMetric is the metric of the unreachable default route in a VRF that we make. The kernel's documentation
// (Documentation/networking/vrf.rst) recommends that route, so that a lookup does not fall through to the main table.
const vrfFloorMetric = 4278198272

// planRoutes plans all routes that we own: those of the frame, and those learned from peers.
func (r *pass) planRoutes(next *NodePlan) {
	var e edit[Route]
	if r.frame != r.former {
		e.set = slices.Clip(r.frame.routes)
		if r.former != nil {
			e.gone = slices.Clip(r.former.routes)
		}
	}
	all, users := r.learning()
	for _, l := range all {
		if l.from == l.to && users[l.to] == 1 {
			for x, y := range l.before.Changes(l.now) {
				if y == nil {
					e.drop(x.learnedIn(l.to))
				} else {
					e.put(y.learnedIn(l.to))
				}
			}
			continue
		}
		for route := range l.before.All() {
			e.drop(route.learnedIn(l.from))
		}
		for route := range l.now.All() {
			e.put(route.learnedIn(l.to))
		}
	}
	next.Routes = next.Routes.With(e.set, e.gone)
}

// learning holds the routes that the peers of one network announced and announce, and the tables that hold them.
type learning struct {
	before, now sorted.List[Route]
	from, to    uint32
}

// learning lists networks with learned routes, and counts those that use each table.
func (r *pass) learning() (all []learning, users map[uint32]int) {
	users = map[uint32]int{}
	add := func(network string, before, now sorted.List[Route]) {
		l := learning{from: r.former.tableOf(network), to: r.frame.tableOf(network)}
		if l.from != 0 {
			l.before = before
			users[l.from]++
		}
		if l.to != 0 {
			l.now = now
			if l.to != l.from {
				users[l.to]++
			}
		}
		all = append(all, l)
	}
	former := map[string]sorted.List[Route]{}
	if r.Planner.plan != nil {
		for _, l := range r.last.Learned {
			former[l.Network] = l.Routes
		}
	}
	for _, l := range r.Learned {
		add(l.Network, former[l.Network], l.Routes)
		delete(former, l.Network)
	}
	for network, before := range former {
		add(network, before, sorted.List[Route]{})
	}
	return all, users
}

// learnedIn returns a learned route as a route of a table.
func (r Route) learnedIn(table uint32) Route {
	r.Table, r.Metric = table, learnedMetric
	return r
}

// tableOf returns the table that holds a network's learned routes; 0: there is none.
func (f *frame) tableOf(name string) uint32 {
	if f == nil {
		return 0
	}
	if n := f.byName[name]; n != nil && f.usable(n) {
		return n.table
	}
	return 0
}

// planFloors plans the unreachable default routes of VRFs.
func (f *frame) planFloors() {
	for _, n := range f.networks {
		if n.create {
			for _, to := range []netip.Prefix{anyIPv4, anyIPv6} {
				f.routes = append(f.routes, Route{Table: n.table, Dst: to, Metric: vrfFloorMetric, Unreachable: true})
			}
		}
	}
}
