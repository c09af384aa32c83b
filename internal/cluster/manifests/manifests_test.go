package manifests

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/egressway/egressway/internal/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func addrs(texts ...string) []netip.Addr {
	var as []netip.Addr
	for _, t := range texts {
		as = append(as, netip.MustParseAddr(t))
	}
	return as
}

func TestReadSamples(t *testing.T) {
	o, problems := Read("../../../config/samples")
	require.Empty(t, problems)
	web := cluster.Key{Namespace: "shop", Name: "web"}
	require.Equal(t, cluster.EgressService{SourceIPBy: cluster.SourceIPByLoadBalancer, Network: "red"}, o.EgressServices.At(web))
	require.Equal(t, cluster.Service{
		LoadBalancer: true,
		ClusterIPs:   addrs("10.96.0.10", "fd96::10"),
		Ingress:      []cluster.Ingress{{IP: "203.0.113.10"}, {IP: "2001:db8:203::10"}},
		Ports:        []cluster.Port{{Name: "http", Protocol: "TCP", Port: 80, TargetPort: 8080}},
	}, o.Services.At(web))
	require.Equal(t, []cluster.Endpoint{
		{Address: "10.244.1.11", Node: "a"},
		{Address: "10.244.2.11", Node: "b"},
		{Address: "fd44:1::11", Node: "a"},
		{Address: "fd44:2::11", Node: "b"},
	}, o.Endpoints.At(web))
	require.Equal(t, cluster.Node{
		Labels:    map[string]string{"kubernetes.io/hostname": "b", "node-role.kubernetes.io/worker": ""},
		Ready:     true,
		Addresses: addrs("10.0.0.12", "fd00::12"),
		Internal:  addrs("10.0.0.12", "fd00::12"),
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24"), netip.MustParsePrefix("fd44:2::/64")},
	}, o.Nodes.At("b"))
	require.Equal(t, "jobs", o.Namespaces.At("jobs").Labels["kubernetes.io/metadata.name"])
	require.Len(t, o.ServiceCIDRs, 2)
	require.Len(t, maps.Collect(o.EgressServices.All()), 3)

	o, problems = Read("../../../config/upstream")
	require.Empty(t, problems)
	require.Len(t, maps.Collect(o.EgressServices.All()), 5)
}

func TestReadPods(t *testing.T) {
	o, problems := Read(write(t, map[string]string{"pods.yaml": `
apiVersion: v1
kind: Pod
metadata: {name: web-1.2, namespace: shop, labels: {app: web}}
spec: {nodeName: a, containers: [{name: web, image: web}]}
status: {phase: Running, podIP: 10.244.1.11, podIPs: [{ip: 10.244.1.11}, {ip: "fd44:1::11"}, {ip: here}]}
---
apiVersion: v1
kind: Pod
metadata: {name: agent}
spec: {nodeName: a, hostNetwork: true}
status: {phase: Failed, podIP: 10.0.0.11}
---
{apiVersion: v1, kind: Pod, metadata: {name: Bad}}
---
{apiVersion: v1, kind: Pod, metadata: {name: new}}
`}))
	require.Equal(t, map[cluster.Key]cluster.Pod{
		{Namespace: "shop", Name: "web-1.2"}:  {Node: "a", Labels: map[string]string{"app": "web"}, Addresses: addrs("10.244.1.11", "fd44:1::11")},
		{Namespace: "default", Name: "agent"}: {Node: "a", Addresses: addrs("10.0.0.11"), HostNetwork: true, Ended: true},
		{Namespace: "default", Name: "new"}:   {},
	}, maps.Collect(o.Pods.All()))
	require.Len(t, problems, 2)
	require.Contains(t, problems[0].Error(), `pods.yaml:6: Pod shop/web-1.2: status.podIPs[2].ip: "here": not an IP address`)
	require.Contains(t, problems[1].Error(), `pods.yaml:14: Pod default/Bad: metadata.name: "Bad": lower case letters`)
}

const good = `
apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {name: good}
`

