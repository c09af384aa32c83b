package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/bench/internal/apiserver"
	"github.com/egressway/egressway/lab/bench/internal/daemon"
	"github.com/egressway/egressway/lab/bench/internal/figures"
)

//go:embed bench.clab.yml
var topology []byte

// Where things are in the topology, and in the clusters that kubelab seeds.
const (
	apiAddress     = "172.31.255.254:6443"
	metricsAddress = "172.31.0.1:9479"
	ownNode        = "node-0"
	network        = "vrf0"
	hostsMost      = 250 // addresses of hosts; beyond 28, hosts share a path
)

// Time that things may take on a machine that is busy with them.
const (
	startWithin = 10 * time.Minute
	stopWithin  = time.Minute

	announceWithin = time.Minute
)

// bed is the node, its cluster and its peer.
type bed struct {
	options
	lab           *lab.Lab
	node, outside *lab.Node
	dir           string
	api           *apiserver.Client
	cluster       *cluster
	seen          *seen
	netfilter     netfilterWatch
	daemon        *lab.Daemon
	end           context.CancelFunc
}

func build(ctx context.Context, o options) (_ *bed, err error) {
	if o.server && o.kubelab == "" {
		return nil, errors.New("-kubelab or KUBELAB must name the API server's program: make kubelab prints its path")
	}
	if o.hosts < 3 || o.hosts > min(o.nodes, hostsMost) {
		return nil, fmt.Errorf("-hosts %d: 3 to %d of the %d nodes", o.hosts, hostsMost, o.nodes)
	}
	if o.daemon, err = filepath.Abs(o.daemon); err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	b := &bed{options: o, seen: newSeen(), end: end}
	defer func() {
		if err != nil {
			b.destroy()
		}
	}()
	if b.dir, err = os.MkdirTemp("", "egressway-bench-"); err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, "bench.clab.yml")
	if err := os.WriteFile(file, topology, 0o600); err != nil {
		return nil, err
	}
	var others []string // they refuse the daemon's requests, which is quicker than silence
	for i := 1; i < o.hosts; i++ {
		others = append(others, fmt.Sprintf("ip addr add %s/16 dev eth1", nth("172.31.0.1", i)))
	}
	if b.lab, err = lab.Deploy(ctx, file, lab.Options{Exec: map[string][]string{"outside": others}}); err != nil {
		return nil, err
	}
	b.node, b.outside = b.lab.Node("node"), b.lab.Node("outside")
	b.cluster = newCluster(o)
	if b.netfilter, err = watchNetfilter(b.node, b.seen); err != nil {
		return nil, err
	}
	if err := listenAsPeer(ctx, b.outside, b.seen); err != nil {
		return nil, err
	}
	if o.server {
		err = b.startAPI(ctx)
	}
	return b, err
}

func (b *bed) destroy() {
	b.end()
	if b.lab != nil {
		if err := b.lab.Destroy(); err != nil {
			fmt.Fprintln(os.Stderr, "changes:", err)
		}
	}
	_ = os.RemoveAll(b.dir)
}

// startAPI starts the API server with all objects, and makes those that no seed writes.
func (b *bed) startAPI(ctx context.Context) error {
	server, err := apiserver.Start(ctx, b.lab, b.outside, b.kubelab, apiAddress,
		fmt.Sprint("-seed-services=", b.services), fmt.Sprint("-seed-endpoints=", b.endpoints), fmt.Sprint("-seed-nodes=", b.nodes),
		fmt.Sprint("-seed-hosts=", b.hosts), fmt.Sprint("-seed-namespaces=", b.namespaces), "-seed-networks=1")
	if err != nil {
		return err
	}
	b.api = server.Client
	if err := os.WriteFile(b.path("kubeconfig"), server.Kubeconfig, 0o600); err != nil {
		return err
	}
	return server.Furnish(ctx, nodeName(1), b.crd) // another node leads, as for all but one of a thousand
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// dial connects from outside.
func (b *bed) dial(ctx context.Context, kind, address string) (c net.Conn, err error) {
	err = b.outside.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, kind, address)
		return err
	})
	return c, err
}

