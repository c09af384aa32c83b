package firewall

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

// TestNamesOfBothFamilies expects names in the policies of both families or of none: a pod asks by either of its addresses for addresses
// of both families, and only answers to pods whose policy has names are read.
func TestNamesOfBothFamilies(t *testing.T) {
	everywhere4, name := netip.MustParsePrefix("0.0.0.0/0"), "www.example.com"
	for _, c := range []struct {
		what      string
		rules     []cluster.FirewallRule
		four, six int // stretches
		hasNames  bool
	}{
		{"a name that is allowed anyway", []cluster.FirewallRule{{Name: name}}, 0, 0, false},
		{"a name, and no other of IPv4", []cluster.FirewallRule{{Name: name}, {Deny: true, To: everywhere4}}, 2, 1, true},
		{"a name that is denied", []cluster.FirewallRule{{Name: name, Deny: true}}, 1, 1, true},
		{"prefixes alone", []cluster.FirewallRule{{Deny: true, To: everywhere4}}, 1, 0, false},
	} {
		var of compiled
		of.compile(c.rules, nil)
		require.Len(t, of.families[ipv4].stretches, c.four, c.what)
		require.Len(t, of.families[ipv6].stretches, c.six, c.what)
		for family := range of.families {
			require.Equal(t, c.hasNames, hasNames(of.families[family].stretches), c.what)
		}
		if c.hasNames {
			require.NotEqual(t, of.families[ipv4].key, of.families[ipv6].key, "%s: sets of two families", c.what)
		}
	}
}

// TestNamesCostFewLookups expects one lookup for all names between the prefixes that are allowed, wherever they stand among them.
func TestNamesCostFewLookups(t *testing.T) {
	allow := func(to string) cluster.FirewallRule { return cluster.FirewallRule{To: netip.MustParsePrefix(to)} }
	var of compiled
	of.compile([]cluster.FirewallRule{
		{Name: "b.example.com"},
		allow("192.0.2.0/24"),
		{Name: "a.example.com"},
		allow("198.51.100.0/24"),
		{Name: "b.example.com"},
		{Deny: true, To: everywhere[ipv4]},
	}, nil)
	all := of.families[ipv4].stretches
	require.Len(t, all, 3)
	require.Equal(t, []string{"a.example.com", "b.example.com"}, all[1].Names)
	require.Equal(t, Allow, all[1].Named)
}

// TestMatches compares names of rules with names that pods ask for.
func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		matches       bool
	}{
		{"www.example.com", "www.example.com", true},
		{"www.example.com", "a.www.example.com", false},
		{"*.example.com", "www.example.com", true},
		{"*.example.com", "a.b.example.com", false},
		{"*.example.com", "example.com", false},
		{"*.example.com", "www.example.org", false},
		{"*.com", "com", false},
	} {
		require.Equal(t, c.matches, Matches(c.pattern, c.name), "%s %s", c.pattern, c.name)
	}
}
