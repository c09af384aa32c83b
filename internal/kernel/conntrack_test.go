package kernel

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
)

func TestConnectionsThatContradictThePlan(t *testing.T) {
	d := someDataPlane()
	m := d.Marks
	check := newFlowCheck(d)
	check.own[2] = map[netip.Addr]bool{addr("10.1.0.11"): true}
	const outside = "198.51.100.10"
	for _, c := range []struct {
		what                   string
		source, target, leaves string // target after DNAT, leaves after SNAT
		mark                   uint32
		ends                   bool
	}{
		{"egress as planned", "10.244.1.11", outside, "203.0.113.10", m.Egress(2), false},
		{"egress as planned, foreign bits in the mark", "10.244.1.11", outside, "203.0.113.10", m.Egress(2) | 0xdead0000, false},
		{"egress with the ingress IP of before", "10.244.1.11", outside, "203.0.113.99", m.Egress(2), true},
		{"egress by the network of before", "10.244.1.11", outside, "203.0.113.10", m.Egress(1), true},
		{"steered as planned", "10.244.1.12", outside, "10.244.1.12", m.Egress(3), false},
		{"masqueraded as planned", "10.244.1.13", outside, "10.1.0.11", m.Egress(2), false},
		{"masqueraded now, left with an ingress IP before", "10.244.1.13", outside, "203.0.113.10", m.Egress(2), true},
		{"masqueraded now, was steered before by the path that has the id now", "10.244.1.13", outside, "10.244.1.13", m.Egress(2), true},
		{"egress of a pod that has no path now", "10.244.1.14", outside, "203.0.113.10", m.Egress(2), true},
		{"egress of a pod that is not selected now", "10.244.1.99", outside, "203.0.113.10", m.Egress(2), true},
		{"begun before the pod was selected", "10.244.1.11", outside, "10.0.0.11", 0, true},
		{"of a selected pod inside the cluster", "10.244.1.11", "10.244.2.5", "10.244.1.11", 0, false},
		{"of a selected pod to a Service", "10.244.1.11", "10.244.2.5", "10.244.1.11", 0, false},
		{"of another pod", "10.244.1.99", outside, "10.0.0.11", 0, false},
		{"of the node", "10.0.0.11", "10.0.0.1", "10.0.0.11", 0, false},
		{"came in by a network", outside, "10.244.1.11", outside, m.Ingress(2), false},
		{"came in by a network that is gone", outside, "10.244.1.11", outside, m.Ingress(7), true},
		{"IPv6 egress as planned", "fd44:1::11", "2001:db8:100::10", "2001:db8:203::10", m.Egress(2), false},
		{"IPv6 begun before", "fd44:1::11", "2001:db8:100::10", "fd00::11", 0, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			of := connection{source: addr(c.source), target: addr(c.target), leaves: addr(c.leaves), mark: c.mark}
			require.Equal(t, c.ends, check.contradicts(of))
			of.zoned = true
			require.False(t, check.contradicts(of), "in a conntrack zone it is another program's")
		})
	}
}

// TestDoubtOfPlansBetween puts a plan into force that no connection was compared with, and then the previous plan
// again.
func TestDoubtOfPlansBetween(t *testing.T) {
	before, between := someDataPlane(), someDataPlane()
	e := before.Endpoints.Slice()[0]
	moved := e
	moved.Source = addr("203.0.113.99")
	between.Endpoints = between.Endpoints.With([]plan.Endpoint{moved}, nil)
	s := settled{plan: &before}
	require.False(t, s.takes(&before))
	require.True(t, s.takes(&between))
	again := before
	require.True(t, s.takes(&again), "what began under the one between may be there")
	require.Equal(t, map[netip.Addr]bool{e.Addr: true}, s.doubt(&again).endpoints)
	for range 2 * sinceMost {
		s.takes(&again)
	}
	require.True(t, s.doubt(&again).all, "too many to remember")
	require.LessOrEqual(t, len(s.since), sinceMost)
}
