package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab/stage"
)

// egressIPManifest is an EgressIP with two addresses of each family, and with a host for each.
const egressIPManifest = `apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: team}
spec:
  egressIPs: [192.0.2.33, 192.0.2.34, "2001:db8:2::33", "2001:db8:2::34"]
  namespaceSelector: {matchLabels: {egress: "yes"}}
  podSelector: {matchLabels: {app: web}}
status:
  items:
  - {egressIP: 192.0.2.33, node: b, standby: c, term: 1}
  - {egressIP: 192.0.2.34, node: c, standby: b, term: 1}
  - {egressIP: "2001:db8:2::33", node: b, standby: c, term: 1}
  - {egressIP: "2001:db8:2::34", node: c, standby: b, term: 1}
`

// egressIPConfig gives the addresses of the EgressIP to the network red.
var egressIPConfig = replaced("    vrf: vrf-red\n", "    vrf: vrf-red\n    egressIPs: [192.0.2.32/27, \"2001:db8:2::/64\"]\n")

// podOf is a Pod at a pod of the topology, as a folder and an API server accept it: the server's Pods get their addresses by the annotation.
func podOf(namespace, name, app string) string {
	four, six := ipFamilies[0].pod(name), ipFamilies[1].pod(name)
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {namespace: %s, name: %s, labels: {app: %s}, annotations: {kubelab/pod-ip: "%s,%s"}}
spec: {nodeName: %s, automountServiceAccountToken: false, containers: [{name: it, image: it}]}
status: {phase: Running, podIPs: [{ip: %[4]s}, {ip: "%[5]s"}]}
`, namespace, name, app, four, six, name[:1])
}

// podManifests are a namespace that the EgressIP selects, and the Pods of the topology: all of them but b-p2 are selected.
func podManifests() string {
	all := []string{"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {egress: \"yes\"}}\n"}
	for _, pod := range []string{"a-p1", "a-p2", "b-p1", "b-p2", "c-p1"} {
		app := "web"
		if pod == "b-p2" {
			app = "db"
		}
		all = append(all, podOf("shop", pod, app))
	}
	return strings.Join(all, "---\n")
}

// Nodes of cluster.yaml, without and with the label of nodes that may be the host of an egress IP.
const (
	plainB, assignableB = "labels: {kubernetes.io/hostname: b}", "labels: {kubernetes.io/hostname: b, k8s.ovn.org/egress-assignable: \"\"}"
	plainC, assignableC = "labels: {kubernetes.io/hostname: c}", "labels: {kubernetes.io/hostname: c, k8s.ovn.org/egress-assignable: \"\"}"
)

// egressIPPods are the identities of the selected pods, by hashes of their addresses, and of one that is not selected.
func egressIPPods() identities {
	return identities{
		"a-p1": {"ext-red", "192.0.2.33", "2001:db8:2::33"},
		"a-p2": {"ext-red", "192.0.2.34", "2001:db8:2::33"},
		"b-p1": {"ext-red", "192.0.2.34", "2001:db8:2::33"},
		"c-p1": {"ext-red", "192.0.2.33", "2001:db8:2::34"},
		"b-p2": nodeB,
	}
}

// egressIPRoutes are the best paths to the addresses at the routers of red, by the hosts of those that end in 33 and in 34.
func egressIPRoutes(of33, of34 string) map[string]map[string][]string {
	red := map[string][]string{}
	for _, f := range ipFamilies {
		net := map[string]string{"ipv4": "192.0.2.%d/32", "ipv6": "2001:db8:2::%d/128"}[f.name]
		red[fmt.Sprintf(net, 33)], red[fmt.Sprintf(net, 34)] = []string{f.of(f.red, of33).String()}, []string{f.of(f.red, of34).String()}
	}
	return map[string]map[string][]string{"red1": red, "red2": red}
}

// topologyManifest reads a manifest of the topology.
func topologyManifest(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(containerlab, "vrf-egress", "manifests", name))
	require.NoError(t, err)
	return string(b)
}

// playEgressIP plays three nodes, of which b and c may be hosts of egress IPs, with an EgressIP in force.
func playEgressIP(t *testing.T, o stage.Options) *stage.Stage {
	t.Helper()
	o.Nodes = []string{"a", "b", "c"}
	o.Config = egressIPConfig
	o.Manifests = map[string]string{
		"cluster.yaml": strings.NewReplacer(plainB, assignableB, plainC, assignableC).Replace(topologyManifest(t, "cluster.yaml")),
		"pods.yaml":    podManifests(), "egressip.yaml": egressIPManifest,
	}
	s := play(t, o)
	awaitAll(t, s, egressIPPods())
	expectRIBs(t, s, egressIPRoutes("b", "c"))
	awaitWays(t, s, egressIPPods())
	s.Witness.Reset()
	return s
}

// TestEgressIP has pods, selected by labels, leave by the network that holds the addresses of their EgressIP: each address has a host
// of its own, and each pod keeps to one address of a family, whoever is its host.
func TestEgressIP(t *testing.T) {
	s := playEgressIP(t, stage.Options{})
	ctx, pods, ribs := t.Context(), egressIPPods(), egressIPRoutes
	t.Run("each pod keeps to one address, by every protocol", func(t *testing.T) {
		traffic := ask(t, s, "a-p1", "a-p2", "b-p1", "b-p2", "c-p1")
		traffic.answered(t, 20, pods)
		traffic.stop(t, pods)
		for _, pod := range []string{"a-p1", "b-p1"} { // to a host elsewhere, and to one here for IPv6
			for _, f := range ipFamilies {
				source := pods[pod].source(f.outside)
				outsideAnswers(t, s, f, pod, "ext-red", netip.MustParseAddr(source))
				transfers(t, s, f, pod, "ext-red", netip.MustParseAddr(source))
			}
		}
		requireInnocent(t, s, pods)
		require.NoError(t, checkRIBs(s, ribs("b", "c")))
	})

	t.Run("an EgressService comes first", func(t *testing.T) {
		require.NoError(t, s.Write(ctx, "web.yaml", topologyManifest(t, "web.yaml")))
		awaitAll(t, s, pods.with(identities{"a-p1": web, "b-p1": web}))
		require.NoError(t, s.Remove(ctx, "web.yaml"))
		awaitAll(t, s, pods)
		requireInnocent(t, s, pods, identities{"a-p1": web})
	})

	t.Run("a node loses its label", func(t *testing.T) {
		require.NoError(t, s.Edit(ctx, "cluster.yaml", assignableC, plainC))
		expectRIBs(t, s, ribs("b", "b")) // the only node that may be, although it has the other address
		awaitAll(t, s, pods)
		require.NoError(t, s.Edit(ctx, "cluster.yaml", plainC, assignableC))
		expectRIBs(t, s, ribs("b", "c"))
		awaitAll(t, s, pods)
		requireInnocent(t, s, pods, identities{"a-p1": web})
	})

	t.Run("no node may be the host", func(t *testing.T) {
		require.NoError(t, s.Edit(ctx, "cluster.yaml", assignableC, plainC, assignableB, plainB))
		awaitDropped(t, s, "a-p1", "a-p2", "b-p1", "c-p1")
		expectRIBs(t, s, nil)
		awaitAll(t, s, identities{"b-p2": nodeB})
		requireInnocent(t, s, pods, identities{"a-p1": web})
		require.NoError(t, s.EditConfig(func(c string) string { return c + "onNoPath: allow\n" }))
		instead := identities{"a-p1": nodeA, "a-p2": nodeA, "b-p1": nodeB, "c-p1": nodeC}
		awaitAll(t, s, instead)
		requireInnocent(t, s, pods, instead, identities{"b-p2": web})
		require.NoError(t, s.EditConfig(func(c string) string { return strings.Replace(c, "onNoPath: allow\n", "", 1) }))
		require.NoError(t, s.Edit(ctx, "cluster.yaml", plainC, assignableC, plainB, assignableB))
		awaitAll(t, s, pods)
	})
}

// TestEgressIPHostDies takes the power of a host away: its standby takes over, and pods keep their addresses.
func TestEgressIPHostDies(t *testing.T) {
	s := playEgressIP(t, stage.Options{BFD: true, BFDInterval: 1000})
	pods := egressIPPods()
	require.NoError(t, s.PowerOff(t.Context(), "b"))
	onB := identities{"b-p1": pods["b-p1"], "b-p2": pods["b-p2"]}
	delete(pods, "b-p1")
	delete(pods, "b-p2")
	expectRIBs(t, s, egressIPRoutes("c", "c"))
	awaitAll(t, s, pods)
	requireInnocent(t, s, pods, onB)
}
