package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// racks is a configuration of two racks with routers, an AS and interface names of their own.
const racks = `bgp:
  asn: 64512
  overrides:
  - {asn: 65001, nodeSelectors: [{matchLabels: {rack: r1}}]}
  - {asn: 65002, nodeSelectors: [{matchLabels: {rack: r2}}]}
  - {routerID: 192.0.2.7, nodeSelectors: [{matchLabels: {name: b}}]}
networks:
- name: red
  vrf: vrf-red
  table: 1001
  overrides:
  - {vrf: red2, table: 1002, nodeSelectors: [{matchLabels: {rack: r2}}]}
  interfaces:
  - eth1
  - {name: eno1, nodeSelectors: [{matchLabels: {rack: r1}}]}
  - {name: ens3f0, nodeSelectors: [{matchExpressions: [{key: rack, operator: In, values: [r2, r3]}]}]}
  peers:
  - {address: 10.1.0.1, asn: 64601, nodeSelectors: [{matchLabels: {rack: r1}}]}
  - {address: 10.1.0.1, asn: 64602, myASN: 65100, nodeSelectors: [{matchLabels: {rack: r2}}, {matchLabels: {rack: r3}}]}
  - {address: 10.1.0.9, asn: 64603, overrides: [{sourceAddress: 10.1.0.77, nodeSelectors: [{matchLabels: {name: b}}]}]}
  - {interface: eno1, dynamicASN: external}
  - {interface: ens3f0, dynamicASN: external}
- name: dmz
  vrf: vrf-dmz
  table: 1003
  interfaces: [{name: ens3f0, nodeSelectors: [{matchLabels: {rack: r1}}]}]
  nodeSelectors: [{matchLabels: {rack: r1}}]
  peers: [{address: 10.3.0.1, asn: 64601}]
  egressIPs: [203.0.113.0/28]
`

func parsed(t *testing.T, text string) *Config {
	c, err := Parse("f.yaml", []byte(text))
	require.NoError(t, err)
	return c
}

func peerNames(n *Network) (all []string) {
	for _, p := range n.Peers {
		all = append(all, fmt.Sprintf("%s %d", p.PeerName(), p.ASN))
	}
	return all
}

// TestNodesDiffer checks what nodes of two racks, and one of none, get from one file.
func TestNodesDiffer(t *testing.T) {
	c := parsed(t, racks)
	require.True(t, c.Nodewise())

	one := c.For(map[string]string{"rack": "r1", "name": "a"})
	require.Empty(t, one.Faults)
	require.Equal(t, uint32(65001), one.BGP.ASN)
	require.False(t, one.BGP.RouterID.IsValid())
	red, _ := one.Network("red")
	require.Equal(t, []string{"eth1", "eno1"}, red.Uplinks())
	require.Equal(t, "vrf-red", red.VRF)
	require.Equal(t, []string{"10.1.0.1 64601", "10.1.0.9 64603", "eno1 0"}, peerNames(red))
	dmz, _ := one.Network("dmz")
	require.Equal(t, []string{"ens3f0"}, dmz.Uplinks())
	require.Empty(t, dmz.Elsewhere)

	two := c.For(map[string]string{"rack": "r2", "name": "b"})
	require.Empty(t, two.Faults)
	require.Equal(t, uint32(65002), two.BGP.ASN)
	require.Equal(t, netip.MustParseAddr("192.0.2.7"), two.BGP.RouterID)
	red, _ = two.Network("red")
	require.Equal(t, []string{"eth1", "ens3f0"}, red.Uplinks())
	require.Equal(t, "red2", red.VRF)
	require.Equal(t, uint32(1002), red.Table)
	require.Equal(t, []string{"10.1.0.1 64602", "10.1.0.9 64603", "ens3f0 0"}, peerNames(red))
	require.Equal(t, uint32(65100), red.Peers[0].MyASN)
	require.Equal(t, netip.MustParseAddr("10.1.0.77"), red.Peers[1].SourceAddress)
	dmz, _ = two.Network("dmz")
	require.Equal(t, Network{
		Name: "dmz", EgressIPs: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28")}, PeersElsewhere: true,
		Elsewhere: "the network is not on this node: its nodeSelectors on line 27 match nodes with rack=r1",
	}, *dmz)

	none := c.For(nil)
	require.Equal(t, uint32(64512), none.BGP.ASN)
	red, _ = none.Network("red")
	require.Equal(t, []string{"eth1"}, red.Uplinks())
	require.Equal(t, []string{"10.1.0.9 64603"}, peerNames(red), "an unnumbered peer follows its interface")

	for _, own := range []*Config{one.Config, two.Config, none.Config, c.ForUnknown()} {
		require.False(t, own.Nodewise())
		require.Empty(t, own.BGP.Overrides)
		for _, n := range own.Networks {
			require.Empty(t, n.Overrides)
			for _, p := range n.Peers {
				require.Empty(t, p.NodeSelectors, p.Overrides)
			}
		}
	}
	require.Equal(t, one, c.For(map[string]string{"rack": "r1", "name": "z"}), "other labels change nothing")
	require.Equal(t, c, parsed(t, racks))
	same := parsed(t, "bgp: {asn: 1}\nnetworks: [{name: red, table: 7, peers: [{address: 10.0.0.1, asn: 2}]}]\n")
	require.Equal(t, withoutPlaces(same), same.For(nil).Config, "without nodeSelectors all nodes have the file's configuration")
}

