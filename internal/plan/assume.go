package plan

import (
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// Assume makes facts up for a node that cannot be asked: its VRF devices are there as the configuration has them, with a
// route in each, and every other node is on the same LAN.
func Assume(c *config.Config, objects cluster.Objects, node string) Facts {
	f := Facts{Routed: map[uint32]Families{mainTable: {IPv4: true, IPv6: true}}}
	lan := Link{Name: "lan", Index: 2, Up: true, MTU: 1500}
	for _, a := range objects.Nodes[node].Internal {
		bits := 24
		if a.Is6() {
			bits = 64
		}
		lan.Addrs = append(lan.Addrs, netip.PrefixFrom(a, bits))
	}
	f.Links = append(f.Links, lan)
	for _, n := range c.Networks {
		if n.VRF != "" && n.Table != 0 {
			f.Links = append(f.Links, Link{Name: n.VRF, Up: true, MTU: 1500, VRFTable: n.Table})
		}
		for _, i := range n.Interfaces {
			f.Links = append(f.Links, Link{Name: i, Up: true, MTU: 1500, Master: n.VRF})
		}
		if n.Table != 0 {
			f.Routed[n.Table] = Families{IPv4: true, IPv6: true}
		}
	}
	slices.SortFunc(f.Links, func(x, y Link) int { return compareStrings(x.Name, y.Name) })
	return f
}
