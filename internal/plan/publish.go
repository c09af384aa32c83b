package plan

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/qos"
	"github.com/egressway/egressway/internal/sorted"
)

// edit holds changes to a list: elements to set and elements to remove.
type edit[T sorted.Item[T]] struct{ set, gone []T }

func (e *edit[T]) put(item T)  { e.set = append(e.set, item) }
func (e *edit[T]) drop(item T) { e.gone = append(e.gone, item) }

// to returns the list after the edit, and whether it differs from the former. With fromScratch, set holds all elements of the list.
func (e *edit[T]) to(former sorted.List[T], fromScratch bool) (next sorted.List[T], differs bool) {
	if !fromScratch {
		next = former.With(e.set, e.gone)
		return next, !former.Same(next)
	}
	if former.Len() == 0 {
		next = sorted.Of(e.set...)
		return next, next.Len() > 0
	}
	now := sorted.Of(e.set...)
	var differences edit[T]
	for x, y := range former.Changes(now) {
		if y != nil {
			differences.put(*y)
		} else {
			differences.drop(*x)
		}
	}
	return differences.to(former, false)
}

// publish makes the next plan from the former one.
func (r *pass) publish() {
	former := r.Planner.plan
	if former == nil {
		former = &NodePlan{Node: r.Node}
	}
	next := *former
	next.Node = r.Node
	d := &next.DataPlane
	var open edit[Address]
	r.planEndpoints(d, &open)
	r.planHold(&next, &open)
	r.planQoS(&next)
	r.planServices(&next)
	within := r.within
	r.planPrefixes(d)
	r.planFirewall(&next, !within.Same(r.within))
	touched := r.planIngress(d)
	r.planRefuse(former.DataPlane.Cluster, d, touched)
	if f := r.frame; f != r.former {
		next.VLANs = f.vlans
		next.VRFs, next.Absent, next.Held, next.Watched, next.Rules, next.Tunnel = f.vrfs, f.absent, f.held, f.watched, f.rules, f.tunnelTo
		d.Marks, d.Paths, d.Uplinks, d.Guests, d.Between, d.CountSent = f.marks, f.ways, f.uplinks, f.guests, f.between, f.countSent()
		d.IPVS = f.ipvs()
		d.ClampMSS4, d.ClampMSS6 = 0, 0
		if t := next.Tunnel; t != nil {
			d.ClampMSS4, d.ClampMSS6 = uint16(t.MTU-40), uint16(t.MTU-60) // IPv4 and IPv6 header, each with TCP's
		}
	}
	r.planRoutes(&next)
	r.planAnnouncements(&next)
	if equal := sorted.Share(former, &next); r.Planner.plan == nil || !equal {
		r.Planner.plan = &next
	}
	r.planProblems()
}

// planQoS plans the DSCP values of this node's pods.
func (r *pass) planQoS(next *NodePlan) {
	d := &next.DataPlane
	q := r.qos.Plan(qos.Pass{Objects: &r.Objects, Changed: r.changed, Whole: r.fromScratch, Addresses: r.addressesOf},
		qos.Plan{Classes: d.QoS, Marked: d.Marked, Objects: next.EgressQoSes, Pods: next.QoSPods})
	d.QoS, d.Marked, next.EgressQoSes, next.QoSPods = q.Classes, q.Marked, q.Objects, q.Pods
}

