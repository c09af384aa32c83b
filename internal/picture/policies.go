package picture

import (
	"strings"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/status"
)

// policies returns the rows of EgressQoSes and EgressFirewalls, which are not in the picture: they are in force on every node.
func policies(r status.Report) (rows []Service) {
	add := func(kind cluster.Kind, namespace, name string, rules, pods int, problems []status.Problem) {
		v := Service{Name: kind.String() + " " + namespace + "/" + name, Policy: true}
		v.Notes = count(rules, "rule") + ", " + count(pods, "pod") + " here"
		var wrong []string
		for _, p := range problems {
			wrong = append(wrong, reason(p))
		}
		v.Broken = strings.Join(wrong, "; ")
		rows = append(rows, v)
	}
	for _, q := range r.EgressQoSes {
		add(cluster.KindEgressQoS, q.Namespace, q.Name, q.Rules, q.Pods, q.Problems)
	}
	for _, f := range r.EgressFirewalls {
		add(cluster.KindEgressFirewall, f.Namespace, f.Name, f.Rules, f.Pods, f.Problems)
	}
	return rows
}
