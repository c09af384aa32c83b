package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/sorted"
)

const mainTable = 254 // RT_TABLE_MAIN

// ground holds the inputs that do not depend on single services: nodes, links, networks, address ranges. It is immutable
// once made.
type ground struct {
	findings
	node       string
	config     *config.Config
	marks      Marks
	nodes      cluster.Map[string, cluster.Node]
	namespaces cluster.Map[string, cluster.Namespace]
	links      []Link       // by name
	apiServer  []netip.Addr // at which the API server answers
	knownIPv4  netip.Addr   // Snapshot.InternalIPv4

	networks []*network // by name
	byName   map[string]*network
	listed   string // the names that the configuration lists, for messages
	lacking  bool   // this node lacks some network, see network.lacks
	heard    map[string]bool
	allowed  map[allowance]bool

	nodeIPs map[netip.Addr]string // the node that has it
	peers   map[netip.Addr]string // the network whose BGP peer it is
	away    map[netip.Addr]string // further addresses that no ingress IP may have: gateways and the API server
	// apiEndpoints are those of away that all nodes know, from the endpoints of the API server's Service.
	apiEndpoints map[netip.Addr]bool
	inside       []netip.Prefix // pods' and Services' ranges
	ranges       []netip.Prefix // pods' ranges
	ranged       Families       // families for which pod ranges are known
	cluster      []netip.Prefix // destinations inside the cluster, without single Services, pods and secondary addresses

	secondary []netip.Addr      // other nodes' secondary addresses that are inside the cluster, unless they are ingress IPs; sorted
	own       cluster.Secondary // this node's

	// Parts of the plan.
	pods    []netip.Prefix // of the nodes
	vrfs    []VRF
	vlans   []VLAN
	absent  []Absence
	held    []uint32
	guests  []netip.Prefix
	between []string
	tunnel  *Tunnel // without hosts
}

// newGround reads a snapshot without its services. names holds the networks that EgressServices name.
func newGround(s *Snapshot, links []Link, names map[string]int) *ground {
	g := &ground{
		node: s.Node, config: s.Config, marks: Marks{Mask: s.Config.Marks.Mask, Priority: s.Config.Marks.RulePriority},
		nodes: s.Objects.Nodes, namespaces: s.Objects.Namespaces, links: links, apiServer: s.APIServer, knownIPv4: s.InternalIPv4,
		nodeIPs: map[netip.Addr]string{}, peers: map[netip.Addr]string{}, allowed: map[allowance]bool{},
		away: map[netip.Addr]string{}, apiEndpoints: map[netip.Addr]bool{}, heard: s.Heard,
	}
	g.readAway(s)
	g.readNodes(s.Objects.ServiceCIDRs)
	g.readNetworks(names, s.Unsettled, s.Unmade)
	g.readRanges(s.Objects.ServiceCIDRs)
	g.readSecondary(s.Objects.Secondary)
	switch mode := g.config.Steering.Mode; {
	case mode == config.SteeringVXLAN, mode == config.SteeringAuto && g.someNodeOffLink():
		g.planTunnel(false)
	case mode == config.SteeringAuto && g.manyNodes():
		g.planTunnel(true)
	}
	g.planGuests()
	return g
}

// likeFor reports whether another ground, of the same configuration and the same nodes, has the same effect on services.
func (g *ground) likeFor(o *ground) bool {
	tables := func(links []Link) []Link { // they decide whether an unlisted network is another network by a second name
		links = slices.DeleteFunc(slices.Clone(links), func(l Link) bool { return l.VRFTable == 0 })
		for i, l := range links {
			links[i] = Link{Name: l.Name, VRFTable: l.VRFTable}
		}
		return links
	}
	return g.ipvs() == o.ipvs() && (!g.lacking || sameHeard(g.heard, o.heard)) &&
		maps.Equal(g.nodeIPs, o.nodeIPs) && maps.Equal(g.away, o.away) &&
		reflect.DeepEqual(g.networks, o.networks) && reflect.DeepEqual(tables(g.links), tables(o.links))
}

