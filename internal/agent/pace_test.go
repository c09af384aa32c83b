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
			wait := p.request(now)
			most = max(most, wait)
			now = now.Add(wait)
			n++
		}
		return n, most
	}
	for range paceBurst {
		require.Zero(t, p.request(now), "a few are immediate")
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
		require.Zero(t, p.request(now), "after a while of peace again")
	}
	require.NotZero(t, p.request(now))
}

// A pass that is asked for by what it changes itself comes to rest, whatever it is that it changes, and goes on once it finds nothing to change.
func TestPaceOfEndlessPasses(t *testing.T) {
	var p pace
	now := time.Unix(1_000_000, 0)
	passes := func(during, after time.Duration) (n int) { // events come so long after each pass
		for end := now.Add(during); now.Before(end); n++ {
			now = now.Add(after)
			now = now.Add(p.request(now))
			now = now.Add(5 * time.Millisecond)
			p.ran(now, true, true)
		}
		return n
	}
	n := passes(2*time.Minute, time.Millisecond)
	require.Greater(t, n, paceEndless)
	require.Less(t, n, paceEndless+20)
	require.True(t, p.endless())
	require.Equal(t, paceRest, p.rest())
	p.ran(now, false, true)
	require.True(t, p.endless(), "a pass for another reason that fails too is no sign of peace")

	p.ran(now, true, false)
	require.False(t, p.endless())
	require.Zero(t, p.rest())
	now = now.Add(time.Minute)
	require.Zero(t, p.request(now))

	// Another program's changes come at any time, and are put back as before.
	require.Greater(t, passes(time.Minute, 60*time.Millisecond), 500)
	require.False(t, p.endless())
}
