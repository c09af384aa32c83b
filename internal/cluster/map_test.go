package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMap compares a Map with a Go map through random changes, and checks that earlier Maps do not change.
func TestMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // to be repeated
	for range 5 {
		var (
			draft  Draft[int, int]
			want   = map[int]int{}
			out    []Map[int, int]
			had    []map[int]int
			bounds = 1 + r.IntN(1500)
		)
		for range 1000 {
			key, value := r.IntN(bounds), r.Int()
			switch r.IntN(8) {
			case 0, 1, 2:
				draft.Set(key, value)
				want[key] = value
			case 3, 4, 5:
				draft.Delete(key)
				delete(want, key)
			case 6:
				out, had = append(out, draft.Map()), append(had, maps.Clone(want))
			default:
				i := r.IntN(len(out) + 1)
				if i == len(out) {
					continue
				}
				before := out[i]
				after := before.With(key, value)
				expected := maps.Clone(had[i])
				expected[key] = value
				require.Equal(t, expected, maps.Collect(after.All()))
				_, there := had[i][key]
				require.Equal(t, !there, after.Without(key).Len() == before.Len())
				require.Equal(t, had[i], maps.Collect(before.All()))
			}
			value, there := draft.Get(key)
			wanted, is := want[key]
			require.Equal(t, is, there)
			require.Equal(t, wanted, value)
		}
		out, had = append(out, draft.Map()), append(had, want)
		for i, m := range out {
			require.Equal(t, had[i], maps.Collect(m.All()))
			require.Equal(t, len(had[i]), m.Len())
			require.Equal(t, MapOf(had[i]), m, "equal Maps are deeply equal")
			require.Equal(t, fmt.Sprint(had[i]), m.String())
			require.ElementsMatch(t, slices.Collect(maps.Keys(had[i])), slices.Collect(m.Keys()))
		}
	}
	require.Equal(t, Map[string, int]{}, Map[string, int]{}.With("a", 1).Without("a"))
}

// BenchmarkMap changes one of 10,000 entries.
func BenchmarkMap(b *testing.B) {
	var d Draft[Key, Service]
	key := func(i int) Key { return Key{Namespace: "shop", Name: fmt.Sprint("service", i)} }
	for i := range 10_000 {
		d.Set(key(i), Service{})
	}
	d.Map()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		d.Set(key(i%10_000), Service{})
		d.Map()
	}
}
