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
	choices map[cluster.Key]Choice
}

// Update applies the changes since the last call. It returns the same map each time; changed names the choices that differ
// now or were removed.
func (o *Obeyed) Update(objects cluster.Objects, change cluster.Changed) (choices map[cluster.Key]Choice, changed []cluster.Key) {
	if o.elector == nil || change.All {
		o.elector = newElector(objects, nil)
	}
	o.elector.objects = objects
	if o.choices == nil {
		o.choices = make(map[cluster.Key]Choice, objects.EgressServices.Len())
	}
	set := func(key cluster.Key) {
		was, had := o.choices[key]
		spec, exists := objects.EgressServices.Get(key)
		if !exists {
			if delete(o.choices, key); had {
				changed = append(changed, key)
			}
			return
		}
		if now := o.elector.obey(key, spec.Status); !had || !now.Same(was) {
			o.choices[key] = now
			changed = append(changed, key)
		}
	}
	if !change.All {
		for key := range change.Of[cluster.KindEgressService] {
			set(key)
		}
		return o.choices, changed
	}
	for key := range objects.EgressServices.Keys() {
		set(key)
	}
	for key := range o.choices {
		if _, exists := objects.EgressServices.Get(key); !exists {
			set(key)
		}
	}
	return o.choices, changed
}

// Elected keeps the result of Elect up to date with the objects. It elects again only when an input of the election differs,
// which most changes of endpoints do not cause.
type Elected struct {
	elector  *elector
	reports  map[string]cluster.Report
	standing map[cluster.Key]standing
	choices  map[cluster.Key]Choice
}

// standing holds everything about one object that an election depends on.
type standing struct {
	contender *contender
	all       bool
	problem   *cluster.Problem
	created   int64
	term      int64
}

func (s standing) same(o standing) bool {
	if s.all != o.all || s.created != o.created || s.term != o.term || !reflect.DeepEqual(s.problem, o.problem) {
		return false
	}
	if s.contender == nil || o.contender == nil {
		return s.contender == o.contender
	}
	return s.contender.same(o.contender)
}

func (c *contender) same(o *contender) bool {
	return c.key == o.key && c.network == o.network && c.sharing == o.sharing && c.since.Equal(o.since) &&
		slices.Equal(c.ingress, o.ingress) && c.need == o.need &&
		c.status.Host == o.status.Host && c.status.Standby == o.status.Standby &&
		c.selector.String() == o.selector.String() && slices.Equal(c.candidates, o.candidates)
}

// Update applies the changes since the last call and the present reports. changed names the choices that differ now or were
// removed.
func (e *Elected) Update(
	objects cluster.Objects, reports map[string]cluster.Report, change cluster.Changed,
) (choices map[cluster.Key]Choice, changed []cluster.Key) {
	if e.elector == nil || change.All || !reflect.DeepEqual(e.reports, reports) {
		e.restart(objects, reports)
	} else if !e.affected(objects, change.Of[cluster.KindEgressService]) {
		return e.choices, nil
	}
	before := e.choices
	e.choices = Elect(objects, reports)
	for key, now := range e.choices {
		if was, had := before[key]; !had || !now.Same(was) {
			changed = append(changed, key)
		}
	}
	for key := range before {
		if _, exists := e.choices[key]; !exists {
			changed = append(changed, key)
		}
	}
	return e.choices, changed
}

// restart computes the inputs of the election for all objects.
func (e *Elected) restart(objects cluster.Objects, reports map[string]cluster.Report) {
	e.elector, e.reports = newElector(objects, reports), maps.Clone(reports)
	e.standing = make(map[cluster.Key]standing, objects.EgressServices.Len())
	for key := range objects.EgressServices.Keys() {
		e.standing[key] = e.elector.standing(key)
	}
}

// affected computes the inputs of the election for the objects that changed, and reports whether any of them differs.
func (e *Elected) affected(objects cluster.Objects, changed map[cluster.Key]bool) (differs bool) {
	e.elector.objects = objects
	for key := range changed {
		was, had := e.standing[key]
		if _, exists := objects.EgressServices.Get(key); !exists {
			delete(e.standing, key)
			differs = differs || had
			continue
		}
		now := e.elector.standing(key)
		e.standing[key] = now
		differs = differs || !had || !now.same(was)
	}
	return differs
}

func (e *elector) standing(key cluster.Key) standing {
	c, all, problem := e.contender(key)
	spec := e.objects.EgressServices.At(key)
	return standing{c, all, problem, spec.Created.UnixNano(), spec.Status.Term}
}

// Same reports whether two choices are equal.
func (c Choice) Same(o Choice) bool {
	return c.Host == o.Host && c.Standby == o.Standby && c.Term == o.Term && c.Former == o.Former &&
		c.Why == o.Why && c.Despite == o.Despite &&
		slices.Equal(c.Serves, o.Serves) && (c.Problem == o.Problem || c.Problem != nil && o.Problem != nil && *c.Problem == *o.Problem)
}
