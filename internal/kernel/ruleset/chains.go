// Package ruleset turns a plan into the packet filter: chains with their rules, sets, and the elements of address sets,
// as values. It knows nothing of the kernel that will have them.
package ruleset

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// TableName is the name of each of our nftables tables.
const TableName = "egressway"

// Table is one of our nftables tables, which differ in their families.
type Table uint8

// Our tables. The last two exist only where a plan needs them, along with the first.
const (
	TableInet   Table = iota
	TableNetdev       // for PathShared
	TableARP          // for addresses for which this node answers ARP
	tables
)

// Tables returns all tables.
func Tables() []Table {
	all := make([]Table, tables)
	for i := range all {
		all[i] = Table(i)
	}
	return all
}

// Family returns the number of the table's family (NFPROTO).
func (t Table) Family() byte {
	return [...]byte{TableInet: unix.NFPROTO_INET, TableNetdev: unix.NFPROTO_NETDEV, TableARP: unix.NFPROTO_ARP}[t]
}

// String returns the name of the table's family.
func (t Table) String() string {
	return [...]string{TableInet: "inet", TableNetdev: "netdev", TableARP: "arp"}[t]
}

// In reports whether a plan needs the table.
func (t Table) In(d *plan.DataPlane) bool {
	switch t {
	case TableNetdev:
		return SharedDevice(d) != ""
	case TableARP:
		return d.OnLink.Len() > 0
	default:
		return true
	}
}

// Names of the sets and maps. Address sets also have the family's suffix.
const (
	SetUplinks    = "uplinks"     // device that is an uplink or leads to other nodes : the chain for packets from it
	SetDevices    = "devices"     // every uplink
	SetReplies    = "replies"     // ct mark of a connection from network N : goto reply-N
	SetGuards     = "guards"      // ct mark : goto the guard of its path
	SetPaths      = "paths"       // path id, with its key as the comment: the only record across restarts
	SetEgress     = "egress"      // selected pod : path id, 0 if it has none
	SetGoing      = "going"       // ct mark of an egress flow : goto going-N
	SetSource     = "source"      // selected pod : its source address outside; its own where it is steered
	SetSources    = "sources"     // per path: selected pod . that address: a connection's original source, and its packets' source
	SetMasquerade = "masqueraded" // selected pods that leave with the address of the outgoing interface
	SetCluster    = "cluster"     // destinations that are never steered
	SetPods       = "pods"        // addresses that must not cross an uplink untranslated
	SetIngress    = "ingress"     // ingress IPs
	SetGuests     = "guests"      // pods of other nodes
	SetStrays     = "strays"      // ingress IP : path id
	SetCounted    = "counted"     // ingress IPs that this node is host or standby of, with a counter each
	SetResumed    = "resumed"     // ingress IPs that another node is the host of, or was the host of before
	SetHanded     = "handed"      // ingress IPs of network default, of which packets from any device are strays
	SetLet        = "let"         // pods of this node that may leave without being selected, with hold
	SetHosts      = "hosts"       // in the table of family netdev, selected pod : MAC of its host
	SetPartners   = "partners"    // in the table of family netdev, ingress IP : MAC of the other of host and standby
	SetOnLink     = "onlink"      // ingress IPs for which this node answers ARP and neighbour solicitations
	SetAsked      = "asked"       // in the table of family arp, the same: IPv4 only
	SetAnswers    = "answers"     // in the table of family arp, such an address . the device on which this node answers
	SetFormer     = "former"      // pods and ingress IPs that left one of the sets above, or changed in it, a moment ago
)

// formerFor is longer than routers and pods take to notice a change. A pod whose connection ended with a change repeats
// its last segments for as long as TCP tries, a quarter of an hour (tcp_retries2 in ip-sysctl.rst); no NAT would
// translate them.
const formerFor = 16 * time.Minute

// HandedHops is the hop limit of strays. They come to the other node by the LAN that other packets come by, so the limit distinguishes
// them: a packet with so few hops left is not handed on again. They go to a node, and from there to a pod, perhaps of a third node.
const HandedHops = 8

