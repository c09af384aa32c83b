package sorted_test

import (
	"cmp"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/sorted"
)

type pair struct{ Key, Value int }

func (p pair) Compare(o pair) int { return cmp.Compare(p.Key, o.Key) }
func (p pair) Equal(o pair) bool  { return p == o }

func listOf(m map[int]int) (pairs []pair) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, pair{k, m[k]})
	}
	return pairs
}

// TestListIsAMap compares a list with a map through the same random changes, and checks that Changes leads from one list to the other.
func TestListIsAMap(t *testing.T) {
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 0))
		room := 1 << (2 + r.IntN(14))
		m := map[int]int{}
		for range r.IntN(room) {
			m[r.IntN(room)] = r.IntN(3)
		}
		shuffled := listOf(m)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		l := sorted.Of(shuffled...)
		former, had := l, maps.Clone(m)
		for step := range 40 {
			var set, gone []pair
			for range r.IntN(1 << r.IntN(11)) {
				p := pair{r.IntN(room), r.IntN(3)}
				if r.IntN(2) == 0 {
					gone = append(gone, p)
				} else {
					set = append(set, p)
				}
			}
			for _, p := range gone {
				delete(m, p.Key)
			}
			for _, p := range set {
				m[p.Key] = p.Value
			}
			before := l.Slice()
			next := l.With(set, gone)
			require.Equal(t, before, l.Slice(), "seed %d, step %d: the list before has changed", seed, step)
			l = next
			require.Equal(t, listOf(m), slices.Collect(l.All()), "seed %d, step %d", seed, step)
			require.Equal(t, len(m), l.Len())
			for range 20 {
				k := r.IntN(room)
				got, ok := l.Get(pair{Key: k})
				want, has := m[k]
				require.Equal(t, has, ok)
				if ok {
					require.Equal(t, pair{k, want}, got)
				}
			}
			from := r.IntN(room + 1)
			rest := slices.DeleteFunc(listOf(m), func(p pair) bool { return p.Key < from })
			require.True(t, slices.Equal(rest, slices.Collect(l.From(pair{Key: from}))), "seed %d, step %d, from %d", seed, step, from)
			if r.IntN(4) == 0 {
				for x, y := range former.Changes(l) {
					switch {
					case y == nil:
						require.Equal(t, x.Value, had[x.Key])
						delete(had, x.Key)
					case x == nil:
						require.NotContains(t, had, y.Key)
						had[y.Key] = y.Value
					default:
						require.NotEqual(t, *x, *y)
						require.Equal(t, x.Value, had[x.Key])
						had[y.Key] = y.Value
					}
				}
				require.Equal(t, m, had, "seed %d, step %d", seed, step)
				require.Equal(t, maps.Equal(m, had), former.Same(l) || len(m) > 0)
				former, had = l, maps.Clone(m)
			}
		}
	}
}

// TestChangesSkipWhatIsShared checks that lists share all chunks without a change, and most after a small one.
func TestChangesSkipWhatIsShared(t *testing.T) {
	var compared int
	var items []counted
	for i := range 100_000 {
		items = append(items, counted{i, &compared})
	}
	l := sorted.Of(items...)
	same := l.With([]counted{{5000, &compared}}, []counted{{-1, &compared}})
	next := l.With([]counted{{100_000, &compared}}, []counted{{70_000, &compared}})
	compared = 0
	require.True(t, l.Same(same))
	require.Zero(t, compared)
	var changes int
	for range l.Changes(next) {
		changes++
	}
	require.Equal(t, 2, changes)
	require.Less(t, compared, 3000)
}

type counted struct {
	key      int
	compared *int
}

func (c counted) Compare(o counted) int {
	*c.compared++
	return cmp.Compare(c.key, o.key)
}

func (c counted) Equal(o counted) bool { return c.key == o.key }

func TestListAsJSON(t *testing.T) {
	data, err := json.Marshal(struct {
		A sorted.List[pair]
		B sorted.List[pair] `json:",omitzero"`
	}{A: sorted.Of(pair{2, 1}, pair{1, 1})})
	require.NoError(t, err)
	require.JSONEq(t, `{"A":[{"Key":1,"Value":1},{"Key":2,"Value":1}]}`, string(data))
	var l sorted.List[pair]
	require.NoError(t, json.Unmarshal([]byte(`[{"Key":3},{"Key":1},{"Key":3,"Value":4}]`), &l))
	require.Equal(t, []pair{{1, 0}, {3, 4}}, l.Slice())
}
