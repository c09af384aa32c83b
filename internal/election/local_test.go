package election

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

func anyNode(r *rand.Rand) string { return []string{"", "a", "b", "c", cluster.AllHosts}[r.IntN(5)] }

func someNodes(r *rand.Rand) map[string]bool {
	nodes := map[string]bool{}
	for _, name := range []string{"a", "b", "c"} {
		if r.IntN(3) == 0 {
			nodes[name] = true
		}
	}
	return nodes
}

// TestLocalFollows compares choices that were updated by changes with choices that were all looked at, and their reported changes.
func TestLocalFollows(t *testing.T) {
	for _, manifests := range []bool{false, true} {
		for seed := range uint64(50) {
			r := rand.New(rand.NewPCG(seed, 0))
			elected := map[Seat]Choice{}
			sight := Sight{Node: "a", Now: time.Unix(0, 0), Ready: func(string) bool { return true }, Keep: 5 * time.Second}
			if manifests {
				sight.Heard = map[string]bool{}
			}
			var kept, whole Local
			seen := map[Seat]Choice{}
			for step := range 100 {
				var changed []Seat
				for range r.IntN(3) {
					seat := ServiceSeat(cluster.Key{Namespace: "shop", Name: fmt.Sprint("s", r.IntN(6))})
					if changed = append(changed, seat); r.IntN(5) == 0 {
						delete(elected, seat)
						continue
					}
					elected[seat] = Choice{Host: anyNode(r), Standby: anyNode(r), Term: r.Int64N(3)}
				}
				if r.IntN(5) == 0 {
					sight.Dead = someNodes(r)
				}
				if manifests && r.IntN(5) == 0 {
					sight.Heard = someNodes(r)
				}
				sight.Now = sight.Now.Add(time.Duration(r.Int64N(int64(handOver))))
				whole.Update(elected, whole.everySeat(elected), sight)
				for _, seat := range kept.Update(elected, changed, sight) {
					if c, exists := kept.now[seat]; exists {
						seen[seat] = c
					} else {
						delete(seen, seat)
					}
				}
				require.Equal(t, whole.now, kept.now, "seed %d, step %d", seed, step)
				require.Equal(t, whole.now, seen, "seed %d, step %d", seed, step)
				elected = maps.Clone(elected)
			}
		}
	}
}
