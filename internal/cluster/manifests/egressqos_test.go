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

const goodEgressQoS = `apiVersion: k8s.ovn.org/v1
kind: EgressQoS
metadata: {namespace: shop, name: default}
spec:
  egress:
  - {dscp: 46, dstCIDR: 203.0.113.0/24, podSelector: {matchLabels: {app: web}}}
  - dscp: 0
`

// TestReadEgressQoSes reads objects with one fault each: the fault is named with its line, and all other rules and objects are served.
func TestReadEgressQoSes(t *testing.T) {
	object := func(namespace, rule string) string {
		return "---\napiVersion: k8s.ovn.org/v1\nkind: EgressQoS\nmetadata: {namespace: " + namespace + ", name: default}\nspec:\n  egress:\n  - " + rule + "\n  - {dscp: 1}\n"
	}
	bad := []struct{ namespace, rule, problem string }{
		{"text", `{dscp: "46"}`, `spec.egress[0].dscp: "46": a number from 0 to 63, such as 46 for expedited forwarding: this rule is left out`},
		{"class", "{dscp: EF}", `spec.egress[0].dscp: "EF": a number from 0 to 63`},
		{"half", "{dscp: 1.5}", `spec.egress[0].dscp: "1.5": a number from 0 to 63`},
		{"bool", "{dscp: true}", `spec.egress[0].dscp: "true": a number from 0 to 63`},
		{"listed", "{dscp: [46]}", "spec.egress[0].dscp: a number from 0 to 63"},
		{"missing", "{dstCIDR: 10.0.0.0/8}", "spec.egress[0].dscp: missing: a number from 0 to 63"},
		{"nothing", "{dscp: null}", "spec.egress[0].dscp: missing: a number"},
		{"large", "{dscp: 99999999999999999999}", `spec.egress[0].dscp: "99999999999999999999": a number`},
		{"above", "{dscp: 64}", `spec.egress[0].dscp: "64": a number from 0 to 63`},
		{"below", "{dscp: -1}", `spec.egress[0].dscp: "-1": a number from 0 to 63`},
		{"number", "{dscp: 4, dstCIDR: 10}", `spec.egress[0].dstCIDR: "10": a number, but a string is needed: this rule is left out`},
		{"several", "{dscp: 4, dstCIDR: [10.0.0.0/8]}", "spec.egress[0].dstCIDR: a list, but a string is needed"},
		{"address", "{dscp: 4, dstCIDR: 10.1.2.3}", `spec.egress[0].dstCIDR: "10.1.2.3": not a prefix: write 10.1.2.3/32; this rule is left out`},
		{"mask", "{dscp: 4, dstCIDR: 10.0.0.0/255.0.0.0}", `not a prefix: write 10.0.0.0/8`},
		{"name", "{dscp: 4, dstCIDR: example.com}", "not a prefix: write one such as 203.0.113.0/24 or 2001:db8::/32"},
		{"empty", `{dscp: 4, dstCIDR: ""}`, "spec.egress[0].dstCIDR: not a prefix"},
		{"mapped", `{dscp: 4, dstCIDR: "::ffff:10.0.0.0/104"}`, "write 10.0.0.0/8"},
		{"selector", "{dscp: 4, podSelector: web}", `spec.egress[0].podSelector: "web": a string, but a mapping is needed`},
		{"labels", "{dscp: 4, podSelector: {matchLabels: [web]}}", "spec.egress[0].podSelector.matchLabels: a list, but a mapping is needed"},
		{"label", "{dscp: 4, podSelector: {matchLabels: {app: 7}}}", "spec.egress[0].podSelector.matchLabels"},
		{"operator", "{dscp: 4, podSelector: {matchExpressions: [{key: app, operator: Is}]}}", "spec.egress[0].podSelector: not a label selector, so no pod is selected"},
		{"rule", "46", `spec.egress[0]: "46": a number, but a mapping is needed: this rule is left out`},
		{"string", "dscp", `spec.egress[0]: "dscp": a string, but a mapping is needed`},
		{"nested", "[{dscp: 4}]", "spec.egress[0]: a list, but a mapping is needed"},
	}
	file := goodEgressQoS
	for _, b := range bad {
		file += object(b.namespace, b.rule)
	}
	file += `---
{apiVersion: k8s.ovn.org/v1, kind: EgressQoS, metadata: {namespace: gold, name: gold}, spec: {egress: [{dscp: 1}]}}
---
{apiVersion: k8s.ovn.org/v2, kind: EgressQoS, metadata: {namespace: new, name: default}, spec: {egress: [{dscp: 1}]}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressQoS, metadata: {namespace: bare, name: default}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressQoS, metadata: {namespace: map, name: default}, spec: {egress: {dscp: 1}}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressQoS, metadata: {namespace: Upper, name: default}, spec: {egress: [{dscp: 1}]}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressQoSs, metadata: {namespace: plural, name: default}, spec: {egress: [{dscp: 1}]}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressQoS, metadata: {namespace: typo, name: default}, spec: {egress: [{dscp: 1, dstCidr: 10.0.0.0/8}]}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressQoS, metadata: {namespace: shop, name: default}, spec: {egress: [{dscp: 1}]}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressQoS, metadata: {namespace: none, name: default}, spec: {egress: []}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressQoS, metadata: {name: default}, spec: {egress: [{dscp: 1, dstCIDR: 10.1.2.3/8}]}}
`
	dir := write(t, map[string]string{"qos.yaml": file})
	o, problems := Read(dir)
	of := map[string][]string{}
	for _, p := range problems {
		require.Equal(t, "qos.yaml", filepath.Base(strings.Split(p.Where, ":")[0]))
		of[p.Object] = append(of[p.Object], p.Error())
	}
	for _, b := range bad {
		key := cluster.Key{Namespace: b.namespace, Name: "default"}
		require.Len(t, o.EgressQoSes.At(key).Rules, 1, "%v", b)
		require.Len(t, of[key.String()], 1, "%v", b)
		require.Contains(t, of[key.String()][0], "EgressQoS "+key.String()+": ")
		require.Contains(t, of[key.String()][0], b.problem)
	}
	for object, problem := range map[string]string{
		"gold/gold":    `metadata.name: "gold": a namespace has one EgressQoS, named default`,
		"default":      `apiVersion: "k8s.ovn.org/v2": k8s.ovn.org/v1 is known`,
		"bare/default": "spec.egress: missing: a list of rules, such as [{dscp: 46}]",
		"map/default":  "spec.egress: a mapping, but a list is needed", "Upper/default": `metadata.namespace: "Upper": lower case letters`,
		"qos.yaml": "is EgressQoS of k8s.ovn.org/v1 meant?", "typo/default": "spec.egress[0].dstCidr: unknown field, ignored",
		"shop/default": "is given twice: the first counts", "default/default": `"10.1.2.3/8": has bits beyond its length, and counts as 10.0.0.0/8`,
	} {
		require.Len(t, of[object], 1, object)
		require.Contains(t, of[object][0], problem)
		delete(of, object)
	}
	require.Len(t, of, len(bad), "no other problems")
	good := o.EgressQoSes.At(cluster.Key{Namespace: "shop", Name: "default"})
	require.Len(t, good.Rules, 2)
	require.Equal(t, uint8(46), good.Rules[0].DSCP)
	require.False(t, good.Rules[0].Pods.Matches(labels.Set{"app": "db"}))
	require.Len(t, o.EgressQoSes.At(cluster.Key{Namespace: "typo", Name: "default"}).Rules, 1)
	require.Equal(t, len(bad)+4, o.EgressQoSes.Len())
}

// TestEgressQoSChanges expects a change of an EgressQoS to concern that object alone.
func TestEgressQoSChanges(t *testing.T) {
	dir := write(t, map[string]string{"qos.yaml": goodEgressQoS})
	f := Open(dir)
	_, changed, _ := f.Read()
	require.True(t, changed.All)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "qos.yaml"), []byte(strings.Replace(goodEgressQoS, "46", "26", 1)), 0o600))
	o, changed, problems := f.Read()
	require.Empty(t, problems)
	key := cluster.Key{Namespace: "shop", Name: "default"}
	var want cluster.Changed
	want.Add(cluster.KindEgressQoS.ID(key))
	require.Equal(t, want, changed)
	require.Equal(t, uint8(26), o.EgressQoSes.At(key).Rules[0].DSCP)
}
