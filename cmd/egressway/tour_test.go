package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTour runs the commands of docs/tour.md that need no node, and compares their output with the lines on the page.
func TestTour(t *testing.T) {
	page, err := os.ReadFile("../../docs/tour.md")
	require.NoError(t, err)
	samples, err := filepath.Abs("../../config")
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	require.NoError(t, os.Symlink(samples, "config"))

	ran := 0
	for _, block := range regexp.MustCompile("(?s)\n```\n(.*?)\n```\n").FindAllSubmatch(page, -1) {
		for _, part := range strings.Split("\n"+string(block[1]), "\n$ ")[1:] {
			command, shown, _ := strings.Cut(part, "\n")
			if file, ok := strings.CutPrefix(command, "cat "); ok {
				require.NoError(t, os.WriteFile(file, []byte(shown), 0o600))
				continue
			}
			args, ok := strings.CutPrefix(command, "bin/egressway ")
			if !ok {
				continue
			}
			var out, errs bytes.Buffer
			execute(strings.Fields(args), &out, &errs)
			printed := strings.Split(out.String()+errs.String(), "\n")
			for line := range strings.SplitSeq(shown, "\n") {
				at := slices.Index(printed, line)
				require.GreaterOrEqual(t, at, 0, "egressway %s prints no more %q, but\n%s%s", args, line, out.String(), errs.String())
				printed = printed[at+1:]
			}
			ran++
		}
	}
	require.Equal(t, 3, ran)
}