// Chain is the desired state of one chain.
type Chain struct {
	Name     string
	Hook     *nftables.ChainHook // nil: a chain that others jump to
	Priority int32
	Kind     nftables.ChainType
	Rules    [][]expr.Any
	In       Table
	Device   string      // in TableNetdev: the chain is at the egress hook of this device
	OwnOf    plan.PathID // not 0: the chain own-source of this path, whose rules ownSourceRules encodes
}

// Chains named in more than one place.
const (
	chainOwnSource = "own-source"
	chainOurs      = "ours"
	ChainBetween   = "between"
	ChainUplink    = "uplink"
	chainFrom      = "from"
	ChainGuard     = "guard"
	chainUnclaimed = "unclaimed"
	chainLost      = "lost"
	chainWays      = "ways"
	chainStrays    = "strays"
	chainUnknown   = "unknown"
	ChainHeld      = "held"
	ChainShared    = "shared"
	ChainAsked     = "asked"
)

// Priorities. Filtering comes after DNAT (-100), to see the final destinations; our SNAT comes before any CNI's
// (kindnet: srcnat-10), since the first to bind an address wins; the guard comes after all others.
const (
	priorityResume     = -110
	priorityPrerouting = -90
	priorityFirewall   = -88
	priorityQoS        = -89
	priorityOutput     = -150
	priorityNAT        = 50
	priorityGuard      = 300
	priorityAnswers    = 310
)

// Chains returns the whole packet path. All that differs between packets is looked up in sets.
func Chains(d plan.DataPlane) []Chain {
	m := d.Marks
	base := []Chain{
		{
			Name: "prerouting", Hook: nftables.ChainHookPrerouting, Priority: priorityPrerouting, Kind: nftables.ChainTypeFilter,
			Rules: prerouting(d),
		},
		{Name: "output", Hook: nftables.ChainHookOutput, Priority: priorityOutput, Kind: nftables.ChainTypeRoute, Rules: output(d)},
		{Name: "nat", Hook: nftables.ChainHookPostrouting, Priority: priorityNAT, Kind: nftables.ChainTypeNAT, Rules: [][]expr.Any{
			join(ctHas(expr.CtKeyMARK, m.EgressBit()), goTo("snat")),
			join(inInterface(), notEqual(DeviceKey("")), goTo(chainUnclaimed)), // forwarded, not sent by this node
		}},
		{Name: "resume", Hook: nftables.ChainHookPrerouting, Priority: priorityResume, Kind: nftables.ChainTypeNAT, Rules: resume()},
		{Name: ChainGuard, Hook: nftables.ChainHookPostrouting, Priority: priorityGuard, Kind: nftables.ChainTypeFilter, Rules: guard(m)},
		{Name: chainUnclaimed, Rules: unclaimed(m)},
		{Name: chainOurs, Rules: ours(m)},
		{Name: "outwards", Rules: outwards()},
		{Name: "backwards", Rules: backwards(m)},
		{Name: "sent", Rules: sent(d)},
		{Name: ChainBetween, Rules: fromNodes()},
		{Name: "came-in", Rules: [][]expr.Any{join(ctHas(expr.CtKeyMARK, m.Mask), ourCtMark(m), verdictOf(SetReplies))}},
		{Name: "late", Rules: late()},
		{Name: chainLost, Rules: lost()},
		{Name: "exempt", Rules: exempt()},
		{Name: "no-path", Rules: [][]expr.Any{jump("exempt"), dropFor(DropNoPath)}},
		{Name: "snat", Rules: snat()},
	}
	if d.Hold {
		base = append(base, Chain{Name: chainUnknown, Rules: unknown()}, Chain{Name: ChainHeld, Rules: held()})
	}
	for _, p := range d.Paths {
		base = append(base, pathChains(d, p)...)
	}
	if device := SharedDevice(&d); device != "" {
		base = append(base, Chain{
			Name: ChainShared, In: TableNetdev, Device: device,
			Hook: nftables.ChainHookEgress, Kind: nftables.ChainTypeFilter, Rules: shared(),
		})
	}
	if TableARP.In(&d) {
		base = append(base, Chain{
			Name: ChainAsked, In: TableARP, Hook: HookARPInput, Kind: nftables.ChainTypeFilter, Rules: askedElsewhere(),
		})
		answersOnLink(base)
	}
	return slices.Concat(base, waysOf(d), qosChains(&d), firewallChains(&d))
}

