package election

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

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

// TestLocalFollows compares choices that were updated by changes with choices that are computed as a whole, and their reported changes.
func TestLocalFollows(t *testing.T) {
	for _, manifests := range []bool{false, true} {
		for seed := range uint64(50) {
			r := rand.New(rand.NewPCG(seed, 0))
			elected, dead, heard := map[Seat]Choice{}, map[string]bool{}, map[string]bool(nil)
			if manifests {
				heard = map[string]bool{}
			}
			var kept Local
			seen, whole := map[Seat]Choice{}, map[Seat]Choice{}
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
					dead = someNodes(r)
				}
				if manifests && r.IntN(5) == 0 {
					heard = someNodes(r)
				}
				for _, seat := range kept.Update("a", elected, changed, dead, heard, nil) {
					if c, exists := kept.now[seat]; exists {
						seen[seat] = c
					} else {
						delete(seen, seat)
					}
				}
				before := whole
				whole = map[Seat]Choice{}
				for seat, c := range elected {
					whole[seat] = (&Local{dead: dead, heard: heard}).here("a", c).Resume(before[seat])
				}
				require.Equal(t, whole, kept.now, "seed %d, step %d", seed, step)
				require.Equal(t, whole, seen, "seed %d, step %d", seed, step)
				elected = maps.Clone(elected)
			}
		}
	}
}
