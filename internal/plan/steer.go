package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// Bytes that VXLAN adds to a packet: outer IP, UDP, VXLAN and inner Ethernet headers (RFC 7348).
const (
	vxlanOverhead4 = 50
	vxlanOverhead6 = 70
)

// steering holds the routes and devices by which this node reaches one host.
type steering struct {
	routes   []Route
	devices  []string
	tunneled bool
	via      MAC // of the host's tunnel device, on the shared path
}

// shared reports whether the shared path leads to the host.
func (s *steering) shared() bool { return s != nil && s.via != MAC{} }

// steer plans a routing table for every node steered to.
func (f *frame) steer(targets []target) {
	if f.tunnel != nil {
		t := *f.tunnel
		f.tunnelTo = &t
	}
	if id := f.paths[sharedPath]; id != 0 {
		f.planShared(config.SteeringTableBase + uint32(id))
	}
	for _, t := range targets {
		id, shares := f.paths[t.key], f.sharers[t.key.Name]
		switch {
		case t.key.Kind != PathSteer || id == 0 && !shares:
		case f.silent[t.key.Name]:
			f.reportSilent(t)
		case id == 0:
			f.shareSteering(t)
		default:
			f.planSteering(t, config.SteeringTableBase+uint32(id))
		}
	}
	if t := f.tunnelTo; t != nil {
		slices.SortFunc(t.Hosts, func(x, y TunnelHost) int { return compareStrings(x.Node, y.Node) })
	}
}

// reportSilent reports that packets are not steered to a node that needs them, because it does not answer.
func (f *frame) reportSilent(t target) {
	if t.needed {
		f.problem("Node", t.key.Name, "", "", cluster.ReasonHostSilent,
			"node %s has no answer from it by BFD (UDP %d): packets of pods that should be steered to it are dropped "+
				"until it answers, for it may forward them without a packet filter", f.node, f.config.Failover.BFD.Port)
	}
}

// planShared plans the table of the shared path: its next hop is nowhere, until the packet filter sets the host's MAC.
func (f *frame) planShared(table uint32) {
	nowhere := TunnelHost{MAC: Nowhere, NextHop4: tunnelHop(table), NextHop6: linkLocal(Nowhere)}
	f.tunnelTo.Spare = false
	f.tunnelTo.Hosts = append(f.tunnelTo.Hosts, nowhere)
	f.routes = append(f.routes, f.byTunnel(nowhere, table)...)
}

// shareSteering plans that the shared path leads to a node.
func (f *frame) shareSteering(t target) {
	host := t.key.Name
	h := f.tunnelled(host, config.SteeringTableBase+uint32(f.paths[sharedPath]))
	if h != nil {
		h.via = TunnelMAC(f.internalIP(host, f.tunnelTo.Local.Is4()))
		f.hosts[host] = h
	} else if t.needed {
		f.reportMissing(host, nil, Families{})
	}
}

// planSteering plans the routing table for a node steered to.
func (f *frame) planSteering(t target, table uint32) {
	host := t.key.Name
	h, missing := f.steerTo(host, table, t.families)
	if h != nil || t.needed {
		f.reportMissing(host, h, missing)
	}
	if h != nil {
		f.hosts[host] = h
		f.routes = append(f.routes, h.routes...)
	}
}

// steerTo steers to a host as steering.mode says. missing holds the needed families in which that is not possible. h is nil
// if no family is.
func (f *frame) steerTo(host string, table uint32, need Families) (h *steering, missing Families) {
	mode := f.config.Steering.Mode
	if mode == config.SteeringVXLAN {
		return f.tunnelled(host, table), Families{}
	}
	h, missing = f.direct(host, table, need)
	if mode == config.SteeringAuto && (h == nil || missing != Families{}) {
		if tunnelled := f.tunnelled(host, table); tunnelled != nil {
			return tunnelled, Families{}
		}
	}
	return h, missing
}

// reportMissing reports the packets that cannot be steered to a host: all if h is nil, else those of the missing families.
func (f *frame) reportMissing(host string, h *steering, missing Families) {
	var packets string
	switch {
	case h == nil:
		packets = "pods"
	case missing.IPv4:
		packets = "IPv4 packets of pods"
	case missing.IPv6:
		packets = "IPv6 packets of pods"
	default:
		return
	}
	mode := f.config.Steering.Mode
	f.problem("Node", host, "status.addresses", "", ReasonHostUnreachable,
		"%s of node %s cannot be steered to it: steering.mode %s needs an InternalIP %s", packets, f.node, mode, wantedOfHost[mode])
}

