package flows

import (
	"time"

	"github.com/egressway/egressway/internal/kernel"
)

const (
	// tellAfter is how long a flow must live, or wait for its first answer, before it is told of: most requests over TCP and
	// nearly all questions over UDP are done by then, and cost nothing but a look at their events.
	tellAfter = 100 * time.Millisecond
	// releaseEvery is how often those are looked for whose time has come.
	releaseEvery = 10 * time.Millisecond
	// mostPending bounds the flows that wait, and the memory for it to some 15 MiB: 600,000 new ones a second.
	mostPending = 60000
)

// pending holds flows that are too young to be told of.
type pending struct {
	flows map[key]kernel.Flow
	order []waiting // the oldest first
}

type waiting struct {
	key
	until time.Time
}

func newPending() *pending { return &pending{flows: map[key]kernel.Flow{}} }

// add has a flow wait, or changes one that does. It says whether there was room.
func (p *pending) add(f kernel.Flow, now time.Time) bool {
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

// forget says whether a flow has waited, which it does no more.
func (p *pending) forget(f kernel.Flow) bool {
	k := keyOf(f)
	_, waited := p.flows[k]
	delete(p.flows, k)
	return waited
}

// ripe takes out the flows whose time has come.
func (p *pending) ripe(now time.Time) (ripe []kernel.Flow) {
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
		p.order = nil // what a burst took is given back
	}
	return ripe
}
