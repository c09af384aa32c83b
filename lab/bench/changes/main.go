// Changes measures the daemon on one node of a large cluster: how long a change of an object takes to the kernel and to a BGP
// peer, how long the daemon takes to start, and how much memory and processor time it uses. It prints Markdown.
//
// The API server is a real one, seeded; the peer and the watch of the kernel are this program, for the sake of their
// clock. Everything runs in network namespaces of this machine's own kernel, which needs no VRF, as root.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// version is set by the Makefile: git's name of the commit.
var version = "devel"

// options are the sizes and durations.
type options struct {
	daemon, kubelab, crd string

	services, endpoints, nodes, hosts, namespaces int
	big                                           int // endpoints of the Service that moves host

	rate   float64 // changes a second
	churn  time.Duration
	lone   int
	rest   time.Duration
	starts int
	moves  int

	server  bool
	folder  bool
	perFile int
	seed    uint64
	logs    bool
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "changes:", err)
		os.Exit(1)
	}
}

func run() error {
	var o options
	flag.StringVar(&o.daemon, "daemon", "bin/egressway", "the `program` to measure")
	flag.StringVar(&o.kubelab, "kubelab", os.Getenv("KUBELAB"), "the API server, as `make kubelab` prints its `path`")
	flag.StringVar(&o.crd, "crd", "config/crd/k8s.ovn.org_egressservices.yaml", "`file` of the CRD")
	flag.IntVar(&o.services, "services", 10_000, "Services, with an EgressService each")
	flag.IntVar(&o.endpoints, "endpoints", 10, "endpoints of each Service")
	flag.IntVar(&o.nodes, "nodes", 1_000, "Nodes")
	flag.IntVar(&o.hosts, "hosts", 4, "how many of the Nodes are hosts, in turn; the node that is measured is the first")
	flag.IntVar(&o.namespaces, "namespaces", 50, "Namespaces")
	flag.IntVar(&o.big, "big", 10_000, "endpoints of the Service that moves host; 0: none does")
	flag.Float64Var(&o.rate, "rate", 100, "changes a second")
	flag.DurationVar(&o.churn, "churn", time.Minute, "for how long changes come at that rate")
	flag.IntVar(&o.lone, "lone", 60, "changes that come alone, one a second")
	flag.DurationVar(&o.rest, "rest", time.Minute, "for how long the daemon is watched at rest")
	flag.IntVar(&o.starts, "starts", 3, "cold starts")
	flag.IntVar(&o.moves, "moves", 6, "moves of the large Service")
	flag.BoolVar(&o.server, "server", true, "measure with an API server")
	flag.BoolVar(&o.folder, "folder", true, "measure a folder of manifests too")
	flag.IntVar(&o.perFile, "per-file", 100, "Services in a file of that folder")
	flag.Uint64Var(&o.seed, "seed", 1, "of what is left to chance")
	flag.BoolVar(&o.logs, "logs", false, "print the daemon's log at the end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	// The goroutine that waits for the kernel must never wait for another goroutine: its clock would be late.
	runtime.GOMAXPROCS(runtime.NumCPU() + 8)
	return measure(ctx, o, os.Stdout)
}

// measure prints each table when it is there.
func measure(ctx context.Context, o options, out io.Writer) (err error) {
	b, err := build(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		if o.logs {
			fmt.Fprintf(os.Stderr, "%s\n", b.said())
		}
		b.destroy()
	}()
	fmt.Fprintf(out, "%d Services with an EgressService and %d endpoints each, %d Nodes, %d of them hosts; the node that is measured is "+
		"host of %d, standby of %d.\n",
		o.services, o.endpoints, o.nodes, o.hosts, o.services/o.hosts, o.services/o.hosts)
	fmt.Fprintf(out, "Commit %s, kernel %s, %d processors, which the daemon shares with the API server and with what makes the "+
		"changes.\n\n", version, kernel(), runtime.NumCPU())
	var parts []func(context.Context, io.Writer) error
	if o.server {
		parts = append(parts, b.coldStarts, b.atRest, b.changes, b.move)
	}
	if o.folder {
		parts = append(parts, b.manifests)
	}
	for _, part := range parts {
		if err := part(ctx, out); err != nil {
			return err
		}
	}
	return nil
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