// planFirewall plans which connections this node's pods may begin. within reports that single Services and pods within the cluster
// differ from the pass before.
func (r *pass) planFirewall(next *NodePlan, within bool) {
	d := &next.DataPlane
	another := r.former == nil || r.former.ground != r.ground
	f := r.firewall.Plan(firewall.Pass{
		Objects: &r.Objects, Changed: r.changed, Whole: r.fromScratch, Moved: another, OfNode: r.addressesOfNode,
		Pods: r.claims.homes.of, At: r.claims.homes.at, Touched: r.moved,
	}, firewall.Plan{Policies: d.Policies, Firewalled: d.Firewalled, Objects: next.EgressFirewalls})
	if another || !f.Firewalled.Same(d.Firewalled) {
		r.unranged = r.outsideFirewall(f.Firewalled)
	}
	d.Policies, d.Firewalled, next.EgressFirewalls = f.Policies, f.Firewalled, f.Objects
	switch {
	case len(d.Policies) == 0:
		d.Inside = nil
	case another || within || len(d.Inside) == 0:
		d.Inside = r.ground.beyondFirewall(r.within)
	}
	r.unresolved = nil
	if !slices.ContainsFunc(d.Policies, func(p firewall.Policy) bool { return p.HasNames() }) {
		d.Resolvers, d.Asked = nil, nil
		return
	}
	d.Resolvers, d.Asked = r.resolvers()
	if len(d.Resolvers) == 0 {
		r.unresolved = []cluster.Problem{{
			Kind: "Node", Object: r.Node, Reason: ReasonNoResolver,
			Field: "firewall.resolvers.services", Value: strings.Join(r.Config.Firewall.Resolvers.Services, ", "),
			Message: "EgressFirewalls list DNS names, and no such Service has an address: until there is one, no address " +
				"belongs to these names; list the Service or the addresses of the servers that pods ask",
		}}
	}
}

// outsideFirewall reports a pod of this node that has a policy, and whose address is in no range of pods: neither may be those of other
// pods, which policies deny then.
func (r *pass) outsideFirewall(all sorted.List[firewall.Firewalled]) []cluster.Problem {
	for f := range all.All() {
		if !r.ground.rangeOf(f.Addr).IsValid() {
			return []cluster.Problem{{
				Kind: "Node", Object: r.Node, Field: "podCIDRs", Value: f.Addr.String(), Reason: ReasonOutsidePodRanges,
				Message: "a pod of namespace " + f.Namespace + ", which has an EgressFirewall, is in no range of pods: rules may deny " +
					"other pods and cluster DNS, and no new pods are held; add its range to podCIDRs",
			}}
		}
	}
	return nil
}

// resolvers returns the servers whose answers say which addresses DNS names have, and those that this daemon asks, at port 53. A Service
// may translate that port to another one of its endpoints, so the daemon asks endpoints only if there is no other server.
func (r *pass) resolvers() (all, asked []netip.Addr) {
	c := &r.Config.Firewall.Resolvers
	asked = slices.Clone(c.Addresses)
	for _, service := range c.Services {
		namespace, name, _ := strings.Cut(service, "/")
		key := cluster.Key{Namespace: namespace, Name: name}
		asked = append(asked, r.Objects.Services.At(key).ClusterIPs...)
		for _, e := range r.Objects.Endpoints.At(key) {
			if a, err := cluster.ParseAddr(e.Address); err == nil {
				all = append(all, a)
			}
		}
	}
	all = sortedOnce(append(all, asked...))
	if len(asked) == 0 {
		return all, all
	}
	return all, sortedOnce(asked)
}

