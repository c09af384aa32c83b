package kube

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
)

// badObject is a fault of an object: its first rule, or its spec or name as a whole.
type badObject struct {
	rule      string // the first rule
	reading   string // the text of the rule that it counts as; empty: of none
	field     string // of the problem, after spec.egress[0]
	cure      string // part of the problem's message
	spec      string // in place of rules
	name      string // in place of default
	namespace string
}

// all is the reading of a rule that denies every destination.
const all = "all"

// object returns the object with a number. A good rule follows the bad one.
func (b *badObject) object(n int, good string) *custom.Object {
	o := &custom.Object{Spec: []byte(b.spec)}
	if b.rule != "" {
		o.Spec = []byte(`{"egress": [` + b.rule + `, ` + good + `]}`)
	}
	o.Namespace, o.Name = fmt.Sprintf("bad-%d", n), "default"
	if b.name != "" {
		o.Name = b.name
	}
	if b.namespace != "" {
		o.Namespace = b.namespace
	}
	return o
}

// requireProblem fails unless the object has one problem, about the field and with the cure.
func (b *badObject) requireProblem(t *testing.T, kind cluster.Kind, o *custom.Object, problems []cluster.Problem) {
	t.Helper()
	key := cluster.Key{Namespace: o.Namespace, Name: o.Name}
	var of []cluster.Problem
	for _, p := range problems {
		if p.Object == key.String() {
			of = append(of, p)
		}
	}
	require.Len(t, of, 1, "%+v of %s", of, o.Spec)
	require.Equal(t, kind.String(), of[0].Kind)
	field := b.field
	if b.rule != "" {
		field = "spec.egress[0]" + b.field
	}
	require.Equal(t, field, of[0].Field, "%s", o.Spec)
	require.Contains(t, of[0].Message, b.cure, "%s", o.Spec)
	require.NotEmpty(t, b.cure)
	require.NotContains(t, of[0].Message, "json")
}

