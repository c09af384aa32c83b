package route

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
)

func TestRoutes(t *testing.T) {
	h := netns.Enter(t)
	netns.Uplink(t, "eth1", "10.1.0.2/24", "2001:db8:1::2/64")
	netns.Uplink(t, "eth2", "10.2.0.2/24", "2001:db8:2::2/64")
	netns.IP(t, "route add 198.51.100.0/24 via 10.1.0.9 table 1001", "-6 route add 2001:db8:99::/48 via 2001:db8:1::9 table 1001",
		"route add 198.51.100.0/24 via 10.1.0.9 proto bgp")
	before := netns.State(t)

	apply := func(desired ...plan.Route) {
		t.Helper()
		both := func() error {
			if err := addRoutes(t.Context(), h, desired); err != nil {
				return err
			}
			return pruneRoutes(t.Context(), desired)
		}
		require.NoError(t, both())
		netns.Quiet(t, both)
	}
	const table, least = 1001, 4278198272
	any4, any6 := prefix("0.0.0.0/0"), prefix("::/0")
	unreachable := []plan.Route{
		{Table: table, Dst: any4, Metric: least, Unreachable: true}, {Table: table, Dst: any6, Metric: least, Unreachable: true},
	}
	red1, red2 := via("10.1.0.1", "eth1"), via("10.2.0.1", "eth2")
	blue1, blue2, blue3 := via("2001:db8:1::1", "eth1"), via("2001:db8:2::1", "eth2"), via("fe80::1", "eth2")
	route := func(dst string, hops ...plan.NextHop) plan.Route {
		return plan.Route{Table: table, Dst: prefix(dst), NextHops: hops}
	}

	apply(append(unreachable, route("0.0.0.0/0", red1), route("::/0", blue1))...)
	require.Equal(t, []string{"default [10.1.0.1@eth1]", "unreachable default metric 4278198272"}, netns.Routes(t, "4", table, Protocol))
	require.Equal(t, []string{"default [2001:db8:1::1@eth1]", "unreachable default metric 4278198272"}, netns.Routes(t, "6", table, Protocol))

	apply(append(unreachable, route("0.0.0.0/0", red2, red1), route("::/0", blue2, blue1))...)
	require.Equal(t, []string{"default [10.1.0.1@eth1 10.2.0.1@eth2]", "unreachable default metric 4278198272"}, netns.Routes(t, "4", table, Protocol))
	require.Equal(t, []string{"default [2001:db8:1::1@eth1 2001:db8:2::1@eth2]", "unreachable default metric 4278198272"}, netns.Routes(t, "6", table, Protocol))

	// Replace one of two legs; three legs; an IPv4 route through an IPv6 next hop.
	apply(route("0.0.0.0/0", red2, blue3), route("::/0", blue2, blue3), route("192.0.2.0/24", blue3), route("2001:db8:5::/48", blue1, blue2, blue3))
	require.Equal(t, []string{"default [10.2.0.1@eth2 fe80::1@eth2]", "192.0.2.0/24 [fe80::1@eth2]"}, netns.Routes(t, "4", table, Protocol))
	require.Equal(t, []string{"2001:db8:5::/48 [2001:db8:1::1@eth1 2001:db8:2::1@eth2 fe80::1@eth2]", "default [2001:db8:2::1@eth2 fe80::1@eth2]"},
		netns.Routes(t, "6", table, Protocol))

	// Down to one leg, to unreachable, to another type, and back up.
	apply(route("0.0.0.0/0", red2), route("::/0", blue2), plan.Route{Table: table, Dst: prefix("2001:db8:5::/48"), Unreachable: true},
		plan.Route{Table: table, Dst: prefix("192.0.2.0/24"), Unreachable: true})
	require.Equal(t, []string{"default [10.2.0.1@eth2]", "unreachable 192.0.2.0/24"}, netns.Routes(t, "4", table, Protocol))
	require.Equal(t, []string{"unreachable 2001:db8:5::/48", "default [2001:db8:2::1@eth2]"}, netns.Routes(t, "6", table, Protocol))
	onLink := plan.NextHop{Gateway: addr("203.0.113.9"), Device: "eth1", OnLink: true}
	apply(route("192.0.2.0/24", onLink, red2), route("2001:db8:5::/48", blue1, blue3), route("10.77.0.0/16", plan.NextHop{Device: "eth1"}),
		route("2001:db8:77::/48", plan.NextHop{Device: "eth1"}), route("10.78.0.0/16", plan.NextHop{Gateway: red1.Gateway}))
	require.Equal(t, []string{"10.77.0.0/16 [-@eth1]", "10.78.0.0/16 [10.1.0.1@eth1]", "192.0.2.0/24 [10.2.0.1@eth2 203.0.113.9@eth1]"}, netns.Routes(t, "4", table, Protocol))
	require.Equal(t, []string{"2001:db8:5::/48 [2001:db8:1::1@eth1 fe80::1@eth2]", "2001:db8:77::/48 [-@eth1]"}, netns.Routes(t, "6", table, Protocol))

	apply()
	require.Equal(t, before, netns.State(t), "something else than our routes changed")
}

