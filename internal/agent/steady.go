package agent

import (
	"maps"
	"time"

	"github.com/egressway/egressway/internal/cluster"
)

const (
	// steadyFor is how long a network must have been the same on all nodes before the leader believes that it has changed. What befalls a
	// network befalls many nodes within moments: the first node that lost its route must not hand its services to the next that
	// will, nor the first that has one again be given those of all. It also passes over what only lasts a moment, such as
	// a VRF device that somebody deletes and the daemon makes anew.
	steadyFor = 500 * time.Millisecond
	// steadyWithin bounds how long a network that keeps changing is not believed.
	steadyWithin = 2 * time.Second
)

// steady is what the leader believes of networks on nodes. The zero value believes what it is told first.
type steady struct {
	networks map[string]*steadyNetwork
}

// steadyNetwork is one network: what nodes told of it.
type steadyNetwork struct {
	believed, told map[string]cluster.NetworkState // by node
	first, last    time.Time                       // change that is not believed yet
}

// same says whether two states make no difference to who may be a host.
func same(a, b cluster.NetworkState) bool {
	return a.Fit() == b.Fit() && a.Usable == b.Usable && a.IPv4 == b.IPv4 && a.IPv6 == b.IPv6
}

// believe gives the reports with the states of networks that are believed now. wait is the time until there may be another
// answer; 0: only a report can change it.
func (s *steady) believe(reports map[string]cluster.Report, now time.Time) (believed map[string]cluster.Report, wait time.Duration) {
	former := s.networks
	s.networks = map[string]*steadyNetwork{}
	for node, r := range reports {
		for name, state := range r.Networks {
			n := s.networks[name]
			if n == nil {
				n = &steadyNetwork{believed: map[string]cluster.NetworkState{}, told: map[string]cluster.NetworkState{}}
				if was := former[name]; was != nil {
					n.first, n.last = was.first, was.last
				}
				s.networks[name] = n
			}
			n.take(node, state, former[name], now)
		}
	}
	believed = maps.Clone(reports)
	for name, n := range s.networks {
		again := n.settle(now)
		if again == 0 {
			continue
		}
		if wait == 0 || again < wait {
			wait = again
		}
		for node, state := range n.believed {
			if r := believed[node]; !same(r.Networks[name], state) {
				r.Networks = maps.Clone(r.Networks)
				r.Networks[name] = state
				believed[node] = r
			}
		}
	}
	return believed, wait
}

// take notes what a node tells. One that told nothing before is believed: it had no services to lose.
func (n *steadyNetwork) take(node string, state cluster.NetworkState, former *steadyNetwork, now time.Time) {
	n.told[node], n.believed[node] = state, state
	if former == nil {
		return
	}
	was, known := former.believed[node]
	if !known {
		return
	}
	if !same(was, state) {
		n.believed[node] = was
	}
	if !same(former.told[node], state) {
		if n.last = now; n.first.IsZero() {
			n.first = now
		}
	}
}

// settle believes all that was told once it is time to, and gives the time until then; 0: it is.
func (n *steadyNetwork) settle(now time.Time) (wait time.Duration) {
	changed := false
	for node, state := range n.told {
		changed = changed || !same(n.believed[node], state)
	}
	if changed {
		wait = min(n.last.Add(steadyFor).Sub(now), n.first.Add(steadyWithin).Sub(now))
	}
	if wait > 0 {
		return wait
	}
	n.first, n.last, n.believed = time.Time{}, time.Time{}, n.told
	return 0
}