var wantedOfHost = map[config.SteeringMode]string{
	config.SteeringDirect: "of each family steered that is on-link there",
	config.SteeringVXLAN:  "of the family that the tunnel goes by",
	config.SteeringAuto:   "of each family steered that is on-link there, or one of the family that the tunnel goes by",
}

// way returns the path to another node for packets of a family; 0: no path leads there.
func (f *frame) way(node string, ipv4 bool) PathID {
	h := f.hosts[node]
	if h == nil || !slices.ContainsFunc(h.routes, func(r Route) bool { return r.Dst.Addr().Is4() == ipv4 }) {
		return 0
	}
	return f.idTo(node)
}

// idTo returns the id of the path to another node.
func (f *frame) idTo(node string) PathID {
	if f.hosts[node].shared() {
		return f.paths[sharedPath]
	}
	return f.paths[PathKey{PathSteer, node}]
}

// viaOf returns the MAC by which the shared path leads to a node; zero: another path does.
func (f *frame) viaOf(node string) MAC {
	if h := f.hosts[node]; h.shared() {
		return h.via
	}
	return MAC{}
}

// direct steers with the host's node IP as next hop, in the families in which that is on-link. missing holds the needed
// families in which it is not. h is nil if no family is on-link.
func (f *frame) direct(host string, table uint32, need Families) (h *steering, missing Families) {
	var onLink Families
	h = &steering{}
	for family, any := range anywhere {
		gw := f.internalIP(host, family == ipv4)
		device, ok := f.onLink(gw)
		if !ok {
			continue
		}
		onLink = onLink.and(only(family))
		h.routes = append(h.routes, Route{Table: table, Dst: any, NextHops: []NextHop{{Gateway: gw, Device: device}}})
		h.devices = appendNew(h.devices, device)
	}
	if len(h.routes) == 0 {
		h = nil
	}
	return h, need.without(onLink)
}

// appendNew appends a value to those that do not contain it.
func appendNew[T comparable](all []T, v T) []T {
	if slices.Contains(all, v) {
		return all
	}
	return append(all, v)
}

// planTunnel plans the VXLAN device, which every node needs that may send or receive through it. It is spare if no node needs
// it as long as path ids last.
func (g *ground) planTunnel(spare bool) {
	c := g.config.Steering
	local, overhead := g.internalIP(g.node, true), vxlanOverhead4
	if !local.IsValid() {
		local, overhead = g.internalIP(g.node, false), vxlanOverhead6
	}
	i := slices.IndexFunc(g.links, func(l Link) bool { return l.has(local) })
	switch {
	case !local.IsValid():
		return // the Node's own problem
	case i < 0:
		g.problem("Node", g.node, "status.addresses", local.String(), ReasonHostUnreachable,
			"no interface of this node has its InternalIP, which VXLAN steering sends from")
		return
	}
	mtu := cmp.Or(c.MTU, g.tunnelMTU(g.underlayMTU(g.links[i])-overhead))
	g.tunnel = &Tunnel{Device: c.Device, VNI: c.VNI, Port: c.Port, MTU: mtu, Local: local, MAC: TunnelMAC(local), Spare: spare}
}

// underlayMTU returns the MTU by which this node reaches others, given the link that has the InternalIP. The loopback device does not lead
// to them: any link with a subnet may.
func (g *ground) underlayMTU(l Link) int {
	if l.Name != loopback {
		return l.MTU
	}
	least := 0
	for _, l := range g.links {
		subnet := func(p netip.Prefix) bool { return !p.IsSingleIP() }
		if l.Name != loopback && l.MTU > 0 && g.inMain(l) && slices.ContainsFunc(l.Addrs, subnet) {
			least = min(cmp.Or(least, l.MTU), l.MTU)
		}
	}
	return cmp.Or(least, l.MTU)
}

// tunnelMTU returns the MTU of a tunnel where most bytes fit a packet of the underlay. Where br_netfilter reassembles a pod's
// fragments, this node fragments the datagram again, to the tunnel's MTU and not to the size that the host has reported to
// the pod. So packets that fit the tunnel must fit the uplinks too.
func (g *ground) tunnelMTU(most int) int {
	for _, l := range g.links {
		if g.isUplink(l.Name) && l.MTU > 0 {
			most = min(most, l.MTU)
		}
	}
	return max(most, 1280) // IPv6 requires 1280: over a smaller underlay the outer packets are fragmented
}

