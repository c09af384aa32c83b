package nft

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

func tableStateNow(t *testing.T) State {
	t.Helper()
	s, err := ReadState()
	require.NoError(t, err)
	return s
}

// TestOwnedTable has other programs try to change a table that we own, and shows the behaviour of an orphan.
func TestOwnedTable(t *testing.T) {
	netns.Enter(t)
	var n keptTable
	d := stories.DataPlane()
	_, err := n.Apply(t.Context(), d)
	require.NoError(t, err)
	require.Equal(t, State{true, tableOwned, n.writer.Port}, tableStateNow(t))
	full := netns.Ruleset(t)

	for _, line := range []string{
		"delete table inet egressway", "flush table inet egressway", "flush chain inet egressway guard", "delete chain inet egressway guard",
		"add rule inet egressway guard accept", "add element inet egressway cluster4 { 192.0.2.0/24 }", "flush set inet egressway pods4",
		"add table inet egressway", "add table inet egressway { flags dormant; }",
	} {
		out, err := netns.NFT(t, line)
		require.Error(t, err, line)
		require.Contains(t, out, "Operation not permitted", line)
	}
	netns.MustNFT(t, "flush ruleset")
	require.Equal(t, full, netns.Ruleset(t))

	// Another daemon starts meanwhile.
	var next keptTable
	t.Cleanup(func() { next.Close() })
	_, err = next.Apply(t.Context(), d)
	require.ErrorAs(t, err, &OwnedError{})
	require.ErrorContains(t, err, "another daemon runs on this node")
	require.ErrorAs(t, new(Table).Cleanup(), &OwnedError{})
	require.Equal(t, full, netns.Ruleset(t))

	// The first daemon dies: the table remains as an orphan, and the second daemon adopts it unchanged.
	n.Close()
	require.Equal(t, State{true, tablePersist, 0}, tableStateNow(t))
	changed, err := next.Apply(t.Context(), d)
	require.NoError(t, err)
	require.False(t, changed)
	require.Equal(t, State{true, tableOwned, next.writer.Port}, tableStateNow(t))

	next.Close()
	require.NoError(t, new(Table).Cleanup())
	require.Empty(t, netns.Ruleset(t))

	// An orphan is not protected.
	_, err = n.Apply(t.Context(), d)
	require.NoError(t, err)
	n.Close()
	out, err := netns.NFT(t, "add table inet egressway")
	require.Error(t, err, "flags differ")
	require.Contains(t, out, "Operation not supported")
	netns.MustNFT(t, "flush chain inet egressway guard")
	netns.MustNFT(t, "add rule inet egressway guard accept")
	netns.MustNFT(t, "flush ruleset")
	require.Empty(t, netns.Ruleset(t))
}

// TestPathIDsOutliveFailure has Apply fail, after which the table may be gone: the ids that connections carry stay known.
func TestPathIDsOutliveFailure(t *testing.T) {
	netns.Enter(t)
	var n, other keptTable
	t.Cleanup(func() { n.Close() })
	d := stories.DataPlane()
	_, err := n.Apply(t.Context(), d)
	require.NoError(t, err)
	ids := n.held.Paths
	require.Len(t, ids, len(d.Paths))
	n.Close()
	_, err = other.Apply(t.Context(), d)
	require.NoError(t, err)
	_, err = n.Apply(t.Context(), d)
	require.ErrorAs(t, err, &OwnedError{})
	require.Equal(t, Held{Paths: ids}, n.held)
	other.Close()
	require.NoError(t, n.Cleanup())
	r, err := n.Table.Apply(t.Context(), n.held, &d, false)
	require.NoError(t, err)
	require.True(t, r.Made)
}

// TestFormerElementsAreCarried replaces the whole table, as when it gets an owner: the former addresses stay in their
// set.
func TestFormerElementsAreCarried(t *testing.T) {
	netns.Enter(t)
	d := stories.DataPlane()
	var n keptTable
	t.Cleanup(func() { n.Close() })
	require.NoError(t, n.Claim(0))
	_, err := n.Apply(t.Context(), d)
	require.NoError(t, err)
	require.Equal(t, State{true, 0, 0}, tableStateNow(t))
	smaller := d
	smaller.Endpoints = sorted.Of(d.Endpoints.Slice()[0])
	_, err = n.Apply(t.Context(), smaller)
	require.NoError(t, err)
	require.Regexp(t, `(?s)set former4 {[^}]*10\.244\.1\.12 expires`, netns.Ruleset(t))

	var next keptTable
	t.Cleanup(func() { next.Close() })
	changed, err := next.Apply(t.Context(), smaller)
	require.NoError(t, err)
	require.False(t, changed)
	require.Equal(t, State{true, tableOwned, next.writer.Port}, tableStateNow(t))
	require.Regexp(t, `(?s)set former4 {[^}]*10\.244\.1\.12 [^}]*expires`, netns.Ruleset(t))
}

// TestKernelWithoutOwners requests a flag that no kernel knows, as persist is unknown before 6.9.
func TestKernelWithoutOwners(t *testing.T) {
	netns.Enter(t)
	var n keptTable
	require.NoError(t, n.Claim(tableOwned|0x80))
	require.Zero(t, n.flags)
	_, err := n.Apply(t.Context(), stories.DataPlane())
	require.NoError(t, err)
	require.Equal(t, State{true, 0, 0}, tableStateNow(t))
	require.NotContains(t, netns.Ruleset(t), probeName)
	require.Equal(t, ReasonTableNotOwned, n.Problems("a")[0].Reason)
	n.Close()
	require.Equal(t, State{true, 0, 0}, tableStateNow(t))
}
