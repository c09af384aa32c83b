package ruleset

import (
	"encoding/binary"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
)

// TestWays follows the rules from a path id to its chain, and counts them.
func TestWays(t *testing.T) {
	for _, ids := range [][]plan.PathID{nil, {1}, {2, 3, 5, 9}, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22, 40, 41, 62}, {8, 9, 10, 11, 12}} {
		chains := map[string][][]expr.Any{}
		for _, c := range ways("w", IPv4.source(), "set", "path", ids, goTo("no-path")) {
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
						case *expr.Bitwise:
							value &= binary.BigEndian.Uint32(e.Mask)
						case *expr.Cmp:
							if len(e.Data) == 4 {
								matches = matches && value == binary.BigEndian.Uint32(e.Data)
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
