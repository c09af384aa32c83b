package agent

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/egressway/egressway/internal/cluster"
)

const (
	// contestedFrom is how often something must be taken away within contestedFor to be a problem, which it stays until that
	// has not happened for as long.
	contestedFrom = 5
	contestedFor  = time.Minute
	// toldEvery is how often it is logged that one thing was put back.
	toldEvery = time.Minute
)

// reasonForeignHand is of a Problem: somebody takes away what this daemon makes, again and again.
const reasonForeignHand cluster.Reason = "ForeignHand"

// restored remembers what had to be put back.
type restored struct {
	objects map[string]*loss
	told    time.Time // when it was logged
	untold  int       // passes since then that put something back
}

// loss is how one thing was lost.
type loss struct {
	times     []time.Time // the last ones, contestedFrom at most
	untold    bool        // since it was logged
	contested bool
}

// add takes in what a pass has put back, and logs it: at once, and then once in toldEvery with how often.
func (r *restored) add(log *slog.Logger, objects []string, now time.Time) {
	if r.objects == nil {
		r.objects = map[string]*loss{}
	}
	for _, object := range objects {
		l := r.objects[object]
		if l == nil {
			l = &loss{}
			r.objects[object] = l
		}
		if l.times = append(l.times, now); len(l.times) > contestedFrom {
			l.times = slices.Delete(l.times, 0, len(l.times)-contestedFrom)
		}
		l.untold = true
	}
	if len(objects) > 0 {
		r.untold++
	}
	if r.untold == 0 || now.Sub(r.told) < toldEvery {
		return
	}
	var names []string
	for object, l := range r.objects {
		if l.untold {
			names, l.untold = append(names, object), false
		}
	}
	slices.Sort(names)
	log.Warn("put back what something else took away", "objects", strings.Join(names, ", "), "times", r.untold)
	r.told, r.untold = now, 0
}

// problems tells what is taken away again and again. changed says whether that is another answer than the last time.
func (r *restored) problems(node string, now time.Time) (problems []cluster.Problem, changed bool) {
	for object, l := range r.objects {
		recent := now.Sub(l.times[len(l.times)-1]) < contestedFor
		contested := recent && (l.contested || len(l.times) == contestedFrom && now.Sub(l.times[0]) < contestedFor)
		changed = changed || contested != l.contested
		l.contested = contested
		switch {
		case contested:
			problems = append(problems, cluster.Problem{
				Kind: "Node", Object: node, Field: "kernel", Value: object, Reason: reasonForeignHand,
				Message: "something else on this node takes it away again and again: it is put back each time, and packets are dropped meanwhile; " +
					"find out who does it, and have it leave alone what bears protocol 142 or our name",
			})
		case !recent && !l.untold:
			delete(r.objects, object)
		}
	}
	return problems, changed
}
