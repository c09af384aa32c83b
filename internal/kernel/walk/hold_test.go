package walk

import (
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
)

// holdDataPlane holds pods, except for one address of each family that is no endpoint.
func holdDataPlane() plan.DataPlane {
	d := walkDataPlane()
	d.Hold = true
	d.Let = sorted.Of(plan.Address{Addr: netip.MustParseAddr("10.244.1.50")}, plan.Address{Addr: netip.MustParseAddr("fd44:1::50")})
	return d
}

// heldMeetings are packets of pods where all but endpoints are held.
func heldMeetings() []meeting {
	a := netip.MustParseAddr
	const let, none, outside = "10.244.1.50", "10.244.1.99", "198.51.100.10"
	tcp := func(from, to, in string, c Connection) Packet {
		return Packet{From: a(from), To: a(to), Proto: unix.IPPROTO_TCP, Port: 80, In: in, Connection: c}
	}
	known := Connection{Known: true}
	return []meeting{
		{name: "endpoint", packet: tcp("10.244.1.11", outside, "cni0", Connection{}), chain: "prerouting", decided: "path-2", mark: 0x2200, ctMark: 0x2200},
		{name: "let go", packet: tcp(let, outside, "cni0", Connection{}), chain: "prerouting"},
		{name: "held", packet: tcp(none, outside, "cni0", Connection{}), chain: "prerouting", dropped: true, decided: ruleset.ChainHeld},
		{name: "let go, IPv6", packet: tcp("fd44:1::50", "2001:db8::1", "cni0", Connection{}), chain: "prerouting"},
		{name: "held, IPv6", packet: tcp("fd44:1::99", "2001:db8::1", "cni0", Connection{}), chain: "prerouting", dropped: true, decided: ruleset.ChainHeld},
		{name: "held, inside the cluster", packet: tcp(none, "10.244.2.7", "cni0", Connection{}), chain: "prerouting", decided: "exempt"},
		{name: "held, to an ingress IP that no Service took", packet: tcp(none, "203.0.113.10", "cni0", Connection{}), chain: "prerouting", dropped: true, decided: "exempt"},
		{name: "a flow that goes on", packet: tcp(none, outside, "cni0", known), chain: "prerouting"},
		{name: "a reply", packet: tcp(none, outside, "cni0", Connection{Known: true, Reply: true}), chain: "prerouting"},
		{name: "a reply by a network", packet: tcp(none, outside, "cni0", Connection{Known: true, Reply: true, Mark: 0x0200}), chain: "prerouting", decided: "reply-2", mark: 0x2200, ctMark: 0x0200},
		{name: "from outside, taken by a Service", packet: tcp(outside, none, "wlan0", Connection{DNAT: true}), chain: "prerouting"},
		{name: "from another node", packet: tcp("10.244.2.9", "10.244.1.99", "eth1", Connection{}), chain: "prerouting"},
		{name: "by an uplink", packet: tcp(none, outside, "eth2", Connection{}), chain: "prerouting"},
	}
}

// TestWalkOfHeldPods applies the planned rules without a kernel.
func TestWalkOfHeldPods(t *testing.T) {
	table := planned(t, holdDataPlane())
	for _, m := range heldMeetings() {
		t.Run(m.name, func(t *testing.T) {
			p, err := cross(table, m.fly(), m.chain)
			require.NoError(t, err)
			m.check(t, p)
			require.Equal(t, m.decided == ruleset.ChainHeld, p.Why == ruleset.DropHeld.Counter())
		})
	}
}

// TestHoldComesAndGoes adds the rules for held pods to a table and removes them again.
func TestHoldComesAndGoes(t *testing.T) {
	netns.Enter(t)
	netns.Uplink(t, "eth2", "10.1.0.11/24")
	netns.Uplink(t, "eth1", "10.0.0.11/24")
	netns.IP(t, "route add default via 10.0.0.1")
	var n nft.Table
	t.Cleanup(func() { n.Close() })
	var held nft.Held
	trusted := false
	apply := func(d plan.DataPlane) {
		t.Helper()
		r, err := n.Apply(t.Context(), held, &d, trusted)
		require.NoError(t, err)
		held = r.Held
	}
	hold := holdDataPlane()
	without := walkDataPlane()
	apply(without)
	before := netns.Ruleset(t)
	require.NotContains(t, before, "held")
	require.NotContains(t, before, "let4")

	apply(hold)
	t.Log(netns.Ruleset(t))
	l, err := ReadLive(t.Context())
	require.NoError(t, err)
	defer l.Close()
	for _, m := range heldMeetings() {
		if m.packet.From.Is6() {
			continue // without an IPv6 route, fib would report that the destination is not unicast
		}
		t.Run(m.name, func(t *testing.T) {
			p, err := cross(l.kernel, m.fly(), m.chain)
			require.NoError(t, err)
			m.check(t, p)
		})
	}
	found, err := l.Lookup(ruleset.SetLet, netip.MustParseAddr("10.244.1.50"))
	require.NoError(t, err)
	require.True(t, found.Found)

	more := hold
	more.Let = hold.Let.With([]plan.Address{{Addr: netip.MustParseAddr("10.244.1.99")}}, []plan.Address{{Addr: netip.MustParseAddr("10.244.1.50")}})
	trusted = true
	apply(more)
	out, err := exec.Command("nft", "list set inet egressway let4").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "10.244.1.99")
	require.NotContains(t, string(out), "10.244.1.50")
	require.NotContains(t, netns.Ruleset(t), "10.244.1.50", "what was let go is not remembered as a former endpoint")

	n.Close() // another daemon takes the table over
	n, held, trusted = nft.Table{}, nft.Held{}, false
	apply(more)
	apply(without)
	require.Equal(t, netns.SortedListing(before), netns.SortedListing(netns.Ruleset(t)))
}
