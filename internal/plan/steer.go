package plan

import (
	"crypto/sha256"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// Bytes that VXLAN adds to a packet: outer IP, UDP, VXLAN and inner Ethernet headers (RFC 7348).
const (
	vxlanOverhead4 = 50
	vxlanOverhead6 = 70
)

// steering is how this node reaches one host.
type steering struct {
	routes   []Route
	devices  []string
	tunneled bool
}

// steer plans a routing table for every node steered to.
func (b *builder) steer() {
	b.hosts = map[string]*steering{}
	mode := b.Config.Steering.Mode
	if mode == config.SteeringVXLAN || mode == config.SteeringAuto && b.someNodeOffLink() {
		b.planTunnel()
	}
	for _, t := range b.targets {
		host := t.node
		id := b.paths[PathKey{PathSteer, host}]
		if id == 0 {
			continue
		}
		table := config.SteeringTableBase + uint32(id)
		h := b.direct(host, table, t.families)
		if mode == config.SteeringVXLAN || h == nil && mode == config.SteeringAuto {
			h = b.tunnelled(host, table)
		}
		if h == nil && !t.needed {
			continue
		}
		if h == nil {
			b.problem("Node", host, "status.addresses", "", ReasonHostUnreachable,
				"pods of node %s cannot be steered to it: steering.mode %s needs an InternalIP %s", b.Node, mode, wantedOfHost[mode])
			continue
		}
		b.hosts[host] = h
	}
	if t := b.plan.Tunnel; t != nil {
		slices.SortFunc(t.Hosts, func(x, y TunnelHost) int { return compareStrings(x.Node, y.Node) })
	}
}

var wantedOfHost = map[config.SteeringMode]string{
	config.SteeringDirect: "of each family steered that is on-link there",
	config.SteeringVXLAN:  "of the family that the tunnel goes by",
	config.SteeringAuto:   "of each family steered that is on-link there, or one of the family that the tunnel goes by",
}

// target is another node that packets are steered to.
type target struct {
	node     string
	needed   bool     // pods of this node egress by it; else it only takes what is its: strays, and flows of before
	families Families // of these pods' packets
}

// way is the path to another node for packets of a's family; 0: there is none.
func (b *builder) way(node string, a netip.Addr) PathID {
	h := b.hosts[node]
	if h == nil || !slices.ContainsFunc(h.routes, func(r Route) bool { return r.Dst.Addr().Is4() == a.Is4() }) {
		return 0
	}
	return b.paths[PathKey{PathSteer, node}]
}

// findTargets finds the nodes to steer to: those needed in the order in which services, the older first, need them.
func (b *builder) findTargets(services []*service) {
	byNode := map[string]*target{}
	watched, order := map[string]bool{}, map[string]int{}
	add := func(node string, a netip.Addr, needed bool) {
		if node == "" || node == b.Node {
			return
		}
		watched[node] = true
		t := byNode[node]
		if t == nil {
			t = &target{node: node}
			byNode[node] = t
			b.targets = append(b.targets, t)
		}
		if needed {
			if !t.needed {
				t.needed, order[node] = true, len(order)
			}
			t.families.IPv4, t.families.IPv6 = t.families.IPv4 || a.Is4(), t.families.IPv6 || a.Is6()
		}
	}
	for _, s := range services {
		if s.network == nil || s.spec.SourceIPBy == cluster.SourceIPByNetwork || s.choice.Host == "" || s.choice.Host == cluster.AllHosts {
			continue
		}
		for _, e := range s.endpoints {
			if e.on(b.Node) && s.source(e.addr).IsValid() {
				add(s.choice.Host, e.addr, true)
				add(s.choice.Standby, e.addr, false)
			}
		}
		add(s.partner(b.Node), netip.Addr{}, false)
	}
	slices.SortStableFunc(b.targets, func(x, y *target) int {
		switch {
		case x.needed && y.needed:
			return order[x.node] - order[y.node]
		case x.needed:
			return -1
		case y.needed:
			return 1
		}
		return 0
	})
	b.plan.Watched = sortedKeys(watched)
}

// partner is the other of host and standby where node is one of them.
func (s *service) partner(node string) string {
	switch node {
	case s.choice.Host:
		return s.choice.Standby
	case s.choice.Standby:
		return s.choice.Host
	}
	return ""
}

// onLink finds the interface, no uplink of a network, whose subnet holds addr.
func (b *builder) onLink(addr netip.Addr) (device string, ok bool) {
	for _, l := range b.Facts.Links {
		if b.isUplink(l.Name) || l.Name == b.Config.Steering.Device {
			continue
		}
		for _, p := range l.Addrs {
			if p.Contains(addr) && p.Addr() != addr && !p.IsSingleIP() {
				return l.Name, true
			}
		}
	}
	return "", false
}

func (b *builder) isUplink(device string) bool {
	return slices.ContainsFunc(b.networks, func(n *network) bool { return slices.Contains(n.devices, device) })
}

// internalIP is the first InternalIP of a family of a node.
func (b *builder) internalIP(node string, ipv4 bool) netip.Addr {
	for _, a := range b.Objects.Nodes[node].Internal {
		if a.Is4() == ipv4 {
			return a
		}
	}
	return netip.Addr{}
}

func (b *builder) someNodeOffLink() bool {
	for name, n := range b.Objects.Nodes {
		for _, a := range n.Internal {
			if _, ok := b.onLink(a); name != b.Node && !ok {
				return true
			}
		}
	}
	return false
}

// direct steers by the host's node IP as next hop; nil where one of the families needed is not on-link.
func (b *builder) direct(host string, table uint32, need Families) *steering {
	h := &steering{}
	for _, f := range []struct {
		needed, ipv4 bool
		any          netip.Prefix
	}{{need.IPv4, true, anyIPv4}, {need.IPv6, false, anyIPv6}} {
		gw := b.internalIP(host, f.ipv4)
		device, ok := b.onLink(gw)
		if !ok {
			if f.needed {
				return nil
			}
			continue
		}
		h.routes = append(h.routes, Route{Table: table, Dst: f.any, NextHops: []NextHop{{Gateway: gw, Device: device}}})
		if !slices.Contains(h.devices, device) {
			h.devices = append(h.devices, device)
		}
	}
	if len(h.routes) == 0 {
		return nil
	}
	return h
}

// planTunnel plans the VXLAN device, which every node needs that may send or receive by it.
func (b *builder) planTunnel() {
	c := b.Config.Steering
	local, overhead := b.internalIP(b.Node, true), vxlanOverhead4
	if !local.IsValid() {
		local, overhead = b.internalIP(b.Node, false), vxlanOverhead6
	}
	i := slices.IndexFunc(b.Facts.Links, func(l Link) bool {
		return slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr() == local })
	})
	switch {
	case !local.IsValid():
		return // the Node's own problem
	case i < 0:
		b.problem("Node", b.Node, "status.addresses", local.String(), ReasonHostUnreachable,
			"no interface of this node has its InternalIP, which VXLAN steering sends from")
		return
	}
	mtu := c.MTU
	if mtu == 0 {
		// IPv6 wants 1280: over a smaller underlay the outer packets are fragmented.
		mtu = max(b.Facts.Links[i].MTU-overhead, 1280)
	}
	b.plan.Tunnel = &Tunnel{Device: c.Device, VNI: c.VNI, Port: c.Port, MTU: mtu, Local: local, MAC: tunnelMAC(local)}
}

