// Report runs a benchmark, which prints Markdown, and puts its output into the benchmark's block of a document:
//
//	bench-report -block changes -command 'make bench-changes' bin/bench-changes
//
// A block is the text between the lines "<!-- bench:NAME -->" and "<!-- end -->". It begins with a line that
// names the command, the commit and the machine of its figures. A benchmark that fails leaves the block as it was. With
// no program to run, the block is the text on standard input.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run() error {
	file := flag.String("file", "docs/benchmarks.md", "the `document`")
	block := flag.String("block", "", "`name` of the block")
	var o origin
	flag.StringVar(&o.command, "command", "", "the `command` by which a reader gets such figures")
	flag.StringVar(&o.commit, "commit", "", "`name` of the commit that is measured")
	flag.StringVar(&o.kernel, "kernel", kernel(), "the `kernel` that it is measured on")
	flag.Parse()
	// A marker that is missing is to be known before minutes are spent.
	document, err := os.ReadFile(*file)
	if err != nil {
		return err
	}
	if _, err := replace(string(document), *block, ""); err != nil {
		return fmt.Errorf("%s: %w", *file, err)
	}
	figures, err := read(flag.Args())
	if err != nil {
		return err
	}
	if strings.TrimSpace(figures) == "" {
		return fmt.Errorf("block %q stays as it was: nothing was printed for it", *block)
	}
	o.processors, o.model = runtime.NumCPU(), model()
	return rewrite(*file, *block, o.String()+"\n\n"+figures)
}

// read runs the benchmark, and shows its output meanwhile.
func read(args []string) (string, error) {
	var printed bytes.Buffer
	if len(args) == 0 {
		_, err := io.Copy(&printed, os.Stdin)
		return printed.String(), err
	}
	// An interrupt is for the benchmark, which then cleans up, and fails.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	c := exec.Command(args[0], args[1:]...) // an interrupt from a terminal reaches it, too; SIGTERM is passed on below
	c.Stdout, c.Stderr = io.MultiWriter(os.Stdout, &printed), os.Stderr
	if err := c.Start(); err != nil {
		return "", err
	}
	passOn := context.AfterFunc(ctx, func() { _ = c.Process.Signal(unix.SIGTERM) })
	defer passOn()
	if err := c.Wait(); err != nil {
		return "", fmt.Errorf("%s: %w", args[0], err)
	}
	return printed.String(), nil
}

// kernel is the release of the kernel that runs here.
func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// model returns the first processor's name for itself; empty: it has none.
func model() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
