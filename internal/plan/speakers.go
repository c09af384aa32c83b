package plan

import (
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// planSpeakers plans a BGP speaker for every network with peers, without Announce and Refuse.
func (f *frame) planSpeakers() {
	for _, n := range f.networks {
		if !f.usable(n) || len(n.Peers) == 0 {
			continue
		}
		if n.VRF == "" {
			f.speakers = append(f.speakers, f.speaker(n, 0))
		} else if device := f.link(n.VRF); device != nil { // else there is nothing to bind to before this plan is applied
			f.speakers = append(f.speakers, f.speaker(n, device.Index))
		}
	}
}

// speaker plans the BGP speaker of a network. device is the index of the network's VRF device; 0: it has none.
func (f *frame) speaker(n *network, device int) Speaker {
	c := f.config.BGP
	s := Speaker{
		Network: n.name, Device: n.VRF, DeviceIndex: device,
		ASN: c.ASN, ListenPort: c.ListenPort, GracefulRestart: c.GracefulRestart,
		RouterID: f.routerID(),
	}
	for _, p := range n.Peers {
		peer := f.peer(n, p)
		f.sendFrom(n, &peer)
		peer.OnLink = f.subnets(n, peer)
		s.Peers = append(s.Peers, peer)
	}
	s.Subnets = f.connected(n)
	s.Guarded = f.guarded(n, s.Subnets)
	return s
}

// sendFrom makes a peer's own source address the next hop of announcements, and reports it if this node lacks it.
func (f *frame) sendFrom(n *network, p *Peer) {
	source := p.SourceAddress
	if !source.IsValid() {
		return
	}
	if source.Is4() {
		p.NextHop4 = source
	} else {
		p.NextHop6 = source
	}
	here := func(l Link) bool { return f.sendsBy(l, n) && l.has(source) }
	if !slices.ContainsFunc(f.links, here) {
		f.problem("Network", n.name, "peers.sourceAddress", source.String(), ReasonSourceMissing,
			"no interface of node %s in this network has the address from which the session with %s should come: "+
				"add it to an interface, or correct it with overrides of the peer", f.node, p.PeerName())
	}
}

// sendsBy reports whether sessions of a network may come from a link's addresses.
func (g *ground) sendsBy(l Link, n *network) bool {
	if n.VRF == "" {
		return !g.inVRF(l)
	}
	return g.belongs(l, n)
}

// has reports whether the link has an address.
func (l *Link) has(addr netip.Addr) bool {
	return slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr() == addr })
}

// peer adds to a peer's configuration the interface that leads to it and our addresses there, the next hops to announce.
// No interface leads to a peer on this node itself. Such a peer speaks to routers for us: they need an address of an uplink
// as next hop, and the routing table finds the routers that are next hops of its routes.
func (g *ground) peer(n *network, c config.Peer) Peer {
	p := Peer{Peer: c, BFD: g.bfdProfile(c.BFDProfile)}
	local := slices.ContainsFunc(g.links, func(l Link) bool { return g.belongs(l, n) && l.has(c.Address) })
	switch l := g.linkTo(n, c, local); {
	case l != nil:
		p.Device = l.Name
		p.NextHop4, p.NextHop6 = g.nextHops(*l, c.Address)
	case c.Interface != "":
		p.Device = c.Interface
	default:
		p.NextHop4, p.NextHop6 = g.routedHops(n, local)
	}
	return p
}

// linkTo finds the interface that leads to a peer; nil: none does.
func (g *ground) linkTo(n *network, c config.Peer, local bool) *Link {
	onLink := func(a netip.Prefix) bool { return !local && a.Contains(c.Address) }
	for i, l := range g.links {
		if g.leadsOut(l, n, local) && (c.Interface == l.Name || slices.ContainsFunc(l.Addrs, onLink)) {
			return &g.links[i]
		}
	}
	return nil
}

// bfdProfile returns a copy of the BFD profile of a name; nil: there is none.
func (g *ground) bfdProfile(name string) *config.BFDProfile {
	i := slices.IndexFunc(g.config.BGP.BFDProfiles, func(p config.BFDProfile) bool { return p.Name == name })
	if name == "" || i < 0 {
		return nil
	}
	profile := g.config.BGP.BFDProfiles[i]
	return &profile
}

// leadsOut reports whether a link of a network may lead to a peer: the VRF device itself does not lead to the routers
// beyond a peer on this node.
func (g *ground) leadsOut(l Link, n *network, local bool) bool {
	return g.belongs(l, n) && (!local || l.Name != n.VRF)
}

// routedHops returns the next hops to announce to a peer beyond a router: the addresses of any link of the network, in the
// default network of one with an InternalIP rather than of a pod bridge.
func (g *ground) routedHops(n *network, local bool) (four, six netip.Addr) {
	for _, l := range g.links {
		a, b := g.nextHops(l, netip.Addr{})
		if !g.leadsOut(l, n, local) || l.Name == loopback || !a.IsValid() && !b.IsValid() {
			continue
		}
		if first := !four.IsValid() && !six.IsValid(); first || n.name == config.DefaultNetwork && g.isNode(l) {
			four, six = a, b
		}
	}
	return four, six
}

