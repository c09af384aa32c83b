package manifests

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
)

// strictness is how a bad rule counts.
type strictness int

const (
	left      strictness = iota // it allows nothing, and so has no effect
	denies                      // it denies what its other fields say
	deniesAll                   // it denies every destination
)

// TestReadEgressFirewalls reads objects with one fault each: the fault is named with its line, the rule counts as its strictest
// reading, and all other rules and objects are in force.
func TestReadEgressFirewalls(t *testing.T) {
	const allow, deny = "type: Allow, to: {cidrSelector: 203.0.113.0/24}", "type: Deny, to: {cidrSelector: 203.0.113.0/24}"
	bad := []struct {
		rule    string
		reads   strictness
		problem string
	}{
		{"{type: Allow, to: {cidrSelector: 203.0.113/24}}", left, `spec.egress[0].to.cidrSelector: "203.0.113/24": not a prefix: write one such as 203.0.113.0/24 or 2001:db8::/32; until then this rule allows nothing`},
		{"{type: Deny, to: {cidrSelector: 203.0.113/24}}", deniesAll, "until then this rule denies every destination"},
		{"{type: Deny, to: {cidrSelector: x}, ports: [{protocol: TCP, port: 80}]}", deniesAll, "until then this rule denies its ports of every destination"},
		{"{type: Allow, to: {cidrSelector: 10.1.2.3}}", left, "not a prefix: write 10.1.2.3/32"},
		{"{type: Deny, to: {cidrSelector: 10.0.0.0/255.0.0.0}}", deniesAll, "not a prefix: write 10.0.0.0/8"},
		{`{type: Deny, to: {cidrSelector: "::ffff:10.0.0.0/104"}}`, deniesAll, "write 10.0.0.0/8"},
		{"{type: Allow, to: {cidrSelector: 10.0.0.0/33}}", left, "not a prefix"},
		{`{type: Allow, to: {cidrSelector: "2001:db8::1/129"}}`, left, "not a prefix"},
		{"{type: Allow, to: {cidrSelector: web.example.com}}", left, "not a prefix"},
		{"{type: Allow, to: {cidrSelector: 5}}", left, `spec.egress[0].to.cidrSelector: "5": a number, but a string is needed; until then this rule allows nothing`},
		{"{type: Deny, to: {cidrSelector: [10.0.0.0/8]}}", deniesAll, "a list, but a string is needed"},
		{"{type: Deny, to: {cidrSelector: 203.0.113.9/24}}", denies, `has bits beyond its length, and counts as 203.0.113.0/24`},
		{`{type: Allow, to: {cidrSelector: ""}}`, left, "spec.egress[0].to: exactly one of cidrSelector, nodeSelector, dnsName"},
		{"{type: Allow, to: {}}", left, "exactly one of cidrSelector, nodeSelector, dnsName"},
		{"{type: Deny, to: {}}", deniesAll, "exactly one of cidrSelector, nodeSelector, dnsName"},
		{"{type: Deny}", deniesAll, "exactly one of"},
		{"{type: Allow}", left, "exactly one of"},
		{"{type: Allow, to: {cidrSelector: 10.0.0.0/8, dnsName: a.example.com}}", left, "exactly one of"},
		{"{type: Deny, to: {cidrSelector: 10.0.0.0/8, nodeSelector: {}}}", deniesAll, "exactly one of"},
		{"{type: Allow, to: {dnsName: a..example.com}}", left, `spec.egress[0].to.dnsName: "a..example.com": not a label of a DNS name: "". A label has 1 to 63 letters`},
		{"{type: Deny, to: {dnsName: -a.example.com}}", deniesAll, `not a label of a DNS name: "-a"`},
		{`{type: Deny, to: {dnsName: "a.*.example.com"}, ports: [{protocol: UDP, port: 443}]}`, deniesAll, "until then this rule denies its ports of every destination"},
		{`{type: Allow, to: {dnsName: "*.*.example.com"}}`, left, `"*." may stand for the first one`},
		{`{type: Allow, to: {dnsName: "*"}}`, left, "not a label"},
		{`{type: Allow, to: {dnsName: "*."}}`, left, "not a label"},
		{`{type: Allow, to: {dnsName: "."}}`, left, "spec.egress[0].to.dnsName"},
		{"{type: Deny, to: {dnsName: bücher.example}}", deniesAll, "a name with other letters is written in its xn-- form"},
		{"{type: Allow, to: {dnsName: 192.0.2.7}}", left, "an address belongs into cidrSelector"},
		{`{type: Allow, to: {dnsName: "2001:db8::7"}}`, left, "an address belongs into cidrSelector"},
		{"{type: Allow, to: {dnsName: www.example.com:443}}", left, "not a label of a DNS name"},
		{"{type: Deny, to: {dnsName: 'https://www.example.com'}}", deniesAll, "not a label of a DNS name"},
		{"{type: Deny, to: {dnsName: 'www.example.com '}}", deniesAll, "not a label of a DNS name"},
		{"{type: Allow, to: {dnsName: 10}}", left, "a number, but a string is needed"},
		{"{type: Allow, to: {dnsName: " + strings.Repeat("a", 64) + ".example}}", left, "1 to 63 letters"},
		{"{type: Allow, to: {dnsName: " + strings.Repeat("abcdefg.", 32) + "x}}", left, "a DNS name has at most 253 bytes, this one has 257"},
		{"{type: Allow, to: {nodeSelector: {matchExpressions: [{key: a, operator: Is}]}}}", left, "spec.egress[0].to.nodeSelector: not a label selector"},
		{`{type: Deny, to: {nodeSelector: {matchLabels: {"not a key": x}}}}`, deniesAll, "not a label selector"},
		{"{type: Deny, to: {nodeSelector: {matchLabels: {rack: 7}}}}", deniesAll, "spec.egress[0].to.nodeSelector.matchLabels"},
		{"{type: Allow, to: {nodeSelector: rack}}", left, "a string, but a mapping is needed"},
		{"{type: Deny, to: 10.0.0.0/8}", deniesAll, `spec.egress[0].to: "10.0.0.0/8": a string, but a mapping is needed`},
		{"{type: allow, to: {cidrSelector: 203.0.113.0/24}}", denies, `spec.egress[0].type: "allow": one of Allow, Deny: this rule counts as Deny`},
		{"{type: Reject, to: {cidrSelector: 203.0.113.0/24}}", denies, "this rule counts as Deny"},
		{"{to: {cidrSelector: 203.0.113.0/24}}", denies, "spec.egress[0].type: one of Allow, Deny"},
		{"{type: 1, to: {cidrSelector: 203.0.113.0/24}}", denies, `spec.egress[0].type: "1": a number, but a string is needed; one of Allow, Deny: this rule counts as Deny`},
		{"{" + allow + ", ports: [{protocol: tcp, port: 80}]}", left, `spec.egress[0].ports[0].protocol: "tcp": one of TCP, UDP, SCTP; until then this rule allows nothing`},
		{"{" + deny + ", ports: [{protocol: ICMP, port: 80}]}", denies, "until then this rule denies every port of its destination"},
		{"{" + deny + ", ports: [{port: 80}]}", denies, "spec.egress[0].ports[0].protocol: one of TCP, UDP, SCTP"},
		{"{" + allow + ", ports: [{protocol: TCP}]}", left, `spec.egress[0].ports[0].port: "0": a number from 1 to 65535`},
		{"{" + allow + ", ports: [{protocol: TCP, port: 443}, {protocol: TCP, port: 65536}]}", left, `spec.egress[0].ports[1].port: "65536"`},
		{"{" + deny + ", ports: [{protocol: TCP, port: -1}]}", denies, `"-1": a number from 1 to 65535`},
		{`{` + allow + `, ports: [{protocol: TCP, port: "443"}]}`, left, `a string, but a number is needed; until then this rule allows nothing`},
		{"{" + deny + ", ports: [{protocol: TCP, port: 443-445}]}", denies, "a string, but a number is needed; until then this rule denies everything that its other fields say"},
		{"{" + allow + ", ports: 443}", left, "spec.egress[0].ports: \"443\": a number, but a list is needed"},
		{"Deny", deniesAll, `spec.egress[0]: "Deny": a string, but a mapping is needed; until then this rule denies every destination`},
		{"[]", deniesAll, "spec.egress[0]: a list, but a mapping is needed"},
	}
	require.GreaterOrEqual(t, len(bad), 40)
	var file strings.Builder
	namespace := func(i int) string { return fmt.Sprint("team-", i) }
	for i, b := range bad {
		fmt.Fprintf(&file, "---\napiVersion: k8s.ovn.org/v1\nkind: EgressFirewall\nmetadata: {namespace: %s, name: default}\nspec:\n  egress:\n  - %s\n  - {type: Allow, to: {cidrSelector: 192.0.2.0/24}}\n", namespace(i), b.rule)
	}
	file.WriteString(`---
{apiVersion: k8s.ovn.org/v1, kind: EgressFirewall, metadata: {namespace: gold, name: gold}, spec: {egress: []}}
---
{apiVersion: k8s.ovn.org/v2, kind: EgressFirewall, metadata: {namespace: new, name: default}, spec: {egress: []}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressFirewall, metadata: {namespace: bare, name: default}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressFirewall, metadata: {namespace: map, name: default}, spec: {egress: {type: Deny}}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressFirewall, metadata: {namespace: word, name: default}, spec: deny}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressFirewall, metadata: {namespace: Upper, name: default}, spec: {egress: []}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressFirewall, metadata: {namespace: typo, name: default}, spec: {egress: [{type: Deny, to: {cidrSelector: 10.0.0.0/8}, port: 5}]}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressFirewall, metadata: {namespace: none, name: default}, spec: {egress: []}}
---
{apiVersion: k8s.ovn.org/v1, kind: EgressFirewall, metadata: {namespace: good, name: default}, spec: {egress: [{type: Deny, to: {cidrSelector: "::/0"}}, {type: Allow, to: {nodeSelector: {}}, ports: [{protocol: SCTP, port: 9}]}]}}
`)
	o, problems := Read(write(t, map[string]string{"firewall.yaml": file.String()}))
	of := map[string][]string{}
	for _, p := range problems {
		require.Equal(t, "firewall.yaml", filepath.Base(strings.Split(p.Where, ":")[0]))
		of[p.Object] = append(of[p.Object], p.Error())
	}
	for i, b := range bad {
		key := cluster.Key{Namespace: namespace(i), Name: "default"}
		e := o.EgressFirewalls.At(key)
		require.NotEmpty(t, of[key.String()], b.rule)
		require.Contains(t, strings.Join(of[key.String()], "\n"), b.problem, b.rule)
		require.Contains(t, of[key.String()][0], "EgressFirewall "+key.String()+": ")
		require.Equal(t, 2, e.Rules[len(e.Rules)-1].Number, b.rule)
		if b.reads == left {
			require.Len(t, e.Rules, 1, b.rule)
			continue
		}
		require.Len(t, e.Rules, 2, b.rule)
		require.True(t, e.Rules[0].Deny, b.rule)
		require.Equal(t, b.reads == denies, e.Rules[0].To.IsValid(), b.rule)
		require.Nil(t, e.Rules[0].Nodes, b.rule)
	}
	for object, problem := range map[string]string{
		"gold/gold": `metadata.name: "gold": a namespace has one EgressFirewall, named default`, "default": `apiVersion: "k8s.ovn.org/v2": k8s.ovn.org/v1 is known`,
		"bare/default": "spec.egress: missing: a list of rules", "map/default": "spec.egress: a mapping, but a list is needed: until then every connection to outside of the cluster is denied",
		"word/default": `spec: "deny": a string, but a mapping is needed`, "Upper/default": `metadata.namespace: "Upper": lower case letters`, "typo/default": "spec.egress[0].port: unknown field, ignored",
	} {
		require.Contains(t, strings.Join(of[object], "\n"), problem, object)
	}
	for _, namespace := range []string{"bare", "map", "word"} {
		require.Equal(t, cluster.DenyAll(), o.EgressFirewalls.At(cluster.Key{Namespace: namespace, Name: "default"}), namespace)
	}
	none, is := o.EgressFirewalls.Get(cluster.Key{Namespace: "none", Name: "default"})
	require.True(t, is)
	require.Empty(t, none.Rules)
	good := o.EgressFirewalls.At(cluster.Key{Namespace: "good", Name: "default"})
	require.Empty(t, of["good/default"])
	require.Len(t, good.Rules, 2)
	require.True(t, good.Rules[1].Nodes.Matches(labels.Set{}))
	require.Equal(t, []cluster.FirewallPort{{Protocol: 132, Number: 9}}, good.Rules[1].Ports)
	require.Equal(t, "Deny ::/0", good.Rules[0].Text)
}

// TestTooManyFirewallRules expects rules beyond the bound to count as one Deny of everything.
func TestTooManyFirewallRules(t *testing.T) {
	rules := strings.Repeat("  - {type: Allow, to: {cidrSelector: 203.0.113.0/24}}\n", cluster.MostFirewallRules+5)
	o, problems := Read(write(t, map[string]string{"firewall.yaml": "apiVersion: k8s.ovn.org/v1\nkind: EgressFirewall\nmetadata: {namespace: shop, name: default}\nspec:\n  egress:\n" + rules}))
	e := o.EgressFirewalls.At(cluster.Key{Namespace: "shop", Name: "default"})
	require.Len(t, problems, 1)
	require.Equal(t, cluster.ReasonTooManyRules, problems[0].Reason)
	require.Len(t, e.Rules, cluster.MostFirewallRules+1)
	require.True(t, e.Rules[cluster.MostFirewallRules].Deny)
	require.Equal(t, cluster.MostFirewallRules+5, e.Given)
}
