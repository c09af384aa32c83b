package kernel

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

func tunnelPlan() *plan.NodePlan {
	return &plan.NodePlan{
		Tunnel:    &plan.Tunnel{Device: "egressway", VNI: 7, Port: 4790, MTU: 1450, Local: addr("10.0.0.1"), MAC: [6]byte{2, 0, 0, 0, 0, 1}},
		DataPlane: stories.DataPlane(),
	}
}

// TestTableComesFirst creates no device that lets packets in while the table cannot be created, and creates it once the
// table can.
func TestTableComesFirst(t *testing.T) {
	netns.Enter(t)
	netns.Uplink(t, "eth0", "10.0.0.1/24")
	n, err := openKept()
	require.NoError(t, err)
	defer n.Close()
	bad := tunnelPlan()
	bad.DataPlane.Uplinks = []plan.Uplink{{Device: "eth2", Path: 1}, {Device: "eth2", Path: 2}} // two uplinks with the same key
	before := netns.State(t)
	for range 2 {
		r, err := n.Apply(t.Context(), bad)
		require.ErrorContains(t, err, "nftables table egressway")
		require.False(t, r.InForce)
		require.Equal(t, before, netns.State(t))
	}
	r, err := n.Apply(t.Context(), tunnelPlan())
	require.NoError(t, err)
	require.True(t, r.InForce)
	require.Contains(t, netns.IP(t, "link show"), "egressway")

	// The same after another program deleted the table.
	n.Close()
	n, err = openKept()
	require.NoError(t, err)
	defer n.Close()
	netns.MustNFT(t, "delete table inet egressway")
	netns.IP(t, "link del egressway")
	before = netns.State(t)
	_, err = n.Apply(t.Context(), bad)
	require.ErrorContains(t, err, "nftables table egressway")
	require.Equal(t, before, netns.State(t))
}

// TestTableGoesLast interrupts a cleanup before everything else is removed: the table stays.
func TestTableGoesLast(t *testing.T) {
	netns.Enter(t)
	netns.Uplink(t, "eth0", "10.0.0.1/24")
	n, err := openKept()
	require.NoError(t, err)
	_, err = n.Apply(t.Context(), tunnelPlan())
	require.NoError(t, err)
	n.Close()

	n, err = openKept()
	require.NoError(t, err)
	defer n.Close()
	interrupted, stop := context.WithCancel(t.Context())
	stop()
	require.ErrorIs(t, n.Cleanup(interrupted, plan.Marks{Mask: 0x3f00}), context.Canceled)
	require.Contains(t, netns.Ruleset(t), "table inet egressway")

	require.NoError(t, n.Cleanup(t.Context(), plan.Marks{Mask: 0x3f00}))
	require.Empty(t, netns.Ruleset(t))
	require.NotContains(t, netns.IP(t, "link show"), "egressway")
}
