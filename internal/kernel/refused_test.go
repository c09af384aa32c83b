package kernel

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// TestRefusedRoutes plans learned routes that the kernel rejects, for their next hops or because another program's route
// has their prefix and metric: the rest is in force, and there is no full re-read before something happens.
func TestRefusedRoutes(t *testing.T) {
	n, now, woken := watchedNode(t)
	learned := func(dst, gateway string) plan.Route {
		return plan.Route{Table: 1001, Dst: prefix(dst), Metric: 20, NextHops: []plan.NextHop{via(gateway, "eth2")}}
	}
	const good, far, far6 = "10.1.0.1", "10.9.9.9", "2001:db8:99::9"
	apply := func(routes ...plan.Route) (refused []string) {
		t.Helper()
		_, err := n.Facts(t.Context(), 1001)
		require.NoError(t, err)
		r, err := n.Apply(t.Context(), &plan.NodePlan{Routes: sorted.Of(slices.Clone(routes)...), DataPlane: stories.DataPlane()})
		require.NoError(t, err)
		require.True(t, r.InForce)
		require.Empty(t, r.Restored)
		require.True(t, n.record.Whole, "the next pass takes only what changed")
		require.True(t, r.Whole(), "no peer makes the node unready")
		for _, one := range r.Refused {
			require.EqualValues(t, 1001, one.Table)
			require.Error(t, one.Err)
			refused = append(refused, one.Dst.String())
		}
		return refused
	}
	own := func(routes ...plan.Route) { // through our own socket, whose changes cause no event
		t.Helper()
		require.NoError(t, n.route.AddRoutes(t.Context(), n.links, routes, func(_ *plan.Route, err error) error { return err }))
	}

	bad := []plan.Route{learned("192.0.2.0/24", good), learned("198.51.100.0/24", far), learned("2001:db8:9::/48", far6)}
	require.Equal(t, []string{"198.51.100.0/24"}, apply(bad...))
	require.Equal(t, []string{"192.0.2.0/24 [10.1.0.1@eth2] metric 20"}, netns.Routes(t, "4", 1001, route.Protocol))
	require.Empty(t, netns.Routes(t, "6", 1001, route.Protocol))

	// A refused route is not tried again with other changes, but at the next full re-read.
	own(plan.Route{Table: 1001, Dst: prefix(far + "/32"), NextHops: []plan.NextHop{{Device: "eth2"}}})
	require.Equal(t, []string{"198.51.100.0/24"}, apply(bad...))
	require.Equal(t, []string{"198.51.100.0/24"}, apply(append(bad, learned("203.0.113.0/24", good))...))
	require.NotContains(t, netns.Routes(t, "4", 1001, route.Protocol), "198.51.100.0/24 [10.9.9.9@eth2] metric 20")
	*now = now.Add(lookEvery)
	require.Equal(t, []string{"2001:db8:9::/48"}, apply(append(bad, plan.Route{Table: 1001, Dst: prefix(far + "/32"), NextHops: []plan.NextHop{{Device: "eth2"}}})...))
	require.Contains(t, netns.Routes(t, "4", 1001, route.Protocol), "198.51.100.0/24 [10.9.9.9@eth2] metric 20")
	require.Equal(t, []string{"2001:db8:9::/48"}, apply(bad...))

	// Or when another program changes objects that our routes depend on.
	drain(t, woken)
	netns.IP(t, "addr add 2001:db8:99::2/64 dev eth2 nodad")
	<-woken
	netns.Eventually(t, func() bool { return apply(bad[0], bad[2]) == nil }, "the gateway is on a link")
	require.Equal(t, []string{"2001:db8:9::/48 [2001:db8:99::9@eth2] metric 20"}, netns.Routes(t, "6", 1001, route.Protocol))
	require.Equal(t, []string{"192.0.2.0/24 [10.1.0.1@eth2] metric 20"}, netns.Routes(t, "4", 1001, route.Protocol))

	// A route that a peer withdraws goes, even if the kernel rejects its replacement.
	require.Empty(t, apply(bad[0], bad[2]))
	require.Equal(t, []string{"192.0.2.0/24"}, apply(learned("192.0.2.0/24", far)))
	require.Empty(t, netns.Routes(t, "4", 1001, route.Protocol))
	require.Equal(t, []string{"0.0.0.0/0"}, apply(learned("0.0.0.0/0", far)))
	facts, err := n.Facts(t.Context(), 1001)
	require.NoError(t, err)
	require.Zero(t, facts.Routed[1001], "nothing was taken away that could be put back")

	// A route of the operator that took its place stays, and the route of the peer is left out.
	static := &route.Entry{Key: route.Key{Table: 1001, Dst: prefix("0.0.0.0/0"), Metric: 20}, Protocol: unix.RTPROT_STATIC, Kind: unix.RTN_UNICAST, Legs: []route.Leg{{Gateway: addr("10.1.0.9")}}}
	results, err := n.route.Change(t.Context(), []nl.Message{{Type: unix.RTM_NEWROUTE, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: static.Encode(true)}})
	require.NoError(t, err)
	require.NoError(t, results[0])
	gateway := func() any { t.Helper(); return netns.Show(t, "route show table 1001 default")[0]["gateway"] }
	for range 2 {
		require.Equal(t, []string{"0.0.0.0/0"}, apply(learned("0.0.0.0/0", good)))
		require.Equal(t, "10.1.0.9", gateway())
	}
	require.Equal(t, []string{"0.0.0.0/0"}, apply(learned("0.0.0.0/0", good), learned("192.0.2.0/24", good)), "in a pass by difference")
	require.Equal(t, []string{"192.0.2.0/24 [10.1.0.1@eth2] metric 20"}, netns.Routes(t, "4", 1001, route.Protocol))
	require.Equal(t, []string{"0.0.0.0/0"}, apply(learned("0.0.0.0/0", "10.1.0.7"), learned("192.0.2.0/24", good)), "another next hop replaces nothing")
	require.Equal(t, "10.1.0.9", gateway())
	*now = now.Add(lookEvery)
	require.Equal(t, []string{"0.0.0.0/0"}, apply(learned("0.0.0.0/0", good), learned("192.0.2.0/24", good)), "in a full re-read")
	require.Empty(t, apply(learned("192.0.2.0/24", good)), "the peer withdraws it")
	require.Equal(t, "10.1.0.9", gateway())
	require.Equal(t, []string{"0.0.0.0/0"}, apply(learned("0.0.0.0/0", good), learned("192.0.2.0/24", good)))

	// The peer's route is tried again when the operator's goes.
	drain(t, woken)
	netns.IP(t, "route del default table 1001")
	<-woken
	netns.Eventually(t, func() bool { return apply(learned("0.0.0.0/0", good), learned("192.0.2.0/24", good)) == nil }, "nothing is in the way")
	require.Equal(t, good, gateway())

	// A route of the operator that replaces ours stays, too.
	drain(t, woken)
	netns.IP(t, "route replace default via 10.1.0.9 table 1001 metric 20")
	<-woken
	netns.Eventually(t, func() bool { return len(apply(learned("0.0.0.0/0", good))) == 1 }, "it is in the way")
	require.Equal(t, "10.1.0.9", gateway())
}