// SharedDevice returns the device of PathShared; empty: no packets take that path.
func SharedDevice(d *plan.DataPlane) string {
	for i := range d.Paths {
		if d.Paths[i].Key.Kind == plan.PathShared && len(d.Paths[i].Devices) > 0 {
			return d.Paths[i].Devices[0]
		}
	}
	return ""
}

// shared sets the destination MAC of packets on PathShared: to that of the pod's host, or of the node that a stray belongs to.
// The tunnel drops a packet that keeps the MAC Nowhere.
func shared() [][]expr.Any {
	rules := [][]expr.Any{join(etherDestination(), notEqual(plan.Nowhere[:]), accept)}
	for _, f := range Families {
		rules = append(rules, join(f.frame(), f.load(f.Src, reg), mappedTo(SetHosts+f.Suffix), setEtherDestination(), accept))
	}
	for _, f := range Families {
		rules = append(rules, join(f.frame(), f.load(f.Dst, reg), mappedTo(SetPartners+f.Suffix), setEtherDestination(), accept))
	}
	return append(rules, part{&expr.Verdict{Kind: expr.VerdictDrop}})
}

func prerouting(d plan.DataPlane) [][]expr.Any {
	rules := append([][]expr.Any{
		// A flow keeps its path whichever device its next packet comes from. The guard decides whether it may pass.
		join(ctHas(expr.CtKeyMARK, d.Marks.EgressBit()), original, ourCtMark(d.Marks), verdictOf(SetGoing)),
		join(inInterface(), verdictOf(SetUplinks)),
	}, bySource()...)
	first := "late"
	if d.Hold {
		first = chainUnknown
	}
	return append(rules, join(ctHas(expr.CtKeySTATE, StateNew|stateLost), goTo(first)))
}

// unknown finds pods that are neither selected nor in the set let.
func unknown() (rules [][]expr.Any) {
	for _, f := range Families {
		rules = append(rules, join(f.source(), in(SetPods+f.Suffix), f.load(f.Src, reg), notIn(SetLet+f.Suffix), jump(ChainHeld)))
	}
	return append(rules, goTo("late"))
}

// held drops packets of such pods to the outside that belong to no connection. Packets from an uplink are not theirs.
func held() [][]expr.Any {
	return [][]expr.Any{join(inInterface(), in(SetDevices), goTo("late")), jump("exempt"), dropFor(DropHeld)}
}

// bySource matches packets of selected pods, and replies of connections that came in.
func bySource() [][]expr.Any {
	rules := [][]expr.Any{join(reply, goTo("came-in"))}
	for _, f := range Families {
		rules = append(rules, join(f.source(), anyPath(SetEgress+f.Suffix), goTo(chainWays+f.Suffix)))
	}
	return rules
}

// fromNodes handles packets from other nodes that came by no uplink.
func fromNodes() [][]expr.Any {
	rules := bySource()
	for _, f := range Families {
		// Its node steers it here already, or still. By the default route it would leave with this node's address, or with its own if it is
		// of no connection, which has no direction. Replies do not come this far.
		rules = append(rules, join(f.source(), in(SetGuests+f.Suffix), f.load(f.Dst, reg), notIn(SetCluster+f.Suffix), dropFor(DropGuest)))
	}
	return append(rules, join(ctHas(expr.CtKeySTATE, StateNew|stateLost), goTo("late")))
}

