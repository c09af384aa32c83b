package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSweepsRest(t *testing.T) {
	now := time.Unix(1000, 0)
	var s sweep
	require.Zero(t, s.rest(now), "the first need not wait")
	s = sweep{ended: now, took: 3 * time.Millisecond}
	require.Equal(t, 60*time.Millisecond, s.rest(now))
	require.Equal(t, 40*time.Millisecond, s.rest(now.Add(20*time.Millisecond)))
	require.Zero(t, s.rest(now.Add(time.Second)))
	s.took = time.Minute
	require.Equal(t, sweepMost, s.rest(now), "connections do not contradict a plan for long")
}
