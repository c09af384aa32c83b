package ruleset

import (
	"encoding/binary"
	"slices"
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

// levelsMost is the number of levels of a tree of ways. The kernel lets 16 chains nest (NFT_JUMP_STACK_SIZE in nf_tables.h), by goto
// too; the longest series has two trees in it.
const levelsMost = 5

// ways returns the chains that lead from a loaded key to a part for the path id that a map has for it. The first chain has the given
// name, the others begin with it. Keys with another path id meet the rules of otherwise. ids are sorted.
func ways(name string, load part, set string, to func(plan.PathID) part, ids []plan.PathID, otherwise ...[]expr.Any) []Chain {
	t := tree{load: load, set: set, to: to, otherwise: otherwise, branches: 2}
	for reach(t.branches) < len(ids) {
		t.branches++
	}
	return t.chains(name, ids)
}

// reach returns the number of ids that a tree with so many branches at each fork has room for.
func reach(branches int) int {
	n := leafMost
	for range levelsMost - 1 {
		n *= branches
	}
	return n
}

// goingTo returns the part that leads to the chain of an id: to-N.
func goingTo(to string) func(plan.PathID) part {
	return func(id plan.PathID) part { return goTo(Named(to, id)) }
}

// tree makes the chains of ways.
type tree struct {
	load      part
	set       string
	to        func(plan.PathID) part
	otherwise [][]expr.Any
	branches  int
}

// chains returns the chains for some ids.
func (t *tree) chains(name string, ids []plan.PathID) []Chain {
	c := Chain{Name: name}
	if len(ids) <= leafMost {
		for _, id := range ids {
			c.Rules = append(c.Rules, join(t.load, isPath(t.set, id), t.to(id)))
		}
		c.Rules = append(c.Rules, t.otherwise...)
		return []Chain{c}
	}
	var below []Chain
	branch := min(t.branches, (len(ids)+leafMost-1)/leafMost)
	for ; branch > 0; branch-- { // the last part of the ids first
		from := len(ids) * (branch - 1) / branch
		chain := name + "-" + strconv.Itoa(branch-1)
		if branch > 1 {
			atLeast := &expr.Cmp{Op: expr.CmpOpGte, Register: reg, Data: PathValue(ids[from])}
			c.Rules = append(c.Rules, join(t.load, mappedTo(t.set), part{atLeast}, goTo(chain)))
		} else {
			c.Rules = append(c.Rules, goTo(chain))
		}
		below = append(below, t.chains(chain, ids[from:])...)
		ids = ids[:from]
	}
	return append([]Chain{c}, below...)
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
	slices.Sort(ids)
	slices.Sort(steered)
	for _, f := range Families {
		all = append(all, ways(chainWays+f.Suffix, f.source(), SetEgress+f.Suffix, goingTo("path"), ids, goTo("no-path"))...)
		all = append(all, ways(chainStrays+f.Suffix, f.destination(), SetStrays+f.Suffix, goingTo("stray"), steered)...)
	}
	return all
}
