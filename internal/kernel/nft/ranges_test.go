package nft

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel/ruleset"
)

// TestDifferenceOfRanges changes sets of ranges by whole ranges. Those that stay are left alone, also where they have neighbours.
func TestDifferenceOfRanges(t *testing.T) {
	first, end := func(a string) nftables.SetElement {
		return nftables.SetElement{Key: netip.MustParseAddr(a).AsSlice()}
	}, func(a string) nftables.SetElement {
		return nftables.SetElement{Key: netip.MustParseAddr(a).AsSlice(), IntervalEnd: true}
	}
	type elements = []nftables.SetElement
	had := elements{
		first("10.244.1.0"), end("10.244.2.0"), first("10.244.2.0"), end("10.244.3.0"), first("10.244.9.0"), end("10.244.10.0"), first("240.0.0.0"),
	}
	rand.Shuffle(len(had), func(i, k int) { had[i], had[k] = had[k], had[i] })
	for name, c := range map[string]struct {
		want, add, remove elements
		isMap, whole      bool
	}{
		"the same":         {want: had},
		"a neighbour more": {want: append(elements{first("10.244.3.0"), end("10.244.4.0")}, had...), add: elements{first("10.244.3.0"), end("10.244.4.0")}},
		"all are gone":     {want: had[:0:0], remove: had},
		"longer": {
			want: elements{
				first("10.244.1.0"), end("10.244.2.0"), first("10.244.2.0"), end("10.244.4.0"), first("10.244.9.0"), end("10.244.10.0"), first("240.0.0.0"),
			},
			add: elements{first("10.244.2.0"), end("10.244.4.0")}, remove: elements{first("10.244.2.0"), end("10.244.3.0")},
		},
		"without ends": {want: elements{first("10.0.0.0"), first("10.0.1.0")}, whole: true},
		"a map":        {want: had, isMap: true, whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &ruleset.Set{Set: nftables.Set{IsMap: c.isMap, Interval: true}, Elements: c.want}
			add, remove, whole := differenceOfRanges(s, had)
			require.Equal(t, c.whole, whole)
			if whole {
				require.Equal(t, c.want, add)
				return
			}
			require.Equal(t, c.add, add)
			require.ElementsMatch(t, c.remove, remove)
			for i, e := range remove {
				if e.IntervalEnd {
					require.False(t, remove[i-1].IntervalEnd, "the kernel wants beginning and end together")
				}
			}
		})
	}
}
