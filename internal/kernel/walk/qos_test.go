package walk

import (
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/qos"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
)

// TestWalkFindsDSCP follows packets through the chains of EgressQoS in the kernel, as planned and after another program changed them.
func TestWalkFindsDSCP(t *testing.T) {
	netns.Enter(t)
	netns.Uplink(t, "eth2", "10.1.0.11/24")
	netns.Uplink(t, "eth1", "10.0.0.11/24")
	netns.IP(t, "route add default via 10.0.0.1")
	a := netip.MustParseAddr
	d := walkDataPlane()
	last6 := a("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	d.QoS = []qos.Class{
		{ID: 7, Ranges: []qos.Range{{First: a("0.0.0.0"), Last: a("203.0.112.255"), DSCP: 18}, {First: a("203.0.113.0"), Last: a("203.0.113.255"), DSCP: 46}}},
		{ID: 9, Ranges: []qos.Range{{First: a("2001:db8::"), Last: a("2001:db8::ffff"), DSCP: 0}, {First: a("fd00::"), Last: last6, DSCP: 63}}},
	}
	d.Marked = sorted.Of(qos.Marked{Addr: a("10.244.1.11"), Class: 7}, qos.Marked{Addr: a("fd44:1::11"), Class: 9})
	var n nft.Table
	t.Cleanup(func() { n.Close() })
	_, err := n.Apply(t.Context(), nft.Held{}, &d, false)
	require.NoError(t, err)
	value := func(n uint8) *uint8 { return &n }
	walks := func(from, to string) *Passage {
		t.Helper()
		l, err := ReadLive(t.Context())
		require.NoError(t, err)
		defer l.Close()
		p, err := cross(l.kernel, &flyer{Packet: Packet{From: a(from), To: a(to), Proto: unix.IPPROTO_TCP, Port: 80, In: "cni0"}}, ruleset.ChainQoS)
		require.NoError(t, err)
		require.Empty(t, p.Unknown)
		require.False(t, p.Dropped)
		return p
	}
	for _, test := range []struct {
		from, to string
		dscp     *uint8
		in       string // the range
	}{
		{"10.244.1.11", "203.0.113.9", value(46), "203.0.113.0/24"},
		{"10.244.1.11", "203.0.112.9", value(18), "0.0.0.0-203.0.112.255"},
		{"10.244.1.11", "203.0.114.9", nil, ""},
		{"10.244.1.12", "203.0.113.9", nil, ""},
		{"fd44:1::11", "2001:db8::1", value(0), "2001:db8::/112"},
		{"fd44:1::11", "fd44:2::1", value(63), "fd00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}, // to the last address
		{"fd44:1::11", "2001:db9::1", nil, ""},
	} {
		p := walks(test.from, test.to)
		require.Equal(t, test.dscp, p.DSCP, "%s to %s", test.from, test.to)
		if l, _ := p.LookedUp(ruleset.SetRanges); test.in != "" {
			require.Equal(t, test.in, l.Range)
			require.Equal(t, fmt.Sprint("dscp-", *test.dscp), l.Value)
		}
		class, _ := p.LookedUp(ruleset.SetClasses)
		require.Equal(t, test.from == "10.244.1.11" || test.from == "fd44:1::11", class.Found)
	}
	n.Close() // the table has no owner now
	run := func(args ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "nft", args...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	run("insert", "rule", "inet", "egressway", "dscp-46", "ip", "dscp", "set", "af11", "return")
	require.Equal(t, value(10), walks("10.244.1.11", "203.0.113.9").DSCP, "the kernel decides, not the plan")
	run("flush", "chain", "inet", "egressway", "qos")
	require.Nil(t, walks("10.244.1.11", "203.0.113.9").DSCP)
}
