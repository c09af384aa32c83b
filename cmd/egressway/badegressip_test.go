package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// badCluster is a cluster in which the addresses of bad EgressIPs belong to others.
const badCluster = `apiVersion: v1
kind: Node
metadata: {name: worker-1, labels: {k8s.ovn.org/egress-assignable: "", kubernetes.io/hostname: worker-1}}
spec: {podCIDR: 10.244.0.0/24, podCIDRs: [10.244.0.0/24, "fd44::/64"]}
status: {addresses: [{type: InternalIP, address: 10.0.0.11}, {type: InternalIP, address: "fd00::11"}]}
---
{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/16]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: shop}}}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: web-1, labels: {app: web}}
spec: {nodeName: worker-1}
status: {phase: Running, podIPs: [{ip: 10.244.0.9}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: plain}
spec: {type: LoadBalancer, clusterIP: 10.97.0.1, clusterIPs: [10.97.0.1]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.99}]}}
---
apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: good, creationTimestamp: "2020-01-01T00:00:00Z"}
spec: {egressIPs: [203.0.113.1], namespaceSelector: {matchLabels: {team: shop}}}
`

// TestBadEgressIPs checks every way in which an EgressIP can be wrong: each object is named, with the field and the cure, and the others are
// served.
func TestBadEgressIPs(t *testing.T) {
	address := func(a string) string { return "egressIPs: [" + a + "], namespaceSelector: {matchLabels: {team: none}}" }
	const fits = "egressIPs: [203.0.113.7], "
	cases := []struct{ spec, field, cure string }{
		{address(`""`), "spec.egressIPs[0]", "write an address such as 203.0.113.7"},
		{address("web"), "spec.egressIPs[0]", "not an IP address"},
		{address("203.0.113"), "spec.egressIPs[0]", "not an IP address"},
		{address("203"), "spec.egressIPs", "a number, but a string is needed"},
		{address("203.0.113.256"), "spec.egressIPs[0]", "not an IP address"},
		{address("203.0.113.07"), "spec.egressIPs[0]", "not an IP address"},
		{address("203.0.113.7/32"), "spec.egressIPs[0]", "write the address alone, 203.0.113.7"},
		{address("203.0.113.0/24"), "spec.egressIPs[0]", "write the address alone"},
		{address("203.0.113.7-203.0.113.9"), "spec.egressIPs[0]", "not an IP address"},
		{address(`"203.0.113.7,203.0.113.8"`), "spec.egressIPs[0]", "not an IP address"},
		{address(`"203.0.113.7:80"`), "spec.egressIPs[0]", "not an IP address"},
		{address(`" 203.0.113.7"`), "spec.egressIPs[0]", "not an IP address"},
		{address(`"[2001:db8::7]"`), "spec.egressIPs[0]", "not an IP address"},
		{address(`"2001:db8:::7"`), "spec.egressIPs[0]", "not an IP address"},
		{address(`"2001:db8::7%eth0"`), "spec.egressIPs[0]", "an address with a zone"},
		{address(`"::ffff:203.0.113.7"`), "spec.egressIPs[0]", "write 203.0.113.7"},
		{address("0.0.0.0"), "spec.egressIPs[0]", "choose a unicast address"},
		{address(`"::"`), "spec.egressIPs[0]", "choose a unicast address"},
		{address("127.0.0.1"), "spec.egressIPs[0]", "choose a unicast address"},
		{address(`"::1"`), "spec.egressIPs[0]", "choose a unicast address"},
		{address("169.254.1.1"), "spec.egressIPs[0]", "choose a unicast address"},
		{address(`"fe80::1"`), "spec.egressIPs[0]", "choose a unicast address"},
		{address("224.0.0.1"), "spec.egressIPs[0]", "choose a unicast address"},
		{address(`"ff02::1"`), "spec.egressIPs[0]", "choose a unicast address"},
		{address("255.255.255.255"), "spec.egressIPs[0]", "choose a unicast address"},
		{address("203.0.113.40, 203.0.113.400"), "spec.egressIPs[1]", "not an IP address"},
		{address("10.0.0.11"), "spec.egressIPs", "is an address of node worker-1: it must belong to no node"},
		{address(`"fd00::11"`), "spec.egressIPs", "is an address of node worker-1: it must belong to no node"},
		{address("10.244.0.10"), "spec.egressIPs", "is inside the cluster's range of pod or Service addresses"},
		{address(`"fd44::9"`), "spec.egressIPs", "is inside the cluster's range of pod or Service addresses"},
		{address("10.96.0.1"), "spec.egressIPs", "is inside the cluster's range of pod or Service addresses"},
		{address("10.97.0.1"), "spec.egressIPs", "is the ClusterIP of Service shop/plain"},
		{address("10.1.0.1"), "spec.egressIPs", "is a BGP peer in network red"},
		{address("203.0.113.99"), "spec.egressIPs", "is the ingress IP of Service shop/plain, which keeps it: choose another address"},
		{address("203.0.113.1"), "spec.egressIPs", "is the egress IP of EgressIP good, which keeps it: choose another address"},
		{"egressIPs: [], namespaceSelector: {}", "spec.egressIPs", "list at least one, such as 203.0.113.7"},
		{"namespaceSelector: {}", "spec.egressIPs", "list at least one, such as 203.0.113.7"},
		{"egressIPs: 203.0.113.7, namespaceSelector: {}", "spec.egressIPs", "a list"},
		{address(strings.TrimSuffix(strings.Repeat("203.0.113.X, ", 65), ", ")), "spec.egressIPs[64]", "at most 64 addresses of a family"},
		{"egressIPs: [203.0.113.7]", "spec.namespaceSelector", "{} selects every namespace"},
		{fits + `namespaceSelector: {matchLabels: {"not a key": x}}`, "spec.namespaceSelector", "not a label selector"},
		{fits + `namespaceSelector: {matchLabels: {key: "not a value"}}`, "spec.namespaceSelector", "not a label selector"},
		{fits + "namespaceSelector: {matchLabels: {key: 5}}", "spec.namespaceSelector.matchLabels", "a number, but a string is needed"},
		{fits + "namespaceSelector: {matchExpressions: [{key: a, operator: Like, values: [b]}]}", "spec.namespaceSelector", "not a label selector"},
		{fits + "namespaceSelector: {}, podSelector: {matchExpressions: [{key: a, operator: In}]}", "spec.podSelector", "not a label selector"},
		{fits + "namespaceSelector: {}, podSelector: {matchExpressions: [{key: a, operator: Exists, values: [x]}]}", "spec.podSelector", "not a label selector"},
		{fits + "namespaceSelector: {}, podSelecter: {matchLabels: {app: none}}", "spec.podSelecter", "unknown field, ignored"},
		{"egressIPs: [203.0.113.50], namespaceSelector: {matchLabels: {team: shop}}", "spec.podSelector", "is selected by EgressIP good, which keeps it"},
	}
	require.GreaterOrEqual(t, len(cases), 40)
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "m")
	require.NoError(t, os.Mkdir(folder, 0o700))
	require.NoError(t, os.WriteFile(file, []byte(`node: worker-1
source: {manifests: `+folder+`}
bgp: {asn: 64512}
networks:
- name: red
  vrf: vrf-red
  table: 1001
  interfaces: [eth1]
  egressIPs: [203.0.113.0/24]
  peers: [{address: 10.1.0.1, asn: 64601}]
`), 0o600))
	documents := []string{badCluster}
	for i, c := range cases {
		for n := 100; strings.Contains(c.spec, ".X"); n++ {
			c.spec = strings.Replace(c.spec, ".X", fmt.Sprint(".", n), 1)
		}
		documents = append(documents, fmt.Sprintf(
			"apiVersion: k8s.ovn.org/v1\nkind: EgressIP\nmetadata: {name: bad-%d, creationTimestamp: \"2021-01-01T00:00:%02dZ\"}\nspec: {%s}\n", i, i, c.spec))
	}
	require.NoError(t, os.WriteFile(filepath.Join(folder, "all.yaml"), []byte(strings.Join(documents, "---\n")), 0o600))
	out, err := runCheck(t, "--config", file, "--manifests", folder)
	require.Error(t, err)
	for i, c := range cases {
		named := fmt.Sprintf(" EgressIP bad-%d: %s: ", i, c.field)
		found := false
		for line := range strings.Lines(out) {
			found = found || strings.Contains(" "+line, named) && strings.Contains(line, c.cure)
		}
		require.True(t, found, "want %q with %q\n%s", named, c.cure, out)
	}
	require.NotContains(t, out, "EgressIP good: ")
}
