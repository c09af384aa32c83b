package election

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
)

// unit is a group of contenders that have one host together.
type unit struct {
	members    []*contender // first those that had a host, by how long they had one; then the others by age
	candidates []int        // common to all members
	demand     demand       // of all members together
	lacks      []lack       // of every node
	host       int
	order      int // smaller for older units
}

// claim is an address in a network. All contenders that have it have the same host.
type claim struct {
	network string
	addr    netip.Addr
}

// sharing joins contenders that share an ingress IP.
type sharing struct {
	elector *elector
	refuse  func(*contender, *cluster.Problem)
	units   []*unit
	made    int // counts the units made
	owner   map[claim]holder
	late    []*contender         // contenders that wait until the units have their hosts
	awaited map[claim]*contender // by ingress IP, the first of late that claims it
}

// holder is the unit that has an ingress IP, and its first contender, which decides the Services that may share the IP. The
// plan refuses the IP to all others.
type holder struct {
	*unit
	first *contender
}

// shares reports whether two contenders may have an ingress IP in common.
func (c *contender) shares(o *contender) bool {
	return cluster.Shares(c.seat.Key, c.sharing, o.seat.Key, o.sharing)
}

// share joins contenders, which are sorted by age, to units with one host each.
//
// Contenders share an ingress IP only if they are of one namespace or their Services have the same sharing key. Otherwise
// the IP does not bind them together.
//
// A newcomer, which has no host in its status, moves no other contender. It joins those with which it shares ingress IPs if
// all of them have the same host and it may be there too; otherwise it is refused. The same holds for a contender that would
// join older units without a common host. Newcomers that share with newcomers get a host together; a newcomer is refused if
// no node fits both it and those before it.
//
// Seats with an address of their own come last, and share with none.
func (e *elector) share(contenders []*contender, refuse func(*contender, *cluster.Problem)) []*unit {
	s := &sharing{elector: e, refuse: refuse, owner: map[claim]holder{}, awaited: map[claim]*contender{}}
	contenders, apart, held := split(contenders)
	slices.SortStableFunc(contenders, func(x, y *contender) int { return x.since.Compare(y.since) })
	for _, stands := range []bool{true, false} {
		for _, c := range contenders {
			if c.hadHost() == stands {
				s.sort(c)
			}
		}
	}
	e.assignAll(s.units)
	for _, c := range s.late {
		s.come(c)
	}
	s.seatApart(apart, held)
	return s.units
}

// split returns the contenders that may share an address, and those with an address of their own. held holds the owners of the
// addresses of the former, if there are others.
func split(contenders []*contender) (shared, apart []*contender, held map[netip.Addr]cluster.ID) {
	for _, c := range contenders {
		if c.seat.Slot.IsValid() {
			apart = append(apart, c)
		}
	}
	if len(apart) == 0 {
		return slices.Clone(contenders), nil, nil
	}
	held = map[netip.Addr]cluster.ID{}
	for _, c := range contenders {
		if c.seat.Slot.IsValid() {
			continue
		}
		shared = append(shared, c)
		for _, a := range c.addresses {
			if _, taken := held[a]; !taken {
				held[a] = c.seat.ID
			}
		}
	}
	return shared, apart, held
}

// assignAll gives each unit its host. Those that have one keep it before the others get theirs.
func (e *elector) assignAll(units []*unit) {
	for _, u := range units {
		u.lacks = e.lacksFor(u.demand)
		if u.host = e.current(u); u.host != none {
			e.sit(u)
		}
	}
	for _, u := range units {
		if u.host == none {
			e.settle(u)
		}
	}
}

// hadHost reports whether the contender's tenure names a node as host.
func (c *contender) hadHost() bool { return isNode(c.had.host) }

// settle finds a host for a unit that has none.
func (e *elector) settle(u *unit) {
	if u.host = e.successor(u); u.host == none {
		u.host = e.best(u, none, everyLack)
	}
	e.sit(u)
}

// sort puts a contender into its unit, or into late.
func (s *sharing) sort(c *contender) {
	with, waits := s.touched(c)
	candidates := c.candidatesWith(with)
	switch {
	case waits || c.comesLate(with):
		s.postpone(c)
	case len(candidates) == 0:
		s.refuse(c, noHost(c.seat.ID, "", "", cluster.ReasonSharedIngressHost, "no node fits both it and %s", s.sharers(c, with)))
	default:
		s.join(c, with, candidates)
	}
}

// comesLate reports whether the hosts of older units must be known before a contender may join them: it is a newcomer to
// those that have a host, or it would join several.
func (c *contender) comesLate(with []*unit) bool {
	together := func(u *unit) bool { return c.hadHost() && u.members[0].had.host == c.had.host }
	stands := len(with) > 0 && with[0].members[0].hadHost()
	return stands && !c.hadHost() || len(with) > 1 && !all(with, together)
}

// postpone puts a contender into late.
func (s *sharing) postpone(c *contender) {
	s.late = append(s.late, c)
	for _, a := range c.addresses {
		if k := (claim{c.network, a}); s.awaited[k] == nil {
			s.awaited[k] = c
		}
	}
}

// candidatesWith lists the contender's candidates that are also those of all units.
func (c *contender) candidatesWith(units []*unit) []int {
	candidates := c.candidates
	for _, u := range units {
		candidates = intersect(candidates, u.candidates)
	}
	return candidates
}

// come joins a late contender to units, which have their hosts by now.
func (s *sharing) come(c *contender) {
	with, _ := s.touched(c)
	if len(with) == 0 {
		s.elector.assignAll([]*unit{s.join(c, nil, c.candidates)})
		return
	}
	host := with[0].host
	candidates := c.candidatesWith(with)
	_, fits := slices.BinarySearch(candidates, host)
	switch {
	case !all(with, func(u *unit) bool { return u.host == host }):
		s.refuse(c, noHost(c.seat.ID, "", "", cluster.ReasonSharedIngressHost,
			"it would need the host of all with which it shares ingress IPs, and these have several, which they keep: %s",
			s.sharers(c, with)))
	case !fits:
		s.refuse(c, noHost(c.seat.ID, "", "", cluster.ReasonSharedIngressHost,
			"the host may not be its own, and stays that of %s", s.sharers(c, with)))
	default:
		u := s.join(c, with, candidates)
		u.lacks = s.elector.lacksFor(u.demand)
		s.elector.assign(host, 1)
	}
}

// touched lists the units that share ingress IPs with the contender, the older first. waits reports whether a late contender
// shares some.
func (s *sharing) touched(c *contender) (with []*unit, waits bool) {
	for _, a := range c.addresses {
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

// join merges the contender and the units that it shares with into one unit.
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
	for _, a := range c.addresses {
		k := claim{c.network, a}
		switch h, taken := s.owner[k]; {
		case !taken:
			s.owner[k] = holder{u, c}
		case h.first.shares(c):
			s.owner[k] = holder{u, h.first}
		}
	}
}

// sharers lists, for every unit, a member that shares an ingress IP with the contender, the IP, and the host if it is known.
func (s *sharing) sharers(c *contender, with []*unit) string {
	var parts []string
	for _, u := range with {
		for _, m := range u.members {
			i := slices.IndexFunc(m.addresses, func(a netip.Addr) bool { return slices.Contains(c.addresses, a) })
			if i < 0 {
				continue
			}
			text := fmt.Sprintf("%s (%s", m.seat, m.addresses[i])
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

// intersect returns the common elements of two sorted lists.
func intersect(a, b []int) []int {
	var both []int
	for _, i := range a {
		if _, ok := slices.BinarySearch(b, i); ok {
			both = append(both, i)
		}
	}
	return both
}
