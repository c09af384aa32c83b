package speaker

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/stories"
)

// frozen are the nodes whose speakers testdata/asks holds: one for each kind of request. TestFrozenAsksCoverEveryField finds a field
// that none has.
var frozen = []struct {
	name, story, node string
	before, change    func(*plan.Snapshot) // before: the agent asked for that already; nil: for nothing
}{
	{"standby", "one-service", "a", nil, nil},
	{"host", "one-service", "b", nil, nil},
	{"peer-options", "peer-options", "a", nil, nil},
	{"default-network", "default-network", "a", nil, nil}, // a speaker without a VRF
	{"router-on-node", "router-on-node", "a", nil, nil},   // next hops of uplinks
	{"left-host", "one-service", "a", func(s *plan.Snapshot) {
		s.Hosts[election.ServiceSeat(web)] = election.Choice{Host: "a", Standby: "b", Term: 1}
	}, leftHost},
	{"deleted-service", "one-service", "b", unchanged, func(s *plan.Snapshot) { s.Hosts = nil }}, // a withdrawal
	{"deleted-network", "one-service", "b", unchanged, func(s *plan.Snapshot) { s.Config.Networks = nil }},
}

var web = cluster.Key{Namespace: "shop", Name: "web"}

func unchanged(*plan.Snapshot) {}

// leftHost has a, which drains, as the standby of the host that took over from it.
func leftHost(s *plan.Snapshot) {
	s.Draining, s.Hosts[election.ServiceSeat(web)] = true, election.Choice{Host: "b", Standby: "a", Term: 2}
}

// askedOf is the agent's ask of an entry of frozen, after a change of the story.
func askedOf(t *testing.T, i int, change func(*plan.Snapshot)) asked {
	t.Helper()
	s, err := stories.Read("../plan/testdata/"+frozen[i].story, frozen[i].node)
	require.NoError(t, err)
	if change != nil {
		change(&s.Snapshot)
	}
	desired, _ := plan.Build(s.Snapshot)
	return askedFor(desired.Speakers)
}

// TestAsksAreAsFrozen compares the requests that an agent sends to the speaker for the plans of some stories with testdata/asks.
// UPDATE_GOLDEN=1 writes them again.
func TestAsksAreAsFrozen(t *testing.T) {
	for i, f := range frozen {
		t.Run(f.name, func(t *testing.T) {
			desired, had := askedOf(t, i, f.change), asked{}
			if f.before != nil {
				had = askedOf(t, i, f.before)
			}
			var got strings.Builder
			out := json.NewEncoder(&got)
			out.SetIndent("", "  ")
			w := had.excess(desired)
			if len(w.Networks) > 0 {
				require.NoError(t, out.Encode(message{Withdraw: &w}))
			}
			if c := had.without(w).changeTo(desired); !c.empty() {
				require.NoError(t, out.Encode(message{Apply: &c}))
			}

			file := "testdata/asks/" + f.name + ".json"
			if os.Getenv("UPDATE_GOLDEN") != "" {
				require.NoError(t, os.WriteFile(file, []byte(got.String()), 0o600))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), got.String())
		})
	}
}

// TestFrozenAsksCoverEveryField finds a field of speakers that is zero in all frozen asks: then testdata shows nothing of it.
func TestFrozenAsksCoverEveryField(t *testing.T) {
	var all []any
	for i := range frozen {
		for _, s := range askedOf(t, i, frozen[i].change) {
			all = append(all, s)
		}
	}
	require.Empty(t, stories.Unset(all...), "add a node to frozen that has it")
}
