package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// TestRestored removes objects and expects their names in Restored, and facts that include all that can be restored.
func TestRestored(t *testing.T) {
	netns.Enter(t)
	netns.Uplink(t, "eth2", "10.1.0.2/24", "2001:db8:1::2/64")
	n, err := openKept()
	require.NoError(t, err)
	t.Cleanup(n.Close)
	p := &plan.NodePlan{
		VRFs: []plan.VRF{{Name: "red", Table: 1001, Create: true, Interfaces: []string{"eth2"}}},
		Rules: []plan.Rule{
			{Priority: 701, Mark: 0x2100, Mask: 0x3f00, Table: 1001}, {Priority: 799, Mark: 0x2000, Mask: 0x2000, Unreachable: true},
		},
		Routes: sorted.Of(
			plan.Route{Table: 1001, Dst: prefix("0.0.0.0/0"), Metric: 20, NextHops: []plan.NextHop{via("10.1.0.1", "eth2")}},
			plan.Route{Table: 1001, Dst: prefix("::/0"), Metric: 20, NextHops: []plan.NextHop{via("2001:db8:1::1", "eth2")}},
			plan.Route{Table: 794603, Dst: prefix("0.0.0.0/0"), NextHops: []plan.NextHop{via("10.1.0.3", "eth2")}},
		),
		DataPlane: stories.DataPlane(),
	}
	apply := func() []string {
		t.Helper()
		r, err := n.Apply(t.Context(), p)
		require.NoError(t, err)
		require.True(t, r.InForce)
		return r.Restored
	}
	require.Empty(t, apply(), "what was never there is not taken away")
	require.Empty(t, apply())

	netns.IP(t, "rule del pref 799", "-6 rule del pref 799", "rule del pref 701")
	require.ElementsMatch(t, []string{"rule 701", "rule 799"}, apply())
	netns.IP(t, "route change default via 10.1.0.9 dev eth2 table 1001 metric 20 proto 142", "route del default table 794603")
	require.ElementsMatch(t, []string{"routes of table 1001", "routes of table 794603"}, apply())
	require.Empty(t, apply())

	routed := func() plan.Families {
		t.Helper()
		f, err := n.Facts(t.Context())
		require.NoError(t, err)
		return f.Routed[1001]
	}
	require.Equal(t, plan.Families{IPv4: true, IPv6: true}, routed())
	netns.IP(t, "-6 route del default table 1001 metric 20")
	require.Equal(t, plan.Families{IPv4: true, IPv6: true}, routed(), "it is put back")
	netns.IP(t, "link del red")
	require.Equal(t, plan.Families{IPv4: true, IPv6: true}, routed())
	require.ElementsMatch(t, []string{"VRF device red", "interface eth2 in VRF red", "routes of table 1001", "routes of table 794603"}, apply())
	netns.IP(t, "link set eth2 down")
	require.Equal(t, plan.Families{}, routed(), "it is gone")

	// Only the owner can change an owned table. Without an owner, a change is noticed.
	netns.IP(t, "link set eth2 up", "addr add 2001:db8:1::2/64 dev eth2 nodad")
	netns.Eventually(t, func() bool { _, err := n.Apply(t.Context(), p); return err == nil }, "the link is back")
	n.nft.Close()
	require.NoError(t, n.nft.Claim(0))
	_ = apply()
	require.Empty(t, apply())
	contradicted := func() bool {
		t.Helper()
		r, err := n.Apply(t.Context(), p)
		require.NoError(t, err)
		return r.Contradicted
	}
	end := func() {
		t.Helper()
		_, err := n.EndContradictions(t.Context(), p.DataPlane)
		require.NoError(t, err)
		require.False(t, contradicted())
	}
	end()
	netns.MustNFT(t, "flush chain inet egressway guard")
	require.Equal(t, []string{"nftables table inet egressway"}, apply())
	require.True(t, contradicted(), "packets may have passed without the chain")
	end()
	paths := func() map[plan.PathKey]plan.PathID {
		t.Helper()
		f, err := n.Facts(t.Context())
		require.NoError(t, err)
		return f.Paths
	}
	inForce := paths()
	require.Len(t, inForce, len(p.DataPlane.Paths))
	netns.MustNFT(t, "flush ruleset")
	require.Equal(t, inForce, paths(), "connections carry these ids")
	require.Equal(t, []string{"nftables table inet egressway"}, apply())
	require.True(t, contradicted(), "packets may have passed without the table")
	require.Empty(t, apply())

	// An object that is no longer planned is no drift.
	p = &plan.NodePlan{DataPlane: p.DataPlane}
	require.Empty(t, apply())
}
