package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// inputConfig has a network for every namespace, one for some, and one that is only a table.
const inputConfig = `bgp: {asn: 64512}
networks:
- {name: red, vrf: vrf-red, table: 1001, interfaces: [eth2], peers: [{address: 10.1.0.1, asn: 64601}]}
- {name: blue, vrf: vrf-blue, peers: [{address: 10.2.0.1, asn: 64602}], namespaces: {matchLabels: {blue: "yes"}}}
- {name: green, table: 100}
`

const inputCluster = `apiVersion: v1
kind: Node
metadata: {name: a}
spec: {podCIDRs: [10.244.1.0/24]}
status: {addresses: [{type: InternalIP, address: 10.0.0.11}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
`

// object returns an EgressService of namespace shop with its Service and one endpoint, as YAML.
func object(name, spec, ingress, endpoint string) string {
	return `apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {name: ` + name + `, namespace: shop}
spec: ` + spec + `
---
apiVersion: v1
kind: Service
metadata: {name: ` + name + `, namespace: shop}
spec: {type: LoadBalancer, clusterIPs: [10.96.0.` + strings.TrimPrefix(endpoint, "10.244.1.") + `]}
status: {loadBalancer: {ingress: [` + ingress + `]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: ` + name + `, namespace: shop, labels: {kubernetes.io/service-name: ` + name + `}}
addressType: IPv4
endpoints: [{addresses: ["` + endpoint + `"], nodeName: a}]
`
}