// tunnelled steers by the VXLAN device. One next hop serves both families: the link-local address of the host's device.
func (b *builder) tunnelled(host string, table uint32) *steering {
	t := b.plan.Tunnel
	if t == nil {
		return nil
	}
	remote := b.internalIP(host, t.Local.Is4())
	if !remote.IsValid() {
		return nil
	}
	mac := tunnelMAC(remote)
	hop := TunnelHost{Node: host, Remote: remote, MAC: mac, NextHop: linkLocal(mac)}
	t.Hosts = append(t.Hosts, hop)
	h := &steering{devices: []string{t.Device}, tunneled: true}
	for _, any := range []netip.Prefix{anyIPv4, anyIPv6} {
		h.routes = append(h.routes, Route{Table: table, Dst: any, NextHops: []NextHop{{Gateway: hop.NextHop, Device: t.Device, OnLink: true}}})
	}
	return h
}

// tunnelMAC derives the address of a node's VXLAN device from its underlay address, so that nodes need not tell.
func tunnelMAC(underlay netip.Addr) (mac MAC) {
	sum := sha256.Sum256([]byte("egressway " + underlay.String()))
	copy(mac[:], sum[:])
	mac[0] = mac[0]&^0x01 | 0x02 // locally administered, unicast
	return mac
}

// linkLocal is the modified EUI-64 link-local address of a MAC (RFC 4291, appendix A).
func linkLocal(m MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 0x02, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}
