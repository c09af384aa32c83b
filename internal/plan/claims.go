package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/sorted"
)

// uses is the set of uses that a source claims an address for.
type uses uint8

const (
	asClusterIP uses = 1 << iota
	asSeat           // an address that it announces: an ingress IP
	asEndpoint       // an address of a member
	asPlain          // an ingress IP of a Service without an EgressService
	useBits     = iota
)

// claim records the uses for which one source claims an address.
type claim struct {
	by   *source
	uses uses
}

// claims holds the claims of all sources, by address. The outcome for an address depends only on the claims on it: the
// claim of the highest rank wins. Nearly all addresses have one claim.
type claims struct {
	ground  *ground
	homes   homes
	sources []*source // by number; nil: free
	free    []uint32
	// sole holds the number of the only source that claims an address, and the only use of that claim; 0: see several.
	sole    map[[16]byte]uint32
	several map[netip.Addr][]claim
	// before holds the verdicts on disputed addresses from before the current change.
	before map[netip.Addr]verdict
	// judged caches verdicts since the last change of claims: an address may have many claims, and each of them needs the
	// verdict.
	judged map[netip.Addr]verdict
	quiet  bool // disputes are not recorded, because all sources are read again anyway
}

func newClaims(addresses int) claims {
	return claims{
		sole: make(map[[16]byte]uint32, addresses), several: map[netip.Addr][]claim{},
		before: map[netip.Addr]verdict{}, judged: map[netip.Addr]verdict{},
	}
}

// admit gives a source a number.
func (c *claims) admit(s *source) {
	if n := len(c.free); n > 0 {
		s.number, c.free = c.free[n-1], c.free[:n-1]
		c.sources[s.number] = s
		return
	}
	s.number = uint32(len(c.sources))
	c.sources = append(c.sources, s)
}

// dismiss frees the number of a source that has no claims left.
func (c *claims) dismiss(s *source) {
	c.sources[s.number] = nil
	c.free = append(c.free, s.number)
}

// add adds a claim. A source claims an address at most once per use.
func (c *claims) add(a netip.Addr, s *source, as uses) {
	spot := a.As16()
	had, claimed := c.sole[spot]
	if !claimed {
		c.sole[spot] = s.number<<useBits | uint32(as)
		return
	}
	c.note(a)
	if had != 0 {
		first := claim{c.sources[had>>useBits], uses(had & (1<<useBits - 1))}
		first.by.disputes++
		c.several[a] = []claim{first}
		c.sole[spot] = 0
	}
	all := c.several[a]
	if i := slices.IndexFunc(all, func(o claim) bool { return o.by == s }); i >= 0 {
		all[i].uses |= as
		return
	}
	s.disputes++
	c.several[a] = append(all, claim{s, as})
}

// remove removes a claim that was added.
func (c *claims) remove(a netip.Addr, s *source, as uses) {
	spot := a.As16()
	if c.sole[spot] != 0 {
		delete(c.sole, spot)
		return
	}
	c.note(a)
	all := c.several[a]
	i := slices.IndexFunc(all, func(o claim) bool { return o.by == s })
	if all[i].uses &^= as; all[i].uses == 0 {
		all = slices.Delete(all, i, i+1)
		c.several[a] = all
		s.disputes--
	}
	if last := all[0]; len(all) == 1 && last.uses&(last.uses-1) == 0 {
		last.by.disputes--
		delete(c.several, a)
		c.sole[spot] = last.by.number<<useBits | uint32(last.uses)
	}
}

// on lists the claims on an address, the higher rank first.
func (c *claims) on(a netip.Addr) []claim {
	switch v, claimed := c.sole[a.As16()]; {
	case !claimed:
		return nil
	case v != 0:
		return []claim{{c.sources[v>>useBits], uses(v & (1<<useBits - 1))}}
	}
	all := c.several[a]
	slices.SortFunc(all, func(x, y claim) int { return x.by.before(y.by) })
	return all
}

// verdict names the sources that win an address.
type verdict struct {
	clusterIP    bool
	cluster      cluster.Key // the Service whose ClusterIP it is
	plain        rank        // the first Service without an EgressService whose ingress IP it is
	seat         rank        // the first source that serves it as a seat
	network      string      // of seat
	owner        rank        // the source whose endpoint it is
	barred, peer bool        // it can be no ingress IP (barred), no endpoint (peer)
}

