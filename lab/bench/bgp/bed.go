package main

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/bench/internal/daemon"
)

//go:embed bgp.clab.yml daemons vtysh.conf router.conf frr.conf
var topology embed.FS

// Where things are in the topology.
const (
	redTable     = 1001
	ourProtocol  = 142 // of the daemon's routes
	bgpProtocol  = 186 // of those of FRR's bgpd: RTPROT_BGP
	routerOfBlue = "10.2.0.1"
	node         = "node-0"
)

var (
	peerOfNode = netip.MustParseAddr("10.1.0.1")
	peerOfFRR  = netip.MustParseAddr("10.3.0.1")
)

// Time that things may take on a machine that is busy with them.
const (
	within = 5 * time.Minute
	poll   = 5 * time.Millisecond
)

// holdTime is that of all sessions.
const holdTime = 9 * time.Second

// bed is the node, its peers, and the node with FRR.
type bed struct {
	options
	lab               *lab.Lab
	node, router, frr *lab.Node
	daemon            *lab.Daemon
	dir               string
	end               context.CancelFunc
	ours, theirs      learner
}

// learner is who learns routes of a peer.
type learner struct {
	name string
	peer *peer
	fib  *fib
}

func build(ctx context.Context, o options) (_ *bed, err error) {
	ctx, end := context.WithCancel(ctx)
	b := &bed{options: o, end: end}
	defer func() {
		if err != nil {
			if b.daemon != nil {
				err = fmt.Errorf("%w\n%s", err, tail(b.daemon.Log()))
			}
			b.destroy()
		}
	}()
	if b.dir, err = os.MkdirTemp("", "egressway-bench-"); err != nil {
		return nil, err
	}
	if err := os.CopyFS(b.dir, topology); err != nil {
		return nil, err
	}
	if b.lab, err = lab.Deploy(ctx, filepath.Join(b.dir, "bgp.clab.yml"), lab.Options{}); err != nil {
		return nil, err
	}
	b.node, b.router, b.frr = b.lab.Node("node"), b.lab.Node("router"), b.lab.Node("frr")
	for _, l := range []struct {
		learner  *learner
		name     string
		address  netip.Addr
		node     *lab.Node
		table    uint32
		protocol uint8
	}{
		{&b.ours, "egressway", peerOfNode, b.node, redTable, ourProtocol},
		{&b.theirs, "FRR", peerOfFRR, b.frr, unix.RT_TABLE_MAIN, bgpProtocol},
	} {
		l.learner.name = l.name
		if l.learner.peer, err = listen(ctx, b.lab.Node("peer"), l.address, o.perMsg); err != nil {
			return nil, err
		}
		if l.learner.fib, err = watch(l.node, l.table, l.protocol); err != nil {
			return nil, err
		}
	}
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// start starts the daemon, and waits until the router has its session.
func (b *bed) start(ctx context.Context) (err error) {
	if err := os.Mkdir(b.path("manifests"), 0o755); err != nil {
		return err
	}
	if err := b.write("nodes.yaml", manifestOfNode(true)); err != nil {
		return err
	}
	if err := os.WriteFile(b.path("config.yaml"), fmt.Appendf(nil, `
node: %s
source: {manifests: %s}
clusterCIDRs: [10.128.0.0/9]
bgp: {asn: 64512}
networks:
- name: red
  table: %d
  interfaces: [eth1]
  peers:
  - {address: %s, asn: %d, holdTime: %[6]s, keepaliveTime: 3s, connectTime: 1s, maxPrefixes: %[7]d, receive: [{prefix: 0.0.0.0/0, le: 32}]}
- name: blue
  table: 1002
  interfaces: [eth2]
  peers: [{address: %[8]s, asn: 64602, holdTime: %[6]s, keepaliveTime: 3s, connectTime: 1s}]
`, node, b.path("manifests"), redTable, peerOfNode, peerASN, holdTime, 2*b.prefixes, routerOfBlue), 0o600); err != nil {
		return err
	}
	if b.daemon, err = b.lab.StartDaemon(b.node, b.options.daemon, b.path("config.yaml")); err != nil {
		return err
	}
	if err := lab.Wait(ctx, within, func() error {
		if n, err := b.heard(); err != nil || n != 0 {
			return cmp.Or(err, errors.New("no session with the router"))
		}
		return nil
	}); err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	return nil
}

func (b *bed) destroy() {
	b.end()
	if b.lab != nil {
		if err := b.lab.Destroy(); err != nil {
			fmt.Fprintln(os.Stderr, "bgp:", err)
		}
	}
	_ = os.RemoveAll(b.dir)
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// heard is how many prefixes the router has of the node.
func (b *bed) heard() (int, error) {
	var summary struct {
		Peers map[string]struct {
			State    string `json:"state"`
			Received int    `json:"pfxRcd"`
		} `json:"peers"`
	}
	if err := b.router.VTYJSON(&summary, "bgpd", "show bgp ipv4 unicast summary json"); err != nil {
		return 0, err
	}
	for _, p := range summary.Peers {
		if p.State == "Established" {
			return p.Received, nil
		}
	}
	return 0, errors.New("the router has no session with the node")
}

// untilHeard waits until the router has enough prefixes, and says when that was seen.
func (b *bed) untilHeard(ctx context.Context, enough func(n int) bool) (time.Time, error) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	late := time.After(within)
	for {
		n, err := b.heard()
		if err == nil && enough(n) {
			return time.Now(), nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case <-late:
			return time.Time{}, fmt.Errorf("%w after %s\n%s", cmp.Or(err, fmt.Errorf("the router has %d prefixes of %d", n, b.services)),
				within, tail(b.daemon.Log()))
		case <-tick.C:
		}
	}
}

// logged waits until the daemon, or its speaker, has written a message about a network after a time, and says when it did.
func (b *bed) logged(ctx context.Context, message, network string, after time.Time) (at time.Time, err error) {
	err = lab.Wait(ctx, within, func() error {
		for line := range strings.Lines(b.daemon.Log()) {
			if !strings.Contains(line, `msg="`+message+`"`) || !strings.Contains(line, " network="+network) {
				continue
			}
			stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			// The log has whole milliseconds.
			if t, err := time.Parse(time.RFC3339Nano, stamp); err == nil && !t.Before(after.Truncate(time.Millisecond)) {
				at = t
				return nil
			}
		}
		return fmt.Errorf("the daemon does not log %q about network %s", message, network)
	})
	return at, err
}

// speaker returns the process id of the node's speaker; 0: no speaker runs.
func (b *bed) speaker() int { return daemon.Speaker(b.node) }

// write puts a file into the folder of manifests, whole.
func (b *bed) write(name string, content []byte) error {
	aside := b.path("aside")
	if err := os.WriteFile(aside, content, 0o600); err != nil {
		return err
	}
	return os.Rename(aside, filepath.Join(b.path("manifests"), name))
}

func manifestOfNode(ready bool) []byte {
	status := map[bool]string{true: "True", false: "False"}[ready]
	return encode(map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": node},
		"status": map[string]any{
			"addresses":  []any{map[string]any{"type": "InternalIP", "address": "172.31.0.1"}},
			"conditions": []any{map[string]any{"type": "Ready", "status": status}},
		},
	})
}

