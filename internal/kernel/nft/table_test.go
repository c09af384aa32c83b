package nft

import (
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

func TestTableIsMadeKeptAndReplaced(t *testing.T) {
	netns.Enter(t)
	foreign := "table ip other { chain c { type filter hook forward priority 0; counter accept; }; }"
	out, err := exec.Command("nft", foreign).CombinedOutput()
	require.NoError(t, err, string(out))
	before := netns.Ruleset(t)

	var n keptTable
	d := stories.DataPlane()
	changed, err := n.Apply(t.Context(), d)
	require.NoError(t, err)
	require.True(t, changed)
	first := netns.Ruleset(t)
	t.Log(first)

	changed, err = n.Apply(t.Context(), d)
	require.NoError(t, err)
	require.False(t, changed, "the same plan must change nothing")
	require.Equal(t, first, netns.Ruleset(t))

	paths, err := n.ReadPaths()
	require.NoError(t, err)
	require.Equal(t, map[plan.PathKey]plan.PathID{
		{Kind: plan.PathNetwork, Name: "default"}: 1, {Kind: plan.PathNetwork, Name: "red"}: 2, {Kind: plan.PathSteer, Name: "b"}: 3,
	}, paths)

	smaller := d
	smaller.Paths, smaller.Endpoints, smaller.Cluster = d.Paths[:2], sorted.Of(d.Endpoints.Slice()[0]), d.Cluster[:1]
	changed, err = n.Apply(t.Context(), smaller)
	require.NoError(t, err)
	require.True(t, changed)
	require.NotContains(t, netns.Ruleset(t), "path-3")
	require.Regexp(t, `(?s)set former4 {[^}]*10\.244\.1\.12 expires`, netns.Ruleset(t))
	require.NotContains(t, withoutFormer(netns.Ruleset(t)), "10.244.1.12")

	_, err = n.Apply(t.Context(), d)
	require.NoError(t, err)
	require.Equal(t, len(first), len(withoutFormer(netns.Ruleset(t))))
	left := func() time.Duration {
		t.Helper()
		m := regexp.MustCompile(`(?s)set former4 {[^}]*10\.244\.1\.12 expires (\S+?)[,\s}]`).FindStringSubmatch(netns.Ruleset(t))
		require.NotNil(t, m)
		d, err := time.ParseDuration(m[1])
		require.NoError(t, err)
		return d
	}
	then := left()
	_, err = n.Apply(t.Context(), smaller)
	require.NoError(t, err)
	require.Greater(t, left(), then, "what leaves again is remembered from then on")
	_, err = n.Apply(t.Context(), d)
	require.NoError(t, err)

	// A table of our name whose sets have another shape is replaced whole.
	n.Close()
	out, err = exec.Command("sh", "-c", "nft delete table inet egressway; nft 'table inet egressway { set uplinks { type ipv4_addr; }; }'").CombinedOutput()
	require.NoError(t, err, string(out))
	_, err = n.Apply(t.Context(), d)
	require.NoError(t, err)
	require.Equal(t, first, netns.Ruleset(t))

	require.NoError(t, n.Cleanup())
	require.Equal(t, before, netns.Ruleset(t))
}

// withoutFormer removes elements with a timeout.
func withoutFormer(ruleset string) string {
	return regexp.MustCompile(`\n\t\telements = {[^}]* expires [^}]*}`).ReplaceAllString(ruleset, "")
}
