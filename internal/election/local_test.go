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
				if r.IntN(5) == 0 {
					sight.Silent = someNodes(r)
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

// TestStandbyObeys has a node come back from an isolation in which its standby became the host, which it does not hear yet.
func TestStandbyObeys(t *testing.T) {
	seat := ServiceSeat(cluster.Key{Namespace: "shop", Name: "web"})
	var c Local
	b := map[string]bool{"b": true}
	see := func(elected Choice, silent, dead map[string]bool) Choice {
		c.Update(map[Seat]Choice{seat: elected}, nil, Sight{Node: "a", Silent: silent, Dead: dead})
		c.Update(map[Seat]Choice{seat: elected}, []Seat{seat}, Sight{Node: "a", Silent: silent, Dead: dead})
		return c.Choices()[seat]
	}
	old, confirmed := Choice{Host: "a", Standby: "b", Term: 1}, Choice{Host: "b", Standby: "a", Term: 2}
	require.Equal(t, old, see(old, nil, nil))
	require.Equal(t, old, see(old, b, nil), "this node is isolated")
	require.Equal(t, "b", see(confirmed, b, nil).Host)
	require.Equal(t, "b", see(confirmed, b, b).Host, "another node is heard, and the leader elected this one")
	require.Equal(t, b, c.Obeyed())
	require.Equal(t, "b", see(confirmed, nil, b).Host, "it answers, and is not trusted yet")
	require.Equal(t, "b", see(confirmed, nil, nil).Host)
	require.Empty(t, c.Obeyed())
	require.Equal(t, Choice{Host: "a", Term: 3, Why: silent("b")}, see(confirmed, b, b), "now it dies")
	require.Equal(t, "a", see(Choice{Host: "a", Standby: "c", Term: 3}, b, b).Host)
	require.Equal(t, "b", see(Choice{Host: "b", Standby: "a", Term: 4}, b, b).Host, "the leader hears it again before this node does")
	require.Equal(t, "b", see(Choice{Host: "b", Term: 4}, b, b).Host)
	require.Equal(t, "b", see(Choice{Host: "b", Standby: "a", Term: 4}, b, b).Host, "its standby again, after it had none for a while")
	require.Equal(t, "b", see(Choice{Host: "b", Standby: "a", Term: 4}, nil, nil).Host)
	require.Equal(t, Choice{Host: "a", Term: 5, Why: silent("b")}, see(Choice{Host: "b", Standby: "a", Term: 4}, b, b), "now it dies again")
}

// TestStandbyObeysAtOneSeatOnly has a node replace a host that it does not hear, and become the standby of the same host at another seat,
// by a decision of a leader that does not know that yet. Its report has to say so, or both act as the host of the first seat for good.
func TestStandbyObeysAtOneSeatOnly(t *testing.T) {
	var c Local
	first, second, b := seat("first"), seat("second"), map[string]bool{"b": true}
	elected := map[Seat]Choice{first: {Host: "b", Standby: "a", Term: 3}, second: {Host: "x", Standby: "b", Term: 1}}
	c.Update(elected, nil, Sight{Node: "a"})
	dead := Sight{Node: "a", Silent: b, Dead: b}
	c.Update(elected, nil, dead)
	require.Equal(t, Choice{Host: "a", Term: 4, Why: silent("b")}, c.Choices()[first])

	elected[second] = Choice{Host: "b", Standby: "a", Term: 2}
	c.Update(elected, []Seat{second}, dead)
	require.Equal(t, elected[second], c.Choices()[second], "it obeys there")
	require.Equal(t, "a", c.Choices()[first].Host)
	require.Empty(t, c.Obeyed(), "the leader is to know that this node does not hear b")

	elected[first] = Choice{Host: "a", Standby: "x", Term: 4}
	c.Update(elected, []Seat{first}, dead)
	require.Equal(t, b, c.Obeyed(), "the leader knows")
	elected[first] = Choice{Host: "b", Standby: "a", Term: 6}
	c.Update(elected, []Seat{first}, dead)
	require.Equal(t, b, c.Obeyed(), "it obeys at both")
	delete(elected, first)
	delete(elected, second)
	c.Update(elected, []Seat{first, second}, dead)
	require.Empty(t, c.Obeyed())
	require.Empty(t, c.replaced)
}
