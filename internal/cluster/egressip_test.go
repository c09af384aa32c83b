package cluster

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	egressv1 "github.com/egressway/egressway/api/v1"
)

func eip(addresses ...string) *egressv1.EgressIP {
	return &egressv1.EgressIP{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Spec: egressv1.EgressIPSpec{EgressIPs: addresses}}
}

// TestBadEgressIPs expects each unusable address to be named with a cure, and the others of its object to be kept.
func TestBadEgressIPs(t *testing.T) {
	for text, cure := range map[string]string{
		"":                     "write an address such as 203.0.113.7",
		"web":                  "write an address such as 203.0.113.7",
		"203.0.113":            "write an address such as",
		"203.0.113.256":        "write an address such as",
		"203.0.113.7/32":       "write the address alone, 203.0.113.7",
		"2001:db8::7/128":      "write the address alone, 2001:db8::7",
		"203.0.113.0/24":       "write the address alone",
		"203.0.113.7-9":        "not an IP address",
		"203.0.113. 7":         "not an IP address",
		"203.0.113.07":         "not an IP address",
		"[2001:db8::7]":        "not an IP address",
		"2001:db8:::7":         "not an IP address",
		"2001:db8::7%eth0":     "an address with a zone cannot be announced",
		"::ffff:203.0.113.7":   "an IPv4-mapped IPv6 address: write 203.0.113.7",
		"0.0.0.0":              "choose a unicast address",
		"::":                   "the unspecified address cannot be announced",
		"0.1.2.3":              "choose a unicast address",
		"127.0.0.1":            "a loopback address",
		"::1":                  "a loopback address",
		"169.254.1.1":          "a link-local address",
		"fe80::1":              "a link-local address",
		"224.0.0.1":            "a multicast address",
		"ff02::1":              "a multicast address",
		"240.0.0.1":            "a reserved or the broadcast address",
		"255.255.255.255":      "a reserved or the broadcast address",
		"203.0.113.7\n":        "not an IP address",
		"203.0.113.7,10.0.0.1": "not an IP address",
		"10.0.0.1:80":          "not an IP address",
	} {
		_, e, problems, ok := FromEgressIP(eip("203.0.113.1", text, "2001:db8::1"))
		require.True(t, ok, "%q", text)
		require.Equal(t, []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")}, e.Addresses, "%q", text)
		require.Len(t, problems, 1, "%q", text)
		require.Equal(t, []any{"EgressIP", "e", "spec.egressIPs[1]", text, ReasonInvalidAddress},
			[]any{problems[0].Kind, problems[0].Object, problems[0].Field, problems[0].Value, problems[0].Reason})
		require.Contains(t, problems[0].Message, cure, "%q", text)
	}
}

// TestFamiliesOfEgressIP expects an unusable address to count for its family, so that pods do not leave with another source.
func TestFamiliesOfEgressIP(t *testing.T) {
	for text, want := range map[string][2]bool{
		"203.0.113.7": {true, false}, "2001:db8::7": {false, true}, "203.0.113.777": {true, false}, "2001:db8:::7": {false, true},
		"::ffff:203.0.113.7": {true, false}, "fe80::1": {false, true},
	} {
		_, e, _, _ := FromEgressIP(eip(text))
		require.Equal(t, want, [2]bool{e.IPv4, e.IPv6}, text)
		require.Equal(t, want[0], e.Wants(netip.MustParseAddr("10.244.0.1")), text)
	}
}

func TestFromEgressIP(t *testing.T) {
	o := eip("203.0.113.7", "2001:DB8:0::7", "2001:db8::7", "203.0.113.7")
	o.Spec.NamespaceSelector = metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	o.Status.Items = []egressv1.EgressIPStatusItem{{EgressIP: "203.0.113.7", Node: "a", Standby: "b", Term: 2}, {EgressIP: "bad", Node: "a"}}
	key, e, problems, ok := FromEgressIP(o)
	require.True(t, ok)
	require.Empty(t, problems)
	require.Equal(t, Key{Name: "e"}, key)
	require.Equal(t, "e", key.String())
	require.Len(t, e.Addresses, 2, "each address once, however it is written")
	require.Equal(t, Holder{netip.MustParseAddr("203.0.113.7"), "a", "b", 2}, e.Holder(e.Addresses[0]))
	require.Zero(t, e.Holder(e.Addresses[1]))
	require.True(t, e.Selects(labels.Set{"env": "prod"}))
	require.False(t, e.Selects(labels.Set{"env": "test"}))

	var many []string
	for i := range mostEgressIPs + 1 {
		many = append(many, fmt.Sprint("203.0.113.", i+1))
	}
	_, e, problems, _ = FromEgressIP(eip(many...))
	require.Len(t, e.Addresses, mostEgressIPs)
	require.Equal(t, ReasonTooManyAddresses, problems[0].Reason)
	_, e, problems, _ = FromEgressIP(eip(append(many, "203.0.113.200", "2001:db8:203::33", "nonsense")...))
	require.Len(t, e.Addresses, mostEgressIPs+1)
	require.True(t, e.IPv6, "the pods' IPv6 packets must not leave with another source")
	require.Len(t, problems, 2)

	_, _, problems, _ = FromEgressIP(eip())
	require.Equal(t, ReasonNoEgressIP, problems[0].Reason)

	for field, spoil := range map[string]func(*egressv1.EgressIPSpec, metav1.LabelSelector){
		"spec.namespaceSelector": func(s *egressv1.EgressIPSpec, bad metav1.LabelSelector) { s.NamespaceSelector = bad },
		"spec.podSelector":       func(s *egressv1.EgressIPSpec, bad metav1.LabelSelector) { s.PodSelector = bad },
	} {
		for _, bad := range []metav1.LabelSelector{
			{MatchLabels: map[string]string{"not a key": "x"}},
			{MatchLabels: map[string]string{"key": "not a value"}},
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}},
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn}}},
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpExists, Values: []string{"x"}}}},
		} {
			o := eip("203.0.113.7")
			spoil(&o.Spec, bad)
			_, e, problems, ok := FromEgressIP(o)
			require.True(t, ok)
			require.False(t, e.Selects(labels.Set{}), "an object that nobody can read selects nobody")
			require.Len(t, problems, 1)
			require.Equal(t, field, problems[0].Field)
			require.Equal(t, ReasonInvalidSelector, problems[0].Reason)
		}
	}
}
