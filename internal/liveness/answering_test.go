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
			a.presume(c.found, presumeFor, at)
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
	a.presume(nil, presumeFor, now)
	up := []bfd.Session{{Node: "a", State: bfd.Up}, {Node: "b", State: bfd.Up}}
	a.see(up, false, now)
	before := a.now
	a.doubt(presumeFor, now)
	require.Equal(t, presumeFor, a.see(nil, false, now))
	require.Equal(t, map[string]bool{"a": true, "b": true}, a.now)
	require.Zero(t, a.see(up[:1], false, now.Add(presumeFor)))
	require.Equal(t, map[string]bool{"a": true}, a.now)
	require.Equal(t, map[string]bool{"a": true, "b": true}, before, "a plan has it")
}

// TestForget has nodes without a Node object come back: each has to be heard again, while the others go on.
func TestForget(t *testing.T) {
	now := time.Unix(1000, 0)
	var d Detector
	d.Presume([]string{"presumed"}, now)
	before := d.See([]bfd.Session{watched("gone"), watched("stays")}, detection, now)
	all := nodes("gone", "stays", "presumed")
	require.Equal(t, all, before.Answering)
	d.Forget(func(node string) bool { return all[node] })
	v := d.See([]bfd.Session{watched("stays")}, detection, now)
	require.Equal(t, all, v.Answering, "the end of a session alone ends nothing")
	require.Equal(t, nodes("gone", "stays"), v.Heard)

	d.Forget(func(node string) bool { return node == "stays" })
	v = d.See([]bfd.Session{watched("stays")}, detection, now)
	require.Equal(t, nodes("stays"), v.Answering)
	require.Equal(t, nodes("stays"), v.Heard)
	require.Zero(t, v.Wait)
	d.Restart(now)
	v = d.See([]bfd.Session{watched("stays"), {Node: "gone", Active: true, State: bfd.Down}}, detection, now)
	require.Equal(t, nodes("stays"), v.Answering)
	require.Equal(t, nodes("stays"), v.Heard)
	v = d.See([]bfd.Session{watched("stays"), watched("gone")}, detection, now)
	require.Equal(t, nodes("gone", "stays"), v.Answering)
	require.Equal(t, nodes("gone", "stays"), v.Heard)
	require.Equal(t, all, before.Answering, "a plan has it")
	require.Equal(t, nodes("gone", "stays"), before.Heard)
}

// TestAnsweringOnceWatched has nodes begin to watch each other: each answers until it was heard and lost, or has not been heard
// in time. A new speaker does not shorten that time.
func TestAnsweringOnceWatched(t *testing.T) {
	now := time.Unix(1000, 0)
	all := []bfd.Session{{Node: "heard", State: bfd.Up}, {Node: "lost", State: bfd.Up}, {Node: "late", State: bfd.Down}}
	var d Detector
	require.Empty(t, d.See(nil, 0, now).Answering)
	d.Enable([]string{"heard", "late", "lost"}, now)
	require.Len(t, d.See(nil, 0, now).Answering, 3)
	require.Len(t, d.See(all, 0, now).Answering, 3)
	all[1].State, all[1].Failed, all[1].Since = bfd.Down, true, now
	require.Equal(t, map[string]bool{"heard": true, "late": true}, d.See(all, 0, now).Answering)
	d.Restart(now)
	v := d.See(all, 0, now.Add(presumeFor))
	require.Equal(t, map[string]bool{"heard": true, "late": true}, v.Answering)
	require.Equal(t, enableWithin-presumeFor, v.Wait)
	require.Equal(t, map[string]bool{"heard": true}, d.See(all, 0, now.Add(enableWithin)).Answering)
}
