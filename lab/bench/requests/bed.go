package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/bench/internal/apiserver"
	"github.com/egressway/egressway/lab/bench/internal/daemon"
)

const (
	apiAddress = "10.98.255.254:6443"
	network    = "vrf0"

	startsAtOnce = 4 // more than that only wait for each other, and for the API server

	settle      = 5 * time.Second // after a restart
	quiet       = 5 * time.Second // without any write: all agree
	leadWithin  = time.Minute
	agreeWithin = 5 * time.Minute
)

// bed is the daemons' nodes and their API server.
type bed struct {
	options
	lab     *lab.Lab
	dir     string
	api     *apiserver.Server
	nodes   []*lab.Node
	daemons []*lab.Daemon
	end     context.CancelFunc
}

// topology has n nodes. Each reaches the API server by a device that carries nothing else, the other nodes by
// another one; its uplink leads nowhere.
func topology(n int) map[string]any {
	hub := []string{
		"ip link add api type bridge", "ip link set api up", "ip addr add 10.98.255.254/16 dev api",
		"ip link add lan type bridge", "ip link set lan up",
	}
	nodes, links := map[string]any{}, []any{}
	for i := range n {
		hub = append(hub, fmt.Sprintf("ip link set api%d master api", i), fmt.Sprintf("ip link set lan%d master lan", i))
		nodes[nodeName(i)] = map[string]any{"exec": []string{
			fmt.Sprintf("ip addr add %s/16 dev eth0", apiSide(i)),
			fmt.Sprintf("ip addr add 172.31.0.%d/16 dev eth1", i+1), // as kubelab seeds it
			fmt.Sprintf("ip addr add 10.1.%d.2/24 dev eth2", i),
			fmt.Sprintf("ip route add default via 10.1.%d.1 table 1001", i),
		}}
		links = append(links,
			map[string]any{"endpoints": []string{fmt.Sprintf("hub:api%d", i), nodeName(i) + ":eth0"}},
			map[string]any{"endpoints": []string{fmt.Sprintf("hub:lan%d", i), nodeName(i) + ":eth1"}},
			map[string]any{"endpoints": []string{fmt.Sprintf("hub:up%d", i), nodeName(i) + ":eth2"}})
	}
	nodes["hub"] = map[string]any{"exec": hub}
	return map[string]any{"name": "requests", "topology": map[string]any{
		"defaults": map[string]any{
			"kind": "linux", "network-mode": "none",
			"sysctls": map[string]any{
				"net.ipv4.ip_forward": 1, "net.ipv6.conf.all.forwarding": 1, "net.ipv4.conf.all.rp_filter": 0,
				"net.ipv4.conf.default.rp_filter": 0,
			},
		},
		"nodes": nodes, "links": links,
	}}
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// apiSide is the address by which a node asks the API server.
func apiSide(i int) string { return fmt.Sprintf("10.98.0.%d", i+1) }

// build makes n nodes with a daemon on each.
func build(ctx context.Context, o options, n int) (*bed, error) {
	b, err := prepare(ctx, o, n, "")
	if err != nil {
		return nil, err
	}
	var starts sync.WaitGroup
	errs, slots := make([]error, n), make(chan struct{}, startsAtOnce)
	for i := range n {
		starts.Go(func() {
			slots <- struct{}{}
			errs[i] = errors.Join(b.configure(i), b.start(ctx, i))
			<-slots
		})
	}
	starts.Wait()
	if err := errors.Join(errs...); err != nil {
		b.destroy()
		return nil, err
	}
	return b, nil
}

// prepare makes n nodes and an API server. leader names the node that leads, if no daemon is to.
func prepare(ctx context.Context, o options, n int, leader string) (_ *bed, err error) {
	if o.kubelab == "" {
		return nil, errors.New("-kubelab or KUBELAB must name the API server's program: make kubelab prints its path")
	}
	if o.program, err = filepath.Abs(o.program); err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	b := &bed{options: o, end: end, daemons: make([]*lab.Daemon, n)}
	defer func() {
		if err != nil {
			b.destroy()
		}
	}()
	if b.dir, err = os.MkdirTemp("", "egressway-bench-"); err != nil {
		return nil, err
	}
	text, err := yaml.Marshal(topology(n))
	if err != nil {
		return nil, err
	}
	file := b.path("requests.clab.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	if b.lab, err = lab.Deploy(ctx, file, lab.Options{}); err != nil {
		return nil, err
	}
	flags := []string{
		"-audit", fmt.Sprint("-seed-services=", o.services), fmt.Sprint("-seed-endpoints=", o.endpoints),
		fmt.Sprint("-seed-nodes=", max(n, o.nodes)),
		"-seed-networks=1", "-seed-namespaces=50",
	}
	for i := range n {
		b.nodes = append(b.nodes, b.lab.Node(nodeName(i)))
		flags = append(flags, fmt.Sprintf(`-user=token-%[1]d,%[2]s,%[2]s,"system:masters"`, i, nodeName(i)))
	}
	if b.api, err = apiserver.Start(ctx, b.lab, b.lab.Node("hub"), o.kubelab, apiAddress, flags...); err != nil {
		return nil, err
	}
	return b, b.api.Furnish(ctx, leader, o.crd, o.nodeCRD)
}

func (b *bed) destroy() {
	b.end()
	if b.logs {
		b.printLogs()
	}
	if b.lab != nil {
		if err := b.lab.Destroy(); err != nil {
			fmt.Fprintln(os.Stderr, "requests:", err)
		}
	}
	_ = os.RemoveAll(b.dir)
}

func (b *bed) printLogs() {
	for i, d := range b.daemons {
		if d != nil {
			fmt.Fprintf(os.Stderr, "%s:\n%s\n", nodeName(i), d.Log())
		}
	}
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// credentials writes a node's own kubeconfig.
func (b *bed) credentials(i int) error {
	kubeconfig := strings.Replace(string(b.api.Kubeconfig), "kubelab-admin", "token-"+strconv.Itoa(i), 1)
	return os.WriteFile(b.path("kubeconfig-"+strconv.Itoa(i)), []byte(kubeconfig), 0o600)
}

func (b *bed) configure(i int) error {
	return errors.Join(b.credentials(i),
		os.WriteFile(b.path(nodeName(i)+".yaml"), fmt.Appendf(nil, `
node: %s
source: {kubernetes: {kubeconfig: %s, namespace: %s}}
clusterCIDRs: [10.128.0.0/9]
networks:
- {name: %s, table: 1001, interfaces: [eth2]}
`, nodeName(i), b.path("kubeconfig-"+strconv.Itoa(i)), apiserver.Namespace, network), 0o600))
}

func (b *bed) start(ctx context.Context, i int) (err error) {
	b.daemons[i], err = daemon.Start(ctx, b.lab, b.nodes[i], b.program, b.path(nodeName(i)+".yaml"))
	return err
}

// leader is the number of the node that leads.
func (b *bed) leader(ctx context.Context) (i int, err error) {
	err = lab.Wait(ctx, leadWithin, func() error {
		text, err := b.api.Read(ctx, lease)
		if err != nil {
			return err
		}
		var held struct {
			Spec struct {
				HolderIdentity string `json:"holderIdentity"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(text, &held); err != nil {
			return err
		}
		name, _, _ := strings.Cut(held.Spec.HolderIdentity, "_")
		if i, err = strconv.Atoi(strings.TrimPrefix(name, "node-")); err != nil {
			return errors.New("no daemon leads")
		}
		return nil
	})
	return i, err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
