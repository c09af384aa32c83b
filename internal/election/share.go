package election

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
)

// unit is the services that have one host together.
type unit struct {
	members    []*contender // those first that had a host, of these the one that had it longest, of the others the oldest
	candidates []int        // of all of them
	demand     demand       // of all together
	lacks      []lack       // of every node
	host       int
	order      int // the units before it are older
}

// claim is an ingress IP in a network: whoever has it, has it on one node.
type claim struct {
	network string
	addr    netip.Addr
}

// sharing joins contenders that share an ingress IP.
type sharing struct {
	elector *elector
	refuse  func(*contender, *cluster.Problem)
	units   []*unit
	made    int // how many units there have been
	owner   map[claim]holder
	late    []*contender         // those that wait until the units have their hosts
	awaited map[claim]*contender // the first of these that has an ingress IP
}

// holder is who has an ingress IP: the first to have it decides who may share it, and the plan refuses it to all others.
type holder struct {
	*unit
	first *contender
}

// shares reports whether two contenders may have an ingress IP in common.
func (c *contender) shares(o *contender) bool {
	return cluster.Shares(c.key, c.sharing, o.key, o.sharing)
}

// share joins contenders, which come by age, to units with one host each.
//
// Only contenders of one namespace share, and those whose Services have the same sharing key: an ingress IP that another has binds
// nothing.
//
// A newcomer, which by its status has no host, comes to what stands: it moves nobody. It joins those with which it shares
// ingress IPs if all of these have the same host, and it may be there too; else it is refused. The same holds for one that
// would bind older ones together which had no host in common. Newcomers that share with newcomers look for a host
// together; one that no node fits together with those before it is refused.
func (e *elector) share(contenders []*contender, refuse func(*contender, *cluster.Problem)) []*unit {
	s := &sharing{elector: e, refuse: refuse, owner: map[claim]holder{}, awaited: map[claim]*contender{}}
	contenders = slices.Clone(contenders)
	slices.SortStableFunc(contenders, func(x, y *contender) int { return x.since.Compare(y.since) })
	for _, stands := range []bool{true, false} {
		for _, c := range contenders {
			if c.hadHost() == stands {
				s.sort(c)
			}
		}
	}
	for _, u := range s.units {
		u.lacks = e.lacksFor(u.demand)
		if u.host = e.current(u); u.host != none {
			e.load[u.host] += len(u.members)
		}
	}
	for _, u := range s.units {
		if u.host == none {
			e.settle(u)
		}
	}
	for _, c := range s.late {
		s.come(c)
	}
	return s.units
}

// hadHost says whether a node is the contender's host by its status.
func (c *contender) hadHost() bool { return c.status.Host != "" && c.status.Host != cluster.AllHosts }

// settle finds a host for a unit that has none.
func (e *elector) settle(u *unit) {
	if u.host = e.successor(u); u.host == none {
		u.host = e.best(u, none, everyLack)
	}
	e.load[u.host] += len(u.members)
}

// sort puts a contender into its unit, or leaves it for later.
func (s *sharing) sort(c *contender) {
	with, waits := s.touched(c)
	together := func(u *unit) bool { return c.hadHost() && u.members[0].status.Host == c.status.Host }
	stands := len(with) > 0 && with[0].members[0].hadHost()
	if waits || stands && !c.hadHost() || len(with) > 1 && !all(with, together) {
		s.late = append(s.late, c)
		for _, a := range c.ingress {
			if k := (claim{c.network, a}); s.awaited[k] == nil {
				s.awaited[k] = c
			}
		}
		return
	}
	candidates := c.candidates
	for _, u := range with {
		candidates = intersect(candidates, u.candidates)
	}
	if len(candidates) == 0 {
		s.refuse(c, noHost(c.key, "", "", cluster.ReasonSharedIngressHost, "no node fits both it and %s", s.sharers(c, with)))
		return
	}
	s.join(c, with, candidates)
}

