package liveness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bfd"
)

func TestAnswering(t *testing.T) {
	now := time.Unix(1000, 0)
	up, down, failed := bfd.Session{Node: "a", State: bfd.Up}, bfd.Session{Node: "a", State: bfd.Down}, bfd.Session{Node: "a", State: bfd.Down, Failed: true}
	steered := []string{"a"}
	type step struct {
		after   time.Duration
		session bfd.Session
		unsure  bool
		answers bool
		wait    time.Duration
	}
	for name, c := range map[string]struct {
		found []string // nodes that the first pass finds
		steps []step
	}{
		"never heard":           {nil, []step{{0, down, false, false, 0}, {time.Hour, down, false, false, 0}}},
		"heard":                 {nil, []step{{0, down, false, false, 0}, {0, up, false, true, 0}, {time.Hour, up, false, true, 0}}},
		"ended BFD alone":       {nil, []step{{0, up, false, true, 0}, {time.Second, down, false, true, 0}, {time.Hour, down, false, true, 0}}},
		"failed and back":       {nil, []step{{0, up, false, true, 0}, {0, failed, false, false, 0}, {time.Hour, failed, false, false, 0}, {0, up, false, true, 0}}},
		"isolated for a moment": {nil, []step{{0, up, false, true, 0}, {0, failed, true, true, 0}, {0, failed, false, false, 0}}},
		"found and heard":       {steered, []step{{0, down, false, true, presumeFor}, {time.Second, up, false, true, 0}, {time.Hour, down, false, true, 0}}},
		"found and failed":      {steered, []step{{0, failed, false, false, 0}}},
		"found, never heard":    {steered, []step{{time.Second, down, false, true, presumeFor - time.Second}, {presumeFor, down, false, false, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			var a answering
			at := now
			a.presume(c.found, at)
			for i, s := range c.steps {
				at = at.Add(s.after)
				require.Equal(t, s.wait, a.see([]bfd.Session{s.session}, s.unsure, at), "step %d", i)
				require.Equal(t, s.answers, a.now["a"], "step %d", i)
			}
		})
	}
}

// TestAnsweringAfterANewSpeaker requires that a new speaker hears the nodes that its predecessor heard.
func TestAnsweringAfterANewSpeaker(t *testing.T) {
	now := time.Unix(1000, 0)
	var a answering
	a.presume(nil, now)
	up := []bfd.Session{{Node: "a", State: bfd.Up}, {Node: "b", State: bfd.Up}}
	a.see(up, false, now)
	before := a.now
	a.doubt(now)
	require.Equal(t, presumeFor, a.see(nil, false, now))
	require.Equal(t, map[string]bool{"a": true, "b": true}, a.now)
	require.Zero(t, a.see(up[:1], false, now.Add(presumeFor)))
	require.Equal(t, map[string]bool{"a": true}, a.now)
	require.Equal(t, map[string]bool{"a": true, "b": true}, before, "a plan has it")
}
