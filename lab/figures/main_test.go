package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// unwritten are the packages whose comments are not in plain English yet, with the share of sentences that have a marker, in percent.
// A share only falls; a package that is rewritten leaves the list.
var unwritten = map[string]float64{}

// plainEnough is the share of sentences with a marker that a package in plain English may have, in percent.
const plainEnough = 4

// TestPlainEnglish holds the comments of each package to the rule of CONTRIBUTING.md.
func TestPlainEnglish(t *testing.T) {
	packages, err := measureAll([]string{"../../cmd", "../../internal"}, func(path, sentence string) {
		if _, waits := unwritten[filepath.ToSlash(filepath.Dir(path))[len("../../"):]]; !waits {
			t.Logf("%s: %s", path, sentence)
		}
	})
	require.NoError(t, err)
	require.NotEmpty(t, packages)
	for dir, c := range packages {
		name := dir[len("../../"):]
		most, waits := unwritten[name]
		if !waits {
			most = plainEnough
		}
		require.LessOrEqual(t, c.share(), most, "percent of the sentences in comments of %s have a marker: make figures SHOW=%s lists them", name, name)
		if waits {
			require.Greater(t, c.share(), float64(plainEnough), "%s is in plain English: take it off the list", name)
		}
	}
}

func TestSentences(t *testing.T) {
	require.Equal(t, []string{"Forget makes the next Apply re-read the kernel", "It costs a dump"}, sentences("Forget makes the next\nApply re-read the kernel. It costs a dump."))
	require.Empty(t, sentences("Deprecated."))
	for text, marked := range map[string]bool{
		"Forget makes the next Apply re-read the kernel": false,
		"told is what was reported":                      true,
		"take says whether a pass is due":                true,
	} {
		require.Equal(t, marked, markers.MatchString(text), text)
	}
}
