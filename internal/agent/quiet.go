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
	// askAgain is the pause after the API server could not say, or had more to tell than its watches have told.
	askAgain = 300 * time.Millisecond
	// askWithin bounds one such question.
	askWithin = 5 * time.Second
	// hushFor is how long this node keeps quiet in a network to which it is back, where the API server does not answer.
	hushFor = 5 * time.Second
)

// quiet holds announcements back in networks from which this node was cut off. Whoever lost all its sessions may have been
// dead for the others: another host may have taken over, and its return must not be noticed. It is sure of its role again
// when the API server says so. While that is away nobody elects: after a while the node takes its role up, and should the
// standby have taken over by itself, the term tells routers who came later (docs/decisions/0014).
type quiet struct {
	connected map[string]bool      // networks in which a session was up
	since     map[string]time.Time // when the last one of a network was lost
}

// lost takes the sessions in: it finds the networks that have just lost their last one, and those that had one again for long enough.
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

// sure takes in that all that was known at a time was as the API server has it.
func (q *quiet) sure(asked time.Time) {
	for network, since := range q.since {
		if !since.After(asked) {
			delete(q.since, network)
		}
	}
}

// hush leaves announcements out in networks where this node does not know whether it should.
func (a *Agent) hush(ctx context.Context, speakers []plan.Speaker) []plan.Speaker {
	api, ok := a.source.(following)
	if !ok {
		return speakers // each node decides alone, what it knows is what there is
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

// ask asks the API server whether what is known is what it has, until it is.
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
		a.log.Debug("not sure yet of what is known", "error", err)
		pause.For(ctx, askAgain)
	}
}
