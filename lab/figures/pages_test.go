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
		require.Empty(t, lines, "%s has words that CONTRIBUTING.md leaves out", page)
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
