package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// TestNetworksOfOneTable plans two networks whose VRF devices have one table, and whose peers announce the same route. The
// route stays until neither announces it.
func TestNetworksOfOneTable(t *testing.T) {
	c := config.Defaults()
	c.Networks = append(c.Networks, config.Network{Name: "red", VRF: "vrf-red"}, config.Network{Name: "blue", VRF: "vrf-blue"})
	s := plan.Snapshot{Node: "n0", Config: c, Facts: plan.Facts{Links: []plan.Link{{Name: "vrf-red", Up: true, VRFTable: 1001}, {Name: "vrf-blue", Up: true, VRFTable: 1001}}}}
	by := func(gateway string) sorted.List[plan.Route] {
		return sorted.Of(plan.Route{Dst: prefixes("192.0.2.0/24")[0], NextHops: []plan.NextHop{{Gateway: addr(gateway), Device: "eth2"}}})
	}
	blue, red := plan.NetworkRoutes{Network: "blue", Routes: by("10.1.0.1")}, plan.NetworkRoutes{Network: "red", Routes: by("10.1.0.2")}
	var planner plan.Planner
	for step, learned := range [][]plan.NetworkRoutes{{blue, red}, {blue}, {blue, red}, {red}, {blue, red}, {blue, {Network: "red"}}, {}} {
		s.Learned = learned
		changed := cluster.Changed{}
		if step == 0 {
			changed = cluster.Everything()
		}
		planned, _ := planner.Plan(s, changed)
		full, _ := plan.Build(s)
		require.Equal(t, full.Routes.Slice(), planned.Routes.Slice(), "step %d", step)
		require.Equal(t, len(learned) > 0, planned.Routes.Len() == 1, "step %d", step)
	}
}
