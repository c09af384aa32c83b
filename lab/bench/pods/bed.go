package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/bench/internal/apiserver"
	"github.com/egressway/egressway/lab/bench/internal/daemon"
)

//go:embed pods.clab.yml
var topology []byte

// Where things are in the topology, and in the clusters that kubelab seeds.
const (
	apiAddress = "172.31.255.254:6443"
	ownNode    = "node-0"
	network    = "vrf0"
	podRange   = "10.160.0.0/16"
)

var (
	nodeAddress = netip.MustParseAddr("172.31.0.1")
	target      = netip.MustParseAddr("192.0.2.1")
)

// bed is the node, its cluster, its pods and the outside.
type bed struct {
	options
	way
	lab                 *lab.Lab
	node, outside, from *lab.Node
	dir                 string
	api                 *apiserver.Server
	daemon              *lab.Daemon
	capture             *capture
	sender              *sender
	end                 context.CancelFunc
}

func build(ctx context.Context, o options, w way) (_ *bed, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	program, err := filepath.Abs(o.daemon)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	b := &bed{options: o, way: w, end: end}
	defer func() {
		if err != nil {
			b.destroy()
		}
	}()
	if err := b.deploy(ctx); err != nil {
		return nil, err
	}
	if err := b.startAPI(ctx); err != nil {
		return nil, err
	}
	if err := b.configure(); err != nil {
		return nil, err
	}
	if b.daemon, err = daemon.Start(ctx, b.lab, b.node, program, b.path("config.yaml")); err != nil {
		return nil, err
	}
	for _, path := range []string{apiserver.AllSlices, apiserver.AllPods} {
		if err := b.api.Watch(ctx, path); err != nil {
			return nil, err
		}
	}
	if b.capture, err = listen(b.outside, "eth1", "eth2"); err != nil {
		return nil, err
	}
	b.sender, err = newSender(b.from, b.node, o)
	return b, err
}

func (o options) check() error {
	if o.kubelab == "" {
		return errors.New("-kubelab or KUBELAB must name the API server's program: make kubelab prints its path")
	}
	if o.hosts < 3 || o.hosts > 25 || o.hosts > o.nodes {
		return fmt.Errorf("-hosts %d: 3 to 25 of the %d nodes: each is a path of the node, of which there are 31", o.hosts, o.nodes)
	}
	if slices.Contains(strings.Split(o.ways, ","), "denied") && o.namespaces == 0 {
		return errors.New("-namespaces 0: EgressFirewalls deny in Namespaces; 1 or more, or -ways without denied")
	}
	return nil
}

// deploy makes the bed's folder and its network namespaces.
func (b *bed) deploy(ctx context.Context) (err error) {
	if b.dir, err = os.MkdirTemp("", "egressway-bench-"); err != nil {
		return err
	}
	file := filepath.Join(b.dir, "pods.clab.yml")
	if err := os.WriteFile(file, topology, 0o600); err != nil {
		return err
	}
	var others []string // they refuse the daemon's requests, which is quicker than silence
	for i := 1; i < b.hosts; i++ {
		others = append(others, fmt.Sprintf("ip addr add %s/16 dev eth1", nth(nodeAddress, i)))
	}
	if b.lab, err = lab.Deploy(ctx, file, lab.Options{Exec: map[string][]string{"outside": others}}); err != nil {
		return err
	}
	b.node, b.outside, b.from = b.lab.Node("node"), b.lab.Node("outside"), b.lab.Node("pods")
	return nil
}

// startAPI starts a seeded API server, with the objects that the daemon needs.
func (b *bed) startAPI(ctx context.Context) (err error) {
	b.api, err = apiserver.Start(ctx, b.lab, b.outside, b.kubelab, apiAddress,
		fmt.Sprint("-seed-services=", b.services), fmt.Sprint("-seed-endpoints=", b.endpoints), fmt.Sprint("-seed-nodes=", b.nodes),
		fmt.Sprint("-seed-hosts=", b.hosts), fmt.Sprint("-seed-namespaces=", b.namespaces), "-seed-networks=1")
	if err != nil {
		return err
	}
	if err := b.api.Furnish(ctx, "node-1", b.crd); err != nil { // another node leads, as for all but one of many
		return err
	}
	if b.denied {
		if err := b.deny(ctx); err != nil {
			return err
		}
	}
	_, err = b.api.Ask(ctx, apiserver.Merge("/api/v1/nodes/"+ownNode,
		[]byte(`{"spec": {"podCIDR": "`+podRange+`", "podCIDRs": ["`+podRange+`"]}}`)))
	return err
}

// deny makes the CRD of EgressFirewalls, and one in each Namespace.
func (b *bed) deny(ctx context.Context) error {
	if err := b.api.Define(ctx, b.firewalls); err != nil {
		return err
	}
	for i := range b.namespaces {
		firewall := apiserver.Post(fmt.Sprintf("/apis/k8s.ovn.org/v1/namespaces/team-%d/egressfirewalls", i),
			[]byte(`{"apiVersion": "k8s.ovn.org/v1", "kind": "EgressFirewall", "metadata": {"name": "default"}, `+
				`"spec": {"egress": [{"type": "Deny", "to": {"cidrSelector": "0.0.0.0/0"}}]}}`))
		if err := lab.Wait(ctx, time.Minute, func() error { // until the CRD is served
			_, err := b.api.Ask(ctx, firewall)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (b *bed) destroy() {
	b.end()
	if b.capture != nil {
		b.capture.end()
	}
	if b.sender != nil {
		b.sender.end()
	}
	if b.lab != nil {
		if err := b.lab.Destroy(); err != nil {
			fmt.Fprintln(os.Stderr, "pods:", err)
		}
	}
	_ = os.RemoveAll(b.dir)
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// configure writes the daemon's configuration.
func (b *bed) configure() error {
	hold := ""
	if b.hold != "" {
		hold = "hold: " + b.hold
	}
	return errors.Join(os.WriteFile(b.path("kubeconfig"), b.api.Kubeconfig, 0o600),
		os.WriteFile(b.path("config.yaml"), fmt.Appendf(nil, `
node: %s
source: {kubernetes: {kubeconfig: %s, namespace: %s}}
clusterCIDRs: [10.128.0.0/9]
networks:
- {name: %s, table: 1001, interfaces: [eth2]}
%s
`, ownNode, b.path("kubeconfig"), apiserver.Namespace, network, hold), 0o600))
}

// nth is the i-th address from one on.
func nth(from netip.Addr, i int) netip.Addr {
	a := from.As4()
	n := int(a[1])<<16 + int(a[2])<<8 + int(a[3]) + i
	return netip.AddrFrom4([4]byte{a[0], byte(n >> 16), byte(n >> 8), byte(n)})
}
