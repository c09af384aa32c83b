package plan_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// TestTableChangesHands moves a VRF device to the table of another, and back, while the peers of both networks announce the same route.
// The table holds the route of the network that keeps it.
func TestTableChangesHands(t *testing.T) {
	c := config.Defaults()
	c.Networks = append(c.Networks, config.Network{Name: "red", VRF: "vrf-red"}, config.Network{Name: "blue", VRF: "vrf-blue"})
	s := plan.Snapshot{Node: "n0", Config: c}
	by := func(gateway string) sorted.List[plan.Route] {
		return sorted.Of(plan.Route{Dst: prefixes("192.0.2.0/24")[0], NextHops: []plan.NextHop{{Gateway: addr(gateway), Device: "eth2"}}})
	}
	blue, red := plan.NetworkRoutes{Network: "blue", Routes: by("10.1.0.1")}, plan.NetworkRoutes{Network: "red", Routes: by("10.1.0.2")}
	both := []plan.NetworkRoutes{blue, red}
	var planner plan.Planner
	for step, now := range []struct {
		table   uint32 // of vrf-blue
		learned []plan.NetworkRoutes
		routes  []string // table and gateway
	}{
		{1002, both, []string{"1001 10.1.0.2", "1002 10.1.0.1"}},
		{1001, both, []string{"1001 10.1.0.1"}},
		{1001, []plan.NetworkRoutes{red}, nil},
		{1001, both, []string{"1001 10.1.0.1"}},
		{1002, both, []string{"1001 10.1.0.2", "1002 10.1.0.1"}},
		{1001, []plan.NetworkRoutes{blue}, []string{"1001 10.1.0.1"}},
		{1002, []plan.NetworkRoutes{red}, []string{"1001 10.1.0.2"}},
		{1001, nil, nil},
	} {
		s.Learned = now.learned
		s.Facts.Links = []plan.Link{{Name: "vrf-red", Up: true, VRFTable: 1001}, {Name: "vrf-blue", Up: true, VRFTable: now.table}}
		changed := cluster.Changed{}
		if step == 0 {
			changed = cluster.Everything()
		}
		planned, _ := planner.Plan(s, changed)
		full, _ := plan.Build(s)
		require.Equal(t, full.Routes.Slice(), planned.Routes.Slice(), "step %d", step)
		var routes []string
		for r := range planned.Routes.All() {
			routes = append(routes, fmt.Sprint(r.Table, " ", r.NextHops[0].Gateway))
		}
		require.Equal(t, now.routes, routes, "step %d", step)
	}
}
