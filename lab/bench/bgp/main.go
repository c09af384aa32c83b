// Bgp measures the daemon as a BGP speaker: how long 10,000 ingress IPs take to a router, how long 100,000 routes of a peer take
// to the kernel's table and out of it, and whether the table is right after they have changed for minutes. FRR learns the same
// routes, in turn with the daemon. It prints Markdown.
//
// The router is FRR; the peer that announces routes is this program, for the sake of its clock. Everything runs in
// network namespaces of this machine's own kernel, which needs no VRF, as root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// options are the sizes and durations.
type options struct {
	daemon   string
	services int
	prefixes int
	perMsg   int
	rounds   int
	silences int
	churn    time.Duration
	rate     int
	seed     uint64
	logs     bool
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bgp:", err)
		os.Exit(1)
	}
}

func run() error {
	var o options
	flag.StringVar(&o.daemon, "daemon", "bin/egressway", "the `program` to measure")
	flag.IntVar(&o.services, "services", 10_000, "Services with an ingress IP to announce")
	flag.IntVar(&o.prefixes, "prefixes", 100_000, "routes to learn")
	flag.IntVar(&o.perMsg, "per-update", 10, "prefixes of an UPDATE, at most")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of announcing, of learning and of losing")
	flag.IntVar(&o.silences, "silences", 3, "deaths of which the peer's kernel does not tell")
	flag.DurationVar(&o.churn, "churn", 10*time.Minute, "for how long routes change at random")
	flag.IntVar(&o.rate, "rate", 2_000, "routes that change in a second")
	flag.Uint64Var(&o.seed, "seed", 1, "of what is left to chance")
	flag.BoolVar(&o.logs, "logs", false, "print the daemon's log at the end")
	flag.Parse()
	if !o.valid() {
		return errors.New("-services 1 to 65536, -prefixes 1 to 1048576, -per-update 1 to 900, -rate 10 or more, -rounds 1 or more")
	}
	var err error
	if o.daemon, err = filepath.Abs(o.daemon); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	// The goroutine that waits for the kernel must never wait for another goroutine: its clock would be late.
	runtime.GOMAXPROCS(runtime.NumCPU() + 8)
	return measure(ctx, o, os.Stdout)
}

func (o *options) valid() bool {
	return o.services >= 1 && o.services <= 1<<16 && o.prefixes >= 1 && o.prefixes <= 1<<20 &&
		o.perMsg >= 1 && o.perMsg <= 900 && o.rate >= 10 && o.rounds >= 1
}

// measure prints each table when it is there.
func measure(ctx context.Context, o options, out io.Writer) (err error) {
	b, err := build(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		if o.logs {
			fmt.Fprintf(os.Stderr, "%s\n", b.daemon.Log())
		}
		b.destroy()
	}()
	for _, part := range []func(context.Context, io.Writer) error{b.announcing, b.learning, b.silence, b.churning} {
		if err := part(ctx, out); err != nil {
			return err
		}
	}
	return nil
}

// progress prints a line for the user who waits.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bgp: %s: %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
