package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// lateManifest is a Service and its EgressService, the last in every order, for the pod on node c.
const lateManifest = `apiVersion: v1
kind: Service
metadata: {namespace: shop, name: zoo}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  clusterIP: 10.96.0.30
  clusterIPs: [10.96.0.30, "fd96::30"]
  ports: [{name: tcp, protocol: TCP, port: 80, targetPort: 8080}]
status:
  loadBalancer:
    ingress: [{ip: 192.0.2.30}, {ip: "2001:db8:2::30"}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: zoo-4, labels: {kubernetes.io/service-name: zoo}}
addressType: IPv4
endpoints:
  - {addresses: [10.244.3.11], nodeName: c}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: zoo-6, labels: {kubernetes.io/service-name: zoo}}
addressType: IPv6
endpoints:
  - {addresses: ["fd44:3::11"], nodeName: c}
---
apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {namespace: shop, name: zoo}
spec:
  sourceIPBy: LoadBalancerIP
  network: red
`

// awaitLog waits until the daemons on nodes said something, once more than times, and fails where one says it twice.
func awaitLog(t *testing.T, s *stage.Stage, text string, times map[string]int, nodes ...string) {
	t.Helper()
	said := func(node string) (n int) {
		return strings.Count(s.Daemons[node].Log(), text)
	}
	for _, node := range nodes {
		require.NoError(t, lab.Wait(t.Context(), patience, func() error {
			if said(node) <= times[node] {
				return fmt.Errorf("the daemon on %s does not say %q", node, text)
			}
			return nil
		}))
	}
	for _, node := range nodes {
		require.Equal(t, times[node]+1, said(node), "lines of node %s with %q", node, text)
	}
}