// readAway finds the addresses of gateways and of the API server, which no Service may have.
func (g *ground) readAway(s *Snapshot) {
	for _, a := range s.Facts.Gateways {
		g.away[a] = "a gateway of node " + s.Node
	}
	for _, a := range s.APIServer {
		g.away[a] = "the API server's"
	}
	for _, e := range s.Objects.Endpoints.At(cluster.APIService) {
		if a, err := cluster.ParseAddr(e.Address); err == nil {
			g.away[a], g.apiEndpoints[a] = "the API server's", true
		}
	}
}

// ipvsDevice is the interface to which kube-proxy adds the addresses of Services in its IPVS mode. They do not count as
// the node's addresses.
const ipvsDevice = "kube-ipvs0"

const loopback = "lo"

// ipvs reports whether the ingress IPs of Services are the node's own addresses. The kernel looks for those before any of our rules.
func (g *ground) ipvs() bool {
	return slices.ContainsFunc(g.links, func(l Link) bool { return l.Name == ipvsDevice })
}

func (g *ground) readNodes(serviceCIDRs []netip.Prefix) {
	inside := slices.Clone(serviceCIDRs)
	for _, name := range slices.Sorted(g.nodes.Keys()) {
		n := g.nodes.At(name)
		for _, a := range n.Addresses {
			g.nodeIPs[a] = name
		}
		inside = append(inside, n.PodCIDRs...)
	}
	g.inside = minimal(append(inside, g.config.PodCIDRs...))
	g.readOwnAddresses()
}

// readOwnAddresses finds the addresses of this node's links.
func (g *ground) readOwnAddresses() {
	for _, l := range g.links {
		if l.Name == ipvsDevice {
			continue
		}
		for _, p := range l.Addrs {
			g.nodeIPs[p.Addr()] = g.node
		}
	}
}

// neverSteered holds destinations that never leave a link or a node.
var neverSteered = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// readRanges finds the address ranges of pods and the destinations inside the cluster.
func (g *ground) readRanges(serviceCIDRs []netip.Prefix) {
	pods := slices.Clone(g.config.PodCIDRs)
	for _, n := range g.nodes.All() {
		pods = append(pods, n.PodCIDRs...)
	}
	g.pods = minimal(pods)
	g.ranges = minimal(slices.Concat(g.config.ClusterCIDRs, pods))
	for _, r := range g.ranges {
		g.ranged = g.ranged.and(only(familyOf(r.Addr())))
	}
	g.cluster = minimal(slices.Concat(pods, neverSteered, g.config.ClusterCIDRs, serviceCIDRs, g.mainAddresses()))
}

// mainAddresses lists the addresses of all nodes to which the main table leads. It does not lead to those of this node in a VRF: packets to
// them would leave by the default route.
func (g *ground) mainAddresses() (all []netip.Prefix) {
	for _, n := range g.nodes.All() {
		for _, a := range n.Addresses {
			all = append(all, single(a))
		}
	}
	for _, l := range g.links {
		if l.Name == ipvsDevice || g.inVRF(l) {
			continue
		}
		for _, p := range l.Addrs {
			all = append(all, single(p.Addr()))
		}
	}
	return all
}

// beyondFirewall returns the destinations that no EgressFirewall denies: ranges of pods and Services, single ones of them, and what
// never leaves a link. Addresses of nodes count only inside a range of pods or Services, even if clusterCIDRs lists them.
func (g *ground) beyondFirewall(singles sorted.List[Prefix]) []netip.Prefix {
	ofNodes := map[netip.Addr]bool{}
	for _, a := range slices.Concat(slices.Collect(maps.Keys(g.nodeIPs)), g.secondary) {
		if !cluster.Within(g.inside, a) {
			ofNodes[a] = true
		}
	}
	all := slices.Concat(g.inside, neverSteered)
	for _, p := range g.config.ClusterCIDRs {
		holes := slices.Collect(maps.Keys(ofNodes))
		all = appendWithout(all, p.Masked(), slices.DeleteFunc(holes, func(a netip.Addr) bool { return !p.Contains(a) }))
	}
	for s := range singles.All() {
		if !ofNodes[s.Addr()] {
			all = append(all, s.Prefix)
		}
	}
	return minimal(all)
}

