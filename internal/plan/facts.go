package plan

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// ReadFacts parses facts that a person wrote or copied from a node, as YAML. A link without "up" and "mtu" is up and has
// an MTU of 1500. A kernel without "egressHook" has one.
func ReadFacts(data []byte) (Facts, error) {
	var file struct {
		Links []struct {
			Name     string         `yaml:"name"`
			Up       *bool          `yaml:"up"`
			Master   string         `yaml:"master"`
			VRFTable uint32         `yaml:"vrfTable"`
			Parent   string         `yaml:"parent"`
			VLAN     uint16         `yaml:"vlan"`
			Ours     bool           `yaml:"ours"`
			MTU      int            `yaml:"mtu"`
			Addrs    []netip.Prefix `yaml:"addrs"`
		} `yaml:"links"`
		Paths []struct {
			Kind PathKind `yaml:"kind"`
			Name string   `yaml:"name"`
			ID   PathID   `yaml:"id"`
		} `yaml:"paths"`
		Gateways   []netip.Addr `yaml:"gateways"`
		EgressHook *bool        `yaml:"egressHook"`
		ARP        *bool        `yaml:"arp"`
		Routed     []struct {
			Table uint32 `yaml:"table"`
			IPv4  bool   `yaml:"ipv4"`
			IPv6  bool   `yaml:"ipv6"`
		} `yaml:"routed"`
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return Facts{}, fmt.Errorf("decode facts: %w", err)
	}
	f := Facts{
		Paths: map[PathKey]PathID{}, Routed: map[uint32]Families{}, Gateways: file.Gateways,
		EgressHook: file.EgressHook == nil || *file.EgressHook, ARP: file.ARP == nil || *file.ARP,
	}
	for i, l := range file.Links {
		if l.Name == "" {
			return Facts{}, fmt.Errorf("decode facts: links[%d] has no name", i)
		}
		f.Links = append(f.Links, Link{
			Name: l.Name, Index: i + 1, Up: l.Up == nil || *l.Up, Master: l.Master, VRFTable: l.VRFTable,
			Parent: l.Parent, VLAN: l.VLAN, Ours: l.Ours, MTU: cmp.Or(l.MTU, 1500), Addrs: l.Addrs,
		})
	}
	for _, p := range file.Paths {
		if p.Kind != PathNetwork && p.Kind != PathSteer && p.Kind != PathShared {
			return Facts{}, fmt.Errorf("decode facts: path kind %q: one of %s, %s, %s", p.Kind, PathNetwork, PathSteer, PathShared)
		}
		f.Paths[PathKey{p.Kind, p.Name}] = p.ID
	}
	for _, r := range file.Routed {
		f.Routed[r.Table] = Families{r.IPv4, r.IPv6}
	}
	return f, nil
}

// assumedTable is the first table that Assume gives to VRF devices for which the configuration names none.
const assumedTable = 1000000

// Assume invents facts for a node whose kernel cannot be read: its VRF devices exist as configured, with a route in each,
// and every other node is on the same LAN.
func Assume(c *config.Config, objects cluster.Objects, node string) Facts {
	f := Facts{Routed: map[uint32]Families{mainTable: {IPv4: true, IPv6: true}}, EgressHook: true, ARP: true}
	lan := Link{Name: "lan", Index: 2, Up: true, MTU: 1500}
	for _, a := range objects.Nodes.At(node).Internal {
		lan.Addrs = append(lan.Addrs, sharedSubnet(a, objects.Nodes))
	}
	f.Links = append(f.Links, lan)
	for i, n := range assumedNetworks(c, objects) {
		f.assumeNetwork(n, assumedTable+uint32(i))
	}
	return f
}

// assumeNetwork invents the links of a network, and a route in its table. A VRF device without a configured table has that of
// the argument.
func (f *Facts) assumeNetwork(n config.Network, vrfTable uint32) {
	table := n.Table
	if n.VRF != "" {
		table = cmp.Or(table, vrfTable)
		f.Links = append(f.Links, Link{Name: n.VRF, Up: true, MTU: 1500, VRFTable: table})
	}
	f.assumeUplinks(n)
	last := &f.Links[len(f.Links)-1]
	last.Addrs = append(last.Addrs, sources(n)...)
	if table != 0 {
		f.Routed[table] = Families{IPv4: true, IPv6: true}
	}
}

// assumeUplinks invents the interfaces of a network, and those that carry its VLANs.
func (f *Facts) assumeUplinks(n config.Network) {
	for _, i := range n.Interfaces {
		if i.Made() {
			parent := f.assumeLink(i.Parent)
			parent.MTU = max(parent.MTU, i.MTU)
		}
		l := f.assumeLink(i.Name)
		l.Master, l.Parent, l.VLAN, l.Ours = n.VRF, i.Parent, uint16(i.VLAN), i.Made()
		l.MTU, l.Addrs = cmp.Or(i.MTU, l.MTU), slices.Clone(i.Addresses)
	}
}

// assumeLink returns the link of a name, which is added if it is missing.
func (f *Facts) assumeLink(name string) *Link {
	i := slices.IndexFunc(f.Links, func(l Link) bool { return l.Name == name })
	if i < 0 {
		i = len(f.Links)
		f.Links = append(f.Links, Link{Name: name, Up: true, MTU: 1500})
	}
	return &f.Links[i]
}

// assumedNetworks lists the configured networks, and with allowUnlisted those that only EgressServices name.
func assumedNetworks(c *config.Config, objects cluster.Objects) []config.Network {
	all := slices.Clone(c.Networks)
	if !c.AllowUnlisted {
		return all
	}
	names := countNames(&objects)
	delete(names, "")
	for _, n := range c.Networks {
		delete(names, n.Name)
		delete(names, n.VRF)
	}
	for _, name := range sortedKeys(names) {
		all = append(all, unlisted(name))
	}
	return all
}

// sources returns the source addresses that a network's peers name.
func sources(n config.Network) (all []netip.Prefix) {
	for _, p := range n.Peers {
		if p.SourceAddress.IsValid() {
			all = append(all, single(p.SourceAddress))
		}
	}
	return all
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
