package agent

import (
	"cmp"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// states returns the state of this node's networks, from its plan, its kernel's routes and its sessions. incomplete
// means that sessions are down, or that peers with routes to announce have not announced any yet, as after a start of
// the daemon.
func (a *Agent) states(c *config.Config) (states map[string]cluster.NetworkState, incomplete bool) {
	return networkStates(c, a.last.plan, a.last.routed, a.sessions())
}

func networkStates(
	c *config.Config, planned *plan.NodePlan, routed map[uint32]plan.Families, sessions []bgp.Session,
) (states map[string]cluster.NetworkState, incomplete bool) {
	states = map[string]cluster.NetworkState{}
	for _, p := range planned.DataPlane.Paths {
		if p.Key.Kind == plan.PathNetwork {
			has := routed[p.Table]
			states[p.Key.Name] = cluster.NetworkState{
				Usable: p.Table != 0 && planned.AbsenceOf(p.Key.Name) == "",
				IPv4:   has.IPv4, IPv6: has.IPv6, Sessions: peersOf(c, p.Key.Name),
			}
		}
	}
	for _, s := range sessions {
		if n, here := states[s.Network]; here && s.Up {
			n.Up++
			states[s.Network] = n
		}
	}
	for _, p := range planned.DataPlane.Paths {
		if n, here := states[p.Key.Name]; here && p.Key.Kind == plan.PathNetwork {
			unannounced := slices.Contains(planned.Held, p.Table) && !n.IPv4 && !n.IPv6
			incomplete = incomplete || n.Up < n.Sessions || unannounced && learns(c, p.Key.Name)
		}
	}
	return states, incomplete
}

// peersOf counts the peers that a network should have sessions with, even if its speaker did not start: zero would mean
// a network without peers, whose ingress IPs others announce.
func peersOf(c *config.Config, network string) int {
	if n, listed := c.Network(network); listed {
		return len(n.Peers)
	}
	return 0
}

// learns reports whether a network's peers may announce routes.
func learns(c *config.Config, network string) bool {
	n, listed := c.Network(network)
	return listed && slices.ContainsFunc(n.Peers, func(p config.Peer) bool { return len(p.Receive) > 0 })
}

// everyPeer adds the configured sessions that the speaker does not have: it has none in a network that the kernel
// lacks.
func everyPeer(c *config.Config, planned *plan.NodePlan, sessions []bgp.Session) []bgp.Session {
	type key struct{ network, peer string }
	known := make(map[key]bool, len(sessions))
	for _, s := range sessions {
		known[key{s.Network, s.Peer}] = true
	}
	all := slices.Clip(sessions)
	for _, n := range c.Networks {
		for _, p := range n.Peers {
			name := cmp.Or(p.Interface, p.Address.String())
			if known[key{n.Name, name}] {
				continue
			}
			s := bgp.Session{
				Network: n.Name, Peer: name, Address: p.Address, ASN: p.ASN, State: bgp.StateWaiting, Families: p.AddressFamilies,
			}
			if planned != nil {
				s.LastError = planned.AbsenceOf(n.Name)
			}
			all = append(all, s)
		}
	}
	if len(all) > len(sessions) {
		slices.SortStableFunc(all, func(x, y bgp.Session) int {
			return cmp.Or(strings.Compare(x.Network, y.Network), strings.Compare(x.Peer, y.Peer))
		})
	}
	return all
}