// TestBadInput feeds running daemons with all that can be wrong: one clear line names it, and all others stay served.
func TestBadInput(t *testing.T) {
	nodes := []string{"a", "b", "c"}
	s := play(t, stage.Options{Nodes: nodes})
	ctx := t.Context()
	all := asDeployed()
	require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.10/32", "10.1.0.11"))
	awaitServed(t, s, all)
	pods := []string{"a-p1", "b-p1", "a-p2", "b-p2"}
	zoo := identity{"ext-red", "192.0.2.30", "2001:db8:2::30"}
	traffic := ask(t, s, pods...)

	for _, c := range []struct {
		name   string
		fromTo []string // what makes lateManifest bad
		line   string
		served bool // all the same
		twice  bool // an address is given twice
	}{
		{"unknown key", []string{"  network: red", "  network: red\n  netwrok: blue"}, `spec.netwrok: unknown field`, true, false},
		{"misspelled kind", []string{"kind: EgressService", "kind: egressservice"}, `is EgressService of k8s.ovn.org/v1 meant?`, true, false},
		{"broken YAML", []string{"kind: EgressService", "kind: [EgressService"}, `not YAML`, false, false},
		{"wrong type", []string{"network: red", "network: [red]"}, `spec.network: a list, but a string is needed`, false, false},
		{"enum", []string{"sourceIPBy: LoadBalancerIP", "sourceIPBy: Pod"}, `spec.sourceIPBy: \"Pod\": `, false, false},
		{"no ingress IP", []string{`[{ip: 192.0.2.30}, {ip: "2001:db8:2::30"}]`, "[]"}, `no usable ingress IP yet`, false, false},
		{"invalid ingress IP", []string{"192.0.2.30", "192.0.2.300"}, `\"192.0.2.300\"`, false, false},
		{"loopback ingress IP", []string{"192.0.2.30", "127.0.0.30"}, `\"127.0.0.30\": `, false, false},
		{"multicast ingress IP", []string{"192.0.2.30", "224.0.0.30"}, `\"224.0.0.30\": `, false, false},
		{"node address as ingress IP", []string{"192.0.2.30", "10.0.0.11"}, `\"10.0.0.11\": is an address of node a`, false, false},
		{"ClusterIP as ingress IP", []string{"{ip: 192.0.2.30}", "{ip: 10.96.0.10}"}, `\"10.96.0.10\": is the ClusterIP of Service shop/web`, false, true},
		{"ingress IP of another network", []string{"192.0.2.30", "192.0.2.20"}, `\"192.0.2.20\": is served by EgressService shop/batch in network blue`, false, true},
		{"host name as ingress", []string{`[{ip: 192.0.2.30}, {ip: "2001:db8:2::30"}]`, "[{hostname: zoo.example}]"}, `has a host name as ingress`, false, false},
		{"endpoint with a node's address", []string{"[10.244.3.11]", "[10.0.0.12]"}, `\"10.0.0.12\": is an address of node b`, false, false},
		{"endpoint with a ClusterIP", []string{"[10.244.3.11]", "[10.96.0.10]"}, `endpoints: \"10.96.0.10\": is the ClusterIP`, false, false},
		{"endpoint of an older object", []string{"[10.244.3.11]", "[10.244.1.11]"}, `\"10.244.1.11\": is selected by EgressService shop/web`, false, false},
		{"loopback endpoint", []string{"[10.244.3.11]", "[127.0.0.1]"}, `\"127.0.0.1\": `, false, false},
		{"invalid selector", []string{"  network: red", "  network: red\n  nodeSelector: {matchExpressions: [{key: x, operator: Near}]}"}, `spec.nodeSelector`, false, false},
		{"unknown network", []string{"network: red", "network: green"}, `spec.network: \"green\": no such network`, false, false},
		{"name too long", []string{"name: zoo", "name: " + strings.Repeat("z", 254)}, `EgressService shop/zzz`, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := lateManifest
			for i := 0; i < len(c.fromTo); i += 2 {
				require.Contains(t, bad, c.fromTo[i])
				bad = strings.ReplaceAll(bad, c.fromTo[i], c.fromTo[i+1])
			}
			err := s.Write(ctx, "zoo.yaml", bad)
			if !c.twice { // the stand-in for kube-proxy knows no address of two Services
				require.NoError(t, err)
			}
			awaitLog(t, s, c.line, nil, nodes...)
			if c.served {
				awaitAll(t, s, identities{"c-p1": zoo})
			}
		})
	}
	traffic.answered(t, 3, all)
	require.NoError(t, s.Write(ctx, "zoo.yaml", lateManifest))
	awaitAll(t, s, identities{"c-p1": zoo})
	require.NoError(t, s.Remove(ctx, "zoo.yaml"))
	awaitAll(t, s, identities{"c-p1": nodeC})

	// Two lines tell of a refusal: what the daemon does about it, and the problem that its status shows until it is gone.
	const refused = `msg="configuration refused`
	for _, c := range []struct {
		name string
		edit func(string) string
		line string
	}{
		{"unknown key", func(c string) string { return c + "colour: green\n" }, "colour"},
		{"broken YAML", func(c string) string { return c + "bgp: [\n" }, "YAML"},
		{"wrong type", func(c string) string { return strings.Replace(c, "asn: 64512", "asn: many", 1) }, "bgp.asn"},
		{"table twice", func(c string) string { return strings.Replace(c, "table: 1002", "table: 1001", 1) }, "1001"},
		{"reserved table", func(c string) string { return strings.Replace(c, "table: 1002", "table: 254", 1) }, "254"},
		{"invalid address", func(c string) string { return strings.Replace(c, "address: 10.2.0.2", "address: 10.2.0.256", 1) }, "10.2.0.256"},
		{"name for the kernel to complete", func(c string) string { return c + "steering: {device: \"vx%d\"}\n" }, `steering.device: \"vx%d\"`},
		{"kube-proxy's mark", func(c string) string { return c + "marks: {mask: \"0x7f00\"}\n" }, `marks.mask: \"0x7f00\": these bits are in use: 0x4000 by kube-proxy`},
		{"no port", func(c string) string { return c + "status: {metricsAddress: \"0.0.0.0:0\"}\n" }, `status.metricsAddress: \"0.0.0.0:0\"`},
		{"a folder as socket", func(c string) string { return c + "speaker: {socket: /run/}\n" }, `speaker.socket: \"/run/\": that is a folder`},
		{"another folder", func(c string) string { return strings.Replace(c, "/etc/egressway/manifests", "/etc", 1) }, "with a restart only"},
		{"another log", func(c string) string { return c + "log: {level: debug}\n" }, "marks and log change with a restart only"},
	} {
		t.Run("config: "+c.name, func(t *testing.T) {
			times, gone := map[string]int{}, map[string]int{}
			for _, node := range nodes {
				times[node] = strings.Count(s.Daemons[node].Log(), refused)
				gone[node] = strings.Count(s.Daemons[node].Log(), `msg="problem gone" kind=Config`)
			}
			var good string
			require.NoError(t, s.EditConfig(func(is string) string {
				good = is
				bad := c.edit(is)
				require.NotEqual(t, good, bad)
				return bad
			}))
			awaitLog(t, s, refused, times, nodes...)
			require.Contains(t, s.Daemons["a"].Log(), c.line)
			require.NoError(t, s.EditConfig(func(string) string { return good }))
			awaitLog(t, s, `msg="problem gone" kind=Config`, gone, nodes...)
		})
	}
	traffic.answered(t, 3, all)
	traffic.stop(t, all)
	requireInnocent(t, s, all, identities{"c-p1": zoo})
}