// TestUnknownLabels checks that a node without known labels gets nothing that a selector gives, not even one that an empty
// set of labels matches.
func TestUnknownLabels(t *testing.T) {
	c := parsed(t, `bgp: {asn: 64512, overrides: [{asn: 65001, nodeSelectors: [{matchExpressions: [{key: rack, operator: DoesNotExist}]}]}]}
networks:
- name: red
  vrf: vrf-red
  table: 1001
  interfaces: [{name: eth1, nodeSelectors: [{}]}]
  peers: [{address: 10.1.0.1, asn: 64601}]
`)
	require.Equal(t, uint32(65001), c.For(nil).BGP.ASN)
	unknown := c.ForUnknown()
	require.Equal(t, uint32(64512), unknown.BGP.ASN)
	red, _ := unknown.Network("red")
	require.NotEmpty(t, red.Elsewhere)
	require.Empty(t, red.Peers)
	require.True(t, red.PeersElsewhere)
}

// TestPeersElsewhere finds that a node without a network's peers knows whether other nodes have some.
func TestPeersElsewhere(t *testing.T) {
	c := parsed(t, `bgp: {asn: 64512}
networks:
- {name: racks, table: 1001, peers: [{address: 10.1.0.1, asn: 64601, nodeSelectors: [{matchLabels: {rack: r1}}]}]}
- {name: link, table: 1002}
`)
	for rack, elsewhere := range map[string]bool{"r1": false, "r2": true} {
		own := c.For(map[string]string{"rack": rack})
		racks, _ := own.Network("racks")
		require.Equal(t, elsewhere, racks.PeersElsewhere, rack)
		require.Equal(t, elsewhere, len(racks.Peers) == 0)
		link, _ := own.Network("link")
		require.False(t, link.PeersElsewhere)
	}
}