// sortedOnce sorts addresses, and keeps each once.
func sortedOnce(all []netip.Addr) []netip.Addr {
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// addressesOfNode returns all addresses that are known of a node, its secondary ones too.
func (r *pass) addressesOfNode(name string, n *cluster.Node) []netip.Addr {
	all := slices.Clone(n.Addresses)
	also := []cluster.Secondary{n.Secondary, r.Objects.Secondary.At(name)}
	if name == r.Node {
		also = append(also, r.ground.own)
	}
	for _, s := range also {
		all = append(append(all, s.Beside...), s.Apart...)
	}
	return all
}

// whole reports whether so many sources changed that planning all of them is less work.
func (r *pass) whole() bool {
	return r.fromScratch || len(r.redone) > 100 && len(r.redone) > len(r.claims.sources)/4
}

// each calls see for all sources.
func (r *pass) each(see func(*source)) {
	for _, s := range r.claims.sources {
		if s != nil {
			see(s)
		}
	}
}

// planEndpoints plans every selected pod's address. Those that are treated as if they were not selected go into open.
func (r *pass) planEndpoints(d *DataPlane, open *edit[Address]) {
	var rows edit[Endpoint]
	if r.whole() {
		rows.set = r.allEndpoints(open)
		d.Endpoints, _ = rows.to(d.Endpoints, true)
		return
	}
	e := endpointEdits{node: r.Node, rows: &rows, hold: r.holds(), open: open}
	for _, one := range r.redone {
		w, had := r.frame.waysOf(one.source), r.former.waysOf(one.was)
		e.change(one, &w, w != had)
	}
	d.Endpoints, _ = rows.to(d.Endpoints, false)
}

// endpointEdits holds the changes to the endpoints, and to those that are treated as if they were not selected.
type endpointEdits struct {
	node string
	rows *edit[Endpoint]
	hold bool // else open is not used
	open *edit[Address]
}

// change plans the members of a source that differ, or all of them if their ways differ.
func (e *endpointEdits) change(one *redone, w *ways, otherwise bool) {
	differences(one.was.members, one.members, func(x, y *endpoint) {
		switch {
		case y == nil:
			e.remove(x.addr)
		case otherwise || x == nil || *x != *y:
			e.set(*y, w)
		}
	})
}

// remove removes an address that is no endpoint any more.
func (e *endpointEdits) remove(a netip.Addr) {
	e.rows.drop(Endpoint{Addr: a})
	if e.hold {
		e.open.drop(Address{a})
	}
}

// set plans an endpoint on the ways of its source.
func (e *endpointEdits) set(of endpoint, w *ways) {
	row, selected := w.endpoint(of, e.node)
	if selected {
		e.rows.put(row)
	} else {
		e.rows.drop(row)
	}
	switch {
	case !e.hold:
	case selected:
		e.open.drop(Address{of.addr})
	default:
		e.open.put(Address{of.addr})
	}
}

// allEndpoints lists the endpoints of all sources, sorted.
func (r *pass) allEndpoints(open *edit[Address]) []Endpoint {
	sources := r.claims.sources
	count := 0
	r.each(func(s *source) { count += len(s.members) })
	places := [2][]place{ipv4: make([]place, 0, count)}
	all := make([]ways, len(sources))
	r.each(func(s *source) {
		if len(s.members) == 0 {
			return
		}
		w := &all[s.number]
		*w = r.frame.waysOf(s)
		for i, e := range s.members {
			family := familyOf(e.addr)
			if w[family][e.place(r.Node)].open { // treated as if it were not selected
				open.put(Address{e.addr})
			} else {
				places[family] = append(places[family], placeOf(e.addr, s.number, i))
			}
		}
	})
	rows := make([]Endpoint, 0, len(places[ipv4])+len(places[ipv6]))
	for _, family := range places {
		for _, p := range sortPlaces(family) {
			row, _ := all[p.source].endpoint(sources[p.source].members[p.endpoint], r.Node)
			rows = append(rows, row)
		}
	}
	return rows
}

// place is an address with the indices of its source and endpoint.
type place struct {
	high, low        uint64 // the address
	source, endpoint uint32
}

func placeOf(a netip.Addr, source uint32, endpoint int) place {
	b := a.As16()
	return place{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:]), source, uint32(endpoint)}
}

// sortPlaces sorts by address with a radix sort, byte by byte from the last: there are many addresses, and most of their
// bytes are the same. It overwrites the slice.
func sortPlaces(places []place) []place {
	if len(places) == 0 {
		return nil
	}
	high, low := differingBits(places)
	other := make([]place, len(places))
	for shift := 0; shift < 128; shift += 8 {
		differ, of := low, func(p *place) byte { return byte(p.low >> shift) }
		if shift >= 64 {
			differ, of = high, func(p *place) byte { return byte(p.high >> (shift - 64)) }
		}
		if byte(differ>>(shift%64)) != 0 {
			sortByByte(other, places, of)
			places, other = other, places
		}
	}
	return places
}

// differingBits returns the bits in which some addresses differ.
func differingBits(places []place) (high, low uint64) {
	for _, p := range places {
		high, low = high|p.high^places[0].high, low|p.low^places[0].low
	}
	return high, low
}

