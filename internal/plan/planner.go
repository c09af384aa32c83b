package plan

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/qos"
	"github.com/egressway/egressway/internal/sorted"
)

// Build returns the desired state of this node and the problems of objects. A bad object is a Problem of that object alone.
func Build(s Snapshot) (*NodePlan, []cluster.Problem) {
	return new(Planner).Plan(s, cluster.Everything())
}

// Planner plans one node repeatedly. The cost of a pass depends on the changes since the pass before. The zero Planner has
// planned nothing yet.
type Planner struct {
	last     Snapshot // the last planned one; of its objects, secondary addresses only
	ground   *ground
	frame    *frame
	names    map[string]int // how many EgressServices name a network
	renamed  bool           // EgressServices name other networks than when the ground was made
	sources  map[cluster.ID]*source
	claims   claims
	targets  targets
	sending  sending
	held     bool // pods wait for more than their addresses, see Snapshot.holds
	holding  holding
	qos      qos.Tracker
	firewall firewall.Tracker

	selection selection

	outside  sorted.List[Prefix] // endpoints in no pod range
	within   sorted.List[Prefix] // single Services and pods, which extend ground.cluster
	announce map[string]sorted.List[Announcement]
	refuse   sorted.List[Prefix]
	found    sorted.List[found] // problems of sources

	plan     *NodePlan
	general  []cluster.Problem // problems of no source
	unranged []cluster.Problem // a pod that has a policy is in no range of pods
	problems []cluster.Problem // all, as returned
}

// Secondary returns the secondary addresses of this node that other nodes may count as inside the cluster, as of the last plan.
func (p *Planner) Secondary() cluster.Secondary {
	if p.ground == nil {
		return cluster.Secondary{}
	}
	return p.ground.own
}

// pass is one round of planning.
type pass struct {
	*Planner
	Snapshot
	fromScratch bool // all sources are read from scratch
	redone      []*redone
	gone        []*redone // those of redone that were deleted
	of          map[*source]*redone
	former      *frame
	none        source // the former state of a source that is new

	changed cluster.Changed
	moved   map[netip.Addr]bool // addresses whose Pods on this node may differ
	// shares holds the members of each address of the EgressIPs that were read in this pass.
	shares map[cluster.Key]map[netip.Addr][]cluster.Endpoint
	// unresolved is the problem that rules list DNS names without a server that answers about them.
	unresolved []cluster.Problem
}

// Plan returns the plan for a snapshot. changed must name everything in which its Objects and Hosts differ from those of
// the pass before; Plan itself finds other differences. Plan modifies neither argument, and callers must not modify the
// snapshot or the plan later: successive plans share parts of their lists, and a slice, or the plan as a whole, that does
// not differ is returned again.
func (p *Planner) Plan(s Snapshot, changed cluster.Changed) (*NodePlan, []cluster.Problem) {
	r := &pass{Planner: p, Snapshot: s, of: map[*source]*redone{}, changed: changed}
	if r.fromScratch = p.startsOver(&s, &changed); r.fromScratch {
		p.forget(&s.Objects)
	} else {
		for key := range changed.Of[cluster.KindEgressService] {
			r.rename(key)
		}
	}
	r.readGround()
	r.readSources(changed)
	r.readFrame()
	r.publish()
	r.remember()
	return p.plan, p.problems
}

// startsOver reports whether the pass before is of no use.
func (p *Planner) startsOver(s *Snapshot, changed *cluster.Changed) bool {
	return changed.All || changed.Of[cluster.KindEgressService][cluster.APIService] || p.plan == nil ||
		s.Node != p.last.Node || s.Config != p.last.Config || s.holds() != p.held
}

// forget drops the state of all sources, and keeps the former plan so that the next one shares its parts.
func (p *Planner) forget(o *cluster.Objects) {
	count, all := 0, 0
	for _, k := range kinds {
		sources, addresses := k.size(o)
		count, all = count+sources, all+addresses
	}
	p.sources = make(map[cluster.ID]*source, count)
	p.claims = newClaims(all)
	p.claims.quiet = true
	p.targets = targets{of: map[PathKey]*leading{}, changed: true}
	p.sending = sending{out: map[string]*tally{}}
	p.names = countNames(o)
}

