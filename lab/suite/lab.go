package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// tested is a package whose tests run in the lab.
type tested struct {
	path, dir, program string

	tests  []string // not yet begun
	under  int      // how many runs are under way
	took   time.Duration
	failed bool
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
	all, err := compile(ctx, programs, packages)
	if err != nil {
		return err
	}
	for _, p := range all {
		r.expect(len(p.tests))
	}
	var mu sync.Mutex
	var work sync.WaitGroup
	errs := make(chan error, jobs)
	for range jobs {
		work.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				p, names := next(all, jobs)
				mu.Unlock()
				if p == nil {
					return
				}
				began := time.Now()
				cmd := exec.CommandContext(ctx, "go", "tool", "test2json", "-t", "-p", p.path, labexec, p.program,
					"-test.v=test2json", "-test.paniconexit0", "-test.timeout="+limit.String(),
					"-test.run=^("+strings.Join(names, "|")+")$")
				cmd.Dir = p.dir
				ended, err := stream(ctx, r, cmd)
				if err != nil {
					errs <- err
					return
				}
				mu.Lock()
				p.took += time.Since(began)
				p.failed = p.failed || ended != nil
				if p.under--; p.under == 0 && len(p.tests) == 0 {
					r.ended(p)
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return err
	}
	return ctx.Err()
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

// next takes tests of the first package that has some left.
func next(all []*tested, jobs int) (p *tested, names []string) {
	for _, p := range all {
		if n := len(p.tests); n > 0 {
			n = max(1, n/(2*jobs))
			names, p.tests = p.tests[:n], p.tests[n:]
			p.under++
			return p, names
		}
	}
	return nil, nil
}