// TestFlawedManifests breaks the file of web in many ways, under traffic: what it held stays in force until it is whole again, and
// a problem on every node says so. A file that is gone for a moment, and a folder that is empty, change nothing.
func TestFlawedManifests(t *testing.T) {
	nodes := []string{"a", "b", "c"}
	s := play(t, stage.Options{Nodes: nodes})
	ctx := t.Context()
	all := asDeployed()
	require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.10/32", "10.1.0.11"))
	awaitServed(t, s, all)
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2")
	path := s.ManifestPath("web.yaml")
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	overwrite := func(text string) error { return os.WriteFile(path, []byte(text), 0o644) }
	for _, c := range []struct {
		name   string
		befall func() error
	}{
		{"empty", func() error { return overwrite("") }},
		{"cut off", func() error { return overwrite(string(whole[:len(whole)/2-7])) }},
		{"cut off in its last line", func() error { return overwrite(string(whole[:len(whole)-3])) }},
		{"broken", func() error {
			return overwrite(strings.Replace(string(whole), "kind: EgressService", "kind: [EgressService", 1))
		}},
		{"misspelled", func() error {
			return overwrite(strings.Replace(string(whole), "kind: EgressService", "kind: egressservice", 1))
		}},
		{"unreadable", func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, c.befall())
			for _, node := range nodes {
				awaitProblem(t, s, node, cluster.ReasonFormerContent, "", true)
			}
			traffic.answered(t, 3, all)
			require.NoError(t, os.RemoveAll(path))
			require.NoError(t, overwrite(string(whole)))
			for _, node := range nodes {
				awaitProblem(t, s, node, cluster.ReasonFormerContent, "", false)
			}
		})
	}
	hide := func(name string) { require.NoError(t, os.Rename(s.ManifestPath(name), s.ManifestPath("."+name))) }
	show := func(name string) { require.NoError(t, os.Rename(s.ManifestPath("."+name), s.ManifestPath(name))) }
	// By one program of the machine: a daemon believes after 2 s that a file is gone.
	_, err = s.Node("a").Run(ctx, "sh", "-ec", fmt.Sprintf("mv %[1]s %[2]s; sleep 0.2; mv %[2]s %[1]s", path, s.ManifestPath(".web.yaml")))
	require.NoError(t, err)
	traffic.answered(t, 3, all)
	files := []string{"batch.yaml", "cluster.yaml", "web.yaml"}
	for _, name := range files {
		hide(name)
	}
	for _, node := range nodes {
		awaitProblem(t, s, node, cluster.ReasonNoManifests, "", true)
	}
	traffic.answered(t, 3, all)
	for _, name := range files {
		show(name)
	}
	for _, node := range nodes {
		awaitProblem(t, s, node, cluster.ReasonNoManifests, "", false)
	}
	traffic.answered(t, 3, all)
	traffic.stop(t, all)
	requireInnocent(t, s, all)

	require.NoError(t, s.Remove(ctx, "web.yaml"))
	awaitAll(t, s, identities{"a-p1": nodeA, "b-p1": nodeB})
	requireInnocent(t, s, all, identities{"a-p1": nodeA, "b-p1": nodeB})
}

