package nft

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// TestRangesComeBeforeRules follows what the kernel says of a new table, and of policies. The rules that look into new ranges come in a later
// transaction: in one with the ranges they would be in force while these cannot be found yet. The ranges of an old one go in a later
// transaction than its pods: a packet under way may still look into them.
func TestRangesComeBeforeRules(t *testing.T) {
	netns.Enter(t)
	n := new(keptTable)
	t.Cleanup(n.Close)
	d := stories.DataPlane()
	path := filepath.Join(t.TempDir(), "events")
	events, err := os.Create(path)
	require.NoError(t, err)
	monitor := exec.CommandContext(t.Context(), "nft", "monitor")
	monitor.Stdout = events
	require.NoError(t, monitor.Start())
	t.Cleanup(func() { _ = monitor.Process.Kill(); _ = monitor.Wait() })
	said := func() string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	follow := func(mark string) {
		t.Helper()
		netns.Eventually(t, func() bool {
			out, err := exec.CommandContext(t.Context(), "nft", "add table inet "+mark+"; delete table inet "+mark).CombinedOutput()
			require.NoError(t, err, string(out))
			return strings.Contains(said(), mark)
		}, "nft monitor says "+mark)
	}
	follow("begin")
	_, err = n.Apply(t.Context(), d)
	require.NoError(t, err)
	follow("made")
	_, after, found := strings.Cut(said(), "add element inet egressway cluster4 ")
	require.True(t, found, said())
	generation, rule := strings.Index(after, "new generation"), strings.Index(after, "add rule inet egressway prerouting ")
	require.Positive(t, generation)
	require.Greater(t, rule, generation, after)

	_, err = n.Apply(t.Context(), manyPolicies(d, 1, 2))
	require.NoError(t, err)
	follow("end")
	_, after, found = strings.Cut(said(), "add element inet egressway policy-1048576-0 ")
	require.True(t, found, said())
	generation, rule = strings.Index(after, "new generation"), strings.Index(after, "add rule inet egressway firewall ")
	require.Positive(t, generation)
	require.Greater(t, rule, generation, after)

	next := manyPolicies(d, 2, 2)
	next.Policies = next.Policies[1:]
	next.Firewalled = sorted.Of(firewall.Firewalled{Addr: netip.MustParseAddr("10.244.0.0"), Policy: next.Policies[0].ID})
	follow("again")
	_, err = n.Apply(t.Context(), next)
	require.NoError(t, err)
	follow("last")
	_, after, found = strings.Cut(said(), "add table inet again")
	require.True(t, found, said())
	_, after, found = strings.Cut(after, "add element inet egressway firewalled4 ")
	require.True(t, found, said())
	generation, gone := strings.Index(after, "new generation"), strings.Index(after, "policy-1048576-0")
	require.Positive(t, generation)
	require.Greater(t, gone, generation, after)
}