// manifest has the Services, with an EgressService and an endpoint each: documents of YAML, which JSON is too.
func (b *bed) manifest() []byte {
	var all []byte
	for i := range b.services {
		name := fmt.Sprint("s", i)
		metadata := map[string]any{"namespace": "default", "name": name, "labels": map[string]any{"kubernetes.io/service-name": name}}
		address := func(from byte) string { return netip.AddrFrom4([4]byte{from, 130, byte(i >> 8), byte(i)}).String() }
		for _, o := range []map[string]any{
			{
				"apiVersion": "v1", "kind": "Service", "metadata": metadata,
				"spec": map[string]any{
					"type": "LoadBalancer", "clusterIP": "10.200.0.1", "clusterIPs": []string{"10.200.0.1"},
					"ports": []any{map[string]any{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}},
				},
				"status": map[string]any{"loadBalancer": map[string]any{
					"ingress": []any{map[string]any{"ip": address(100), "ipMode": "VIP"}},
				}},
			},
			{
				"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
				"ports": []any{map[string]any{"name": "http", "port": 8080, "protocol": "TCP"}},
				"endpoints": []any{map[string]any{
					"addresses": []string{address(10)}, "nodeName": node,
					"conditions": map[string]any{"ready": true, "serving": true, "terminating": false},
				}},
			},
			{
				"apiVersion": "k8s.ovn.org/v1", "kind": "EgressService", "metadata": metadata,
				"spec":   map[string]any{"sourceIPBy": "LoadBalancerIP", "network": "blue"},
				"status": map[string]any{"host": node, "term": 1},
			},
		} {
			all = append(append(append(all, "---\n"...), encode(o)...), '\n')
		}
	}
	return all
}

// encode returns JSON. Its argument must be a value that can be encoded.
func encode(o any) []byte {
	b, _ := json.Marshal(o)
	return b
}

// tail is the end of a log.
func tail(log string) string { return log[max(0, len(log)-4000):] }
