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
	states = unserved(c)
	for _, p := range planned.DataPlane.Paths {
		if p.Key.Kind == plan.PathNetwork {
			has := routed[p.Table]
			states[p.Key.Name] = cluster.NetworkState{
				Usable: p.Table != 0 && planned.AbsenceOf(p.Key.Name) == "",
				IPv4:   has.IPv4, IPv6: has.IPv6, Sessions: peersOf(c, p.Key.Name),
			}
		}
	}
	countUp(states, sessions)
	for _, p := range planned.DataPlane.Paths {
		if p.Key.Kind == plan.PathNetwork && !complete(c, planned, p, states[p.Key.Name]) {
			incomplete = true
		}
	}
	return states, incomplete
}

// unserved returns the states of the networks that the configuration lists, as if none had a path. The leader waits for a state of each: it
// cannot know otherwise whether a node has read that configuration.
func unserved(c *config.Config) map[string]cluster.NetworkState {
	states := map[string]cluster.NetworkState{config.DefaultNetwork: {Sessions: peersOf(c, config.DefaultNetwork)}}
	for _, n := range c.Networks {
		states[n.Name] = cluster.NetworkState{Sessions: len(n.Peers)}
	}
	return states
}

// countUp adds the sessions that are up to the states of their networks.
func countUp(states map[string]cluster.NetworkState, sessions []bgp.Session) {
	for _, s := range sessions {
		if n, here := states[s.Network]; here && s.Up {
			n.Up++
			states[s.Network] = n
		}
	}
}

// complete reports whether the sessions of a network are up, and its peers have announced routes if they may.
func complete(c *config.Config, planned *plan.NodePlan, p plan.Path, n cluster.NetworkState) bool {
	unannounced := slices.Contains(planned.Held, p.Table) && !n.IPv4 && !n.IPv6
	return n.Up >= n.Sessions && (!unannounced || !learns(c, p.Key.Name))
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
// lacks. A session that is down since its link is, says so, whatever BGP or BFD noticed of it.
func everyPeer(c *config.Config, planned *plan.NodePlan, sessions []bgp.Session, down map[string]bool) []bgp.Session {
	sessions = blameLinks(planned, sessions, down)
	type key struct{ network, peer string }
	known := make(map[key]bool, len(sessions))
	for _, s := range sessions {
		known[key{s.Network, s.Peer}] = true
	}
	all := slices.Clip(sessions)
	for _, n := range c.Networks {
		for _, p := range n.Peers {
			name := p.PeerName()
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

// blameLinks returns the sessions with the links that are down as the reason of those that are not up.
func blameLinks(planned *plan.NodePlan, sessions []bgp.Session, down map[string]bool) []bgp.Session {
	if planned == nil || len(down) == 0 {
		return sessions
	}
	sessions = slices.Clone(sessions)
	for i := range sessions {
		s := &sessions[i]
		if s.Up {
			continue
		}
		if device := planned.DeviceOf(s.Network, s.Peer); down[device] {
			s.LastError = "link " + device + " is down"
		}
	}
	return sessions
}

// linksDown returns the names of the links that are down, or have no carrier.
func linksDown(links []plan.Link) map[string]bool {
	down := map[string]bool{}
	for _, l := range links {
		if !l.Up {
			down[l.Name] = true
		}
	}
	return down
}
