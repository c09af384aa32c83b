package ruleset

import (
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/qos"
)

// The source of a packet leads to a class, by a tree of rules (see ways). In the class its destination leads to the chain of a DSCP
// value, since "ip dscp set" takes a constant only. That is one lookup in a verdict map: a tree would look the destination up again at
// each fork, and with 1,000 ranges a lookup costs as much as ten comparisons.

// Names of the sets and chains of EgressQoS. Only a plan with classes has them.
const (
	SetClasses = "classes" // pod of this node : class
	SetRanges  = "ranges"  // per class: destination : goto the chain of its DSCP value
	ChainQoS   = "qos"
	chainClass = "class"
	chainDSCP  = "dscp"
)

// OfMarked appends the element of an address whose packets get DSCP values.
func OfMarked(all []Element, m *qos.Marked) []Element {
	return append(all, Element{Set: inClasses, Key: m.Addr, Path: plan.PathID(m.Class)})
}

// qosChains returns the chains that set DSCP values. They come after the chain that drops packets, before routing.
func qosChains(d *plan.DataPlane) (all []Chain) {
	if len(d.QoS) == 0 {
		return nil
	}
	base := Chain{Name: ChainQoS, Hook: nftables.ChainHookPrerouting, Priority: priorityQoS, Kind: nftables.ChainTypeFilter}
	var used []plan.PathID // values
	for _, f := range Families {
		var ids []plan.PathID
		for i := range d.QoS {
			if c := &d.QoS[i]; c.IPv6() == (f == IPv6) {
				id := plan.PathID(c.ID)
				ids, used = append(ids, id), append(used, valuesOf(c)...)
				byDestination := join(f.destination(), verdictOf(Named(SetRanges, id)))
				all = append(all, Chain{Name: Named(chainClass, id), Rules: [][]expr.Any{byDestination}})
			}
		}
		if len(ids) > 0 {
			base.Rules = append(base.Rules, join(f.source(), anyPath(SetClasses+f.Suffix), goTo(ChainQoS+f.Suffix)))
			all = append(all, ways(ChainQoS+f.Suffix, f.source(), SetClasses+f.Suffix, goingTo(chainClass), ids)...)
		}
	}
	slices.Sort(used)
	for _, value := range slices.Compact(used) {
		all = append(all, Chain{Name: Named(chainDSCP, value), Rules: [][]expr.Any{
			join(IPv4.is(), IPv4.setHeader(0, uint16(value)<<2, 0xfc)),  // type of service: the second byte
			join(IPv6.is(), IPv6.setHeader(0, uint16(value)<<6, 0xfc0)), // traffic class: across the first two bytes
		}})
	}
	return append([]Chain{base}, all...)
}

// valuesOf returns the DSCP values of a class, sorted.
func valuesOf(c *qos.Class) (values []plan.PathID) {
	for _, r := range c.Ranges {
		values = append(values, plan.PathID(r.DSCP))
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// qosSets returns the maps of EgressQoS.
func qosSets(d *plan.DataPlane) (all []*Set) {
	for _, f := range Families {
		toNumber := nftables.Set{KeyType: f.datatype(), KeyByteOrder: binaryutil.BigEndian, IsMap: true, DataType: nftables.TypeMark}
		first := len(all)
		for i := range d.QoS {
			if c := &d.QoS[i]; c.IPv6() == (f == IPv6) {
				s := &Set{Set: toNumber}
				s.Name, s.Interval, s.DataType = Named(SetRanges, plan.PathID(c.ID)), true, nftables.TypeVerdict
				for _, r := range c.Ranges {
					chain := Named(chainDSCP, plan.PathID(r.DSCP))
					s.addRange(r.First, r.Last, &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
				}
				all = append(all, s)
			}
		}
		if len(all) > first {
			s := &Set{Set: toNumber}
			s.Name = SetClasses + f.Suffix
			all = append(all, s)
		}
	}
	return all
}