// TestContradictions checks that entries that contradict each other on a node are named with both lines, that the first is in
// force, and that nodes with other labels have no fault.
func TestContradictions(t *testing.T) {
	const x, y = "nodeSelectors: [{matchLabels: {x: y}}]", "nodeSelectors: [{matchLabels: {z: w}}]"
	network := func(lines ...string) string {
		return "bgp: {asn: 64512}\nnetworks:\n- name: red\n  vrf: vrf-red\n  table: 1001\n" + strings.Join(lines, "\n") + "\n"
	}
	tests := map[string]struct {
		text, fault string
		holds       func(c *Config) bool
	}{
		"AS": {
			"bgp:\n  overrides:\n  - {asn: 65001, " + x + "}\n  - {asn: 65002, " + y + "}\n",
			`f.yaml:4: bgp.overrides[1].asn: "65002": line 3 gives 65001 for nodes that match "x=y", this entry for those that match "z=w", and this node matches both: line 3 is in force; let the selectors exclude each other`,
			func(c *Config) bool { return c.BGP.ASN == 65001 },
		},
		"router ID": {
			"bgp:\n  overrides:\n  - {routerID: 1.1.1.1, " + x + "}\n  - {routerID: 1.1.1.2, " + y + "}\n",
			`f.yaml:4: bgp.overrides[1].routerID: "1.1.1.2": line 3 gives 1.1.1.1 for`,
			func(c *Config) bool { return c.BGP.RouterID.String() == "1.1.1.1" },
		},
		"table": {
			network("  overrides:", "  - {table: 7, "+x+"}", "  - {table: 8, "+y+"}"),
			`f.yaml:8: networks[red].overrides[1].table: "8": line 7 gives 7 for`,
			func(c *Config) bool { return c.Networks[0].Table == 7 },
		},
		"VRF": {
			network("  overrides:", "  - {vrf: v7, "+x+"}", "  - {vrf: v8, "+y+"}"),
			`f.yaml:8: networks[red].overrides[1].vrf: "v8": line 7 gives v7 for`,
			func(c *Config) bool { return c.Networks[0].VRF == "v7" },
		},
		"peer": {
			network("  peers:", "  - {address: 10.0.0.1, asn: 1, "+x+"}", "  - {address: 10.0.0.1, asn: 2, "+y+"}"),
			`f.yaml:8: networks[red].peers[10.0.0.1]: "10.0.0.1": line 7 gives this node the same peer with other settings, and is in force: let the`,
			func(c *Config) bool { return len(c.Networks[0].Peers) == 1 && c.Networks[0].Peers[0].ASN == 1 },
		},
		"AS of a peer": {
			network("  peers:", "  - address: 10.0.0.1", "    asn: 1", "    overrides:", "    - {myASN: 7, "+x+"}", "    - {myASN: 8, "+y+"}"),
			`f.yaml:11: networks[red].peers[10.0.0.1].overrides[1].myASN: "8": line 10 gives 7 for`,
			func(c *Config) bool { return c.Networks[0].Peers[0].MyASN == 7 },
		},
		"source address": {
			network("  peers:", "  - address: 10.0.0.1", "    asn: 1", "    overrides:", "    - {sourceAddress: 10.0.0.7, "+x+"}", "    - {sourceAddress: 10.0.0.8, "+y+"}"),
			`f.yaml:11: networks[red].peers[10.0.0.1].overrides[1].sourceAddress: "10.0.0.8": line 10 gives 10.0.0.7 for`,
			func(c *Config) bool { return c.Networks[0].Peers[0].SourceAddress.String() == "10.0.0.7" },
		},
		"interface of two networks": {
			network("  interfaces:", "  - {name: eth1, "+x+"}", "- name: blue", "  vrf: vrf-blue", "  table: 1002", "  interfaces: [eth2, {name: eth1, "+y+"}]"),
			`f.yaml:11: networks[blue].interfaces[eth1]: "eth1": line 7 gives this node's device to another network, which keeps it`,
			func(c *Config) bool { return len(c.Networks[0].Interfaces) == 1 && len(c.Networks[1].Interfaces) == 1 },
		},
		"VRF of two networks": {
			network("  "+x, "- name: blue", "  vrf: vrf-red", "  table: 1002", "  "+y),
			`f.yaml:8: networks[blue].vrf: "vrf-red": line 4 gives this node's device to another network`,
			func(c *Config) bool { return c.Networks[0].VRF == "vrf-red" && c.Networks[1].Elsewhere != "" },
		},
		"table of two networks": {
			network("- name: blue", "  vrf: vrf-blue", "  table: 1002", "  overrides:", "  - {table: 1001, nodeSelectors: [{matchLabels: {x: y, z: w}}]}"),
			`f.yaml:10: networks[blue].overrides[0].table: "1001": line 5 gives this node's table to another network`,
			func(c *Config) bool { return c.Networks[0].Table == 1001 && c.Networks[1].Elsewhere != "" },
		},
		"peer of two networks without a VRF": {
			"bgp: {asn: 64512}\nnetworks:\n- name: default\n  peers:\n  - {address: 10.0.0.1, asn: 1, " + x + "}\n" +
				"- name: blue\n  table: 7\n  " + y + "\n  peers: [{address: 10.0.0.1, asn: 1}, {address: 10.0.0.2, asn: 1}]\n",
			`f.yaml:9: networks[blue].peers[10.0.0.1]: "10.0.0.1": line 5 gives this node the same peer in another network without a VRF, and is in force`,
			func(c *Config) bool { return len(c.Networks[0].Peers) == 1 && len(c.Networks[1].Peers) == 1 },
		},
		"source address of two networks": {
			"bgp: {asn: 64512}\nnetworks:\n- name: default\n  peers: [{address: 10.0.0.1, asn: 1, sourceAddress: 10.0.0.7}]\n" +
				"- name: blue\n  table: 7\n  peers: [{address: 10.0.0.1, asn: 1, overrides: [{sourceAddress: 10.0.0.7, nodeSelectors: [{matchLabels: {x: y, z: w}}]}]}]\n",
			`f.yaml:7: networks[blue].peers[10.0.0.1]: "10.0.0.1": line 4 gives this node the same peer`,
			func(c *Config) bool { return len(c.Networks[0].Peers) == 1 && len(c.Networks[1].Peers) == 0 },
		},
		"no AS": {
			"bgp:\n  overrides:\n  - {asn: 65001, nodeSelectors: [{matchLabels: {x: other}}]}\nnetworks:\n- name: red\n  table: 7\n  peers: [{address: 10.0.0.1, asn: 1}]\n",
			`f.yaml:2: bgp.asn: missing, and no entry of bgp.overrides that matches this node has one`,
			func(c *Config) bool { return len(c.Networks[0].Peers) == 0 && c.Networks[0].Table == 7 },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := parsed(t, test.text)
			of := c.For(map[string]string{"x": "y", "z": "w"})
			require.Len(t, of.Faults, 1)
			require.Contains(t, of.Faults[0].Error.Error(), test.fault)
			require.True(t, test.holds(of.Config), of.Config)
			if name != "no AS" {
				require.Empty(t, c.For(map[string]string{"x": "y"}).Faults)
				require.Empty(t, c.For(map[string]string{"z": "w"}).Faults)
				require.Empty(t, c.For(nil).Faults)
			}
		})
	}
	same := parsed(t, network("  peers:", "  - {address: 10.0.0.1, asn: 1, "+x+"}", "  - {address: 10.0.0.1, asn: 1, "+y+"}"))
	require.Empty(t, same.For(map[string]string{"x": "y", "z": "w"}).Faults, "entries that agree do not contradict each other")
}

