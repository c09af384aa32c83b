package plan

import (
	"maps"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/sorted"
)

// Build is the plan: what this node should be, and what is wrong with which object. A bad object is a Problem of that
// object alone.
func Build(s Snapshot) (*NodePlan, []cluster.Problem) {
	return new(Planner).Plan(s, cluster.Everything())
}

// Planner plans one node again and again: a pass costs what changed since the one before. The zero Planner has planned
// nothing yet.
type Planner struct {
	last     Snapshot // what was planned for last, without objects
	ground   *ground
	frame    *frame
	names    map[string]int // how many EgressServices name a network
	renamed  bool           // other networks are named than when the ground was made
	services map[cluster.Key]*service
	claims   claims
	targets  targets
	sending  sending
	holding  holding

	outside  sorted.List[Prefix] // endpoints in no range of pods
	within   sorted.List[Prefix] // what single Services and pods add to what stays inside of the cluster
	announce map[string]sorted.List[Announcement]
	refuse   sorted.List[Prefix]
	found    sorted.List[found] // problems of services

	plan     *NodePlan
	general  []cluster.Problem // problems of no service
	problems []cluster.Problem // all, as handed out
}

// pass is one round of planning.
type pass struct {
	*Planner
	Snapshot
	anew   bool // nothing is known of any service
	redone []*redone
	gone   []*redone // of redone: services that are no more
	of     map[*service]*redone
	former *frame
	none   service // what a service was that nothing was known of

	podsChanged map[cluster.Key]bool
}

// Plan plans for a snapshot, of whose Objects and Hosts nothing differs from those of the pass before but what changed
// says; what else differs is found out here. Neither is changed, nor is the snapshot to be changed later. The plan is
// not to be changed either: lists of the next one share what they have in common, and slices and the plan itself that do
// not differ are the same.
func (p *Planner) Plan(s Snapshot, changed cluster.Changed) (*NodePlan, []cluster.Problem) {
	r := &pass{Planner: p, Snapshot: s, of: map[*service]*redone{}, podsChanged: changed.Pods}
	r.anew = changed.All || changed.Keys[apiService] || p.plan == nil || s.Node != p.last.Node || s.Config != p.last.Config
	if r.anew {
		p.forget(&s.Objects)
	} else {
		for key := range changed.Keys {
			r.rename(key)
		}
	}
	r.readGround()
	r.readServices(changed)
	r.readFrame()
	r.publish()
	r.remember()
	return p.plan, p.problems
}

// forget drops what is known of services, and keeps what was planned to share it.
func (p *Planner) forget(o *cluster.Objects) {
	addresses := 0
	for _, endpoints := range o.Endpoints.All() {
		addresses += len(endpoints)
	}
	p.services = make(map[cluster.Key]*service, o.Services.Len())
	p.claims = newClaims(addresses + 2*o.Services.Len())
	p.claims.quiet = true
	p.targets = targets{of: map[string]*leading{}, changed: true}
	p.sending = sending{out: map[string]*[2]int{}}
	p.names = map[string]int{}
	for _, e := range o.EgressServices.All() {
		p.names[e.Network]++
	}
}

// rename counts the network that an EgressService names now.
func (r *pass) rename(key cluster.Key) {
	if s := r.services[key]; s != nil && s.selects {
		if r.names[s.wanted]--; r.names[s.wanted] == 0 {
			delete(r.names, s.wanted)
			r.renamed = true
		}
	}
	if e, ok := r.Objects.EgressServices.Get(key); ok {
		r.names[e.Network]++
		r.renamed = r.renamed || r.names[e.Network] == 1
	}
}

// readGround looks at everything but services. Where that differs for services, all are done anew.
func (r *pass) readGround() {
	links := sortedLinks(r.Facts.Links)
	same := !r.anew && slices.EqualFunc(links, r.last.Facts.Links, sameLink) &&
		slices.Equal(r.Facts.Gateways, r.last.Facts.Gateways) && slices.Equal(r.Unsettled, r.last.Unsettled) &&
		slices.Equal(r.Unmade, r.last.Unmade) && slices.Equal(r.APIServer, r.last.APIServer) && (!r.ground.lacking || sameHeard(r.Heard, r.ground.heard)) &&
		(!r.renamed || !r.Config.AllowUnlisted)
	r.Facts.Links = links
	if same {
		return
	}
	r.renamed = false
	g := newGround(&r.Snapshot, links, r.names)
	switch {
	case r.anew:
	case g.likeFor(r.ground):
		g.networks, g.byName, g.allowed = r.ground.networks, r.ground.byName, r.ground.allowed
	default:
		r.anew = true
		r.forget(&r.Objects)
	}
	r.ground = g
}