// sortByByte copies places to a slice of the same length, sorted by one byte and otherwise in their order.
func sortByByte(to, places []place, of func(*place) byte) {
	var begin [256]int
	for i := range places {
		begin[of(&places[i])]++
	}
	sum := 0
	for i := range begin {
		begin[i], sum = sum, sum+begin[i]
	}
	for i := range places {
		b := of(&places[i])
		to[begin[b]] = places[i]
		begin[b]++
	}
}

// planServices lists the EgressServices for display.
func (r *pass) planServices(next *NodePlan) {
	var e edit[Service]
	if r.whole() {
		e.set = r.allServices()
		next.Services, _ = e.to(next.Services, true)
		return
	}
	for _, one := range r.redone {
		r.changeService(&e, next.Services, one.source)
	}
	next.Services, _ = e.to(next.Services, false)
}

// changeService sets the row of a source, or removes it from those listed if the source does not select members.
func (r *pass) changeService(e *edit[Service], listed sorted.List[Service], s *source) {
	row := s.row(r.frame)
	had, known := listed.Get(row)
	switch {
	case s.selects && (!known || !had.Equal(row)):
		e.put(row)
	case !s.selects && known:
		e.drop(had)
	}
}

// allServices lists the rows of all sources that select members, sorted.
func (r *pass) allServices() []Service {
	all := make([]*source, 0, len(r.claims.sources))
	r.each(func(s *source) {
		if s.selects {
			all = append(all, s)
		}
	})
	slices.SortFunc(all, func(x, y *source) int { return x.id.Compare(y.id) }) // pointers are cheaper to move than rows
	rows := make([]Service, len(all))
	for i, s := range all {
		rows[i] = s.row(r.frame)
	}
	return rows
}

// planPrefixes plans the prefixes of pods and those inside the cluster. A stray endpoint does not count as inside: other
// pods' packets to its address would leave by the default network.
func (r *pass) planPrefixes(d *DataPlane) {
	g := r.ground
	another := r.former == nil || r.former.ground != g
	whole := r.fromScratch || another
	e := r.prefixEdits(whole)
	r.editSecondary(&e, whole)
	var differs bool
	if r.outside, differs = e.outside.to(r.outside, whole); differs || another {
		d.Pods = merged(g.pods, r.outside.Slice())
	}
	if r.within, differs = e.within.to(r.within, whole); differs || another {
		d.Cluster = merged(g.cluster, r.within.Slice())
	}
}

// prefixEdits holds the changes to the single addresses that sources add to the ground's prefixes: of pods outside of
// all ranges, and within the cluster.
type prefixEdits struct {
	ground          *ground
	outside, within edit[Prefix]
}

// prefixEdits returns the addresses of all sources if whole, else the changes to them.
func (r *pass) prefixEdits(whole bool) prefixEdits {
	e := prefixEdits{ground: r.ground}
	if whole {
		r.each(e.add)
	} else {
		e.change(r.redone, &r.claims)
	}
	return e
}

// add adds the addresses of a source.
func (e *prefixEdits) add(s *source) {
	for _, a := range s.outside {
		e.outside.put(Prefix{single(a)})
		e.inside(a, !e.ground.stray(a))
	}
	for _, a := range s.clusterIPs {
		e.inside(a, true)
	}
}

// change replaces the former addresses of sources by their present ones.
func (e *prefixEdits) change(redone []*redone, c *claims) {
	for _, one := range redone {
		e.remove(one, c)
		if !slices.Equal(one.outside, one.was.outside) || !slices.Equal(one.clusterIPs, one.was.clusterIPs) {
			e.add(one.source)
		}
	}
}

// remove removes the addresses that a source no longer has, except for ClusterIPs of other sources.
func (e *prefixEdits) remove(one *redone, c *claims) {
	for _, a := range one.was.outside {
		if _, still := slices.BinarySearchFunc(one.outside, a, netip.Addr.Compare); !still {
			e.outside.drop(Prefix{single(a)})
			e.within.drop(Prefix{single(a)})
		}
	}
	for _, a := range one.was.clusterIPs {
		if !slices.Contains(one.clusterIPs, a) {
			e.inside(a, slices.ContainsFunc(c.on(a), func(c claim) bool { return c.uses&asClusterIP != 0 }))
		}
	}
}

