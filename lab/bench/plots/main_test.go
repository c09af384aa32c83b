package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPicturesAreOfTheFigures: the pictures show the figures of the page. `make plots` draws them.
func TestPicturesAreOfTheFigures(t *testing.T) {
	document, err := os.ReadFile("../../../docs/benchmarks.md")
	require.NoError(t, err)
	for name, picture := range pictures {
		want, err := drawn(picture, string(document))
		require.NoError(t, err, name)
		got, err := os.ReadFile("../../../docs/pictures/" + name)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "docs/pictures/%s shows other figures than docs/benchmarks.md: run make plots", name)
		require.Contains(t, string(document), "(pictures/"+name+")", "the page shows the picture")
	}
}

func TestTables(t *testing.T) {
	const document = "# A\n\n## B\n\n| x | p50 |\n|---|---|\n| 1 | 1,234 |\n| 2 | - |\n\ntext\n\n| y |\n|---|\n| 3 |\n\n## C\n\n| z |\n|---|\n"
	found, err := tables(document, "## B")
	require.NoError(t, err)
	require.Equal(t, []table{
		{columns: []string{"x", "p50"}, rows: [][]string{{"1", "1,234"}, {"2", "-"}}},
		{columns: []string{"y"}, rows: [][]string{{"3"}}},
	}, found)
	cell, err := found[0].cell("p50", "1")
	require.NoError(t, err)
	n, err := number(cell)
	require.NoError(t, err)
	require.InDelta(t, 1234, n, 0)

	_, err = tables(document, "## D")
	require.ErrorContains(t, err, `no heading "## D"`)
	_, err = found[0].cell("p99", "1")
	require.ErrorContains(t, err, `no column "p99"`)
	_, err = found[0].cell("p50", "3")
	require.ErrorContains(t, err, `no row "3"`)

	ms, err := milliseconds("1.3 s")
	require.NoError(t, err)
	require.InDelta(t, 1300, ms, 0)
}
