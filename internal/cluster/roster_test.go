package cluster

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFacts(t *testing.T) {
	node := func(edit func(*Node)) Node {
		n := Node{
			UID: "1", Labels: map[string]string{"rack": "1"}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
			Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Internal: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		}
		edit(&n)
		return n
	}
	plain := Facts("a", node(func(*Node) {}), nil)
	require.Equal(t, "neAkgJPrcRfMwkVl", plain, "daemons of other versions compute it too")
	require.NotEqual(t, plain, Facts("b", node(func(*Node) {}), nil))
	require.NotEqual(t, plain, Facts("a", node(func(*Node) {}), []Problem{{Field: "spec.podCIDR"}}))
	for what, c := range map[string]struct {
		edit    func(*Node)
		differs bool
	}{
		"another Node of the name": {func(n *Node) { n.UID = "2" }, true},
		"label":                    {func(n *Node) { n.Labels["rack"] = "2" }, true},
		"host label":               {func(n *Node) { n.Labels[HostLabelPrefix+"shop-web"] = "" }, false},
		"address":                  {func(n *Node) { n.Addresses = append(n.Addresses, netip.MustParseAddr("192.0.2.1")) }, true},
		"InternalIP":               {func(n *Node) { n.Internal = nil }, true},
		"podCIDR":                  {func(n *Node) { n.PodCIDRs = nil }, true},
		"Ready":                    {func(n *Node) { n.Ready = true }, false},
		"cordoned":                 {func(n *Node) { n.Cordoned = true }, false},
	} {
		n := node(c.edit)
		require.Equal(t, c.differs, plain != Facts("a", n, nil), what)
		require.Equal(t, len(n.Labels), len(node(c.edit).Labels), "the labels of %s stay", what)
	}
}

func TestRoster(t *testing.T) {
	before := map[string]string{"a": "1", "b": "1", "c": "1"}
	now := map[string]string{"a": "1", "b": "2", "d": "1"}
	r := Roster{Changed: []RosterEntry{{"a", "0"}, {"b", "0"}}}.Next(before, now)
	require.Equal(t, Roster{Nodes: Digest(now), Changed: []RosterEntry{{"b", "2"}, {"c", ""}, {"d", "1"}, {"a", "1"}}}, r)
	require.NotEqual(t, Digest(before), r.Nodes)
	require.Equal(t, []RosterEntry{{"b", "2"}, {"c", ""}, {"d", "1"}}, r.Unlike(before))
	require.Empty(t, r.Unlike(now))
	require.Equal(t, r, r.Next(now, now))

	for i := range 2 * rosterMost {
		now[fmt.Sprint("n", i)] = "1"
	}
	require.Len(t, r.Next(before, now).Changed, rosterMost)
}
