// Steered measures how much a pod gets through whose egress is steered to another node, against one on the host itself:
// bytes of one TCP connection to a server outside, by the LAN as it is and by VXLAN, by links of 1 Gbit/s and by links
// without a limit. It prints Markdown. Everything runs in network namespaces of this machine's own kernel, which needs
// no VRF but the qdisc tbf, as root.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/bench/internal/figures"
)

//go:embed steered.clab.yml objects.yaml
var files embed.FS

// Where things are in the topology.
var (
	server    = netip.MustParseAddrPort("10.1.0.1:8080")
	ingressIP = netip.MustParseAddr("192.0.2.1")
)

const (
	startWithin    = 3 * time.Minute
	transferWithin = 5 * time.Minute
)

type options struct {
	daemon string
	rounds int
	mebi   int64
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "steered:", err)
		os.Exit(1)
	}
}

func run() error {
	var o options
	flag.StringVar(&o.daemon, "daemon", "bin/egressway", "the `program` to measure")
	flag.IntVar(&o.rounds, "rounds", 15, "rounds")
	flag.Int64Var(&o.mebi, "size", 1024, "`MiB` of a transfer, and an eighth of it by links of "+linkRate)
	flag.Parse()
	if o.rounds < 1 || o.mebi < 1 {
		return errors.New("-rounds and -size: 1 or more")
	}
	var err error
	if o.daemon, err = filepath.Abs(o.daemon); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	return measure(ctx, o, os.Stdout)
}

// linkRate is that of cables of most nodes; it leaves processors with time to spare.
const linkRate = "1 Gbit/s"

// measure builds two nodes that steer directly, and two that do so by VXLAN.
func measure(ctx context.Context, o options, out io.Writer) error {
	var beds []*bed
	defer func() {
		for _, b := range beds {
			b.destroy()
		}
	}()
	for _, mode := range []string{"direct", "vxlan"} {
		b, err := build(ctx, o, mode)
		if err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
		beds = append(beds, b)
	}
	if err := rounds(ctx, beds, o, out, "Links of any rate", o.mebi); err != nil {
		return err
	}
	for _, b := range beds {
		if err := b.limit(ctx); err != nil {
			return err
		}
	}
	return rounds(ctx, beds, o, out, "Links of "+linkRate, max(o.mebi/8, 1))
}

// rounds has the pods send in turn.
func rounds(ctx context.Context, beds []*bed, o options, out io.Writer, what string, mebi int64) error {
	ways := []struct {
		name string
		bed  *bed
		pod  string
		rate []float64 // Gbit a second
	}{
		{name: "on the host", bed: beds[0], pod: "near"},
		{name: "steered, direct", bed: beds[0], pod: "far"},
		{name: "steered, VXLAN", bed: beds[1], pod: "far"},
	}
	for round := range o.rounds {
		fmt.Fprintf(os.Stderr, "steered: %s: round %d of %d\n", what, round+1, o.rounds)
		for i := range ways {
			w := &ways[i]
			took, err := w.bed.transfer(ctx, w.pod, mebi)
			if err != nil {
				return err
			}
			w.rate = append(w.rate, float64(mebi<<20*8)/took.Seconds()/1e9)
		}
	}
	fmt.Fprintf(out, "%s; one TCP connection of %d MiB, %d rounds: median and quartiles, and the ratio to the same round on the host.\n\n",
		what, mebi, o.rounds)
	t := figures.NewTable("pod", "Gbit/s", "ratio")
	for i, w := range ways {
		lower, median, upper := figures.Quartiles(w.rate)
		ratio := ""
		if i > 0 {
			ratio = figures.Ratio(figures.Ratios(w.rate, ways[0].rate))
		}
		t.Add(w.name, fmt.Sprintf("%.2f (%.2f to %.2f)", median, lower, upper), ratio)
	}
	t.Print(out)
	return nil
}

