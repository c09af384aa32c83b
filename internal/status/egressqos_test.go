package status

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/qos"
	"github.com/egressway/egressway/internal/sorted"
)

// TestMarkingIsOfTheFirstRule asks for the rule that decides about packets of a pod.
func TestMarkingIsOfTheFirstRule(t *testing.T) {
	a, p := netip.MustParseAddr, netip.MustParsePrefix
	rules := []qos.Rule{
		{Number: 1, DSCP: 46, To: p("203.0.113.0/25"), Pods: "app=web"},
		{Number: 3, DSCP: 0, To: p("203.0.113.0/24")}, // rule 2 is invalid
		{Number: 4, DSCP: 8, To: p("2001:db8::/32")},
		{Number: 5, DSCP: 10, Pods: "app=web"},
	}
	shop := cluster.Key{Namespace: "shop", Name: "default"}
	pod := func(address, rules string, twice bool) qos.Pod {
		return qos.Pod{Addr: a(address), Key: cluster.Key{Namespace: "shop", Name: "p"}, Rules: rules, Twice: twice}
	}
	policies := &plan.NodePlan{
		EgressQoSes: sorted.Of(qos.Object{Key: shop, Rules: 4, Given: rules}),
		QoSPods:     sorted.Of(pod("10.244.1.11", "\x0f", false), pod("10.244.1.12", "\x06", false), pod("10.244.1.13", "\x0f", true)),
	}
	value := func(n uint8) *uint8 { return &n }
	for _, test := range []struct {
		from, to string
		want     *Marking
	}{
		{"10.244.1.11", "203.0.113.9", &Marking{DSCP: value(46), Rule: "rule 1: DSCP 46 to 203.0.113.0/25 from pods with app=web", Later: []int{3, 5}}},
		{"10.244.1.11", "203.0.113.200", &Marking{DSCP: value(0), Rule: "rule 3: DSCP 0 to 203.0.113.0/24 from all pods", Later: []int{5}}},
		{"10.244.1.11", "198.51.100.1", &Marking{DSCP: value(10), Rule: "rule 5: DSCP 10 to all destinations from pods with app=web"}},
		{"10.244.1.12", "203.0.113.9", &Marking{DSCP: value(0), Rule: "rule 3: DSCP 0 to 203.0.113.0/24 from all pods"}},
		{"10.244.1.12", "198.51.100.1", &Marking{}},
		{"10.244.1.13", "203.0.113.9", &Marking{Twice: true}},
		{"10.244.1.14", "203.0.113.9", nil},
	} {
		if test.want != nil {
			test.want.Object = "shop/default"
		}
		require.Equal(t, test.want, markingOf(policies, a(test.from), a(test.to)), "%s to %s", test.from, test.to)
	}
}

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