// TestRoutesOfOneNetwork plans routes of several networks and of a host to steer to. What one of them lacks leaves the
// routes of the others in force, and is reported for its table alone.
func TestRoutesOfOneNetwork(t *testing.T) {
	n, now, woken := watchedNode(t)
	const red, blue, silver, steer = 1001, 1002, 1003, 794600
	to := func(table uint32, dst string, metric uint32, hops ...plan.NextHop) plan.Route {
		return plan.Route{Table: table, Dst: prefix(dst), Metric: metric, NextHops: hops}
	}
	const floor = 4278198272
	lan, down, none := via("10.1.0.1", "eth2"), via("10.7.0.1", "eth7"), via("10.9.0.1", "eth9")
	planned := []plan.Route{
		to(red, "0.0.0.0/0", 20, lan),
		{Table: red, Dst: prefix("0.0.0.0/0"), Metric: floor, Unreachable: true},
		to(red, "192.0.2.0/24", 20, lan, down),
		to(blue, "0.0.0.0/0", 20, down),
		to(blue, "192.0.2.0/24", 20, lan),
		to(silver, "0.0.0.0/0", 20, none),
		to(steer, "0.0.0.0/0", 0, down),
	}
	apply := func(p ...plan.Route) (r Result, refused []string) {
		t.Helper()
		_, err := n.Facts(t.Context(), red, blue, silver)
		require.NoError(t, err)
		r, err = n.Apply(t.Context(), &plan.NodePlan{Routes: sorted.Of(slices.Clone(p)...), DataPlane: stories.DataPlane()})
		require.NoError(t, err)
		require.True(t, r.InForce)
		require.True(t, n.record.Whole, "the next pass takes only what changed")
		for _, one := range r.Refused {
			refused = append(refused, fmt.Sprintf("%d %s %s: %s", one.Table, one.Dst, one.Reason, one.Err))
		}
		return r, refused
	}
	lacking := []string{
		"1002 0.0.0.0/0 DeviceDown: device eth7: network is down", "1003 0.0.0.0/0 DeviceDown: device eth9: Link not found",
		"794600 0.0.0.0/0 DeviceDown: device eth7: network is down",
	}
	netns.IP(t, "link set eth7 down", "route add unreachable default table 1001 metric 4278198272") // the operator's, as the kernel's documentation recommends
	ofRed := []string{"192.0.2.0/24 [10.1.0.1@eth2] metric 20", "default [10.1.0.1@eth2] metric 20"}
	for range 3 {
		r, refused := apply(planned...)
		require.Equal(t, lacking, refused)
		require.False(t, r.Whole())
		require.ElementsMatch(t, ofRed, netns.Routes(t, "4", red, route.Protocol))
		require.Equal(t, []string{"192.0.2.0/24 [10.1.0.1@eth2] metric 20"}, netns.Routes(t, "4", blue, route.Protocol))
		*now = now.Add(lookEvery / 2)
	}

	// A route whose new next hops cannot be goes, as if it were withdrawn, in a pass by difference and in a full re-read.
	hop := func(to plan.NextHop) {
		planned = slices.Clone(planned)
		planned[4].NextHops = []plan.NextHop{to}
	}
	hop(none)
	_, refused := apply(planned...)
	require.Equal(t, lacking, refused, "one route of each table")
	require.Empty(t, netns.Routes(t, "4", blue, route.Protocol))
	hop(lan)
	_, _ = apply(planned...)
	require.Len(t, netns.Routes(t, "4", blue, route.Protocol), 1)
	hop(down)
	n.record.Whole = false
	_, _ = apply(planned...)
	require.Empty(t, netns.Routes(t, "4", blue, route.Protocol))

	// The routes of a device that comes up are tried again.
	drain(t, woken)
	netns.IP(t, "link set eth7 up", "addr add 10.7.0.2/24 dev eth7")
	<-woken
	var r Result
	netns.Eventually(t, func() bool { r, refused = apply(planned...); return len(refused) == 1 }, "eth7 is up")
	require.Equal(t, lacking[1:2], refused)
	require.Len(t, netns.Routes(t, "4", blue, route.Protocol), 2)
	require.Equal(t, []string{"default [10.7.0.1@eth7]"}, netns.Routes(t, "4", steer, route.Protocol))
	require.Contains(t, netns.Routes(t, "4", red, route.Protocol), "192.0.2.0/24 [10.1.0.1@eth2 10.7.0.1@eth7] metric 20")
	require.False(t, r.Whole())
	r, refused = apply(slices.Concat(planned[:5], planned[6:])...)
	require.Empty(t, refused)
	require.True(t, r.Whole())
	require.Contains(t, netns.IP(t, "route show table 1001"), "unreachable default metric 4278198272")
}