// bed is two nodes that steer by one mode.
type bed struct {
	options
	lab     *lab.Lab
	dir     string
	daemons []*lab.Daemon
}

func build(ctx context.Context, o options, mode string) (_ *bed, err error) {
	b := &bed{options: o}
	defer func() {
		if err != nil {
			for _, d := range b.daemons {
				err = fmt.Errorf("%w\n%s", err, d.Log())
			}
			b.destroy()
		}
	}()
	if err := b.writeFiles(); err != nil {
		return nil, err
	}
	if b.lab, err = lab.Deploy(ctx, b.path("steered.clab.yml"), lab.Options{}); err != nil {
		return nil, err
	}
	if _, err := b.lab.Respond(ctx, b.lab.Node("outside")); err != nil {
		return nil, err
	}
	for _, node := range []string{"host", "other"} {
		if err := b.startDaemon(node, mode); err != nil {
			return nil, err
		}
	}
	for _, pod := range []string{"near", "far"} {
		if err := b.awaitServed(ctx, pod); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// writeFiles makes the bed's folder, with the manifests in one of their own.
func (b *bed) writeFiles() (err error) {
	if b.dir, err = os.MkdirTemp("", "egressway-bench-"); err != nil {
		return err
	}
	if err := os.CopyFS(b.dir, files); err != nil {
		return err
	}
	if err := os.Mkdir(b.path("manifests"), 0o755); err != nil {
		return err
	}
	return os.Rename(b.path("objects.yaml"), b.path("manifests/objects.yaml"))
}

// startDaemon starts the daemon of a node. Only host has an interface in the network.
func (b *bed) startDaemon(node, mode string) error {
	config := b.path(node + ".yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `
node: %s
source: {manifests: %s}
clusterCIDRs: [10.128.0.0/9]
steering: {mode: %s}
networks:
- name: red
  table: 1001
  interfaces: [%s]
`, node, b.path("manifests"), mode, map[string]string{"host": "eth2"}[node]), 0o600); err != nil {
		return err
	}
	d, err := b.lab.StartDaemon(b.lab.Node(node), b.daemon, config)
	if err != nil {
		return err
	}
	b.daemons = append(b.daemons, d)
	return nil
}

// awaitServed waits until the server sees a pod as the ingress IP.
func (b *bed) awaitServed(ctx context.Context, pod string) error {
	return lab.Wait(ctx, startWithin, func() error {
		a, err := b.lab.Node(pod).AskTCP(ctx, server)
		if err == nil && a.Peer.Addr() != ingressIP {
			err = fmt.Errorf("the server sees pod %s as %s, not %s", pod, a.Peer.Addr(), ingressIP)
		}
		return err
	})
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// limit has every cable carry 1 Gbit/s each way, of whole frames.
func (b *bed) limit(ctx context.Context) error {
	for node, devices := range map[string][]string{
		"near": {"eth1"}, "far": {"eth1"}, "host": {"eth1", "eth2", "pod0"}, "other": {"eth1", "pod0"}, "outside": {"eth1"},
	} {
		for _, device := range devices {
			if _, err := b.lab.Node(node).Run(ctx, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", "1gbit", "burst", "256k",
				"latency", "20ms"); err != nil {
				return err
			}
		}
	}
	return nil
}

// transfer has a pod send.
func (b *bed) transfer(ctx context.Context, pod string, mebi int64) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, transferWithin)
	defer cancel()
	began := time.Now()
	a, err := b.lab.Node(pod).Transfer(ctx, server, mebi<<20, 0)
	took := time.Since(began)
	if err == nil && a.Peer.Addr() != ingressIP {
		err = fmt.Errorf("the server sees pod %s as %s, not %s", pod, a.Peer.Addr(), ingressIP)
	}
	return took, err
}

func (b *bed) destroy() {
	if b.lab != nil {
		if err := b.lab.Destroy(); err != nil {
			fmt.Fprintln(os.Stderr, "steered:", err)
		}
	}
	_ = os.RemoveAll(b.dir)
}