// rank orders sources that claim the same address: by kind first. Of one kind, sources that are able to serve come before
// those that are not. Among the able, the source that has been able for longer comes first, so that an address in use keeps
// its source; then the older source. Among EgressIPs, the older comes first in any case. A rank derives from
// the objects and hosts of a snapshot only, so that every node, and a daemon that starts, sorts sources alike (docs/decisions/0040).
type rank struct {
	id             cluster.ID
	is             bool // false: there is no such source
	able           bool
	since, created int64 // in seconds
	sharing        string
}

// compare is negative where r comes before another rank.
func (r rank) compare(o rank) int {
	switch {
	case r.id.Kind != o.id.Kind:
		return cmp.Compare(r.id.Kind, o.id.Kind)
	case r.able && !o.able:
		return -1
	case o.able && !r.able:
		return 1
	case r.able && r.since != o.since:
		return cmp.Compare(r.since, o.since)
	}
	return cmp.Or(cmp.Compare(r.created, o.created), r.id.Compare(o.id))
}

// over reports whether the rank belongs to another source and comes before s.
func (r rank) over(s *source) bool { return r.is && r.compare(s.rank()) < 0 }

// bars reports whether the rank's source keeps s from having the same ingress IP.
func (r rank) bars(s *source) bool { return r.over(s) && !r.shares(s) }

// shares reports whether s may share an ingress IP with the rank's source.
func (r rank) shares(s *source) bool { return cluster.Shares(r.id.Key, r.sharing, s.id.Key, s.sharing) }

func (s *source) rank() rank {
	if s.id.Kind == cluster.KindEgressIP { // the oldest, whether it can serve or not
		return rank{id: s.id, is: true, created: s.created.Unix()}
	}
	return rank{s.id, true, s.able, s.since.Unix(), s.created.Unix(), s.sharing}
}

// before is negative where the source comes before another.
func (s *source) before(o *source) int { return s.rank().compare(o.rank()) }

// verdict returns the result of judge, which it caches while no claim changes.
func (c *claims) verdict(a netip.Addr) verdict {
	v, judged := c.judged[a]
	if !judged {
		v = c.judge(a)
		c.judged[a] = v
	}
	return v
}

// verdictFor returns the verdict on an address that a source claims. It is zero if that is the only claim, which wins.
func (c *claims) verdictFor(s *source, a netip.Addr) verdict {
	if s.disputes == 0 || c.several[a] == nil {
		return verdict{}
	}
	return c.verdict(a)
}

// judge decides an address that several sources claim, or one source for several uses.
func (c *claims) judge(a netip.Addr) (v verdict) {
	_, v.peer = c.ground.peers[a]
	v.barred = cluster.Within(c.ground.inside, a)
	all := c.on(a)
	if v.clusterIP, v.cluster = clusterIPIn(all); v.clusterIP {
		return v
	}
	for _, o := range all {
		v.weigh(c, a, o)
	}
	return v
}

// weigh adds the uses that a claim wins beside the claims of higher rank.
func (v *verdict) weigh(c *claims, a netip.Addr, o claim) {
	if o.uses&asPlain != 0 && !v.plain.is {
		v.plain = o.by.rank()
	}
	if o.uses&asSeat != 0 && v.admitsSeat(o.by) {
		v.seat, v.network = o.by.rank(), o.by.network.name
	}
	if o.uses&asEndpoint != 0 && v.admitsEndpoint() && !c.strange(o.by, a).is {
		v.owner = o.by.rank()
	}
}

// clusterIPIn returns the first Service, by key, that claims an address as its ClusterIP; false: none does.
func clusterIPIn(all []claim) (is bool, service cluster.Key) {
	for _, o := range all {
		if o.uses&asClusterIP != 0 && (!is || o.by.id.Key.Compare(service) < 0) {
			is, service = true, o.by.id.Key
		}
	}
	return is, service
}

// admitsSeat reports whether a source may serve the address as an ingress IP beside the claims judged before.
func (v *verdict) admitsSeat(s *source) bool {
	return !v.barred && !v.owner.is && !v.seat.is && s.network != nil && (!v.plain.is || v.plain.shares(s))
}

// admitsEndpoint reports whether the address may be an endpoint beside the claims judged before.
func (v *verdict) admitsEndpoint() bool { return !v.peer && !v.seat.is && !v.owner.is }

// strange returns the Pod that has an address, where that Pod may not be a member of a source.
func (c *claims) strange(s *source, a netip.Addr) stranger {
	return kinds[s.id.Kind].strange(&c.homes, s.id.Key, a)
}

// note records the verdict on an address before its claims change.
func (c *claims) note(a netip.Addr) {
	if c.quiet {
		return
	}
	if _, noted := c.before[a]; !noted {
		c.before[a] = c.judge(a)
	}
}

