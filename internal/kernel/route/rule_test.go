package route

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
)

func TestRules(t *testing.T) {
	netns.Enter(t)
	netns.IP(t, "rule add pref 700 fwmark 0x7f0000/0xff0000 lookup 254", // equal to one of ours, except for the protocol
		"rule add pref 750 from 10.244.0.0/16 lookup 50", "-6 rule add pref 760 fwmark 0x10000/0xff0000 lookup 60")
	before := netns.State(t)
	desired := []plan.Rule{
		{Priority: 700, Mark: 0x7f0000, Mask: 0xff0000, Table: 254},
		{Priority: 701, Mark: 0x810000, Mask: 0xff0000, Table: 1001},
		{Priority: 701, Mark: 0x820000, Mask: 0xff0000, Table: 1002},
		{Priority: 799, Mark: 0x800000, Mask: 0x800000, Unreachable: true},
	}
	apply := func() error {
		if err := addRules(t.Context(), desired); err != nil {
			return err
		}
		return pruneRules(t.Context(), desired)
	}
	require.NoError(t, apply())
	netns.Quiet(t, apply)
	for _, family := range []string{"-4 ", "-6 "} {
		printed := netns.IP(t, family+"rule show")
		require.Contains(t, printed, "701:\tfrom all fwmark 0x810000/0xff0000 lookup 1001 proto 142")
		require.Contains(t, printed, "701:\tfrom all fwmark 0x820000/0xff0000 lookup 1002 proto 142")
		require.Contains(t, printed, "799:\tfrom all fwmark 0x800000/0x800000 unreachable proto 142")
	}
	require.Contains(t, netns.IP(t, "-6 rule show"), "700:\tfrom all fwmark 0x7f0000/0xff0000 lookup main proto 142")

	// Damage is repaired: a rule deleted, one duplicated, one with another action, one with selectors that ours never
	// have.
	netns.IP(t, "rule del pref 799", "-6 rule add pref 701 fwmark 0x830000/0xff0000 lookup 1003 proto 142",
		"rule add pref 799 fwmark 0x800000/0x800000 blackhole proto 142", "rule add pref 701 from 10.0.0.1 fwmark 0x810000/0xff0000 lookup 1001 proto 142")
	require.NoError(t, apply())
	require.Contains(t, netns.IP(t, "rule show"), "799:\tfrom all fwmark 0x800000/0x800000 unreachable proto 142")
	require.NotContains(t, netns.IP(t, "rule show"), "blackhole")
	require.NotContains(t, netns.IP(t, "-6 rule show"), "1003")
	require.Contains(t, netns.IP(t, "rule show"), "from 10.0.0.1", "a rule that we never make is not ours")
	netns.IP(t, "rule del pref 701 from 10.0.0.1")

	desired = desired[1:2]
	require.NoError(t, apply())
	require.NotContains(t, netns.IP(t, "rule show"), "unreachable")
	desired = nil
	require.NoError(t, apply())
	require.Equal(t, before, netns.State(t), "a foreign rule changed")
}
