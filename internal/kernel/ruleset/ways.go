package ruleset

import (
	"encoding/binary"
	"math/bits"
	"strconv"

	"github.com/google/nftables/expr"

	"github.com/egressway/egressway/internal/plan"
)

// A map from addresses to verdicts would lead from an address to a chain at once. But for each verdict added, the
// kernel checks all rules and all elements of all verdict maps for loops (nft_lookup_validate): 16 ms with 100,000 of
// them. So maps lead from addresses to path ids, which are mere data, and a tree of rules leads from an id to its
// chain. Two lookups in a row would be simpler, but nft 1.0 aborts when it lists them.

// leafMost is the number of ids that one chain compares in sequence.
const leafMost = 4

// PathValue encodes a path id as a map's value. nft lists values in this byte order correctly.
func PathValue(id plan.PathID) []byte { return binary.BigEndian.AppendUint32(nil, uint32(id)) }

// anyPath matches if a map has a path id for the loaded key.
func anyPath(set string) part {
	return append(mappedTo(set), &expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: PathValue(^plan.PathID(0))})
}

// isPath matches if a map has this path id for the loaded key.
func isPath(set string, id plan.PathID) part {
	return append(mappedTo(set), equal(PathValue(id)))
}

// ways returns the chains that lead from a loaded key to the chain to-N of the path id N that a map has for it. The
// first chain has the given name, the others begin with it. Keys with another path id meet the rules of otherwise.
func ways(name string, load part, set, to string, ids []plan.PathID, otherwise ...[]expr.Any) []Chain {
	c := Chain{Name: name}
	if len(ids) <= leafMost {
		for _, id := range ids {
			c.Rules = append(c.Rules, join(load, isPath(set, id), goTo(Named(to, id))))
		}
		c.Rules = append(c.Rules, otherwise...)
		return []Chain{c}
	}
	// Split by the highest bit in which the ids differ.
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
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: PathValue(bit), Xor: Native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: PathValue(bit)},
	}
	below := func(half int) string { return name + "-" + strconv.Itoa(half) }
	c.Rules = append(c.Rules, join(load, mappedTo(set), has, goTo(below(1))), goTo(below(0)))
	all := []Chain{c}
	for half, ids := range halves {
		all = append(all, ways(below(half), load, set, to, ids, otherwise...)...)
	}
	return all
}

// waysOf returns the chains that lead to the path of a selected pod, and of a stray.
func waysOf(d plan.DataPlane) (all []Chain) {
	var ids, steered []plan.PathID
	for _, p := range d.Paths {
		ids = append(ids, p.ID)
		if p.Key.Steers() {
			steered = append(steered, p.ID)
		}
	}
	for _, f := range Families {
		all = append(all, ways(chainWays+f.Suffix, f.source(), SetEgress+f.Suffix, "path", ids, goTo("no-path"))...)
		all = append(all, ways(chainStrays+f.Suffix, f.destination(), SetStrays+f.Suffix, "stray", steered)...)
	}
	return all
}