// tunnelled steers through the VXLAN device. On the shared path, the host's own routes are those of that path.
func (f *frame) tunnelled(host string, table uint32) *steering {
	t := f.tunnelTo
	if t == nil {
		return nil
	}
	remote := f.internalIP(host, t.Local.Is4())
	if !remote.IsValid() {
		return nil
	}
	mac := TunnelMAC(remote)
	hop := TunnelHost{Node: host, Remote: remote, MAC: mac, NextHop6: linkLocal(mac)}
	if f.paths[PathKey{PathSteer, host}] != 0 {
		hop.NextHop4 = tunnelHop(table)
	}
	t.Hosts = append(t.Hosts, hop)
	t.Spare = false
	return &steering{devices: []string{t.Device}, tunneled: true, routes: f.byTunnel(hop, table)}
}

// byTunnel returns the default routes of a table through the VXLAN device.
func (f *frame) byTunnel(hop TunnelHost, table uint32) (routes []Route) {
	via := [2]netip.Addr{ipv4: tunnelHop(table), ipv6: hop.NextHop6}
	for family, any := range anywhere {
		to := []NextHop{{Gateway: via[family], Device: f.tunnelTo.Device, OnLink: true}}
		routes = append(routes, Route{Table: table, Dst: any, NextHops: to})
	}
	return routes
}

// tunnelHop derives the IPv4 next hop of a steering table through the VXLAN device: a link-local address (RFC 3927) of 169.254.144.0/20,
// which has one for each of these tables. Only the neighbour entry on this node gives it a meaning. The addresses that clouds, caches
// of DNS and CNIs add to nodes lie outside: the kernel refuses a next hop that is an address of the node.
func tunnelHop(table uint32) netip.Addr {
	const first = 169<<24 | 254<<16 | 144<<8
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, first+table-config.SteeringTableBase)))
}

// TunnelMAC derives the address of a node's VXLAN device from its underlay address, so that nodes need not publish it.
func TunnelMAC(underlay netip.Addr) (mac MAC) {
	sum := sha256.Sum256([]byte("egressway " + underlay.String()))
	copy(mac[:], sum[:])
	mac[0] = mac[0]&^0x01 | 0x02 // locally administered, unicast
	return mac
}

