package leader

import (
	"maps"
	"time"

	"github.com/egressway/egressway/internal/cluster"
)

const (
	// steadyFor is how long a network must be unchanged on all nodes before the leader believes that it has changed. A
	// failure of a network reaches many nodes within moments: the first node that lost its route must not hand its
	// services to the next one that will, nor must the first node with a route get the services of all. The delay also
	// hides short changes, such as a VRF device that another program deletes and the daemon makes again.
	steadyFor = 500 * time.Millisecond
	// steadyWithin limits how long the leader does not believe a network that keeps changing.
	steadyWithin = 2 * time.Second
)

// damping delays changes of the states of networks that nodes report. The zero value believes the first reports.
type damping struct {
	networks map[string]*dampedNetwork
}

// dampedNetwork is the state of one network.
type dampedNetwork struct {
	believed, reported map[string]cluster.NetworkState // by node
	first, last        time.Time                       // times of changes that are not believed yet
}

// same reports whether two states are equal for the choice of hosts.
func same(a, b cluster.NetworkState) bool {
	return a.Fit() == b.Fit() && a.Usable == b.Usable && a.IPv4 == b.IPv4 && a.IPv6 == b.IPv6
}

// dampen returns the reports with the believed states of networks. wait is the time until the result may change
// without another report; 0: never.
func (d *damping) dampen(reports map[string]cluster.Report, now time.Time) (believed map[string]cluster.Report, wait time.Duration) {
	former := d.networks
	d.networks = map[string]*dampedNetwork{}
	for node, r := range reports {
		for name, state := range r.Networks {
			d.network(name, former[name]).record(node, state, former[name], now)
		}
	}
	believed = maps.Clone(reports)
	for name, n := range d.networks {
		again := n.settle(now)
		if again == 0 {
			continue
		}
		wait = soonest(wait, again)
		n.correct(believed, name)
	}
	return believed, wait
}

// network returns the state of a network, whose former state may be nil.
func (d *damping) network(name string, former *dampedNetwork) *dampedNetwork {
	n := d.networks[name]
	if n == nil {
		n = &dampedNetwork{believed: map[string]cluster.NetworkState{}, reported: map[string]cluster.NetworkState{}}
		if former != nil {
			n.first, n.last = former.first, former.last
		}
		d.networks[name] = n
	}
	return n
}

// correct replaces the network's states in reports by those that are believed.
func (n *dampedNetwork) correct(reports map[string]cluster.Report, name string) {
	for node, state := range n.believed {
		if r := reports[node]; !same(r.Networks[name], state) {
			r.Networks = maps.Clone(r.Networks)
			r.Networks[name] = state
			reports[node] = r
		}
	}
}

// record keeps the state that a node reports. A node's first report is believed: the node had no services to lose.
func (n *dampedNetwork) record(node string, state cluster.NetworkState, former *dampedNetwork, now time.Time) {
	n.reported[node], n.believed[node] = state, state
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
	if !same(former.reported[node], state) {
		if n.last = now; n.first.IsZero() {
			n.first = now
		}
	}
}

// settle believes all reports once it is time to, and returns the time until then; 0: it has.
func (n *dampedNetwork) settle(now time.Time) (wait time.Duration) {
	changed := false
	for node, state := range n.reported {
		changed = changed || !same(n.believed[node], state)
	}
	if changed {
		wait = min(n.last.Add(steadyFor).Sub(now), n.first.Add(steadyWithin).Sub(now))
	}
	if wait > 0 {
		return wait
	}
	n.first, n.last, n.believed = time.Time{}, time.Time{}, n.reported
	return 0
}
