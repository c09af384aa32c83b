package agent

import (
	"context"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/pause"
)

const (
	// askAgain is the pause after the API server did not answer, or had changes that its watches had not delivered yet.
	askAgain = 300 * time.Millisecond
	// askWithin limits such a request, and the time in which requests are repeated.
	askWithin = 5 * time.Second
)

// heldDown returns the networks in which this node must not announce, because it does not know its role there.
func (a *Agent) heldDown(ctx context.Context, c *config.Config) []string {
	if a.server == nil {
		return nil // each node decides alone, by the manifests
	}
	networks := withPeers(c)
	held := &a.last.holdDown
	if asked := a.confirmed.Load(); asked != nil {
		held.Confirm(*asked)
	}
	held.See(networks, upSince(a.speakers.Sessions()), time.Now())
	if !held.Active() {
		return nil
	}
	if a.asking.CompareAndSwap(false, true) {
		go a.ask(ctx)
	}
	return slices.DeleteFunc(networks, func(network string) bool { return !held.Holds(network) })
}

// upSince returns since when each network has had a session that is up.
func upSince(sessions []bgp.Session) map[string]time.Time {
	up := map[string]time.Time{}
	for _, s := range sessions {
		if first, known := up[s.Network]; s.Up && (!known || s.Since.Before(first)) {
			up[s.Network] = s.Since
		}
	}
	return up
}

// withPeers returns the networks that have peers.
func withPeers(c *config.Config) []string {
	networks := make([]string, 0, len(c.Networks))
	for _, n := range c.Networks {
		if len(n.Peers) > 0 {
			networks = append(networks, n.Name)
		}
	}
	return networks
}

// ask asks the API server whether the known objects are current, until they are.
func (a *Agent) ask(ctx context.Context) {
	defer a.wake()
	defer a.asking.Store(false)
	for until := time.Now().Add(askWithin); ctx.Err() == nil && time.Now().Before(until); {
		began := time.Now()
		bounded, cancel := context.WithTimeout(ctx, askWithin)
		err := a.server.Current(bounded)
		cancel()
		if err == nil {
			a.confirmed.Store(&began)
			return
		}
		a.log.Debug("cannot confirm the known objects yet", "error", err)
		pause.For(ctx, askAgain)
	}
}