// appendWithout appends the prefixes that make up a prefix without some of its addresses.
func appendWithout(all []netip.Prefix, p netip.Prefix, holes []netip.Addr) []netip.Prefix {
	switch {
	case len(holes) == 0:
		return append(all, p)
	case p.IsSingleIP():
		return all
	}
	low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	high := netip.PrefixFrom(cluster.LastAddr(p), p.Bits()+1).Masked()
	for _, half := range []netip.Prefix{low, high} {
		all = appendWithout(all, half, slices.DeleteFunc(slices.Clone(holes), func(a netip.Addr) bool { return !half.Contains(a) }))
	}
	return all
}

// readSecondary finds the secondary addresses of this node, and those of other nodes that count as inside the cluster here.
// reported holds those that daemons report.
func (g *ground) readSecondary(reported cluster.Map[string, cluster.Secondary]) {
	g.findOwn()
	main, others := g.mainSubnets()
	for name, n := range g.nodes.All() {
		if name == g.node {
			continue
		}
		for _, s := range []cluster.Secondary{n.Secondary, reported.At(name)} {
			g.secondary = appendWithin(append(g.secondary, s.Beside...), s.Apart, main)
		}
	}
	g.secondary = slices.DeleteFunc(g.secondary, func(a netip.Addr) bool { return cluster.Within(others, a) || g.peers[a] != "" })
	slices.SortFunc(g.secondary, netip.Addr.Compare)
	g.secondary = slices.Compact(g.secondary)
}

// appendWithin appends the addresses that one of the minimal prefixes contains.
func appendWithin(all, more []netip.Addr, minimal []netip.Prefix) []netip.Addr {
	for _, a := range more {
		if cluster.Within(minimal, a) {
			all = append(all, a)
		}
	}
	return all
}

// findOwn finds the secondary addresses of this node. Without an address in the Node object, nothing shows which interfaces
// lead to other nodes.
func (g *ground) findOwn() {
	if len(g.nodes.At(g.node).Addresses) == 0 {
		return
	}
	ranges := minimal(slices.Concat(g.inside, g.config.ClusterCIDRs, neverSteered))
	var all cluster.Secondary
	for _, l := range g.links {
		switch {
		case len(l.Addrs) == 0 || !g.inMain(l):
		case g.isListed(l):
			all.Beside = g.appendUnlisted(all.Beside, l, ranges)
		default:
			all.Apart = g.appendUnlisted(all.Apart, l, ranges)
		}
	}
	var dropped int
	if g.own, dropped = all.Sorted(); dropped > 0 && g.config.Source.Manifests == "" {
		g.problem("Node", g.node, "addresses", strconv.Itoa(g.own.Len()+dropped), ReasonManyAddresses,
			"other nodes count at most %d addresses of this node as inside the cluster, besides those in its Node object: "+
				"list the range of the others in clusterCIDRs", cluster.SecondaryMost)
	}
}

// appendUnlisted appends the addresses of a link that are neither in the Node object nor in one of the ranges.
func (g *ground) appendUnlisted(all []netip.Addr, l Link, ranges []netip.Prefix) []netip.Addr {
	listed := g.nodes.At(g.node).Addresses
	for _, p := range l.Addrs {
		if a := p.Addr(); cluster.Unfit(a) == "" && !slices.Contains(listed, a) && !cluster.Within(ranges, a) {
			all = append(all, a)
		}
	}
	return all
}

// isListed reports whether a link has an address of this node's Node object.
func (g *ground) isListed(l Link) bool {
	listed := g.nodes.At(g.node).Addresses
	return slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return slices.Contains(listed, p.Addr()) })
}

// inMain reports whether a link leads to other nodes, or to another network of theirs, by the main table. A link in a VRF does
// not, nor an uplink into another network than default, unless it has an address of the Node object. The addresses of
// Services and of our tunnel are no node's.
func (g *ground) inMain(l Link) bool {
	if l.Name == ipvsDevice || l.Name == g.config.Steering.Device || g.inVRF(l) {
		return false
	}
	return g.isListed(l) ||
		!slices.ContainsFunc(g.networks, func(n *network) bool { return n.table != mainTable && slices.Contains(n.devices, l.Name) })
}

// mainSubnets returns the subnets of this node's links, divided by inMain.
func (g *ground) mainSubnets() (main, others []netip.Prefix) {
	for _, l := range g.links {
		subnets := slices.DeleteFunc(slices.Clone(l.Addrs), netip.Prefix.IsSingleIP)
		switch {
		case len(subnets) == 0:
		case g.inMain(l):
			main = append(main, subnets...)
		default:
			others = append(others, subnets...)
		}
	}
	return minimal(main), minimal(others)
}

