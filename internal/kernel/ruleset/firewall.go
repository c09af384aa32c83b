package ruleset

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/plan"
)

// The source of a connection's first packet leads to a policy, by a tree of rules (see ways). In each of the policy's stretches, mostly
// one, its destination leads to an outcome, by a verdict map. Some outcomes depend on the port: one more lookup.
// Nothing of a policy changes while it has its id; a plan with another policy has other chains and sets. A packet that is under way while
// these take over may meet the former rules and the pod's present policy, which they do not know: it is dropped.

// Names of the sets and chains of EgressFirewall. Only a plan with policies has them.
const (
	SetFirewalled = "firewalled" // pod of this node : policy
	SetInside     = "inside"     // destinations that no policy denies
	SetPolicy     = "policy"     // per stretch of a policy: destination : verdict of its outcome; of names, their addresses now
	SetAsking     = "asking"     // pods whose policy has names
	SetResolvers  = "resolvers"  // servers whose answers say which addresses names have
	ChainFirewall = "firewall"
	ChainAnswers  = "answers"
	ChainAnswered = "answered"
	chainPolicies = "policies"
	chainServers  = "servers"
	chainDenied   = "denied"
)

// QueueAnswers is the number of the netfilter queue to which answers of DNS go.
const QueueAnswers = 14201

// OfFirewalled appends the elements of an address with a policy.
func OfFirewalled(all []Element, f *firewall.Firewalled) []Element {
	if f.Asks {
		all = append(all, Element{Set: inAsking, Key: f.Addr})
	}
	return append(all, Element{Set: InFirewalled, Key: f.Addr, Path: plan.PathID(f.Policy)})
}

// NameSet is a set of the addresses of DNS names, which expire by themselves.
type NameSet struct {
	Set   string
	IPv6  bool
	Names []string // sorted, see cluster.DNSName
}

// NameSets returns the sets of names of a plan.
func NameSets(d *plan.DataPlane) (all []NameSet) {
	for i := range d.Policies {
		p := &d.Policies[i]
		for n := range p.Stretches {
			if s := &p.Stretches[n]; len(s.Names) > 0 {
				all = append(all, NameSet{Set: NameSetOf(p.ID, n), IPv6: s.IPv6, Names: s.Names})
			}
		}
	}
	return all
}

// stretch returns the name of a policy's stretch: of its chain, and of its map.
func stretch(id firewall.PolicyID, n int) string { return fmt.Sprintf("%s-%d-%d", SetPolicy, id, n) }

// NameSetOf returns the name of the set of a policy's stretch of names.
func NameSetOf(id firewall.PolicyID, n int) string { return stretch(id, n) + "-names" }

// byPort returns the name of the chain of an outcome that depends on the port.
func byPort(stretch string, n int) string { return fmt.Sprintf("%s%s%d", stretch, ofPorts, n) }

const ofPorts = "-ports-"

// IsByPort reports whether a set belongs to an outcome that depends on the port.
func IsByPort(set string) bool {
	return strings.HasPrefix(set, SetPolicy+"-") && strings.Contains(set, ofPorts)
}

// firewallChains returns the chains that drop packets of connections that a policy denies. They see packets that begin a connection,
// after DNAT and after the chain prerouting, which holds new pods: a packet reads the generation of the rules in each chain. In the other
// order, one that comes while the generation changes would find no policy of a new pod, and then that this pod need not wait. They also see
// packets of no connection, since a pod can send any packet. Packets of established connections pass the first rule.
func firewallChains(d *plan.DataPlane) (all []Chain) {
	if len(d.Policies) == 0 {
		return nil
	}
	base := Chain{
		Name: ChainFirewall, Hook: nftables.ChainHookPrerouting, Priority: priorityFirewall, Kind: nftables.ChainTypeFilter,
		Rules: [][]expr.Any{
			// A policy denied it after it had begun. The guard does not see packets to this node itself.
			join(ctMarkIs(d.Marks, d.Marks.Cluster()), dropFor(DropFirewall)),
			join(ctLacks(expr.CtKeySTATE, StateNew|stateLost), accept),
		},
	}
	servers := Chain{Name: chainServers, Hook: nftables.ChainHookOutput, Priority: priorityFirewall, Kind: nftables.ChainTypeFilter}
	for _, f := range Families {
		var ids []plan.PathID
		for i := range d.Policies {
			if p := &d.Policies[i]; p.IPv6() == (f == IPv6) {
				ids = append(ids, plan.PathID(p.ID))
				all = append(all, f.policyChains(p)...)
			}
		}
		if len(ids) == 0 {
			continue
		}
		first := Chain{Name: SetFirewalled + f.Suffix, Rules: [][]expr.Any{join(f.destination(), in(SetInside+f.Suffix), accept)}}
		if f == IPv6 {
			first.Rules = append(first.Rules, join(neighbourDiscovery, notRouted(), accept))
		}
		first.Rules = append(first.Rules, goTo(chainPolicies+f.Suffix))
		base.Rules = append(base.Rules, join(f.source(), anyPath(SetFirewalled+f.Suffix), goTo(first.Name)), f.fromServer())
		servers.Rules = append(servers.Rules, f.fromServer())
		if d.IPVS { // to an endpoint of a Service, whose address the pod's packet had in the chain before
			servers.Rules = append(servers.Rules, join(f.source(), anyPath(SetFirewalled+f.Suffix),
				ctHas(expr.CtKeySTATE, StateNew|stateLost), goTo(first.Name)))
		}
		all = append(append(all, first),
			ways(chainPolicies+f.Suffix, f.source(), SetFirewalled+f.Suffix, goingTo(SetPolicy), ids, goTo(chainDenied))...)
	}
	denied := Chain{Name: chainDenied, Rules: [][]expr.Any{dropFor(DropFirewall)}}
	return slices.Concat([]Chain{base, servers}, all, []Chain{denied}, answerChains(d))
}