// readGround reads everything but sources. A difference that affects sources makes the pass read all of them again.
func (r *pass) readGround() {
	r.Facts.Links = sortedLinks(r.Facts.Links)
	if r.groundHolds() {
		return
	}
	r.renamed = false
	g := newGround(&r.Snapshot, r.Facts.Links, r.names)
	switch {
	case r.fromScratch:
	case g.likeFor(r.ground):
		g.networks, g.byName, g.allowed = r.ground.networks, r.ground.byName, r.ground.allowed
	default:
		r.fromScratch = true
		r.forget(&r.Objects)
	}
	r.ground = g
}

// sameInputs reports whether the snapshot's parts that the ground is made of are those of the pass before.
func (r *pass) sameInputs() bool {
	last := &r.last
	return slices.EqualFunc(r.Facts.Links, last.Facts.Links, sameLink) && slices.Equal(r.Facts.Gateways, last.Facts.Gateways) &&
		slices.Equal(r.Unsettled, last.Unsettled) && slices.Equal(r.Unmade, last.Unmade) && slices.Equal(r.APIServer, last.APIServer) &&
		r.InternalIPv4 == last.InternalIPv4 && r.Objects.Secondary.Same(last.Objects.Secondary)
}

// groundHolds reports whether the ground of the pass before is that of this one.
func (r *pass) groundHolds() bool {
	return !r.fromScratch && r.sameInputs() &&
		(!r.ground.lacking || sameHeard(r.Heard, r.ground.heard)) && (!r.renamed || !r.Config.AllowUnlisted)
}

// readSources reads the changed sources again, and those that the changes affect.
func (r *pass) readSources(changed cluster.Changed) {
	c := &r.claims
	c.ground = r.ground
	r.moved = map[netip.Addr]bool{}
	c.homes.take(r, r.changed.Pods, func(a netip.Addr) {
		r.moved[a] = true
		c.note(a)
	})
	r.selection.follow(r, r.changed.Pods)
	if r.fromScratch {
		r.readAll()
	} else {
		r.readChanged(changed)
	}
	clear(c.before)
	clear(c.judged)
	c.quiet = false
	for _, one := range r.redone {
		one.settle(c)
		r.targets.note(one)
	}
}

// readAll reads all sources.
func (r *pass) readAll() {
	r.redone = make([]*redone, 0, r.Objects.Services.Len())
	for _, k := range kinds {
		for id := range k.sources(&r.Objects) {
			if r.sources[id] == nil {
				r.readSource(id)
			}
		}
	}
}

// readChanged reads the changed sources, and those that claim an address for which the claims are decided differently now.
func (r *pass) readChanged(changed cluster.Changed) {
	for _, k := range kinds {
		for id := range k.changed(r, changed) {
			r.readSource(id)
		}
	}
	c := &r.claims
	for a, before := range c.before {
		if now := c.judge(a); now != before {
			r.rereadAll(c.on(a))
		}
	}
}

// readSource reads a changed source and updates its claims.
func (r *pass) readSource(id cluster.ID) {
	exists := kinds[id.Kind].exists(&r.Objects, id)
	s := r.sources[id]
	if s == nil {
		if !exists {
			return
		}
		s = &source{id: id}
		r.sources[id] = s
		r.claims.admit(s)
	}
	one := r.redo(s)
	r.claims.noteAll(s)
	one.read(r)
	one.claim(&r.claims)
	if !exists {
		r.gone = append(r.gone, one)
		delete(r.sources, id)
	}
}

// rereadAll reads the sources of claims again.
func (r *pass) rereadAll(claims []claim) {
	for _, c := range claims {
		r.reread(c.by)
	}
}

// reread reads a source again whose own objects did not change, but for which a disputed address was decided differently.
func (r *pass) reread(s *source) {
	if r.of[s] != nil {
		return
	}
	one := r.redo(s)
	one.read(r)
}

