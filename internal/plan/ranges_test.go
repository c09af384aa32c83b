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
	web := cluster.Key{Namespace: "shop", Name: "web"}
	egress := cluster.EgressService{Network: "red", SourceIPBy: cluster.SourceIPByLoadBalancer}
	s.Objects.EgressServices = s.Objects.EgressServices.With(web, egress)
	s.Objects.Services = s.Objects.Services.With(web, cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: "203.0.113.9"}}})
	s.Objects.Endpoints = s.Objects.Endpoints.With(web, []cluster.Endpoint{{Address: "10.251.0.7", Node: "n1"}})
	outside := func(problems []cluster.Problem) bool {
		return slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Reason == plan.ReasonOutsidePodRanges })
	}
	_, problems := plan.Build(s)
	require.True(t, outside(problems))

	c := *s.Config
	c.PodCIDRs, s.Config = prefixes("10.251.0.0/16", "fd51::/16"), &c
	d, problems := plan.Build(s)
	require.False(t, outside(problems))
	require.Equal(t, prefixes("10.244.0.0/24", "10.244.1.0/24", "10.251.0.0/16", "fd51::/16"), d.DataPlane.Pods)
	require.Equal(t, prefixes("10.244.1.0/24", "10.251.0.0/16", "fd51::/16"), d.DataPlane.Guests)
	for _, inside := range prefixes("10.250.0.0/16", "10.251.0.0/16", "fd51::/16") {
		require.Contains(t, d.DataPlane.Cluster, inside)
	}
}
