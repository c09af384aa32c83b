package status

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// TestEgressIPsInReport expects a row for each address of an EgressIP, apart from the EgressServices, in report, text and metrics.
func TestEgressIPsInReport(t *testing.T) {
	first, second := netip.MustParseAddr("203.0.113.33"), netip.MustParseAddr("203.0.113.34")
	row := func(a netip.Addr, host, standby string) plan.Service {
		return plan.Service{
			Kind: cluster.KindEgressIP, Key: cluster.Key{Name: "prod"}, Slot: a, Network: "red", Host: host, Standby: standby,
			IngressIPs: []netip.Addr{a}, Endpoints: 3, Local: 1,
		}
	}
	p := &plan.NodePlan{Node: "a", Services: sorted.Of(
		plan.Service{Key: cluster.Key{Namespace: "shop", Name: "web"}, Network: "red", Host: "b"},
		row(first, "a", "b"), row(second, "", ""),
	)}
	answered := row(first, "a", "b")
	answered.OnLink = "eth1"
	p.Services = p.Services.With([]plan.Service{answered}, nil)
	problem := cluster.Problem{Kind: "EgressIP", Object: "prod", Field: "spec.egressIPs", Value: second.String(), Reason: cluster.ReasonNoEligibleNode}
	r := From(p, []cluster.Problem{problem}, nil, Pass{Plan: p})
	r.Node = "a"
	require.Len(t, r.Services, 1)
	require.Len(t, r.EgressIPs, 2)
	require.Equal(t, []string{"EgressIP prod"}, r.Hosted())
	require.Len(t, r.EgressIPs[1].Problems, 1)

	hosted, backed, states := r.byState(r.EgressIPs)
	require.Equal(t, []int{1, 0, 1}, []int{hosted, backed, states["nohost"]})
	require.Equal(t, 1, r.byNetwork()[""].services)
	require.Equal(t, 2, r.byNetwork()[""].egressIPs)

	var text strings.Builder
	require.NoError(t, WriteText(&text, r, false, time.Now()))
	require.Regexp(t, `(?m)^EGRESSIP +ADDRESS +NETWORK +HOST +STANDBY +PODS +HERE`, text.String())
	require.Regexp(t, `(?m)^prod +203\.0\.113\.33 +red +a +b +3 +1 +- +no +eth1 +NoEligibleNode$`, text.String())
	require.Regexp(t, `(?m)^prod +203\.0\.113\.34 +red +- +- +3`, text.String())
	require.NotContains(t, text.String(), "Problems:", "rows show them")
}
