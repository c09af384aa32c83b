package leader

import (
	"maps"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// unservedMost limits the problems of EgressServices in a report.
const unservedMost = 50

// Unserved returns the problems of EgressServices that depend on the node, at most unservedMost: each node has other paths.
func Unserved(planned []cluster.Problem) (all []cluster.Problem) {
	for _, p := range planned {
		if p.Kind == "EgressService" && p.Reason == plan.ReasonPathsExhausted && len(all) < unservedMost {
			all = append(all, p)
		}
	}
	return all
}

// withReported adds the problems that other nodes report to those that this node finds.
func withReported(problems []cluster.Problem, reports map[string]cluster.Report) []cluster.Problem {
	problems = slices.Clone(problems)
	for _, node := range slices.Sorted(maps.Keys(reports)) {
		problems = append(problems, Unserved(reports[node].Unserved)...)
	}
	return problems
}

// byObject groups the problems by EgressService.
func byObject(problems []cluster.Problem) map[string][]cluster.Problem {
	found := map[string][]cluster.Problem{}
	for _, p := range cluster.SortProblems(slices.Clone(problems)) {
		if p.Kind == "EgressService" || p.Kind == "Service" {
			found[p.Object] = append(found[p.Object], p)
		}
	}
	return found
}

// without removes the reason why there is no host, which the condition HostAssigned has.
func without(problems []cluster.Problem, p *cluster.Problem) []cluster.Problem {
	return slices.DeleteFunc(slices.Clone(problems), func(q cluster.Problem) bool {
		return q.Reason == election.ReasonNoHost || p != nil && q == *p
	})
}
