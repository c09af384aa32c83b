package leader

import (
	"maps"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// unservedMost limits the problems of EgressServices and EgressIPs in a report.
const unservedMost = 50

// Unserved returns the problems of EgressServices and EgressIPs that other nodes may not have, at most unservedMost: each node has other
// paths and addresses. A node without the VRF of an unlisted network is no host, and steers to one.
func Unserved(planned []cluster.Problem) (all []cluster.Problem) {
	for _, p := range planned {
		kept := p.Kind == cluster.KindEgressService.String() || p.Kind == cluster.KindEgressIP.String()
		alone := p.Node != "" || p.Reason == plan.ReasonPathsExhausted // earlier versions name no node
		if kept && alone && p.Reason != plan.ReasonVRFMissing && len(all) < unservedMost {
			all = append(all, p)
		}
	}
	return all
}

// withReported adds the problems that other nodes report to those that this node finds. Old reports may be of dead nodes.
func withReported(problems []cluster.Problem, reports map[string]cluster.Report) []cluster.Problem {
	problems = slices.Clone(problems)
	for _, node := range slices.Sorted(maps.Keys(reports)) {
		if !reports[node].Old {
			problems = append(problems, Unserved(reports[node].Unserved)...)
		}
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

// without removes the reason why there is no host, which the condition HostAssigned has, and the VRF of an unlisted network that the
// leader's node lacks, if another node has it: so has the host, and where every node is the host, one that reports it. Whether all of
// these have it is the affair of the condition Ready.
func without(problems []cluster.Problem, choice election.Choice, reports map[string]cluster.Report) []cluster.Problem {
	return slices.DeleteFunc(slices.Clone(problems), func(q cluster.Problem) bool {
		return q.Reason == election.ReasonNoHost || choice.Problem != nil && q == *choice.Problem ||
			q.Reason == plan.ReasonVRFMissing && q.Node != "" && elsewhere(q.Value, choice.Host, reports)
	})
}

// elsewhere reports whether a network is usable on any node, as far as the choice of an object's host and the reports show.
func elsewhere(network, host string, reports map[string]cluster.Report) bool {
	if host != cluster.AllHosts {
		return host != ""
	}
	for _, r := range reports {
		if r.Networks[network].Usable {
			return true
		}
	}
	return false
}