// subnets lists our addresses on the links that a peer's next hops may be on: its own link for an external peer on a link,
// else all links of the network, because an internal peer passes other routers' next hops on. Addresses with a host prefix
// are left out: no neighbour is in their subnet.
func (g *ground) subnets(n *network, p Peer) (all []netip.Prefix) {
	internal := p.DynamicASN == config.DynamicInternal || p.ASN == p.LocalASN(g.config.BGP.ASN)
	for _, l := range g.links {
		if g.belongs(l, n) && (internal || p.EBGPMultiHop > 1 || p.Device == "" || p.Device == l.Name) {
			all = append(all, l.Addrs...)
		}
	}
	return slices.DeleteFunc(all, netip.Prefix.IsSingleIP)
}

// connected lists the subnets of this node's own links in the table that holds a network's learned routes.
func (g *ground) connected(n *network) (all []netip.Prefix) {
	for _, l := range g.links {
		if l.Name == ipvsDevice || n.table == mainTable && g.inVRF(l) || n.table != mainTable && !g.belongs(l, n) {
			continue
		}
		for _, p := range l.Addrs {
			if !p.IsSingleIP() && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
				all = append(all, p)
			}
		}
	}
	return minimal(all)
}

// guarded lists addresses that a learned route must not capture unless the operator's configuration lists it: routers, and
// in the main table nodes and the API server, as far as they are beyond the connected subnets. Sessions of a network
// without a VRF use the main table.
func (g *ground) guarded(n *network, connected []netip.Prefix) (all []netip.Addr) {
	candidates := g.peersReachedBy(n)
	if n.table == mainTable {
		for _, o := range g.nodes.All() {
			candidates = append(candidates, o.Internal...)
		}
		candidates = append(candidates, g.apiServer...)
	}
	for _, a := range candidates {
		if g.isRemote(a, connected) {
			all = append(all, a.WithZone(""))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// peersReachedBy lists the BGP peers whose sessions use the table that holds a network's learned routes.
func (g *ground) peersReachedBy(n *network) (all []netip.Addr) {
	for _, o := range g.networks {
		if o == n && n.VRF != "" || n.table == mainTable && o.VRF == "" {
			for _, p := range o.Peers {
				all = append(all, p.Address)
			}
		}
	}
	return all
}

// isRemote reports whether an address is neither this node's nor in one of the connected subnets.
func (g *ground) isRemote(a netip.Addr, connected []netip.Prefix) bool {
	return a.IsValid() && !a.IsLinkLocalUnicast() && !a.IsLoopback() && g.nodeIPs[a] != g.node && !cluster.Within(connected, a)
}

// inVRF reports whether a link's addresses are in the table of a VRF.
func (g *ground) inVRF(l Link) bool {
	return l.VRFTable != 0 || slices.ContainsFunc(g.links, func(m Link) bool { return m.Name == l.Master && m.VRFTable != 0 })
}

// belongs reports whether a network's packets use a link.
func (g *ground) belongs(l Link, n *network) bool {
	if len(n.devices) == 0 {
		return !g.isUplink(l.Name) && l.Name != g.config.Steering.Device
	}
	return slices.Contains(n.devices, l.Name)
}

// isNode reports whether a link has an InternalIP of this node.
func (g *ground) isNode(l Link) bool {
	return slices.ContainsFunc(l.Addrs, func(a netip.Prefix) bool { return a.Addr() == g.internalIP(g.node, a.Addr().Is4()) })
}

// nextHops returns the address of each family on a link that a peer reaches best.
func (g *ground) nextHops(l Link, peer netip.Addr) (four, six netip.Addr) {
	return g.nextHop(l, peer, ipv4), g.nextHop(l, peer, ipv6)
}

// nextHop returns the address of a family on a link that a peer reaches best. Among equals the first counts.
func (g *ground) nextHop(l Link, peer netip.Addr, family int) (best netip.Addr) {
	most := -1
	for _, p := range l.Addrs {
		a := p.Addr()
		if familyOf(a) != family || a.IsLoopback() || family == ipv6 && a.IsLinkLocalUnicast() {
			continue
		}
		if n := g.reachRank(p, peer); n > most {
			best, most = a, n
		}
	}
	return best
}

// reachRank ranks an address of this node by how well a peer reaches it: one in the peer's subnet before the node's own, before one of
// another subnet, before a host prefix, which may be a virtual address that moves.
func (g *ground) reachRank(p netip.Prefix, peer netip.Addr) int {
	switch a := p.Addr(); {
	case !p.IsSingleIP() && p.Contains(peer.WithZone("")):
		return 3
	case a == g.internalIP(g.node, a.Is4()):
		return 2
	case !p.IsSingleIP():
		return 1
	}
	return 0
}
