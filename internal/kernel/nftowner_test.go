package kernel

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/sorted"
)

// nftTry runs nft and returns its output.
func nftTry(t *testing.T, line string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", line).CombinedOutput()
	return string(out), err
}

func tableStateNow(t *testing.T) tableState {
	t.Helper()
	s, err := readTableState()
	require.NoError(t, err)
	return s
}

// TestOwnedTable has other programs try to change a table that we own, and shows the behaviour of an orphan.
func TestOwnedTable(t *testing.T) {
	newNode(t)
	var n nft
	d := someDataPlane()
	_, err := n.apply(t.Context(), d)
	require.NoError(t, err)
	require.Equal(t, tableState{true, tableOwned, n.writer.port}, tableStateNow(t))
	full := ruleset(t)

	for _, line := range []string{
		"delete table inet egressway", "flush table inet egressway", "flush chain inet egressway guard", "delete chain inet egressway guard",
		"add rule inet egressway guard accept", "add element inet egressway cluster4 { 192.0.2.0/24 }", "flush set inet egressway pods4",
		"add table inet egressway", "add table inet egressway { flags dormant; }",
	} {
		out, err := nftTry(t, line)
		require.Error(t, err, line)
		require.Contains(t, out, "Operation not permitted", line)
	}
	nftCommand(t, "flush ruleset")
	require.Equal(t, full, ruleset(t))

	// Another daemon starts meanwhile.
	var next nft
	_, err = next.apply(t.Context(), d)
	require.ErrorAs(t, err, &OwnedError{})
	require.ErrorContains(t, err, "another daemon runs on this node")
	require.ErrorAs(t, new(nft).cleanup(), &OwnedError{})
	require.Equal(t, full, ruleset(t))

	// The first daemon dies: the table remains as an orphan, and the second daemon adopts it unchanged.
	n.close()
	require.Equal(t, tableState{true, tablePersist, 0}, tableStateNow(t))
	changed, err := next.apply(t.Context(), d)
	require.NoError(t, err)
	require.False(t, changed)
	require.Equal(t, tableState{true, tableOwned, next.writer.port}, tableStateNow(t))

	next.close()
	require.NoError(t, new(nft).cleanup())
	require.Empty(t, ruleset(t))

	// An orphan is not protected.
	_, err = n.apply(t.Context(), d)
	require.NoError(t, err)
	n.close()
	out, err := nftTry(t, "add table inet egressway")
	require.Error(t, err, "flags differ")
	require.Contains(t, out, "Operation not supported")
	nftCommand(t, "flush chain inet egressway guard")
	nftCommand(t, "add rule inet egressway guard accept")
	nftCommand(t, "flush ruleset")
	require.Empty(t, ruleset(t))
}

// TestFormerElementsAreCarried replaces the whole table, as when it gets an owner: the former addresses stay in their
// set.
func TestFormerElementsAreCarried(t *testing.T) {
	newNode(t)
	d := someDataPlane()
	var n nft
	require.NoError(t, n.claim(0))
	_, err := n.apply(t.Context(), d)
	require.NoError(t, err)
	require.Equal(t, tableState{true, 0, 0}, tableStateNow(t))
	smaller := d
	smaller.Endpoints = sorted.Of(d.Endpoints.Slice()[0])
	_, err = n.apply(t.Context(), smaller)
	require.NoError(t, err)
	require.Regexp(t, `(?s)set former4 {[^}]*10\.244\.1\.12 expires`, ruleset(t))

	var next nft
	changed, err := next.apply(t.Context(), smaller)
	require.NoError(t, err)
	require.False(t, changed)
	require.Equal(t, tableState{true, tableOwned, next.writer.port}, tableStateNow(t))
	require.Regexp(t, `(?s)set former4 {[^}]*10\.244\.1\.12 [^}]*expires`, ruleset(t))
}

// TestKernelWithoutOwners requests a flag that no kernel knows, as persist is unknown before 6.9.
func TestKernelWithoutOwners(t *testing.T) {
	newNode(t)
	var n nft
	require.NoError(t, n.claim(tableOwned|0x80))
	require.Zero(t, n.flags)
	_, err := n.apply(t.Context(), someDataPlane())
	require.NoError(t, err)
	require.Equal(t, tableState{true, 0, 0}, tableStateNow(t))
	require.NotContains(t, ruleset(t), probeName)
	require.Equal(t, ReasonTableNotOwned, n.problems("a")[0].Reason)
	n.close()
	require.Equal(t, tableState{true, 0, 0}, tableStateNow(t))
}