// isSecondary reports whether an address is another node's secondary one that may count as inside the cluster.
func (g *ground) isSecondary(a netip.Addr) bool {
	_, is := slices.BinarySearchFunc(g.secondary, a, netip.Addr.Compare)
	return is
}

// planGuests lists other nodes' pods, and the devices by which they reach this node. The ranges of the configuration may hold this node's
// pods too, whose packets do not arrive by such a device.
func (g *ground) planGuests() {
	g.guests = slices.Clone(g.config.PodCIDRs)
	for name, n := range g.nodes.All() {
		if name != g.node {
			g.addGuests(&n)
		}
	}
	if t := g.tunnel; t != nil {
		g.between = append(g.between, t.Device)
	}
	slices.Sort(g.between)
	g.guests, g.between = minimal(g.guests), slices.Compact(g.between)
}

// addGuests adds the pods of another node, and the devices by which they reach this node.
func (g *ground) addGuests(n *cluster.Node) {
	g.guests = append(g.guests, n.PodCIDRs...)
	for _, a := range n.Internal {
		if device, ok := g.onLink(a); ok {
			g.between = appendNew(g.between, device)
		}
	}
}

// onLink finds the interface with the smallest subnet that holds addr, as the kernel does. Uplinks of networks do not count.
func (g *ground) onLink(addr netip.Addr) (device string, ok bool) {
	bits := -1
	for _, l := range g.links {
		for _, p := range l.Addrs {
			if p.Bits() > bits && p.Contains(addr) && p.Addr() != addr && !p.IsSingleIP() &&
				l.Name != g.config.Steering.Device && !g.isUplink(l.Name) {
				device, bits = l.Name, p.Bits()
			}
		}
	}
	return device, bits >= 0
}

// besideNodes reports whether a subnet of a device holds another node's InternalIP.
func (g *ground) besideNodes(device string) bool {
	l := g.link(device)
	if l == nil || len(l.Addrs) == 0 {
		return false
	}
	subnets := minimal(slices.Clone(l.Addrs))
	for name, n := range g.nodes.All() {
		if name != g.node && slices.ContainsFunc(n.Internal, func(a netip.Addr) bool { return cluster.Within(subnets, a) }) {
			return true
		}
	}
	return false
}

func (g *ground) isUplink(device string) bool {
	return slices.ContainsFunc(g.networks, func(n *network) bool { return slices.Contains(n.devices, device) })
}

// internalIP returns a node's first InternalIP of a family.
func (g *ground) internalIP(node string, ipv4 bool) netip.Addr {
	for _, a := range g.nodes.At(node).Internal {
		if a.Is4() == ipv4 {
			return a
		}
	}
	return netip.Addr{}
}

// routerID returns this node's router ID. While its Node is missing, another ID than before would reset all sessions.
func (g *ground) routerID() netip.Addr {
	four := g.knownIPv4
	if _, exists := g.nodes.Get(g.node); exists {
		four = g.internalIP(g.node, true)
	}
	return cmp.Or(g.config.BGP.RouterID, four, config.RouterIDOf(g.node))
}

func (g *ground) someNodeOffLink() bool {
	for name, n := range g.nodes.All() {
		for _, a := range n.Internal {
			if _, ok := g.onLink(a); name != g.node && !ok {
				return true
			}
		}
	}
	return false
}

// manyNodes reports whether the configured networks leave ids, but fewer than there are other nodes: then PathShared may lead
// to any node. All nodes with one configuration agree on that.
func (g *ground) manyNodes() bool {
	room := int(g.marks.MaxPath()) - len(g.config.Networks)
	return room > 0 && g.nodes.Len()-1 > room
}

// noPath returns the onNoPath setting for selected pods of network n, which may be nil.
func (g *ground) noPath(n *network) config.NoPath {
	if n != nil && n.onNoPath != config.NoPathDefault {
		return n.onNoPath
	}
	return g.config.OnNoPath
}

