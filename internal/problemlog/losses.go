package problemlog

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
	// restoredEvery is the shortest time between two log lines about restored objects.
	restoredEvery = time.Minute
)

// reasonForeignHand means that another program keeps removing objects of this daemon.
const reasonForeignHand cluster.Reason = "ForeignHand"

// Losses records the objects that had to be restored.
type Losses struct {
	objects  map[string]*loss
	logged   time.Time // when they were last logged
	unlogged int       // passes since then that restored something
}

// loss records how often one object was lost.
type loss struct {
	times     []time.Time // the last contestedFrom ones
	unlogged  bool        // lost since it was logged
	contested bool
}

// Add records the objects that a pass restored, and logs them: at once, then once per restoredEvery with the number of
// passes.
func (l *Losses) Add(log *slog.Logger, objects []string, now time.Time) {
	if l.objects == nil {
		l.objects = map[string]*loss{}
	}
	for _, object := range objects {
		l.record(object, now)
	}
	if len(objects) > 0 {
		l.unlogged++
	}
	l.logRestored(log, now)
}

// logRestored logs the objects that were restored since it last did, unless that was within restoredEvery.
func (l *Losses) logRestored(log *slog.Logger, now time.Time) {
	if l.unlogged == 0 || now.Sub(l.logged) < restoredEvery {
		return
	}
	log.Warn("restored objects that another program removed", "objects", strings.Join(l.takeUnlogged(), ", "), "times", l.unlogged)
	l.logged, l.unlogged = now, 0
}

// record records the loss of one object.
func (l *Losses) record(object string, now time.Time) {
	lost := l.objects[object]
	if lost == nil {
		lost = &loss{}
		l.objects[object] = lost
	}
	if lost.times = append(lost.times, now); len(lost.times) > contestedFrom {
		lost.times = slices.Delete(lost.times, 0, len(lost.times)-contestedFrom)
	}
	lost.unlogged = true
}

// takeUnlogged lists the objects that were lost since they were logged, sorted, and counts them as logged.
func (l *Losses) takeUnlogged() (names []string) {
	for object, lost := range l.objects {
		if lost.unlogged {
			names, lost.unlogged = append(names, object), false
		}
	}
	slices.Sort(names)
	return names
}

// Problems returns the objects that are removed repeatedly. changed reports whether they differ from the last call's.
func (l *Losses) Problems(node string, now time.Time) (problems []cluster.Problem, changed bool) {
	for object, lost := range l.objects {
		was, recent := lost.contested, lost.recent(now)
		lost.contested = recent && (was || lost.often(now))
		changed = changed || lost.contested != was
		switch {
		case lost.contested:
			problems = append(problems, foreignHand(node, object))
		case !recent && !lost.unlogged:
			delete(l.objects, object)
		}
	}
	return problems, changed
}

// recent reports whether the object was lost within contestedFor.
func (l *loss) recent(now time.Time) bool { return now.Sub(l.times[len(l.times)-1]) < contestedFor }

// often reports whether the object was lost contestedFrom times within contestedFor.
func (l *loss) often(now time.Time) bool {
	return len(l.times) == contestedFrom && now.Sub(l.times[0]) < contestedFor
}

func foreignHand(node, object string) cluster.Problem {
	return cluster.Problem{
		Kind: "Node", Object: node, Field: "kernel", Value: object, Reason: reasonForeignHand,
		Message: "another program on this node keeps removing it: it is restored each time, and packets are dropped meanwhile; " +
			"find out which program does it, and make it leave alone what bears protocol 142 or our name",
	}
}