// configure writes the daemon's configuration for a source.
func (b *bed) configure(source string) error {
	return os.WriteFile(b.path("config.yaml"), fmt.Appendf(nil, `
node: %s
source: %s
clusterCIDRs: [10.128.0.0/9]
bgp:
  asn: 64512
networks:
- name: %s
  table: 1001
  interfaces: [eth2]
  peers: [{address: %s, asn: %d}]
status: {metricsAddress: "%s"}
`, ownNode, source, network, peerAddress, peerASN, metricsAddress), 0o600)
}

func (b *bed) fromAPI() string {
	return fmt.Sprintf("{kubernetes: {kubeconfig: %s, namespace: egressway-system}}", b.path("kubeconfig"))
}

// begun is how a start went, each from the moment before the process was made; zero: not seen.
type begun struct {
	at                      time.Time
	synced, ready, peerFull time.Duration
	lacking                 int // prefixes that were not announced in time
}

// announcedAfter says when all was announced.
func (s begun) announcedAfter() string {
	if s.lacking > 0 {
		return fmt.Sprintf("%d are missing after %s", s.lacking, figures.Duration(s.peerFull))
	}
	return figures.Duration(s.peerFull)
}

// start starts the daemon and waits until all is in force, and announced at the peer.
func (b *bed) start(ctx context.Context) (s begun, err error) {
	b.seen.forget()
	if err := b.netfilter.listen(false); err != nil {
		return s, err
	}
	s.at = time.Now()
	if b.daemon, err = b.lab.StartDaemon(b.node, b.daemonPath(), b.path("config.yaml")); err != nil {
		return s, err
	}
	fmt.Fprintf(os.Stderr, "changes: %s: the daemon is process %d\n", s.at.Format(time.TimeOnly), b.daemon.PID())
	client := &http.Client{Transport: &http.Transport{DialContext: b.dial}}
	defer client.CloseIdleConnections()
	err = lab.Wait(ctx, startWithin, func() error {
		if b.daemon.Ended() {
			return nil
		}
		r, err := client.Get("http://" + metricsAddress + "/readyz")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if body, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusOK {
			return fmt.Errorf("the daemon is not ready: %s", body)
		}
		return nil
	})
	if err == nil && b.daemon.Ended() {
		err = fmt.Errorf("the daemon ended: %w", b.daemon.Err())
	}
	if err != nil {
		return s, fmt.Errorf("%w\n%s", err, apiserver.Tail(b.said()))
	}
	s.ready = time.Since(s.at)
	want := b.cluster.announcedHere()
	if lab.Wait(ctx, announceWithin, func() error {
		if b.seen.count(announced, s.at) < want {
			return errors.New("not everything is announced")
		}
		return nil
	}) != nil {
		s.lacking = want - b.seen.count(announced, s.at)
	}
	s.peerFull, s.synced = time.Since(s.at), b.logged("all objects known", s.at)
	return s, errors.Join(ctx.Err(), b.netfilter.listen(true))
}

func (b *bed) daemonPath() string { return b.options.daemon }

func (b *bed) said() string {
	if b.daemon == nil {
		return ""
	}
	return b.daemon.Log()
}

// logged is when the daemon wrote a message, after a time; zero: it did not.
func (b *bed) logged(message string, after time.Time) time.Duration {
	for line := range strings.Lines(b.said()) {
		if !strings.Contains(line, `msg="`+message+`"`) {
			continue
		}
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil {
			return at.Sub(after)
		}
	}
	return 0
}

// stop ends the daemon and its speaker, and removes everything that they made.
func (b *bed) stop(ctx context.Context) error {
	if b.daemon == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	speaker := b.speaker()
	if err := b.daemon.Stop(ctx); err != nil {
		return err
	}
	if speaker != 0 {
		_ = syscall.Kill(speaker, syscall.SIGKILL)
	}
	if err := lab.Wait(ctx, stopWithin, func() error {
		if b.speaker() != 0 {
			return errors.New("the speaker does not end")
		}
		return nil
	}); err != nil {
		return err
	}
	_, err := b.node.Run(ctx, b.daemonPath(), "cleanup", "--config", b.path("config.yaml"))
	return err
}

// speaker returns the process id of the node's speaker; 0: no speaker runs.
func (b *bed) speaker() int { return daemon.Speaker(b.node) }
