package names

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func exactNames(names ...string) map[string][]*Set {
	all := map[string][]*Set{}
	for _, n := range names {
		all[n] = []*Set{{}}
	}
	return all
}

func TestSchedule(t *testing.T) {
	s := newSchedule()
	due := func(at int, want string, next int) {
		t.Helper()
		name, when := s.next(after(at))
		require.Equal(t, want, name)
		if want == "" && next >= 0 {
			require.Equal(t, after(next), when)
		} else {
			require.Zero(t, when)
		}
	}
	due(0, "", -1)
	s.serve(exactNames("a"), start)
	due(0, "a", 0) // at once
	due(0, "", -1) // it is being asked
	require.False(t, s.want("a", start))
	require.False(t, s.done("a", 100*time.Second, nil, start))
	due(99, "", 100)
	due(100, "a", 0)
	s.done("a", 0, nil, after(100))
	due(104, "", 105)
	require.False(t, s.want("a", after(104)), "asked just now")
	due(105, "a", 0)
	s.done("a", 24*time.Hour, nil, after(105))
	due(106, "", 105+1800)
	require.False(t, s.want("b", after(110)), "not listed")
	require.True(t, s.want("a", after(110)))
	require.False(t, s.want("a", after(110)), "already due")

	// Failures double the pause, and are a problem from the second one on.
	fault := errors.New("timeout")
	at := 110
	for i, pause := range []int{5, 10, 20, 40, 80, 120, 120} {
		due(at, "a", 0)
		require.Equal(t, i == 1, s.done("a", 0, fault, after(at)))
		due(at, "", at+pause)
		at += pause
	}
	require.Equal(t, "timeout", s.names["a"].fault)
	s.restart(after(at - 60))
	due(at-60, "a", 0)
	require.False(t, s.done("a", 0, fault, after(at)), "other resolvers: from the first pause on")
	due(at, "", at+5)
	at += 5
	due(at, "a", 0)
	require.True(t, s.done("a", 0, fault, after(at)))
	at += 10
	due(at, "a", 0)
	require.True(t, s.done("a", time.Minute, nil, after(at)), "the problem ends")
	s.restart(after(at))
	due(at, "", at+60) // it was answered

	// A fault beside an answer: the next question comes in time for the addresses that came, and the name is no problem.
	for _, pause := range []int{5, 10, 20, 20, 20} {
		at += map[bool]int{true: 60, false: 0}[pause == 5]
		due(at, "a", 0)
		require.False(t, s.done("a", 20*time.Second, fault, after(at)))
		due(at, "", at+pause)
		at += pause
	}
	require.False(t, s.names["a"].unresolved())
	for i, pause := range []int{120, 120} { // it becomes one when the addresses stay away, too
		due(at, "a", 0)
		require.Equal(t, i == 1, s.done("a", 0, fault, after(at)))
		at += pause
	}
	due(at, "a", 0)
	require.True(t, s.done("a", 20*time.Second, fault, after(at)))
	at += 20
	due(at, "a", 0)
	s.done("a", time.Minute, nil, after(at))

	// The order is that of the times.
	s.serve(exactNames("a", "b"), after(at))
	due(at, "b", 0)
	s.done("b", 30*time.Second, nil, after(at))
	due(at, "", at+30)
	s.serve(exactNames("a"), after(at))
	due(at, "", at+60)
	due(at+60, "a", 0)
	s.serve(nil, after(at+60)) // while it is being asked
	require.False(t, s.done("a", time.Minute, nil, after(at+60)))
	due(at+1000, "", -1)
	require.Empty(t, s.names)
}