// write makes a folder with the files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// TestBrokenDocuments checks the problems of each broken document, and that the good one after it is read.
func TestBrokenDocuments(t *testing.T) {
	es := func(rest string) string {
		return "apiVersion: k8s.ovn.org/v1\nkind: EgressService\n" + rest
	}
	tests := map[string]struct {
		text  string
		want  []string
		count int // EgressServices besides the good one
	}{
		"syntax":         {"a: [b\nc: d\n", []string{`f.yaml:1: Manifest f.yaml: not YAML: did not find expected ',' or ']'`}, 0},
		"tab":            {"a:\n\tb: c\n", []string{`f.yaml:2: Manifest f.yaml: not YAML: found character that cannot start any token`}, 0},
		"not an object":  {"- a\n", []string{`f.yaml:1: Manifest f.yaml: a list, but a mapping is needed`}, 0},
		"no kind":        {"metadata: {name: x}\n", []string{`f.yaml:1: Manifest f.yaml: kind: missing: not a Kubernetes object`}, 0},
		"duplicate key":  {es("metadata: {name: x}\nspec:\n  network: a\n  network: b\n"), []string{`f.yaml:6: Manifest f.yaml: not YAML: key "network" already set in map`}, 0},
		"unknown fields": {es("metadata:\n  name: x\nspec:\n  netwrok: red\n  nodeSelector:\n    matchLabel: {}\n"), []string{`f.yaml:6: EgressService default/x: spec.netwrok: unknown field, ignored`, `f.yaml:8: EgressService default/x: spec.nodeSelector.matchLabel: unknown field, ignored`}, 1},
		"wrong case":     {es("metadata: {name: x}\nspec:\n  Network: red\n"), []string{`f.yaml:5: EgressService default/x: spec.Network: unknown field, ignored`}, 1},
		"wrong type":     {es("metadata: {name: x}\nspec:\n  network: 100\n"), []string{`f.yaml:5: EgressService default/x: spec.network: "100": a number, but a string is needed`}, 0},
		"spec is a list": {es("metadata: {name: x}\nspec: []\n"), []string{`f.yaml:4: EgressService default/x: spec: a list, but a mapping is needed`}, 0},
		"no name":        {es("spec: {}\n"), []string{`f.yaml:1: EgressService default/: metadata.name: missing`}, 0},
		"long name":      {es("metadata:\n  name: " + strings.Repeat("x", 64) + "\n"), []string{`f.yaml:4: EgressService default/` + strings.Repeat("x", 64) + `: metadata.name: "` + strings.Repeat("x", 64) + `": at most 63 bytes, this has 64`}, 0},
		"long namespace": {es("metadata:\n  name: x\n  namespace: " + strings.Repeat("y", 64) + "\n"), []string{`f.yaml:5: EgressService ` + strings.Repeat("y", 64) + `/x: metadata.namespace: "` + strings.Repeat("y", 64) + `": at most 63 bytes, this has 64`}, 0},
		"bad name":       {es("metadata: {name: ../x}\n"), []string{`f.yaml:3: EgressService default/../x: metadata.name: "../x": lower case letters, digits and '-', a letter or digit first and last`}, 0},
		"sourceIPBy":     {es("metadata: {name: x}\nspec:\n  sourceIPBy: Magic\n"), []string{`f.yaml:5: EgressService default/x: spec.sourceIPBy: "Magic": one of LoadBalancerIP, Network`}, 0},
		"selector":       {es("metadata: {name: x}\nspec:\n  nodeSelector:\n    matchExpressions: [{key: k, operator: Near}]\n"), []string{`f.yaml:6: EgressService default/x: spec.nodeSelector: not a label selector: "Near" is not a valid label selector operator`}, 1},
		"version":        {"apiVersion: k8s.ovn.org/v2\nkind: EgressService\nmetadata: {name: x}\n", []string{`f.yaml:1: EgressService x: apiVersion: "k8s.ovn.org/v2": k8s.ovn.org/v1 is known`}, 0},
		"time":           {es("metadata: {name: x, creationTimestamp: yesterday}\n"), []string{`f.yaml:1: EgressService default/x: parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006"`}, 0},
		"duplicate":      {es("metadata: {name: x}\n---\n" + es("metadata: {name: x}\nspec: {network: late}\n")), []string{`f.yaml:5: EgressService default/x: is given twice: the first counts, at f.yaml:1`}, 1},
		"bad ClusterIP":  {"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n  clusterIPs: [10.0.0.300]\n", []string{`f.yaml:5: Service default/x: spec.clusterIPs: "10.0.0.300": not an IP address`}, 0},
		"bad port":       {"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n  ports:\n  - {port: 80}\n  - {port: 65616}\n", []string{`f.yaml:7: Service default/x: spec.ports[1]: a port is a number from 1 to 65535`}, 0},
		"bad node": {"apiVersion: v1\nkind: Node\nmetadata: {name: m}\nspec:\n  podCIDRs: [10.244.0.0, 0.0.0.0/0]\nstatus:\n  addresses:\n  - type: InternalIP\n    address: 127.0.0.1\n", []string{
			`f.yaml:9: Node m: status.addresses[0].address: "127.0.0.1": a loopback address, not one of a pod, a Service or a node`,
			`f.yaml:8: Node m: status.addresses: no usable address of type InternalIP: nothing can be steered to or from this node`,
			`f.yaml:5: Node m: spec.podCIDRs: "10.244.0.0": not a usable prefix, such as 10.244.1.0/24`,
			`f.yaml:5: Node m: spec.podCIDRs: "0.0.0.0/0": not a usable prefix, such as 10.244.1.0/24`,
		}, 0},
		"node's name":          {"apiVersion: v1\nkind: Node\nmetadata: {name: N_1}\n", []string{`f.yaml:3: Node N_1: metadata.name: "N_1": lower case letters, digits, '-' and '.', at most 253 bytes`}, 0},
		"bad CIDR":             {"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: s}\nspec: {cidrs: [x]}\n", []string{`f.yaml:4: ServiceCIDR s: spec.cidrs: "x": not a usable prefix, such as 10.244.1.0/24`}, 0},
		"in a List":            {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {name: ok}}\n- apiVersion: k8s.ovn.org/v1\n  kind: EgressService\n  metadata: {name: x}\n  spec: {network: []}\n", []string{`f.yaml:8: EgressService default/x: spec.network: a list, but a string is needed`}, 1},
		"other kinds":          {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: 5\n---\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: x}\n", nil, 0},
		"wrong case of a kind": {"apiVersion: k8s.ovn.org/v1\nkind: egressservice\nmetadata: {name: x}\n", []string{`f.yaml:2: Manifest f.yaml: kind: "egressservice": is passed over: this kind is not read; is EgressService of k8s.ovn.org/v1 meant?`}, 0},
		"plural":               {"apiVersion: v1\nkind: Services\nmetadata: {name: x}\n", []string{`f.yaml:2: Manifest f.yaml: kind: "Services": is passed over: this kind is not read; is Service of v1 meant?`}, 0},
		"wrong group":          {"apiVersion: egressway.io/v1\nkind: EgressService\nmetadata: {name: x}\n", []string{`f.yaml:1: Manifest f.yaml: apiVersion: "egressway.io/v1": EgressService x is passed over: EgressService is read as k8s.ovn.org/v1`}, 0},
		"no group":             {"kind: Service\nmetadata: {name: x}\n", []string{`f.yaml:1: Manifest f.yaml: apiVersion: Service x is passed over: Service is read as v1`}, 0},
		"former version":       {"apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: x}\n", []string{`f.yaml:1: Manifest f.yaml: apiVersion: "discovery.k8s.io/v1beta1": EndpointSlice x is passed over: EndpointSlice is read as discovery.k8s.io/v1`}, 0},
		"wrong family":         {"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: x, labels: {kubernetes.io/service-name: x}}\naddressType: IPv4\nendpoints:\n- addresses: [10.244.0.1, \"fd44::1\"]\n", []string{`f.yaml:6: EndpointSlice default/x: endpoints[0].addresses: "fd44::1": not of the slice's addressType, IPv4: left out; it belongs in a slice of its own`}, 0},
		"no such type":         {"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: x}\naddressType: ipv4\n", []string{`f.yaml:4: EndpointSlice default/x: addressType: "ipv4": one of IPv4, IPv6, FQDN`}, 0},
		"blank":                {"\n# nothing\n---\n---\n", nil, 0},
		"bomb":                 {"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n", []string{`f.yaml:1: Manifest f.yaml: not YAML: document contains excessive aliasing`}, 0},
		"control code":         {es("metadata: {name: \"a\\nb\\e[1m\"}\n"), []string{`f.yaml:3: EgressService default/a\nb\x1b[1m: metadata.name: "a\nb\x1b[1m": lower case letters, digits and '-', a letter or digit first and last`}, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := write(t, map[string]string{"f.yaml": test.text + "---" + good})
			o, problems := Read(dir)
			var got []string
			for _, p := range problems {
				got = append(got, strings.ReplaceAll(p.Error(), dir+"/", ""))
			}
			require.Equal(t, test.want, got)
			require.Contains(t, maps.Collect(o.EgressServices.All()), cluster.Key{Namespace: "default", Name: "good"})
			require.Len(t, maps.Collect(o.EgressServices.All()), test.count+1)
		})
	}
}