// fromServer drops a server's packet that would begin a connection in the middle. The connection, which the pod had begun, may have ended
// with a policy: the pod's packets would count as replies, which no policy judges. Servers are outside, on other nodes, or on this one.
func (f Family) fromServer() []expr.Any {
	return join(ctHas(expr.CtKeySTATE, StateNew), tcpWithoutSYN, f.destination(), anyPath(SetFirewalled+f.Suffix),
		f.load(f.Src, reg), notIn(SetInside+f.Suffix), ctLacks(expr.CtKeySTATUS, StatusDNAT), dropFor(DropFormer))
}

// answerChains returns the chains that queue answers of resolvers to pods whose policy has names, until the kernel has the addresses in
// them. They come after all NAT, which makes an answer's source the address that the pod asked. Without a daemon that reads the queue,
// answers pass.
func answerChains(d *plan.DataPlane) []Chain {
	if !slices.ContainsFunc(d.Policies, func(p firewall.Policy) bool { return p.HasNames() }) {
		return nil
	}
	base := Chain{
		Name: ChainAnswers, Hook: nftables.ChainHookPostrouting, Priority: priorityAnswers, Kind: nftables.ChainTypeFilter,
	}
	for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		base.Rules = append(base.Rules, join(part{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, equal([]byte{protocol}),
			&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2}, equal([]byte{0, 53}),
		}, goTo(ChainAnswered)))
	}
	queued := Chain{Name: ChainAnswered}
	for _, f := range Families { // a packet of no connection is no reply, and so no answer
		queued.Rules = append(queued.Rules, join(reply, f.destination(), in(SetAsking+f.Suffix),
			f.load(f.Src, reg), in(SetResolvers+f.Suffix), part{&expr.Queue{Num: QueueAnswers, Total: 1, Flag: expr.QueueFlagBypass}}))
	}
	return []Chain{base, queued}
}

// neighbourDiscovery matches the ICMPv6 messages by which neighbours find one another (RFC 4861). The kernel tracks no connection for
// them.
var neighbourDiscovery = part{
	&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, equal([]byte{unix.IPPROTO_ICMPV6}),
	&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
	&expr.Cmp{Op: expr.CmpOpGte, Register: reg, Data: []byte{133}},
	&expr.Cmp{Op: expr.CmpOpLte, Register: reg, Data: []byte{137}},
}

// policyChains returns the chains of a policy.
func (f Family) policyChains(p *firewall.Policy) (all []Chain) {
	c := Chain{Name: Named(SetPolicy, plan.PathID(p.ID))}
	for n := range p.Stretches {
		s, name := &p.Stretches[n], stretch(p.ID, n)
		c.Rules = append(c.Rules, jump(name))
		// With many ranges a lookup costs as much as ten comparisons, so there is one, in a verdict map: a tree of rules from numbers to
		// chains would look the destination up again at each fork (see ways).
		found := join(f.destination(), verdictOf(name))
		if len(s.Names) > 0 {
			found = join(f.destination(), in(NameSetOf(p.ID, n)), part{verdictFor(name, s.Named)})
		}
		all = append(all, Chain{Name: name, Rules: [][]expr.Any{found}})
		for i := range s.Ports {
			all = append(all, portsChain(byPort(name, i), &s.Ports[i]))
		}
	}
	return append([]Chain{c}, all...)
}

