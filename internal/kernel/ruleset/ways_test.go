package ruleset

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
)

// TestWays follows the rules from a path id to its chain, and counts them.
func TestWays(t *testing.T) {
	for _, ids := range [][]plan.PathID{nil, {1}, {2, 3, 5, 9}, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22, 40, 41, 62}, {8, 9, 10, 11, 12}} {
		chains := map[string][][]expr.Any{}
		for _, c := range ways("w", IPv4.source(), "set", goingTo("path"), ids, goTo("no-path")) {
			require.NotContains(t, chains, c.Name)
			chains[c.Name] = c.Rules
		}
		follow := func(id plan.PathID) (to string, rules int) {
			to = "w"
			for chains[to] != nil {
				from := to
				for _, r := range chains[to] {
					rules++
					value, matches := uint32(id), true
					for _, e := range r {
						switch e := e.(type) {
						case *expr.Cmp:
							if len(e.Data) == 4 {
								is := binary.BigEndian.Uint32(e.Data)
								matches = matches && (value == is || e.Op == expr.CmpOpGte && value > is)
							}
						case *expr.Verdict:
							if matches {
								to = e.Chain
							}
						}
					}
					if to != from {
						break
					}
				}
				require.NotEqual(t, from, to, "%d leads nowhere from %s", id, from)
			}
			return to, rules
		}
		for _, id := range ids {
			to, rules := follow(id)
			require.Equal(t, Named("path", id), to)
			require.LessOrEqual(t, rules, 12)
		}
		for _, id := range []plan.PathID{0, 13, 63} {
			to, _ := follow(id)
			require.Equal(t, "no-path", to)
		}
	}
}

// TestWaysNest counts the levels of trees for many ids, however they lie: the kernel lets 16 chains nest.
func TestWaysNest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, count := range []int{1, 4, 5, 62, 64, 65, 300, 2000, 8000, 20000} {
		ids := make([]plan.PathID, count)
		for i := range ids {
			ids[i] = plan.PathID(1<<20 + i) // alike in their first bits
			if count%2 == 0 {
				ids[i] = plan.PathID(r.Uint32())
			}
		}
		slices.Sort(ids)
		deepest := 0
		for _, c := range ways("w", IPv4.source(), "set", goingTo("path"), slices.Compact(ids)) {
			deepest = max(deepest, strings.Count(c.Name, "-")+1)
			require.LessOrEqual(t, len(c.Rules), 12)
		}
		require.LessOrEqual(t, deepest, levelsMost, "%d ids", count)
	}
}
