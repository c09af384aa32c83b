package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
)

// kinds is the set of uses that a Service claims an address for.
type kinds uint8

const (
	asClusterIP kinds = 1 << iota
	asIngress
	asEndpoint
	asPlain  // an ingress IP of a Service without an EgressService
	kindBits = iota
)

// claim records the uses for which one Service claims an address.
type claim struct {
	by    *service
	kinds kinds
}

// claims holds the claims of all Services, by address. The outcome for an address depends only on the claims on it: the
// claim of the highest rank wins. Nearly all addresses have one claim.
type claims struct {
	ground   *ground
	homes    homes
	services []*service // by id; nil: free
	free     []uint32
	// sole holds the id of the only service that claims an address, and the only kind of that claim; 0: see several.
	sole    map[[16]byte]uint32
	several map[netip.Addr][]claim
	// before holds the verdicts on disputed addresses from before the current change.
	before map[netip.Addr]verdict
	// judged caches verdicts since the last change of claims: an address may have many claims, and each of them needs the
	// verdict.
	judged map[netip.Addr]verdict
	quiet  bool // disputes are not recorded, because all services are read again anyway
}

func newClaims(addresses int) claims {
	return claims{
		sole: make(map[[16]byte]uint32, addresses), several: map[netip.Addr][]claim{},
		before: map[netip.Addr]verdict{}, judged: map[netip.Addr]verdict{},
	}
}

// admit gives a service an id.
func (c *claims) admit(s *service) {
	if n := len(c.free); n > 0 {
		s.id, c.free = c.free[n-1], c.free[:n-1]
		c.services[s.id] = s
		return
	}
	s.id = uint32(len(c.services))
	c.services = append(c.services, s)
}

// dismiss frees the id of a service that has no claims left.
func (c *claims) dismiss(s *service) {
	c.services[s.id] = nil
	c.free = append(c.free, s.id)
}

// add adds a claim. A service claims an address at most once per kind.
func (c *claims) add(a netip.Addr, s *service, k kinds) {
	spot := a.As16()
	had, claimed := c.sole[spot]
	if !claimed {
		c.sole[spot] = s.id<<kindBits | uint32(k)
		return
	}
	c.note(a)
	if had != 0 {
		first := claim{c.services[had>>kindBits], kinds(had & (1<<kindBits - 1))}
		first.by.disputes++
		c.several[a] = []claim{first}
		c.sole[spot] = 0
	}
	all := c.several[a]
	if i := slices.IndexFunc(all, func(o claim) bool { return o.by == s }); i >= 0 {
		all[i].kinds |= k
		return
	}
	s.disputes++
	c.several[a] = append(all, claim{s, k})
}

// remove removes a claim that was added.
func (c *claims) remove(a netip.Addr, s *service, k kinds) {
	spot := a.As16()
	if c.sole[spot] != 0 {
		delete(c.sole, spot)
		return
	}
	c.note(a)
	all := c.several[a]
	i := slices.IndexFunc(all, func(o claim) bool { return o.by == s })
	if all[i].kinds &^= k; all[i].kinds == 0 {
		all = slices.Delete(all, i, i+1)
		c.several[a] = all
		s.disputes--
	}
	if last := all[0]; len(all) == 1 && last.kinds&(last.kinds-1) == 0 {
		last.by.disputes--
		delete(c.several, a)
		c.sole[spot] = last.by.id<<kindBits | uint32(last.kinds)
	}
}

// on lists the claims on an address, the higher rank first.
func (c *claims) on(a netip.Addr) []claim {
	switch v, claimed := c.sole[a.As16()]; {
	case !claimed:
		return nil
	case v != 0:
		return []claim{{c.services[v>>kindBits], kinds(v & (1<<kindBits - 1))}}
	}
	all := c.several[a]
	slices.SortFunc(all, func(x, y claim) int { return x.by.before(y.by) })
	return all
}

// verdict names the services that win an address.
type verdict struct {
	clusterIP    bool
	cluster      cluster.Key // the Service whose ClusterIP it is
	plain        rank        // the first Service without an EgressService whose ingress IP it is
	ingress      rank        // the first service that serves it as an ingress IP
	network      string      // of ingress
	owner        rank        // the service whose endpoint it is
	barred, peer bool        // it can be no ingress IP (barred), no endpoint (peer)
}

// rank orders services that claim the same address. Services that are able to serve come before those that are not. Among
// the able, the service that has been able for longer comes first, so that an address in use keeps its service; then the
// older service. A rank derives from the objects and hosts of a snapshot only, so that every node, and a daemon that
// starts, sorts services alike (docs/decisions/0040).
type rank struct {
	key            cluster.Key
	is             bool // false: there is no such service
	able           bool
	since, created int64 // in seconds
	sharing        string
}

