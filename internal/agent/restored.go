package agent

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/egressway/egressway/internal/cluster"
)

const (
	// contestedFrom is how often an object must be removed within contestedFor to become a problem. The problem ends
	// after contestedFor without a removal.
	contestedFrom = 5
	contestedFor  = time.Minute
	// toldEvery is the shortest time between two log lines about restored objects.
	toldEvery = time.Minute
)

// reasonForeignHand means that another program keeps removing objects of this daemon.
const reasonForeignHand cluster.Reason = "ForeignHand"

// restored records the objects that had to be restored.
type restored struct {
	objects map[string]*loss
	told    time.Time // when they were last logged
	untold  int       // passes since then that restored something
}

// loss records how often one object was lost.
type loss struct {
	times     []time.Time // the last contestedFrom ones
	untold    bool        // lost since it was logged
	contested bool
}

// add records the objects that a pass restored, and logs them: at once, then once per toldEvery with the number of
// passes.
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
	log.Warn("restored objects that another program removed", "objects", strings.Join(names, ", "), "times", r.untold)
	r.told, r.untold = now, 0
}

// problems returns the objects that are removed repeatedly. changed reports whether they differ from the last call's.
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
				Message: "another program on this node keeps removing it: it is restored each time, and packets are dropped meanwhile; " +
					"find out which program does it, and make it leave alone what bears protocol 142 or our name",
			})
		case !recent && !l.untold:
			delete(r.objects, object)
		}
	}
	return problems, changed
}
