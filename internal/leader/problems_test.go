package leader

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// TestUnservedIsReported checks that the problems of an EgressService on another node come with its report.
func TestUnservedIsReported(t *testing.T) {
	web := cluster.Problem{Kind: "EgressService", Object: "shop/web", Field: "status.host", Value: "b", Reason: plan.ReasonPathsExhausted, Message: "node c has no path id left"}
	other := cluster.Problem{Kind: "EgressService", Object: "shop/web", Reason: plan.ReasonIngressConflict}
	require.Equal(t, []cluster.Problem{web}, Unserved([]cluster.Problem{other, web, {Kind: "Config", Reason: plan.ReasonPathsExhausted}}))
	require.Len(t, Unserved(slices.Repeat([]cluster.Problem{web}, 1000)), unservedMost)
	found := byObject(withReported([]cluster.Problem{other}, map[string]cluster.Report{"c": {Unserved: []cluster.Problem{web}}, "d": {}}))
	require.Equal(t, []cluster.Problem{other, web}, found["shop/web"])
	require.Empty(t, withReported(nil, map[string]cluster.Report{"c": {Old: true, Unserved: []cluster.Problem{web}}}), "c may be dead")
}

// TestOneNodesProblems has an address that one node has itself, of objects of both kinds, and a VRF that the leader's node lacks.
func TestOneNodesProblems(t *testing.T) {
	held := func(kind, object string) cluster.Problem {
		return cluster.Problem{
			Kind: kind, Object: object, Field: "spec.egressIPs", Value: "203.0.113.7", Reason: cluster.ReasonAddressConflict,
			Message: "is an address of node c", Node: "c",
		}
	}
	web, team := held("EgressService", "shop/web"), held("EgressIP", "team")
	vrf := cluster.Problem{
		Kind: "EgressService", Object: "shop/web", Field: "spec.network", Value: "vrf-blue", Reason: plan.ReasonVRFMissing, Node: "a",
	}
	require.Equal(t, []cluster.Problem{web, team}, Unserved([]cluster.Problem{web, vrf, team}))

	reports := map[string]cluster.Report{"c": {Unserved: []cluster.Problem{web, team}}}
	require.Equal(t, []cluster.Problem{team}, ofEgressIPs(withReported(nil, reports))["team"])
	found := byObject(withReported([]cluster.Problem{vrf}, reports))["shop/web"]
	require.ElementsMatch(t, []cluster.Problem{web, vrf}, found)
	require.Equal(t, []cluster.Problem{web}, without(found, election.Choice{Host: "b"}, nil))
	require.Equal(t, found, without(found, election.Choice{}, nil), "no node may have it")

	everyNode, usable := election.Choice{Host: cluster.AllHosts}, map[string]cluster.NetworkState{"vrf-blue": {Usable: true}}
	require.Equal(t, found, without(found, everyNode, reports), "no node reports that it has it")
	reports["b"] = cluster.Report{Networks: usable}
	require.Equal(t, []cluster.Problem{web}, without(found, everyNode, reports), "b has it, Ready has who lacks it")
}
