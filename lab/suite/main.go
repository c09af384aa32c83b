// Suite runs tests, some sets of them at once. It prints failures in full, a line for each package, how far it is, and at the end
// which tests took longest:
//
//	suite -lab bin/labexec ./internal/kernel ./test/e2e        // shares the tests of packages out among runs of labexec
//	suite 'go test -json ./internal/plan' 'go test -json ./x'  // runs commands that print what go test -json does
//
// The limit of a test program ends one that hangs: it is far longer than any machine needs. A test that goes on for
// long shows in a line a minute.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, errFailed):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(2)
	}
}

// errFailed says that tests failed, which the report names.
var errFailed = errors.New("tests failed")

func run(ctx context.Context, out io.Writer, args []string) error {
	flags := flag.NewFlagSet("suite", flag.ContinueOnError)
	jobs := flags.Int("jobs", 2, "how many test programs run at once")
	labexec := flags.String("lab", "", "run packages by this `program`, as go test -exec would; otherwise the arguments are commands")
	limit := flags.Duration("timeout", time.Hour, "end a test program of -lab that runs for so long")
	long := flags.Duration("long", 10*time.Second, "print a line for each test that passed and took so long")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 || *jobs < 1 {
		return errors.New("usage: suite [-jobs n] -lab program package [package ...] | " +
			"suite [-jobs n] 'go test -json ...' ['go test -json ...' ...]; see -h")
	}
	r := newReport(out, *long)
	defer r.alive(time.Minute)()
	var err error
	if *labexec != "" {
		err = inLab(ctx, r, flags.Args(), *labexec, *jobs, *limit)
	} else {
		err = commands(ctx, r, flags.Args(), *jobs)
	}
	if err != nil {
		return err
	}
	return r.end()
}

// commands runs shell commands, some at once.
func commands(ctx context.Context, r *report, lines []string, jobs int) error {
	slots := make(chan struct{}, jobs)
	var work sync.WaitGroup
	errs := make([]error, len(lines))
	for i, line := range lines {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			var ended error
			var p *program
			if p, ended, errs[i] = stream(ctx, r, exec.CommandContext(ctx, "sh", "-c", "exec "+line), nil); p != nil {
				p.ended(ended)
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// stream starts a command and reports the events that it prints, or those that convert, unless nil, makes of its output. It returns how the
// command ended, unless it did not start.
func stream(ctx context.Context, r *report, cmd, convert *exec.Cmd) (p *program, ended, err error) {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err == nil && convert != nil {
		convert.Cancel = func() error { return nil } // it ends with its input
		cmd.Stderr, convert.Stderr, convert.Stdin = cmd.Stdout, os.Stderr, events
		events, err = convert.StdoutPipe()
	}
	if err != nil {
		return nil, nil, err
	}
	for _, c := range []*exec.Cmd{convert, cmd} {
		if c == nil {
			continue
		}
		if err := c.Start(); err != nil {
			return nil, nil, fmt.Errorf("start %s: %w", strings.Join(c.Args, " "), err)
		}
	}
	p = r.program()
	for in := bufio.NewReader(events); ; {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			p.line(line)
		}
		if err != nil {
			break
		}
	}
	ended = cmd.Wait()
	if convert != nil {
		err = convert.Wait()
	}
	return p, ended, cmp.Or(ctx.Err(), err)
}