// late hands strays of network default to the other of host and standby. It drops late replies of connections that ended with a change, or
// that ended here sooner than elsewhere. If such a packet began a connection to the pod, the pod's packets would count as replies, which
// get neither a path nor SNAT.
func late() (rules [][]expr.Any) {
	for _, f := range Families {
		rules = append(rules, join(f.handed(), goTo(chainStrays+f.Suffix)))
	}
	rules = append(rules, join(ctHas(expr.CtKeySTATE, stateLost), goTo(chainLost)))
	for _, f := range Families {
		fromOutside := join(f.load(f.Src, reg), notIn(SetCluster+f.Suffix), ctLacks(expr.CtKeySTATUS, StatusDNAT))
		for _, of := range []part{
			in(SetFormer + f.Suffix),
			// A host may know a flow longer than the pod's node does, and a pod's connections end when it becomes
			// selected. So a packet to the pod's own address may begin a connection only if it is unambiguously a first
			// packet (a TCP SYN).
			anyPath(SetEgress + f.Suffix),
		} {
			for _, notFirst := range []part{tcpWithoutSYN, notTCP} {
				rules = append(rules, join(notFirst, f.destination(), of, fromOutside, dropFor(DropFormer)))
			}
		}
	}
	return rules
}

// output handles packets that this node sends: replies of its own sockets, and ICMP errors about routed packets.
func output(d plan.DataPlane) [][]expr.Any {
	rules := [][]expr.Any{
		join(ctHas(expr.CtKeyMARK, d.Marks.Mask), jump("sent")),
		join(outInterface(), in(SetDevices), jump("backwards")),
	}
	if d.IPVS {
		rules = append(rules, translatedLate(d.Hold)...)
	}
	return rules
}

// translatedLate drops packets of pods to Services whose endpoints are outside of the cluster. The chain prerouting has seen the Service's
// address as their destination, so they have no path.
func translatedLate(hold bool) (rules [][]expr.Any) {
	for _, f := range Families {
		rules = append(rules, join(f.source(), anyPath(SetEgress+f.Suffix), original, goTo("no-path")))
		if hold {
			rules = append(rules, join(f.source(), in(SetPods+f.Suffix), f.load(f.Src, reg), notIn(SetLet+f.Suffix),
				ctHas(expr.CtKeySTATE, StateNew|stateLost), jump(ChainHeld)))
		}
	}
	return rules
}

// sent handles packets that this node sends on our connections.
func sent(d plan.DataPlane) [][]expr.Any {
	m := d.Marks
	rules := [][]expr.Any{join(reply, jump("came-in"))}
	for _, p := range d.Paths {
		// An ICMP error about the reply to a selected pod's packet goes to where that packet went.
		egress := m.Egress(p.ID)
		rules = append(rules, join(original, ctMarkIs(m, egress), setPacketMark(m, egress), accept))
	}
	return rules
}

// backwards routes the kernel's answers to a pod by the main table: the kernel sends them in the context of the VRF by
// which the pod's packet was about to leave.
func backwards(m plan.Marks) (rules [][]expr.Any) {
	for _, f := range Families {
		rules = append(rules, join(f.destination(), in(SetPods+f.Suffix), setPacketMark(m, m.Cluster())))
	}
	return rules
}

// lost drops packets of no connection that would be forwarded: rules for connections do not see them.
func lost() [][]expr.Any {
	rules := [][]expr.Any{join(notRouted(), backToCaller)}
	for _, f := range Families {
		rules = append(rules,
			// The rest of a connection that ended when its pod was selected: no NAT, not even a CNI's, would translate
			// its source.
			join(ctHas(expr.CtKeySTATE, stateInvalid), f.source(), in(SetFormer+f.Suffix),
				f.load(f.Dst, reg), notIn(SetCluster+f.Suffix), dropFor(DropFormer)),
			join(f.destination(), in(SetIngress+f.Suffix), dropFor(DropUnclaimed)))
	}
	return rules
}