// come joins one that waited to units that have their hosts by now.
func (s *sharing) come(c *contender) {
	with, _ := s.touched(c)
	if len(with) == 0 {
		u := s.join(c, nil, c.candidates)
		u.lacks = s.elector.lacksFor(u.demand)
		if u.host = s.elector.current(u); u.host == none {
			s.elector.settle(u)
		} else {
			s.elector.load[u.host]++
		}
		return
	}
	host := with[0].host
	candidates := c.candidates
	for _, u := range with {
		candidates = intersect(candidates, u.candidates)
	}
	_, fits := slices.BinarySearch(candidates, host)
	switch {
	case !all(with, func(u *unit) bool { return u.host == host }):
		s.refuse(c, noHost(c.key, "", "", cluster.ReasonSharedIngressHost,
			"it would need the host of all with which it shares ingress IPs, and these have several, which they keep: %s", s.sharers(c, with)))
	case !fits:
		s.refuse(c, noHost(c.key, "", "", cluster.ReasonSharedIngressHost,
			"the host may not be its own, and stays that of %s", s.sharers(c, with)))
	default:
		u := s.join(c, with, candidates)
		u.lacks = s.elector.lacksFor(u.demand)
		s.elector.load[host]++
	}
}

// touched lists the units that have ingress IPs of the contender, the older first; waits says that one that waits has some.
func (s *sharing) touched(c *contender) (with []*unit, waits bool) {
	for _, a := range c.ingress {
		h, taken := s.owner[claim{c.network, a}]
		if taken && h.first.shares(c) && !slices.Contains(with, h.unit) {
			with = append(with, h.unit)
		}
		first := s.awaited[claim{c.network, a}]
		waits = waits || !taken && first != nil && first.shares(c)
	}
	slices.SortFunc(with, func(x, y *unit) int { return cmp.Compare(x.order, y.order) })
	return with, waits
}

// join makes one unit of the contender and the units that it shares with.
func (s *sharing) join(c *contender, with []*unit, candidates []int) *unit {
	if len(with) == 0 {
		s.made++
		s.units = append(s.units, &unit{host: none, order: s.made})
		with = s.units[len(s.units)-1:]
	}
	u := with[0]
	for _, o := range with[1:] {
		u.members = append(u.members, o.members...)
		u.demand.need = u.demand.need.and(o.demand.need)
		s.units = slices.DeleteFunc(s.units, func(x *unit) bool { return x == o })
		for _, m := range o.members {
			s.own(m, u)
		}
	}
	u.members = append(u.members, c)
	u.candidates = candidates
	u.demand = demand{c.network, u.demand.need.and(c.need)}
	s.own(c, u)
	return u
}

func (s *sharing) own(c *contender, u *unit) {
	for _, a := range c.ingress {
		k := claim{c.network, a}
		switch h, taken := s.owner[k]; {
		case !taken:
			s.owner[k] = holder{u, c}
		case h.first.shares(c):
			s.owner[k] = holder{u, h.first}
		}
	}
}

// sharers names, for every unit, one that shares an ingress IP with the contender, the IP, and the host if there is one yet.
func (s *sharing) sharers(c *contender, with []*unit) string {
	var parts []string
	for _, u := range with {
		for _, m := range u.members {
			i := slices.IndexFunc(m.ingress, func(a netip.Addr) bool { return slices.Contains(c.ingress, a) })
			if i < 0 {
				continue
			}
			text := fmt.Sprintf("EgressService %s (%s", m.key, m.ingress[i])
			if u.host != none {
				text += ", host " + s.elector.name(u.host)
			}
			parts = append(parts, text+")")
			break
		}
	}
	return strings.Join(parts, " and ")
}

func all(units []*unit, is func(*unit) bool) bool {
	return !slices.ContainsFunc(units, func(u *unit) bool { return !is(u) })
}

// intersect keeps what two sorted lists have in common.
func intersect(a, b []int) []int {
	var both []int
	for _, i := range a {
		if _, ok := slices.BinarySearch(b, i); ok {
			both = append(both, i)
		}
	}
	return both
}
