package cluster

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	egressv1 "github.com/egressway/egressway/api/v1"
)

func qos(rules ...egressv1.EgressQoSRule) *egressv1.EgressQoS {
	return &egressv1.EgressQoS{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "default"}, Spec: egressv1.EgressQoSSpec{Egress: rules}}
}

// TestBadQoSRules expects each bad rule to be named with its field, its value and a cure, and the rules around it to be kept.
func TestBadQoSRules(t *testing.T) {
	to := func(text string) egressv1.EgressQoSRule { return egressv1.EgressQoSRule{DSCP: 10, DstCIDR: &text} }
	dscp := func(n int) egressv1.EgressQoSRule { return egressv1.EgressQoSRule{DSCP: n} }
	pods := func(e metav1.LabelSelectorRequirement) egressv1.EgressQoSRule {
		return egressv1.EgressQoSRule{PodSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{e}}}
	}
	type bad struct {
		rule         egressv1.EgressQoSRule
		field, value string
		cure         string
	}
	all := []bad{
		{dscp(64), "dscp", "64", "a number from 0 to 63"},
		{dscp(-1), "dscp", "-1", "a number from 0 to 63"},
		{dscp(256), "dscp", "256", "a number from 0 to 63"},
		{dscp(1 << 40), "dscp", "1099511627776", "a number from 0 to 63"},
		{pods(metav1.LabelSelectorRequirement{Key: "app", Operator: "Is"}), "podSelector", "", `"Is" is not a valid label selector operator`},
		{pods(metav1.LabelSelectorRequirement{Key: "app", Operator: "In"}), "podSelector", "", "for 'in', 'notin' operators, values set can't be empty"},
		{pods(metav1.LabelSelectorRequirement{Key: "app", Operator: "Exists", Values: []string{"a"}}), "podSelector", "", "values set must be empty for exists"},
		{pods(metav1.LabelSelectorRequirement{Key: "-app", Operator: "Exists"}), "podSelector", "", "name part must consist of"},
		{egressv1.EgressQoSRule{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "a b"}}}, "podSelector", "", "a valid label must be"},
	}
	for text, cure := range map[string]string{
		"":                              "one such as 203.0.113.0/24 or 2001:db8::/32",
		"any":                           "one such as 203.0.113.0/24",
		"203.0.113.0":                   "write 203.0.113.0/32",
		"2001:db8::":                    "write 2001:db8::/128",
		"203.0.113.0/33":                "one such as",
		"203.0.113.0/-1":                "one such as",
		"203.0.113.0/":                  "one such as",
		"203.0.113/24":                  "one such as",
		"203.0.113.0/255.255.255.0":     "write 203.0.113.0/24",
		"203.0.113.9/255.255.0.0":       "write 203.0.0.0/16",
		"203.0.113.0/255.0.255.0":       "one such as",
		"203.0.113.0/24\n":              "write 203.0.113.0/24",
		"203.0.113.0/24,10.0.0.0/8":     "one such as",
		"203.0.113.0-203.0.113.9":       "one such as",
		"203.0.113.0/024":               "one such as",
		"203.0.113.010/24":              "one such as",
		"2001:db8::/129":                "one such as",
		"2001:db8:::/32":                "one such as",
		"[2001:db8::]/32":               "one such as",
		"fe80::%eth0/64":                "one such as",
		"::ffff:203.0.113.0/120":        "write 203.0.113.0/24",
		"::ffff:203.0.113.0/48":         "write 0.0.0.0/0",
		"www.example.com":               "one such as",
		"203.0.113.0\\24":               "one such as",
		"0.0.0.0/0/0":                   "one such as",
		"10.0.0.0:80/8":                 "one such as",
		strings.Repeat("203.0.113.", 9): "one such as",
	} {
		all = append(all, bad{to(text), "dstCIDR", text, cure})
	}
	require.GreaterOrEqual(t, len(all), 36)
	for _, b := range all {
		_, q, problems, ok := FromEgressQoS(qos(dscp(1), b.rule, dscp(2)), nil)
		require.True(t, ok, "%+v", b)
		require.Len(t, q.Rules, 2, "%+v", b)
		require.Equal(t, []uint8{1, 2}, []uint8{q.Rules[0].DSCP, q.Rules[1].DSCP}, "%+v", b)
		require.Len(t, problems, 1, "%+v", b)
		p := problems[0]
		require.Equal(t, []any{"EgressQoS", "shop/default", "spec.egress[1]." + b.field, b.value}, []any{p.Kind, p.Object, p.Field, p.Value})
		require.Contains(t, p.Message, b.cure, "%+v", b)
	}
}

func TestQoSRules(t *testing.T) {
	four, host, every := "203.0.113.0/24", "203.0.113.7/24", "::/0"
	_, q, problems, ok := FromEgressQoS(qos(
		egressv1.EgressQoSRule{DSCP: 63, DstCIDR: &four}, egressv1.EgressQoSRule{DstCIDR: &host}, egressv1.EgressQoSRule{DstCIDR: &every}, egressv1.EgressQoSRule{DSCP: 5},
	), map[int]bool{3: true})
	require.True(t, ok)
	require.Len(t, q.Rules, 3, "a rule that could not be decoded is left out")
	require.Equal(t, netip.MustParsePrefix(four), q.Rules[0].To)
	require.Equal(t, netip.MustParsePrefix(four), q.Rules[1].To)
	require.Zero(t, q.Rules[1].DSCP)
	require.Len(t, problems, 1, "the rule counts nevertheless")
	require.Contains(t, problems[0].Error(), `spec.egress[1].dstCIDR: "203.0.113.7/24": has bits beyond its length, and counts as 203.0.113.0/24: write that`)

	_, _, problems, ok = FromEgressQoS(&egressv1.EgressQoS{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "gold"}}, nil)
	require.False(t, ok)
	require.Contains(t, problems[0].Error(), `EgressQoS shop/gold: metadata.name: "gold": a namespace has one EgressQoS, named default`)

	_, q, problems, ok = FromEgressQoS(qos(make([]egressv1.EgressQoSRule, 1001)...), nil)
	require.True(t, ok)
	require.Len(t, q.Rules, 1000)
	require.Contains(t, problems[0].Error(), "spec.egress[1000]: this rule and those after it are left out: at most 1000")
}
