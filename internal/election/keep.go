package election

import (
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
)

// Obeyed derives choices from the hosts and standbys in the objects' status, where one daemon elects for all. The cost of an
// update depends on the changes only.
type Obeyed struct {
	elector *elector
	choices map[Seat]Choice
}

// Update applies the changes since the last call. It returns the same map each time; changed names the choices that differ
// now or were removed.
func (o *Obeyed) Update(objects cluster.Objects, change cluster.Changed) (choices map[Seat]Choice, changed []Seat) {
	if o.elector == nil || change.All {
		o.elector = newElector(objects, nil, Policy{})
	}
	o.elector.objects = objects
	if o.choices == nil {
		o.choices = map[Seat]Choice{}
	}
	if !change.All {
		return o.choices, o.setAll(&objects, seatsOf(&objects, change, o.choices))
	}
	changed = o.setAll(&objects, seats(&objects))
	return o.choices, append(changed, o.setAll(&objects, slices.Values(o.gone(&objects)))...)
}

// setAll applies the status of the objects of seats, and lists those whose choices differ now or were removed.
func (o *Obeyed) setAll(objects *cluster.Objects, seats iter.Seq[Seat]) (changed []Seat) {
	for s := range seats {
		if o.set(objects, s) {
			changed = append(changed, s)
		}
	}
	return changed
}

// set applies the status of one object, and reports whether its choice differs now or was removed.
func (o *Obeyed) set(objects *cluster.Objects, s Seat) (changed bool) {
	was, had := o.choices[s]
	t, exists := kinds[s.Kind].tenure(objects, s)
	if !exists {
		delete(o.choices, s)
		return had
	}
	now := o.elector.obey(s, t)
	if changed = !had || !now.Same(was); changed {
		o.choices[s] = now
	}
	return changed
}

// gone lists the seats with a choice that do not exist any more.
func (o *Obeyed) gone(objects *cluster.Objects) (gone []Seat) {
	for s := range o.choices {
		if _, exists := kinds[s.Kind].tenure(objects, s); !exists {
			gone = append(gone, s)
		}
	}
	return gone
}

// Elected keeps the result of Elect up to date with the objects. It elects again only when an input of the election differs,
// which most changes of endpoints do not cause. With Policy.Alone, it chooses again only for the seats whose inputs differ,
// unless one of them shares an address.
type Elected struct {
	elector  *elector
	reports  map[string]cluster.Report
	standing map[Seat]standing
	claims   map[netip.Addr]int // contenders by address
	choices  map[Seat]Choice
}

// standing holds everything about one seat that an election depends on.
type standing struct {
	contender *contender
	all       bool
	problem   *cluster.Problem
	had       tenure
}

func (s standing) same(o standing) bool {
	if s.all != o.all || !s.had.created.Equal(o.had.created) || s.had.term != o.had.term || !reflect.DeepEqual(s.problem, o.problem) {
		return false
	}
	if s.contender == nil || o.contender == nil {
		return s.contender == o.contender
	}
	return s.contender.same(o.contender)
}

func (c *contender) same(o *contender) bool {
	return c.seat == o.seat && c.network == o.network && c.sharing == o.sharing && c.since.Equal(o.since) &&
		slices.Equal(c.addresses, o.addresses) && c.need == o.need &&
		c.had.host == o.had.host && c.had.standby == o.had.standby &&
		c.selector.String() == o.selector.String() && slices.Equal(c.candidates, o.candidates)
}

// Update applies the changes since the last call, the present reports and the policy. changed names the choices that differ
// now or were removed. The map may be the same one each time.
func (e *Elected) Update(
	objects cluster.Objects, reports map[string]cluster.Report, change cluster.Changed, policy Policy,
) (choices map[Seat]Choice, changed []Seat) {
	if e.startsOver(reports, change, policy) {
		e.restart(objects, reports, policy)
		return e.elect()
	}
	differ, apart := e.affected(objects, change)
	switch {
	case len(differ) == 0:
		return e.choices, nil
	case policy.Alone && apart:
		return e.choices, e.chooseFor(differ)
	}
	return e.elect()
}