// unclaimed drops first packets that are forwarded to an ingress IP because no Service handled them: the default route
// would return them until their hop limit ends. It is a chain of type nat, which sees first packets only, so others
// cost nothing.
func unclaimed(m plan.Marks) [][]expr.Any {
	rules := [][]expr.Any{join(packetLeaves(m), accept)} // a stray on its way to the other of host and standby
	for _, f := range Families {
		rules = append(rules, join(f.destination(), in(SetIngress+f.Suffix), dropFor(DropUnclaimed)))
	}
	return rules
}

// resume keeps a Service from handling the middle of a TCP connection that began at the other of host and standby: bound to
// its present destination, the packet is a stray. The same keeps a Service from handling a stray that came by no uplink and has no
// connection here: its answer would leave by network default. Such a stray is dropped as unclaimed.
func resume() [][]expr.Any {
	var rules [][]expr.Any
	for _, f := range Families {
		rules = append(rules, join(tcpWithoutSYN, inInterface(), in(SetDevices),
			f.destination(), in(SetResumed+f.Suffix), f.sameDestination()),
			join(tcpWithoutSYN, f.handed(), f.load(f.Dst, reg), in(SetResumed+f.Suffix), f.sameDestination()),
			join(f.is(), f.hops(expr.CmpOpLte), inInterface(), notIn(SetDevices), f.load(f.Src, reg), notIn(SetCluster+f.Suffix),
				f.load(f.Dst, reg), notIn(SetHanded+f.Suffix), anyPath(SetStrays+f.Suffix), f.sameDestination()))
	}
	return rules
}

// exempt accepts packets that stay in the cluster, and drops packets to an ingress IP that no Service handled.
func exempt() [][]expr.Any {
	var rules [][]expr.Any
	for _, f := range Families {
		rules = append(rules, join(f.destination(), in(SetCluster+f.Suffix), accept))
	}
	rules = append(rules, join(notRouted(), accept))
	for _, f := range Families {
		rules = append(rules, join(f.destination(), in(SetIngress+f.Suffix), dropFor(DropUnclaimed)))
	}
	return rules
}

// snat binds the source. A steered flow's source is bound to itself: an accept would not keep a later chain from
// masquerading.
func snat() [][]expr.Any {
	var rules [][]expr.Any
	for _, f := range Families {
		rules = append(rules,
			join(f.source(), mappedTo(SetSource+f.Suffix), f.sourceNAT()),
			join(f.source(), in(SetMasquerade+f.Suffix), masquerade))
	}
	return rules
}

// guard drops every packet about to leave with a wrong source or by a wrong path, independently of all rules before. It
// checks a packet at the interface that it leaves by.
func guard(m plan.Marks) [][]expr.Any {
	return [][]expr.Any{
		join(ctHas(expr.CtKeyMARK, m.Mask), jump(chainOurs)),
		join(outInterface(), in(SetDevices), jump("outwards")),
		join(packetLeaves(m), setPacketMark(m, 0)), // a stray without a connection
	}
}

// ours guards packets with our mark. Those of a path that is gone are dropped: their connections are about to end.
func ours(m plan.Marks) [][]expr.Any {
	return [][]expr.Any{
		// An ICMP error about a packet that was about to leave by the VRF: the chain output has routed it back to the
		// pod.
		join(ownInVRF(), accept),
		join(ourCtMark(m), verdictOf(SetGuards)),
		dropFor(DropGuard),
	}
}

// outwards guards packets that leave by an uplink and belong to no flow of ours.
func outwards() (rules [][]expr.Any) {
	rules = append(rules, join(ownInVRF(), accept)) // as in ours, for packets of no connection
	for _, f := range Families {
		rules = append(rules, join(f.source(), in(SetPods+f.Suffix), dropFor(DropPodSource)))
	}
	return rules
}

// Pass lets a packet out. Our mark bits do not leave this node.
func pass(m plan.Marks) part { return join(setPacketMark(m, 0), accept) }

// Named returns the name of a set or chain that each path has one of.
func Named(prefix string, id plan.PathID) string { return fmt.Sprintf("%s-%d", prefix, id) }

