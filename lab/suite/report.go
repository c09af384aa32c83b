package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// event is one line of go test -json: see go doc test2json.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

// report prints the progress and the results. Programs write to it at the same time.
type report struct {
	long  time.Duration // from which on a test that passed has a line
	began time.Time

	mu       sync.Mutex
	out      io.Writer
	said     time.Time // when something was printed last
	programs []*program
	expected int // tests; 0: their number is not known
	results  []result
	failed   bool
}

// result is how a test ended, with all of its subtests.
type result struct {
	Package, Test string
	took          time.Duration
	failed        bool
}

func (r result) String() string { return path.Base(r.Package) + " " + r.Test }

// program is one that tests.
type program struct {
	*report
	live []*live // tests without subtests' names, in the order of their begin
}

// live is a test that has not ended.
type live struct {
	result
	began  time.Time
	lines  []event
	passed map[string]bool // by name of the test or subtest
}

func newReport(out io.Writer, long time.Duration) *report {
	return &report{out: out, long: long, began: time.Now(), said: time.Now()}
}

// expect says that more tests will come.
func (r *report) expect(tests int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expected += tests
}

func (r *report) program() *program {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &program{report: r}
	r.programs = append(r.programs, p)
	return p
}

func (r *report) print(format string, args ...any) {
	r.said = time.Now()
	fmt.Fprintf(r.out, format, args...)
}

// line handles a line of a program. Lines that are no events are printed as they are.
func (p *program) line(line []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		p.print("%s", line)
		return
	}
	if e.Test != "" {
		p.event(e)
	} else if said := strings.TrimSpace(e.Output); said != "" && said != "PASS" && said != "FAIL" {
		p.print("%s", e.Output)
	}
}

// event handles an event of a test.
func (p *program) event(e event) {
	l := p.test(e)
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") {
			l.lines = append(l.lines, e)
		}
	case "pass", "skip", "fail":
		l.passed[e.Test] = e.Action != "fail"
		if e.Test == l.Test {
			l.took = time.Duration(e.Elapsed * float64(time.Second))
			p.over(l, e.Action == "fail")
		}
	}
}

// test is the one without subtests' names that an event is about.
func (p *program) test(e event) *live {
	name, _, _ := strings.Cut(e.Test, "/")
	at := slices.IndexFunc(p.live, func(l *live) bool { return l.Test == name && l.Package == e.Package })
	if at < 0 {
		at = len(p.live)
		p.live = append(p.live, &live{result: result{Package: e.Package, Test: name}, began: time.Now(), passed: map[string]bool{}})
	}
	return p.live[at]
}

// over prints a test that has ended: all that it and its subtests without success wrote, or its last line where it took long.
func (p *program) over(l *live, failed bool) {
	p.live = slices.DeleteFunc(p.live, func(o *live) bool { return o == l })
	l.failed = failed
	p.results = append(p.results, l.result)
	for _, e := range l.lines {
		last := e.Test == l.Test && strings.HasPrefix(e.Output, "--- ")
		if failed && !l.passed[e.Test] || last && l.took >= p.long {
			p.print("%s", e.Output)
		}
	}
}

// ended notes how the program ended, and reports whether it failed. Tests under way have failed with it.
func (p *program) ended(err error) (failed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.report.failed = true
	}
	for len(p.live) > 0 {
		l := p.live[0]
		l.took = time.Since(l.began)
		p.over(l, true)
		p.print("--- FAIL: %s (%.2fs): its program ended: %v\n", l.Test, l.took.Seconds(), err)
	}
	p.programs = slices.DeleteFunc(p.programs, func(o *program) bool { return o == p })
	return err != nil
}

// interrupted notes that the lab's kernel ended before the program did. It returns the tests that have no result, and whether another one
// had failed.
func (p *program) interrupted(s share) (without []string, failed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range s.names {
		i := slices.IndexFunc(p.results, func(r result) bool { return r.Package == s.path && r.Test == name })
		if i < 0 {
			without = append(without, name)
		}
		failed = failed || i >= 0 && p.results[i].failed
	}
	during := "before any test"
	if len(p.live) > 0 {
		during = "during " + p.live[0].String()
	}
	p.print("suite: the lab's kernel ended %s, in attempt 1 of 2: %d tests begin again\n", during, len(without))
	p.programs = slices.DeleteFunc(p.programs, func(o *program) bool { return o == p })
	return without, failed
}

// ended prints how the tests of a package did, as go test does.
func (r *report) ended(p *tested) {
	r.mu.Lock()
	defer r.mu.Unlock()
	word := "ok  "
	if p.failed {
		word = "FAIL"
	}
	r.print("%s\t%s\t%.3fs\n", word, p.path, p.took.Seconds())
}

// alive prints the running tests whenever nothing else was printed for a while, until stop is called.
func (r *report) alive(while time.Duration) (stop func()) {
	done := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(while / 10)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case now := <-tick.C:
				r.mu.Lock()
				if now.Sub(r.said) >= while {
					r.print("%s\n", r.progress(now))
				}
				r.mu.Unlock()
			}
		}
	})
	return func() { close(done); work.Wait() }
}

// progress describes how far the tests are.
func (r *report) progress(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "after %s: %d", now.Sub(r.began).Round(time.Second), len(r.results))
	if r.expected > 0 {
		fmt.Fprintf(&b, " of %d", r.expected)
	}
	b.WriteString(" tests have ended")
	for _, p := range r.programs {
		for _, l := range p.live {
			fmt.Fprintf(&b, "; %s runs for %s", l.result, now.Sub(l.began).Round(time.Second))
		}
	}
	return b.String()
}

// slowest is how many tests the table at the end has.
const slowest = 15

// end prints which tests took longest, and which failed.
func (r *report) end() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var sum time.Duration
	for _, t := range r.results {
		sum += t.took
	}
	slices.SortStableFunc(r.results, func(x, y result) int { return cmp.Compare(y.took, x.took) })
	r.print("%d tests took %s, their durations sum up to %s. The slowest:\n", len(r.results), time.Since(r.began).Round(time.Second),
		sum.Round(time.Second))
	for _, t := range r.results[:min(slowest, len(r.results))] {
		r.print("%8.1f s  %s\n", t.took.Seconds(), t)
	}
	for _, t := range r.results {
		if t.failed {
			r.failed = true
			r.print("failed: %s\n", t)
		}
	}
	if r.failed {
		r.print("FAIL\n")
		return errFailed
	}
	return nil
}