// noteAll records the verdicts on all disputed addresses of a source, before the source itself changes.
func (c *claims) noteAll(s *source) {
	if c.quiet || s.disputes == 0 {
		return
	}
	for _, all := range [...][]netip.Addr{s.clusterIPs, s.claimed, s.lost, s.plain} {
		for _, a := range all {
			c.noteDisputed(a)
		}
	}
	for _, e := range s.members {
		c.noteDisputed(e.addr)
	}
}

// noteDisputed records the verdict on an address if several sources claim it, or one for several uses.
func (c *claims) noteDisputed(a netip.Addr) {
	if c.several[a] != nil {
		c.note(a)
	}
}

// claim replaces the former claims of a source by its present ones.
func (r *redone) claim(c *claims) {
	s, was := r.source, r.was
	s.claimed, s.plain = r.seatClaims(c.ground)
	s.able = r.isAble(c.ground)
	c.change(s, was.clusterIPs, s.clusterIPs, asClusterIP)
	c.change(s, was.claimed, s.claimed, asSeat)
	c.change(s, was.plain, s.plain, asPlain)
	differences(was.claimedMembers(), r.candidates, func(x, y *endpoint) {
		switch {
		case y == nil:
			c.remove(x.addr, s, asEndpoint)
		case x == nil:
			c.add(y.addr, s, asEndpoint)
		}
	})
}

// change replaces the claims of a source for one use.
func (c *claims) change(s *source, was, now []netip.Addr, as uses) {
	for _, a := range was {
		if !slices.Contains(now, a) {
			c.remove(a, s, as)
		}
	}
	for _, a := range now {
		if !slices.Contains(was, a) {
			c.add(a, s, as)
		}
	}
}

// claimedMembers lists the members that a source claims, won or not, sorted.
func (s *source) claimedMembers() []endpoint {
	if len(s.lost) == 0 {
		return s.members
	}
	all := slices.Clone(s.members)
	for _, a := range s.lost {
		all = append(all, endpoint{addr: a})
	}
	slices.SortFunc(all, endpoint.compare)
	return all
}

// fit drops addresses that no source publishes (invalid, IPv4-mapped, with a zone) and duplicates.
func fit(all []netip.Addr) []netip.Addr {
	for i, a := range all {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || slices.Contains(all[:i], a) {
			rest := slices.DeleteFunc(slices.Clone(all[i+1:]), func(o netip.Addr) bool { return o == a || slices.Contains(all[:i], o) })
			return slices.Concat(all[:i], fit(rest))
		}
	}
	return all
}

// differences calls visit for each address of two sorted lists. The argument of a list that lacks the address is nil.
func differences(before, now []endpoint, visit func(x, y *endpoint)) {
	for len(before) > 0 || len(now) > 0 {
		switch order := compareFirst(before, now); {
		case order < 0:
			visit(&before[0], nil)
			before = before[1:]
		case order > 0:
			visit(nil, &now[0])
			now = now[1:]
		default:
			visit(&before[0], &now[0])
			before, now = before[1:], now[1:]
		}
	}
}

// compareFirst compares the first elements of two lists. An empty list comes last.
func compareFirst(x, y []endpoint) int {
	switch {
	case len(x) == 0:
		return 1
	case len(y) == 0:
		return -1
	}
	return x[0].compare(y[0])
}

// planIngress plans the ingress IPs and their announcements. It returns the addresses that may have become ingress IPs or
// stopped being ingress IPs; nil: any may have.
func (r *pass) planIngress(d *DataPlane) (touched []netip.Addr) {
	whole := r.whole()
	e := ingressEdits{whole: whole, announce: map[string]*edit[Announcement]{}, seen: map[netip.Addr]bool{}, touched: []netip.Addr{}}
	if r.announce == nil {
		r.announce = map[string]sorted.List[Announcement]{}
	}
	e.lookAll(r, d)
	d.Ingress, _ = e.ips.to(d.Ingress, whole)
	d.OnLink, _ = e.onLink.to(d.OnLink, whole)
	for name, e := range e.announce {
		r.announce[name], _ = e.to(r.announce[name], whole)
	}
	if whole {
		return nil
	}
	return e.touched
}

// ingressEdits holds the changes to the ingress IPs, and to their announcements by network. If whole, they set all of them.
type ingressEdits struct {
	whole    bool
	ips      edit[IngressIP]
	onLink   edit[OnLink]
	announce map[string]*edit[Announcement]
	seen     map[netip.Addr]bool
	touched  []netip.Addr // those seen, in order
}

