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
)

// holdDown removes the announcements in networks where this node does not know its role.
func (a *Agent) holdDown(ctx context.Context, speakers []plan.Speaker) []plan.Speaker {
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
	networks := make([]string, 0, len(speakers))
	for _, s := range speakers {
		networks = append(networks, s.Network)
	}
	held := &a.last.holdDown
	if asked := a.confirmed.Load(); asked != nil {
		held.Confirm(*asked)
	}
	held.See(networks, up, time.Now())
	if !held.Active() {
		return speakers
	}
	if a.asking.CompareAndSwap(false, true) {
		go a.ask(ctx, api)
	}
	speakers = slices.Clone(speakers)
	for i, s := range speakers {
		if held.Holds(s.Network) {
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
