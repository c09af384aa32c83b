// Pods measures new pods whose first act is a SYN to the outside: the time from the moment at which the API server has
// such a pod as an endpoint to its first packet outside with the right source, and how many packets of it had another
// one. It prints Markdown.
//
// The API server is a real one, seeded; kubelet, the EndpointSlice controller, the pods and the watch outside are this
// program. Everything runs in network namespaces of this machine's own kernel, which needs no VRF, as root.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab/bench/internal/figures"
)

// options are the sizes and durations.
type options struct {
	daemon, kubelab, crd, firewalls string

	services, endpoints, nodes, hosts, namespaces int

	rate                     float64 // pods a second
	lasting                  time.Duration
	every, again             time.Duration // between SYNs of a pod, and between repetitions of its first one
	addressAfter, sliceAfter time.Duration
	stay                     time.Duration
	ways                     string
	logs                     bool
}

// way is one way to run the daemon.
type way struct {
	name, hold string
	unselected bool // every other pod is no endpoint of anything, and has not the label
	denied     bool // an EgressFirewall of each Namespace denies all destinations
	says       string
}

var ways = []way{
	{name: "none", says: "Without `hold`"},
	{name: "every", hold: "[{pods: {}}]", says: "`hold: [{pods: {}}]`: every pod"},
	{
		name: "labelled", hold: "[{pods: {matchLabels: {" + label + ": held}}}]", unselected: true,
		says: "`hold` of pods with a label; every other pod has not the label, and is no endpoint",
	},
	{name: "denied", denied: true, says: "Without `hold`; an EgressFirewall of each Namespace denies all destinations"},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pods:", err)
		os.Exit(1)
	}
}

func run() error {
	var o options
	flag.StringVar(&o.daemon, "daemon", "bin/egressway", "the `program` to measure")
	flag.StringVar(&o.kubelab, "kubelab", os.Getenv("KUBELAB"), "the API server, as `make kubelab` prints its `path`")
	flag.StringVar(&o.crd, "crd", "config/crd/k8s.ovn.org_egressservices.yaml", "`file` of the CRD")
	flag.StringVar(&o.firewalls, "crd-of-firewalls", "config/crd/k8s.ovn.org_egressfirewalls.yaml", "`file` of the CRD of EgressFirewalls")
	flag.IntVar(&o.services, "services", 1_000, "Services, with an EgressService each")
	flag.IntVar(&o.endpoints, "endpoints", 10, "endpoints that each Service has already")
	flag.IntVar(&o.nodes, "nodes", 1_000, "Nodes")
	flag.IntVar(&o.hosts, "hosts", 4, "how many of the Nodes are hosts, in turn; the node that is measured is the first")
	flag.IntVar(&o.namespaces, "namespaces", 50, "Namespaces")
	flag.Float64Var(&o.rate, "rate", 20, "new pods a second")
	flag.DurationVar(&o.lasting, "for", 40*time.Second, "for how long pods come, each way")
	flag.DurationVar(&o.every, "every", time.Millisecond, "between two SYNs of a pod, each of a new flow")
	flag.DurationVar(&o.again, "again", 200*time.Millisecond, "between two repetitions of a pod's first SYN")
	flag.DurationVar(&o.addressAfter, "address-after", 300*time.Millisecond,
		"from a pod's first SYN to its address at the API, as kubelet is late")
	flag.DurationVar(&o.sliceAfter, "endpoint-after", 50*time.Millisecond,
		"from there to its place in the EndpointSlice, as the controller is late")
	flag.DurationVar(&o.stay, "stay", 500*time.Millisecond, "for how long a pod goes on then")
	flag.StringVar(&o.ways, "ways", "none,every,labelled,denied", "which ways to run the daemon: without hold, with hold of every pod, of "+
		"labelled pods, with EgressFirewalls that deny")
	flag.BoolVar(&o.logs, "logs", false, "print the daemon's log at the end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	// The goroutine that waits for the kernel must never wait for another goroutine: its clock would be late.
	runtime.GOMAXPROCS(runtime.NumCPU() + 8)
	return measure(ctx, o, os.Stdout)
}

// measure prints each table when it is there.
func measure(ctx context.Context, o options, out io.Writer) error {
	names := strings.Split(o.ways, ",")
	for _, name := range names {
		if !slices.ContainsFunc(ways, func(w way) bool { return w.name == name }) {
			return fmt.Errorf("-ways %q: must be of none, every, labelled, denied", name)
		}
	}
	fmt.Fprintf(out, "%s Services with an EgressService and %d endpoints each, %s Nodes; the node is host of %s. %g new pods a second "+
		"for %s, each way; a SYN of a new flow every %s from each. "+
		"Its address is written %s after its first SYN, the EndpointSlice %s after that.\n\n",
		figures.Count(o.services), o.endpoints, figures.Count(o.nodes), figures.Count(o.services/o.hosts), o.rate, o.lasting, o.every,
		o.addressAfter, o.sliceAfter)
	for _, w := range ways {
		if !slices.Contains(names, w.name) {
			continue
		}
		if err := o.try(ctx, w, out); err != nil {
			return fmt.Errorf("%s: %w", w.says, err)
		}
	}
	return nil
}

// try has pods come to a node of its own.
func (o options) try(ctx context.Context, w way, out io.Writer) error {
	b, err := build(ctx, o, w)
	if err != nil {
		return err
	}
	defer b.destroy()
	all, err := b.pods(ctx)
	if o.logs {
		fmt.Fprintf(os.Stderr, "%s\n", b.daemon.Log())
	}
	if err != nil {
		return err
	}
	seen, lost := b.capture.end()
	if lost > 0 {
		return fmt.Errorf("the outside could not note %d packets: this machine is too busy", lost)
	}
	b.report(out, all, seen)
	return nil
}
