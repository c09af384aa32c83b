package agent

import (
	"context"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

const (
	// askAgain is the pause after the API server did not answer, or had changes that its watches had not delivered yet.
	askAgain = 300 * time.Millisecond
	// askWithin limits such a request, and the time in which requests are repeated.
	askWithin = 5 * time.Second
	// hushFor is how long announcements stay held down after a session is back, if the API server does not answer.
	hushFor = 5 * time.Second
)

// quiet holds announcements down in networks from which this node was cut off. A node that lost all its sessions may
// have been dead for the others: another host may have taken over, and this node's return must not disturb it.
// Announcements resume when the API server confirms this node's role. While the API server is away there is no leader:
// after hushFor the node announces again, and if the standby has taken over by itself, the term makes routers prefer
// the later host (docs/decisions/0014).
type quiet struct {
	connected map[string]bool      // networks in which a session was up
	since     map[string]time.Time // when the last session of a network was lost
}

// lost updates q from the sessions: it finds networks that have just lost their last session, and those with one for
// hushFor.
func (q *quiet) lost(networks []plan.Speaker, up map[string]time.Time, now time.Time) {
	if q.connected == nil {
		q.connected, q.since = map[string]bool{}, map[string]time.Time{}
	}
	for network := range q.since {
		if !slices.ContainsFunc(networks, func(s plan.Speaker) bool { return s.Network == network }) {
			delete(q.since, network)
		}
	}
	for _, s := range networks {
		since, isUp := up[s.Network]
		switch {
		case isUp && now.Sub(since) >= hushFor:
			delete(q.since, s.Network)
		case !isUp && q.connected[s.Network]:
			q.since[s.Network] = now
		}
		q.connected[s.Network] = isUp
	}
}

// sure releases the networks that were lost before asked: at that time the known objects were those of the API server.
func (q *quiet) sure(asked time.Time) {
	for network, since := range q.since {
		if !since.After(asked) {
			delete(q.since, network)
		}
	}
}

// hush removes the announcements in networks where this node does not know its role.
func (a *Agent) hush(ctx context.Context, speakers []plan.Speaker) []plan.Speaker {
	api, ok := a.source.(following)
	if !ok {
		return speakers // each node decides alone, by the manifests
	}
	up := map[string]time.Time{}
	for _, s := range a.speakers.Sessions() {
		if first, known := up[s.Network]; s.Up && (!known || s.Since.Before(first)) {
			up[s.Network] = s.Since
		}
	}
	q := &a.last.quiet
	if sure := a.confirmed.Load(); sure != nil {
		q.sure(*sure)
	}
	q.lost(speakers, up, time.Now())
	if len(q.since) == 0 {
		return speakers
	}
	if a.asking.CompareAndSwap(false, true) {
		go a.ask(ctx, api)
	}
	speakers = slices.Clone(speakers)
	for i, s := range speakers {
		if _, unsure := q.since[s.Network]; unsure {
			speakers[i].Announce = sorted.List[plan.Announcement]{}
		}
	}
	return speakers
}

// ask asks the API server whether the known objects are current, until they are.
func (a *Agent) ask(ctx context.Context, api following) {
	defer a.wake()
	defer a.asking.Store(false)
	for until := time.Now().Add(askWithin); ctx.Err() == nil && time.Now().Before(until); {
		began := time.Now()
		bounded, cancel := context.WithTimeout(ctx, askWithin)
		err := api.Current(bounded)
		cancel()
		if err == nil {
			a.confirmed.Store(&began)
			return
		}
		a.log.Debug("cannot confirm the known objects yet", "error", err)
		pause.For(ctx, askAgain)
	}
}
