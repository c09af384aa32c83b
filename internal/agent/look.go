package agent

import (
	"fmt"
	"strings"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/plan"
)

// filling is the published state of the connection table.
type filling struct {
	kernel.Connections      // as published
	is                 bool // filling
}

// take records how full the table is, and reports whether that must be published. While the table fills, it must be
// after every twentieth: a number that always changes would be a new problem every time.
func (f *filling) take(now kernel.Connections) (changed bool) {
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

// refusedProblems returns a problem for each network with learned routes that the kernel refuses, with one route as
// example.
func refusedProblems(p *plan.NodePlan, refused map[uint32]kernel.Refused) (problems []cluster.Problem) {
	for _, path := range p.DataPlane.Paths {
		r, is := refused[path.Table]
		if !is || path.Key.Kind != plan.PathNetwork {
			continue
		}
		route := []string{r.Dst.String()}
		for _, hop := range r.NextHops {
			route = append(route, "via", hop.Gateway.String())
		}
		problems = append(problems, cluster.Problem{
			Kind: "Network", Object: path.Key.Name, Field: "peers", Value: strings.Join(route, " "), Reason: reasonNextHopRefused,
			Message: fmt.Sprintf("the kernel of node %s refuses a route of a peer: %s; the router should announce a next hop on the link, or a route without a gateway must lead to this one", p.Node, r.Err),
		})
	}
	return problems
}

// reasonNextHopRefused means that the kernel refuses a learned route because of its next hop.
const reasonNextHopRefused cluster.Reason = "NextHopRefused"
