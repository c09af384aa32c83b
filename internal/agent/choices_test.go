package agent

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
)

func node(r *rand.Rand) string { return []string{"", "a", "b", "c", cluster.AllHosts}[r.IntN(5)] }

func someNodes(r *rand.Rand) map[string]bool {
	nodes := map[string]bool{}
	for _, name := range []string{"a", "b", "c"} {
		if r.IntN(3) == 0 {
			nodes[name] = true
		}
	}
	return nodes
}

// What is kept in step by the changes alone is what follows from all of it anew, and what is named as changed is all that is.
func TestChoicesFollow(t *testing.T) {
	for _, manifests := range []bool{false, true} {
		for seed := range uint64(50) {
			r := rand.New(rand.NewPCG(seed, 0))
			elected, dead, heard := map[cluster.Key]election.Choice{}, map[string]bool{}, map[string]bool(nil)
			if manifests {
				heard = map[string]bool{}
			}
			var kept choices
			seen, anew := map[cluster.Key]election.Choice{}, map[cluster.Key]election.Choice{}
			for step := range 100 {
				var changed []cluster.Key
				for range r.IntN(3) {
					key := cluster.Key{Namespace: "shop", Name: fmt.Sprint("s", r.IntN(6))}
					if changed = append(changed, key); r.IntN(5) == 0 {
						delete(elected, key)
						continue
					}
					elected[key] = election.Choice{Host: node(r), Standby: node(r), Term: r.Int64N(3)}
				}
				if r.IntN(5) == 0 {
					dead = someNodes(r)
				}
				if manifests && r.IntN(5) == 0 {
					heard = someNodes(r)
				}
				for _, key := range kept.update("a", elected, changed, dead, heard) {
					if c, exists := kept.now[key]; exists {
						seen[key] = c
					} else {
						delete(seen, key)
					}
				}
				before := anew
				anew = map[cluster.Key]election.Choice{}
				for key, c := range elected {
					anew[key] = (&choices{dead: dead, heard: heard}).here("a", c).Resume(before[key])
				}
				require.Equal(t, anew, kept.now, "seed %d, step %d", seed, step)
				require.Equal(t, anew, seen, "seed %d, step %d", seed, step)
				elected = maps.Clone(elected)
			}
		}
	}
}
