package agent

import (
	"fmt"
	"strings"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/plan"
)

// filling is what is told of the table of connections.
type filling struct {
	kernel.Connections      // as told
	is                 bool // filling
}

// take takes in how full the table is and says whether another thing must be told. While it fills, that is the case with each
// twentieth of it: a number that is never the same would be a new problem every time.
func (f *filling) take(now kernel.Connections) (changed bool) {
	is := now.Filling(f.is)
	moved := max(now.Entries, f.Entries) - min(now.Entries, f.Entries)
	if is == f.is && (!is || now.Limit == f.Limit && moved < now.Limit/20) {
		return false
	}
	f.Connections, f.is = now, is
	return true
}

// look looks at what no event tells of, and says whether what is told of this node must change.
func (a *Agent) look(now time.Time) (changed bool) {
	_, changed = a.last.restored.problems("", now)
	connections, err := a.kernel.Connections()
	if err != nil {
		a.log.Debug("it is not known how full the table of connections is", "error", err)
		return changed
	}
	a.status.SetConnections(connections.Entries, connections.Limit)
	return a.last.filling.take(connections) || changed
}

// troubles tells what is wrong with this node itself, as it was when that was looked at last.
func (a *Agent) troubles(node string, now time.Time) []cluster.Problem {
	problems, _ := a.last.restored.problems(node, now)
	if a.last.filling.is {
		problems = append(problems, a.last.filling.Problem(node))
	}
	return append(problems, refusedProblems(a.last.plan, a.last.refused)...)
}

// refusedProblems tells of learned routes that the kernel does not take, of one in each network.
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
			Message: fmt.Sprintf("the kernel of node %s does not take what a peer tells: %s; the router should tell a next hop on the link, or a route without a gateway must lead to this one", p.Node, r.Err),
		})
	}
	return problems
}

// reasonNextHopRefused is of a Problem: a learned route is not in the kernel, for its next hop.
const reasonNextHopRefused cluster.Reason = "NextHopRefused"
