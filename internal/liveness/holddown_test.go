package liveness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHoldDown runs the loss of a network's sessions, by an injected clock.
func TestHoldDown(t *testing.T) {
	type step struct {
		at       time.Duration
		networks []string
		up       map[string]time.Duration // networks with a session, and since when
		asked    time.Duration            // when the API server was asked that confirms the role; 0: it has not confirmed
		holds    []string
		wait     time.Duration
	}
	both, red := []string{"red", "blue"}, []string{"red"}
	always := map[string]time.Duration{"red": 0, "blue": 0}
	lost := []step{
		{at: 10 * time.Second, networks: both, up: always},
		{at: 20 * time.Second, networks: both, up: map[string]time.Duration{"blue": 0}, holds: red},
	}
	back := map[string]time.Duration{"red": 30 * time.Second, "blue": 0}
	for name, steps := range map[string][]step{
		"never connected": {{at: 0, networks: both}, {at: time.Hour, networks: both}},
		"connected":       {{at: 0, networks: both, up: always}, {at: time.Hour, networks: both, up: always}},
		"lost and back": append(lost[:2:2],
			step{at: 30 * time.Second, networks: both, up: back, holds: red, wait: HoldDownFor},
			step{at: 30*time.Second + HoldDownFor - time.Second, networks: both, up: back, holds: red, wait: time.Second},
			step{at: 30*time.Second + HoldDownFor - time.Microsecond, networks: both, up: back, holds: red, wait: time.Millisecond},
			step{at: 30*time.Second + HoldDownFor, networks: both, up: back},
		),
		"lost and confirmed": append(lost[:2:2],
			step{at: 31 * time.Second, networks: both, up: back, asked: 19 * time.Second, holds: red, wait: HoldDownFor - time.Second},
			step{at: 32 * time.Second, networks: both, up: back, asked: 31 * time.Second},
			step{at: 33 * time.Second, networks: both, up: back},
		),
		"lost for long": append(lost[:2:2],
			step{at: time.Hour, networks: both, up: map[string]time.Duration{"blue": 0}, holds: red},
		),
		"lost again": append(lost[:2:2],
			step{at: 30 * time.Second, networks: both, up: back, holds: red, wait: HoldDownFor},
			step{at: 31 * time.Second, networks: both, up: map[string]time.Duration{"blue": 0}, asked: 25 * time.Second, holds: red},
		),
		"removed from the configuration": append(lost[:2:2],
			step{at: 30 * time.Second, networks: []string{"blue"}, up: always},
		),
	} {
		t.Run(name, func(t *testing.T) {
			var h HoldDown
			for i, s := range steps {
				up := map[string]time.Time{}
				for network, since := range s.up {
					up[network] = began.Add(since)
				}
				if s.asked > 0 {
					h.Confirm(began.Add(s.asked))
				}
				h.See(s.networks, up, began.Add(s.at))
				var holds []string
				for _, network := range both {
					if h.Holds(network) {
						holds = append(holds, network)
					}
				}
				require.Equal(t, s.holds, holds, "step %d", i)
				require.Equal(t, len(holds) > 0, h.Active(), "step %d", i)
				require.Equal(t, s.wait, h.Wait(up, began.Add(s.at)), "step %d", i)
			}
		})
	}
}