// readServices does what changed again, and the services that it has an effect on.
func (r *pass) readServices(changed cluster.Changed) {
	c := &r.claims
	c.ground = r.ground
	c.homes.take(r, r.podsChanged, c.note)
	if r.anew {
		r.redone = make([]*redone, 0, r.Objects.Services.Len())
		for key := range r.Objects.EgressServices.Keys() {
			r.readService(key)
		}
		for key := range r.Objects.Services.Keys() {
			if r.services[key] == nil {
				r.readService(key)
			}
		}
	} else {
		for key := range changed.Keys {
			r.readService(key)
		}
		for a, before := range c.before {
			if now := c.judge(a); now != before {
				for _, claim := range c.on(a) {
					r.reread(claim.by)
				}
			}
		}
	}
	clear(c.before)
	clear(c.judged)
	c.quiet = false
	for _, one := range r.redone {
		one.settle(c)
		if one.leads != one.was.leads {
			r.targets.count(one.was.leads, -1)
			r.targets.count(one.leads, 1)
		}
	}
}

// readService reads what changed of a service, and has it claim what it wants.
func (r *pass) readService(key cluster.Key) {
	_, selects := r.Objects.EgressServices.Get(key)
	_, exists := r.Objects.Services.Get(key)
	s := r.services[key]
	if s == nil {
		if !selects && !exists {
			return
		}
		s = &service{key: key}
		r.services[key] = s
		r.claims.admit(s)
	}
	one := r.redo(s)
	r.claims.noteAll(s)
	one.read(r.ground, &r.Objects, r.Hosts[key])
	one.readEndpoints(r.ground)
	one.claim(&r.claims)
	if !selects && !exists {
		r.gone = append(r.gone, one)
		delete(r.services, key)
	}
}

// reread reads a service again of which nothing changed but what others have.
func (r *pass) reread(s *service) {
	if r.of[s] != nil {
		return
	}
	one := r.redo(s)
	one.read(r.ground, &r.Objects, r.Hosts[s.key])
	one.readEndpoints(r.ground)
	s.clusterIPs = one.was.clusterIPs
}

func (r *pass) redo(s *service) *redone {
	one := &redone{service: s, was: &r.none}
	if !r.anew {
		was := *s
		one.was = &was
		r.of[s] = one
	}
	r.redone = append(r.redone, one)
	return one
}

// readFrame finds out by which paths services lead, and which of them are elsewhere for that.
func (r *pass) readFrame() {
	r.former = r.frame
	if !r.frameDiffers() {
		r.recount()
		return
	}
	f := newFrame(r.ground, &r.Snapshot, r.targets.list(r.claims.services))
	r.targets.changed = false
	r.frame = f
	if !r.anew && !f.likeFor(r.former) {
		for _, s := range r.services {
			if r.of[s] == nil && (s.goesOtherwise(f.waysOf(s), r.former.waysOf(s)) || f.faceOf(s) != r.former.faceOf(s)) {
				r.redo(s)
			}
		}
	}
	r.recount()
}

func (r *pass) frameDiffers() bool {
	f, last := r.frame, &r.last
	return r.anew || f.ground != r.ground || r.targets.changed || f.ordered && len(r.redone) > 0 ||
		!maps.Equal(r.Facts.Paths, last.Facts.Paths) || !maps.Equal(r.Facts.Routed, last.Facts.Routed) ||
		!sameHeard(r.Heard, last.Heard) || r.Draining != last.Draining ||
		slices.ContainsFunc(f.watched, func(node string) bool { return r.answers(node) == f.silent[node] })
}

// recount counts what the services that were done again send by which network.
func (r *pass) recount() {
	for _, one := range r.redone {
		w := r.frame.waysOf(one.service)
		one.sends = r.frame.sendsOf(one.service, &w)
		r.sending.count(one.was, -1)
		r.sending.count(one.service, 1)
	}
}

// remember keeps of the snapshot what the next one is compared with.
func (r *pass) remember() {
	for _, one := range r.gone {
		r.claims.dismiss(one.service)
	}
	last := &r.last
	last.Node, last.Config, last.Draining = r.Node, r.Config, r.Draining
	last.Unsettled, last.Learned, last.APIServer = slices.Clone(r.Unsettled), slices.Clone(r.Learned), slices.Clone(r.APIServer)
	last.Unmade = slices.Clone(r.Unmade)
	last.Facts.Links, last.Facts.Gateways = r.Facts.Links, r.Facts.Gateways
	last.Facts.Routed, last.Heard = r.frame.routed, r.frame.heard
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
		sorted.SameSlice(x.Addrs, y.Addrs)
}

// sameLearned says whether what peers tell is the very same.
func sameLearned(x, y []NetworkRoutes) bool {
	return slices.EqualFunc(x, y, func(x, y NetworkRoutes) bool { return x.Network == y.Network && sorted.OneSlice(x.Routes, y.Routes) })
}