// compare is negative where r comes before another rank.
func (r rank) compare(o rank) int {
	if r.able != o.able {
		if r.able {
			return -1
		}
		return 1
	}
	if r.able {
		if c := cmp.Compare(r.since, o.since); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(r.created, o.created), r.key.Compare(o.key))
}

// over reports whether the rank belongs to another service and comes before s.
func (r rank) over(s *service) bool { return r.is && r.compare(s.rank()) < 0 }

// shares reports whether s may share an ingress IP with the rank's service.
func (r rank) shares(s *service) bool { return cluster.Shares(r.key, r.sharing, s.key, s.sharing) }

func (s *service) rank() rank {
	return rank{s.key, true, s.able, s.since.Unix(), s.created.Unix(), s.sharing}
}

// before is negative where the service comes before another.
func (s *service) before(o *service) int { return s.rank().compare(o.rank()) }

// verdict returns the result of judge, which it caches while no claim changes.
func (c *claims) verdict(a netip.Addr) verdict {
	v, judged := c.judged[a]
	if !judged {
		v = c.judge(a)
		c.judged[a] = v
	}
	return v
}

// judge decides an address that several services claim, or one service for several kinds.
func (c *claims) judge(a netip.Addr) (v verdict) {
	_, v.peer = c.ground.peers[a]
	v.barred = within(c.ground.inside, a)
	all := c.on(a)
	for _, o := range all {
		if o.kinds&asClusterIP != 0 && (!v.clusterIP || o.by.key.Compare(v.cluster) < 0) {
			v.clusterIP, v.cluster = true, o.by.key
		}
	}
	if v.clusterIP {
		return v
	}
	for _, o := range all {
		if o.kinds&asPlain != 0 && !v.plain.is {
			v.plain = o.by.rank()
		}
		if o.kinds&asIngress != 0 && v.admitsIngress(o.by) {
			v.ingress, v.network = o.by.rank(), o.by.network.name
		}
		if o.kinds&asEndpoint != 0 && v.admitsEndpoint() && !c.homes.strange(a, o.by.key.Namespace).is {
			v.owner = o.by.rank()
		}
	}
	return v
}

// admitsIngress reports whether a service may serve the address as an ingress IP beside the claims judged before.
func (v *verdict) admitsIngress(s *service) bool {
	return !v.barred && !v.owner.is && !v.ingress.is && s.network != nil && (!v.plain.is || v.plain.shares(s))
}

// admitsEndpoint reports whether the address may be an endpoint beside the claims judged before.
func (v *verdict) admitsEndpoint() bool { return !v.peer && !v.ingress.is && !v.owner.is }

// note records the verdict on an address before its claims change.
func (c *claims) note(a netip.Addr) {
	if c.quiet {
		return
	}
	if _, noted := c.before[a]; !noted {
		c.before[a] = c.judge(a)
	}
}

// noteAll records the verdicts on all disputed addresses of a service, before the service itself changes.
func (c *claims) noteAll(s *service) {
	if c.quiet || s.disputes == 0 {
		return
	}
	note := func(a netip.Addr) {
		if c.several[a] != nil {
			c.note(a)
		}
	}
	for _, a := range s.clusterIPs {
		note(a)
	}
	for _, a := range s.addresses {
		note(a)
	}
	for _, e := range s.endpoints {
		note(e.addr)
	}
	for _, a := range s.lost {
		note(a)
	}
	for _, a := range s.plain {
		note(a)
	}
}

// claim replaces the former claims of a service by its present ones.
func (r *redone) claim(c *claims) {
	s, was := r.service, r.was
	s.clusterIPs = fit(r.spec.ClusterIPs)
	s.addresses, s.plain = r.ingressClaims(c.ground)
	s.able = r.isAble(c.ground)
	change := func(was, now []netip.Addr, k kinds) {
		for _, a := range was {
			if !slices.Contains(now, a) {
				c.remove(a, s, k)
			}
		}
		for _, a := range now {
			if !slices.Contains(was, a) {
				c.add(a, s, k)
			}
		}
	}
	change(was.clusterIPs, s.clusterIPs, asClusterIP)
	change(was.addresses, s.addresses, asIngress)
	change(was.plain, s.plain, asPlain)
	before := was.endpoints
	if len(was.lost) > 0 {
		before = slices.Clone(before)
		for _, a := range was.lost {
			before = append(before, endpoint{addr: a})
		}
		slices.SortFunc(before, endpoint.compare)
	}
	differences(before, r.candidates, func(x, y *endpoint) {
		switch {
		case y == nil:
			c.remove(x.addr, s, asEndpoint)
		case x == nil:
			c.add(y.addr, s, asEndpoint)
		}
	})
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
		order := 0
		switch {
		case len(before) == 0:
			order = 1
		case len(now) == 0:
			order = -1
		default:
			order = before[0].compare(now[0])
		}
		switch {
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