// elsewhere matches packets about to leave by an interface other than the path's.
func elsewhere(p plan.Path) part {
	switch {
	case p.Default() || len(p.Devices) == 0:
		return join(outInterface(), in(SetDevices))
	case len(p.Devices) == 1: // costs a third of a lookup
		return join(outInterface(), notEqual(DeviceKey(p.Devices[0])))
	}
	return join(outInterface(), notIn(Named("devices", p.ID)))
}

// leftBehind drops packets that leave by an interface other than the path's, or by the right one to another next hop:
// where the path to another node and the default route share an interface, a packet whose rule or route is gone would
// take the default route.
func leftBehind(p plan.Path) [][]expr.Any {
	rules := [][]expr.Any{join(elsewhere(p), dropFor(DropGuard))}
	led := map[Family]bool{}
	for _, via := range p.Via {
		f := IPv4
		if via.Is6() {
			f = IPv6
		}
		led[f] = true
		rules = append(rules, join(f.is(), f.nextHop(), notEqual(via.AsSlice()), dropFor(DropGuard)))
	}
	for _, f := range Families {
		if len(led) == 1 && !led[f] { // the path does not lead anywhere in this family
			rules = append(rules, join(f.is(), dropFor(DropGuard)))
		}
	}
	return rules
}

// ofNoNetwork matches connections with a mark of ours that is not of one that came in by a network.
func ofNoNetwork(d plan.DataPlane) part {
	all := join(ctHas(expr.CtKeyMARK, d.Marks.Mask), ourCtMark(d.Marks))
	for _, p := range d.Paths {
		if p.Key.Kind == plan.PathNetwork {
			all = join(all, notEqual(Native(d.Marks.Ingress(p.ID))))
		}
	}
	return all
}

// forged drops packets from an uplink that leave the cluster with a selected pod's address as source: they would get the pod's path and
// source. Only devices that lead to pods or to nodes have a pod's packets.
func forged() (rules [][]expr.Any) {
	for _, f := range Families {
		rules = append(rules, join(f.source(), anyPath(SetEgress+f.Suffix),
			f.load(f.Dst, reg), notIn(SetCluster+f.Suffix), dropFor(DropOutside)))
	}
	return rules
}

