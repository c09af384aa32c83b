package kernel

import (
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// Names of the sets and maps; those with addresses carry the family's suffix.
const (
	setUplinks    = "uplinks"     // device that is an uplink or leads to other nodes : the chain of what comes by it
	setDevices    = "devices"     // every uplink
	setReplies    = "replies"     // ct mark of a connection that came in by N : goto reply-N
	setGuards     = "guards"      // ct mark : goto its guard
	setPaths      = "paths"       // path id, its meaning as the comment: the only memory there is
	setEgress     = "egress"      // selected pod : path id, 0 where it has none
	setGoing      = "going"       // ct mark of an egress flow : goto going-N
	setSource     = "source"      // selected pod : the address it leaves with, itself where it is steered on
	setSources    = "sources"     // per path: selected pod . that address: what a connection's first source and a packet's must be
	setMasquerade = "masqueraded" // selected pods that leave with the outgoing interface's address
	setCluster    = "cluster"     // destinations that are never steered
	setPods       = "pods"        // addresses that must not cross an uplink as they are
	setIngress    = "ingress"     // ingress IPs
	setGuests     = "guests"      // pods of other nodes
	setStrays     = "strays"      // ingress IP : path id
	setCounted    = "counted"     // ingress IPs that this node is host or standby of, with a counter each
	setResumed    = "resumed"     // ingress IPs of which another node was the host before
	setLet        = "let"         // pods of this node that need not be selected to leave, where others wait
	setFormer     = "former"      // pods and ingress IPs that were among the above, or otherwise, a moment ago
)

// formerFor outlives what routers and pods send before they know. A pod whose connection ended with a change repeats its end
// for as long as TCP tries, a quarter of an hour (tcp_retries2 in ip-sysctl.rst): no NAT would give that a source.
const formerFor = 16 * time.Minute

// chain is one chain as it should be.
type chain struct {
	name     string
	hook     *nftables.ChainHook // nil: a chain that others jump to
	priority int32
	kind     nftables.ChainType
	rules    [][]expr.Any
	ownOf    plan.PathID // not 0: the chain own-source of this path, whose rules are written by hand instead
}

// Chains that are named in more than one place.
const (
	chainOwnSource = "own-source"
	chainOurs      = "ours"
	chainBetween   = "between"
	chainGuard     = "guard"
	chainUnclaimed = "unclaimed"
	chainLost      = "lost"
	chainWays      = "ways"
	chainStrays    = "strays"
	chainUnknown   = "unknown"
	chainHeld      = "held"
)

// Priorities. Ours comes after DNAT (-100), so that destinations are the real ones; our SNAT before any CNI's (kindnet
// stands at srcnat-10), since the first to bind an address wins; the guard after all others.
const (
	priorityResume     = -110
	priorityPrerouting = -90
	priorityOutput     = -150
	priorityNAT        = 50
	priorityGuard      = 300
)

// chains is the whole packet path; what differs from packet to packet is looked up in sets.
func chains(d plan.DataPlane) []chain {
	m := d.Marks
	base := []chain{
		{name: "prerouting", hook: nftables.ChainHookPrerouting, priority: priorityPrerouting, kind: nftables.ChainTypeFilter, rules: prerouting(d)},
		{name: "output", hook: nftables.ChainHookOutput, priority: priorityOutput, kind: nftables.ChainTypeRoute, rules: output(d)},
		{name: "nat", hook: nftables.ChainHookPostrouting, priority: priorityNAT, kind: nftables.ChainTypeNAT, rules: [][]expr.Any{
			join(ctHas(expr.CtKeyMARK, m.EgressBit()), goTo("snat")),
			join(inInterface(), notEqual(deviceKey("")), goTo(chainUnclaimed)), // passing through, not this node's own
		}},
		{name: "resume", hook: nftables.ChainHookPrerouting, priority: priorityResume, kind: nftables.ChainTypeNAT, rules: resume()},
		{name: chainGuard, hook: nftables.ChainHookPostrouting, priority: priorityGuard, kind: nftables.ChainTypeFilter, rules: guard(m)},
		{name: chainUnclaimed, rules: unclaimed(m)},
		{name: chainOurs, rules: ours(m)},
		{name: "outwards", rules: outwards()},
		{name: "backwards", rules: backwards(m)},
		{name: "sent", rules: sent(d)},
		{name: chainBetween, rules: fromNodes()},
		{name: "came-in", rules: [][]expr.Any{join(ctHas(expr.CtKeyMARK, m.Mask), ourCtMark(m), verdictOf(setReplies))}},
		{name: "late", rules: late()},
		{name: chainLost, rules: lost()},
		{name: "exempt", rules: exempt()},
		{name: "no-path", rules: [][]expr.Any{jump("exempt"), dropFor(DropNoPath)}},
		{name: "snat", rules: snat()},
	}
	if d.Hold {
		base = append(base, chain{name: chainUnknown, rules: unknown()}, chain{name: chainHeld, rules: held()})
	}
	for _, p := range d.Paths {
		base = append(base, pathChains(d, p)...)
	}
	return append(base, waysOf(d)...)
}

func prerouting(d plan.DataPlane) [][]expr.Any {
	rules := append([][]expr.Any{
		// A flow goes on as it began, whatever device its next packet came by. Whether it may is for the guard to say.
		join(ctHas(expr.CtKeyMARK, d.Marks.EgressBit()), original, ourCtMark(d.Marks), verdictOf(setGoing)),
		join(inInterface(), verdictOf(setUplinks)),
	}, bySource()...)
	first := "late"
	if d.Hold {
		first = chainUnknown
	}
	return append(rules, join(ctHas(expr.CtKeySTATE, stateNew|stateLost), goTo(first)))
}

// unknown finds pods that are not selected, and that nobody has said need not be.
func unknown() (rules [][]expr.Any) {
	for _, f := range families {
		rules = append(rules, join(f.source(), in(setPods+f.suffix), f.load(f.src, reg), notIn(setLet+f.suffix), jump(chainHeld)))
	}
	return append(rules, goTo("late"))
}

// held drops what such pods send to the outside that is of no connection yet. What comes in by an uplink is not theirs.
func held() [][]expr.Any {
	return [][]expr.Any{join(inInterface(), in(setDevices), goTo("late")), jump("exempt"), dropFor(DropHeld)}
}

// bySource finds selected pods' packets, and what answers connections that came in.
func bySource() [][]expr.Any {
	rules := [][]expr.Any{join(reply, goTo("came-in"))}
	for _, f := range families {
		rules = append(rules, join(f.source(), anyPath(setEgress+f.suffix), goTo(chainWays+f.suffix)))
	}
	return rules
}

// fromNodes is for what comes from another node, by no uplink.
func fromNodes() [][]expr.Any {
	rules := bySource()
	for _, f := range families {
		// Its node steers it here already or still; by the default route it would take this node's address.
		rules = append(rules, join(f.source(), in(setGuests+f.suffix), original, f.load(f.dst, reg), notIn(setCluster+f.suffix), dropFor(DropGuest)))
	}
	return append(rules, join(ctHas(expr.CtKeySTATE, stateNew|stateLost), goTo("late")))
}

// late drops late answers of connections that ended with a change, or sooner here than elsewhere. Taken for a connection to
// the pod, one would make what the pod sends an answer, which no path and no SNAT applies to.
func late() [][]expr.Any {
	rules := [][]expr.Any{join(ctHas(expr.CtKeySTATE, stateLost), goTo(chainLost))}
	for _, f := range families {
		fromOutside := join(f.load(f.src, reg), notIn(setCluster+f.suffix), ctLacks(expr.CtKeySTATUS, statusDNAT))
		for _, of := range []part{
			in(setFormer + f.suffix),
			// A host may know a flow for longer than its pod's node does, and a pod's connections end when it becomes selected. What then
			// comes for the pod's own address is taken for a connection's first packet only where it is one for sure.
			anyPath(setEgress + f.suffix),
		} {
			for _, notFirst := range []part{tcpWithoutSYN, notTCP} {
				rules = append(rules, join(notFirst, f.destination(), of, fromOutside, dropFor(DropFormer)))
			}
		}
	}
	return rules
}

// output serves what this node sends itself: replies of its own sockets, and ICMP errors about routed packets.
func output(d plan.DataPlane) [][]expr.Any {
	return [][]expr.Any{
		join(ctHas(expr.CtKeyMARK, d.Marks.Mask), jump("sent")),
		join(outInterface(), in(setDevices), jump("backwards")),
	}
}

// sent is what the node sends on connections of ours.
func sent(d plan.DataPlane) [][]expr.Any {
	m := d.Marks
	rules := [][]expr.Any{join(reply, jump("came-in"))}
	for _, p := range d.Paths {
		// An error about the answer to a selected pod's packet goes to where that packet went.
		egress := m.Egress(p.ID)
		rules = append(rules, join(original, ctMarkIs(m, egress), setPacketMark(m, egress), accept))
	}
	return rules
}

// backwards leads what the kernel answers a pod in the context of the VRF that the pod's packet was about to leave by.
func backwards(m plan.Marks) (rules [][]expr.Any) {
	for _, f := range families {
		rules = append(rules, join(f.destination(), in(setPods+f.suffix), setPacketMark(m, m.Cluster())))
	}
	return rules
}

// lost drops what is of no connection and would be forwarded: nothing that is for connections applies to it.
func lost() [][]expr.Any {
	rules := [][]expr.Any{join(notRouted(), backToCaller)}
	for _, f := range families {
		rules = append(rules,
			// The rest of a connection that ended with the pod's selection: no NAT, a CNI's neither, would give it a source.
			join(ctHas(expr.CtKeySTATE, stateInvalid), f.source(), in(setFormer+f.suffix), f.load(f.dst, reg), notIn(setCluster+f.suffix), dropFor(DropFormer)),
			join(f.destination(), in(setIngress+f.suffix), dropFor(DropUnclaimed)))
	}
	return rules
}

// unclaimed drops first packets that are forwarded to an ingress IP since no Service took them: by the default route they would
// come back, until their hop limit ends. A chain of nat, which no other packets meet, costs those nothing.
func unclaimed(m plan.Marks) [][]expr.Any {
	rules := [][]expr.Any{join(packetMarkHas(m.EgressBit()), accept)} // a stray on its way to the other of host and standby
	for _, f := range families {
		rules = append(rules, join(f.destination(), in(setIngress+f.suffix), dropFor(DropUnclaimed)))
	}
	return rules
}

// resume keeps a Service from taking the middle of a TCP connection that began at the former host: bound to the
// destination that it has, it is a stray.
func resume() [][]expr.Any {
	var rules [][]expr.Any
	for _, f := range families {
		rules = append(rules, join(tcpWithoutSYN, inInterface(), in(setDevices), f.destination(), in(setResumed+f.suffix), f.sameDestination()))
	}
	return rules
}

// exempt accepts what stays in the cluster, and drops what is meant for an ingress IP that no Service took.
func exempt() [][]expr.Any {
	var rules [][]expr.Any
	for _, f := range families {
		rules = append(rules, join(f.destination(), in(setCluster+f.suffix), accept))
	}
	rules = append(rules, join(notRouted(), accept))
	for _, f := range families {
		rules = append(rules, join(f.destination(), in(setIngress+f.suffix), dropFor(DropUnclaimed)))
	}
	return rules
}

// snat binds the source. A steered flow's is bound to itself: an accept would not keep a later chain from masquerading.
func snat() [][]expr.Any {
	var rules [][]expr.Any
	for _, f := range families {
		rules = append(rules,
			join(f.source(), mappedTo(setSource+f.suffix), f.sourceNAT()),
			join(f.source(), in(setMasquerade+f.suffix), masquerade))
	}
	return rules
}

// guard lets nothing out that has the wrong source or goes the wrong way, whatever happened before. It judges a packet at the interface
// that the packet leaves by.
func guard(m plan.Marks) [][]expr.Any {
	return [][]expr.Any{
		join(ctHas(expr.CtKeyMARK, m.Mask), jump(chainOurs)),
		join(outInterface(), in(setDevices), jump("outwards")),
		join(packetMarkHas(m.EgressBit()), setPacketMark(m, 0)), // a stray without a connection
	}
}

// ours guards what has a mark of ours. What came in by a network that is gone is like any other packet.
func ours(m plan.Marks) [][]expr.Any {
	return [][]expr.Any{
		// An ICMP error about a packet that was about to leave by the VRF: output has routed it back to the pod.
		join(ownInVRF(), accept),
		join(ourCtMark(m), verdictOf(setGuards)),
		join(ctHas(expr.CtKeyMARK, m.EgressBit()), dropFor(DropGuard)), // its path is gone, and its connection about to end
	}
}

// outwards guards what leaves by an uplink and is no flow of ours.
func outwards() (rules [][]expr.Any) {
	rules = append(rules, join(ownInVRF(), accept)) // as in ours, about a packet of no connection
	for _, f := range families {
		rules = append(rules, join(f.source(), in(setPods+f.suffix), dropFor(DropPodSource)))
	}
	return rules
}

// pass lets a packet out. Our bits do not leave this node.
func pass(m plan.Marks) part { return join(setPacketMark(m, 0), accept) }

func isDefault(p plan.Path) bool {
	return p.Key.Kind == plan.PathNetwork && p.Key.Name == config.DefaultNetwork
}

func named(prefix string, id plan.PathID) string { return fmt.Sprintf("%s-%d", prefix, id) }

// elsewhere matches packets on their way out by an interface that is not the path's.
func elsewhere(p plan.Path) part {
	switch {
	case isDefault(p) || len(p.Devices) == 0:
		return join(outInterface(), in(setDevices))
	case len(p.Devices) == 1: // a third of what a lookup costs
		return join(outInterface(), notEqual(deviceKey(p.Devices[0])))
	}
	return join(outInterface(), notIn(named("devices", p.ID)))
}

// leftBehind drops what leaves by another interface than the path's, or by the right one to another next hop: where the
// way to another node and the default route share an interface, a packet whose rule or route is gone would take that one.
func leftBehind(p plan.Path) [][]expr.Any {
	rules := [][]expr.Any{join(elsewhere(p), dropFor(DropGuard))}
	for _, via := range p.Via {
		f := ipv4
		if via.Is6() {
			f = ipv6
		}
		rules = append(rules, join(f.is(), f.nextHop(), notEqual(via.AsSlice()), dropFor(DropGuard)))
	}
	return rules
}

// pathChains are the chains of one path.
func pathChains(d plan.DataPlane, p plan.Path) []chain {
	m := d.Marks
	egress, ingress := m.Egress(p.ID), m.Ingress(p.ID)
	done := pass(m)

	inwards := join(outInterface(), notIn(setDevices)) // to the pods: an uplink is never the way there
	var guardRules [][]expr.Any
	if p.Tunneled {
		guardRules = append(guardRules, join(ipv4.is(), clampMSS(d.ClampMSS4)), join(ipv6.is(), clampMSS(d.ClampMSS6)))
	}
	guardRules = append(guardRules, join(reply, inwards, done))
	guardRules = append(guardRules, leftBehind(p)...)
	if d.CountSent && p.Key.Kind == plan.PathNetwork {
		for _, f := range families {
			guardRules = append(guardRules, join(f.source(), in(setCounted+f.suffix)))
		}
	}
	guardRules = append(guardRules, jump(named(chainOwnSource, p.ID)), dropFor(DropGuard))

	all := []chain{
		// A selected pod's packets. A flow that had another path, or none, when it began must not go on.
		{name: named("path", p.ID), rules: [][]expr.Any{
			jump("exempt"),
			// One that nobody has answered is new for as long, but its source is bound already, for the path that it has.
			join(ctMarkIs(m, 0), ctHas(expr.CtKeySTATE, stateNew), setCtMark(m, egress), setPacketMark(m, egress), accept),
			join(ctHas(expr.CtKeySTATE, stateLost), dropFor(DropUntracked)),
			dropFor(DropOtherPath),
		}},
		{name: named("going", p.ID), rules: [][]expr.Any{join(setPacketMark(m, egress), accept)}},
		{name: named("guard", p.ID), rules: guardRules},
		{name: named(chainOwnSource, p.ID), ownOf: p.ID},
	}
	if p.Key.Kind == plan.PathSteer {
		return append(all,
			// What came from outside for an ingress IP and is of no connection here: one of the other of host and standby, by
			// that node's connection or none. It has no connection itself where the kernel finds it invalid, as a TCP SYN-ACK.
			chain{name: named("stray", p.ID), rules: [][]expr.Any{
				setCtMark(m, ingress),
				join(setPacketMark(m, egress), accept),
			}},
			chain{name: named("guard-stray", p.ID), rules: append(leftBehind(p), done)})
	}
	if isDefault(p) {
		return all
	}

	came := join(setCtMark(m, ingress), setPacketMark(m, m.Cluster()), accept)
	from := [][]expr.Any{
		join(reply, ctHas(expr.CtKeyMARK, m.EgressBit()), setPacketMark(m, m.Cluster()), accept),
		join(original, ctHas(expr.CtKeySTATUS, statusDNAT), came),
	}
	for _, f := range families {
		from = append(from, join(f.destination(), anyPath(setStrays+f.suffix), goTo(chainStrays+f.suffix)))
	}
	for _, f := range families {
		// No Service has taken it yet: the node itself may, as with IPVS. What is of no connection has no mark, and goes on to lost.
		from = append(from, join(f.destination(), in(setIngress+f.suffix), came))
	}
	for _, f := range families {
		// Until routers have seen the withdrawal: back to them it would go round, until its hop limit ends.
		from = append(from, join(f.destination(), in(setFormer+f.suffix), dropFor(DropFormer)))
	}
	for _, f := range families {
		from = append(from, join(original, f.source(), notIn(setCluster+f.suffix), f.load(f.dst, reg), in(setPods+f.suffix), dropFor(DropOutside)))
	}
	return append(all,
		// An uplink that leads to other nodes too.
		chain{name: named(chainBetween, p.ID), rules: [][]expr.Any{jump(named("from", p.ID)), goTo(chainBetween)}},
		// Packets from an uplink. Each passes twice where the uplink is enslaved: as the interface's, then as the VRF's.
		chain{name: named("from", p.ID), rules: from},
		chain{name: named("reply", p.ID), rules: [][]expr.Any{join(setPacketMark(m, egress), accept)}},
		chain{name: named("guard-reply", p.ID), rules: [][]expr.Any{
			join(original, inwards, done), join(elsewhere(p), dropFor(DropGuard)), join(reply, done), dropFor(DropGuard),
		}},
	)
}
