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
		o.elector = newElector(objects, nil)
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
// which most changes of endpoints do not cause.
type Elected struct {
	policy   Policy
	elector  *elector
	reports  map[string]cluster.Report
	standing map[Seat]standing
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
// now or were removed.
func (e *Elected) Update(
	objects cluster.Objects, reports map[string]cluster.Report, change cluster.Changed, policy Policy,
) (choices map[Seat]Choice, changed []Seat) {
	if e.elector == nil || change.All || e.policy != policy || !reflect.DeepEqual(e.reports, reports) {
		e.policy = policy
		e.restart(objects, reports)
	} else if !e.affected(objects, change) {
		return e.choices, nil
	}
	before := e.choices
	e.choices = policy.Elect(objects, reports)
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

// restart computes the inputs of the election for all objects.
func (e *Elected) restart(objects cluster.Objects, reports map[string]cluster.Report) {
	e.elector, e.reports = newElector(objects, reports), maps.Clone(reports)
	e.standing = map[Seat]standing{}
	for s := range seats(&objects) {
		e.standing[s] = e.elector.standing(s)
	}
}

// affected computes the inputs of the election for the objects that changed, and reports whether any of them differs.
func (e *Elected) affected(objects cluster.Objects, change cluster.Changed) (differs bool) {
	e.elector.objects = objects
	for s := range seatsOf(change) {
		was, had := e.standing[s]
		if _, exists := kinds[s.Kind].tenure(&objects, s); !exists {
			delete(e.standing, s)
			differs = differs || had
			continue
		}
		now := e.elector.standing(s)
		e.standing[s] = now
		differs = differs || !had || !now.same(was)
	}
	return differs
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