// TestUnneededRoutes leaves a refused IPv6 route through the tunnel out of a result as long as no IPv6 packet takes its path.
func TestUnneededRoutes(t *testing.T) {
	d := plan.DataPlane{Paths: []plan.Path{{ID: 3, Table: 794603, Tunneled: true}, {ID: 4, Table: 1001}}}
	six := route.Refused{Table: 794603, Dst: prefix("::/0"), Reason: route.ReasonNextHopRefused}
	others := []route.Refused{{Table: 794603, Dst: prefix("0.0.0.0/0")}, {Table: 1001, Dst: prefix("::/0")}, {Table: 7, Dst: prefix("::/0")}}
	all := func() []route.Refused { return append([]route.Refused{six}, others...) }
	d.Endpoints = sorted.Of(plan.Endpoint{Addr: addr("10.244.1.11"), Path: 3}, plan.Endpoint{Addr: addr("fd44:1::11"), Path: 4})
	require.Equal(t, others, needed(all(), &d))
	for _, e := range []plan.Endpoint{{Addr: addr("fd44:1::11"), Path: 3}, {Addr: addr("fd44:1::11"), Path: 4, Kept: plan.Way{Path: 3}}} {
		d.Endpoints = sorted.Of(e)
		require.Equal(t, all(), needed(all(), &d))
	}
	d.Endpoints = sorted.List[plan.Endpoint]{}
	d.Ingress = sorted.Of(plan.IngressIP{Addr: addr("2001:db8:203::10"), Stray: 3})
	require.Equal(t, all(), needed(all(), &d))
}
