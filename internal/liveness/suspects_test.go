package liveness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bfd"
)

func TestSuspects(t *testing.T) {
	var s suspects
	now := time.Unix(1000, 0)
	session := func(state bfd.State, failed bool) []bfd.Session {
		return []bfd.Session{{Node: "a", Active: true, State: state, Failed: failed}, {Node: "b", State: bfd.Down, Failed: true}}
	}
	see := func(after time.Duration, sessions []bfd.Session) (bool, time.Duration) {
		now = now.Add(after)
		suspected, wait := s.see(sessions, now)
		require.NotContains(t, suspected, "b", "it is not watched")
		return suspected["a"], wait
	}
	for _, step := range []struct {
		after    time.Duration
		sessions []bfd.Session
		suspect  bool
		wait     time.Duration
	}{
		{0, session(bfd.Down, false), false, 0},
		{time.Second, session(bfd.Up, false), false, 0},
		{time.Second, session(bfd.Down, true), true, 0},
		{time.Hour, session(bfd.Init, true), true, 0},
		{time.Second, session(bfd.Down, false), true, 0}, // a new speaker has started
		{time.Second, session(bfd.Up, false), true, TrustAfter},
		{time.Second, session(bfd.Up, false), true, TrustAfter - time.Second},
		{time.Second, session(bfd.Down, true), true, 0},
		{time.Second, session(bfd.Up, false), true, TrustAfter},
		{TrustAfter, session(bfd.Up, false), false, 0},
		{time.Second, session(bfd.Down, true), true, 0},
		{time.Second, nil, false, 0}, // not watched any more
		{time.Second, session(bfd.Up, false), false, 0},
	} {
		suspect, wait := see(step.after, step.sessions)
		require.Equal(t, step.suspect, suspect, "%+v", step)
		require.Equal(t, step.wait, wait, "%+v", step)
	}
}

// TestIsolation checks which nodes are dead when one goes silent, by what this node hears of the others.
func TestIsolation(t *testing.T) {
	began := time.Unix(1000, 0)
	const detection = 300 * time.Millisecond
	up := func(node string, heard bool) bfd.Session {
		return bfd.Session{Node: node, State: bfd.Up, Heard: heard, Detection: detection}
	}
	failed := func(node string, after time.Duration) bfd.Session {
		return bfd.Session{Node: node, Active: node == "a", State: bfd.Down, Failed: true, Since: began.Add(after)}
	}
	for name, c := range map[string]struct {
		sessions []bfd.Session
		suspects string // one letter a node
		dead     bool   // at once
		later    bool   // when nothing else happens
	}{
		"no other node":                  {[]bfd.Session{failed("a", 0)}, "a", true, true},
		"another is heard":               {[]bfd.Session{failed("a", 0), up("b", true)}, "a", true, true},
		"one of several is heard":        {[]bfd.Session{failed("a", 0), up("b", false), up("c", true)}, "a", true, true},
		"another may be silent too":      {[]bfd.Session{failed("a", 0), up("b", false)}, "a", false, true},
		"another is silent too":          {[]bfd.Session{failed("a", 0), failed("b", 90*time.Millisecond)}, "a", false, false},
		"one is silent, one may be":      {[]bfd.Session{failed("a", 0), failed("b", 90*time.Millisecond), up("c", false)}, "a", false, true},
		"another has long been silent":   {[]bfd.Session{failed("a", 0), failed("b", -time.Hour)}, "a", true, true},
		"one is silent, another heard":   {[]bfd.Session{failed("a", 0), failed("b", 0), up("c", true)}, "a", true, true},
		"two that are watched, no other": {[]bfd.Session{failed("a", 0), failed("b", 0)}, "ab", false, false},
		"two that are watched":           {[]bfd.Session{failed("a", 0), failed("b", 0), up("c", true)}, "ab", true, true},
		"another was never up":           {[]bfd.Session{failed("a", 0), {Node: "b", State: bfd.Down}}, "a", true, true},
	} {
		var i isolation
		suspected := map[string]bool{}
		for _, node := range c.suspects {
			suspected[string(node)] = true
		}
		v := i.judge(suspected, c.sessions, began)
		require.Equal(t, c.dead, v.dead != nil, name)
		if c.dead {
			require.Equal(t, suspected, v.dead, name)
		}
		require.Equal(t, c.later && !c.dead, v.wait > 0, name)
		require.Equal(t, v.wait > 0, v.doubtful, name)
		require.Equal(t, !c.dead && !c.later, v.isolated, name)
		v = i.judge(suspected, c.sessions, began.Add(detection))
		require.Equal(t, c.later, v.dead != nil, name)
		require.Zero(t, v.wait, name)
		require.Equal(t, verdict{}, i.judge(nil, c.sessions, began.Add(time.Minute)), name)
		require.Equal(t, isolation{}, i, name)
	}
}
