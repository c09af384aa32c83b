// Requests measures the requests of daemons to an API server: some of them, each on a node of its own, against a real
// server, at rest, while they are restarted one after the other and while objects change; and from that it calculates
// those of a thousand nodes. It prints Markdown.
//
// Requests are counted in the server's audit log, events in its metrics, bytes at the nodes' devices. Everything runs in
// network namespaces of this machine's own kernel, which needs no VRF, as root.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// options are the sizes and durations.
type options struct {
	program, kubelab, crd, nodeCRD string

	services, endpoints int
	rest                time.Duration
	restarts            int
	rate                float64 // changes of EndpointSlices a second
	churn               time.Duration
	logs                bool
	simulated           int // clients of daemons in one process
	nodes               int // Nodes, if there are more than daemons
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "requests:", err)
		os.Exit(1)
	}
}

func run() error {
	var o options
	flag.StringVar(&o.program, "daemon", "bin/egressway", "the `program` to measure")
	flag.StringVar(&o.kubelab, "kubelab", os.Getenv("KUBELAB"), "the API server, as `make kubelab` prints its `path`")
	flag.StringVar(&o.crd, "crd", "config/crd/k8s.ovn.org_egressservices.yaml", "`file` of the CRD of EgressServices")
	flag.StringVar(&o.nodeCRD, "node-crd", "config/crd/egressway.io_egressnodes.yaml", "`file` of the CRD of EgressNodes")
	flag.IntVar(&o.services, "services", 200, "Services, with an EgressService each")
	flag.IntVar(&o.endpoints, "endpoints", 10, "endpoints of each Service")
	numbers := flag.String("daemons", "5,20", "how many daemons, each time; at most 100; empty: none")
	flag.DurationVar(&o.rest, "rest", 40*time.Second, "for how long requests are counted at rest")
	flag.IntVar(&o.restarts, "restarts", 6, "how many daemons are restarted, one after the other")
	flag.Float64Var(&o.rate, "rate", 10, "changes of EndpointSlices a second")
	flag.DurationVar(&o.churn, "churn", 10*time.Second, "for how long they change")
	flag.BoolVar(&o.logs, "logs", false, "print the daemons' logs at the end")
	flag.IntVar(&o.simulated, "simulated", 1000, "how many daemons to simulate by their API clients; 0: none")
	asNumber := flag.Int("as-daemons", 0, "be the process of so many clients")
	asKubeconfig := flag.String("as-kubeconfig", "", "the clients' `file`")
	flag.Parse()
	var daemons []int
	if *asNumber > 0 {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
		defer stop()
		return asDaemons(ctx, *asNumber, *asKubeconfig, os.Stdout)
	}
	for text := range strings.FieldsFuncSeq(*numbers, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 3 || n > 100 {
			return fmt.Errorf("-daemons %q: numbers from 3 to 100 with commas between them", *numbers)
		}
		daemons = append(daemons, n)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	runtime.GOMAXPROCS(runtime.NumCPU() + 8)
	return measure(ctx, o, daemons, os.Stdout)
}

func measure(ctx context.Context, o options, daemons []int, out io.Writer) error {
	var all []*result
	for _, n := range daemons {
		r, err := o.try(ctx, n)
		if err != nil {
			return fmt.Errorf("%d daemons: %w", n, err)
		}
		all = append(all, r)
	}
	var s *simulation
	if o.simulated > 0 {
		var err error
		if s, err = o.simulate(ctx, o.simulated); err != nil {
			return fmt.Errorf("%d simulated daemons: %w", o.simulated, err)
		}
	}
	if len(all) > 0 {
		o.report(out, all)
	}
	if s != nil {
		s.print(out, o.simulated)
	}
	return nil
}

// try measures n daemons.
func (o options) try(ctx context.Context, n int) (*result, error) {
	b, err := build(ctx, o, n)
	if err != nil {
		return nil, err
	}
	defer b.destroy()
	r := &result{daemons: n}
	for _, part := range []func(context.Context, *result) error{b.atRest, b.restart, b.endpointsChange, b.nodesReport, b.nodesChange} {
		if err := part(ctx, r); err != nil {
			return nil, err
		}
	}
	return r, b.count(r)
}