// TestConfigGrows adds a network and a peer to the configuration of running daemons.
func TestConfigGrows(t *testing.T) {
	var full string
	s := play(t, stage.Options{Config: func(c string) string {
		full = c
		before, _, _ := strings.Cut(c, "  - name: blue")
		_, rest, _ := strings.Cut(c, "  - name: default")
		c = before + "  - name: default" + rest
		red2 := strings.Index(c, "      - address: 10.1.0.2")
		_, rest, _ = strings.Cut(c, "  - name: default")
		return c[:red2] + "  - name: default" + rest
	}})
	ctx := t.Context()
	all := asDeployed()
	require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.10/32", "10.1.0.11"))
	require.NoError(t, s.AwaitRoute(ctx, "red2", "192.0.2.10/32"))
	awaitAll(t, s, identities{"a-p1": web, "b-p1": web}) // by red1 alone
	s.Witness.Reset()
	awaitDropped(t, s, "a-p2", "b-p2") // their network is not known
	traffic := ask(t, s, "a-p1", "b-p1", "c-p1")

	require.NoError(t, s.EditConfig(func(string) string { return full }))
	require.NoError(t, s.AwaitRoute(ctx, "red2", "192.0.2.10/32", "10.1.0.11"))
	require.NoError(t, s.AwaitRoute(ctx, "blue1", "2001:db8:2::20/128", "fd02::11", "fd02::12"))
	awaitAll(t, s, all)
	traffic.stop(t, all, all.nobody()) // answers that came back by red2 found no way up to now
	requireInnocent(t, s, all)
}

// TestHangup has daemons read their configuration again by SIGHUP, though the file is as it was.
func TestHangup(t *testing.T) {
	s := play(t, stage.Options{Nodes: []string{"a"}})
	ctx := t.Context()
	require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.10/32", "10.1.0.11"))
	reloads := func() string {
		t.Helper()
		_, rest, _ := strings.Cut(metrics(t, s, "a"), `egressway_config_reloads_total{result="ok"} `)
		count, _, _ := strings.Cut(rest, "\n")
		return count
	}
	before := reloads()
	require.NotEmpty(t, before)
	require.NoError(t, s.Daemons["a"].Signal(syscall.SIGHUP))
	require.NoError(t, lab.Wait(ctx, lab.Patience, func() error {
		if s.Daemons["a"].Ended() {
			return s.Daemons["a"].Err()
		}
		if reloads() == before {
			return errors.New("no reload is counted")
		}
		return nil
	}))
	awaitServed(t, s, identities{"a-p1": web})
}

// TestBadConfigAtStart starts the daemon with a configuration full of errors.
func TestBadConfigAtStart(t *testing.T) {
	s := play(t, stage.Options{Nodes: []string{"a"}})
	const file = "/run/config.yaml"
	const bad = `source: {manifests: /etc/egressway/manifests}
bgp: {asn: 64512}
colour: green
networks:
  - {name: red, vrf: vrf-red, table: 254, interfaces: [eth2]}
  - {name: red, table: 1002}
  - {name: blue, table: 1002, peers: [{address: 10.2.0.300, asn: 64602}]}
`
	_, err := s.Node("c").Input(t.Context(), bad, "tee", file)
	require.NoError(t, err)
	const all = "nft list ruleset; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; ip link"
	before := withoutTime(inKernel(t, s, "c", all))
	_, err = s.Egressway(t.Context(), "c", "run", "--config", file)
	require.Error(t, err)
	for _, line := range []string{":3: ", ":5: ", ":6: ", ":7: "} {
		require.ErrorContains(t, err, file+line)
	}
	require.Equal(t, before, withoutTime(inKernel(t, s, "c", all)))
}
