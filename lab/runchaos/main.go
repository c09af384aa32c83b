// Chaos breaks the lab again and again, in random order, under traffic that counts each packet, and prints a table of
// the results. It ends with status 1 if packets are lost that may not be, anything leaks, or anything does not come
// back; the printed seed repeats the order. It needs root, a kernel with VRF devices and an API server: labexec gives
// it all of them.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/chaos"
)

// version is set by the Makefile: git's name of the commit.
var version = "devel"

func main() { os.Exit(run()) }

func run() int {
	var o chaos.Options
	flag.StringVar(&o.Containerlab, "containerlab", "containerlab", "`folder` of the topologies")
	flag.Uint64Var(&o.Seed, "seed", 0, "of the schedule; 0: a random one")
	minutes := flag.Float64("minutes", 10, "how long faults happen")
	flag.IntVar(&o.Count, "count", 0, "how many faults happen at most; 0: any number")
	faults := flag.String("faults", "", "only these kinds, separated by commas")
	flag.BoolVar(&o.Patient, "patient", false, "for a busy machine: nodes take each other for dead after 2 s only, and routers watch "+
		"them by BGP alone")
	flag.IntVar(&o.Slower, "slower", 0, "for a busy machine: ask this many times less often")
	flag.DurationVar(&o.Slack, "slack", 0, "for a busy machine: allow this much more time for all that has a limit")
	verbose := flag.Bool("logs", false, "print the daemons' logs where something failed")
	flag.Parse()
	o.For = time.Duration(*minutes * float64(time.Minute))
	o.Out = os.Stdout
	if *faults != "" {
		o.Only = strings.Split(*faults, ",")
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64N(1 << 32)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	fmt.Printf("SEED=%d repeats this schedule\n", o.Seed)
	result, err := play(ctx, o)
	if *verbose && (err != nil || len(result.Failures) > 0) {
		fmt.Print("\n", result.Log)
	}
	fmt.Println()
	if len(result.Rows) > 0 {
		_ = result.Print(os.Stdout) // an error of the output cannot be printed either
	}
	fmt.Printf("seed %d, %g minutes, commit %s, kernel %s\n", o.Seed, *minutes, version, kernel())
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 1
	}
	if len(result.Failures) > 0 {
		fmt.Printf("\n%d failures; SEED=%d repeats the schedule:\n  %s\n", len(result.Failures), o.Seed,
			strings.Join(result.Failures, "\n  "))
		return 1
	}
	return 0
}

// play finds our binary, which the lab starts on its nodes.
func play(ctx context.Context, o chaos.Options) (chaos.Result, error) {
	binary := os.Getenv(lab.BinaryEnv)
	if binary == "" {
		binary = filepath.Join("bin", "egressway")
	}
	binary, err := filepath.Abs(binary)
	if err != nil {
		return chaos.Result{}, err
	}
	if err := os.Setenv(lab.BinaryEnv, binary); err != nil {
		return chaos.Result{}, err
	}
	return chaos.Run(ctx, o)
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