func TestFiles(t *testing.T) {
	dir := write(t, map[string]string{
		"1.json":    "{\n\t\"apiVersion\": \"k8s.ovn.org/v1\",\n\t\"kind\": \"EgressServiceList\",\n\t\"items\": [{\"apiVersion\": \"k8s.ovn.org/v1\", \"kind\": \"EgressService\", \"metadata\": {\"name\": \"j\", \"namespace\": \"n\", \"creationTimestamp\": \"2024-01-02T03:04:05Z\", \"generation\": 7}, \"status\": {\"host\": \"a\"}}]\n}\n",
		"2.yml":     strings.ReplaceAll(good, "\n", "\r\n"),
		"3.txt":     "a: [",
		".4.yaml":   "a: [",
		"5.yaml.sw": "a: [",
	})
	require.NoError(t, os.Mkdir(filepath.Join(dir, "6.yaml"), 0o700))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "7.yaml")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "8.yaml"), nil, 0o600))
	require.NoError(t, os.Truncate(filepath.Join(dir, "8.yaml"), maxSize+1))
	o, problems := Read(dir)
	var got []string
	for _, p := range problems {
		got = append(got, strings.ReplaceAll(p.Error(), dir+"/", ""))
	}
	require.Equal(t, []string{
		"6.yaml: Manifest 6.yaml: not a regular file",
		"7.yaml: Manifest 7.yaml: no such file or directory",
		"8.yaml: Manifest 8.yaml: larger than 32 MiB",
	}, got)
	require.Equal(t, map[cluster.Key]cluster.EgressService{
		{Namespace: "n", Name: "j"}: {
			SourceIPBy: cluster.SourceIPByLoadBalancer, Created: o.EgressServices.At(cluster.Key{Namespace: "n", Name: "j"}).Created, Status: cluster.Status{Host: "a"}, Generation: 7,
		},
		{Namespace: "default", Name: "good"}: {SourceIPBy: cluster.SourceIPByLoadBalancer},
	}, maps.Collect(o.EgressServices.All()))
	require.True(t, time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC).Equal(o.EgressServices.At(cluster.Key{Namespace: "n", Name: "j"}).Created))

	_, problems = Read(filepath.Join(dir, "none"))
	require.Len(t, problems, 1)
	require.Equal(t, cluster.ReasonNoFolder, problems[0].Reason)
}

