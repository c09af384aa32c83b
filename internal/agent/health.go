package agent

import (
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// states is what this node has of each network, by its plan, its kernel's routes and its sessions. incomplete says that
// sessions are down, or that peers which have routes to tell have not told any yet, as it is when a daemon has just started.
func (a *Agent) states(c *config.Config) (states map[string]cluster.NetworkState, incomplete bool) {
	states = map[string]cluster.NetworkState{}
	for _, p := range a.last.plan.DataPlane.Paths {
		if p.Key.Kind != plan.PathNetwork {
			continue
		}
		has := a.last.routed[p.Table]
		states[p.Key.Name] = cluster.NetworkState{Usable: p.Table != 0, IPv4: has.IPv4, IPv6: has.IPv6}
		untold := slices.Contains(a.last.plan.Held, p.Table) && has == (plan.Families{})
		incomplete = incomplete || untold && learns(c, p.Key.Name)
	}
	for _, s := range a.sessions() {
		n := states[s.Network]
		n.Sessions++
		if s.Up {
			n.Up++
		}
		incomplete = incomplete || !s.Up
		states[s.Network] = n
	}
	return states, incomplete
}

// learns says whether a network's peers may tell routes.
func learns(c *config.Config, network string) bool {
	n, listed := c.Network(network)
	return listed && slices.ContainsFunc(n.Peers, func(p config.Peer) bool { return len(p.Receive) > 0 })
}
