package agent

import (
	"maps"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// reportWithin is how long a daemon that starts waits for its sessions and their routes before it tells that they are
// missing: until then what its former run told still holds.
const reportWithin = 15 * time.Second

// report tells the leader what this node has.
func (a *Agent) report(c *config.Config, objects cluster.Objects, planned []cluster.Problem, inForce bool) {
	api, ok := a.source.(following)
	if !ok {
		return
	}
	states, incomplete := a.states(c)
	r := cluster.Report{
		Networks: states, Hosts: a.last.watched, Dead: slices.Sorted(maps.Keys(a.last.dead)), Draining: a.draining.wanted(),
		Applied: a.last.inForce.version, Unserved: unserved(planned),
	}
	if inForce {
		r.Applied = a.last.inForce.take(objects, c.Node)
	}
	if incomplete && !r.Draining && !a.last.reported && time.Since(a.started) < reportWithin {
		return
	}
	a.last.reported = true
	api.Report(r)
}

// unservedMost bounds what a report says of single EgressServices.
const unservedMost = 50

// unserved picks the problems of EgressServices that depend on the node: each node has other paths.
func unserved(planned []cluster.Problem) (all []cluster.Problem) {
	for _, p := range planned {
		if p.Kind == "EgressService" && p.Reason == plan.ReasonPathsExhausted && len(all) < unservedMost {
			all = append(all, p)
		}
	}
	return all
}

// withReported adds what other nodes report of EgressServices to the problems that this node finds.
func withReported(problems []cluster.Problem, reports map[string]cluster.Report) []cluster.Problem {
	problems = slices.Clone(problems)
	for _, node := range slices.Sorted(maps.Keys(reports)) {
		problems = append(problems, unserved(reports[node].Unserved)...)
	}
	return problems
}

// sessions are those of this node. Without a speaker the planned ones are down, be they known to have been up or not.
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

// inForce is which EgressServices are in force on this node, by their versions.
type inForce struct {
	version uint64          // the newest that was reported
	newest  uint64          // of all
	pending cluster.Changed // what has changed since it was looked at
}

// take looks at what has changed, now that it is in force. It gives the newest version among all EgressServices, where one that
// concerns node is newer than what was reported before.
func (f *inForce) take(objects cluster.Objects, node string) uint64 {
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
		for key := range f.pending.Keys {
			look(key, objects.EgressServices.At(key)) // one that is gone has version 0
		}
	}
	f.pending = cluster.Changed{}
	if concerned {
		f.version = f.newest
	}
	return f.version
}