// lookAll plans the seats of all sources if whole, else the former and the present seats of those that changed.
func (e *ingressEdits) lookAll(r *pass, d *DataPlane) {
	if !e.whole {
		for _, one := range r.redone {
			e.look(r, d, one.was.seats)
			e.look(r, d, one.seats)
		}
		return
	}
	r.each(func(s *source) { e.look(r, d, s.seats) })
	for name := range r.announce {
		e.announcements(name) // it may have no announcements now
	}
}

// look plans each address that it did not see before as an ingress IP or none, and announces or withdraws it.
func (e *ingressEdits) look(r *pass, d *DataPlane, all []netip.Addr) {
	for _, a := range all {
		if e.seen[a] {
			continue
		}
		e.seen[a] = true
		e.touched = append(e.touched, a)
		in, as, network, device := r.ingressAt(a)
		e.setIngress(d, a, in)
		e.setOnLink(d, OnLink{a, device})
		if as.Prefix.IsValid() {
			e.announceOnly(r.announce, as, network.name)
		} else {
			e.withdraw(r.announce, a, "")
		}
	}
}

// setIngress plans an ingress IP; none if in is zero.
func (e *ingressEdits) setIngress(d *DataPlane, a netip.Addr, in IngressIP) {
	had, known := d.Ingress.Get(IngressIP{Addr: a})
	switch is := in.Addr.IsValid(); {
	case is && (e.whole || !known || had != in):
		e.ips.put(in)
	case !is && known:
		e.ips.drop(had)
	}
}

// setOnLink plans an address for which this node answers on a device; without a device it does not answer.
func (e *ingressEdits) setOnLink(d *DataPlane, is OnLink) {
	had, known := d.OnLink.Get(is)
	switch {
	case is.Device != "" && (e.whole || !known || had != is):
		e.onLink.put(is)
	case is.Device == "" && known:
		e.onLink.drop(had)
	}
}

// announceOnly makes an announcement in one network, and in no other.
func (e *ingressEdits) announceOnly(announced map[string]sorted.List[Announcement], as Announcement, network string) {
	e.withdraw(announced, as.Prefix.Addr(), network)
	e.announcements(network).put(as)
}

// withdraw removes the announcements of an address in all networks except one. If whole, those planned are the only ones anyway.
func (e *ingressEdits) withdraw(announced map[string]sorted.List[Announcement], a netip.Addr, except string) {
	if e.whole {
		return
	}
	for name, list := range announced {
		if name == except {
			continue
		}
		if had, ok := list.Get(Announcement{Prefix: single(a)}); ok {
			e.announcements(name).drop(had)
		}
	}
}

// announcements returns the changes to the announcements in a network.
func (e *ingressEdits) announcements(network string) *edit[Announcement] {
	of := e.announce[network]
	if of == nil {
		of = &edit[Announcement]{}
		e.announce[network] = of
	}
	return of
}

// ingressAt plans an ingress IP, which several sources of one network may share, and its announcement, which is zero if
// it is not announced. device is where this node answers for it. Without a network, the address is no ingress IP.
func (r *pass) ingressAt(a netip.Addr) (in IngressIP, as Announcement, of *network, device string) {
	for _, c := range r.claims.on(a) { // the last one's path counts
		if !c.serves(a) {
			continue
		}
		face := r.frame.faceOf(c.by)
		of, in.Addr, device = c.by.network, a, cmp.Or(face.onLink, device)
		in.add(&face)
		as.add(&face, a)
	}
	return in, as, of, device
}

// serves reports whether the claim's source has the address as a seat, in a network.
func (c *claim) serves(a netip.Addr) bool {
	return c.uses&asSeat != 0 && c.by.network != nil && slices.Contains(c.by.seats, a)
}

// add adds the face of one of the sources that share the address.
func (i *IngressIP) add(f *face) {
	i.Path = f.path
	i.Counted = i.Counted || f.counted
	if stray := f.strays[familyOf(i.Addr)]; stray != 0 {
		i.Stray, i.Via = stray, f.via
		i.Resumed = i.Resumed || f.resumed
		i.Handed = i.Handed || f.handed
	}
}

// add adds the announcement by one of the sources that share an ingress IP: the preferred one counts.
func (a *Announcement) add(f *face, ingress netip.Addr) {
	if f.announced && (!a.Prefix.IsValid() || a.worseThan(f.as)) {
		*a = f.as
		a.Prefix = single(ingress)
	}
}

// worseThan reports whether o is preferred, where Services share an ingress IP and announce it differently.
func (a Announcement) worseThan(o Announcement) bool {
	switch {
	case a.Standby != o.Standby:
		return a.Standby
	case a.Shutdown != o.Shutdown:
		return a.Shutdown
	}
	return o.Term > a.Term
}
