package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPace(t *testing.T) {
	var p pace
	now := time.Unix(1_000_000, 0)
	passes := func(during time.Duration) (n int, most time.Duration) {
		// An event every 10 ms, and one more for what the pass itself changes.
		for end := now.Add(during); now.Before(end); now = now.Add(10 * time.Millisecond) {
			wait := p.take(now)
			most = max(most, wait)
			now = now.Add(wait)
			n++
		}
		return n, most
	}
	for range paceBurst {
		require.Zero(t, p.take(now), "a few are immediate")
	}
	n, most := passes(time.Minute)
	require.InDelta(t, 600, n, 10)
	require.LessOrEqual(t, most, paceEvery)

	p.cost = 8 * time.Millisecond
	n, most = passes(time.Minute)
	require.InDelta(t, 375, n, 10, "a pause of 20 times 8 ms")
	require.LessOrEqual(t, most, 160*time.Millisecond)

	p.cost = 40 * time.Millisecond
	_, most = passes(time.Minute)
	require.LessOrEqual(t, most, paceMost)

	p.cost = time.Second
	n, _ = passes(time.Minute)
	require.InDelta(t, 15, n, 1)

	now, p.cost = now.Add(time.Hour), 0
	for range paceBurst {
		require.Zero(t, p.take(now), "after a while of peace again")
	}
	require.NotZero(t, p.take(now))
}