// verdictFor returns the verdict of an outcome of a stretch.
func verdictFor(stretch string, o firewall.Outcome) *expr.Verdict {
	switch o {
	case firewall.Allow:
		return &expr.Verdict{Kind: expr.VerdictAccept}
	case firewall.Deny:
		return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chainDenied}
	case firewall.Undecided:
		return &expr.Verdict{Kind: expr.VerdictReturn}
	}
	return &expr.Verdict{Kind: expr.VerdictGoto, Chain: byPort(stretch, int(o-firewall.FirstPorts))}
}

// portsChain returns the chain that decides by protocol and port.
func portsChain(name string, p *firewall.Ports) Chain {
	c := Chain{Name: name}
	port := part{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Payload{DestRegister: reg32 + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
	for _, of := range exceptions(p) {
		c.Rules = append(c.Rules, join(port, in(portsSet(name, of.Outcome)), part{verdictFor(name, of.Outcome)}))
	}
	c.Rules = append(c.Rules, part{verdictFor(name, p.Otherwise)})
	return c
}

// exception holds ports with an outcome of their own.
type exception struct {
	ports []cluster.FirewallPort
	firewall.Outcome
}

// exceptions returns the lists of ports that are not empty.
func exceptions(p *firewall.Ports) []exception {
	both := []exception{{p.Allow, firewall.Allow}, {p.Deny, firewall.Deny}}
	return slices.DeleteFunc(both, func(e exception) bool { return len(e.ports) == 0 })
}

func portsSet(chain string, o firewall.Outcome) string {
	if o == firewall.Allow {
		return chain + "-allow"
	}
	return chain + "-deny"
}

// firewallSets returns the sets and maps of EgressFirewall.
func firewallSets(d *plan.DataPlane) (all []*Set) {
	names := len(answerChains(d)) > 0
	for _, f := range Families {
		addr := nftables.Set{KeyType: f.datatype(), KeyByteOrder: binaryutil.BigEndian}
		first := len(all)
		for i := range d.Policies {
			if p := &d.Policies[i]; p.IPv6() == (f == IPv6) {
				all = append(all, policySets(p, addr)...)
			}
		}
		toNumber := addr
		toNumber.IsMap, toNumber.DataType = true, nftables.TypeMark
		if len(all) > first {
			pods, inside := &Set{Set: toNumber}, &Set{Set: addr, Elements: f.intervals(d.Inside)}
			pods.Name, inside.Name, inside.Interval = SetFirewalled+f.Suffix, SetInside+f.Suffix, true
			all = append(all, pods, inside)
		}
		if names {
			asking, resolvers := &Set{Set: addr}, &Set{Set: addr}
			asking.Name, resolvers.Name = SetAsking+f.Suffix, SetResolvers+f.Suffix
			for _, a := range d.Resolvers {
				if f.has(a) {
					resolvers.element(a.AsSlice())
				}
			}
			all = append(all, asking, resolvers)
		}
	}
	return all
}

// policySets returns the map or set of each stretch of a policy, whose keys are addresses as in addr, and the sets of its ports.
func policySets(p *firewall.Policy, addr nftables.Set) (all []*Set) {
	toVerdict, timed := addr, addr
	toVerdict.IsMap, toVerdict.DataType = true, nftables.TypeVerdict
	timed.HasTimeout = true
	ports := nftables.Set{
		KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService), Concatenation: true,
		KeyByteOrder: binaryutil.BigEndian,
	}
	for n := range p.Stretches {
		s, name := &p.Stretches[n], stretch(p.ID, n)
		if len(s.Names) > 0 {
			names := &Set{Set: timed}
			names.Name = NameSetOf(p.ID, n)
			all = append(all, names)
		} else {
			ranges := &Set{Set: toVerdict}
			ranges.Name, ranges.Interval = name, true
			for _, r := range s.Ranges {
				ranges.addRange(r.First, r.Last, verdictFor(name, r.Outcome))
			}
			all = append(all, ranges)
		}
		for i := range s.Ports {
			for _, of := range exceptions(&s.Ports[i]) {
				set := &Set{Set: ports}
				set.Name = portsSet(byPort(name, i), of.Outcome)
				for _, port := range of.ports {
					set.element(portKey(port))
				}
				all = append(all, set)
			}
		}
	}
	return all
}

// addRange adds a range of addresses to a map of ranges to verdicts.
func (s *Set) addRange(first, last netip.Addr, verdict *expr.Verdict) {
	s.Elements = append(s.Elements, nftables.SetElement{Key: first.AsSlice(), VerdictData: verdict})
	s.Elements = appendEnd(s.Elements, last.Next())
}

// portKey returns a protocol and port as the kernel compares them: each in a register of 4 bytes.
func portKey(p cluster.FirewallPort) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{p.Protocol, 0, 0, 0}, p.Number), 0, 0)
}
