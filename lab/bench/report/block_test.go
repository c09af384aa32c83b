package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const document = `# Benchmarks

Prose.

<!-- bench:one -->
old figures
<!-- end -->
Prose between.
<!-- bench:two -->
<!-- end -->
`

func TestReplace(t *testing.T) {
	got, err := replace(document, "one", "\nnew\n\nfigures\n\n")
	require.NoError(t, err)
	require.Equal(t, strings.Replace(document, "old figures", "new\n\nfigures", 1), got)

	got, err = replace(document, "two", "new")
	require.NoError(t, err)
	require.Equal(t, strings.Replace(document, "two -->\n", "two -->\nnew\n", 1), got)

	again, err := replace(got, "two", "new")
	require.NoError(t, err)
	require.Equal(t, got, again)
}

func TestReplaceNeedsMarkers(t *testing.T) {
	for name, c := range map[string]struct{ document, block, says string }{
		"of a block that is not there":     {document, "three", `block "three" is missing: it begins with the line "<!-- bench:three -->"`},
		"whose name is part of another's":  {document, "on", "is missing"},
		"in the middle of a line":          {"see <!-- bench:one -->\n<!-- end -->\n", "one", "is missing"},
		"without an end":                   {"<!-- bench:one -->\nfigures\n", "one", "does not end"},
		"with an end before it":            {"<!-- end -->\n<!-- bench:one -->\n", "one", "does not end"},
		"that another block's end follows": {"<!-- bench:one -->\n<!-- bench:two -->\n<!-- end -->\n", "one", "does not end"},
		"twice":                            {document + document, "one", "begins twice"},
		"without a name":                   {document, "", "no name"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := replace(c.document, c.block, "new")
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestRewrite(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "benchmarks.md")
	require.NoError(t, os.WriteFile(file, []byte(document), 0o640))
	require.Error(t, rewrite(file, "three", "new"))

	var writing sync.WaitGroup
	for _, block := range []string{"one", "two"} {
		for range 10 {
			writing.Go(func() {
				if err := rewrite(file, block, "figures of "+block); err != nil {
					t.Error(err)
				}
			})
		}
	}
	writing.Wait()
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(got), "one -->\nfigures of one\n")
	require.Contains(t, string(got), "two -->\nfigures of two\n")
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing else is left in the folder")
}

func TestOrigin(t *testing.T) {
	require.Equal(t, "`make bench`, commit 1234567, Linux 6.18, 2 processors (Xeon).",
		origin{"make bench", "1234567", "6.18", 2, "Xeon"}.String())
	require.Equal(t, "Linux 6.18, 1 processor.", origin{kernel: "6.18", processors: 1}.String())
}

func TestFailedBenchmarkGivesNoFigures(t *testing.T) {
	_, err := read([]string{"sh", "-c", "echo figures; exit 3"})
	require.ErrorContains(t, err, "exit status 3")
	got, err := read([]string{"sh", "-c", "echo figures"})
	require.NoError(t, err)
	require.Equal(t, "figures\n", got)
}
