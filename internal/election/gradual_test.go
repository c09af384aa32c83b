package election

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

// mover feeds a Local on node a, which elects alone, and keeps the time.
type mover struct {
	local   Local
	sight   Sight
	elected map[Seat]Choice
}

var seatMoved = ServiceSeat(cluster.Key{Namespace: "shop", Name: "web"})

func newMover(host, standby string) *mover {
	m := &mover{elected: map[Seat]Choice{}, sight: Sight{
		Node: "a", Now: time.Unix(0, 0), Heard: map[string]bool{"a": true, "b": true, "c": true}, Keep: time.Minute,
		Ready: func(string) bool { return true },
	}}
	m.elect(host, standby)
	return m
}

// elect changes the elected choice. It returns the choice that is in force then.
func (m *mover) elect(host, standby string) Choice {
	m.elected[seatMoved] = Choice{Host: host, Standby: standby}
	m.local.Update(m.elected, []Seat{seatMoved}, m.sight)
	return m.local.Choices()[seatMoved]
}

// after lets time pass. It returns the choice that is in force then.
func (m *mover) after(d time.Duration) Choice {
	m.sight.Now = m.sight.Now.Add(d)
	m.local.Update(m.elected, nil, m.sight)
	return m.local.Choices()[seatMoved]
}

// untilDue lets time pass until the next phase of the move. It returns the choice that is in force then.
func (m *mover) untilDue(t *testing.T) Choice {
	due, ok := m.local.Due()
	require.True(t, ok, "a move is under way")
	return m.after(due.Sub(m.sight.Now))
}

// TestGradualMove: where nodes elect alone, the next host is the standby first, and the former host is it afterwards.
func TestGradualMove(t *testing.T) {
	m := newMover("a", "c")
	require.Equal(t, Choice{Host: "a", Standby: "b", Term: 1}, m.elect("b", "c"))
	require.Equal(t, "a", m.after(handOver-1).Host, "the time is not over")
	require.Equal(t, Choice{Host: "b", Standby: "a", Term: 1, Former: true}, m.untilDue(t))
	require.Equal(t, "a", m.after(m.sight.Keep-1).Standby, "flows still use the former host")
	require.Equal(t, Choice{Host: "b", Standby: "c", Term: 1, Left: true, Parted: "b"}, m.untilDue(t))
	require.Equal(t, Choice{Host: "b", Standby: "c", Term: 1}, m.untilDue(t))
	_, moving := m.local.Due()
	require.False(t, moving, "the move is over")
}

// TestGradualMoveEnds: a move does not wait where the former host cannot serve, nor where it is wanted again.
func TestGradualMoveEnds(t *testing.T) {
	notReady := func(string) bool { return false }
	for name, at := range map[string]struct {
		change func(m *mover) Choice
		host   string
	}{
		"back":            {func(m *mover) Choice { return m.elect("b", "c") }, "b"},
		"no host":         {func(m *mover) Choice { return m.elect("", "") }, ""},
		"every node":      {func(m *mover) Choice { return m.elect(cluster.AllHosts, "") }, cluster.AllHosts},
		"former one dead": {func(m *mover) Choice { m.sight.Dead = map[string]bool{"b": true}; return m.after(0) }, "a"},
	} {
		m := newMover("b", "c")
		require.Equal(t, "b", m.elect("a", "c").Host, name)
		require.Equal(t, at.host, at.change(m).Host, name)
		require.Empty(t, m.local.moves, name)
	}

	m := newMover("b", "c")
	m.sight.Ready, m.sight.Heard = notReady, map[string]bool{}
	require.Equal(t, Choice{Host: "c", Standby: "a", Term: 1}, m.elect("c", "a"), "a node that is not Ready and was never heard")
	m = newMover("b", "c")
	m.sight.Ready = notReady
	require.Equal(t, "b", m.elect("c", "a").Host, "a node that answers, whatever its manifest says")
	m = newMover("b", "c")
	m.sight.Heard = nil
	require.Equal(t, Choice{Host: "c", Standby: "a"}, m.elect("c", "a"), "a leader elects, and makes moves gradual itself")
}

// TestGradualMoveToADeadNode: the former host goes on while the next one is dead, and the next phase is not due again and again.
func TestGradualMoveToADeadNode(t *testing.T) {
	m := newMover("a", "c")
	m.sight.Dead = map[string]bool{"b": true}
	m.elect("b", "c")
	require.Equal(t, "a", m.untilDue(t).Host)
	due, ok := m.local.Due()
	require.True(t, ok)
	require.Equal(t, m.sight.Keep, due.Sub(m.sight.Now))
	m.sight.Dead = nil
	require.Equal(t, Choice{Host: "b", Standby: "c", Term: 1, Left: true}, m.untilDue(t))
}

