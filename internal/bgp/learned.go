package bgp

import (
	"cmp"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// maxNextHops limits the next hops of one route.
const maxNextHops = 16

// candidate holds the parts of a path that the choice among paths to one prefix depends on. It is comparable.
type candidate struct {
	localPref uint32
	asLen     int
	origin    uint8
	med       uint32
	firstAS   uint32 // 0: the AS path is empty
	internal  bool
	loops     bool // its AS path contains our AS
	stale     bool // its peer restarts gracefully
	extended  bool // an IPv4 route with an IPv6 next hop (RFC 8950)
	family    bgp.Family
	nextHop   plan.NextHop // before resolve only its gateway is set, to the announced one
	linkLocal netip.Addr   // announced beside the gateway
}

// bestNextHops chooses the next hops of one prefix. Paths are compared as in RFC 4271 §9.1.2.2, down to external over
// internal: highest LOCAL_PREF, shortest AS path, lowest origin, lowest MED among paths from the same neighbouring AS.
// All paths that tie are used, even if their AS paths differ. Paths of a restarting peer count only if there is no
// other: that peer may be dead.
func bestNextHops(paths []candidate) []plan.NextHop {
	if len(paths) == 1 {
		return []plan.NextHop{paths[0].nextHop}
	}
	if len(paths) == 0 {
		return nil
	}
	paths = prefer(paths, func(c candidate) bool { return !c.stale })
	best := slices.MinFunc(paths, compareCandidates)
	paths = keep(paths, func(c candidate) bool { return compareCandidates(c, best) == 0 })
	lowest := map[uint32]uint32{}
	for _, c := range paths {
		if med, ok := lowest[c.firstAS]; !ok || c.med < med {
			lowest[c.firstAS] = c.med
		}
	}
	paths = keep(paths, func(c candidate) bool { return c.med == lowest[c.firstAS] })
	paths = prefer(paths, func(c candidate) bool { return !c.internal })
	hops := make([]plan.NextHop, 0, len(paths))
	for _, c := range paths {
		hops = append(hops, c.nextHop)
	}
	slices.SortFunc(hops, func(a, b plan.NextHop) int {
		return cmp.Or(a.Gateway.Compare(b.Gateway), cmp.Compare(a.Device, b.Device))
	})
	hops = slices.Compact(hops)
	return hops[:min(len(hops), maxNextHops)]
}

func compareCandidates(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.localPref, a.localPref), cmp.Compare(a.asLen, b.asLen), cmp.Compare(a.origin, b.origin))
}

func keep(paths []candidate, f func(candidate) bool) []candidate {
	var out []candidate
	for _, c := range paths {
		if f(c) {
			out = append(out, c)
		}
	}
	return out
}

// prefer keeps the paths for which f is true, or all if it is true for none.
func prefer(paths []candidate, f func(candidate) bool) []candidate {
	if kept := keep(paths, f); len(kept) > 0 {
		return kept
	}
	return paths
}

// newCandidate reads a path that a peer announced to our AS.
func newCandidate(p *apiutil.Path, localASN uint32) candidate {
	c := candidate{localPref: defaultLocalPref, internal: p.PeerASN == localASN, loops: throughAS(p, localASN), family: p.Family}
	c.read(p.Attrs)
	gateway, linkLocal := nextHops(p.Attrs)
	c.nextHop.Gateway, c.linkLocal = gateway.Unmap(), linkLocal
	c.extended = c.nextHop.Gateway.Is6() && p.Family == bgp.RF_IPv4_UC
	return c
}

// resolve completes the next hop of a path from a peer. It returns false if the path has no usable next hop or contains
// our AS (RFC 4271, 9.1.2), or if the peer is internal, but should not be. session is the peer's address.
func (c *candidate) resolve(session netip.Addr, peer *plan.Peer) bool {
	if c.loops || c.internal && peer.DynamicASN == config.DynamicExternal {
		return false
	}
	gateway := c.chooseGateway(session)
	if !usableFor(c.family, gateway) {
		return false
	}
	c.nextHop.Gateway = gateway.WithZone("")
	if c.onPeersLink(peer, gateway) {
		c.nextHop.Device = deviceOf(peer)
	}
	return !gateway.IsLinkLocalUnicast() || c.nextHop.Device != ""
}

