package plan

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/sorted"
)

// frame holds the paths and the steering that all sources share. It depends on the nodes that sources lead to, and is
// immutable once made.
type frame struct {
	findings
	*ground
	paths      map[PathKey]PathID
	without    map[string]bool      // networks for which no path id was left
	lacking    map[PathKey]bool     // needed paths without an id
	hosts      map[string]*steering // by node, for nodes steered to
	routed     map[uint32]Families
	sharers    map[string]bool // nodes without a path id of their own, which the shared path leads to
	heard      map[string]bool
	silent     map[string]bool         // nodes that sources lead to, but to which packets may not be steered
	leaving    bool                    // the node is draining
	left       bool                    // the node has handed its services over
	unsure     []string                // devices on which this node answers for no address
	neighbours map[string][]linkSubnet // subnets of the links of each network in which this node may answer
	mute       map[string][]linkSubnet // those where it would, with another kernel
	noShare    string                  // why nodes cannot share a path, and a remedy; empty: they can
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

// newFrame makes a frame for the paths that sources lead to.
func newFrame(g *ground, s *Snapshot, targets []target) *frame {
	f := &frame{
		ground: g, paths: map[PathKey]PathID{}, without: map[string]bool{}, lacking: map[PathKey]bool{}, hosts: map[string]*steering{},
		routed: maps.Clone(s.Facts.Routed), heard: maps.Clone(s.Heard), leaving: s.Draining,
		left: s.Leaving, unsure: slices.Clone(s.Unsure), neighbours: g.linkSubnets(),
		silent: map[string]bool{}, sharers: map[string]bool{}, routes: make([]Route, 0, 2*(len(g.networks)+len(targets))),
	}
	if !s.Facts.ARP {
		f.neighbours, f.mute = nil, f.neighbours
	}
	for _, t := range targets {
		if t.key.Kind == PathSteer {
			f.watch(t.key.Name, s)
		}
	}
	slices.Sort(f.watched)
	f.allotPaths(targets, s.Facts.Paths, s.Facts.EgressHook)
	f.steer(targets)
	f.planPaths()
	f.planRules()
	f.planFloors()
	f.planSpeakers()
	return f
}

// watch adds a node that sources lead to.
func (f *frame) watch(node string, s *Snapshot) {
	if !s.answers(node) {
		f.silent[node] = true
	}
	f.watched = append(f.watched, node)
}

// likeFor reports whether another frame on the same ground has the same effect on all sources.
func (f *frame) likeFor(o *frame) bool {
	return maps.Equal(f.paths, o.paths) && maps.Equal(f.without, o.without) && reflect.DeepEqual(f.hosts, o.hosts) &&
		maps.Equal(f.routed, o.routed) && sameHeard(f.heard, o.heard) && f.leaving == o.leaving &&
		f.left == o.left && slices.Equal(f.unsure, o.unsure) && reflect.DeepEqual(f.neighbours, o.neighbours)
}

// sameHeard compares two values of Snapshot.Heard, where nil differs from empty.
func sameHeard(x, y map[string]bool) bool { return (x == nil) == (y == nil) && maps.Equal(x, y) }

// allotPaths assigns a path id to every network and every node steered to. It keeps ids in force, which live packets and
// connections carry. Paths that are useful but not needed get ids last and lose them first. Nodes for which no id is left
// share one path, where the kernel has the hook for it.
func (f *frame) allotPaths(targets []target, before map[PathKey]PathID, hook bool) {
	want, useful := f.wantedPaths(targets)
	f.noShare = f.whyNoShare(hook)
	if f.noShare == "" && f.tunnel != nil {
		want, useful = f.sharePath(want, useful, before)
	}
	a := allotment{paths: f.paths, most: f.marks.MaxPath(), taken: map[PathID]bool{}, inForce: map[PathID]bool{}}
	f.ordered = !a.keepAll(slices.Concat(want, useful), before)
	for _, k := range want {
		if !a.assign(k) && !a.seize(k, useful) {
			f.lackPath(k, len(want))
		}
	}
	for _, k := range useful {
		if !a.assign(k) {
			f.forgo(k)
		}
	}
	if f.lacking[sharedPath] {
		f.lackShared()
	}
}

// forgo records that no id is left for one of the useful paths. Nodes share a path, if there is one.
func (f *frame) forgo(k PathKey) {
	switch {
	case k.Kind == PathNetwork:
		f.without[k.Name] = true
	case f.paths[sharedPath] != 0:
		f.sharers[k.Name] = true
	}
}

// whyNoShare returns why nodes cannot share a path here, and a remedy; empty: they can, if there is a tunnel.
func (f *frame) whyNoShare(hook bool) string {
	switch {
	case f.config.Steering.Mode == config.SteeringDirect:
		return ", or choose steering.mode auto or vxlan: hosts then share a path"
	case !hook && f.tunnel != nil:
		return ", or use a kernel with CONFIG_NETFILTER_EGRESS (Linux 5.16): hosts then share a path"
	}
	return ""
}

// lackShared records that the nodes that would share a path lack one, because no id is left for that path.
func (f *frame) lackShared() {
	for node := range f.sharers {
		f.lacking[PathKey{PathSteer, node}] = true
	}
	clear(f.sharers)
}

// sharePath takes nodes off the paths that get an id, and adds the path that these nodes share, if the needed paths do not
// fit. While the shared path is in force, nodes without an id of their own stay on it: a connection that moves from one path
// to another may lose packets.
func (f *frame) sharePath(want, useful []PathKey, before map[PathKey]PathID) (_, _ []PathKey) {
	isNode := func(k PathKey) bool { return k.Kind == PathSteer }
	lacks := func(k PathKey) bool { return isNode(k) && before[k] == 0 }
	nodes := pathsThat(want, isNode)
	room, shares := int(f.marks.MaxPath())-(len(want)-len(nodes)), before[sharedPath] != 0
	stay := shares && slices.ContainsFunc(nodes, lacks)
	if len(nodes) <= max(room, 1) && !stay {
		return want, useful
	}
	own := pathsThat(nodes, func(k PathKey) bool { return !lacks(k) })
	if !shares {
		own = append(own, pathsThat(nodes, lacks)...)
	}
	own = own[:min(len(own), max(room-1, 0))]
	sharing := func(k PathKey) bool { return isNode(k) && !slices.Contains(own, k) }
	for _, k := range slices.Concat(pathsThat(nodes, sharing), pathsThat(useful, lacks)) {
		f.sharers[k.Name] = true
	}
	want = slices.Insert(slices.Clone(want), slices.IndexFunc(want, isNode), sharedPath)
	return slices.DeleteFunc(want, sharing), slices.DeleteFunc(slices.Clone(useful), lacks)
}

// pathsThat returns the paths that meet a condition.
func pathsThat(paths []PathKey, is func(PathKey) bool) (some []PathKey) {
	for _, k := range paths {
		if is(k) {
			some = append(some, k)
		}
	}
	return some
}

// lackPath records that no id is left for one of the needed paths.
func (f *frame) lackPath(k PathKey, needed int) {
	f.problem("Config", "marks.mask", "", fmt.Sprintf("%#x", f.marks.Mask), ReasonPathsExhausted,
		"%d networks and hosts need a path id each but only %d fit: %s %s is not served, widen the mask%s",
		needed, f.marks.MaxPath(), k.Kind, k.Name, f.remedy(k))
	f.lacking[k] = true
	if k.Kind == PathNetwork {
		f.without[k.Name] = true
	}
}

// remedy returns how a host without a path id could be served, apart from a wider mask; empty: in no way.
func (f *frame) remedy(k PathKey) string {
	if k.Kind != PathSteer {
		return ""
	}
	return f.noShare
}

// wantedPaths lists the paths that are needed, and those that are only useful, in the order in which they get ids.
func (f *frame) wantedPaths(targets []target) (want, useful []PathKey) {
	want, idle := f.networkPaths(targets)
	for _, t := range targets {
		if t.needed {
			want = append(want, t.key)
		} else {
			useful = append(useful, t.key)
		}
	}
	return want, append(useful, idle...)
}

// networkPaths lists the paths of the listed networks, and those of the usable others by which no source serves: a user who may
// write EgressServices can name any number of networks.
func (f *frame) networkPaths(targets []target) (listed, idle []PathKey) {
	serves := map[PathKey]bool{}
	for _, t := range targets {
		serves[t.key] = true
	}
	for _, n := range f.networks {
		switch k := (PathKey{PathNetwork, n.name}); {
		case n.listed:
			listed = append(listed, k)
		case n.usable && !serves[k]:
			idle = append(idle, k)
		}
	}
	return listed, idle
}

// allotment assigns path ids from 1 to most.
type allotment struct {
	paths          map[PathKey]PathID
	most           PathID
	taken, inForce map[PathID]bool
}

// keepAll assigns the ids that paths had before; false: some of the paths got none.
func (a *allotment) keepAll(paths []PathKey, before map[PathKey]PathID) bool {
	for _, id := range before {
		a.inForce[id] = true
	}
	all := true
	for _, k := range paths {
		all = a.keep(k, before[k]) && all
	}
	return all
}

// keep assigns the id that a path had before; false: it had none that is valid and still free.
func (a *allotment) keep(k PathKey, id PathID) bool {
	if id == 0 || id > a.most || a.taken[id] {
		return false
	}
	a.paths[k], a.taken[id] = id, true
	return true
}

// assign gives a path an unused id, unless it has one; false: none is left. An id that was just freed may still be in a
// connection's mark: it is used last.
func (a *allotment) assign(k PathKey) bool {
	if a.paths[k] != 0 {
		return true
	}
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
	return f.noPath(n) != config.NoPathAllow || f.routed[n.table].has(ipv4)
}

// planPaths lists the paths and the uplinks.
func (f *frame) planPaths() {
	for _, n := range f.networks {
		if id := f.out(n); id != 0 {
			f.planPathOut(n, id)
		}
	}
	if id := f.paths[sharedPath]; id != 0 {
		f.ways = append(f.ways, f.pathShared(id))
	}
	for host, h := range f.hosts {
		if !h.shared() {
			f.ways = append(f.ways, f.pathTo(host, h))
		}
	}
	slices.SortFunc(f.ways, func(x, y Path) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(f.uplinks, func(x, y Uplink) int { return compareStrings(x.Device, y.Device) })
}

// planPathOut plans the path that leaves this node by a network, and the network's uplinks.
func (f *frame) planPathOut(n *network, id PathID) {
	p := Path{ID: id, Key: PathKey{PathNetwork, n.name}, Devices: n.devices}
	if f.usable(n) {
		p.Table = n.table
	}
	f.ways = append(f.ways, p)
	for _, device := range n.devices {
		f.uplinks = append(f.uplinks, Uplink{device, id, f.besideNodes(device)})
	}
}

// pathShared returns the path to all nodes without an id of their own.
func (f *frame) pathShared(id PathID) Path {
	return Path{
		ID: id, Key: sharedPath, Table: config.SteeringTableBase + uint32(id), Devices: []string{f.tunnelTo.Device}, Tunneled: true,
	}
}

// pathTo returns the path to another node that packets are steered to, by an id of its own.
func (f *frame) pathTo(host string, h *steering) Path {
	key := PathKey{PathSteer, host}
	p := Path{ID: f.paths[key], Key: key, Table: h.routes[0].Table, Devices: h.devices, Tunneled: h.tunneled}
	if !h.tunneled {
		for _, r := range h.routes {
			p.Via = append(p.Via, r.NextHops[0].Gateway)
		}
	}
	return p
}

// planRules plans one rule for each path, one for each bit of a path id and two more, so that their number does not depend on
// the number of endpoints.
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
	for _, mark := range m.Floors() {
		add(Rule{Priority: base + 99, Mark: mark, Mask: mark, Unreachable: true})
	}
}

// unserved reports, for each source, the needed paths that have no id, and addresses for which this node cannot answer.
func (f *frame) unserved(sources []*source) (problems findings) {
	if len(f.lacking) == 0 && len(f.mute) == 0 {
		return problems
	}
	for _, s := range sources {
		if s != nil && s.network != nil {
			f.reportUnserved(&problems, s)
			f.reportMute(&problems, s)
		}
	}
	return problems
}

// reportUnserved reports the needed paths of one source that have no id.
func (f *frame) reportUnserved(problems *findings, s *source) {
	report := func(field, value, path string) {
		problems.of(s.id, field, value, ReasonPathsExhausted,
			"node %s has no path id left for %s, and drops packets that need it: marks.mask has room for %d paths, widen it",
			f.node, path, f.marks.MaxPath())
		problems.onlyOn(f.node, len(problems.problems)-1)
	}
	if f.lacking[PathKey{PathNetwork, s.network.name}] {
		report(kinds[s.id.Kind].words().network, s.network.name, "network "+s.network.name)
	}
	if f.lacking[PathKey{PathSteer, s.leads.host}] {
		report("status.host", s.leads.host, fmt.Sprintf("host %s in network %s", s.leads.host, s.network.name))
	}
}

// reportMute reports an address of an EgressIP for which this node, its host, would answer with another kernel.
func (f *frame) reportMute(problems *findings, s *source) {
	if s.host == f.node && s.id.Kind == cluster.KindEgressIP && holdAddress(f.mute[s.network.name], s.id.Slot) {
		problems.of(s.id, kinds[s.id.Kind].words().seats, s.id.Slot.String(), ReasonNoARPFamily,
			"node %s does not answer ARP and neighbour discovery for it: its kernel has no nftables family arp; use one with "+
				"CONFIG_NF_TABLES_ARP, or announce the address by BGP and set onLink: off in network %s", f.node, s.network.name)
		problems.onlyOn(f.node, len(problems.problems)-1)
	}
}

// needRoutes reports the networks that lack a route of a family in which selected pods leave this node by them.
func (f *frame) needRoutes(sent *sending) (problems findings) {
	for _, n := range f.networks {
		missing := sent.by(f, n).without(f.routed[n.table])
		for family, name := range familyNames {
			if missing.has(family == ipv4) {
				problems.problem("Network", n.name, "table", strconv.Itoa(int(n.table)), ReasonNoRoute,
					"has no %s route on node %s: selected pods' packets are dropped until a peer announces one, or one is added",
					name, f.node)
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
	e := r.frameRoutes()
	all, users := r.learning()
	for _, l := range all {
		if l.from == l.to && users[l.to] == 1 {
			l.change(&e)
		} else {
			l.replace(&e)
		}
	}
	next.Routes = next.Routes.With(e.set, e.gone)
}

// frameRoutes returns the changes to the routes of the frame. Callers may append to them.
func (r *pass) frameRoutes() (e edit[Route]) {
	if r.frame == r.former {
		return e
	}
	e.set = slices.Clip(r.frame.routes)
	if r.former != nil {
		e.gone = slices.Clip(r.former.routes)
	}
	return e
}

// learning holds the routes that the peers of one network announced and announce, and the tables that hold them.
type learning struct {
	before, now sorted.List[Route]
	from, to    uint32 // 0: none
}

// change adds the changes to the routes of a table that only this network uses, and used before.
func (l *learning) change(e *edit[Route]) {
	for x, y := range l.before.Changes(l.now) {
		if y == nil {
			e.drop(x.learnedIn(l.to))
		} else {
			e.put(y.learnedIn(l.to))
		}
	}
}

// replace removes all former routes and sets all present ones.
func (l *learning) replace(e *edit[Route]) {
	for route := range l.before.All() {
		e.drop(route.learnedIn(l.from))
	}
	for route := range l.now.All() {
		e.put(route.learnedIn(l.to))
	}
}

// learning lists networks with learned routes, and counts those that use each table.
func (r *pass) learning() (all []learning, users map[uint32]int) {
	former := map[string]sorted.List[Route]{}
	if r.Planner.plan != nil {
		for _, l := range r.last.Learned {
			former[l.Network] = l.Routes
		}
	}
	for _, l := range r.Learned {
		all = append(all, r.learningOf(l.Network, former[l.Network], l.Routes))
		delete(former, l.Network)
	}
	for network, before := range former {
		all = append(all, r.learningOf(network, before, sorted.List[Route]{}))
	}
	return all, usersOf(all)
}

// learningOf returns the learned routes of one network, without those that no table holds.
func (r *pass) learningOf(network string, before, now sorted.List[Route]) learning {
	l := learning{from: r.former.tableOf(network), to: r.frame.tableOf(network)}
	if l.from != 0 {
		l.before = before
	}
	if l.to != 0 {
		l.now = now
	}
	return l
}

// usersOf counts the networks that use a table, or used it before.
func usersOf(all []learning) map[uint32]int {
	users := map[uint32]int{}
	for _, l := range all {
		if users[l.from]++; l.to != l.from {
			users[l.to]++
		}
	}
	return users
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
			for _, to := range anywhere {
				f.routes = append(f.routes, Route{Table: n.table, Dst: to, Metric: vrfFloorMetric, Unreachable: true})
			}
		}
	}
}
