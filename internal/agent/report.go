package agent

import (
	"maps"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/leader"
)

// reportWithin is how long a daemon that starts waits for its sessions and their routes before it reports them missing:
// until then the report of its former run holds.
const reportWithin = 15 * time.Second

// report reports this node's state to the leader, and its addresses to all nodes.
func (a *Agent) report(c *config.Config, objects cluster.Objects, planned []cluster.Problem, inForce bool) {
	if a.server == nil {
		return
	}
	a.server.ShareAddresses(a.planner.Secondary())
	states, incomplete := a.states(c)
	r := cluster.Report{
		Networks: states, Hosts: a.last.others.nodes.Watched, Dead: slices.Sorted(maps.Keys(a.last.others.nodes.Dead)),
		Draining: a.draining.wanted(),
		Applied:  a.last.inForce.version, Unserved: leader.Unserved(planned),
	}
	if inForce {
		r.Applied = a.last.inForce.advance(objects, c.Node)
		a.last.inForce.advanceQoS(objects)
	}
	r.EgressQoSes = a.last.inForce.digest
	if incomplete && !r.Draining && a.starting() {
		return
	}
	a.last.reported = true
	a.server.Report(r)
}

// starting reports whether the report of the daemon's former run may still hold.
func (a *Agent) starting() bool { return !a.last.reported && time.Since(a.started) < reportWithin }

// sessions returns this node's sessions. Without a speaker all planned ones are down, whether or not they were up
// before.
func (a *Agent) sessions() (all []bgp.Session) {
	if a.speakers.Problem() == nil {
		return a.speakers.Sessions()
	}
	for _, s := range a.last.plan.Speakers {
		for range s.Peers {
			all = append(all, bgp.Session{Network: s.Network})
		}
	}
	return all
}

// inForce tracks which versions of EgressServices are in force on this node.
type inForce struct {
	version uint64          // the newest that was reported
	newest  uint64          // of all EgressServices
	pending cluster.Changed // changed since the last call of advance

	qos    cluster.Map[cluster.Key, cluster.EgressQoS] // that are in force
	digest string                                      // of qos; empty: there are none
}

// advanceQoS notes that the EgressQoSes are in force, unless the Pods that they select are not known yet.
func (f *inForce) advanceQoS(objects cluster.Objects) {
	all := objects.EgressQoSes
	switch {
	case all.Len() == 0:
		f.qos, f.digest = all, ""
	case objects.PodsKnown && !all.Same(f.qos):
		f.qos, f.digest = all, cluster.Revisions(all)
	}
}

// advance examines the changes that are in force now. It returns the newest version of all EgressServices if one that
// concerns node is newer than the last reported version, otherwise the last reported version.
func (f *inForce) advance(objects cluster.Objects, node string) uint64 {
	concerned := false
	look := func(key cluster.Key, e cluster.EgressService) {
		f.newest = max(f.newest, e.Version)
		concerned = concerned || e.Version > f.version && slices.Contains(election.Concerned(objects, key, e.Status), node)
	}
	if f.pending.All {
		for key, e := range objects.EgressServices.All() {
			look(key, e)
		}
	} else {
		for key := range f.pending.Of[cluster.KindEgressService] {
			look(key, objects.EgressServices.At(key)) // a deleted one has version 0
		}
	}
	f.pending = cluster.Changed{}
	if concerned {
		f.version = f.newest
	}
	return f.version
}
