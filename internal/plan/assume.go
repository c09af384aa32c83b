package plan

import (
	"net/netip"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// assumedTable is the first table that Assume gives to VRF devices for which the configuration names none.
const assumedTable = 1000000

// Assume invents facts for a node whose kernel cannot be read: its VRF devices exist as configured, with a route in each,
// and every other node is on the same LAN.
func Assume(c *config.Config, objects cluster.Objects, node string) Facts {
	f := Facts{Routed: map[uint32]Families{mainTable: {IPv4: true, IPv6: true}}}
	lan := Link{Name: "lan", Index: 2, Up: true, MTU: 1500}
	for _, a := range objects.Nodes.At(node).Internal {
		lan.Addrs = append(lan.Addrs, sharedSubnet(a, objects.Nodes))
	}
	f.Links = append(f.Links, lan)
	var vrfs []config.Network
	listed := map[string]bool{}
	for _, n := range c.Networks {
		listed[n.Name], listed[n.VRF] = true, true
		vrfs = append(vrfs, n)
	}
	if c.AllowUnlisted {
		names := map[string]bool{}
		for _, e := range objects.EgressServices.All() {
			names[e.Network] = !listed[e.Network]
		}
		for _, name := range sortedKeys(names) {
			if names[name] && name != "" {
				vrfs = append(vrfs, unlisted(name))
			}
		}
	}
	for i, n := range vrfs {
		table := n.Table
		if n.VRF != "" {
			if table == 0 {
				table = assumedTable + uint32(i)
			}
			f.Links = append(f.Links, Link{Name: n.VRF, Up: true, MTU: 1500, VRFTable: table})
		}
		for _, i := range n.Interfaces {
			f.Links = append(f.Links, Link{Name: i, Up: true, MTU: 1500, Master: n.VRF})
		}
		if table != 0 {
			f.Routed[table] = Families{IPv4: true, IPv6: true}
		}
	}
	return f
}

// sharedSubnet is a subnet around a that holds every node's address of its family.
func sharedSubnet(a netip.Addr, nodes cluster.Map[string, cluster.Node]) netip.Prefix {
	bits := 24
	if a.Is6() {
		bits = 64
	}
	for _, n := range nodes.All() {
		for _, other := range n.Internal {
			for other.BitLen() == a.BitLen() && !netip.PrefixFrom(a, bits).Contains(other) {
				bits--
			}
		}
	}
	return netip.PrefixFrom(a, bits)
}
