package agent

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/sorted"
)

const (
	// gatherWithin is how long a new leader waits for the reports of nodes that may have no daemon: the first node to
	// report should not become the host of everything.
	gatherWithin = 5 * time.Second
	// leadShare × the duration of an election is how long the leader rests after it: elections use at most a quarter of
	// a core.
	leadShare = 3
)

// leader elects for all nodes, while this daemon is the leader. It runs concurrently with the passes: an election among
// ten thousand objects and a thousand nodes does not delay them.
type leader struct {
	api apiServer
	due chan struct{}

	mu   sync.Mutex
	next matter // input of the next election

	leadership // used by run's goroutine only
	last       matter
	reports    map[string]cluster.Report // as used by the last election
	pruned     bool                      // at that election: the CRD drops fields that only ours has
}

// matter is a pass's input for elections.
type matter struct {
	config   *config.Config
	objects  cluster.Objects
	changed  cluster.Changed // since the last election
	problems []cluster.Problem
	standing cluster.Objects // objects, with the decisions in their status
}

func newLeader(api apiServer) *leader { return &leader{api: api, due: make(chan struct{}, 1)} }

// tell hands over the input of a pass. It does not wait.
func (l *leader) tell(m matter) {
	l.mu.Lock()
	m.changed.Join(l.next.changed)
	l.next = m
	l.mu.Unlock()
	select {
	case l.due <- struct{}{}:
	default:
	}
}

// run elects after each pass, and again when time makes a difference, until ctx ends.
func (l *leader) run(ctx context.Context) {
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for {
		timed := false
		select {
		case <-ctx.Done():
			return
		case <-l.due:
		case <-again.C:
			timed = true
		}
		began := time.Now()
		if wait := l.consider(began, timed); wait > 0 {
			again.Reset(wait)
		}
		if !pause.For(ctx, leadShare*time.Since(began)) {
			return
		}
	}
}

// consider elects, if this daemon leads and anything has changed since the last election. It returns the time after
// which it should be called again even without a change; 0: never.
func (l *leader) consider(now time.Time, timed bool) (wait time.Duration) {
	reports, leading := l.api.Leading()
	if !leading {
		l.leadership, l.reports = leadership{}, nil
		l.mu.Lock()
		l.next.changed = cluster.Changed{} // the first election of a term considers all objects
		l.mu.Unlock()
		return 0
	}
	l.mu.Lock()
	if l.next.config == nil {
		l.mu.Unlock()
		return 0 // no pass yet
	}
	m := l.next
	l.next.changed = cluster.Changed{}
	l.mu.Unlock()

	begins := l.since.IsZero()
	if begins {
		l.since, l.decided = now, map[cluster.Key]decision{}
		m.changed.All = true
	}
	reports, wait = l.steady.believe(reports, now)
	if now.Sub(l.since) < gatherWithin && !allReport(m.objects, reports) {
		l.keep(m)
		return retryAfter
	}
	m.standing = m.objects
	m.standing.EgressServices = l.remembered(m.objects)
	m.changed.Join(l.touched)
	l.touched = cluster.Changed{}
	choices, others := l.elected.Update(m.standing, reports, m.changed)
	if timed || begins || l.waiting || len(others) > 0 || l.differs(m, reports) {
		l.last, l.reports, l.pruned = m, reports, l.api.Pruned() // before elect: later changes belong to the next election
		l.api.Write(l.elect(l.api, m, reports, choices))
	}
	if l.waiting && (wait == 0 || wait > retryAfter) {
		wait = retryAfter
	}
	return wait
}

// keep returns the changes of an input that was not used.
func (l *leader) keep(m matter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next.changed.Join(m.changed)
}

// differs reports whether anything but the choices may change the written status. Endpoints, which change all the time,
// do not.
func (l *leader) differs(m matter, reports map[string]cluster.Report) bool {
	if m.changed.All || m.config != l.last.config || l.api.Pruned() != l.pruned || !sorted.OneSlice(m.problems, l.last.problems) || !reflect.DeepEqual(reports, l.reports) {
		return true
	}
	for key := range m.changed.Keys {
		was, had := l.last.objects.EgressServices.Get(key)
		if now, exists := m.objects.EgressServices.Get(key); had != exists || !reflect.DeepEqual(was, now) {
			return true
		}
	}
	return false
}
