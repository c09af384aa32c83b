package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
)

const goodEgressIP = `apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: good}
spec:
  egressIPs: [203.0.113.33, "2001:db8::33"]
  namespaceSelector: {matchLabels: {env: prod}}
`

func TestReadEgressIPs(t *testing.T) {
	dir := write(t, map[string]string{"eip.yaml": goodEgressIP + `status:
  items: [{egressIP: 203.0.113.33, node: a, standby: b, term: 2}]
---
apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: bad}
spec:
  egressIPs:
  - 203.0.113.34
  - 203.0.113.35/32
  namespaceSelector: {}
  podSelecter: {matchLabels: {app: web}}
---
apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: everywhere}
spec:
  egressIPs: [203.0.113.36]
---
{apiVersion: k8s.ovn.org/v2, kind: EgressIP, metadata: {name: new}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressIP, metadata: {name: Upper}, spec: {egressIPs: [203.0.113.37], namespaceSelector: {}}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressIP, metadata: {name: list}, spec: {egressIPs: 203.0.113.38, namespaceSelector: {}}}
---
{apiVersion: k8s.ovn.org/v1, kind: egressips, metadata: {name: plural}}
`})
	o, problems := Read(dir)
	good := o.EgressIPs.At(cluster.Key{Name: "good"})
	require.Equal(t, addrs("203.0.113.33", "2001:db8::33"), good.Addresses)
	require.True(t, good.Selects(labels.Set{"env": "prod"}))
	require.Equal(t, cluster.Holder{Addr: good.Addresses[0], Host: "a", Standby: "b", Term: 2}, good.Holder(good.Addresses[0]))
	require.Equal(t, addrs("203.0.113.34"), o.EgressIPs.At(cluster.Key{Name: "bad"}).Addresses, "the rest of an object is served")
	require.Equal(t, 2, o.EgressIPs.Len())
	var texts []string
	for _, p := range problems {
		texts = append(texts, strings.TrimPrefix(p.Error(), dir+"/"))
	}
	require.Equal(t, []string{
		`eip.yaml:18: EgressIP bad: spec.podSelecter: unknown field, ignored`,
		`eip.yaml:16: EgressIP bad: spec.egressIPs[1]: "203.0.113.35/32": not an IP address: write the address alone, 203.0.113.35`,
	}, texts[:2])
	require.Contains(t, problems[2].Error(), "EgressIP everywhere: spec.namespaceSelector: missing: labels of the namespaces whose pods are selected; "+
		"{} selects every namespace")
	require.Contains(t, problems[3].Error(), "EgressIP new: apiVersion: \"k8s.ovn.org/v2\": k8s.ovn.org/v1 is known")
	require.Contains(t, problems[4].Error(), "EgressIP Upper: metadata.name")
	require.Contains(t, problems[5].Error(), "EgressIP list: spec.egressIPs: ")
	require.Contains(t, problems[6].Error(), "is EgressIP of k8s.ovn.org/v1 meant?")
}

// TestEgressIPChanges expects a change of an EgressIP to concern that object alone.
func TestEgressIPChanges(t *testing.T) {
	dir := write(t, map[string]string{"eip.yaml": goodEgressIP})
	f := Open(dir)
	_, changed, _ := f.Read()
	require.True(t, changed.All)
	_, changed, _ = f.Read()
	require.True(t, changed.Empty())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "eip.yaml"), []byte(goodEgressIP+"  podSelector: {matchLabels: {app: web}}\n"), 0o600))
	o, changed, problems := f.Read()
	require.Empty(t, problems)
	var want cluster.Changed
	want.Add(cluster.KindEgressIP.ID(cluster.Key{Name: "good"}))
	require.Equal(t, want, changed)
	require.False(t, o.EgressIPs.At(cluster.Key{Name: "good"}).Pods.Matches(labels.Set{}))
}
