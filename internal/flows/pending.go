package flows

import (
	"time"

	"github.com/egressway/egressway/internal/kernel/conntrack"
)

const (
	// tellAfter is how long a flow must live, or wait for its first reply, before it is sent: most TCP requests and
	// nearly all UDP queries are over by then, and cost only their events.
	tellAfter = 100 * time.Millisecond
	// releaseEvery is the interval between checks for flows that are old enough.
	releaseEvery = 10 * time.Millisecond
	// mostPending limits the waiting flows, and so their memory to some 15 MiB: 600,000 new flows a second.
	mostPending = 60000
)

// pending holds flows that are too young to be sent.
type pending struct {
	flows map[key]conntrack.Flow
	order []waiting // oldest first
}

type waiting struct {
	key
	until time.Time
}

func newPending() *pending { return &pending{flows: map[key]conntrack.Flow{}} }

// add makes a flow wait, or updates one that does. It reports whether there was room.
func (p *pending) add(f conntrack.Flow, now time.Time) bool {
	k := keyOf(f)
	if _, waits := p.flows[k]; !waits {
		if len(p.order) >= mostPending {
			return false
		}
		p.order = append(p.order, waiting{k, now.Add(tellAfter)})
	}
	p.flows[k] = f
	return true
}

// forget removes a flow and reports whether it was waiting.
func (p *pending) forget(f conntrack.Flow) bool {
	k := keyOf(f)
	_, waited := p.flows[k]
	delete(p.flows, k)
	return waited
}

// ripe removes and returns the flows that are old enough.
func (p *pending) ripe(now time.Time) (ripe []conntrack.Flow) {
	n := 0
	for n < len(p.order) && !p.order[n].until.After(now) {
		k := p.order[n].key
		if f, ok := p.flows[k]; ok {
			ripe = append(ripe, f)
			delete(p.flows, k)
		}
		n++
	}
	if p.order = p.order[n:]; len(p.order) == 0 {
		p.order = nil // frees the memory of a burst
	}
	return ripe
}
