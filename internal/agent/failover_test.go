package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bfd"
)

func TestDeaths(t *testing.T) {
	d := deaths{}
	now := time.Unix(1000, 0)
	session := func(state bfd.State, failed bool) []bfd.Session {
		return []bfd.Session{{Node: "a", Active: true, State: state, Failed: failed}, {Node: "b", State: bfd.Down, Failed: true}}
	}
	see := func(after time.Duration, sessions []bfd.Session) (bool, time.Duration) {
		now = now.Add(after)
		dead, wait := d.see(sessions, now)
		require.NotContains(t, dead, "b", "who is not watched may be dead")
		return dead["a"], wait
	}
	for _, step := range []struct {
		after    time.Duration
		sessions []bfd.Session
		dead     bool
		wait     time.Duration
	}{
		{0, session(bfd.Down, false), false, 0},
		{time.Second, session(bfd.Up, false), false, 0},
		{time.Second, session(bfd.Down, true), true, 0},
		{time.Hour, session(bfd.Init, true), true, 0},
		{time.Second, session(bfd.Up, false), true, trustAfter},
		{time.Second, session(bfd.Up, false), true, trustAfter - time.Second},
		{time.Second, session(bfd.Down, true), true, 0},
		{time.Second, session(bfd.Up, false), true, trustAfter},
		{trustAfter, session(bfd.Up, false), false, 0},
		{time.Second, session(bfd.Down, true), true, 0},
		{time.Second, nil, false, 0}, // not watched any more
		{time.Second, session(bfd.Up, false), false, 0},
	} {
		dead, wait := see(step.after, step.sessions)
		require.Equal(t, step.dead, dead, "%+v", step)
		require.Equal(t, step.wait, wait, "%+v", step)
	}
}