// chooseGateway chooses between the next hops of a path. session is the peer's address.
func (c *candidate) chooseGateway(session netip.Addr) netip.Addr {
	gateway := c.nextHop.Gateway
	switch {
	case !usableGateway(gateway):
		return c.linkLocal
	case session.IsLinkLocalUnicast() && !c.internal:
		// On an unnumbered link the router's global address may be outside our subnets. GoBGP drops the link-local next
		// hop beside it, which equals the session's address.
		return session
	}
	return gateway
}

// onPeersLink reports whether a gateway is on the peer's own link. It gets the link's device: in a VRF or a bare table the
// kernel might not find it. A third-party gateway, behind an internal or distant peer, is left to the routing table.
func (c *candidate) onPeersLink(peer *plan.Peer, gateway netip.Addr) bool {
	adjacent := !c.internal && peer.EBGPMultiHop <= 1
	return adjacent || gateway.IsLinkLocalUnicast() || gateway.WithZone("") == peer.Address.WithZone("")
}

// read keeps the attributes that the choice depends on. External peers have no say in LOCAL_PREF (RFC 4271, 5.1.5).
func (c *candidate) read(attrs []bgp.PathAttributeInterface) {
	for _, a := range attrs {
		switch a := a.(type) {
		case *bgp.PathAttributeOrigin:
			c.origin = a.Value
		case *bgp.PathAttributeAsPath:
			c.readASPath(a.Value)
		case *bgp.PathAttributeLocalPref:
			if c.internal {
				c.localPref = a.Value
			}
		case *bgp.PathAttributeMultiExitDisc:
			c.med = a.Value
		}
	}
}

func (c *candidate) readASPath(segments []bgp.AsPathParamInterface) {
	for _, segment := range segments {
		c.asLen += segment.ASLen()
		as := segment.GetAS()
		if c.firstAS == 0 && len(as) > 0 {
			c.firstAS = as[0]
		}
	}
}

// nextHops returns the next hops of a path.
func nextHops(attrs []bgp.PathAttributeInterface) (gateway, linkLocal netip.Addr) {
	for _, a := range attrs {
		switch a := a.(type) {
		case *bgp.PathAttributeNextHop:
			gateway = a.Value
		case *bgp.PathAttributeMpReachNLRI:
			gateway, linkLocal = a.Nexthop, a.LinkLocalNexthop
		}
	}
	return gateway, linkLocal
}

// throughAS reports whether the AS path of p contains asn.
func throughAS(p *apiutil.Path, asn uint32) bool {
	for _, a := range p.Attrs {
		if path, ok := a.(*bgp.PathAttributeAsPath); ok {
			return slices.ContainsFunc(path.Value, func(segment bgp.AsPathParamInterface) bool {
				return slices.Contains(segment.GetAS(), asn)
			})
		}
	}
	return false
}

func usableGateway(a netip.Addr) bool {
	return a.IsValid() && (a.IsGlobalUnicast() || a.IsLinkLocalUnicast() && a.Is6())
}

// usableFor reports whether routes of a family can have the gateway: those of IPv6 cannot have one of IPv4.
func usableFor(family bgp.Family, a netip.Addr) bool {
	return usableGateway(a) && (a.Is6() || family != bgp.RF_IPv6_UC)
}

// onLink reports whether a next hop is on a link of this node. Others are unusable (RFC 4271, 9.1.2.1): they would have
// to be resolved by another route, and the kernel accepts no such gateway. The peer's own address is left to the
// kernel, since a route of the operator may lead to it. An agent of another version may not send the subnets of our
// links.
func onLink(peer *plan.Peer, gateway netip.Addr) bool {
	if len(peer.OnLink) == 0 || gateway.IsLinkLocalUnicast() || gateway == peer.Address {
		return true
	}
	found := false
	for _, p := range peer.OnLink {
		if gateway == p.Addr() {
			return false // our own address
		}
		found = found || p.Contains(gateway) && !broadcast(p, gateway)
	}
	return found
}

// broadcast reports whether an address is the first or last of an IPv4 subnet, which no host has.
func broadcast(subnet netip.Prefix, a netip.Addr) bool {
	if a.Is6() || subnet.Bits() > 30 {
		return false
	}
	b, hosts := a.As4(), uint32(math.MaxUint32)>>subnet.Bits()
	host := binary.BigEndian.Uint32(b[:]) & hosts
	return host == 0 || host == hosts
}

// deviceOf returns the interface by which an on-link peer is reached.
func deviceOf(peer *plan.Peer) string {
	return cmp.Or(peer.Device, peer.Interface, peer.Address.Zone())
}