// startsOver reports whether the inputs of all seats may differ.
func (e *Elected) startsOver(reports map[string]cluster.Report, change cluster.Changed, policy Policy) bool {
	return e.elector == nil || change.All || !e.elector.policy.same(policy) || !reflect.DeepEqual(e.reports, reports)
}

// elect chooses for all seats.
func (e *Elected) elect() (choices map[Seat]Choice, changed []Seat) {
	before := e.choices
	e.choices = e.elector.policy.Elect(e.elector.objects, e.reports)
	return e.choices, differing(before, e.choices)
}

// differing lists the seats whose choices differ or are gone.
func differing(before, now map[Seat]Choice) (changed []Seat) {
	for s, choice := range now {
		if was, had := before[s]; !had || !choice.Same(was) {
			changed = append(changed, s)
		}
	}
	for s := range before {
		if _, exists := now[s]; !exists {
			changed = append(changed, s)
		}
	}
	return changed
}

// chooseFor chooses again for seats of which none shares an address, and returns those whose choices differ or are gone.
func (e *Elected) chooseFor(seats []Seat) (changed []Seat) {
	clear(e.elector.few) // it would keep lists of former candidates
	for _, s := range seats {
		was, had := e.choices[s]
		now, exists := e.standing[s]
		if !exists {
			delete(e.choices, s)
		} else {
			e.choices[s] = e.elector.choose([]seated{{s, now.had}})[s]
		}
		if had != exists || !was.Same(e.choices[s]) {
			changed = append(changed, s)
		}
	}
	return changed
}

// restart computes the inputs of the election for all objects.
func (e *Elected) restart(objects cluster.Objects, reports map[string]cluster.Report, policy Policy) {
	e.elector, e.reports = newElector(objects, reports, policy), maps.Clone(reports)
	e.standing, e.claims = map[Seat]standing{}, map[netip.Addr]int{}
	for s := range seats(&objects) {
		now := e.elector.standing(s)
		e.standing[s] = now
		e.count(now, 1)
	}
}

// affected computes the inputs of the election for the objects that changed, and lists the seats for which they differ.
// apart reports that none of these shared an address before, or shares one now.
func (e *Elected) affected(objects cluster.Objects, change cluster.Changed) (differ []Seat, apart bool) {
	e.elector.objects, apart = objects, true
	for s := range seatsOf(&objects, change, e.standing) {
		was, had := e.standing[s]
		now, exists := standing{}, false
		if _, exists = kinds[s.Kind].tenure(&objects, s); exists {
			now = e.elector.standing(s)
		}
		if had != exists || !now.same(was) {
			differ = append(differ, s)
			apart = e.replace(s, now, exists) && apart
		}
	}
	return differ, apart
}

// replace replaces the input of one seat, which may exist no more. alone reports that it shared no address, and shares none now.
func (e *Elected) replace(s Seat, now standing, exists bool) (alone bool) {
	alone = e.count(e.standing[s], -1)
	if delete(e.standing, s); exists {
		e.standing[s] = now
		alone = e.count(now, 1) && alone
	}
	return alone
}

// count adds n to the number of contenders for each address of a contender. alone reports that it is the only one for each.
func (e *Elected) count(s standing, n int) (alone bool) {
	if s.contender == nil {
		return true
	}
	alone = true
	for _, a := range s.contender.addresses {
		e.claims[a] += n
		alone = alone && e.claims[a] == max(n, 0)
		if e.claims[a] == 0 {
			delete(e.claims, a)
		}
	}
	return alone
}

func (e *elector) standing(s Seat) standing {
	c, all, problem := kinds[s.Kind].contender(e, s)
	had, _ := kinds[s.Kind].tenure(&e.objects, s)
	return standing{c, all, problem, had}
}

// Same reports whether two choices are equal.
func (c Choice) Same(o Choice) bool {
	return c.Host == o.Host && c.Standby == o.Standby && c.Term == o.Term &&
		c.Former == o.Former && c.Left == o.Left && c.Parted == o.Parted &&
		c.Why == o.Why && c.Despite == o.Despite && c.Unrouted == o.Unrouted &&
		slices.Equal(c.Serves, o.Serves) && (c.Problem == o.Problem || c.Problem != nil && o.Problem != nil && *c.Problem == *o.Problem)
}