func TestObjects(t *testing.T) {
	o, problems := Read(write(t, map[string]string{
		"a.yaml": `
apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {name: x}
spec: {sourceIPBy: Network, nodeSelector: {matchLabels: {Zone: A}}}
---
apiVersion: v1
kind: Service
metadata: {name: x}
spec:
  type: LoadBalancer
  clusterIP: None
  externalTrafficPolicy: Local
  ports: [{port: 53, protocol: UDP}, {port: 80, targetPort: web}]
status: {loadBalancer: {ingress: [{hostname: lb.example.com}, {ip: 203.0.113.1}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: x-1, labels: {kubernetes.io/service-name: x}}, addressType: IPv4,
 endpoints: [{addresses: [10.244.0.1], nodeName: a, conditions: {ready: false}}, {addresses: [10.244.0.2, 10.244.0.3]}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: x-2, labels: {kubernetes.io/service-name: x}}, addressType: IPv4,
 endpoints: [{addresses: [10.244.0.1], nodeName: a}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: x-3, labels: {kubernetes.io/service-name: x}}, addressType: FQDN,
 endpoints: [{addresses: [example.com]}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: z}, addressType: IPv4, endpoints: [{addresses: [10.244.0.9]}]}
---
{apiVersion: v1, kind: Node, metadata: {name: ready}, spec: {podCIDR: 10.244.0.0/24}, status: {addresses: [{type: InternalIP, address: 10.0.0.1}, {type: ExternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: unknown}, spec: {unschedulable: true}, status: {addresses: [{type: InternalIP, address: 10.0.0.2}], conditions: [{type: Ready, status: Unknown}]}}
`,
	}))
	require.Empty(t, problems)
	x := cluster.Key{Namespace: "default", Name: "x"}
	require.Equal(t, cluster.EgressService{
		SourceIPBy: cluster.SourceIPByNetwork, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"Zone": "A"}},
	}, o.EgressServices.At(x))
	require.Equal(t, cluster.Service{
		LoadBalancer: true, LocalTraffic: true,
		Ingress: []cluster.Ingress{{Hostname: "lb.example.com"}, {IP: "203.0.113.1"}},
		Ports:   []cluster.Port{{Protocol: "UDP", Port: 53, TargetPort: 53}, {Protocol: "TCP", Port: 80}},
	}, o.Services.At(x))
	require.Equal(t, map[cluster.Key][]cluster.Endpoint{x: {{Address: "10.244.0.1", Node: "a"}, {Address: "10.244.0.2"}, {Address: "10.244.0.3"}}}, maps.Collect(o.Endpoints.All()))
	require.True(t, o.Nodes.At("ready").Ready)
	require.Equal(t, addrs("10.0.0.1", "192.0.2.1"), o.Nodes.At("ready").Addresses)
	require.Equal(t, addrs("10.0.0.1"), o.Nodes.At("ready").Internal)
	require.False(t, o.Nodes.At("unknown").Ready)
	require.True(t, o.Nodes.At("unknown").Cordoned)
	require.False(t, o.Nodes.At("ready").Cordoned)
}

