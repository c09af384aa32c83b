package ruleset

import (
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// An address for which this node answers on the link is an address of one of its devices. So the kernel would answer ARP for it
// on every device, Services' NodePorts and the node's own sockets would be reachable by it, and ND for it has no connection.

// HookARPInput is NF_ARP_IN (include/uapi/linux/netfilter_arp.h): the hooks of ARP have other numbers than those of IP.
var HookARPInput = nftables.ChainHookRef(0)

// askedElsewhere drops ARP requests for such an address that come by another device than the one on which this node answers.
func askedElsewhere() [][]expr.Any {
	target := part{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 24, Len: 4}} // Ethernet and IPv4, RFC 826
	device := part{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg32 + 1}}
	drop := part{&expr.Verdict{Kind: expr.VerdictDrop}}
	return [][]expr.Any{join(target, in(SetAsked+IPv4.Suffix), target, device, notIn(SetAnswers+IPv4.Suffix), drop)}
}

// answersOnLink adds to the chains the rules about such addresses, before all that would let their packets reach the node itself.
func answersOnLink(all []Chain) {
	for i := range all {
		switch c := &all[i]; c.Name {
		case "resume":
			c.Rules = append(c.Rules, boundOnLink()...)
		case "late":
			c.Rules = slices.Concat([][]expr.Any{join(discovery(), accept)}, unclaimedOnLink(), c.Rules)
		case "exempt":
			c.Rules = slices.Concat(unclaimedOnLink(), c.Rules)
		}
	}
}

// boundOnLink binds the first packet of a connection to its destination, so that no NodePort of a Service translates it.
func boundOnLink() (rules [][]expr.Any) {
	for _, f := range Families {
		rules = append(rules, join(f.destination(), in(SetOnLink+f.Suffix), f.sameDestination()))
	}
	return rules
}

// unclaimedOnLink drops packets that belong to no connection.
func unclaimedOnLink() (rules [][]expr.Any) {
	for _, f := range Families {
		rules = append(rules, join(f.destination(), in(SetOnLink+f.Suffix), dropFor(DropUnclaimed)))
	}
	return rules
}

// discovery matches packets of ND (RFC 4861) to such an address: solicitations of neighbours that look whether it still answers,
// and advertisements that answer our own solicitations, which the kernel sends from it.
func discovery() part {
	const first, last = 133, 137
	return join(
		part{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, equal([]byte{unix.IPPROTO_ICMPV6})},
		part{
			&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Len: 1},
			&expr.Cmp{Op: expr.CmpOpGte, Register: reg, Data: []byte{first}},
			&expr.Cmp{Op: expr.CmpOpLte, Register: reg, Data: []byte{last}},
		},
		IPv6.destination(), in(SetOnLink+IPv6.Suffix))
}

// onLinkSets returns the sets about addresses for which this node answers.
func onLinkSets(d *plan.DataPlane) (all []*Set) {
	if !TableARP.In(d) {
		return nil
	}
	for _, f := range Families {
		s := nftables.Set{Name: SetOnLink + f.Suffix, KeyType: f.datatype(), KeyByteOrder: binaryutil.BigEndian}
		all = append(all, &Set{Set: s})
	}
	f := IPv4
	asked := nftables.Set{Name: SetAsked + f.Suffix, KeyType: f.datatype(), KeyByteOrder: binaryutil.BigEndian}
	answers := nftables.Set{
		Name: SetAnswers + f.Suffix, Concatenation: true, KeyType: nftables.MustConcatSetType(f.datatype(), nftables.TypeIFName),
	}
	return append(all, &Set{Set: asked, In: TableARP}, &Set{Set: answers, In: TableARP})
}

// OfOnLink appends the elements of an address for which this node answers.
func OfOnLink(all []Element, a *plan.OnLink) []Element {
	all = append(all, Element{Set: inOnLink, Key: a.Addr})
	if a.Addr.Is4() {
		all = append(all, Element{Set: inAsked, Key: a.Addr}, Element{Set: inAnswers, Key: a.Addr, On: a.Device})
	}
	return all
}
