package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// avoided are words that no page needs: CONTRIBUTING.md has the rule. Comments are held to more, see markers.
var avoided = regexp.MustCompile(`(?i)\b(tells?|told|telling|anew|somebody|nobody|whoever|likewise|lately|hitherto|for ever|(is|are) none of)\b`)

// notProse match the parts of a Markdown page that the rule leaves alone: blocks that bench-report writes, fenced blocks, code and quoted words.
var notProse = []*regexp.Regexp{
	regexp.MustCompile(`(?s)<!-- bench:[\w-]+ -->.*?<!-- end -->`),
	regexp.MustCompile("(?s)```.*?```"),
	regexp.MustCompile("\"[^\"\n]*\"|`[^`\n]*`"),
}

// unwrittenPages are the pages that still have such words, with the number of their lines. A number only falls; a page without such words
// leaves the list.
var unwrittenPages = map[string]int{
	"docs/decisions/0001-gobgp-v4.md":                    1,
	"docs/decisions/0002-marks.md":                       1,
	"docs/decisions/0003-guard-pairs.md":                 1,
	"docs/decisions/0004-end-connections.md":             1,
	"docs/decisions/0006-learned-routes.md":              1,
	"docs/decisions/0007-tunnel-next-hop.md":             2,
	"docs/decisions/0008-link-group.md":                  1,
	"docs/decisions/0010-manifests-election.md":          1,
	"docs/decisions/0011-held-routes.md":                 4,
	"docs/decisions/0012-stray-endpoints.md":             2,
	"docs/decisions/0013-guests.md":                      1,
	"docs/decisions/0014-standby-path.md":                1,
	"docs/decisions/0016-reports-in-leases.md":           2,
	"docs/decisions/0017-doubted-lists.md":               2,
	"docs/decisions/0018-strays.md":                      2,
	"docs/decisions/0019-speaker-process.md":             2,
	"docs/decisions/0020-flow-replication.md":            15,
	"docs/decisions/0021-owned-table.md":                 5,
	"docs/decisions/0022-planned-moves.md":               1,
	"docs/decisions/0023-path-health.md":                 4,
	"docs/decisions/0024-bfd-between-nodes.md":           4,
	"docs/decisions/0025-failover.md":                    5,
	"docs/decisions/0026-cost-of-a-packet.md":            5,
	"docs/decisions/0027-a-change-costs-what-changed.md": 5,
	"docs/decisions/0028-learned-by-events.md":           5,
	"docs/decisions/0030-hostile-peers.md":               7,
	"docs/decisions/0031-router-on-the-node.md":          3,
	"docs/decisions/0032-hold.md":                        4,
	"docs/decisions/0033-memory.md":                      2,
	"docs/decisions/0034-after-a-boot.md":                2,
	"docs/decisions/0036-ready.md":                       1,
	"docs/decisions/0038-neighbours.md":                  3,
	"docs/decisions/0039-bfd-with-routers.md":            4,
	"docs/decisions/0040-claims.md":                      1,
	"docs/decisions/0041-ingress-ips-of-others.md":       2,
	"docs/decisions/0045-obeyed-status.md":               1,
	"docs/decisions/README.md":                           4,
}

// TestPlainPages holds Markdown, manifests and their comments to the word list.
func TestPlainPages(t *testing.T) {
	found := map[string][]string{}
	for _, root := range []string{"README.md", "CONTRIBUTING.md", "Makefile", "docs", "deploy", "config", "containerlab"} {
		require.NoError(t, filepath.WalkDir("../../"+root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				if d.Name() == "crd" || d.Name() == "crds" { // made from api/v1
					return fs.SkipDir
				}
				return nil
			}
			if root != "Makefile" && !slices.Contains([]string{".md", ".yaml", ".tpl", ".txt", ".conf", ".json"}, filepath.Ext(path)) {
				return nil
			}
			lines, err := avoidedLines(path)
			found[strings.TrimPrefix(filepath.ToSlash(path), "../../")] = lines
			return err
		}))
	}
	require.Greater(t, len(found), 100)
	for page, lines := range found {
		require.LessOrEqual(t, len(lines), unwrittenPages[page], "%s has words that CONTRIBUTING.md leaves out:\n%s", page, strings.Join(lines, "\n"))
	}
}

// avoidedLines returns the lines of a page that have a word to avoid.
func avoidedLines(path string) (lines []string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	text := string(b)
	if filepath.Ext(path) == ".md" {
		for _, part := range notProse {
			text = part.ReplaceAllString(text, "")
		}
	}
	for line := range strings.Lines(text) {
		if avoided.MatchString(line) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines, nil
}

func TestAvoidedLines(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(page, []byte(strings.Join([]string{
		"A peer tells a route, and", "it is", "announced anew.", "No \"nobody\", `told` or:", "```", "told", "```", "<!-- bench:x -->", "told", "<!-- end -->", "retold",
	}, "\n")), 0o600))
	lines, err := avoidedLines(page)
	require.NoError(t, err)
	require.Equal(t, []string{"A peer tells a route, and", "announced anew."}, lines)
}
