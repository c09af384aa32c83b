package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// VLAN is a VLAN sub-interface that the daemon makes. An existing device of the same name, parent and ID that another program
// made is used as it is.
type VLAN struct {
	Name   string         `json:"name"`
	Parent string         `json:"parent"`
	ID     uint16         `json:"id"`
	MTU    int            `json:"mtu,omitempty"` // 0: as the kernel sets it, the parent's
	Addrs  []netip.Prefix `json:"addrs,omitempty"`
}

// planVLANs plans the sub-interfaces of a network, and notes those that this node cannot have.
func (g *ground) planVLANs(n *network) {
	for i := range n.Interfaces {
		c := &n.Interfaces[i]
		if !c.Made() {
			continue
		}
		if !g.fitsVLAN(n, c) {
			n.refused = append(n.refused, c.Name)
			continue
		}
		if !n.usable {
			continue
		}
		v := VLAN{Name: c.Name, Parent: c.Parent, ID: uint16(c.VLAN), MTU: c.MTU, Addrs: c.Addresses}
		if most := g.link(c.Parent).MTU; v.MTU > most {
			g.vlanProblem(n, c, ReasonVLANMismatch, "its parent has an MTU of %d, and a sub-interface at most that: "+
				"it gets %[1]d until the parent has more; raise the parent's, or lower mtu", most)
			v.MTU = most
		}
		n.made, g.vlans = append(n.made, c.Name), append(g.vlans, v)
	}
	slices.SortFunc(g.vlans, func(x, y VLAN) int { return compareStrings(x.Name, y.Name) })
}

// fitsVLAN reports whether this node has or can have a sub-interface. If it cannot, a problem says why.
func (g *ground) fitsVLAN(n *network, c *config.Interface) bool {
	here, other := g.link(c.Name), g.otherVLAN(c)
	switch {
	case g.link(c.Parent) == nil:
		g.vlanProblem(n, c, ReasonInterfaceMissing,
			"node %s has no interface %s to make it on; plug that in or rename it, or correct parent", g.node, c.Parent)
	case here != nil && !here.Ours && !here.isVLAN(c):
		g.vlanProblem(n, c, ReasonVLANMismatch,
			"node %s has another device of that name, %s, which stays as it is; rename one of them, or correct parent and vlan",
			g.node, here.kind())
	case other != nil && !other.Ours:
		g.vlanProblem(n, c, ReasonVLANMismatch,
			"node %s has this VLAN by the name %[2]s, made by another program; set name: %[2]s to use it, or remove it", g.node, other.Name)
	default:
		if here != nil && !here.Ours {
			g.checkAdopted(n, c, here)
		}
		return true
	}
	return false
}

// otherVLAN finds the sub-interface of the same parent and ID by another name; nil: there is none.
func (g *ground) otherVLAN(c *config.Interface) *Link {
	i := slices.IndexFunc(g.links, func(l Link) bool { return l.Name != c.Name && l.isVLAN(c) })
	if i < 0 {
		return nil
	}
	return &g.links[i]
}

// checkAdopted reports settings that the sub-interface of another program lacks: it is used as it is.
func (g *ground) checkAdopted(n *network, c *config.Interface, here *Link) {
	var lacks []string
	if c.MTU != 0 && here.MTU != c.MTU {
		lacks = append(lacks, "the MTU "+strconv.Itoa(c.MTU))
	}
	for _, a := range c.Addresses {
		if !slices.Contains(here.Addrs, a) {
			lacks = append(lacks, "address "+a.String())
		}
	}
	if len(lacks) > 0 {
		g.vlanProblem(n, c, ReasonVLANMismatch, "another program made it on node %s, without %s, and it is used as it is; "+
			"add that there, or delete the device so that Egressway makes it", g.node, strings.Join(lacks, " and "))
	}
}

func (g *ground) vlanProblem(n *network, c *config.Interface, reason cluster.Reason, format string, args ...any) {
	g.problem("Network", n.name, "interfaces", c.Name, reason, "VLAN %d on %s: %s", c.VLAN, c.Parent, fmt.Sprintf(format, args...))
}

// isVLAN reports whether a link is the sub-interface that an entry describes.
func (l *Link) isVLAN(c *config.Interface) bool {
	return l.VLAN == uint16(c.VLAN) && l.Parent == c.Parent
}

// kind describes a link that is not the sub-interface expected.
func (l *Link) kind() string {
	if l.VLAN == 0 {
		return "no VLAN sub-interface"
	}
	return fmt.Sprintf("VLAN %d on %s", l.VLAN, l.Parent)
}
