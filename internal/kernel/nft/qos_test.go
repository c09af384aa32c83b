package nft

import (
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/qos"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// TestQoSLeavesNothing compares the tables of a node before its first class and after its last.
func TestQoSLeavesNothing(t *testing.T) {
	netns.Enter(t)
	listing := func() string {
		out, err := exec.CommandContext(t.Context(), "nft", "list", "table", "inet", "egressway").CombinedOutput()
		require.NoError(t, err)
		return string(out)
	}
	n := new(keptTable)
	t.Cleanup(n.Close)
	apply := func(d plan.DataPlane) {
		t.Helper()
		_, err := n.Apply(t.Context(), d)
		require.NoError(t, err)
		n.trusted = true
	}
	d := stories.DataPlane()
	apply(d)
	before := listing()
	require.NotContains(t, before, "qos")
	require.NotContains(t, before, "classes")

	a := netip.MustParseAddr
	with := d
	with.QoS = []qos.Class{
		{ID: 7, Ranges: []qos.Range{{First: a("0.0.0.0"), Last: a("203.0.112.255"), DSCP: 18}, {First: a("203.0.113.0"), Last: a("255.255.255.255"), DSCP: 46}}},
		{ID: 9, Ranges: []qos.Range{{First: a("2001:db8::"), Last: a("2001:db8::ffff"), DSCP: 0}}},
	}
	with.Marked = sorted.Of(qos.Marked{Addr: a("10.244.1.11"), Class: 7}, qos.Marked{Addr: a("fd44:1::11"), Class: 9})
	apply(with)
	require.Contains(t, listing(), "ip dscp set ef")
	apply(d)
	require.Equal(t, before, listing())
}