func TestRoutesThatCannotBe(t *testing.T) {
	h := netns.Enter(t)
	netns.Uplink(t, "eth1", "10.1.0.2/24", "2001:db8:1::2/64")
	netns.IP(t, "link add eth3 type dummy", "route add 203.0.113.0/24 via 10.1.0.9 table 1001", "-6 route add 2001:db8:7::/48 via 2001:db8:1::9 table 1001")
	before := netns.State(t)
	good := plan.Route{Table: 1001, Dst: prefix("192.0.2.0/24"), NextHops: []plan.NextHop{via("10.1.0.1", "eth1"), via("10.3.0.1", "eth3")}}
	desired := []plan.Route{
		{Table: 1001, Dst: prefix("0.0.0.0/0"), NextHops: []plan.NextHop{via("10.9.0.1", "eth1")}},
		{Table: 1001, Dst: prefix("::/0"), NextHops: []plan.NextHop{via("2001:db8:1::1", "eth9")}},
		{Table: 1001, Dst: prefix("203.0.113.0/24"), NextHops: []plan.NextHop{via("10.1.0.1", "eth1")}},
		{Table: 1001, Dst: prefix("2001:db8:7::/48"), NextHops: []plan.NextHop{via("2001:db8:1::1", "eth1")}},
		{Table: 1001, Dst: prefix("10.4.0.0/16")},
		good,
	}
	err := addRoutes(t.Context(), h, desired)
	for _, want := range []string{
		"0.0.0.0/0 table 1001 metric 0: network is unreachable (Nexthop has invalid gateway)",
		"::/0 table 1001 metric 1024: device eth9: Link not found",
		"203.0.113.0/24 table 1001 metric 0: another program's route is in the way",
		"2001:db8:7::/48 table 1001 metric 1024: another program's route is in the way",
		"10.4.0.0/16 table 1001 metric 0: it has no next hop",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "192.0.2.0/24", "it is in force with one next hop")
	require.Equal(t, []string{"192.0.2.0/24 [10.1.0.1@eth1]"}, netns.Routes(t, "4", 1001, Protocol), "the good leg of the good route")
	require.Empty(t, netns.Routes(t, "6", 1001, Protocol))
	require.NoError(t, pruneRoutes(t.Context(), nil))
	require.Equal(t, before, netns.State(t))
}

func TestRoutesAfterLinkLoss(t *testing.T) {
	h := netns.Enter(t)
	netns.Uplink(t, "eth1", "10.1.0.2/24", "2001:db8:1::2/64")
	netns.Uplink(t, "eth2", "10.2.0.2/24", "2001:db8:2::2/64")
	desired := []plan.Route{
		{Table: 1001, Dst: prefix("0.0.0.0/0"), NextHops: []plan.NextHop{via("10.1.0.1", "eth1"), via("10.2.0.1", "eth2")}},
		{Table: 1001, Dst: prefix("::/0"), NextHops: []plan.NextHop{via("2001:db8:1::1", "eth1"), via("2001:db8:2::1", "eth2")}},
	}
	require.NoError(t, addRoutes(t.Context(), h, desired))
	netns.IP(t, "link set eth2 down")
	require.NoError(t, addRoutes(t.Context(), h, desired))
	require.Equal(t, []string{"default [10.1.0.1@eth1]"}, netns.Routes(t, "4", 1001, Protocol))
	require.Equal(t, []string{"default [2001:db8:1::1@eth1]"}, netns.Routes(t, "6", 1001, Protocol))
	netns.IP(t, "link set eth2 up", "addr add 2001:db8:2::2/64 dev eth2 nodad")
	require.NoError(t, addRoutes(t.Context(), h, desired))
	require.Equal(t, []string{"default [10.1.0.1@eth1 10.2.0.1@eth2]"}, netns.Routes(t, "4", 1001, Protocol))
	require.Equal(t, []string{"default [2001:db8:1::1@eth1 2001:db8:2::1@eth2]"}, netns.Routes(t, "6", 1001, Protocol))
}

func TestManyRoutes(t *testing.T) {
	h := netns.Enter(t)
	netns.Uplink(t, "eth1", "10.1.0.2/24", "2001:db8:1::2/64")
	var desired []plan.Route
	for i := range 10_000 {
		p4 := fmt.Sprintf("20.%d.%d.0/24", i/250, i%250)
		p6 := fmt.Sprintf("2001:db8:%x:%x::/64", 0x100+i/250, i%250)
		desired = append(desired, plan.Route{Table: 1001, Dst: prefix(p4), NextHops: []plan.NextHop{via("10.1.0.1", "eth1")}},
			plan.Route{Table: 1001, Dst: prefix(p6), NextHops: []plan.NextHop{via("2001:db8:1::1", "eth1")}})
	}
	count := func() (n int) {
		require.NoError(t, DumpOurs(t.Context(), func(*Entry) { n++ }))
		return n
	}
	require.NoError(t, addRoutes(t.Context(), h, desired))
	require.Equal(t, len(desired), count())
	require.NoError(t, addRoutes(t.Context(), h, desired))
	require.NoError(t, pruneRoutes(t.Context(), desired[:10]))
	require.Equal(t, 10, count())
}

func BenchmarkRoutesInForce(b *testing.B) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	require.NoError(b, err)
	defer h.Close()
	var desired []plan.Route
	for i := range 100_000 {
		desired = append(desired, plan.Route{Table: 1001, Dst: prefix(fmt.Sprintf("%d.%d.%d.0/24", 20+i/50_000, i/200%250, i%200)), Unreachable: true})
	}
	require.NoError(b, addRoutes(b.Context(), h, desired))
	defer func() { require.NoError(b, pruneRoutes(b.Context(), nil)) }()
	for b.Loop() {
		require.NoError(b, addRoutes(b.Context(), h, desired))
	}
}
