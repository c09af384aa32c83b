package kernel

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

func vlanPlan() *plan.NodePlan {
	return &plan.NodePlan{
		VLANs: []plan.VLAN{
			{Name: "eth7.1001", Parent: "eth7", ID: 1001, Addrs: []netip.Prefix{prefix("10.8.0.2/24"), prefix("2001:db8:8::2/64")}},
		},
		VRFs:      []plan.VRF{{Name: "red", Table: 1001, Create: true, Interfaces: []string{"eth7.1001", "eth2"}}},
		Routes:    sorted.Of(plan.Route{Table: 1001, Dst: prefix("0.0.0.0/0"), Metric: 20, NextHops: []plan.NextHop{via("10.8.0.1", "eth7.1001")}}),
		DataPlane: stories.DataPlane(),
	}
}

// TestVLANUnderWatch damages a sub-interface while events say what has to be read again.
func TestVLANUnderWatch(t *testing.T) {
	n, _, woken := watchedNode(t)
	p := vlanPlan()
	apply := func(restored ...string) {
		t.Helper()
		_, err := n.Facts(t.Context(), 1001)
		require.NoError(t, err)
		r, err := n.Apply(t.Context(), p)
		require.NoError(t, err)
		require.True(t, r.Whole(), "%+v", r)
		require.ElementsMatch(t, restored, r.Restored)
	}
	apply()
	netns.State(t) // wait until addresses settle
	apply()
	drain(t, woken)
	held := n.stirs.now()

	// Its neighbours come and go, and its parent has addresses of its own.
	netns.IP(t, "neigh add 10.8.0.77 lladdr 02:00:00:00:00:77 dev eth7.1001", "neigh del 10.8.0.77 dev eth7.1001", "addr add 10.9.0.77/24 dev eth7")
	netns.Eventually(t, func() bool { return n.stirs.now().facts != held.facts }, "the address is noticed")
	require.Equal(t, held.all, n.stirs.now().all, "nothing of ours needs to be read again")

	for damage, restored := range map[string][]string{
		"link del eth7.1001":                 {"VLAN sub-interface eth7.1001", "interface eth7.1001 in VRF red", "routes of table 1001"},
		"link set eth7.1001 nomaster":        {"interface eth7.1001 in VRF red", "routes of table 1001"},
		"link set eth7.1001 down":            {"routes of table 1001"},
		"addr del 10.8.0.2/24 dev eth7.1001": {"routes of table 1001"},
	} {
		before := n.stirs.now().all
		netns.IP(t, damage)
		netns.Eventually(t, func() bool { return n.stirs.now().all != before }, damage)
		apply(restored...)
		netns.State(t)
		apply()
		require.Contains(t, netns.IP(t, "addr show master red dev eth7.1001 up"), "10.8.0.2/24", damage)
		require.Contains(t, netns.IP(t, "route show vrf red"), "default via 10.8.0.1 dev eth7.1001", damage)
	}
}

// TestVLANAfterRestart expects that the next run changes nothing, and that the sub-interface goes when it is no longer planned.
func TestVLANAfterRestart(t *testing.T) {
	netns.Enter(t)
	netns.Uplink(t, "eth2")
	netns.Uplink(t, "eth7")
	before := netns.State(t)
	p := vlanPlan()
	for range 2 {
		n, err := openKept()
		require.NoError(t, err)
		apply := func() error {
			r, err := n.Apply(t.Context(), p)
			require.True(t, r.Whole(), "%+v", r)
			return err
		}
		require.NoError(t, apply())
		netns.State(t)
		netns.Quiet(t, apply)
		n.Close()
	}
	n, err := openKept()
	require.NoError(t, err)
	defer n.Close()
	netns.Quiet(t, func() error { _, err := n.Apply(t.Context(), p); return err })

	// The parent is gone: the network's other interface serves.
	netns.IP(t, "link del eth7")
	r, err := n.Apply(t.Context(), p)
	require.NoError(t, err)
	require.Contains(t, r.Unmade, "eth7.1001")
	require.NotContains(t, r.Unmade, "red")
	require.Contains(t, netns.IP(t, "link show eth2"), "master red")

	netns.Uplink(t, "eth7")
	require.NoError(t, func() error { _, err := n.Apply(t.Context(), p); return err }())
	require.Contains(t, netns.IP(t, "link show eth7.1001"), "master red")
	none := &plan.NodePlan{DataPlane: stories.DataPlane()}
	r, err = n.Apply(t.Context(), none)
	require.NoError(t, err)
	require.True(t, r.Whole())
	require.Len(t, netns.Show(t, "link show"), 5, "lo and two pairs: %s", before)
}
