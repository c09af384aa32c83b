package kernel

import (
	"net/netip"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

func ruleset(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

func someDataPlane() plan.DataPlane {
	a := netip.MustParseAddr
	p := netip.MustParsePrefix
	return plan.DataPlane{
		Marks: plan.Marks{Mask: 0x3f00, Priority: 700},
		Paths: []plan.Path{
			{ID: 1, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "default"}, Table: 254},
			{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}, Table: 1001, Devices: []string{"eth2", "vrf-red"}},
			{ID: 3, Key: plan.PathKey{Kind: plan.PathSteer, Name: "b"}, Table: 794603, Devices: []string{"egressway"}, Tunneled: true},
		},
		Uplinks: []plan.Uplink{{Device: "eth2", Path: 2}, {Device: "vrf-red", Path: 2}},
		Endpoints: sorted.Of([]plan.Endpoint{
			{Addr: a("10.244.1.11"), Path: 2, Source: a("203.0.113.10")},
			{Addr: a("10.244.1.12"), Path: 3, Source: a("10.244.1.12")},
			{Addr: a("10.244.1.13"), Path: 2},
			{Addr: a("10.244.1.14")},
			{Addr: a("fd44:1::11"), Path: 2, Source: a("2001:db8:203::10")},
		}...),
		Cluster:   []netip.Prefix{p("10.244.0.0/16"), p("255.255.255.255/32"), p("fd44::/16"), p("ff00::/8")},
		Pods:      []netip.Prefix{p("10.244.1.0/24"), p("10.244.2.0/24"), p("fd44:1::/64")},
		Ingress:   sorted.Of(plan.IngressIP{Addr: a("203.0.113.10"), Path: 2}, plan.IngressIP{Addr: a("2001:db8:203::10"), Path: 2}),
		ClampMSS4: 1410, ClampMSS6: 1390,
	}
}

func TestTableIsMadeKeptAndReplaced(t *testing.T) {
	newNode(t)
	foreign := "table ip other { chain c { type filter hook forward priority 0; counter accept; }; }"
	out, err := exec.Command("nft", foreign).CombinedOutput()
	require.NoError(t, err, string(out))
	before := ruleset(t)

	var n nft
	d := someDataPlane()
	changed, err := n.apply(t.Context(), d)
	require.NoError(t, err)
	require.True(t, changed)
	first := ruleset(t)
	t.Log(first)

	changed, err = n.apply(t.Context(), d)
	require.NoError(t, err)
	require.False(t, changed, "the same plan must change nothing")
	require.Equal(t, first, ruleset(t))

	paths, err := n.readPaths()
	require.NoError(t, err)
	require.Equal(t, map[plan.PathKey]plan.PathID{
		{Kind: plan.PathNetwork, Name: "default"}: 1, {Kind: plan.PathNetwork, Name: "red"}: 2, {Kind: plan.PathSteer, Name: "b"}: 3,
	}, paths)

	smaller := d
	smaller.Paths, smaller.Endpoints, smaller.Cluster = d.Paths[:2], sorted.Of(d.Endpoints.Slice()[0]), d.Cluster[:1]
	changed, err = n.apply(t.Context(), smaller)
	require.NoError(t, err)
	require.True(t, changed)
	require.NotContains(t, ruleset(t), "path-3")
	require.Regexp(t, `(?s)set former4 {[^}]*10\.244\.1\.12 expires`, ruleset(t))
	require.NotContains(t, withoutFormer(ruleset(t)), "10.244.1.12")

	_, err = n.apply(t.Context(), d)
	require.NoError(t, err)
	require.Equal(t, len(first), len(withoutFormer(ruleset(t))))
	left := func() time.Duration {
		t.Helper()
		m := regexp.MustCompile(`(?s)set former4 {[^}]*10\.244\.1\.12 expires (\S+?)[,\s}]`).FindStringSubmatch(ruleset(t))
		require.NotNil(t, m)
		d, err := time.ParseDuration(m[1])
		require.NoError(t, err)
		return d
	}
	then := left()
	_, err = n.apply(t.Context(), smaller)
	require.NoError(t, err)
	require.Greater(t, left(), then, "what leaves again is remembered from then on")
	_, err = n.apply(t.Context(), d)
	require.NoError(t, err)

	// A table of our name whose sets have another shape is replaced whole.
	n.close()
	out, err = exec.Command("sh", "-c", "nft delete table inet egressway; nft 'table inet egressway { set uplinks { type ipv4_addr; }; }'").CombinedOutput()
	require.NoError(t, err, string(out))
	_, err = n.apply(t.Context(), d)
	require.NoError(t, err)
	require.Equal(t, first, ruleset(t))

	require.NoError(t, n.cleanup())
	require.Equal(t, before, ruleset(t))
}

// withoutFormer removes elements with a timeout.
func withoutFormer(ruleset string) string {
	return regexp.MustCompile(`\n\t\telements = {[^}]* expires [^}]*}`).ReplaceAllString(ruleset, "")
}