// badFirewalls are the faults that an EgressFirewall may have.
var badFirewalls = []badObject{
	// The object.
	{reading: all, field: "spec.egress", cure: "a list of rules, such as [{type: Deny"},
	{spec: `null`, reading: all, field: "spec.egress", cure: "a list of rules, such as"},
	{spec: `{}`, reading: all, field: "spec.egress", cure: "a list of rules, such as"},
	{spec: `{"egress": null}`, reading: all, field: "spec.egress", cure: "a list of rules, such as"},
	{spec: `{"Egress": []}`, reading: all, field: "spec.egress", cure: "a list of rules, such as"},
	{spec: `"deny"`, reading: all, field: "spec", cure: "until then every connection to outside of the cluster is denied"},
	{spec: `[]`, reading: all, field: "spec", cure: "until then every connection to outside of the cluster is denied"},
	{spec: `{"egress": {"type": "Deny"}}`, reading: all, field: "spec", cure: "until then every connection to outside of the cluster is denied"},
	{spec: `{"egress": "Deny"}`, reading: all, field: "spec", cure: "until then every connection to outside of the cluster is denied"},
	{spec: `{"egress": []}`, name: "other", field: "metadata.name", cure: "a namespace has one EgressFirewall, named default"},
	{spec: `{"egress": []}`, namespace: "Shop", field: "metadata.namespace", cure: "lower case letters, digits and '-'"},
	// Rules.
	{rule: `7`, reading: all, cure: "cannot be read: number, where an object belongs; until then this rule denies every destination"},
	{rule: `"Deny"`, reading: all, cure: "until then this rule denies every destination"},
	{rule: `[]`, reading: all, cure: "until then this rule denies every destination"},
	{rule: `{"to": {"cidrSelector": "10.0.0.0/8"}}`, reading: "Deny 10.0.0.0/8", field: ".type", cure: "one of Allow, Deny"},
	// Types.
	{rule: `{"type": 1, "to": {"cidrSelector": "10.0.0.0/8"}}`, reading: "Deny 10.0.0.0/8", field: ".type", cure: "one of Allow, Deny: this rule counts as Deny"},
	{rule: `{"type": "deny", "to": {"cidrSelector": "10.0.0.0/8"}}`, reading: "Deny 10.0.0.0/8", field: ".type", cure: "one of Allow, Deny: this rule counts as Deny"},
	{rule: `{"type": "Allow ", "to": {"cidrSelector": "10.0.0.0/8"}}`, reading: "Deny 10.0.0.0/8", field: ".type", cure: "one of Allow, Deny: this rule counts as Deny"},
	{rule: `{"type": "Allowed", "to": {"cidrSelector": "10.0.0.0/8"}}`, reading: "Deny 10.0.0.0/8", field: ".type", cure: "one of Allow, Deny: this rule counts as Deny"},
	{rule: `{"type": "", "to": {"cidrSelector": "10.0.0.0/8"}}`, reading: "Deny 10.0.0.0/8", field: ".type", cure: "one of Allow, Deny: this rule counts as Deny"},
	{rule: `{"type": ["Deny"], "to": {"cidrSelector": "10.0.0.0/8"}}`, reading: "Deny 10.0.0.0/8", field: ".type", cure: "one of Allow, Deny: this rule counts as Deny"},
	// Ports.
	{rule: `{"type": "Allow", "ports": 443, "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports", cure: "until then this rule allows nothing"},
	{rule: `{"type": "Deny", "ports": 443, "to": {"cidrSelector": "10.0.0.0/8"}}`, reading: "Deny 10.0.0.0/8 (cannot be read)", field: ".ports", cure: "until then this rule denies everything that its other fields say"},
	{rule: `{"type": "Allow", "ports": [443], "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports", cure: "until then this rule allows nothing"},
	{rule: `{"type": "Allow", "ports": {"protocol": "TCP", "port": 443}, "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports", cure: "until then this rule allows nothing"},
	{rule: `{"type": "Allow", "ports": [{"protocol": "TCP", "port": "https"}], "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports", cure: "string at port, where a whole number of 32 bits belongs; until then this rule allows nothing"},
	{rule: `{"type": "Allow", "ports": [{"protocol": "TCP", "port": 4.5}], "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports", cure: "until then this rule allows nothing"},
	{rule: `{"type": "Allow", "ports": [{"protocol": "TCP", "port": 4294967739}], "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports", cure: "until then this rule allows nothing"},
	{rule: `{"type": "Allow", "ports": [{"protocol": "TCP"}], "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports[0].port", cure: "a number from 1 to 65535; until then this rule allows nothing"},
	{rule: `{"type": "Allow", "ports": [{"protocol": "TCP", "port": 0}], "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports[0].port", cure: "a number from 1 to 65535"},
	{rule: `{"type": "Allow", "ports": [{"protocol": "TCP", "port": -1}], "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports[0].port", cure: "a number from 1 to 65535"},
	{rule: `{"type": "Allow", "ports": [{"protocol": "TCP", "port": 65536}], "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports[0].port", cure: "a number from 1 to 65535"},
	{rule: `{"type": "Allow", "ports": [{"protocol": "tcp", "port": 443}], "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports[0].protocol", cure: "one of TCP, UDP, SCTP"},
	{rule: `{"type": "Allow", "ports": [{"protocol": "ICMP", "port": 8}], "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports[0].protocol", cure: "one of TCP, UDP, SCTP"},
	{rule: `{"type": "Allow", "ports": [{"port": 443}], "to": {"cidrSelector": "10.0.0.0/8"}}`, field: ".ports[0].protocol", cure: "one of TCP, UDP, SCTP"},
	{rule: `{"type": "Deny", "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "DNS", "port": 53}], "to": {"cidrSelector": "10.0.0.0/8"}}`, reading: "Deny 10.0.0.0/8 udp/53, dns/53 (cannot be read)", field: ".ports[1].protocol", cure: "one of TCP, UDP, SCTP; until then this rule denies every port of its destination"},
	// Destinations.
	{rule: `{"type": "Allow"}`, field: ".to", cure: "exactly one of cidrSelector, nodeSelector, dnsName; until then this rule allows nothing"},
	{rule: `{"type": "Deny", "to": {}}`, reading: all, field: ".to", cure: "exactly one of cidrSelector, nodeSelector, dnsName; until then this rule denies every destination"},
	{rule: `{"type": "Deny", "to": null}`, reading: all, field: ".to", cure: "exactly one of cidrSelector, nodeSelector, dnsName"},
	{rule: `{"type": "Allow", "to": "10.0.0.0/8"}`, field: ".to", cure: "until then this rule allows nothing"},
	{rule: `{"type": "Deny", "to": ["10.0.0.0/8"]}`, reading: all, field: ".to", cure: "until then this rule denies"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": 10}}`, reading: all, field: ".to", cure: "until then this rule denies"},
	{rule: `{"type": "Deny", "to": {"cidrSelectors": "10.0.0.0/8"}}`, reading: all, field: ".to", cure: "exactly one of cidrSelector, nodeSelector, dnsName"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": "10.0.0.0/8", "dnsName": "a.example.com"}}`, reading: all, field: ".to", cure: "exactly one of cidrSelector, nodeSelector, dnsName"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": "10.0.0.0/8", "nodeSelector": {}}}`, reading: all, field: ".to", cure: "exactly one of cidrSelector, nodeSelector, dnsName"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": "10.0.0.1"}}`, reading: all, field: ".to.cidrSelector", cure: "write 10.0.0.1/32"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": "2001:db8::1"}}`, reading: all, field: ".to.cidrSelector", cure: "write 2001:db8::1/128"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": " 10.0.0.0/8"}}`, reading: all, field: ".to.cidrSelector", cure: "write 10.0.0.0/8"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": "10.0.0.0/255.0.0.0"}}`, reading: all, field: ".to.cidrSelector", cure: "write 10.0.0.0/8"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": "10.0.0.0/33"}}`, reading: all, field: ".to.cidrSelector", cure: "write one such as 203.0.113.0/24"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": "10.0.0.0-10.0.0.9"}}`, reading: all, field: ".to.cidrSelector", cure: "write one such as 203.0.113.0/24"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": "010.0.0.0/8"}}`, reading: all, field: ".to.cidrSelector", cure: "write one such as 203.0.113.0/24"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": "all"}}`, reading: all, field: ".to.cidrSelector", cure: "write one such as 203.0.113.0/24"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": "::ffff:10.0.0.0/104"}}`, reading: all, field: ".to.cidrSelector", cure: "write 10.0.0.0/8"},
	{rule: `{"type": "Deny", "to": {"cidrSelector": "10.0.0.1/8"}}`, reading: "Deny 10.0.0.1/8", field: ".to.cidrSelector", cure: "counts as 10.0.0.0/8: write that"},
	{rule: `{"type": "Allow", "to": {"cidrSelector": "10.0.0.1"}}`, field: ".to.cidrSelector", cure: "write 10.0.0.1/32; until then this rule allows nothing"},
	{rule: `{"type": "Deny", "to": {"nodeSelector": "rack=1"}}`, reading: all, field: ".to", cure: "until then this rule denies"},
	{rule: `{"type": "Deny", "to": {"nodeSelector": {"matchExpressions": [{"key": "rack", "operator": "Like"}]}}}`, reading: all, field: ".to.nodeSelector", cure: "not a label selector"},
	{rule: `{"type": "Deny", "to": {"nodeSelector": {"matchExpressions": [{"key": "rack", "operator": "In"}]}}}`, reading: all, field: ".to.nodeSelector", cure: "values set can't be empty"},
	{rule: `{"type": "Allow", "to": {"nodeSelector": {"matchLabels": {"rack": "a b"}}}}`, field: ".to.nodeSelector", cure: "a valid label must be"},
	{rule: `{"type": "Allow", "to": {"dnsName": "10.0.0.1"}}`, field: ".to.dnsName", cure: "an address belongs into cidrSelector"},
	{rule: `{"type": "Allow", "to": {"dnsName": "https://www.example.com"}}`, field: ".to.dnsName", cure: "not a label of a DNS name"},
	{rule: `{"type": "Allow", "to": {"dnsName": "www.*.example.com"}}`, field: ".to.dnsName", cure: `"*." may stand for the first one`},
	{rule: `{"type": "Allow", "to": {"dnsName": "bücher.example.com"}}`, field: ".to.dnsName", cure: "written in its xn-- form"},
	{rule: `{"type": "Deny", "to": {"dnsName": "a..example.com"}}`, reading: all, field: ".to.dnsName", cure: "until then this rule denies every destination"},
}

// TestEachBadEgressFirewall reads all of them at once: each is named with its field and the cure, and has its strictest reading; the rule
// after it and the other objects are served.
func TestEachBadEgressFirewall(t *testing.T) {
	const good = `{"type": "Allow", "to": {"cidrSelector": "203.0.113.0/24"}}`
	c := newTold(t)
	c.sync(t)
	list := make([]any, len(badFirewalls), len(badFirewalls)+1)
	for i := range badFirewalls {
		list[i] = badFirewalls[i].object(i, good)
	}
	other := &custom.Object{Spec: []byte(`{"egress": [` + good + `]}`)}
	other.Namespace, other.Name = "other", "default"
	require.NoError(t, c.firewalls.Replace(append(list, other), ""))
	require.NoError(t, c.pods.Replace(nil, ""))
	o, _, problems, ok := c.Objects()
	require.True(t, ok)
	require.Len(t, problems, len(badFirewalls))
	require.Len(t, o.EgressFirewalls.At(cluster.Key{Namespace: "other", Name: "default"}).Rules, 1)
	for i, b := range badFirewalls {
		bad := list[i].(*custom.Object)
		b.requireProblem(t, cluster.KindEgressFirewall, bad, problems)
		e, there := o.EgressFirewalls.Get(cluster.Key{Namespace: bad.Namespace, Name: bad.Name})
		require.Equal(t, strings.HasPrefix(b.field, "metadata"), !there)
		var want, have []string
		if b.reading != "" {
			want = append(want, b.reading)
		}
		if b.rule != "" {
			want = append(want, "Allow 203.0.113.0/24")
		}
		for _, r := range e.Rules {
			if r.Deny && !r.To.IsValid() && r.Nodes == nil && r.Name == "" && len(r.Ports) == 0 {
				r.Text = all
			}
			have = append(have, r.Text)
		}
		require.Equal(t, want, have, "%s", bad.Spec)
	}
}

// badQoSes are the faults that an EgressQoS may have.
var badQoSes = []badObject{
	// The object.
	{spec: `"46"`, field: "spec", cure: "all rules are left out; a list such as egress: [{dscp: 46}] is right"},
	{spec: `[]`, field: "spec", cure: "all rules are left out; a list such as egress: [{dscp: 46}] is right"},
	{spec: `{"egress": {"dscp": 46}}`, field: "spec", cure: "all rules are left out; a list such as egress: [{dscp: 46}] is right"},
	{spec: `{"egress": 46}`, field: "spec", cure: "all rules are left out; a list such as egress: [{dscp: 46}] is right"},
	{spec: `{"egress": "46"}`, field: "spec", cure: "all rules are left out; a list such as egress: [{dscp: 46}] is right"},
	{spec: `{"egress": []}`, name: "other", field: "metadata.name", cure: "a namespace has one EgressQoS, named default"},
	{spec: `{"egress": []}`, namespace: "Shop", field: "metadata.namespace", cure: "lower case letters, digits and '-'"},
	// Rules and values.
	{rule: `46`, cure: "this rule is left out"},
	{rule: `"46"`, cure: "this rule is left out"},
	{rule: `[46]`, cure: "this rule is left out"},
	{rule: `{"dscp": "46"}`, cure: "string at dscp, where a whole number of 64 bits belongs: this rule is left out"},
	{rule: `{"dscp": "EF"}`, cure: "this rule is left out"},
	{rule: `{"dscp": 1.5}`, cure: "this rule is left out"},
	{rule: `{"dscp": true}`, cure: "this rule is left out"},
	{rule: `{"dscp": [46]}`, cure: "this rule is left out"},
	{rule: `{"dscp": 99999999999999999999}`, cure: "this rule is left out"},
	{rule: `{"dscp": 64}`, field: ".dscp", cure: "a number from 0 to 63: this rule is left out"},
	{rule: `{"dscp": 184}`, field: ".dscp", cure: "a number from 0 to 63"},
	{rule: `{"dscp": 256}`, field: ".dscp", cure: "a number from 0 to 63"},
	{rule: `{"dscp": -1}`, field: ".dscp", cure: "a number from 0 to 63"},
	// Destinations.
	{rule: `{"dscp": 2, "dstCIDR": 10}`, cure: "this rule is left out"},
	{rule: `{"dscp": 2, "dstCIDR": ["10.0.0.0/8"]}`, cure: "this rule is left out"},
	{rule: `{"dscp": 2, "dstCIDR": {}}`, cure: "this rule is left out"},
	{rule: `{"dscp": 2, "dstCIDR": ""}`, field: ".dstCIDR", cure: "write one such as 203.0.113.0/24"},
	{rule: `{"dscp": 2, "dstCIDR": "all"}`, field: ".dstCIDR", cure: "write one such as 203.0.113.0/24"},
	{rule: `{"dscp": 2, "dstCIDR": "10.0.0.1"}`, field: ".dstCIDR", cure: "write 10.0.0.1/32; this rule is left out"},
	{rule: `{"dscp": 2, "dstCIDR": "2001:db8::1"}`, field: ".dstCIDR", cure: "write 2001:db8::1/128"},
	{rule: `{"dscp": 2, "dstCIDR": "10.0.0.0/8 "}`, field: ".dstCIDR", cure: "write 10.0.0.0/8"},
	{rule: `{"dscp": 2, "dstCIDR": "10.0.0.0/255.0.0.0"}`, field: ".dstCIDR", cure: "write 10.0.0.0/8"},
	{rule: `{"dscp": 2, "dstCIDR": "10.0.0.0/33"}`, field: ".dstCIDR", cure: "write one such as 203.0.113.0/24"},
	{rule: `{"dscp": 2, "dstCIDR": "10.0.0/8"}`, field: ".dstCIDR", cure: "write one such as 203.0.113.0/24"},
	{rule: `{"dscp": 2, "dstCIDR": "10.0.0.0/8,172.16.0.0/12"}`, field: ".dstCIDR", cure: "write one such as 203.0.113.0/24"},
	{rule: `{"dscp": 2, "dstCIDR": "::ffff:10.0.0.0/104"}`, field: ".dstCIDR", cure: "write 10.0.0.0/8"},
	{rule: `{"dscp": 2, "dstCIDR": "10.0.0.1/8"}`, reading: "2", field: ".dstCIDR", cure: "counts as 10.0.0.0/8: write that"},
	// Selectors.
	{rule: `{"dscp": 2, "podSelector": "app=web"}`, cure: "this rule is left out"},
	{rule: `{"dscp": 2, "podSelector": {"matchLabels": ["web"]}}`, cure: "this rule is left out"},
	{rule: `{"dscp": 2, "podSelector": {"matchLabels": {"app": 1}}}`, cure: "this rule is left out"},
	{rule: `{"dscp": 2, "podSelector": {"matchLabels": {"app": "a b"}}}`, field: ".podSelector", cure: "a valid label must be"},
	{rule: `{"dscp": 2, "podSelector": {"matchLabels": {"app/web/x": "a"}}}`, field: ".podSelector", cure: "not a label selector, so no pod is selected"},
	{rule: `{"dscp": 2, "podSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}`, field: ".podSelector", cure: "is not a valid label selector operator"},
	{rule: `{"dscp": 2, "podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}`, field: ".podSelector", cure: "values set can't be empty"},
	{rule: `{"dscp": 2, "podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}`, field: ".podSelector", cure: "values set must be empty"},
	{rule: `{"dscp": 2, "podSelector": {"matchExpressions": [{"key": "", "operator": "Exists"}]}}`, field: ".podSelector", cure: "not a label selector, so no pod is selected"},
}

// TestEachBadEgressQoS reads all of them at once: each is named with its field and the cure; the rule after it and the other objects are
// served.
func TestEachBadEgressQoS(t *testing.T) {
	const good = `{"dscp": 1}`
	c := newTold(t)
	c.sync(t)
	list := make([]any, len(badQoSes), len(badQoSes)+1)
	for i := range badQoSes {
		list[i] = badQoSes[i].object(i, good)
	}
	other := &custom.Object{Spec: []byte(`{"egress": [` + good + `]}`)}
	other.Namespace, other.Name = "other", "default"
	require.NoError(t, c.egressQoSes.Replace(append(list, other), ""))
	require.NoError(t, c.pods.Replace(nil, ""))
	o, _, problems, ok := c.Objects()
	require.True(t, ok)
	require.Len(t, problems, len(badQoSes))
	require.Len(t, o.EgressQoSes.At(cluster.Key{Namespace: "other", Name: "default"}).Rules, 1)
	for i, b := range badQoSes {
		bad := list[i].(*custom.Object)
		b.requireProblem(t, cluster.KindEgressQoS, bad, problems)
		var want, have []string
		if b.reading != "" {
			want = append(want, b.reading)
		}
		if b.rule != "" {
			want = append(want, "1")
		}
		for _, r := range o.EgressQoSes.At(cluster.Key{Namespace: bad.Namespace, Name: bad.Name}).Rules {
			have = append(have, fmt.Sprint(r.DSCP))
		}
		require.Equal(t, want, have, "%s", bad.Spec)
	}
}
