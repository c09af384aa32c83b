package config

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVLANOfNodes(t *testing.T) {
	c, err := Parse("f.yaml", []byte(`
networks:
- name: red
  vrf: vrf-red
  table: 1001
  interfaces:
  - {parent: bond0, vlan: 1001, addresses: [10.1.0.11/24], nodeSelectors: [{matchLabels: {kubernetes.io/hostname: a}}]}
  - {parent: bond0, vlan: 1001, addresses: [10.1.0.12/24], mtu: 9000, nodeSelectors: [{matchLabels: {kubernetes.io/hostname: b}}]}
  - {parent: bond0, vlan: 1001, name: storage, nodeSelectors: [{matchLabels: {disks: many}}]}
  - {parent: bond0, vlan: 1001, addresses: [10.1.0.11/24], nodeSelectors: [{matchLabels: {rack: r1}}]}
  - {parent: enp129s0f0np0, vlan: 7, name: vlan7, nodeSelectors: [{matchLabels: {rack: r1}}]}
  peers: [{interface: vlan7, dynamicASN: external}]
- name: blue
  vrf: vrf-blue
  table: 1002
  interfaces:
  - {parent: bond0, vlan: 1001, name: blue, nodeSelectors: [{matchLabels: {rack: r2}}]}
bgp: {asn: 64512}
`))
	require.NoError(t, err)
	of := func(labels ...string) OfNode {
		set := map[string]string{}
		for i := 0; i < len(labels); i += 2 {
			set[labels[i]] = labels[i+1]
		}
		return c.For(set)
	}
	const host = "kubernetes.io/hostname"
	a := of(host, "a", "rack", "r1") // two entries give the same
	require.Empty(t, a.Faults)
	require.Equal(t, []Interface{
		{Name: "bond0.1001", Parent: "bond0", VLAN: 1001, Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.11/24")}},
		{Name: "vlan7", Parent: "enp129s0f0np0", VLAN: 7},
	}, a.Networks[0].Interfaces)
	require.Len(t, a.Networks[0].Peers, 1, "an unnumbered peer is on the nodes that have its interface")
	b := of(host, "b")
	require.Equal(t, "bond0.1001, VLAN 1001 on bond0, MTU 9000, 10.1.0.12/24", b.Networks[0].Interfaces[0].String())
	require.Empty(t, b.Networks[0].Peers)
	var shown []string
	for _, g := range b.Given {
		if g.Field == "interface" && !g.Left {
			shown = append(shown, g.Value)
		}
	}
	require.Equal(t, []string{"bond0.1001, VLAN 1001 on bond0, MTU 9000, 10.1.0.12/24"}, shown)

	for _, one := range []struct {
		labels []string
		fault  string
	}{
		{[]string{host, "b", "rack", "r1"}, `f.yaml:10: networks[red].interfaces[3]: "bond0.1001, VLAN 1001 on bond0, 10.1.0.11/24": ` +
			`line 8 gives this node the same interface with other settings, and is in force: let the nodeSelectors of the two exclude each other`},
		{[]string{host, "a", "disks", "many"}, `f.yaml:9: networks[red].interfaces[storage]: "storage, VLAN 1001 on bond0": ` +
			`line 7 gives this node the sub-interface of this VLAN by another name, and is in force: ` +
			`let the nodeSelectors of the two exclude each other`},
		{[]string{host, "a", "rack", "r2"}, `f.yaml:17: networks[blue].interfaces[blue]: "blue, VLAN 1001 on bond0": ` +
			`line 7 gives this node the sub-interface of this VLAN by another name, and is in force: ` +
			`let the nodeSelectors of the two exclude each other`},
	} {
		node := of(one.labels...)
		require.Len(t, node.Faults, 1)
		require.Equal(t, EntriesContradict, node.Faults[0].Reason)
		require.EqualError(t, node.Faults[0].Error, one.fault)
		require.NotEmpty(t, node.Networks[0].Interfaces, "the first is in force")
	}
}
