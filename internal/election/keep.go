package election

import (
	"maps"
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
	set := func(s Seat) {
		was, had := o.choices[s]
		t, exists := kinds[s.Kind].tenure(&objects, s)
		if !exists {
			if delete(o.choices, s); had {
				changed = append(changed, s)
			}
			return
		}
		if now := o.elector.obey(s, t); !had || !now.Same(was) {
			o.choices[s] = now
			changed = append(changed, s)
		}
	}
	if !change.All {
		for s := range seatsOf(change) {
			set(s)
		}
		return o.choices, changed
	}
	for s := range seats(&objects) {
		set(s)
	}
	for s := range o.choices {
		if _, exists := kinds[s.Kind].tenure(&objects, s); !exists {
			set(s)
		}
	}
	return o.choices, changed
}

// Elected keeps the result of Elect up to date with the objects. It elects again only when an input of the election differs,
// which most changes of endpoints do not cause. With Policy.Alone, it chooses again only for the seats whose inputs differ,
// unless one of them shares an address.
type Elected struct {
	elector  *elector
	reports  map[string]cluster.Report
	standing map[Seat]standing
	claims   map[claim]int // contenders by address
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
	if e.elector == nil || change.All || e.elector.policy != policy || !reflect.DeepEqual(e.reports, reports) {
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

// elect chooses for all seats.
func (e *Elected) elect() (choices map[Seat]Choice, changed []Seat) {
	before := e.choices
	e.choices = e.elector.policy.Elect(e.elector.objects, e.reports)
	for s, now := range e.choices {
		if was, had := before[s]; !had || !now.Same(was) {
			changed = append(changed, s)
		}
	}
	for s := range before {
		if _, exists := e.choices[s]; !exists {
			changed = append(changed, s)
		}
	}
	return e.choices, changed
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
	e.standing, e.claims = map[Seat]standing{}, map[claim]int{}
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
	for s := range seatsOf(change) {
		was, had := e.standing[s]
		now, exists := standing{}, false
		if _, exists = kinds[s.Kind].tenure(&objects, s); exists {
			now = e.elector.standing(s)
		}
		if had == exists && now.same(was) {
			continue
		}
		differ = append(differ, s)
		apart = e.count(was, -1) && apart
		if delete(e.standing, s); exists {
			e.standing[s] = now
			apart = e.count(now, 1) && apart
		}
	}
	return differ, apart
}

// count adds n to the number of contenders for each address of a contender. alone reports that it is the only one for each.
func (e *Elected) count(s standing, n int) (alone bool) {
	if s.contender == nil {
		return true
	}
	alone = true
	for _, a := range s.contender.addresses {
		k := claim{s.contender.network, a}
		e.claims[k] += n
		alone = alone && e.claims[k] == max(n, 0)
		if e.claims[k] == 0 {
			delete(e.claims, k)
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
	return c.Host == o.Host && c.Standby == o.Standby && c.Term == o.Term && c.Former == o.Former &&
		c.Why == o.Why && c.Despite == o.Despite &&
		slices.Equal(c.Serves, o.Serves) && (c.Problem == o.Problem || c.Problem != nil && o.Problem != nil && *c.Problem == *o.Problem)
}
