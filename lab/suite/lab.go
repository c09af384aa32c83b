package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// tested is a package whose tests run in the lab.
type tested struct {
	path, dir, program string

	tests  []string // not yet begun
	again  []string // were under way or waited when the lab's kernel ended
	under  int      // how many runs are under way
	took   time.Duration
	failed bool
}

// share is a part of a package's tests, for one run.
type share struct {
	*tested
	names []string
	again bool // the lab's kernel ended before they did
}

// lab shares tests out among runs of labexec.
type lab struct {
	*report
	labexec string
	limit   time.Duration
	jobs    int

	sharing sync.Mutex
	all     []*tested
}

// inLab compiles the tests of packages and shares them out: a run that becomes free takes a part of those that are left, ever smaller
// ones, so that all end at about the same time whichever tests are slow.
func inLab(ctx context.Context, r *report, packages []string, labexec string, jobs int, limit time.Duration) error {
	labexec, err := filepath.Abs(labexec)
	if err != nil {
		return err
	}
	programs, err := os.MkdirTemp("", "suite-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(programs)
	l := lab{report: r, labexec: labexec, limit: limit, jobs: jobs}
	if l.all, err = compile(ctx, programs, packages); err != nil {
		return err
	}
	for _, p := range l.all {
		r.expect(len(p.tests))
	}
	var work errgroup.Group
	for range jobs {
		work.Go(func() error { return l.work(ctx) })
	}
	return cmp.Or(work.Wait(), ctx.Err())
}

// work runs tests until none is left.
func (l *lab) work(ctx context.Context) error {
	for ctx.Err() == nil {
		s := l.next()
		if s.tested == nil {
			break
		}
		began := time.Now()
		p, ended, err := l.test(ctx, s)
		if err != nil {
			return err
		}
		l.over(s, p, ended, time.Since(began))
	}
	return nil
}

// test runs a share of tests in the lab. Labexec's status shows whether the lab's kernel ended; test2json would hide it if it ran labexec.
func (l *lab) test(ctx context.Context, s share) (p *program, ended, err error) {
	cmd := exec.CommandContext(ctx, l.labexec, s.program, "-test.v=test2json", "-test.paniconexit0", "-test.timeout="+l.limit.String(),
		"-test.run=^("+strings.Join(s.names, "|")+")$")
	cmd.Dir = s.dir
	return stream(ctx, l.report, cmd, exec.CommandContext(ctx, "go", "tool", "test2json", "-t", "-p", s.path))
}

// kernelEnded is labexec's status when the user-mode kernel ended.
const kernelEnded = 124

// over notes how a run ended. If the lab's kernel ended, which is no fault of a test's, tests without a result begin again, once.
func (l *lab) over(s share, p *program, ended error, took time.Duration) {
	l.sharing.Lock()
	defer l.sharing.Unlock()
	var failed bool
	if exit, exited := errors.AsType[*exec.ExitError](ended); exited && exit.ExitCode() == kernelEnded && !s.again {
		var without []string
		without, failed = p.interrupted(s)
		s.tested.again = append(s.tested.again, without...)
	} else {
		failed = p.ended(ended)
	}
	s.failed = s.failed || failed
	s.took += took
	if s.under--; s.under == 0 && len(s.tests) == 0 && len(s.tested.again) == 0 {
		l.ended(s.tested)
	}
}

// compile makes the test programs of packages, and asks them for the names of their tests.
func compile(ctx context.Context, dir string, packages []string) (all []*tested, err error) {
	list, err := output(ctx, "", "go", append([]string{"list", "-f", "{{.ImportPath}}\t{{.Dir}}"}, packages...)...)
	if err != nil {
		return nil, err
	}
	if _, err := output(ctx, "", "go", append([]string{"test", "-c", "-o", dir + "/"}, packages...)...); err != nil {
		return nil, err
	}
	for line := range strings.Lines(list) {
		p := &tested{}
		p.path, p.dir, _ = strings.Cut(strings.TrimSpace(line), "\t")
		p.program = filepath.Join(dir, filepath.Base(p.path)+".test")
		names, err := output(ctx, p.dir, p.program, "-test.list=^(Test|Fuzz|Example)")
		if err != nil {
			return nil, err
		}
		p.tests = strings.Fields(names)
		all = append(all, p)
	}
	return all, nil
}

// output returns the output of a command. Its errors go to those of suite.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return string(out), err
}

// next takes tests of the first package that has some left; without a package, no tests are left.
func (l *lab) next() (s share) {
	l.sharing.Lock()
	defer l.sharing.Unlock()
	for _, p := range l.all {
		if n := len(p.again); n > 0 {
			s = share{p, p.again, true}
			p.again = nil
		} else if n := len(p.tests); n > 0 {
			n = max(1, n/(2*l.jobs))
			s = share{p, p.tests[:n], false}
			p.tests = p.tests[n:]
		} else {
			continue
		}
		p.under++
		return s
	}
	return s
}
