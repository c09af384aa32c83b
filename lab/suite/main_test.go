package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// module is one with tests of every outcome.
var module = map[string]string{
	"go.mod": "module example.org/m\n\ngo 1.24\n",
	"good/good_test.go": `package good
import ("testing"; "time")
func TestSlow(t *testing.T) { t.Log("a word of TestSlow"); <-time.After(50 * time.Millisecond) }
func TestQuick(t *testing.T) {}
func FuzzSeeds(f *testing.F) { f.Fuzz(func(*testing.T, int) {}) }
`,
	"bad/bad_test.go": `package bad
import "testing"
func TestGood(t *testing.T) { t.Log("a word of TestGood") }
func TestBad(t *testing.T) {
	t.Run("well", func(t *testing.T) { t.Log("a word of well") })
	t.Run("ill", func(t *testing.T) { t.Error("a word of ill") })
}
`,
	"panics/panics_test.go": `package panics
import "testing"
func TestPanics(t *testing.T) { t.Run("deep", func(t *testing.T) { panic("oh no") }) }
`,
	"broken/broken_test.go": "package broken\nfunc oops() { nonsense() }\n",
}

// inModule has the test be in a folder with module.
func inModule(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range module {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	t.Chdir(dir)
}

// suite runs it, and returns what it printed, without times.
func suite(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), &out, args)
	return regexp.MustCompile(`[0-9.]+m?s\b|\(cached\)|[0-9.]+ s\b`).ReplaceAllString(out.String(), "TIME"), err
}

// table is what stands below the heading of the slowest tests.
func table(t *testing.T, out, heading string) []string {
	t.Helper()
	_, below, ok := strings.Cut(out, heading)
	require.True(t, ok, out)
	var rows []string
	for line := range strings.Lines(below) {
		rows = append(rows, strings.TrimSpace(line))
	}
	return rows
}

func TestSuccessIsShort(t *testing.T) {
	inModule(t)
	for name, args := range map[string][]string{
		"commands": {"-long", "40ms", "go test -json -count=1 ./good"},
		"lab":      {"-long", "40ms", "-lab", "/usr/bin/env", "./good"},
	} {
		out, err := suite(t, args...)
		require.NoError(t, err, name)
		require.Contains(t, out, "--- PASS: TestSlow (TIME)\nok  \texample.org/m/good\tTIME\n", name)
		require.NotContains(t, out, "a word", name)
		rows := table(t, out, "3 tests took TIME, their durations sum up to TIME. The slowest:\n")
		require.Len(t, rows, 3, name)
		require.Equal(t, "TIME  good TestSlow", rows[0], name)
	}
}

func TestFailuresAreToldInFull(t *testing.T) {
	inModule(t)
	for name, args := range map[string][]string{
		"commands": {"go test -json -count=1 ./good", "go test -json -count=1 ./bad ./panics"},
		"lab":      {"-lab", "/usr/bin/env", "./good", "./bad", "./panics"},
	} {
		out, err := suite(t, args...)
		require.ErrorIs(t, err, errFailed, name)
		require.Contains(t, out, "a word of ill\n", name)
		require.Contains(t, out, "--- FAIL: TestBad/ill (TIME)\n", name)
		require.Contains(t, out, "--- FAIL: TestBad (TIME)\n", name)
		require.Contains(t, out, "panic: oh no", name)
		require.Contains(t, out, "panics_test.go:3", name)
		require.NotContains(t, out, "a word of well", name)
		require.NotContains(t, out, "a word of TestGood", name)
		for _, line := range []string{"ok  \texample.org/m/good\tTIME\n", "FAIL\texample.org/m/bad\tTIME\n", "FAIL\texample.org/m/panics\tTIME\n"} {
			require.Equal(t, 1, strings.Count(out, line), "%s: %q in %s", name, line, out)
		}
		rows := table(t, out, "The slowest:\n")
		require.Contains(t, rows, "failed: bad TestBad", name)
		require.Contains(t, rows, "failed: panics TestPanics", name)
		require.Equal(t, "FAIL", rows[len(rows)-1], name)
	}
}

