package kernel

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// watchedNode returns a keptNode with a Watch in its own namespace, and with a clock that stands still.
func watchedNode(t *testing.T) (n *keptNode, now *time.Time, woken <-chan struct{}) {
	t.Helper()
	netns.Enter(t)
	netns.Uplink(t, "eth2", "10.1.0.2/24", "2001:db8:1::2/64")
	netns.Uplink(t, "eth7")
	netns.State(t) // wait until addresses settle
	n, err := openKept()
	require.NoError(t, err)
	t.Cleanup(n.Close)
	at := time.Now()
	n.now = func() time.Time { return at }
	woken = watchHere(t, nl.ReceiveBuffer, n.Node)
	drain(t, woken)
	return n, &at, woken
}

// TestOnlyWhatIsStirredIsReadAgain changes objects without an event, and as other programs do.
func TestOnlyWhatIsStirredIsReadAgain(t *testing.T) {
	n, now, woken := watchedNode(t)
	p := &plan.NodePlan{
		Rules: []plan.Rule{{Priority: 701, Mark: 0x2100, Mask: 0x3f00, Table: 1001}},
		Routes: sorted.Of(
			plan.Route{Table: 1001, Dst: prefix("0.0.0.0/0"), Metric: 20, NextHops: []plan.NextHop{via("10.1.0.1", "eth2")}},
			plan.Route{Table: 1001, Dst: prefix("2001:db8:9::/48"), Metric: 20, NextHops: []plan.NextHop{via("2001:db8:1::1", "eth2")}},
		),
		DataPlane: stories.DataPlane(),
	}
	devices := []string{"eth2"}
	var settings []string // wrong settings
	apply := func(restored ...string) {
		t.Helper()
		f, err := n.Facts(t.Context(), 1001)
		require.NoError(t, err)
		require.Equal(t, n.facts.Facts, f)
		problems, err := n.Problems("a", devices)
		require.NoError(t, err)
		settings = nil
		for _, p := range problems {
			settings = append(settings, p.Field)
		}
		r, err := n.Apply(t.Context(), p)
		require.NoError(t, err)
		require.True(t, r.InForce)
		require.ElementsMatch(t, restored, r.Restored)
	}
	rules := func() string { return netns.IP(t, "rule show pref 701") }
	apply()
	apply()
	drain(t, woken)
	f, err := n.Facts(t.Context(), 1001)
	require.NoError(t, err)
	require.Equal(t, plan.Families{IPv4: true, IPv6: true}, f.Routed[1001], "our own routes are facts too")
	require.Equal(t, map[plan.PathKey]plan.PathID{
		{Kind: plan.PathNetwork, Name: "default"}: 1, {Kind: plan.PathNetwork, Name: "red"}: 2, {Kind: plan.PathSteer, Name: "b"}: 3,
	}, f.Paths)
	again, err := n.Facts(t.Context(), 1001)
	require.NoError(t, err)
	require.True(t, sorted.OneSlice(f.Links, again.Links))

	// Through our own socket, whose changes cause no event: found only by the next full re-read.
	require.NoError(t, n.route.PruneRules(t.Context(), nil))
	require.NoError(t, n.route.PruneRoutes(t.Context(), nil))
	apply()
	require.Empty(t, rules())
	*now = now.Add(lookEvery)
	apply("rule 701", "routes of table 1001")
	require.NotEmpty(t, rules())
	drain(t, woken)

	// By other programs.
	await := func() {
		t.Helper()
		select {
		case <-woken:
			drain(t, woken)
		case <-time.After(netns.Patience):
			t.Fatal("not woken")
		}
	}
	netns.IP(t, "rule del pref 701")
	await()
	apply("rule 701")
	netns.IP(t, "-6 route del 2001:db8:9::/48 table 1001")
	await()
	apply("routes of table 1001") // by Facts, which finds that the table lost its routes
	require.Len(t, netns.Show(t, "-6 route show table 1001"), 1)
	netns.IP(t, "route change default via 10.1.0.9 dev eth2 table 1001 metric 20 proto 142")
	await()
	apply("routes of table 1001")
	netns.IP(t, "link set eth2 down")
	await()
	f, err = n.Facts(t.Context(), 1001)
	require.NoError(t, err)
	require.Equal(t, plan.Families{}, f.Routed[1001])
	netns.IP(t, "link set eth2 up", "addr add 2001:db8:1::2/64 dev eth2 nodad")
	netns.Eventually(t, func() bool { _, _ = n.Facts(t.Context(), 1001); _, err := n.Apply(t.Context(), p); return err == nil }, "the link is back")
	apply()
	drain(t, woken)

	// rp_filter of a device that does not matter: found only by the next full re-read.
	const strict = "net.ipv4.conf.eth7.rp_filter"
	sysctl := func(value string) {
		t.Helper()
		require.NoError(t, os.WriteFile("/proc/sys/"+strings.ReplaceAll(strict, ".", "/"), []byte(value), 0))
	}
	sysctl("0")
	*now = now.Add(lookEvery)
	apply()
	*now = now.Add(lookEvery / 2)
	devices = []string{"eth7"}
	apply()
	require.NotContains(t, settings, strict)
	sysctl("1")
	apply()
	require.NotContains(t, settings, strict)
	*now = now.Add(lookEvery / 2)
	apply()
	require.Contains(t, settings, strict)
	drain(t, woken)

	// An object that our routes do not depend on changes only the facts.
	all := n.stirs.now().all
	netns.IP(t, "addr add 10.7.0.1/24 dev eth7")
	await()
	require.Equal(t, all, n.stirs.now().all)
	f, err = n.Facts(t.Context(), 1001)
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(f.Links, func(l plan.Link) bool { return l.Name == "eth7" && slices.Contains(l.Addrs, prefix("10.7.0.1/24")) }))

	// Lost events may have been about anything.
	require.NoError(t, n.route.PruneRules(t.Context(), nil))
	n.stirs.missed()
	apply("rule 701")

	// A table without an owner is read after another program changed it.
	n.nft.Close()
	require.NoError(t, n.nft.Claim(0))
	n.stirs.mu.Lock()
	n.stirs.tablePort = n.nft.Port()
	n.stirs.mu.Unlock()
	n.record.Whole = false
	_, err = n.Apply(t.Context(), p)
	require.NoError(t, err)
	drain(t, woken)
	apply()
	netns.MustNFT(t, "flush chain inet egressway guard")
	await()
	apply("nftables table inet egressway")
	netns.MustNFT(t, "delete element inet egressway egress4 { 10.244.1.11 }")
	await()
	apply()
	require.Contains(t, netns.Ruleset(t), "10.244.1.11 : 0x00000002")
}

