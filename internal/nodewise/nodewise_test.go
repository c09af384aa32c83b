package nodewise

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

const file = `node: a
bgp: {asn: 64512, overrides: [{asn: 65001, nodeSelectors: [{matchLabels: {rack: r1}}]}]}
networks:
- name: red
  vrf: vrf-red
  table: 1001
  interfaces:
  - {name: eno1, nodeSelectors: [{matchLabels: {rack: r1}}]}
  - {name: ens3f0, nodeSelectors: [{matchLabels: {rack: r2}}, {matchLabels: {rack: r9}}]}
  peers: [{address: 10.1.0.1, asn: 64601}]
`

func parsed(t *testing.T, text string) *config.Config {
	c, err := config.Parse("f.yaml", []byte(text))
	require.NoError(t, err)
	return c
}

func nodeIn(rack, address string) cluster.Node {
	n := cluster.Node{Labels: map[string]string{"rack": rack}, Ready: true}
	if address != "" {
		n.Internal = []netip.Addr{netip.MustParseAddr(address)}
	}
	return n
}

func nodesOf(all map[string]cluster.Node) Nodes { return cluster.MapOf(all) }

func reasons(problems []cluster.Problem) (all []string) {
	for _, p := range problems {
		all = append(all, string(p.Reason)+" "+p.Field+" "+p.Value)
	}
	return all
}

// TestLabelsThatChange follows a node from before its labels are known into another rack. Equal selections must be the same
// Config: the plan is made from scratch for another one.
func TestLabelsThatChange(t *testing.T) {
	c, r := parsed(t, file), &Resolver{}
	other := nodeIn("r2", "10.0.0.12")
	own, problems, known := r.Resolve(c, nodesOf(nil), true)
	require.False(t, known)
	require.Equal(t, []string{"NodeUnknown  "}, reasons(problems))
	require.Equal(t, uint32(64512), own.BGP.ASN)
	again, _, _ := r.Resolve(c, nodesOf(map[string]cluster.Node{"b": other}), true)
	require.Same(t, own, again)

	own, problems, known = r.Resolve(c, nodesOf(map[string]cluster.Node{"a": nodeIn("r1", "10.0.0.11"), "b": other}), true)
	require.True(t, known)
	require.Equal(t, []string{"SelectsNoNode networks[red].interfaces[ens3f0].nodeSelectors[1] rack=r9"}, reasons(problems))
	require.Equal(t, uint32(65001), own.BGP.ASN)
	require.Equal(t, "f.yaml:9", problems[0].Where)

	relabelled := nodeIn("r1", "10.0.0.11")
	relabelled.Labels["zone"] = "z"
	again, _, _ = r.Resolve(c, nodesOf(map[string]cluster.Node{"a": relabelled, "b": other}), false)
	require.Same(t, own, again, "a label that no selector names")

	moved, problems, _ := r.Resolve(c, nodesOf(map[string]cluster.Node{"a": nodeIn("r2", "10.0.0.11"), "b": other}), false)
	require.NotSame(t, own, moved)
	require.Equal(t, uint32(64512), moved.BGP.ASN)
	red, _ := moved.Network("red")
	require.Equal(t, []string{"ens3f0"}, red.Uplinks())
	require.Equal(t, []string{
		"SelectsNoNode bgp.overrides[0].nodeSelectors[0] rack=r1", "SelectsNoNode networks[red].interfaces[eno1].nodeSelectors[0] rack=r1",
		"SelectsNoNode networks[red].interfaces[ens3f0].nodeSelectors[1] rack=r9",
	}, reasons(problems), "its move changes which selectors match")

	again, _, known = r.Resolve(c, nodesOf(map[string]cluster.Node{"b": other}), true)
	require.True(t, known)
	require.Same(t, moved, again, "the labels stay while the Node is missing")

	plain := parsed(t, "node: a\nbgp: {asn: 1}\n")
	again, problems, known = r.Resolve(plain, nodesOf(nil), false)
	require.True(t, known)
	require.Empty(t, problems)
	require.Same(t, plain, again)
}

// TestRouterIDsCollide checks that nodes with the same AS number and router ID are named.
func TestRouterIDsCollide(t *testing.T) {
	const peers = "networks: [{name: red, table: 7, peers: [{address: 10.1.0.1, asn: 64601}]}]\n"
	collide := func(text string, nodes map[string]cluster.Node) []cluster.Problem {
		c := parsed(t, "node: a\n"+text+peers)
		_, problems, _ := new(Resolver).Resolve(c, nodesOf(nodes), true)
		checked := Check(c, nodesOf(nodes))
		require.Len(t, checked, len(problems))
		return problems
	}
	six := map[string]cluster.Node{"a": nodeIn("r1", "fd00::1"), "b": nodeIn("r1", "fd00::2"), "c": nodeIn("r2", "fd00::3")}
	require.Empty(t, collide("bgp: {asn: 64512}\n", six), "hashes of names differ")

	both := "bgp: {asn: 64512, overrides: [{routerID: 192.0.2.1, nodeSelectors: [{matchLabels: {rack: r1}}]}]}\n"
	found := collide(both, six)
	require.Equal(t, []string{"RouterIDCollides bgp.routerID 192.0.2.1"}, reasons(found))
	require.Contains(t, found[0].Error(), "node b has this router ID too, in AS 64512")

	otherAS := strings.Replace(both, "overrides: [", "overrides: [{asn: 64513, nodeSelectors: [{matchLabels: {name: b}}]}, ", 1)
	six["b"].Labels["name"] = "b"
	require.Empty(t, collide(otherAS, six), "router IDs must differ within an AS only (RFC 6286)")

	hashed := config.RouterIDOf("b").String()
	require.Equal(t, []string{"RouterIDCollides bgp.routerID " + hashed},
		reasons(collide("bgp: {asn: 64512}\n", map[string]cluster.Node{"a": nodeIn("r1", hashed), "b": nodeIn("r1", "fd00::2")})))
	require.Empty(t, collide("bgp: {asn: 64512, routerID: 192.0.2.1}\n", six), "other nodes may have other files")
}

// TestRouterIDStays checks that a node keeps the router ID that others must not have while its Node is missing.
func TestRouterIDStays(t *testing.T) {
	c := parsed(t, "node: a\nbgp: {asn: 64512}\nnetworks: [{name: red, table: 7, peers: [{address: 10.1.0.1, asn: 64601}]}]\n")
	var r Resolver
	require.Zero(t, r.InternalIPv4())
	_, problems, _ := r.Resolve(c, nodesOf(map[string]cluster.Node{"a": nodeIn("r1", "10.0.0.11")}), true)
	require.Empty(t, problems)
	_, problems, _ = r.Resolve(c, nodesOf(map[string]cluster.Node{"b": nodeIn("r1", "10.0.0.11")}), true)
	require.Equal(t, []string{"RouterIDCollides bgp.routerID 10.0.0.11"}, reasons(problems))
	require.Equal(t, "10.0.0.11", r.InternalIPv4().String())
	r.Resolve(c, nodesOf(map[string]cluster.Node{"a": nodeIn("r1", "fd00::1")}), true)
	require.Zero(t, r.InternalIPv4())
}
