package kernel

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// TestHeldTables starts with routes of an earlier run in a held table, and plans other routes there for a while. These
// go when they are no longer planned, both in a pass by difference and in a full re-read. Routes planned before the
// table was held stay.
func TestHeldTables(t *testing.T) {
	n, now, _ := watchedNode(t)
	learned := func(dst ...string) (all []plan.Route) {
		for _, d := range dst {
			all = append(all, plan.Route{Table: 1001, Dst: prefix(d), Metric: 20, NextHops: []plan.NextHop{via("10.1.0.1", "eth2")}})
		}
		return all
	}
	netns.IP(t, "route add 198.51.100.0/24 via 10.1.0.9 dev eth2 table 1001 metric 20 proto 142", "route add 203.0.113.0/24 via 10.1.0.9 dev eth2 table 1001 metric 20 proto 142")
	apply := func(held []uint32, routes []plan.Route, want ...string) {
		t.Helper()
		p := &plan.NodePlan{Held: held, Routes: sorted.Of(routes...), DataPlane: stories.DataPlane()}
		_, err := n.Apply(t.Context(), p)
		require.NoError(t, err)
		var got []string
		for _, l := range netns.Show(t, "route show table 1001") {
			got = append(got, fmt.Sprintf("%s via %s", l["dst"], l["gateway"]))
		}
		slices.Sort(got)
		require.Equal(t, want, got)
	}
	const first, second, own = "198.51.100.0/24 via 10.1.0.9", "203.0.113.0/24 via 10.1.0.9", "192.0.2.100/30 via 10.1.0.1"
	held := []uint32{1001}
	apply(held, nil, first, second)
	apply(held, learned("192.0.2.100/30", "198.51.100.0/24"), own, "198.51.100.0/24 via 10.1.0.1", second)
	apply(held, learned("192.0.2.100/30"), own, second)
	*now = now.Add(lookEvery)
	apply(held, nil, second)
	apply(held, nil, second)
	apply(nil, nil)

	// A restarted speaker does not know yet the routes that its predecessor had learned.
	apply(nil, learned("192.0.2.100/30"), own)
	apply(held, nil, own)
	apply(held, learned("192.0.2.100/30"), own)
	n.record.Whole = false
	apply(held, nil, own)
	apply(nil, nil)

	// Beside the routes of an earlier run, another program's stays.
	netns.IP(t, "route add 198.51.100.0/24 via 10.1.0.9 dev eth2 table 1001 metric 20 proto 142", "route add 203.0.113.0/24 via 10.1.0.9 dev eth2 table 1001 metric 20")
	apply(held, nil, first, second)
	apply(held, learned("198.51.100.0/24", "203.0.113.0/24"), "198.51.100.0/24 via 10.1.0.1", second)
	require.Len(t, n.record.refused, 1)
	apply(nil, learned("198.51.100.0/24", "203.0.113.0/24"), "198.51.100.0/24 via 10.1.0.1", second)
	apply(nil, nil, second)
}
