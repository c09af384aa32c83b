package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
)

// kinds says what Services want an address for.
type kinds uint8

const (
	asClusterIP kinds = 1 << iota
	asIngress
	asEndpoint
	asPlain  // an ingress IP of a Service without an EgressService
	kindBits = iota
)

// claim is what one Service wants of an address.
type claim struct {
	by    *service
	kinds kinds
}

// claims knows who wants which address. What becomes of an address depends on the claims on that address alone, of which
// the one of the highest rank wins. Nearly all addresses have one claim.
type claims struct {
	ground   *ground
	homes    homes
	services []*service // by id; nil: free
	free     []uint32
	// sole holds the id of the only one that wants an address, and its only kind; 0: they are in several.
	sole    map[[16]byte]uint32
	several map[netip.Addr][]claim
	// before is how disputes stood before what changes now.
	before map[netip.Addr]verdict
	// judged is how they stand now, of those that were asked for since claims changed last. An address may have many claims, and
	// each of them asks.
	judged map[netip.Addr]verdict
	quiet  bool // nobody wants to know of disputes: all services are looked at anyway
}

func newClaims(addresses int) claims {
	return claims{sole: make(map[[16]byte]uint32, addresses), several: map[netip.Addr][]claim{}, before: map[netip.Addr]verdict{}, judged: map[netip.Addr]verdict{}}
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

// dismiss takes the id of a service back, which claims nothing any more.
func (c *claims) dismiss(s *service) {
	c.services[s.id] = nil
	c.free = append(c.free, s.id)
}

// add adds a claim. No service claims the same twice.
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

// verdict says who has an address.
type verdict struct {
	clusterIP    bool
	cluster      cluster.Key // the Service whose ClusterIP it is
	plain        rank        // the first Service without an EgressService whose ingress IP it is
	ingress      rank        // the first that serves it as an ingress IP
	network      string      // of that one
	owner        rank        // the one whose endpoint it is
	barred, peer bool        // for ingress IPs, for endpoints: as it is no address for that
}

// rank orders services as they win over one another. One that is able to serve comes before any that is not; of those, the one that has been
// so longer comes first, so that what is in force stays where it is; then the older one. It is all in the objects and hosts of a snapshot,
// so that every node, and a daemon that starts, orders alike (docs/decisions/0040).
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

// over reports whether the rank is another's than the service's, and comes before it.
func (r rank) over(s *service) bool { return r.is && r.compare(s.rank()) < 0 }

// shares reports whether a service may have the ingress IP that the rank's has.
func (r rank) shares(s *service) bool { return cluster.Shares(r.key, r.sharing, s.key, s.sharing) }

func (s *service) rank() rank {
	return rank{s.key, true, s.able, s.since.Unix(), s.created.Unix(), s.sharing}
}

// before is negative where the service comes before another.
func (s *service) before(o *service) int { return s.rank().compare(o.rank()) }

// verdict is what judge says, which is asked once of each address while no claim changes.
func (c *claims) verdict(a netip.Addr) verdict {
	v, judged := c.judged[a]
	if !judged {
		v = c.judge(a)
		c.judged[a] = v
	}
	return v
}

// judge says who has an address that services dispute, or one has for several things.
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
		if o.kinds&asIngress != 0 && !v.barred && !v.owner.is && !v.ingress.is && o.by.network != nil && (!v.plain.is || v.plain.shares(o.by)) {
			v.ingress, v.network = o.by.rank(), o.by.network.name
		}
		if o.kinds&asEndpoint != 0 && !v.peer && !v.ingress.is && !v.owner.is && !c.homes.strange(a, o.by.key.Namespace).is {
			v.owner = o.by.rank()
		}
	}
	return v
}

// note remembers how things stand about an address before they change.
func (c *claims) note(a netip.Addr) {
	if c.quiet {
		return
	}
	if _, noted := c.before[a]; !noted {
		c.before[a] = c.judge(a)
	}
}

// noteAll notes everything that a service disputes with others, before the service itself changes.
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

// claim changes what a service claims from what it did to what it does.
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

// fit leaves out what no source hands out, and what is there twice.
func fit(all []netip.Addr) []netip.Addr {
	for i, a := range all {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || slices.Contains(all[:i], a) {
			rest := slices.DeleteFunc(slices.Clone(all[i+1:]), func(o netip.Addr) bool { return o == a || slices.Contains(all[:i], o) })
			return slices.Concat(all[:i], fit(rest))
		}
	}
	return all
}

// differences goes through two sorted lists and tells what only one of them has, where the other is nil, and what both have.
func differences(before, now []endpoint, tell func(x, y *endpoint)) {
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
			tell(&before[0], nil)
			before = before[1:]
		case order > 0:
			tell(nil, &now[0])
			now = now[1:]
		default:
			tell(&before[0], &now[0])
			before, now = before[1:], now[1:]
		}
	}
}
