package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// plainEnough is the share of sentences with a marker that a package in plain English may have, in percent.
const plainEnough = 3

// TestPlainEnglish holds the comments of each package to the rule of CONTRIBUTING.md.
func TestPlainEnglish(t *testing.T) {
	packages, err := measureAll([]string{"../../cmd", "../../internal", "../../lab", "../../release"}, func(path, sentence string) {
		t.Logf("%s: %s", path, sentence)
	})
	require.NoError(t, err)
	require.NotEmpty(t, packages)
	for dir, c := range packages {
		name := dir[len("../../"):]
		if name == "lab/kubelab" {
			continue // any change of its text builds kubelab again: the text is the key of the cache
		}
		require.LessOrEqual(t, c.share(), float64(plainEnough),
			"percent of the sentences in comments of %s have a marker: make figures SHOW=%s lists them", name, name)
	}
}

// filesMost is how many production files a package may have.
const filesMost = 15

// TestPackagesAreSmall holds each package to a number of files that a reader can keep in view.
func TestPackagesAreSmall(t *testing.T) {
	packages, err := measureAll([]string{"../../api", "../../cmd", "../../internal", "../../lab", "../../release", "../../test"}, func(string, string) {})
	require.NoError(t, err)
	require.NotEmpty(t, packages)
	for dir, c := range packages {
		require.LessOrEqual(t, c.files, filesMost, "production files of %s: a part of it may be a package of its own", dir[len("../../"):])
	}
}

// TestMeasure compares the figures of a function with those counted by hand.
func TestMeasure(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.go")
	require.NoError(t, os.WriteFile(file, []byte(`package a

func short(a, b bool) bool { return a && b || !a }

func long(all []int) (n int) {
	for _, i := range all {
		switch {
		case i > 3 && i < 9, i == 20:
			n++
		case i == 30:
			n--
		default:
			if n > 7 {
				return n
			}
		}
	}
	return n
}
`), 0o600))
	c, _, err := measure(file)
	require.NoError(t, err)
	require.Equal(t, counts{files: 1, functions: 2, lines: 15, decisions: 6, dense: 1}, c, "short is dense, and too short to count")
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
