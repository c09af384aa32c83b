package plan

import (
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/sorted"
)

// neverSteered holds destinations that do not leave a link or a node at all.
var neverSteered = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// dataPlane plans what packets meet.
func (b *builder) dataPlane(services []*service) {
	d := &b.plan.DataPlane
	d.Marks = b.marks
	for _, n := range b.networks {
		id := b.paths[PathKey{PathNetwork, n.name}]
		if id == 0 {
			continue
		}
		p := Path{ID: id, Key: PathKey{PathNetwork, n.name}, Devices: n.devices}
		if n.usable {
			p.Table = n.table
		}
		d.Paths = append(d.Paths, p)
		for _, device := range n.devices {
			d.Uplinks = append(d.Uplinks, Uplink{device, id})
		}
	}
	for _, host := range sortedKeys(b.hosts) {
		h := b.hosts[host]
		key := PathKey{PathSteer, host}
		id := b.paths[key]
		p := Path{ID: id, Key: key, Table: h.routes[0].Table, Devices: h.devices, Tunneled: h.tunneled}
		if !h.tunneled {
			for _, r := range h.routes {
				p.Via = append(p.Via, r.NextHops[0].Gateway)
			}
		}
		d.Paths = append(d.Paths, p)
	}
	slices.SortFunc(d.Paths, func(x, y Path) int { return int(x.ID) - int(y.ID) })
	slices.SortFunc(d.Uplinks, func(x, y Uplink) int { return compareStrings(x.Device, y.Device) })

	var strays []netip.Prefix
	d.Pods, strays = b.pods(services)
	d.Cluster = b.clusterPrefixes(d.Pods, strays)
	b.guests(d)
	ingress := make([]IngressIP, 0, len(b.ingress))
	for a, owner := range b.ingress {
		ingress = append(ingress, IngressIP{Addr: a, Path: b.paths[PathKey{PathNetwork, owner.network}]})
	}
	slices.SortFunc(ingress, IngressIP.Compare)
	b.strays(services, ingress)
	d.Ingress = sorted.Of(ingress...)
	if t := b.plan.Tunnel; t != nil {
		d.ClampMSS4, d.ClampMSS6 = uint16(t.MTU-40), uint16(t.MTU-60) // IPv4 and IPv6 header, each with TCP's
	}
}

// strays finds the path to the other of host and standby for every ingress IP of which this node is one of them. The
// default network has no uplinks of its own by which what comes from outside could be told from what a partner passes on.
// A node without a daemon would send strays on.
func (b *builder) strays(services []*service, all []IngressIP) {
	for _, s := range services {
		partner := s.partner(b.Node)
		if s.network == nil || s.network.name == config.DefaultNetwork || b.Heard != nil && !b.Heard[partner] {
			continue
		}
		for _, a := range s.ingress {
			id := b.way(partner, a)
			i, known := slices.BinarySearchFunc(all, a, func(i IngressIP, a netip.Addr) int { return i.Addr.Compare(a) })
			if id != 0 && known {
				all[i].Stray = id
				all[i].Resumed = all[i].Resumed || s.choice.Host == b.Node && s.choice.Former
			}
		}
	}
}

// pods is where pods are: the nodes' pod CIDRs, and endpoints outside of them. The latter are strays where ranges of
// pods are known: anybody can write such an address into an EndpointSlice.
func (b *builder) pods(services []*service) (all, strays []netip.Prefix) {
	ranges := slices.Clone(b.Config.ClusterCIDRs)
	for _, n := range b.Objects.Nodes {
		all = append(all, n.PodCIDRs...)
	}
	ranges = minimal(append(ranges, all...))
	for _, s := range services {
		for _, e := range s.endpoints {
			if within(ranges, e.addr) {
				continue
			}
			p := netip.PrefixFrom(e.addr, e.addr.BitLen())
			all = append(all, p)
			if slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Addr().Is4() == e.addr.Is4() }) {
				strays = append(strays, p)
				b.problem("EgressService", s.key.String(), "endpoints", e.addr.String(), ReasonOutsidePodRanges,
					"is in no node's podCIDRs: it is served, but other pods reach it as something outside of the cluster; add its range to clusterCIDRs if it is a pod")
			}
		}
	}
	return minimal(all), strays
}

// guests plans what other nodes' pods may not do here.
func (b *builder) guests(d *DataPlane) {
	for name, n := range b.Objects.Nodes {
		if name == b.Node {
			continue
		}
		d.Guests = append(d.Guests, n.PodCIDRs...)
		for _, a := range n.Internal {
			if device, ok := b.onLink(a); ok {
				d.Between = append(d.Between, device)
			}
		}
	}
	if t := b.plan.Tunnel; t != nil {
		d.Between = append(d.Between, t.Device)
	}
	slices.Sort(d.Between)
	d.Guests, d.Between = minimal(d.Guests), slices.Compact(d.Between)
}

// clusterPrefixes is every destination that stays inside the cluster. A stray is none: it would lead other pods' packets
// to that address out by the default network.
func (b *builder) clusterPrefixes(pods, strays []netip.Prefix) []netip.Prefix {
	pods = slices.DeleteFunc(slices.Clone(pods), func(p netip.Prefix) bool { return slices.Contains(strays, p) })
	all := slices.Concat(pods, neverSteered, b.Config.ClusterCIDRs, b.Objects.ServiceCIDRs)
	for _, n := range b.Objects.Nodes {
		for _, a := range n.Addresses {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, l := range b.Facts.Links {
		for _, p := range l.Addrs {
			all = append(all, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
		}
	}
	for a := range b.clusterIPs {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return minimal(all)
}

// minimal sorts prefixes and drops those inside others.
func minimal(all []netip.Prefix) []netip.Prefix {
	all = slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return !p.IsValid() })
	for i, p := range all {
		all[i] = p.Masked()
	}
	slices.SortFunc(all, comparePrefix)
	out := all[:0]
	for _, p := range all {
		if len(out) > 0 && out[len(out)-1].Contains(p.Addr()) && out[len(out)-1].Bits() <= p.Bits() {
			continue
		}
		out = append(out, p)
	}
	return slices.Clip(out)
}

// within says whether one of the minimal prefixes holds addr.
func within(minimal []netip.Prefix, addr netip.Addr) bool {
	i, found := slices.BinarySearchFunc(minimal, addr, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return found || i > 0 && minimal[i-1].Contains(addr)
}

// announced says which of a service's ingress IPs this node announces.
func (b *builder) announced(s *service) []netip.Addr {
	if s.network == nil || !s.network.usable || len(s.network.Peers) == 0 || len(s.endpoints) == 0 || len(s.ingress) == 0 {
		return nil
	}
	serving := s.choice.Host == b.Node || s.choice.Host != "" && s.choice.Standby == b.Node
	if s.choice.Host == cluster.AllHosts {
		serving = b.Objects.Nodes[b.Node].Ready && (!s.service.LocalTraffic ||
			slices.ContainsFunc(s.endpoints, func(e endpoint) bool { return e.node == b.Node }))
	}
	if !serving {
		return nil
	}
	return s.ingress
}
