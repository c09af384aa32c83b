package kernel

import (
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/kernel/preflight"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
)

func TestFacts(t *testing.T) {
	h := netns.Enter(t)
	netns.IP(t, "link add vrf-red type vrf table 1001", "link set vrf-red up", "link add eth1 type veth peer name eth1p", "link set eth1 mtu 1400 master vrf-red",
		"link set eth1 up", "link set eth1p up", "addr add 10.1.0.2/24 dev eth1", "addr add 2001:db8:1::2/64 dev eth1 nodad",
		"link add eth2 type dummy", "addr add 10.2.0.2/24 dev eth2")
	tables := []uint32{254, 1001, 1002}
	facts := func() (map[string]plan.Link, map[uint32]plan.Families) {
		links, err := link.ReadLinks(h)
		require.NoError(t, err)
		routed, err := route.ReadAllRouted(t.Context(), tables)
		require.NoError(t, err)
		byName := map[string]plan.Link{}
		for _, l := range links {
			l.Addrs = withoutLinkLocal(l.Addrs)
			l.Index = 0
			byName[l.Name] = l
		}
		return byName, routed
	}
	links, routed := facts()
	require.Equal(t, map[string]plan.Link{
		"lo":      {Name: "lo", Up: true, MTU: 65536, Addrs: []netip.Prefix{prefix("127.0.0.1/8"), prefix("::1/128")}},
		"vrf-red": {Name: "vrf-red", Up: true, VRFTable: 1001, MTU: links["vrf-red"].MTU},
		"eth1":    {Name: "eth1", Up: true, Master: "vrf-red", MTU: 1400, Addrs: []netip.Prefix{prefix("10.1.0.2/24"), prefix("2001:db8:1::2/64")}},
		"eth1p":   {Name: "eth1p", Up: true, MTU: 1500},
		"eth2":    {Name: "eth2", MTU: 1500, Addrs: []netip.Prefix{prefix("10.2.0.2/24")}},
	}, links)
	require.Equal(t, map[uint32]plan.Families{254: {}, 1001: {}, 1002: {}}, routed, "connected routes lead nowhere")

	netns.IP(t, "route add default via 10.1.0.1 vrf vrf-red", "-6 route add unreachable default table 1001 metric 4278198272",
		"-6 route add 2001:db8:9::/48 via 2001:db8:1::1 dev eth1 table 1002", "route add unreachable default metric 9")
	_, routed = facts()
	require.Equal(t, map[uint32]plan.Families{254: {}, 1001: {IPv4: true}, 1002: {IPv6: true}}, routed)

	netns.IP(t, "link set eth1p down")
	netns.Eventually(t, func() bool {
		links, routed = facts()
		return !links["eth1"].Up && routed[1001] == plan.Families{} && routed[1002] == plan.Families{}
	}, "a device without carrier makes its routes unusable")
	netns.IP(t, "link set eth1p up", "nexthop add id 5 via 10.1.0.1 dev eth1", "route add 192.0.2.0/24 nhid 5 table 1002")
	netns.Eventually(t, func() bool {
		_, routed = facts()
		return routed[1001] == plan.Families{IPv4: true} && routed[1002] == plan.Families{IPv4: true, IPv6: true}
	}, "carrier and a next hop object")
}

func withoutLinkLocal(all []netip.Prefix) (kept []netip.Prefix) {
	for _, p := range all {
		if !p.Addr().IsLinkLocalUnicast() {
			kept = append(kept, p)
		}
	}
	return kept
}

func TestSysctls(t *testing.T) {
	netns.Enter(t)
	netns.IP(t, "link add eth1.7 type dummy")
	set := func(value string, files ...string) {
		t.Helper()
		for _, f := range files {
			require.NoError(t, os.WriteFile("/proc/sys/net/"+f, []byte(value), 0))
		}
	}
	const strict = "ipv4/conf/eth1.7/rp_filter"
	set("1", "ipv4/ip_forward", "ipv6/conf/all/forwarding")
	set("0", strict, "ipv4/conf/all/rp_filter")
	devices := []string{"eth1.7", "eth9"}
	require.Empty(t, preflight.Sysctls("a", devices))

	reasons := func() (all []cluster.Reason) {
		for _, p := range preflight.Sysctls("a", devices) {
			all = append(all, p.Reason)
		}
		return all
	}
	set("1", strict)
	problems := preflight.Sysctls("a", devices)
	require.Len(t, problems, 1)
	require.Equal(t, `Node a: net.ipv4.conf.eth1/7.rp_filter: "1": strict reverse path filtering on eth1.7 drops egress and its replies; `+
		`the maximum of this and net.ipv4.conf.all.rp_filter (0) counts: set this to 2`, problems[0].Error())
	set("0", strict)
	set("1", "ipv4/conf/all/rp_filter")
	require.Equal(t, []cluster.Reason{preflight.ReasonStrictReversePath}, reasons())
	set("2", strict)
	require.Empty(t, reasons())
	const byMark = "ipv4/conf/all/src_valid_mark"
	set("1", byMark)
	problems = preflight.Sysctls("a", devices)
	require.Len(t, problems, 1)
	require.Equal(t, `Node a: net.ipv4.conf.eth1/7.rp_filter: "2": with src_valid_mark 1 on eth1.7 or on all, reverse path filtering, `+
		`also the loose one, drops packets of pods whose network has no route to them: `+
		`set src_valid_mark to 0 on both and this to 2, or rp_filter to 0 on both`, problems[0].Error())
	set("0", strict, "ipv4/conf/all/rp_filter")
	require.Empty(t, reasons())
	set("0", byMark)
	set("1", "ipv4/conf/eth1.7/src_valid_mark")
	set("2", "ipv4/conf/all/rp_filter")
	require.Equal(t, []cluster.Reason{preflight.ReasonStrictReversePath}, reasons())
	set("0", "ipv4/conf/eth1.7/src_valid_mark", "ipv4/conf/eth1.7/forwarding")
	require.Equal(t, []cluster.Reason{preflight.ReasonForwardingOff}, reasons())
	set("0", "ipv4/ip_forward", "ipv6/conf/all/forwarding")
	require.Equal(t, []cluster.Reason{preflight.ReasonForwardingOff, preflight.ReasonForwardingOff, preflight.ReasonForwardingOff}, reasons())
}
