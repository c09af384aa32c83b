package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSweepsRest searches a few times in a row without a rest, and in the long run for a 20th of the time.
func TestSweepsRest(t *testing.T) {
	now := time.Unix(1000, 0)
	var s sweep
	search := func(took time.Duration) (rested time.Duration) {
		rested = s.rest(now)
		now = now.Add(rested + took)
		s.done(now.Add(-took), now)
		return rested
	}
	for range 3 {
		require.Zero(t, search(time.Minute), "connections do not contradict a plan for long")
	}
	require.Zero(t, s.rest(now))
	require.Zero(t, search(time.Minute))
	require.Equal(t, sweepMost, s.rest(now))
	now = now.Add(time.Second)
	require.Zero(t, s.rest(now))

	s = sweep{}
	began, searches := now, 0
	for ; now.Sub(began) < time.Minute; searches++ {
		search(5 * time.Millisecond)
	}
	require.InDelta(t, float64(time.Minute/(20*5*time.Millisecond)), searches, 40)
}
