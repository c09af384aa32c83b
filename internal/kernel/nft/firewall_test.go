package nft

import (
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// manyPolicies returns a plan with so many policies, each of so many ranges, whose ports all differ.
func manyPolicies(d plan.DataPlane, policies, ranges int) plan.DataPlane {
	var firewalled []firewall.Firewalled
	for n := range policies {
		p := firewall.Policy{ID: firewall.PolicyID(1<<20 + n), Stretches: make([]firewall.Stretch, 1)}
		s := &p.Stretches[0]
		for i := range ranges {
			to := netip.AddrFrom4([4]byte{203, byte(i >> 8), byte(i), 0})
			s.Ranges = append(s.Ranges, firewall.Range{First: to, Last: cluster.LastAddr(netip.PrefixFrom(to, 24)), Outcome: firewall.FirstPorts + firewall.Outcome(i)})
			s.Ports = append(s.Ports, firewall.Ports{Otherwise: firewall.Deny, Allow: []cluster.FirewallPort{{Protocol: unix.IPPROTO_TCP, Number: uint16(1 + i)}}})
		}
		d.Policies = append(d.Policies, p)
		firewalled = append(firewalled, firewall.Firewalled{Addr: netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)}), Policy: p.ID})
	}
	d.Firewalled = sorted.Of(firewalled...)
	return d
}

// TestFirewallLeavesNothing compares the tables of a node before its first policy and after its last.
func TestFirewallLeavesNothing(t *testing.T) {
	netns.Enter(t)
	listing := func() string {
		out, err := exec.CommandContext(t.Context(), "nft", "list", "table", "inet", "egressway").CombinedOutput()
		require.NoError(t, err, string(out))
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
	d.Hold = true // so that no address had connections before
	apply(d)
	before := listing()
	require.NotContains(t, before, "policy-")
	require.NotContains(t, before, "drop-firewall")

	apply(manyPolicies(d, 1, 2))
	require.Contains(t, listing(), `counter name "drop-firewall" drop`)
	apply(d)
	require.Equal(t, before, listing())
}

// TestManyPolicies expects the kernel to take policies of a node full of pods, each for itself with rules for many ports: it bounds how
// deep chains may nest.
func TestManyPolicies(t *testing.T) {
	netns.Enter(t)
	n := new(keptTable)
	t.Cleanup(n.Close)
	d := manyPolicies(stories.DataPlane(), 300, 1)
	d.Policies[7] = manyPolicies(plan.DataPlane{}, 1, 2000).Policies[0]
	d.Policies[7].ID = 1<<20 + 7
	_, err := n.Apply(t.Context(), d)
	require.NoError(t, err)
}