// anyRoutes returns random routes.
func anyRoutes(r *rand.Rand) sorted.List[plan.Route] {
	all := map[string]plan.Route{}
	hops := []plan.NextHop{via("10.1.0.1", "eth2"), via("10.1.0.3", "eth2"), via("10.1.0.4", "eth2")}
	hops6 := []plan.NextHop{via("2001:db8:1::1", "eth2"), via("2001:db8:1::3", "eth2"), via("2001:db8:1::4", "eth2")}
	for range r.IntN(40) {
		one := plan.Route{Table: 1001 + uint32(r.IntN(2)), Metric: uint32(r.IntN(2)) * 20}
		from := hops
		if r.IntN(2) == 0 {
			one.Dst = prefix(fmt.Sprintf("20.0.%d.0/24", r.IntN(20)))
		} else {
			one.Dst, from = prefix(fmt.Sprintf("2001:db8:%x::/48", 0x100+r.IntN(20))), hops6
		}
		if one.Unreachable = r.IntN(4) == 0; !one.Unreachable {
			first := r.IntN(3)
			one.NextHops = slices.Clone(from[first : first+1+r.IntN(3-first)])
		}
		all[fmt.Sprint(one.Table, one.Dst, one.Metric)] = one
	}
	return sorted.Of(slices.Collect(maps.Values(all))...)
}

// TestRoutesByDifference applies random plans by difference and compares the kernel's routes with each.
func TestRoutesByDifference(t *testing.T) {
	n, _, woken := watchedNode(t)
	r := rand.New(rand.NewPCG(1, 2))
	byDifference := 0
	for step := range 60 {
		p := &plan.NodePlan{Routes: anyRoutes(r), DataPlane: stories.DataPlane()}
		if n.record.trusts(n.stirs.now()) {
			byDifference++
		}
		_, err := n.Apply(t.Context(), p)
		require.NoError(t, err)
		wanted, errs := route.NormalRoutes(n.links, p.Routes.Slice(), n.record.refused.Judge)
		require.Empty(t, errs)
		require.NoError(t, route.DumpOurs(t.Context(), func(have *route.Entry) {
			w := wanted[have.Key]
			require.True(t, w != nil && w.Same(have), "step %d: %+v is there, %+v should be", step, have, w)
			delete(wanted, have.Key)
		}))
		require.Empty(t, wanted, "step %d", step)
		if step == 0 {
			drain(t, woken)
		}
	}
	require.Greater(t, byDifference, 20)
}

// TestChangesOfRoutes compares ChangesOf with a comparison by maps.
func TestChangesOfRoutes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		a, b := anyRoutes(r), anyRoutes(r)
		c := route.ChangesOf(a, b)
		had, have := map[route.Key]plan.Route{}, map[route.Key]plan.Route{}
		for r := range a.All() {
			had[route.KeyOf(&r)] = r
		}
		for r := range b.All() {
			have[route.KeyOf(&r)] = r
		}
		set, gone := 0, 0
		for k, x := range have {
			if y, known := had[k]; !known || !x.Equal(y) {
				require.Contains(t, c.Set, &x)
				require.Equal(t, !known, slices.ContainsFunc(c.Fresh, func(f *plan.Route) bool { return f.Equal(x) && route.KeyOf(f) == k }))
				set++
			}
		}
		for k, x := range had {
			if _, stays := have[k]; !stays {
				require.Contains(t, c.Gone, &x)
				gone++
			}
		}
		require.Len(t, c.Set, set)
		require.Len(t, c.Gone, gone)
	}
}