// linkLocal returns the modified EUI-64 link-local address of a MAC (RFC 4291, appendix A).
func linkLocal(m MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 0x02, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// target is a path that sources lead to: another node that packets are steered to, or an unlisted network.
type target struct {
	key      PathKey
	needed   bool     // sources serve by it; a node that is not needed receives only its own, see leads.also
	families Families // of the packets of this node's pods that egress by a node
}

// targets counts the sources that lead to each path, and remembers the first of them.
type targets struct {
	of        map[PathKey]*leading
	firsts    *order // nil: to be found among all sources
	changed   bool   // since list ran, a path was added or removed, or its use changed
	reordered bool   // since list ran, the first source of a path changed
}

type leading struct{ ipv4, ipv6, also, network int }

// note considers a source that was read again.
func (t *targets) note(one *redone) {
	s, was := one.source, one.was
	if s.leads != was.leads {
		t.count(was.leads, -1)
		t.count(s.leads, 1)
	} else if s.leads == (leads{}) || s.rank() == was.rank() {
		return
	}
	switch {
	case t.firsts == nil || t.firsts.has(was.leads, s):
		t.firsts, t.reordered = nil, true
	case t.firsts.see(s):
		t.reordered = true
	}
}

func (t *targets) count(l leads, by int) {
	if l.network != "" {
		t.add(&t.at(PathKey{PathNetwork, l.network}).network, by)
	}
	if l.host != "" {
		n := t.at(PathKey{PathSteer, l.host})
		if l.of.IPv4 {
			t.add(&n.ipv4, by)
		}
		if l.of.IPv6 {
			t.add(&n.ipv6, by)
		}
	}
	if l.also != "" {
		t.add(&t.at(PathKey{PathSteer, l.also}).also, by)
	}
}

func (t *targets) at(k PathKey) *leading {
	n := t.of[k]
	if n == nil {
		n = &leading{}
		t.of[k] = n
	}
	return n
}

func (t *targets) add(n *int, by int) {
	had := *n > 0
	if *n += by; had != (*n > 0) {
		t.changed = true
	}
}

// list lists the paths: first those needed, then the others, each by the rank of the first source that leads there. So a
// source that begins to serve later takes no path id from another.
func (t *targets) list(sources []*source) []target {
	if t.firsts == nil {
		t.firsts = &order{firsts{}, firsts{}}
		for _, s := range sources {
			if s != nil {
				t.firsts.see(s)
			}
		}
	}
	t.changed, t.reordered = false, false
	all := t.inUse()
	slices.SortFunc(all, t.firsts.compare)
	return all
}

// order is the order of targets: needed has the first source that serves by a path, oldest the first other one.
type order struct{ needed, oldest firsts }

// see considers the paths that a source leads to; it reports whether the source is the first of one of them now.
func (o *order) see(s *source) bool {
	network := o.needed.see(PathKey{PathNetwork, s.leads.network}, s)
	host := o.needed.see(PathKey{PathSteer, s.leads.host}, s)
	return o.oldest.see(PathKey{PathSteer, s.leads.also}, s) || host || network
}

// has reports whether a source is the first of a path to which it leads, or led.
func (o *order) has(l leads, s *source) bool {
	return o.needed[PathKey{PathNetwork, l.network}] == s || o.needed[PathKey{PathSteer, l.host}] == s ||
		o.oldest[PathKey{PathSteer, l.also}] == s
}

// compare is negative where x comes before y.
func (o *order) compare(x, y target) int {
	switch {
	case x.needed && y.needed:
		return cmp.Or(o.needed[x.key].before(o.needed[y.key]), comparePaths(x.key, y.key))
	case x.needed:
		return -1
	case y.needed:
		return 1
	}
	return o.oldest[x.key].before(o.oldest[y.key])
}

// comparePaths orders the host and the network of one source: its pods egress by the host.
func comparePaths(x, y PathKey) int { return strings.Compare(string(y.Kind), string(x.Kind)) }

// firsts holds the first source by rank that leads to each path.
type firsts map[PathKey]*source

// see considers a source that leads to a path (without a name: to none); it reports whether the source is the first now.
func (f firsts) see(k PathKey, s *source) bool {
	if first := f[k]; k.Name == "" || first != nil && s.before(first) >= 0 {
		return false
	}
	f[k] = s
	return true
}

// inUse returns the paths that sources lead to, in no order, and forgets the others.
func (t *targets) inUse() []target {
	all := make([]target, 0, len(t.of))
	for k, n := range t.of {
		if *n == (leading{}) {
			delete(t.of, k)
			continue
		}
		all = append(all, target{k, n.ipv4+n.ipv6+n.network > 0, Families{n.ipv4 > 0, n.ipv6 > 0}})
	}
	return all
}

// sending counts the sources whose pods need routes.
type sending struct {
	out     map[string]*tally // by network
	dropped tally
}

// tally holds a count for each family.
type tally [2]int

func (t *tally) add(of Families, by int) {
	if of.IPv4 {
		t[ipv4] += by
	}
	if of.IPv6 {
		t[ipv6] += by
	}
}

func (n *sending) count(s *source, by int) {
	if s.sends == (sends{}) {
		return
	}
	n.dropped.add(s.sends.dropped, by)
	if s.sends.out != (Families{}) {
		counts := n.out[s.network.name]
		if counts == nil {
			counts = &tally{}
			n.out[s.network.name] = counts
		}
		counts.add(s.sends.out, by)
	}
}

// by returns the families of packets that leave by a network. For a network without a path, it returns those of dropped
// packets.
func (n *sending) by(f *frame, of *network) Families {
	counts := &n.dropped
	if f.out(of) != 0 {
		if counts = n.out[of.name]; counts == nil {
			return Families{}
		}
	}
	return Families{counts[ipv4] > 0, counts[ipv6] > 0}
}

// leads names the paths that a source needs, besides those of listed networks, and the nodes that this node steers its packets
// to.
type leads struct {
	network string   // the unlisted network that it serves by; empty: it has a listed one, or cannot serve
	host    string   // pods of this node egress by it; empty: none do
	of      Families // of these pods' packets
	also    string   // receives only its own: strays, and flows that it began to serve as the former host
}

func (s *source) leading(node string) (l leads) {
	if n := s.network; n != nil && n.usable && !n.listed && s.able {
		l.network = n.name
	}
	if !s.leavesByHost() {
		return l
	}
	l.also = s.partner(node)
	if of := s.steered(node); of != (Families{}) {
		l.host, l.of = s.host, of
		if s.standby != node {
			l.also = s.standby
		}
	}
	if l.also == node {
		l.also = ""
	}
	return l
}

// leavesByHost reports whether packets of the source's pods leave by one node, its host.
func (s *source) leavesByHost() bool {
	return s.network != nil && s.sourceIPBy != cluster.SourceIPByNetwork && s.host != "" && s.host != cluster.AllHosts
}

// steered returns the families in which this node's pods egress by another node.
func (s *source) steered(node string) Families {
	if s.host == node {
		return Families{}
	}
	return Families{
		IPv4: s.has[ipv4][here] && s.sourceIP(ipv4).IsValid(),
		IPv6: s.has[ipv6][here] && s.sourceIP(ipv6).IsValid(),
	}
}