func TestWatch(t *testing.T) {
	dir := write(t, nil)
	woken := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Open(dir).Watch(ctx, func(bool) time.Duration { woken <- struct{}{}; return 0 }) }()
	<-woken
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f.yaml"), []byte(good), 0o600))
	<-woken
	_, problems := Read(dir)
	require.Empty(t, problems)
	cancel()
	require.NoError(t, <-done)
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Node}]\n---\n&a [*a]"))
	dir := f.TempDir() // one for all, since making it takes longer than reading its files
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "f.yaml"), data, 0o600))
		_, problems := Read(dir)
		for _, p := range problems {
			require.NotContains(t, p.Error(), "\n", fmt.Sprintf("%#v", p))
			require.True(t, strings.HasPrefix(p.Where, dir) || p.Kind == "Manifests", p.Where)
		}
	})
}

// TestJSONIsReadAsYAML checks that a text in JSON gives the same objects and problems whether it is read as JSON or, because of
// the comment before it, as YAML.
func TestJSONIsReadAsYAML(t *testing.T) {
	const service = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop", "labels": {"a": "1"}},
 "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "targetPort": "http"}], "clusterIP": "10.96.0.1"},
 "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}`
	var keys []string
	for i := range 2 * keysMost {
		keys = append(keys, fmt.Sprintf(`"k%d": "1"`, i))
	}
	manyKeys := strings.Join(keys, ", ")
	for name, text := range map[string]string{
		"service":       service,
		"list":          `{"apiVersion": "v1", "kind": "List", "items": [` + service + `, ` + strings.Replace(service, "web", "b\\u0061d name", 1) + `]}`,
		"repeated key":  strings.Replace(service, `"spec"`, `"kind": "Service", "spec"`, 1),
		"repeated deep": strings.Replace(service, `"port": 80`, `"port": 80, "port": 81`, 1),
		"unknown kind":  `{"apiVersion": "v1", "kind": "service", "metadata": {"name": "x"}}`,
		"wrong type":    strings.Replace(service, `"port": 80`, `"port": "eighty"`, 1),
		"large number":  strings.Replace(service, `"port": 80`, `"port": 4294967297`, 1),
		"fraction":      strings.Replace(service, `"port": 80`, `"port": 80.5`, 1),
		"exponent":      strings.Replace(service, `"port": 80`, `"port": 8e1`, 1),
		"no UTF-8":      strings.Replace(service, `"web"`, "\"w\xffb\"", 1),
		"minus zero":    strings.Replace(service, `"port": 80`, `"port": -0`, 1),
		"text of a key": strings.Replace(service, `"a": "1"`, `"a": "a", "b": "{\"a\": [1.5, \"a\"", "c\\": "\\"`, 1),
		"escaped key":   strings.Replace(service, `"spec"`, `"k\u0069nd": "Service", "spec"`, 1),
		"many keys":     strings.Replace(service, `"a": "1"`, manyKeys+`, "k7": "1"`, 1),
		"cut off":       service[:len(service)-1],
		"two":           service + service,
		"unknown field": `{"apiVersion": "k8s.ovn.org/v1", "kind": "EgressService", "metadata": {"name": "x"}, "spec": {"Network": "red"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			asJSON, asYAML := write(t, map[string]string{"f.yaml": text}), write(t, map[string]string{"f.yaml": "# YAML\n" + text})
			gotObjects, got := Read(asJSON)
			wantObjects, want := Read(asYAML)
			require.Equal(t, wantObjects, gotObjects)
			require.Len(t, got, len(want))
			for i := range want {
				got[i].Where, want[i].Where = "", "" // another line, in another folder
				require.Equal(t, want[i], got[i])
			}
		})
	}
}

// someJSON writes a random value in JSON, and reports whether plain must accept it.
func someJSON(r *rand.Rand, depth int) (text string, plain bool) {
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	words := []string{`"a"`, `"b"`, `""`, `"}"`, `"\\"`, `"\""`, `":"`, `"\u0061"`, `"80"`}
	space := pick("", " ", "\n\t")
	switch n := r.IntN(6); {
	case n == 0 && depth > 0:
		seen := map[string]bool{}
		var members []string
		plain = true
		for range r.IntN(4) {
			key := pick(words...)
			value, also := someJSON(r, depth-1)
			plain = plain && also && !seen[key] && !strings.Contains(key, `\`)
			seen[key] = true
			members = append(members, space+key+space+":"+space+value)
		}
		return "{" + strings.Join(members, space+",") + space + "}", plain
	case n == 1 && depth > 0:
		var elements []string
		plain = true
		for range r.IntN(4) {
			value, also := someJSON(r, depth-1)
			plain = plain && also
			elements = append(elements, space+value+space)
		}
		return "[" + strings.Join(elements, ",") + "]", plain
	case n == 2:
		text = pick("0", "-1", "80", "123456789012345678", "-0", "1.0", "8e1", "1E+2", "1234567890123456789", "123456789012345678901")
		return text, len(text) <= digitsMost && text != "-0" && !strings.ContainsAny(text, ".eE")
	default:
		return pick(append(words, "true", "false", "null")...), true
	}
}

// TestPlain checks that a text which counts as plain has no repeated keys, and stays the same when it is decoded and encoded.
func TestPlain(t *testing.T) {
	accepted := 0
	for seed := range uint64(20_000) {
		text, want := someJSON(rand.New(rand.NewPCG(seed, 0)), 5) //nolint:gosec // to be repeated
		is := plain([]byte(text))
		require.Equal(t, want, is, text)
		if !is {
			continue
		}
		accepted++
		var value, again any
		repeated, err := kjson.UnmarshalStrict([]byte(text), &value)
		require.NoError(t, err, text)
		require.Empty(t, repeated, text)
		encoded, err := json.Marshal(value)
		require.NoError(t, err)
		require.NoError(t, kjson.UnmarshalCaseSensitivePreserveInts(encoded, &again))
		require.Equal(t, value, again, text)
	}
	require.Greater(t, accepted, 1000)
}

// BenchmarkRead reads 1,000 Services of ten endpoints each, as YAML and as JSON.
func BenchmarkRead(b *testing.B) {
	var service, slice strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&service, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s%d"},"spec":{"type":"LoadBalancer","ports":[{"name":"http","port":80,"protocol":"TCP"}]}}`+"\n---\n", i)
		fmt.Fprintf(&slice, `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"s%d","labels":{"kubernetes.io/service-name":"s%[1]d"}},"addressType":"IPv4","endpoints":[`, i)
		for e := range 10 {
			fmt.Fprintf(&slice, `%s{"addresses":["10.%d.%d.%d"],"conditions":{"ready":true},"nodeName":"n%d","targetRef":{"kind":"Pod","name":"p"}}`, strings.Repeat(",", min(e, 1)), i/200, i%200, e, e)
		}
		slice.WriteString("]}\n---\n")
	}
	asJSON := "---\n" + service.String() + slice.String()
	for form, text := range map[string]string{"JSON": asJSON, "YAML": strings.ReplaceAll(asJSON, "---\n", "---\n# YAML\n")} {
		b.Run(form, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "f.yaml")
			require.NoError(b, os.WriteFile(path, []byte(text), 0o600))
			for b.Loop() {
				objects, _ := Read(filepath.Dir(path))
				require.Equal(b, 1000, objects.Services.Len())
			}
		})
	}
}