func TestWhatDoesNotRunFails(t *testing.T) {
	inModule(t)
	out, err := suite(t, "go test -json ./broken ./good")
	require.ErrorIs(t, err, errFailed)
	require.Contains(t, out, "undefined: nonsense")
	require.Contains(t, out, "FAIL\texample.org/m/broken [build failed]\n")

	_, err = suite(t, "-lab", "/usr/bin/env", "./broken")
	require.ErrorContains(t, err, "go test -c")
	out, err = suite(t, "-lab", "/bin/false", "./good") // as a lab that does not start
	require.ErrorIs(t, err, errFailed)
	require.Contains(t, out, "FAIL\texample.org/m/good\tTIME\n")
	out, err = suite(t, "-timeout", "10ms", "-lab", "/usr/bin/env", "./good")
	require.ErrorIs(t, err, errFailed)
	require.Contains(t, out, "panic: test timed out after TIME")
	_, err = suite(t)
	require.ErrorContains(t, err, "usage")
}

// TestKernelEnds has the lab's kernel end during a test: those without a result run again, once.
func TestKernelEnds(t *testing.T) {
	inModule(t)
	kernel := filepath.Join(t.TempDir(), "kernel")
	attempt := func(line string) {
		t.Helper()
		require.NoError(t, os.WriteFile(kernel, []byte("#!/bin/sh\n"+line+"\nprintf '\\026=== RUN   TestSlow\\n'; exit 124\n"), 0o700))
	}
	attempt(`[ -e ../ended ] && exec "$@"; touch ../ended`)
	out, err := suite(t, "-lab", kernel, "./good")
	require.NoError(t, err, out)
	require.Contains(t, out, "suite: the lab's kernel ended during good TestSlow, in attempt 1 of 2: 1 tests begin again\n")
	require.Contains(t, out, "3 tests took TIME")
	require.Contains(t, out, "ok  \texample.org/m/good\tTIME\n")

	attempt("")
	out, err = suite(t, "-lab", kernel, "./good")
	require.ErrorIs(t, err, errFailed)
	require.Contains(t, out, "failed: good TestSlow\n")
	require.Contains(t, out, "FAIL\texample.org/m/good\tTIME\n")

	p := newReport(&bytes.Buffer{}, time.Second).program()
	p.line([]byte(`{"Action":"pass","Package":"one","Test":"TestDone"}`))
	p.line([]byte(`{"Action":"run","Package":"one","Test":"TestUnderWay"}`))
	of := share{&tested{path: "one"}, []string{"TestDone", "TestUnderWay", "TestWaits"}, false}
	without, failed := p.interrupted(of)
	require.Equal(t, []string{"TestUnderWay", "TestWaits"}, without)
	require.False(t, failed)
	p.line([]byte(`{"Action":"fail","Package":"one","Test":"TestUnderWay"}`))
	without, failed = p.interrupted(of)
	require.Equal(t, []string{"TestWaits"}, without)
	require.True(t, failed)
}

// TestSharingOut has runs take ever smaller parts of a package, and all of its tests once.
func TestSharingOut(t *testing.T) {
	l := lab{jobs: 2, all: []*tested{{path: "one", tests: strings.Split("abcdefghijklmnop", "")}, {path: "two", tests: []string{"q"}}}}
	var sizes []int
	var names string
	for {
		s := l.next()
		if s.tested == nil {
			break
		}
		sizes = append(sizes, len(s.names))
		names += strings.Join(s.names, "")
	}
	require.Equal(t, "abcdefghijklmnopq", names)
	require.Equal(t, []int{4, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1}, sizes)
}

func TestProgress(t *testing.T) {
	r := newReport(&bytes.Buffer{}, time.Second)
	r.expect(7)
	p := r.program()
	for _, line := range []string{
		`{"Action":"run","Package":"example.org/m/good","Test":"TestDone"}`,
		`{"Action":"pass","Package":"example.org/m/good","Test":"TestDone","Elapsed":0.5}`,
		`{"Action":"run","Package":"example.org/m/good","Test":"TestSlow"}`,
		`{"Action":"run","Package":"example.org/m/good","Test":"TestSlow/deep"}`,
	} {
		p.line([]byte(line + "\n"))
	}
	require.Equal(t, "after 1m0s: 1 of 7 tests have ended; good TestSlow runs for 1m0s", r.progress(r.began.Add(time.Minute)))
}