// TestGradualMoveElsewhere: a move that gets another aim begins again, from the node that is the host by then.
func TestGradualMoveElsewhere(t *testing.T) {
	m := newMover("a", "b")
	m.elect("b", "c")
	require.Equal(t, Choice{Host: "a", Standby: "c", Term: 1}, m.elect("c", "b"))
	require.Equal(t, Choice{Host: "c", Standby: "a", Term: 1, Former: true}, m.untilDue(t))
	require.Equal(t, Choice{Host: "c", Standby: "b", Term: 1, Left: true}, m.elect("b", "a"), "c is the host by now")

	m = newMover("a", "b")
	m.sight.Keep = 0
	m.elect("b", "c")
	require.Equal(t, Choice{Host: "b", Standby: "c", Term: 1, Left: true}, m.untilDue(t), "moves.keepFlows: 0s")

	m = newMover("a", "b")
	m.elect("b", "c")
	delete(m.elected, seatMoved)
	require.Equal(t, []Seat{seatMoved}, m.local.Update(m.elected, []Seat{seatMoved}, m.sight))
	_, moving := m.local.Due()
	require.False(t, moving, "the object is gone")
}

// TestLeftSeat: a node that left a seat is noted for a while, since others learn of it later, unless the seat has no other host.
func TestLeftSeat(t *testing.T) {
	m := newMover("a", "b")
	m.sight.Heard = nil // a leader elects
	require.Equal(t, Choice{Host: "b", Standby: "a", Former: true}, m.elect("b", "a"))
	left := Choice{Host: "b", Standby: "c", Left: true}
	require.Equal(t, left, m.elect("b", "c"))
	require.Equal(t, left, m.after(handOver-1))
	require.Equal(t, Choice{Host: "b", Standby: "c"}, m.untilDue(t))
	_, waits := m.local.Due()
	require.False(t, waits)

	require.Equal(t, Choice{Host: "a", Standby: "b", Former: true}, m.elect("a", "b"))
	require.Equal(t, left, m.elect("b", "c"))
	require.Equal(t, Choice{Host: "b", Standby: "a"}, m.elect("b", "a"), "the standby again")
	for _, host := range []string{"", cluster.AllHosts} {
		m.elect("a", "b")
		require.Equal(t, Choice{Host: host}, m.elect(host, ""), "no node is the host")
		require.Equal(t, Choice{Host: "b", Standby: "c"}, m.elect("b", "c"))
	}
}

// TestStraysOfFormerHost: the former host gets strays for a while after it has stood by for its time, since its own pods' flows leave there
// until it learns that another node is the standby.
func TestStraysOfFormerHost(t *testing.T) {
	kept := func(stays time.Duration) *mover {
		m := newMover("b", "a")
		m.sight.Heard = nil // a leader elects
		m.elect("b", "a")
		require.Equal(t, Choice{Host: "a", Standby: "b", Former: true}, m.elect("a", "b"))
		m.after(stays)
		return m
	}
	m := kept(time.Minute)
	strays := Choice{Host: "a", Standby: "c", Parted: "b"}
	require.Equal(t, strays, m.elect("a", "c"))
	require.Equal(t, strays, m.after(handOver-1))
	require.Equal(t, Choice{Host: "a", Standby: "c"}, m.untilDue(t))
	_, waits := m.local.Due()
	require.False(t, waits)

	require.Equal(t, Choice{Host: "a", Standby: "c"}, kept(50*time.Second).elect("a", "c"), "another move begins: c is the next host")
	require.Equal(t, strays, kept(59*time.Second).elect("a", "c"), "the leader's minute began earlier")

	for _, next := range []Choice{
		{Host: "a", Standby: "b"},             // again
		{Host: "b", Standby: "a"},             // the host again
		{Host: "c", Standby: "a"},             // strays go to the host
		{Host: "c", Standby: "b", Left: true}, // this node has left, too
	} {
		m = kept(time.Minute)
		require.Equal(t, strays, m.elect("a", "c"))
		next.Former = next.Standby == "a"
		require.Equal(t, next, m.elect(next.Host, next.Standby))
	}

	m = kept(time.Minute)
	m.sight.Dead = map[string]bool{"b": true}
	require.Empty(t, m.elect("a", "c").Parted, "a dead node has no flows")

	m = newMover("a", "b") // this node is the former host
	m.sight.Heard = nil
	require.Equal(t, Choice{Host: "b", Standby: "a", Former: true}, m.elect("b", "a"))
	m.after(time.Minute)
	require.Equal(t, Choice{Host: "b", Standby: "c", Left: true, Parted: "b"}, m.elect("b", "c"))
	require.Equal(t, Choice{Host: "b", Standby: "c"}, m.untilDue(t))

	m = newMover("a", "b")
	m.sight.Heard = nil
	m.elect("b", "a")
	require.Equal(t, Choice{Host: "b", Standby: "c", Left: true}, m.elect("b", "c"), "another move begins")

	m = &mover{elected: map[Seat]Choice{}, sight: m.sight}
	m.sight.Dead, m.sight.Resumed = nil, func(Seat) bool { return true }
	require.Equal(t, Choice{Host: "a", Standby: "b", Former: true}, m.elect("a", "b"))
	require.Equal(t, strays, m.elect("a", "c"), "the time before this node's start counts")

	m = &mover{elected: map[Seat]Choice{}, sight: m.sight}
	require.Equal(t, Choice{Host: "b", Standby: "a", Former: true}, m.elect("b", "a"))
	require.Equal(t, Choice{Host: "b", Standby: "c", Left: true, Parted: "b"}, m.elect("b", "c"), "the former host started, too")
}
