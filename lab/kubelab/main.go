// Kubelab is a Kubernetes control plane for tests in one process: etcd, kube-apiserver with RBAC, the endpointslice
// controller and, where wanted, the node lifecycle controller and pretended kubelets.
//
//	kubelab [flag ...]           serves until it is ended; says READY kubeconfig=… server=… when it can be used
//	kubelab control [flag ...]   runs kubelab as a child for whoever asks over HTTP; says CONTROL http://… (see control.go)
//
// With -dir and -listen as before, it comes up on the data, certificates and port that it had. SIGKILL is a fine way to
// end it: nothing is worth keeping.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// list is a flag that may be repeated.
type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kubelab:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if args := os.Args[1:]; len(args) > 0 && args[0] == "control" {
		return control(ctx, args[1:])
	}
	return serve(ctx, os.Args[1:])
}

func serve(ctx context.Context, args []string) error {
	var (
		o          serverOptions
		c          controllerOptions
		k          kubeletOptions
		kubeconfig string
		verbosity  string
	)
	f := flag.NewFlagSet("kubelab", flag.ExitOnError)
	f.StringVar(&o.dir, "dir", "", "folder of state; a new one under /dev/shm otherwise")
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "`address` to serve on")
	f.StringVar(&o.url, "server", "", "server's `URL` in the kubeconfig; what it listens on otherwise")
	f.StringVar(&kubeconfig, "kubeconfig", "", "`file` to write the administrator's kubeconfig to; DIR/kubeconfig otherwise")
	f.StringVar(&o.serviceNets, "service-nets", "10.96.0.0/12,fd96::/112", "prefixes of the Services' cluster IPs, the first family is the default one")
	f.StringVar(&o.token, "token", cmp.Or(os.Getenv("KUBELAB_TOKEN"), "kubelab-admin"), "the administrator's bearer token; $KUBELAB_TOKEN, which other users cannot read, otherwise")
	f.StringVar(&o.advertise, "advertise", "", "`address` that the Service kubernetes leads to, for real kubelets and kube-controller-manager: with ServiceAccount admission, and logs and exec by kubelets")
	f.Var(&o.users, "user", "further `token,user,uid,\"group1,group2\"` (repeatable)")
	f.Var(&o.names, "name", "further `name` or address for the server's certificate (repeatable)")
	f.Var(&o.flags, "flag", "further `flag` of kube-apiserver (repeatable)")
	f.BoolVar(&o.audit, "audit", false, "write who asked for what to DIR/audit.log")
	f.BoolVar(&c.endpointSlice, "endpointslice", true, "run the endpointslice controller")
	f.BoolVar(&c.nodeLifecycle, "nodelifecycle", false, "run the node lifecycle controller")
	f.DurationVar(&c.monitorPeriod, "node-monitor-period", 5*time.Second, "how often it looks at the nodes' leases")
	f.DurationVar(&c.gracePeriod, "node-monitor-grace", 50*time.Second, "how long a node may be silent")
	f.IntVar(&k.nodes, "nodes", 0, "register so many pretended nodes, node-0 and on")
	f.DurationVar(&k.heartbeat, "heartbeat", 0, "have every Node report at this period; 0: never, as is right without -nodelifecycle")
	f.BoolVar(&k.runPods, "run-pods", true, "make pods that have a node Running and Ready")
	f.IntVar(&o.seed.services, "seed-services", 0, "write so many Services, slices and EgressServices into etcd before the start")
	f.IntVar(&o.seed.endpoints, "seed-endpoints", 10, "endpoints of each such slice")
	f.IntVar(&o.seed.nodes, "seed-nodes", 0, "Nodes to write into etcd before the start")
	f.IntVar(&o.seed.networks, "seed-networks", 8, "networks that these EgressServices are spread over")
	f.IntVar(&o.seed.namespaces, "seed-namespaces", 0, "Namespaces to write and to spread all that over; default has it all otherwise")
	f.IntVar(&o.seed.hosts, "seed-hosts", 0, "so many of these Nodes are hosts and standbys in turn, as if elected; none otherwise")
	f.StringVar(&verbosity, "v", "", "log at this level; silent otherwise")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := setLog(verbosity); err != nil {
		return err
	}
	if o.dir == "" {
		dir, err := os.MkdirTemp("/dev/shm", "kubelab-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.dir = dir
	}
	if kubeconfig == "" {
		kubeconfig = filepath.Join(o.dir, "kubeconfig")
	}

	begin := time.Now()
	s, err := start(ctx, o)
	if err != nil {
		return err
	}
	if err := s.writeKubeconfig(kubeconfig); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	if err := startControllers(ctx, s.config, c); err != nil {
		return fmt.Errorf("start controllers: %w", err)
	}
	if err := startKubelets(ctx, s.config, k); err != nil {
		return fmt.Errorf("start kubelets: %w", err)
	}
	fmt.Printf("READY kubeconfig=%s server=%s version=%s after=%.2fs\n", kubeconfig, s.config.Host, version(), time.Since(begin).Seconds())
	return <-s.done
}

// setLog keeps the programs inside silent unless a level is given. What ends them is told anyway.
func setLog(level string) error {
	f := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(f)
	if level != "" {
		return f.Set("v", level)
	}
	klog.SetOutput(io.Discard)
	return f.Set("logtostderr", "false")
}
