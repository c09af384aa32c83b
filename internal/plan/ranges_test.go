package plan_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
)

// TestPodRanges has pods in ranges that no Node has: they count as those of the Nodes, unlike other ranges inside the cluster.
func TestPodRanges(t *testing.T) {
	s := secondaryWorld() // clusterCIDRs are 10.250.0.0/16
	c := *s.Config
	c.PodCIDRs, s.Config = prefixes("10.251.0.0/16", "fd51::/16"), &c
	d, problems := plan.Build(s)
	require.Equal(t, prefixes("10.244.0.0/24", "10.244.1.0/24", "10.251.0.0/16", "fd51::/16"), d.DataPlane.Pods)
	require.Equal(t, prefixes("10.244.1.0/24", "10.251.0.0/16", "fd51::/16"), d.DataPlane.Guests)
	for _, inside := range prefixes("10.250.0.0/16", "10.251.0.0/16", "fd51::/16") {
		require.Contains(t, d.DataPlane.Cluster, inside)
	}
	outside := func(problems []cluster.Problem) bool {
		return slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Reason == plan.ReasonOutsidePodRanges })
	}
	require.False(t, outside(problems))
}
