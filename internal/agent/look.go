package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/plan"
)

// filling is the published state of the connection table.
type filling struct {
	conntrack.Connections      // as published
	is                    bool // filling
}

// take records how full the table is, and reports whether that must be published. While the table fills, it must be
// after every twentieth: a number that always changes would be a new problem every time.
func (f *filling) take(now conntrack.Connections) (changed bool) {
	is := now.Filling(f.is)
	moved := max(now.Entries, f.Entries) - min(now.Entries, f.Entries)
	if is == f.is && (!is || now.Limit == f.Limit && moved < now.Limit/20) {
		return false
	}
	f.Connections, f.is = now, is
	return true
}

// look checks what no event reports, and reports whether this node's problems change.
func (a *Agent) look(now time.Time) (changed bool) {
	_, changed = a.last.restored.problems("", now)
	connections, err := a.kernel.Connections()
	if err != nil {
		a.log.Debug("cannot read how full the connection table is", "error", err)
		return changed
	}
	a.status.SetConnections(connections.Entries, connections.Limit)
	return a.last.filling.take(connections) || changed
}

// troubles returns the problems of this node itself, as of the last look.
func (a *Agent) troubles(node string, now time.Time) []cluster.Problem {
	problems, _ := a.last.restored.problems(node, now)
	if a.last.filling.is {
		problems = append(problems, a.last.filling.Problem(node))
	}
	return append(problems, refusedProblems(a.last.plan, a.last.refused)...)
}

// refusedProblems returns problems of the networks and hosts whose routes are left out.
func refusedProblems(p *plan.NodePlan, refused []kernel.Refused) (problems []cluster.Problem) {
	for _, r := range refused {
		i := slices.IndexFunc(p.DataPlane.Paths, func(path plan.Path) bool { return path.Table == r.Table })
		if i < 0 {
			continue
		}
		found := cluster.Problem{Kind: "Network", Object: p.DataPlane.Paths[i].Key.Name, Field: "routes", Value: r.Dst.String(), Reason: r.Reason}
		if p.DataPlane.Paths[i].Key.Kind == plan.PathSteer {
			found.Kind = "Node"
		} else if r.Learned {
			found.Field = "peers"
		}
		for _, hop := range r.NextHops {
			if hop.Gateway.IsValid() {
				found.Value += " via " + hop.Gateway.String()
			}
			if hop.Device != "" {
				found.Value += " dev " + hop.Device
			}
		}
		var remedy string
		switch r.Reason {
		case kernel.ReasonRouteCollides:
			remedy = fmt.Sprintf("another program's route in table %d has this prefix and metric, and stays: remove it, or give it another metric", r.Table)
		case kernel.ReasonDeviceDown:
			remedy = "set the device up"
		default:
			remedy = "the router should announce a next hop on the link, or a route without a gateway must lead to this one"
		}
		found.Message = fmt.Sprintf("node %s leaves this route out: %s; %s", p.Node, r.Err, remedy)
		problems = append(problems, found)
	}
	return problems
}
