package kernel

import (
	"encoding/binary"
	"math/bits"
	"strconv"

	"github.com/google/nftables/expr"

	"github.com/egressway/egressway/internal/plan"
)

// A map from addresses to verdicts is what leads from an address to a chain at once. But with each verdict that is added the
// kernel looks over all rules and all elements of all verdict maps for loops (nft_lookup_validate): 16 ms among 100,000 of
// them. So addresses lead to path ids, which are mere data, and a tree of rules leads from an id to its chain. Two lookups in
// a row would be simpler, but nft 1.0 aborts when it lists them.

// leafMost is how many ids are compared one after another.
const leafMost = 4

// pathValue is a path id as a map holds it. nft lists values in this order right.
func pathValue(id plan.PathID) []byte { return binary.BigEndian.AppendUint32(nil, uint32(id)) }

// anyPath matches what a map has a path id for.
func anyPath(set string) part {
	return append(mappedTo(set), &expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: pathValue(^plan.PathID(0))})
}

// isPath matches what a map has the path id for.
func isPath(set string, id plan.PathID) part {
	return append(mappedTo(set), equal(pathValue(id)))
}

// ways are the chains that lead what was loaded to the chain of the path that a set has for it, to-N; the first bears the
// name, the others begin with it. What has another path meets the rules of otherwise.
func ways(name string, load part, set, to string, ids []plan.PathID, otherwise ...[]expr.Any) []chain {
	c := chain{name: name}
	if len(ids) <= leafMost {
		for _, id := range ids {
			c.rules = append(c.rules, join(load, isPath(set, id), goTo(named(to, id))))
		}
		c.rules = append(c.rules, otherwise...)
		return []chain{c}
	}
	// Split them by the highest bit that is not the same in all.
	var differ plan.PathID
	for _, id := range ids {
		differ |= id ^ ids[0]
	}
	bit := plan.PathID(1) << (bits.Len32(uint32(differ)) - 1)
	halves := [2][]plan.PathID{}
	for _, id := range ids {
		half := 0
		if id&bit != 0 {
			half = 1
		}
		halves[half] = append(halves[half], id)
	}
	has := part{
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: pathValue(bit), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: pathValue(bit)},
	}
	below := func(half int) string { return name + "-" + strconv.Itoa(half) }
	c.rules = append(c.rules, join(load, mappedTo(set), has, goTo(below(1))), goTo(below(0)))
	all := []chain{c}
	for half, ids := range halves {
		all = append(all, ways(below(half), load, set, to, ids, otherwise...)...)
	}
	return all
}

// waysOf are the chains that lead to the path of a selected pod, and of a stray.
func waysOf(d plan.DataPlane) (all []chain) {
	var ids, steered []plan.PathID
	for _, p := range d.Paths {
		ids = append(ids, p.ID)
		if p.Key.Kind == plan.PathSteer {
			steered = append(steered, p.ID)
		}
	}
	for _, f := range families {
		all = append(all, ways(chainWays+f.suffix, f.source(), setEgress+f.suffix, "path", ids, goTo("no-path"))...)
		all = append(all, ways(chainStrays+f.suffix, f.destination(), setStrays+f.suffix, "stray", steered)...)
	}
	return all
}