// TestPeerOfTwoNetworks lists one address or interface as a peer of two networks where each node has a session of its own with it.
func TestPeerOfTwoNetworks(t *testing.T) {
	const x, y = "nodeSelectors: [{matchLabels: {x: y}}]", "nodeSelectors: [{matchLabels: {z: w}}]"
	for name, networks := range map[string]string{
		"a VRF":                "{name: default, peers: [{address: 10.0.0.1, asn: 1}]}, {name: red, vrf: vrf-red, peers: [{address: 10.0.0.1, asn: 1}]}",
		"two VRFs":             "{name: blue, vrf: vrf-blue, peers: [{address: 10.0.0.1, asn: 1}]}, {name: red, vrf: vrf-red, peers: [{address: 10.0.0.1, asn: 1}]}",
		"two source addresses": "{name: default, peers: [{address: 10.0.0.1, asn: 1, sourceAddress: 10.0.0.7}]}, {name: red, table: 7, peers: [{address: 10.0.0.1, asn: 1, sourceAddress: 10.0.0.8}]}",
		"a source address":     "{name: default, peers: [{address: 10.0.0.1, asn: 1}]}, {name: red, table: 7, peers: [{address: 10.0.0.1, asn: 1, sourceAddress: 10.0.0.8}]}",
		"overrides":            "{name: default, peers: [{address: 10.0.0.1, asn: 1}]}, {name: red, table: 7, peers: [{address: 10.0.0.1, asn: 1, overrides: [{sourceAddress: 10.0.0.8, nodeSelectors: [{}]}]}]}",
		"two ports":            "{name: default, peers: [{address: 10.0.0.1, asn: 1}]}, {name: red, table: 7, peers: [{address: 10.0.0.1, asn: 1, port: 1179}]}",
		"nodes of networks":    "{name: blue, table: 8, " + x + ", peers: [{address: 10.0.0.1, asn: 1}]}, {name: red, table: 7, " + y + ", peers: [{address: 10.0.0.1, asn: 1}]}",
		"nodes of peers":       "{name: default, peers: [{address: 10.0.0.1, asn: 1, " + x + "}]}, {name: red, table: 7, peers: [{address: 10.0.0.1, asn: 1, " + y + "}]}",
		"nodes of interfaces":  "{name: blue, table: 8, interfaces: [{name: eth2, " + x + "}], peers: [{interface: eth2, asn: 1}]}, {name: red, table: 7, interfaces: [{name: eth2, " + y + "}], peers: [{interface: eth2, asn: 1}]}",
	} {
		t.Run(name, func(t *testing.T) {
			c := parsed(t, "bgp: {asn: 64512}\nnetworks: ["+networks+"]\n")
			for _, labels := range []map[string]string{{"x": "y"}, {"z": "w"}} {
				of := c.For(labels)
				require.Empty(t, of.Faults)
				require.NotEmpty(t, slices.Concat(of.Networks[0].Peers, of.Networks[1].Peers))
			}
		})
	}
}

func TestRouterIDOf(t *testing.T) {
	seen := map[netip.Addr]string{}
	for i := range 3000 {
		name := fmt.Sprintf("rack-%d-node-%d", i/16, i%16)
		id := RouterIDOf(name)
		require.True(t, id.Is4() && id.IsGlobalUnicast() && !id.IsLoopback(), id)
		require.Empty(t, seen[id], name)
		seen[id] = name
	}
	require.Equal(t, netip.MustParseAddr("9.12.45.229"), RouterIDOf("b"), "it must not change: sessions would end")
}