// refusal holds the ranges that are never learned, from any peer. They have few different lengths.
type refusal struct {
	ranges  map[netip.Prefix]bool
	lengths [2][129]int // how many ranges of each family have the length
}

func newRefusal(ranges sorted.List[plan.Prefix]) (r refusal) {
	r.change(sorted.List[plan.Prefix]{}, ranges)
	return r
}

// change replaces the ranges of before by those of after.
func (r *refusal) change(before, after sorted.List[plan.Prefix]) {
	for had, now := range before.Changes(after) {
		if r.ranges == nil {
			r.ranges = map[netip.Prefix]bool{}
		}
		if now == nil {
			delete(r.ranges, had.Prefix)
			r.lengths[familyIndex(had.Prefix)][had.Bits()]--
		} else {
			r.ranges[now.Prefix] = true
			r.lengths[familyIndex(now.Prefix)][now.Bits()]++
		}
	}
}

// familyIndex returns 0 for IPv4, 1 for IPv6.
func familyIndex(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}

// covers reports whether a prefix is one of the ranges, lies inside one, or is not a unicast destination. A prefix that
// contains a range is harmless: traffic within the cluster is exempt from steering, and elsewhere the longer prefix
// wins.
func (r *refusal) covers(prefix netip.Prefix) bool {
	if prefix.Bits() == 0 {
		return false
	}
	for bits, n := range r.lengths[familyIndex(prefix)][:prefix.Bits()+1] {
		if n == 0 {
			continue
		}
		if around, err := prefix.Addr().Prefix(bits); err == nil && r.ranges[around] {
			return true
		}
	}
	return slices.ContainsFunc(neverLearned, func(n netip.Prefix) bool { return n.Bits() <= prefix.Bits() && n.Contains(prefix.Addr()) })
}

// neighbourhood holds the addresses that learned routes must not divert: subnets of this node's links, and addresses
// beyond them.
type neighbourhood struct {
	subnets []netip.Prefix // minimal
	beyond  []netip.Addr   // sorted
}

// flaw returns the flaw of a prefix that matches one of a peer's patterns. A prefix inside a subnet would beat the
// route to the subnet; one that contains a subnet is harmless. One that contains an address beyond may divert it, but
// the operator may want it as the only route there, and lists it exactly then.
func (n neighbourhood) flaw(prefix netip.Prefix, receive []config.PrefixPattern) flaw {
	if subnet, ok := n.subnetAround(prefix); ok {
		return flaw{inside: subnet}
	}
	if address, ok := n.beyondIn(prefix); ok && !listed(receive, prefix) {
		return flaw{around: address}
	}
	return flaw{}
}

// subnetAround returns the subnet that a prefix is in.
func (n neighbourhood) subnetAround(prefix netip.Prefix) (subnet netip.Prefix, ok bool) {
	i, found := slices.BinarySearchFunc(n.subnets, prefix.Addr(), func(s netip.Prefix, a netip.Addr) int { return s.Addr().Compare(a) })
	if !found {
		i--
	}
	if i < 0 || n.subnets[i].Bits() > prefix.Bits() || !n.subnets[i].Contains(prefix.Addr()) {
		return netip.Prefix{}, false
	}
	return n.subnets[i], true
}

// beyondIn returns the first of the addresses beyond the subnets that a prefix contains. Default routes divert none.
func (n neighbourhood) beyondIn(prefix netip.Prefix) (address netip.Addr, ok bool) {
	i, _ := slices.BinarySearchFunc(n.beyond, prefix.Addr(), netip.Addr.Compare)
	if prefix.Bits() == 0 || i == len(n.beyond) || !prefix.Contains(n.beyond[i]) {
		return netip.Addr{}, false
	}
	return n.beyond[i], true
}

// listed reports whether a pattern is for exactly this prefix.
func listed(receive []config.PrefixPattern, prefix netip.Prefix) bool {
	return slices.ContainsFunc(receive, func(p config.PrefixPattern) bool {
		least, most := lengths(p)
		return p.Prefix.Masked() == prefix && least <= prefix.Bits() && most == prefix.Bits()
	})
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// neverLearned holds "this network", loopback, link-local, multicast and reserved addresses.
var neverLearned = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("::/127"), // unspecified and loopback
	netip.MustParsePrefix("::ffff:0:0/96"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}