func (r *pass) redo(s *source) *redone {
	one := &redone{source: s, was: &r.none}
	if !r.fromScratch {
		was := *s
		one.was = &was
		r.of[s] = one
	}
	r.redone = append(r.redone, one)
	return one
}

// readFrame finds the paths that sources use, and marks sources to be planned again whose path differs.
func (r *pass) readFrame() {
	r.former = r.frame
	if !r.frameDiffers() {
		r.recount()
		return
	}
	f := newFrame(r.ground, &r.Snapshot, r.targets.list(r.claims.sources))
	r.frame = f
	if !r.fromScratch && !f.likeFor(r.former) {
		r.each(r.redoIfMoved)
	}
	r.recount()
}

// redoIfMoved marks a source to be planned again if its pods or clients use other paths than in the former frame.
func (r *pass) redoIfMoved(s *source) {
	if r.of[s] == nil && r.moves(s) {
		r.redo(s)
	}
}

// moves reports whether a source's pods or clients use other paths than in the former frame.
func (r *pass) moves(s *source) bool {
	return s.goesOtherwise(r.frame.waysOf(s), r.former.waysOf(s)) || r.frame.faceOf(s) != r.former.faceOf(s)
}

func (r *pass) frameDiffers() bool {
	f, last := r.frame, &r.last
	return r.fromScratch || f.ground != r.ground || r.targets.changed || f.ordered && r.targets.reordered ||
		r.Facts.EgressHook != last.Facts.EgressHook || r.Facts.ARP != last.Facts.ARP ||
		!maps.Equal(r.Facts.Paths, last.Facts.Paths) || !maps.Equal(r.Facts.Routed, last.Facts.Routed) ||
		!sameHeard(r.Heard, last.Heard) || r.Draining != last.Draining || r.Leaving != f.left || !slices.Equal(r.Unsure, f.unsure) ||
		slices.ContainsFunc(f.watched, func(node string) bool { return r.answers(node) == f.silent[node] })
}

// recount updates the count of sources that send packets by each network, for sources that were read again.
func (r *pass) recount() {
	for _, one := range r.redone {
		w := r.frame.waysOf(one.source)
		one.sends = r.frame.sendsOf(one.source, &w)
		r.sending.count(one.was, -1)
		r.sending.count(one.source, 1)
	}
}

// remember keeps the parts of the snapshot that the next pass compares.
func (r *pass) remember() {
	for _, one := range r.gone {
		r.claims.dismiss(one.source)
	}
	r.held = r.holds()
	last := &r.last
	last.Node, last.Config, last.Draining = r.Node, r.Config, r.Draining
	last.Unsettled, last.Learned, last.APIServer = slices.Clone(r.Unsettled), slices.Clone(r.Learned), slices.Clone(r.APIServer)
	last.Unmade, last.InternalIPv4 = slices.Clone(r.Unmade), r.InternalIPv4
	last.Facts.Links, last.Facts.Gateways = r.Facts.Links, r.Facts.Gateways
	last.Objects.Secondary = r.Objects.Secondary
	last.Facts.Routed, last.Heard, last.Facts.EgressHook = r.frame.routed, r.frame.heard, r.Facts.EgressHook
	last.Facts.ARP = r.Facts.ARP
	if !maps.Equal(last.Facts.Paths, r.Facts.Paths) {
		last.Facts.Paths = maps.Clone(r.Facts.Paths)
	}
}

func sortedLinks(links []Link) []Link {
	links = slices.Clone(links)
	slices.SortFunc(links, func(x, y Link) int { return compareStrings(x.Name, y.Name) })
	return links
}

func sameLink(x, y Link) bool {
	return x.Name == y.Name && x.Index == y.Index && x.Up == y.Up && x.Master == y.Master && x.VRFTable == y.VRFTable && x.MTU == y.MTU &&
		x.Parent == y.Parent && x.VLAN == y.VLAN && x.Ours == y.Ours && sorted.SameSlice(x.Addrs, y.Addrs)
}