// TestBadNodewise has one fault of the keys that depend on nodes in each case.
func TestBadNodewise(t *testing.T) {
	const to, x = "{address: 10.1.0.1, asn: 64601, ", "nodeSelectors: [{matchLabels: {rack: r1}}]"
	bgp := func(keys string) string { return "bgp: {asn: 64512, " + keys + "}\n" }
	network := func(keys string) string {
		return "bgp: {asn: 64512}\nnetworks:\n- {name: red, vrf: vrf-red, table: 1001, " + keys + "}\n"
	}
	peer := func(keys string) string { return network("peers: [" + to + keys + "}]") }
	uplink := func(keys string) string { return network("interfaces: [" + keys + "]") }
	second := func(keys, other string) string { return network(keys) + "- {name: blue, " + other + "}\n" }
	prepend := func(asn int, ofBGP, ofPeer string) string {
		return fmt.Sprintf("bgp: {asn: 64512, overrides: [%s]}\nnetworks:\n- {name: red, vrf: vrf-red, peers: [{address: 10.1.0.1, asn: %d, "+
			"overrides: [%s], advertise: {asPathPrepend: 1}}]}\n", ofBGP, asn, ofPeer)
	}
	const internal = `3: networks[red].peers[10.1.0.1].advertise.asPathPrepend: "1": external peers only: internal ones refuse a path with their own AS number`
	for _, external := range []string{ // on some nodes, or on all
		prepend(64512, "{asn: 64513, "+x+"}", ""), prepend(64512, "", "{myASN: 64513, "+x+"}"), prepend(64601, "{routerID: 1.1.1.1, "+x+"}", ""),
	} {
		parsed(t, external)
	}
	const at, device = "3: networks[red]", "not a usable interface's name: letters, digits, '.', '_' and '-', a letter, digit or '_' first, and not lo, all or default"
	const asn = "a reserved AS number: private ones are 64512 to 65534 and 4200000000 to 4294967294"
	tests := map[string]struct{ text, want string }{
		"selectors of a peer: mapping":       {peer("nodeSelectors: {matchLabels: {a: b}}"), at + ".peers[10.1.0.1].nodeSelectors: a list is needed here, not a mapping"},
		"selectors of a peer: word":          {peer("nodeSelectors: r1"), at + `.peers[10.1.0.1].nodeSelectors: "r1": a list is needed here, not a single value`},
		"selectors of a peer: list of words": {peer("nodeSelectors: [r1]"), at + `.peers[10.1.0.1].nodeSelectors[0]: "r1": a mapping of keys to values is needed here, not a single value`},
		"selectors of a peer: null entry":    {peer("nodeSelectors: [null]"), at + ".peers[10.1.0.1].nodeSelectors[0]: missing: a label selector, or {} for every node"},
		"selectors of a peer: labels bare":   {peer("nodeSelectors: [{rack: r1}]"), at + ".peers[10.1.0.1].nodeSelectors[0].rack: unknown key; known here: matchLabels, matchExpressions"},
		"selectors of a peer: singular":      {peer("nodeSelector: {matchLabels: {a: b}}"), at + ".peers[10.1.0.1].nodeSelector: unknown key: is nodeSelectors meant? Known here: address"},
		"selectors of a peer: number":        {peer("nodeSelectors: [{matchLabels: {rack: 1}}]"), at + `.peers[10.1.0.1].nodeSelectors[0].matchLabels.rack: "1": not a string: put it in quotes`},
		"selectors of a peer: no value":      {peer("nodeSelectors: [{matchLabels: {rack: }}]"), at + `.peers[10.1.0.1].nodeSelectors[0]: matchLabels has no value for "rack": give one, or ask for the key with the operator Exists`},
		"selectors of a peer: bad key":       {peer(`nodeSelectors: [{matchLabels: {"ra ck": r1}}]`), at + `.peers[10.1.0.1].nodeSelectors[0]: not a label selector: key: Invalid value: "ra ck"`},
		"selectors of a peer: bad value":     {peer(`nodeSelectors: [{matchLabels: {rack: "r 1"}}]`), at + `.peers[10.1.0.1].nodeSelectors[0]: not a label selector: values[0][rack]: Invalid value: "r 1"`},
		"selectors of a peer: operator":      {peer("nodeSelectors: [{matchExpressions: [{key: a, operator: Near}]}]"), at + `.peers[10.1.0.1].nodeSelectors[0]: not a label selector: "Near" is not a valid label selector operator`},
		"selectors of a peer: In of nothing": {peer("nodeSelectors: [{matchExpressions: [{key: a, operator: In}]}]"), at + ".peers[10.1.0.1].nodeSelectors[0]: not a label selector: values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty"},
		"selectors of a peer: Exists of":     {peer("nodeSelectors: [{matchExpressions: [{key: a, operator: Exists, values: [b]}]}]"), at + `.peers[10.1.0.1].nodeSelectors[0]: not a label selector: values: Invalid value: ["b"]: values set must be empty for exists and does not exist`},
		"selectors of a peer: Gt":            {peer("nodeSelectors: [{matchExpressions: [{key: a, operator: Gt, values: ['3']}]}]"), at + `.peers[10.1.0.1].nodeSelectors[0]: not a label selector: "Gt" is not a valid label selector operator`},
		"selectors of a peer: no operator":   {peer("nodeSelectors: [{matchExpressions: [{key: a}]}]"), at + `.peers[10.1.0.1].nodeSelectors[0]: not a label selector: "" is not a valid label selector operator`},
		"selectors of a peer: expression":    {peer("nodeSelectors: [{matchExpressions: {key: a}}]"), at + ".peers[10.1.0.1].nodeSelectors[0].matchExpressions: a list is needed here, not a mapping"},
		"selectors of a peer: value":         {peer("nodeSelectors: [{matchExpressions: [{key: a, operator: In, value: b}]}]"), at + ".peers[10.1.0.1].nodeSelectors[0].matchExpressions[0].value: unknown key: is values meant? Known here: key, operator, values"},
		"selectors of a peer: twice":         {peer("nodeSelectors: [{matchLabels: {a: b}}, {matchLabels: {a: b}}]"), at + ".peers[10.1.0.1].nodeSelectors[1]: the list has this selector already, on line 3"},
		"selectors of a peer: twice empty":   {peer("nodeSelectors: [{}, {}]"), at + ".peers[10.1.0.1].nodeSelectors[1]: the list has this selector already, on line 3"},

		"peer twice, one everywhere":      {network("peers: [" + to + x + "}, {address: 10.1.0.1, asn: 64602}]"), at + ".peers[10.1.0.1]: this network has this peer already, on line 3"},
		"peer twice, the first":           {network("peers: [{address: 10.1.0.1, asn: 64602}, " + to + x + "}]"), at + ".peers[10.1.0.1]: this network has this peer already, on line 3"},
		"peer twice, same selector":       {network("peers: [" + to + x + "}, {address: 10.1.0.1, asn: 64602, " + x + "}]"), at + ".peers[10.1.0.1]: this network has this peer already, on line 3"},
		"unnumbered twice, same selector": {network("interfaces: [eth1], peers: [{interface: eth1, asn: 1, " + x + "}, {interface: eth1, asn: 2, " + x + "}]"), at + ".peers[eth1]: this network has this peer already, on line 3"},

		"myASN: zero":       {peer("myASN: 0"), at + `.peers[10.1.0.1].myASN: "0": ` + asn},
		"myASN: AS_TRANS":   {peer("myASN: 23456"), at + `.peers[10.1.0.1].myASN: "23456": ` + asn},
		"myASN: last":       {peer("myASN: 4294967295"), at + `.peers[10.1.0.1].myASN: "4294967295": ` + asn},
		"myASN: too large":  {peer("myASN: 4294967296"), at + `.peers[10.1.0.1].myASN: "4294967296": not a whole number from 0 to 4294967295`},
		"myASN: word":       {peer("myASN: ours"), at + `.peers[10.1.0.1].myASN: "ours": not a whole number from 0 to 4294967295`},
		"myASN: asdot":      {peer("myASN: 1.10"), at + `.peers[10.1.0.1].myASN: "1.10": not a whole number from 0 to 4294967295`},
		"myASN: misspelled": {peer("myAsn: 1"), at + ".peers[10.1.0.1].myAsn: unknown key: is myASN meant? Known here: address"},
		"myASN: external":   {peer("myASN: 64700, advertise: {localPref: 200}"), at + `.peers[10.1.0.1].advertise.localPref: "200": internal peers only`},

		"prepend: a router ID differs":   {prepend(64512, "{routerID: 1.1.1.1, "+x+"}", ""), internal},
		"prepend: a source differs":      {prepend(64512, "", "{sourceAddress: 10.1.0.2, "+x+"}"), internal},
		"prepend: our AS is the same":    {prepend(64512, "{asn: 64512, "+x+"}", "{myASN: 64512, "+x+"}"), internal},
		"prepend: overrides have our AS": {strings.Replace(prepend(64513, "{asn: 64513, "+x+"}", ""), "asn: 64512, ", "", 1), internal},

		"source: word":             {peer("sourceAddress: eth0"), at + `.peers[10.1.0.1].sourceAddress: "eth0": not an IP address`},
		"source: prefix":           {peer("sourceAddress: 10.1.0.2/24"), at + `.peers[10.1.0.1].sourceAddress: "10.1.0.2/24": not an IP address`},
		"source: other family":     {peer(`sourceAddress: "fd00::1"`), at + `.peers[10.1.0.1].sourceAddress: "fd00::1": of another family than the peer's address 10.1.0.1`},
		"source: the peer's":       {peer("sourceAddress: 10.1.0.1"), at + `.peers[10.1.0.1].sourceAddress: "10.1.0.1": the peer's own address: an address of this node is needed`},
		"source: loopback":         {peer("sourceAddress: 127.0.0.1"), at + `.peers[10.1.0.1].sourceAddress: "127.0.0.1": an address of this node is needed: not a unicast address of another host`},
		"source: unspecified":      {peer("sourceAddress: 0.0.0.0"), at + `.peers[10.1.0.1].sourceAddress: "0.0.0.0": an address of this node is needed`},
		"source: multicast":        {peer("sourceAddress: 224.0.0.5"), at + `.peers[10.1.0.1].sourceAddress: "224.0.0.5": an address of this node is needed`},
		"source: link-local":       {peer(`sourceAddress: "fe80::1"`), at + `.peers[10.1.0.1].sourceAddress: "fe80::1": an address of this node is needed`},
		"source: mapped":           {peer(`sourceAddress: "::ffff:10.1.0.2"`), at + `.peers[10.1.0.1].sourceAddress: "::ffff:10.1.0.2": an address of this node is needed`},
		"source: unnumbered":       {network("interfaces: [eth1], peers: [{interface: eth1, asn: 1, sourceAddress: 10.1.0.2}]"), at + `.peers[eth1].sourceAddress: "10.1.0.2": an unnumbered session uses the interface's link-local address: leave this out`},
		"peer override: source":    {peer(`overrides: [{sourceAddress: "fd00::1", ` + x + "}]"), at + `.peers[10.1.0.1].overrides[0].sourceAddress: "fd00::1": of another family`},
		"peer override: AS":        {peer("overrides: [{myASN: 65535, " + x + "}]"), at + `.peers[10.1.0.1].overrides[0].myASN: "65535": ` + asn},
		"peer override: no nodes":  {peer("overrides: [{myASN: 64513}]"), at + ".peers[10.1.0.1].overrides[0].nodeSelectors: missing: the nodes whose values this replaces"},
		"peer override: nothing":   {peer("overrides: [{" + x + "}]"), at + ".peers[10.1.0.1].overrides[0]: replaces nothing: at least one of myASN, sourceAddress is needed"},
		"peer override: asn":       {peer("overrides: [{asn: 64513, " + x + "}]"), at + ".peers[10.1.0.1].overrides[0].asn: unknown key: is myASN meant? Known here: nodeSelectors, myASN, sourceAddress"},
		"peer override: twice":     {peer("overrides: [{myASN: 64513, " + x + "}, {myASN: 64514, " + x + "}]"), at + `.peers[10.1.0.1].overrides[1].myASN: "64514": another entry sets it for the same selector, on line 3`},
		"peer override: mapping":   {peer("overrides: {myASN: 64513, " + x + "}"), at + ".peers[10.1.0.1].overrides: a list is needed here, not a mapping"},
		"BGP override: no nodes":   {bgp("overrides: [{asn: 64513}]"), "1: bgp.overrides[0].nodeSelectors: missing: the nodes whose values this replaces"},
		"BGP override: empty list": {bgp("overrides: [{asn: 64513, nodeSelectors: []}]"), "1: bgp.overrides[0].nodeSelectors: missing: the nodes whose values this replaces"},
		"BGP override: nothing":    {bgp("overrides: [{" + x + "}]"), "1: bgp.overrides[0]: replaces nothing: at least one of asn, routerID is needed"},
		"BGP override: AS zero":    {bgp("overrides: [{asn: 0, " + x + "}]"), `1: bgp.overrides[0].asn: "0": ` + asn},
		"BGP override: AS word":    {bgp("overrides: [{asn: AS64513, " + x + "}]"), `1: bgp.overrides[0].asn: "AS64513": not a whole number`},
		"BGP override: myASN":      {bgp("overrides: [{myASN: 64513, " + x + "}]"), "1: bgp.overrides[0].myASN: unknown key; known here: nodeSelectors, asn, routerID"},
		"BGP override: port":       {bgp("overrides: [{asn: 64513, listenPort: 179, " + x + "}]"), "1: bgp.overrides[0].listenPort: unknown key"},
		"BGP override: ID of IPv6": {bgp(`overrides: [{routerID: "fd00::1", ` + x + "}]"), `1: bgp.overrides[0].routerID: "fd00::1": an IPv4 address that no other router has is needed`},
		"BGP override: ID zero":    {bgp("overrides: [{routerID: 0.0.0.0, " + x + "}]"), `1: bgp.overrides[0].routerID: "0.0.0.0": an IPv4 address that no other router has is needed`},
		"BGP override: ID number":  {bgp("overrides: [{routerID: 7, " + x + "}]"), `1: bgp.overrides[0].routerID: "7": not an IP address`},
		"BGP override: AS twice":   {bgp("overrides: [{asn: 64513, " + x + "}, {asn: 64514, " + x + "}]"), `1: bgp.overrides[1].asn: "64514": another entry sets it for the same selector, on line 1`},
		"BGP override: ID twice":   {bgp("overrides: [{routerID: 1.1.1.1, " + x + "}, {routerID: 1.1.1.2, " + x + "}]"), `1: bgp.overrides[1].routerID: "1.1.1.2": another entry sets it for the same selector, on line 1`},
		"BGP override: mapping":    {bgp("overrides: {asn: 64513}"), "1: bgp.overrides: a list is needed here, not a mapping"},
		"no AS at all":             {"networks:\n- {name: red, table: 7, peers: [{address: 10.1.0.1, asn: 1, myASN: 2}]}\n", " bgp.asn: missing: our own AS number, needed where there are peers"},
		"only a router ID":         {"bgp: {overrides: [{routerID: 1.1.1.1, " + x + "}]}\nnetworks:\n- {name: red, table: 7, peers: [{address: 10.1.0.1, asn: 1}]}\n", "1: bgp.asn: missing: our own AS number, needed where there are peers"},

		"interface: no name":       {uplink("{" + x + "}"), at + ".interfaces[0].name: missing: an interface's name"},
		"interface: list":          {uplink("[eth1]"), at + ".interfaces[0]: an interface's name or a mapping of keys to values is needed here, not a list"},
		"interface: number":        {uplink("7"), at + `.interfaces[0]: "7": not a string: put it in quotes`},
		"interface: bad name":      {uplink("{name: eth%d, " + x + "}"), at + `.interfaces[eth%d].name: "eth%d": ` + device},
		"interface: long name":     {uplink("{name: a-name-too-long-}"), at + `.interfaces[a-name-too-long-].name: "a-name-too-long-": not an interface's name: at most 15 bytes, this has 16`},
		"interface: unknown key":   {uplink("{name: eth1, device: eth2}"), at + ".interfaces[eth1].device: unknown key; known here: name, parent, vlan, mtu, addresses, nodeSelectors"},
		"interface: bad selector":  {uplink("{name: eth1, nodeSelectors: [{matchLabels: {'': b}}]}"), at + ".interfaces[eth1].nodeSelectors[0]: not a label selector"},
		"interface: twice":         {uplink("eth1, {name: eth1, " + x + "}"), at + `.interfaces[eth1].name: "eth1": this device is in use already, on line 3`},
		"interface: same selector": {uplink("{name: eth1, " + x + "}, {name: eth1, " + x + "}"), at + `.interfaces[eth1].name: "eth1": this device is in use already, on line 3`},
		"interface: two networks":  {second("interfaces: [{name: eth1, "+x+"}]", "table: 7, interfaces: [{name: eth1, "+x+"}]"), `4: networks[blue].interfaces[eth1].name: "eth1": this device is in use already, on line 3`},
		"interface: the tunnel's":  {uplink("{name: egressway, " + x + "}"), at + `.interfaces[egressway].name: "egressway": this device is in use already`},

		"network: bad selector":      {network("nodeSelectors: [{matchLabels: {a: 'b c'}}]"), at + ".nodeSelectors[0]: not a label selector"},
		"network: default":           {"networks:\n- {name: default, " + x + "}\n", "2: networks[default].nodeSelectors: every node has the default network, the main table: leave this out"},
		"network: default's VRF":     {"networks:\n- {name: default, overrides: [{vrf: v, " + x + "}]}\n", "2: networks[default].overrides: every node has the default network, the main table: leave this out"},
		"network: table, same nodes": {second(x, "table: 1001, "+x), `4: networks[blue].table: "1001": another network has this table, on line 3`},
		"network: VRF, same nodes":   {second(x, "vrf: vrf-red, "+x), `4: networks[blue].vrf: "vrf-red": this device is in use already, on line 3`},
		"network: VRF, every node":   {second(x, "vrf: vrf-red"), `4: networks[blue].vrf: "vrf-red": this device is in use already, on line 3`},
		"network: name twice":        {network(x) + "- {name: red, table: 7}\n", `4: networks[red].name: "red": another network has this name, on line 3`},
		"VRF override: no nodes":     {network("overrides: [{vrf: v}]"), at + ".overrides[0].nodeSelectors: missing: the nodes whose values this replaces"},
		"VRF override: nothing":      {network("overrides: [{" + x + "}]"), at + ".overrides[0]: replaces nothing: at least one of vrf, table is needed"},
		"VRF override: bad name":     {network("overrides: [{vrf: all, " + x + "}]"), at + `.overrides[0].vrf: "all": ` + device},
		"VRF override: empty":        {network("overrides: [{vrf: '', " + x + "}]"), at + ".overrides[0].vrf: missing: an interface's name"},
		"VRF override: the tunnel":   {network("overrides: [{vrf: egressway, " + x + "}]"), at + `.overrides[0].vrf: "egressway": steering.device has this name: choose another`},
		"VRF override: an uplink":    {network("interfaces: [eth1], overrides: [{vrf: eth1, " + x + "}]"), at + `.overrides[0].vrf: "eth1": an interface of the network has this name: choose another`},
		"VRF override: bare table":   {"networks:\n- {name: red, table: 7, overrides: [{vrf: v, " + x + "}]}\n", `2: networks[red].overrides[0].vrf: "v": the network has no vrf that this could replace`},
		"VRF override: kernel table": {network("overrides: [{table: 254, " + x + "}]"), at + `.overrides[0].table: "254": a table of the kernel's own`},
		"VRF override: steering":     {network("overrides: [{table: 794601, " + x + "}]"), at + `.overrides[0].table: "794601": our steering uses 794600 to 798695: choose another`},
		"VRF override: zero":         {network("overrides: [{table: 0, " + x + "}]"), at + `.overrides[0].table: "0": a table of the kernel's own`},
		"VRF override: interfaces":   {network("overrides: [{interfaces: [eth1], " + x + "}]"), at + ".overrides[0].interfaces: unknown key; known here: nodeSelectors, vrf, table"},
		"VRF override: twice":        {network("overrides: [{table: 7, " + x + "}, {table: 8, " + x + "}]"), at + `.overrides[1].table: "8": another entry sets it for the same selector, on line 3`},
	}
	require.GreaterOrEqual(t, len(tests), 60)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("f.yaml", []byte(test.text))
			require.Error(t, err)
			got := strings.ReplaceAll(err.Error(), "f.yaml:", "")
			require.Contains(t, "\n"+got, "\n"+test.want)
			require.LessOrEqual(t, strings.Count(got, "\n"), 1, "no errors that follow from it: %s", got)
		})
	}
}