// candidate returns the address of an endpoint, invalid unless it could be a pod's, and a function that reports the
// endpoint's defect, nil if it has none.
func (g *ground) candidate(e cluster.Endpoint) (a netip.Addr, reject func(r *redone, text string)) {
	a, err := netip.ParseAddr(e.Address)
	if err != nil {
		return a, func(r *redone, text string) { r.refuse(text, ReasonInvalidAddress, "not an IP address") }
	}
	if why := cluster.Unfit(a); why != "" {
		return netip.Addr{}, func(r *redone, text string) {
			r.refuse(text, ReasonInvalidAddress, "%s is no pod's address", why)
		}
	}
	if node := g.nodeIPs[a]; node != "" {
		reject = rejectNodeIP(node, e.Node)
		if reject == nil || e.Target != cluster.TargetPod || !cluster.Within(g.pods, a) || g.ownLink(a) {
			return netip.Addr{}, reject
		}
		return a, reject // it stays selected: a node that lists the address of another's pod must not free that pod
	}
	if e.Target != cluster.TargetPod {
		return netip.Addr{}, func(r *redone, text string) { r.refuseTarget(text, e.Target) }
	}
	if _, exists := g.nodes.Get(e.Node); e.Node != "" && !exists {
		return a, func(r *redone, text string) { // it is served nevertheless, because the Node may come back
			r.refuse(text, ReasonUnknownNode, "is on node %s, and there is no such node", e.Node)
		}
	}
	return a, nil
}

// ownLink reports whether a link of this node has an address.
func (g *ground) ownLink(a netip.Addr) bool {
	return slices.ContainsFunc(g.links, func(l Link) bool {
		return slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}

// rejectNodeIP is reject of candidate for the address of a node. The packets of a hostNetwork pod are its node's own.
func rejectNodeIP(node, podOn string) func(r *redone, text string) {
	if podOn == "" || podOn == node {
		return nil
	}
	return func(r *redone, text string) {
		r.refuse(text, ReasonInvalidAddress, "is an address of node %s, not of a pod on node %s", node, podOn)
	}
}

// refuseTarget reports an endpoint that is no Pod of the source's namespace, as far as its EndpointSlice says.
func (r *redone) refuseTarget(text string, target cluster.Target) {
	if target == cluster.TargetUnknown {
		r.refuse(text, ReasonForeignEndpoint,
			"its EndpointSlice names no owner of the address: targetRef should name a Pod of namespace %s", r.id.Namespace)
		return
	}
	r.refuse(text, ReasonForeignEndpoint, "the targetRef of its EndpointSlice names no Pod of namespace %s", r.id.Namespace)
}

var (
	anyIPv4 = netip.MustParsePrefix("0.0.0.0/0")
	anyIPv6 = netip.MustParsePrefix("::/0")
)

// anywhere holds the prefix of all addresses of each family.
var anywhere = [2]netip.Prefix{ipv4: anyIPv4, ipv6: anyIPv6}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// single returns the prefix that contains only a; it is invalid if a is.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// minimal sorts prefixes and drops those inside others.
func minimal(all []netip.Prefix) []netip.Prefix {
	all = slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return !p.IsValid() })
	for i, p := range all {
		all[i] = p.Masked()
	}
	slices.SortFunc(all, comparePrefix)
	out := all[:0]
	for _, p := range all {
		if n := len(out); n == 0 || !covers(out[n-1], p) {
			out = append(out, p)
		}
	}
	return slices.Clip(out)
}

// covers reports whether all addresses of p are in outer.
func covers(outer, p netip.Prefix) bool { return outer.Contains(p.Addr()) && outer.Bits() <= p.Bits() }

// holds reports whether one of the minimal prefixes contains addr only.
func holds(minimal []netip.Prefix, addr netip.Addr) bool {
	i, found := cluster.SearchPrefix(minimal, addr)
	return found && minimal[i].IsSingleIP()
}

// merged joins minimal prefixes and sorted single addresses outside of them.
func merged(minimal []netip.Prefix, singles []Prefix) []netip.Prefix {
	if len(singles) == 0 {
		return minimal
	}
	all := make([]netip.Prefix, 0, len(minimal)+len(singles))
	for _, s := range singles {
		i, _ := cluster.SearchPrefix(minimal, s.Addr())
		all = append(append(all, minimal[:i]...), s.Prefix)
		minimal = minimal[i:]
	}
	return append(all, minimal...)
}

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