// pathChains returns the chains of one path.
func pathChains(d plan.DataPlane, p plan.Path) []Chain {
	m := d.Marks
	egress, ingress := m.Egress(p.ID), m.Ingress(p.ID)
	done := pass(m)

	inwards := join(outInterface(), notIn(SetDevices)) // to the pods, which no uplink leads to
	var guardRules [][]expr.Any
	if p.Tunneled {
		guardRules = append(guardRules, join(IPv4.is(), clampMSS(d.ClampMSS4)), join(IPv6.is(), clampMSS(d.ClampMSS6)))
	}
	guardRules = append(guardRules, join(reply, inwards, done))
	guardRules = append(guardRules, leftBehind(p)...)
	if d.CountSent && p.Key.Kind == plan.PathNetwork {
		for _, f := range Families {
			guardRules = append(guardRules, join(f.source(), in(SetCounted+f.Suffix)))
		}
	}
	guardRules = append(guardRules, jump(Named(chainOwnSource, p.ID)))
	if p.Key.Steers() {
		// Its source is an address of this node, which the host replaces.
		for _, protocol := range []byte{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
			guardRules = append(guardRules, join(ownError(protocol), done))
		}
	}
	guardRules = append(guardRules, dropFor(DropGuard))

	all := []Chain{
		// Packets of selected pods. A flow that began on another path, or on none, must not go on.
		{Name: Named("path", p.ID), Rules: [][]expr.Any{
			jump("exempt"),
			// A flow without a reply stays NEW, but its source is already bound, for the path that it has.
			join(ctMarkIs(m, 0), ctHas(expr.CtKeySTATE, StateNew), setCtMark(m, egress), setPacketMark(m, egress), accept),
			join(ctHas(expr.CtKeySTATE, stateLost), dropFor(DropUntracked)),
			dropFor(DropOtherPath),
		}},
		{Name: Named("going", p.ID), Rules: [][]expr.Any{join(setPacketMark(m, egress), accept)}},
		{Name: Named("guard", p.ID), Rules: guardRules},
		{Name: Named(chainOwnSource, p.ID), OwnOf: p.ID},
	}
	if p.Key.Steers() {
		return append(all,
			// A packet from outside to an ingress IP, of no connection here: it belongs to the other of host and
			// standby, which may have a connection for it or not. The packet has no connection itself if the kernel
			// finds it invalid, such as a TCP SYN-ACK.
			Chain{Name: Named("stray", p.ID), Rules: [][]expr.Any{
				join(IPv4.is(), IPv4.hops(expr.CmpOpGt), IPv4.setHops(HandedHops)),
				join(IPv6.is(), IPv6.hops(expr.CmpOpGt), IPv6.setHops(HandedHops)),
				setCtMark(m, ingress),
				join(setPacketMark(m, egress), accept),
			}},
			Chain{Name: Named("guard-stray", p.ID), Rules: append(leftBehind(p), done)})
	}
	if p.Default() {
		return all
	}

	came := join(setCtMark(m, ingress), setPacketMark(m, m.Cluster()), accept)
	from := [][]expr.Any{
		join(reply, ctHas(expr.CtKeyMARK, m.EgressBit()), setPacketMark(m, m.Cluster()), accept),
		join(original, ctHas(expr.CtKeySTATUS, StatusDNAT), came),
	}
	if TableARP.In(&d) {
		from = append(from, join(discovery(), accept))
	}
	for _, f := range Families {
		from = append(from, join(f.destination(), anyPath(SetStrays+f.Suffix), goTo(chainStrays+f.Suffix)))
	}
	if TableARP.In(&d) { // in a network without a VRF nothing later would see them
		from = append(from, unclaimedOnLink()...)
	}
	for _, f := range Families {
		// A stray's connection, of when this node was the standby: with the mark of network N, it would go on to network default.
		stray := join(f.destination(), in(SetIngress+f.Suffix), ofNoNetwork(d), dropFor(DropUnclaimed))
		// No Service handles it yet: the node itself may, as with IPVS. A packet of no connection gets no mark, and
		// goes on to lost.
		from = append(from, stray, join(f.destination(), in(SetIngress+f.Suffix), came))
	}
	for _, f := range Families {
		// Until routers have processed the withdrawal: sent back to them, the packet would loop until its hop limit
		// ends. Answers belong to a connection that began after that.
		from = append(from, join(f.destination(), in(SetFormer+f.Suffix), ctHas(expr.CtKeySTATE, StateNew|stateLost), dropFor(DropFormer)))
	}
	for _, f := range Families {
		toPods := join(f.source(), notIn(SetCluster+f.Suffix), f.load(f.Dst, reg), in(SetPods+f.Suffix), dropFor(DropOutside))
		// A packet of no connection has no direction.
		from = append(from, join(original, toPods), join(ctHas(expr.CtKeySTATE, stateLost), toPods))
	}
	return append(all,
		// An uplink that leads to other nodes as well.
		Chain{Name: Named(ChainBetween, p.ID), Rules: [][]expr.Any{jump(Named(chainFrom, p.ID)), goTo(ChainBetween)}},
		// Packets from an uplink. If it is enslaved, each packet passes twice: from the interface, then from the VRF
		// device.
		Chain{Name: Named(chainFrom, p.ID), Rules: from},
		// An uplink without other nodes in its subnets.
		Chain{Name: Named(ChainUplink, p.ID), Rules: append([][]expr.Any{jump(Named(chainFrom, p.ID))}, forged()...)},
		Chain{Name: Named("reply", p.ID), Rules: [][]expr.Any{join(setPacketMark(m, egress), accept)}},
		Chain{Name: Named("guard-reply", p.ID), Rules: [][]expr.Any{
			join(original, inwards, done), join(elsewhere(p), dropFor(DropGuard)), join(reply, done), dropFor(DropGuard),
		}},
	)
}
