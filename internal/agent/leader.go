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
	// gatherWithin is how long one that begins to lead waits for the reports of nodes that may have no daemon: the first
	// node to report should not become the host of everything.
	gatherWithin = 5 * time.Second
	// leadShare is how many times as long as an election took the leader rests after it: it costs a fourth of a core at most.
	leadShare = 3
)

// leader elects for all nodes, while this daemon is the one that does. It works beside the passes: an election among ten
// thousand objects and a thousand nodes holds up nothing of this node.
type leader struct {
	api apiServer
	due chan struct{}

	mu   sync.Mutex
	next matter // what no election has taken in yet

	leadership // of the goroutine that runs
	last       matter
	reports    map[string]cluster.Report // believed by the last election
	pruned     bool                      // at that time: the CRD drops what only ours has
}

// matter is what a pass knows of what is elected.
type matter struct {
	config   *config.Config
	objects  cluster.Objects
	changed  cluster.Changed // since the last election
	problems []cluster.Problem
	standing cluster.Objects // what was decided stands in their status
}

func newLeader(api apiServer) *leader { return &leader{api: api, due: make(chan struct{}, 1)} }

// tell hands over what a pass knows. It does not wait.
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

// run elects whenever a pass has told something, and again when time makes a difference, until ctx ends.
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

// consider elects, if this daemon leads and anything is not as it was at the last election. It says after what time it should be
// called again although nothing happens; 0: it need not.
func (l *leader) consider(now time.Time, timed bool) (wait time.Duration) {
	reports, leading := l.api.Leading()
	if !leading {
		l.leadership, l.reports = leadership{}, nil
		l.mu.Lock()
		l.next.changed = cluster.Changed{} // whoever begins to lead takes in all
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
		l.last, l.reports, l.pruned = m, reports, l.api.Pruned() // before: what changes meanwhile is another election
		l.api.Write(l.elect(l.api, m, reports, choices))
	}
	if l.waiting && (wait == 0 || wait > retryAfter) {
		wait = retryAfter
	}
	return wait
}

// keep gives back what could not be taken in yet.
func (l *leader) keep(m matter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next.changed.Join(m.changed)
}

// differs says whether something else than who should be host and standby may make a difference to what is written. Endpoints, which come
// and go all the time, do not.
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