// inside records whether an address counts as inside the cluster, unless a range of the ground contains it anyway.
func (e *prefixEdits) inside(a netip.Addr, is bool) {
	if p := (Prefix{single(a)}); is && !cluster.Within(e.ground.cluster, a) {
		e.within.put(p)
	} else {
		e.within.drop(p)
	}
}

// editSecondary adds the secondary addresses of other nodes to those inside the cluster: all of them if whole, else those
// that changed sources use.
func (r *pass) editSecondary(e *prefixEdits, whole bool) {
	switch {
	case len(r.ground.secondary) == 0:
	case whole:
		for _, a := range r.ground.secondary {
			e.inside(a, r.staysInside(a))
		}
	default:
		for _, one := range r.redone {
			r.editUsed(e, one.was)
			r.editUsed(e, one.source)
		}
	}
}

// editUsed decides the secondary addresses of other nodes that a source uses, or used before.
func (r *pass) editUsed(e *prefixEdits, s *source) {
	for _, all := range [][]netip.Addr{s.claimed, s.plain, s.clusterIPs, s.outside} {
		for _, a := range all {
			if r.ground.isSecondary(a) {
				e.inside(a, r.staysInside(a))
			}
		}
	}
}

// staysInside reports whether a secondary address of another node is inside the cluster. An ingress IP is not, even if it
// stands on an interface: packets to it that no Service translates are dropped, not sent.
func (r *pass) staysInside(a netip.Addr) bool {
	ingress := false
	for _, c := range r.claims.on(a) {
		if c.uses&asClusterIP != 0 || !r.ground.stray(a) && slices.Contains(c.by.outside, a) {
			return true
		}
		ingress = ingress || c.uses&(asSeat|asPlain) != 0
	}
	return !ingress
}

// planRefuse plans the prefixes that speakers never learn: those inside the cluster, ingress IPs, and nodes' addresses, those in VRFs too.
func (r *pass) planRefuse(before []netip.Prefix, d *DataPlane, touched []netip.Addr) {
	touched = alsoTouched(touched, before, d.Cluster)
	var e edit[Prefix]
	if touched == nil {
		e.set = r.allRefused(d)
	}
	for _, a := range touched {
		r.changeRefused(&e, d, a)
	}
	r.refuse, _ = e.to(r.refuse, touched == nil)
}

// alsoTouched adds the single addresses that the cluster's prefixes gained or lost to the touched ones; nil: any may be touched.
func alsoTouched(touched []netip.Addr, before, now []netip.Prefix) []netip.Addr {
	if touched == nil || sorted.OneSlice(before, now) {
		return touched
	}
	ranges := false
	changedPrefixes(before, now, func(p netip.Prefix) {
		ranges = ranges || !p.IsSingleIP()
		touched = append(touched, p.Addr())
	})
	if ranges {
		return nil
	}
	return touched
}

// allRefused lists the prefixes that speakers never learn.
func (r *pass) allRefused(d *DataPlane) (set []Prefix) {
	all := slices.Clone(d.Cluster)
	for a := range r.ground.nodeIPs {
		all = append(all, single(a))
	}
	for in := range d.Ingress.All() {
		all = append(all, single(in.Addr))
	}
	for _, p := range minimal(all) {
		set = append(set, Prefix{p})
	}
	return set
}

// changeRefused adds or removes the prefix of a single address.
func (r *pass) changeRefused(e *edit[Prefix], d *DataPlane, a netip.Addr) {
	p := Prefix{single(a)}
	switch _, had := r.refuse.Get(p); {
	case r.refuses(d, a) == had:
	case had:
		e.drop(p)
	default:
		e.put(p)
	}
}

// refuses reports whether speakers never learn the prefix of a single address: one of the cluster's, or an ingress IP or an address of a
// node outside of these.
func (r *pass) refuses(d *DataPlane, a netip.Addr) bool {
	if holds(d.Cluster, a) {
		return true
	}
	_, ingress := d.Ingress.Get(IngressIP{Addr: a})
	return (ingress || r.ground.nodeIPs[a] != "") && !cluster.Within(d.Cluster, a)
}

