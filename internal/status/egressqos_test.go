package status

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/qos"
	"github.com/egressway/egressway/internal/sorted"
)

// TestEgressQoSesInReport expects a row for each EgressQoS with its own problems, and none of an EgressService of its name.
func TestEgressQoSesInReport(t *testing.T) {
	key := cluster.Key{Namespace: "shop", Name: "default"}
	p := &plan.NodePlan{
		Node: "a", EgressQoSes: sorted.Of(qos.Object{Key: key, Rules: 3, Pods: 2}, qos.Object{Key: cluster.Key{Namespace: "lab", Name: "default"}, Rules: 1}),
		Services: sorted.Of(plan.Service{Key: key, Network: "red", Host: "b"}), DataPlane: plan.DataPlane{QoS: make([]qos.Class, 4)},
	}
	r := From(p, []cluster.Problem{
		{Kind: "EgressQoS", Object: "shop/default", Field: "spec.egress[1].dscp", Value: "64", Reason: cluster.ReasonInvalidValue},
		{Kind: "EgressQoS", Object: "shop/gold", Field: "metadata.name", Value: "gold", Reason: cluster.ReasonInvalidName},
		{Kind: "EgressService", Object: "shop/default", Reason: cluster.ReasonNoEligibleNode},
	}, nil, Pass{Plan: p})
	require.Len(t, r.EgressQoSes, 2)
	require.Empty(t, r.EgressQoSes[0].Problems)
	require.Len(t, r.EgressQoSes[1].Problems, 1)
	require.Len(t, r.Services[0].Problems, 1)
	require.Equal(t, 4, r.QoSClasses)

	var text strings.Builder
	require.NoError(t, WriteText(&text, r, false, time.Now()))
	require.Regexp(t, `(?m)^EGRESSQOS +RULES +PODS HERE +PROBLEM$`, text.String())
	require.Regexp(t, `(?m)^lab/default +1 +0 +-$`, text.String())
	require.Regexp(t, `(?m)^shop/default +3 +2 +InvalidValue$`, text.String())
	require.Contains(t, text.String(), "EgressQoS shop/gold", "no row shows it")
	require.NotContains(t, text.String(), "EgressQoS shop/default", "its row shows it")
}