// TestBadManifests has a broken object beside a good one in each case: check fails with one line that names the broken one, and plan
// // serves the good one as if it was alone.
func TestBadManifests(t *testing.T) {
	const ok, ip, pod = "{network: red}", "{ip: 203.0.113.66}", "10.244.1.66"
	with := func(old, replacement string) string {
		text := object("bad", ok, ip, pod)
		changed := strings.Replace(text, old, replacement, 1)
		require.NotEqual(t, text, changed)
		return changed
	}
	long := strings.Repeat("x", 64)
	tests := map[string]struct{ manifest, want string }{
		"not YAML":            {with("spec: {network: red}", "spec:\n\tnetwork: red"), "m/bad.yaml:5: Manifest bad.yaml: not YAML: "},
		"unknown key":         {with("network: red", "network: red, netwrok: blue"), "m/bad.yaml:4: EgressService shop/bad: spec.netwrok: unknown field, ignored"},
		"wrong type":          {with("network: red", "network: 100"), `m/bad.yaml:4: EgressService shop/bad: spec.network: "100": a number, but a string is needed`},
		"wrong value":         {with("network: red", "sourceIPBy: Magic"), `m/bad.yaml:4: EgressService shop/bad: spec.sourceIPBy: "Magic": one of LoadBalancerIP, Network`},
		"invalid selector":    {with("network: red", "nodeSelector: {matchExpressions: [{key: k, operator: Near}]}"), `m/bad.yaml:4: EgressService shop/bad: spec.nodeSelector: not a label selector: "Near" is not a valid label selector operator`},
		"no such node":        {with("network: red", "nodeSelector: {matchLabels: {rack: x}}"), "EgressService shop/bad: spec.nodeSelector: matches no Ready node"},
		"unknown network":     {with("network: red", "network: pink"), `EgressService shop/bad: spec.network: "pink": no such network; the configuration lists blue, default, green, red`},
		"network not allowed": {with("network: red", "network: blue"), `EgressService shop/bad: spec.network: "blue": namespace shop may not use network blue: its labels do not match the network's namespaces selector "blue=yes"`},
		"reserved table":      {with("network: red", `network: "254"`), `EgressService shop/bad: spec.network: "254": no such network; `},
		"name too long":       {"apiVersion: k8s.ovn.org/v1\nkind: EgressService\nmetadata: {namespace: shop, name: " + long + "}\n", "m/bad.yaml:3: EgressService shop/" + long + `: metadata.name: "` + long + `": at most 63 bytes, this has 64`},
		"version":             {"apiVersion: k8s.ovn.org/v2\nkind: EgressService\nmetadata: {namespace: shop, name: bad}\n", `m/bad.yaml:1: EgressService bad: apiVersion: "k8s.ovn.org/v2": k8s.ovn.org/v1 is known`},
		"given twice":         {object("bad", ok, ip, pod) + "---\napiVersion: k8s.ovn.org/v1\nkind: EgressService\nmetadata: {namespace: shop, name: bad}\n", "m/bad.yaml:18: EgressService shop/bad: is given twice: the first counts, at "},
		"no Service":          {with("kind: Service\n", "kind: ConfigMap\n"), "EgressService shop/bad: no Service of this namespace and name"},
		"not LoadBalancer":    {with("type: LoadBalancer", "type: ClusterIP"), "EgressService shop/bad: its Service is not of type LoadBalancer"},
		"no ingress IP":       {with(ip, ""), "EgressService shop/bad: its Service has no usable ingress IP yet: "},
		"host name ingress":   {with(ip, "{hostname: lb.example.com}"), `EgressService shop/bad: "lb.example.com": its Service has a host name as ingress: an IP is needed`},
		"bad ingress":         {with("203.0.113.66", "203.0.113.666"), `EgressService shop/bad: status.loadBalancer.ingress: "203.0.113.666": not an IP address`},
		"loopback ingress":    {with("203.0.113.66", "127.0.0.1"), `EgressService shop/bad: status.loadBalancer.ingress: "127.0.0.1": a loopback address cannot be announced nor be a source address`},
		"node as ingress":     {with("203.0.113.66", "10.0.0.11"), `EgressService shop/bad: status.loadBalancer.ingress: "10.0.0.11": is an address of node a: `},
		"ClusterIP ingress":   {with("203.0.113.66", "10.96.0.5"), `EgressService shop/bad: status.loadBalancer.ingress: "10.96.0.5": is the ClusterIP of Service shop/aaa`},
		"pod as ingress":      {with("203.0.113.66", "10.244.1.77"), `EgressService shop/bad: status.loadBalancer.ingress: "10.244.1.77": is inside the cluster's range`},
		"ingress of another":  {strings.Replace(with("{network: red}", "{network: green}"), "203.0.113.66", "203.0.113.5", 1), `EgressService shop/bad: status.loadBalancer.ingress: "203.0.113.5": is served by EgressService shop/aaa in network red; one ingress IP belongs to one network`},
		"bad ClusterIP":       {with("10.96.0.66", "10.96.0.666"), `m/bad.yaml:9: Service shop/bad: spec.clusterIPs: "10.96.0.666": not an IP address`},
		"bad endpoint":        {with(`"10.244.1.66"`, "pod"), `EgressService shop/bad: endpoints: "pod": not an IP address`},
		"node as endpoint":    {with(`"10.244.1.66"], nodeName: a`, "10.0.0.11], nodeName: b"), `EgressService shop/bad: endpoints: "10.0.0.11": is an address of node a, not of a pod on node b`},
		"ClusterIP endpoint":  {with(`"10.244.1.66"`, "10.96.0.5"), `EgressService shop/bad: endpoints: "10.96.0.5": is the ClusterIP of Service shop/aaa, not a pod's address`},
		"node of endpoint":    {with(`"10.244.1.66"], nodeName: a`, `"10.244.1.66"], nodeName: z`), `EgressService shop/bad: endpoints: "10.244.1.66": is on node z, and there is no such node`},
		"misspelled kind":     {"apiVersion: k8s.ovn.org/v1\nkind: egressservice\nmetadata: {namespace: shop, name: bad}\n", `m/bad.yaml:2: Manifest bad.yaml: kind: "egressservice": is passed over: this kind is not read; is EgressService of k8s.ovn.org/v1 meant?`},
		"loopback endpoint":   {with(`"10.244.1.66"`, "127.0.0.1"), `EgressService shop/bad: endpoints: "127.0.0.1": a loopback address is no pod's address`},
		"multicast endpoint":  {with(`"10.244.1.66"`, "224.0.0.1"), `EgressService shop/bad: endpoints: "224.0.0.1": a multicast address is no pod's address`},
		"mapped endpoint":     {with(`"10.244.1.66"`, `"::ffff:10.244.1.66"`), `EgressService shop/bad: endpoints: "::ffff:10.244.1.66": an IPv4-mapped IPv6 address is no pod's address`},
		"endpoint of another": {with(`"10.244.1.66"`, "10.244.1.5"), `EgressService shop/bad: endpoints: "10.244.1.5": is selected by EgressService shop/aaa, which keeps it`},
		"no endpoint":         {with("kind: EndpointSlice", "kind: Endpoints"), "EgressService shop/bad: its Service has no endpoint with an address of its own"},
		"node's address":      {"apiVersion: v1\nkind: Node\nmetadata: {name: b}\nstatus: {conditions: [{type: Ready, status: \"False\"}], addresses: [{type: InternalIP, address: 10.0.0.12}, {type: InternalIP, address: fd00::g}]}\n", `m/bad.yaml:4: Node b: status.addresses[1].address: "fd00::g": not an IP address`},
		"pod range":           {"apiVersion: v1\nkind: Node\nmetadata: {name: b}\nspec: {podCIDRs: [0.0.0.0/0]}\nstatus: {conditions: [{type: Ready, status: \"False\"}], addresses: [{type: InternalIP, address: 10.0.0.12}]}\n", `m/bad.yaml:4: Node b: spec.podCIDRs: "0.0.0.0/0": not a usable prefix, such as 10.244.1.0/24`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			require.NoError(t, os.Mkdir("m", 0o700))
			for file, text := range map[string]string{
				"c.yaml": inputConfig, "m/cluster.yaml": inputCluster, "m/aaa.yaml": object("aaa", ok, "{ip: 203.0.113.5}", "10.244.1.5"), "m/bad.yaml": test.manifest,
			} {
				require.NoError(t, os.WriteFile(filepath.FromSlash(file), []byte(text), 0o600))
			}
			out, err := runCommand(t, newCheckCommand(), "--config", "c.yaml", "--manifests", "m")
			require.EqualError(t, err, "1 error", out)
			require.Equal(t, 1, strings.Count(out, "\n"), out)
			require.True(t, strings.HasPrefix(out, test.want), out)

			out, err = runCommand(t, newPlanCommand(), "--config", "c.yaml", "--manifests", "m", "--node", "a")
			require.NoError(t, err)
			require.Regexp(t, `(?m)^  shop/aaa +LoadBalancerIP +network red +host a .* announced here$`, out)
			require.Regexp(t, `(?m)^  from 10\.244\.1\.5 +on a +network red +source 203\.0\.113\.5$`, out)
			require.Regexp(t, `(?m)^  announces .*203\.0\.113\.5/32`, out)
			require.Contains(t, out, "Problems\n")
			require.Contains(t, out, strings.TrimSpace(test.want))
		})
	}
}