// changedPrefixes calls visit for each prefix that only one of two sorted slices has.
func changedPrefixes(x, y []netip.Prefix, visit func(netip.Prefix)) {
	for len(x) > 0 || len(y) > 0 {
		switch {
		case len(y) == 0 || len(x) > 0 && comparePrefix(x[0], y[0]) < 0:
			visit(x[0])
			x = x[1:]
		case len(x) == 0 || comparePrefix(x[0], y[0]) > 0:
			visit(y[0])
			y = y[1:]
		default:
			x, y = x[1:], y[1:]
		}
	}
}

// planAnnouncements adds Announce and Refuse to each speaker. A node that leaves announces nothing, and in networks in
// which announcements are held down neither does any other.
func (r *pass) planAnnouncements(next *NodePlan) {
	next.Speakers, next.Leaving, next.HeldDown = slices.Clone(r.frame.speakers), r.Leaving, nil
	for i := range next.Speakers {
		s := &next.Speakers[i]
		s.Refuse = r.refuse
		switch {
		case slices.Contains(r.HeldDown, s.Network):
			next.HeldDown = append(next.HeldDown, s.Network)
		case !r.Leaving:
			s.Announce = r.announce[s.Network]
		}
	}
}

// found is a problem as an element of a list.
type found cluster.Problem

// Compare orders problems by kind, object and field.
func (f found) Compare(o found) int {
	return cmp.Or(cmp.Compare(f.Kind, o.Kind), cmp.Compare(f.Object, o.Object), cmp.Compare(f.Field, o.Field),
		cmp.Compare(f.Value, o.Value), cmp.Compare(f.Reason, o.Reason), cmp.Compare(f.Message, o.Message), cmp.Compare(f.Where, o.Where),
		cmp.Compare(f.More, o.More))
}

// Equal reports whether two problems are the same.
func (f found) Equal(o found) bool { return f == o }

// planProblems lists the problems of all objects.
func (r *pass) planProblems() {
	differs := r.changeFound()
	general := sortedProblems(slices.Concat(r.ground.problems, r.frame.problems, r.frame.needRoutes(&r.sending).problems,
		r.frame.unserved(r.claims.sources).problems, r.unresolved, r.unranged))
	if !differs && slices.Equal(general, r.general) && r.Planner.plan != nil {
		return
	}
	r.general = general
	if all := mergeProblems(r.Planner.found, general); !slices.Equal(r.problems, all) {
		r.problems = slices.Clip(all)
	}
}

// changeFound updates the problems of sources, and reports whether they differ.
func (r *pass) changeFound() (differs bool) {
	var e edit[found]
	for _, one := range r.redone {
		if !slices.Equal(one.problems, one.was.problems) {
			replaceFound(&e, one.was.problems, one.problems)
		}
	}
	r.Planner.found, differs = e.to(r.Planner.found, r.fromScratch)
	return differs
}

// replaceFound replaces the former problems of a source by its present ones.
func replaceFound(e *edit[found], was, now []cluster.Problem) {
	for _, p := range was {
		e.drop(found(p))
	}
	for _, p := range now {
		e.put(found(p))
	}
}

// mergeProblems merges the problems of sources and sorted others; nil: there are none.
func mergeProblems(ofSources sorted.List[found], general []cluster.Problem) []cluster.Problem {
	all := make([]cluster.Problem, 0, ofSources.Len()+len(general))
	for f := range ofSources.All() {
		for len(general) > 0 && found(general[0]).Compare(f) < 0 {
			all, general = append(all, general[0]), general[1:]
		}
		all = append(all, cluster.Problem(f))
	}
	all = slices.Compact(append(all, general...))
	if len(all) == 0 {
		return nil
	}
	return all
}

func sortedProblems(all []cluster.Problem) []cluster.Problem {
	slices.SortFunc(all, func(x, y cluster.Problem) int { return found(x).Compare(found(y)) })
	return all
}
