package kernel

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// TestRefusedRoutes plans learned routes with next hops that the kernel rejects as gateways: the rest is in force, and
// there is no full re-read before something happens.
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
		routes = slices.SortedFunc(slices.Values(routes), func(a, b plan.Route) int { return comparePrefixes(a.Dst, b.Dst) })
		r, err := n.Apply(t.Context(), &plan.NodePlan{Routes: routes, DataPlane: someDataPlane()})
		require.NoError(t, err)
		require.True(t, r.InForce)
		require.Empty(t, r.Restored)
		require.NotNil(t, n.done, "the next pass takes only what changed")
		for table, one := range r.Refused {
			require.EqualValues(t, 1001, table)
			require.Error(t, one.Err)
			refused = append(refused, one.Dst.String())
		}
		return refused
	}
	own := func(routes ...plan.Route) { // through our own socket, whose changes cause no event
		t.Helper()
		require.NoError(t, n.route.addRoutes(t.Context(), n.links, routes, func(_ *plan.Route, err error) error { return err }))
	}

	bad := []plan.Route{learned("192.0.2.0/24", good), learned("198.51.100.0/24", far), learned("2001:db8:9::/48", far6)}
	require.Equal(t, []string{"198.51.100.0/24"}, apply(bad...))
	require.Equal(t, []string{"192.0.2.0/24 [10.1.0.1@eth2] metric 20"}, routesOf(t, "4", 1001))
	require.Empty(t, routesOf(t, "6", 1001))

	// A refused route is not tried again with other changes, but at the next full re-read.
	own(plan.Route{Table: 1001, Dst: prefix(far + "/32"), NextHops: []plan.NextHop{{Device: "eth2"}}})
	require.Equal(t, []string{"198.51.100.0/24"}, apply(bad...))
	require.Equal(t, []string{"198.51.100.0/24"}, apply(append(bad, learned("203.0.113.0/24", good))...))
	require.NotContains(t, routesOf(t, "4", 1001), "198.51.100.0/24 [10.9.9.9@eth2] metric 20")
	*now = now.Add(lookEvery)
	require.Equal(t, []string{"2001:db8:9::/48"}, apply(append(bad, plan.Route{Table: 1001, Dst: prefix(far + "/32"), NextHops: []plan.NextHop{{Device: "eth2"}}})...))
	require.Contains(t, routesOf(t, "4", 1001), "198.51.100.0/24 [10.9.9.9@eth2] metric 20")
	require.Equal(t, []string{"2001:db8:9::/48"}, apply(bad...))

	// Or when another program changes objects that our routes depend on.
	drain(t, woken)
	ip(t, "addr add 2001:db8:99::2/64 dev eth2 nodad")
	<-woken
	eventually(t, func() bool { return apply(bad[0], bad[2]) == nil }, "the gateway is on a link")
	require.Equal(t, []string{"2001:db8:9::/48 [2001:db8:99::9@eth2] metric 20"}, routesOf(t, "6", 1001))
	require.Equal(t, []string{"192.0.2.0/24 [10.1.0.1@eth2] metric 20"}, routesOf(t, "4", 1001))

	// A route that a peer withdraws goes, even if the kernel rejects its replacement.
	require.Empty(t, apply(bad[0], bad[2]))
	require.Equal(t, []string{"192.0.2.0/24"}, apply(learned("192.0.2.0/24", far)))
	require.Empty(t, routesOf(t, "4", 1001))
	require.Equal(t, []string{"0.0.0.0/0"}, apply(learned("0.0.0.0/0", far)))
	facts, err := n.Facts(t.Context(), 1001)
	require.NoError(t, err)
	require.Zero(t, facts.Routed[1001], "nothing was taken away that could be put back")

	// A route of the operator that replaced it stays.
	static := &route{routeKey: routeKey{1001, prefix("0.0.0.0/0"), 20}, protocol: unix.RTPROT_STATIC, kind: unix.RTN_UNICAST, legs: []leg{{gateway: addr("10.1.0.9")}}}
	results, err := n.route.change(t.Context(), []message{{unix.RTM_NEWROUTE, unix.NLM_F_CREATE | unix.NLM_F_EXCL, static.encode(true)}})
	require.NoError(t, err)
	require.NoError(t, results[0])
	_, err = n.Apply(t.Context(), &plan.NodePlan{Routes: []plan.Route{learned("0.0.0.0/0", good)}, DataPlane: someDataPlane()})
	require.ErrorContains(t, err, "another program's route is in the way")
	require.Equal(t, "10.1.0.9", show(t, "route show table 1001")[0]["gateway"])
}
