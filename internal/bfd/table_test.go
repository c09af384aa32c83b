package bfd

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
)

// pair is a node and a host that it watches.
func pair(t *testing.T) (w *world, node, host *machine) {
	t.Helper()
	w = newWorld(t)
	node, host = w.boot(1, fast), w.boot(2, fast)
	node.watch(w, true, host)
	host.watch(w, false, node)
	return w, node, host
}

func TestSessionsGetUp(t *testing.T) {
	for _, c := range []struct{ node, host bool }{{true, false}, {false, true}, {true, true}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			w := newWorld(t)
			node, host := w.boot(1, fast), w.boot(2, fast)
			node.watch(w, c.node, host)
			host.watch(w, c.host, node)
			took := w.meet(node, host)
			require.Less(t, took, 250*time.Millisecond)
			w.pass(time.Minute)
			for _, s := range []Session{node.session(host), host.session(node)} {
				require.Equal(t, Up, s.State)
				require.False(t, s.Failed)
				require.Empty(t, s.LastError)
				require.Equal(t, 300*time.Millisecond, s.Detection)
			}
			for _, c := range slices.Concat(node.changes, host.changes) {
				require.GreaterOrEqual(t, c.State, Init)
			}
		})
	}
}

func TestPassiveEndsAreSilent(t *testing.T) {
	w := newWorld(t)
	node, host := w.boot(1, fast), w.boot(2, fast)
	node.watch(w, false, host)
	host.watch(w, false, node)
	w.pass(10 * time.Minute)
	require.Empty(t, node.sent)
	require.Empty(t, host.sent)
	require.Equal(t, Down, node.session(host).State)
	require.False(t, node.session(host).Failed)
}

func TestLostBeginningCostsASecond(t *testing.T) {
	w, node, host := pair(t)
	first := true
	w.lost = func(flying) bool { defer func() { first = false }(); return first }
	took := w.meet(node, host)
	require.Greater(t, took, 700*time.Millisecond)
	require.Less(t, took, 1200*time.Millisecond)
}

// Nobody who was never up has failed.
func TestUnknownIsNotFailed(t *testing.T) {
	w, node, host := pair(t)
	host.kill()
	w.pass(time.Minute)
	require.Equal(t, Down, node.session(host).State)
	require.False(t, node.session(host).Failed)
	sent := len(node.sent)
	require.InDelta(t, 60/0.875, sent, 8, "about a packet a second")
}

func TestDeath(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	w.pass(time.Second)
	host.kill()
	took := w.until(time.Second, "the host failed", func() bool { return node.session(host).Failed })
	require.GreaterOrEqual(t, took, 195*time.Millisecond, "three packets were missed, one of them was due at once")
	require.LessOrEqual(t, took, 305*time.Millisecond)
	require.Equal(t, Down, node.session(host).State)
	require.Equal(t, "nothing heard for 300ms", node.session(host).LastError)
	require.Zero(t, node.session(host).Detection)

	w.pass(10 * time.Minute)
	require.True(t, node.session(host).Failed, "it stays failed")

	host = w.boot(2, fast)
	host.watch(w, false, node)
	took = w.meet(node, host)
	require.Less(t, took, 1100*time.Millisecond)
	require.False(t, node.session(host).Failed)
}

// When one of two goes silent, whether the other was heard of tells a dead node from a way that is cut.
func TestHeard(t *testing.T) {
	for range 200 {
		for _, cut := range []bool{false, true} {
			w := newWorld(t)
			node, a, b := w.boot(1, fast), w.boot(2, fast), w.boot(3, fast)
			node.watch(w, true, a, b)
			a.watch(w, false, node)
			b.watch(w, false, node)
			w.meet(node, a)
			w.meet(node, b)
			w.pass(time.Second + rand.N(300*time.Millisecond))
			require.True(t, node.session(a).Heard)
			if cut {
				w.lost = func(flying) bool { return true }
			} else {
				a.kill()
			}
			failed := func(m *machine) bool { return node.session(m).Failed }
			w.until(time.Second, "one failed", func() bool { return failed(a) || failed(b) })
			require.False(t, node.session(a).Heard)
			require.Equal(t, !cut, node.session(b).Heard)
		}
	}
}

// A node that watches a host no more still learns that it is back.
func TestFailedIsAskedFor(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	host.kill()
	w.until(time.Second, "the host failed", func() bool { return node.session(host).Failed })
	node.watch(w, false, host)
	w.pass(10 * time.Minute)
	require.True(t, node.session(host).Failed)
	host = w.boot(2, fast)
	host.watch(w, false, node)
	w.meet(node, host)
	require.False(t, node.session(host).Failed)
	w.pass(restAfter + 10*time.Second)
	require.Equal(t, Down, node.session(host).State)
	require.Equal(t, Down, host.session(node).State)
	require.False(t, host.everFailed(node))
}

func TestTakenDownIsNotFailed(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	host.leaves(DiagAdminDown)
	w.until(10*time.Millisecond, "the session is down", func() bool { return node.session(host).State == Down })
	w.pass(time.Minute)
	require.False(t, node.everFailed(host))
	require.Equal(t, "the peer took the session down: administratively down", node.session(host).LastError)
}

// A process that ends has not failed if another one takes its place soon.
func TestProcessReplaced(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	host.leaves(DiagReset)
	w.pass(backWithin / 2)
	require.Equal(t, Down, node.session(host).State)
	host = w.boot(2, fast)
	host.watch(w, false, node)
	w.until(2*backWithin/5, "the session is up again", func() bool { return node.session(host).State == Up })
	w.pass(time.Minute)
	require.Equal(t, Up, node.session(host).State)
	require.False(t, node.everFailed(host))
}

// The next process may be passive, with intervals that are longer than it may take to be back: the node asks it sooner.
func TestSlowProcessReplaced(t *testing.T) {
	w := newWorld(t)
	slow := config.BFDProfile{Name: "slow", ReceiveInterval: 5000, TransmitInterval: 5000, DetectMultiplier: 3}
	node, host := w.boot(1, slow), w.boot(2, slow)
	node.watch(w, true, host)
	host.watch(w, false, node)
	w.until(time.Minute, "the session is up", func() bool { return node.session(host).State == Up })
	w.pass(20 * time.Second)
	host.leaves(DiagReset)
	w.pass(backWithin / 4)
	host = w.boot(2, slow)
	host.watch(w, false, node)
	w.until(backWithin/2, "the session is up again", func() bool { return node.session(host).State == Up })
	w.pass(time.Minute)
	require.False(t, node.everFailed(host))
}

// A machine that restarts ends its processes in order first. It has failed once it is away for longer than a process would be.
func TestMachineRestarts(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	host.leaves(DiagReset)
	w.pass(backWithin - 100*time.Millisecond)
	require.False(t, node.session(host).Failed)
	w.pass(200 * time.Millisecond)
	require.True(t, node.session(host).Failed)
	require.Equal(t, "the peer's process has ended and is not back after 3s", node.session(host).LastError)
	w.pass(time.Minute)
	require.True(t, node.session(host).Failed)
	host = w.boot(2, fast)
	host.watch(w, false, node)
	w.meet(node, host)
	require.False(t, node.session(host).Failed)
	w.pass(time.Minute)
	require.False(t, node.session(host).Failed)
}

// A node that says that nothing may be sent by it any more has failed at once.
func TestPathDown(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	host.leaves(DiagPathDown)
	w.pass(10 * time.Millisecond)
	require.True(t, node.session(host).Failed)
	require.Equal(t, "the peer took the session down: path down", node.session(host).LastError)
	w.pass(time.Minute)
	require.True(t, node.session(host).Failed)
}

// What failed before it was taken down stays so.
func TestTakenDownClearsNothing(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	host.frozen = true
	w.until(time.Second, "the host failed", func() bool { return node.session(host).Failed })
	host.receive(node.addr, packet{state: Up, mult: 3, mine: 1, yours: host.sessions[node.addr].local}.encode(nil), w.now)
	w.post(host, host.takeDown(DiagReset, w.now)[0])
	w.pass(time.Second)
	require.True(t, node.session(host).Failed)
	require.Equal(t, Down, node.session(host).State)
}

// An engine that begins anew, with other discriminators and without having said that it goes, has not failed unless it
// was away for a detection time.
func TestRestart(t *testing.T) {
	for _, who := range []string{"node", "host"} {
		t.Run(who, func(t *testing.T) {
			w, node, host := pair(t)
			w.meet(node, host)
			w.pass(time.Second)
			if who == "node" {
				node = w.boot(1, fast)
				node.watch(w, true, host)
			} else {
				host = w.boot(2, fast)
				host.watch(w, false, node)
			}
			took := w.until(time.Second, "the session is up again", func() bool {
				x, y := node.sessions[host.addr], host.sessions[node.addr]
				return x.state == Up && y.state == Up && x.remote == y.local && y.remote == x.local
			})
			require.Less(t, took, 200*time.Millisecond)
			w.pass(time.Minute)
			require.Equal(t, Up, node.session(host).State)
			require.False(t, node.everFailed(host))
			require.False(t, host.everFailed(node))
		})
	}
}

// Two that do not watch each other do not go on because one of them has begun anew.
func TestRestartOfAPassiveEnd(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	node.watch(w, false, host)
	host = w.boot(2, fast)
	host.watch(w, false, node)
	w.pass(time.Second)
	require.Equal(t, Down, node.session(host).State)
	require.Equal(t, Down, host.session(node).State)
	require.False(t, node.everFailed(host))
	quiet := w.now
	w.pass(time.Minute)
	require.Empty(t, node.since(quiet))
	require.Empty(t, host.since(quiet))
}

func TestRemovedPeer(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	node.watch(w, true)
	require.Empty(t, node.sessions)
	w.pass(time.Second)
	require.Equal(t, Down, host.session(node).State)
	require.False(t, host.everFailed(node))
	var farewell []packet
	for _, d := range node.sent {
		if d.packet.state == AdminDown {
			farewell = append(farewell, d.packet)
		}
	}
	require.Len(t, farewell, farewells)
	require.Equal(t, DiagAdminDown, farewell[0].diag)
	require.Empty(t, node.leaving)
	require.Empty(t, node.locals)
	require.Empty(t, node.queue)

	// Its packets are nobody's now.
	host.watch(w, true, node)
	w.pass(5 * time.Second)
	require.Equal(t, Down, host.session(node).State)
	require.Positive(t, node.counters.Discarded[errPeer.Error()])
}

// The end of one session does not disturb the next one.
func TestRemovedAndBack(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	node.watch(w, true)
	w.pass(2 * time.Millisecond)
	node.watch(w, true, host)
	w.meet(node, host)
	w.pass(time.Minute)
	require.Equal(t, Up, node.session(host).State)
	require.Equal(t, Up, host.session(node).State)
	require.Len(t, node.locals, 1)
	require.False(t, host.everFailed(node))
	ups := 0
	for _, c := range host.changes {
		if c.State == Up {
			ups++
		}
	}
	require.Equal(t, 2, ups)
}

// Set does not disturb who stays.
func TestSetIsIdempotent(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	third := w.boot(3, fast)
	before := node.session(host)
	local := node.sessions[host.addr].local
	node.watch(w, true, host, third)
	w.pass(time.Second)
	node.watch(w, true, host)
	node.watch(w, true, host)
	w.pass(time.Second)
	require.Equal(t, before, node.session(host))
	require.Equal(t, local, node.sessions[host.addr].local)
	require.False(t, host.everFailed(node))
}

func TestSetTakesUsableAddresses(t *testing.T) {
	table := newTable(fast)
	a := address(1)
	table.set([]Peer{{}, {Address: a}, {Address: a, Active: true}, {Address: a}}, time.Hour)
	require.Len(t, table.sessions, 1)
	require.True(t, table.sessions[a].peer.Active, "watched if one of them is")
}

// A session ends that nobody watches any more; one that the peer watches goes on.
func TestRest(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	node.watch(w, false, host)
	w.pass(restAfter - time.Second)
	require.Equal(t, Up, node.session(host).State)
	node.watch(w, true, host)
	w.pass(2 * time.Second)
	node.watch(w, false, host)
	w.pass(restAfter - time.Second)
	require.Equal(t, Up, node.session(host).State, "the minute begins anew")
	w.pass(2 * time.Second)
	for _, s := range []Session{node.session(host), host.session(node)} {
		require.Equal(t, Down, s.State)
		require.False(t, s.Failed)
	}
	quiet := w.now
	w.pass(10 * time.Minute)
	require.Empty(t, node.since(quiet))
	require.Empty(t, host.since(quiet))
	node.watch(w, true, host)
	w.meet(node, host)

	node.watch(w, false, host)
	host.watch(w, true, node)
	w.pass(restAfter + 10*time.Second)
	require.Equal(t, Up, host.session(node).State)
	require.False(t, host.everFailed(node))
	w.pass(10 * time.Minute)
	require.Equal(t, Up, host.session(node).State)
	require.Less(t, len(host.changes), 15)
}

// One direction is broken. The end that hears nothing has lost its peer; the other one, told so, has not.
func TestOneDirection(t *testing.T) {
	w := newWorld(t)
	a, b := w.boot(1, fast), w.boot(2, fast)
	a.watch(w, true, b)
	b.watch(w, true, a)
	w.meet(a, b)
	w.lost = func(d flying) bool { return d.from == a.addr }
	w.until(time.Second, "b has lost a", func() bool { return b.session(a).Failed })
	w.pass(time.Minute)
	require.False(t, a.everFailed(b))
	require.Less(t, a.session(b).State, Up)
	w.lost = nil
	w.meet(a, b)
	require.False(t, b.session(a).Failed)
}

func TestLoss(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	// Every other packet.
	n := map[bool]int{}
	w.lost = func(d flying) bool {
		n[d.from == node.addr]++
		return n[d.from == node.addr]%2 != 0
	}
	w.pass(10 * time.Minute)
	require.False(t, node.everFailed(host))
	require.False(t, host.everFailed(node))
	// Half of them, at random: whatever comes of it, it passes.
	w.lost = func(flying) bool { return rand.N(2) == 0 }
	w.pass(10 * time.Minute)
	w.lost = nil
	w.until(20*time.Second, "the session is up", func() bool { // three packets, between which are up to 6.4 s by now
		return node.session(host).State == Up && host.session(node).State == Up
	})
	require.False(t, node.session(host).Failed)
	require.False(t, host.session(node).Failed)
}

func TestJitter(t *testing.T) {
	for mult, most := range map[uint8]time.Duration{3: 100 * time.Millisecond, 1: 90 * time.Millisecond} {
		w := newWorld(t)
		profile := fast
		profile.DetectMultiplier = mult
		node, host := w.boot(1, profile), w.boot(2, profile)
		node.watch(w, true, host)
		host.watch(w, false, node)
		w.meet(node, host)
		w.pass(time.Second)
		from := w.now
		w.pass(time.Minute)
		require.False(t, node.everFailed(host), mult)
		sent := node.since(from)
		least, longest := time.Hour, time.Duration(0)
		for i := range sent[1:] {
			apart := sent[i+1].at - sent[i].at
			least, longest = min(least, apart), max(longest, apart)
		}
		require.GreaterOrEqual(t, least, 75*time.Millisecond-tick)
		require.Less(t, least, 80*time.Millisecond)
		require.LessOrEqual(t, longest, most+tick)
		require.Greater(t, longest, most-5*time.Millisecond)
	}
}

func TestIntervalsAreNegotiated(t *testing.T) {
	w := newWorld(t)
	slow := config.BFDProfile{TransmitInterval: 250, ReceiveInterval: 400, DetectMultiplier: 5}
	node, host := w.boot(1, fast), w.boot(2, slow)
	node.watch(w, true, host)
	host.watch(w, false, node)
	w.meet(node, host)
	require.Equal(t, 5*250*time.Millisecond, node.session(host).Detection, "five packets of the host, one each 250 ms")
	require.Equal(t, 3*400*time.Millisecond, host.session(node).Detection, "three packets of the node, which the host wants each 400 ms")
	from := w.now
	w.pass(time.Minute)
	require.InDelta(t, 60/0.4/0.875, len(node.since(from)), 10)
	require.InDelta(t, 60/0.25/0.875, len(host.since(from)), 15)
}

// A change of intervals is asked and confirmed, and nobody is lost meanwhile, even where the asking is.
func TestPoll(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	w.pass(time.Second)

	s := host.sessions[node.addr]

	host.setProfile(config.BFDProfile{TransmitInterval: 500, ReceiveInterval: 600, DetectMultiplier: 4})
	from := w.now
	silence := w.now + 150*time.Millisecond
	w.lost = func(d flying) bool { return d.from == host.addr && d.at < silence }
	require.True(t, s.polling)
	require.Equal(t, 100*time.Millisecond, s.inForce.tx, "slower only when the peer has confirmed")
	require.Equal(t, 600*time.Millisecond, s.inForce.rx, "more patient at once")
	w.meet(node, host)
	require.Equal(t, timers{500 * time.Millisecond, 600 * time.Millisecond}, s.inForce)
	polls, finals := 0, 0
	for _, d := range host.since(from) {
		require.False(t, d.packet.poll && d.packet.final)
		if d.packet.poll {
			polls++
		}
	}
	for _, d := range node.since(from) {
		if d.packet.final {
			finals++
		}
	}
	require.GreaterOrEqual(t, polls, 2, "the first ones were lost")
	require.Positive(t, finals)
	w.pass(time.Second)
	require.Equal(t, 2*time.Second, node.session(host).Detection)
	require.Equal(t, 1800*time.Millisecond, host.session(node).Detection)

	host.setProfile(fast)
	require.Equal(t, 100*time.Millisecond, s.inForce.tx, "faster at once")
	require.Equal(t, 600*time.Millisecond, s.inForce.rx, "less patient only when the peer has confirmed")
	// Changed again while the poll is under way: one after the other.
	host.setProfile(config.BFDProfile{TransmitInterval: 200, ReceiveInterval: 200, DetectMultiplier: 3})
	require.Equal(t, timers{100 * time.Millisecond, 100 * time.Millisecond}, s.offered)
	w.until(2*time.Second, "both are confirmed", func() bool { return s.inForce.tx == 200*time.Millisecond })
	w.pass(time.Minute)
	require.Equal(t, 600*time.Millisecond, node.session(host).Detection)
	require.Equal(t, 600*time.Millisecond, host.session(node).Detection)
	require.False(t, node.everFailed(host))
	require.False(t, host.everFailed(node))
}

// A host that a thousand nodes watch asks them for fewer packets.
func TestManyWatchers(t *testing.T) {
	w := newWorld(t)
	host := w.boot(0, fast)
	var nodes []*machine
	for i := range 1000 {
		n := w.boot(i+1, fast)
		nodes = append(nodes, n)
		n.watch(w, true, host)
	}
	host.watch(w, false, nodes...)
	w.until(3*time.Second, "all are up", func() bool { return host.up == len(nodes) })
	w.pass(2 * time.Second)
	from := w.now
	received := host.counters.Received
	const seconds = 2
	w.pass(seconds * time.Second)
	const jittered = 1 / 0.875 // packets come somewhat more often than their interval says
	require.InDelta(t, packetRate*jittered, (host.counters.Received-received)/seconds, 200)
	require.InDelta(t, packetRate*jittered, len(host.since(from))/seconds, 200)
	for _, n := range nodes {
		require.Equal(t, 600*time.Millisecond, n.session(host).Detection)
		require.Len(t, n.changes, 1, "straight to up")
		require.False(t, n.everFailed(host))
	}

	// 700 of them go: the rest is watched more closely again.
	for _, n := range nodes[300:] {
		n.watch(w, true)
	}
	w.pass(2 * time.Second)
	for _, n := range nodes[:300] {
		require.Equal(t, 300*time.Millisecond, n.session(host).Detection)
		require.False(t, n.everFailed(host))
	}
	host.kill()
	w.pass(time.Second)
	for _, n := range nodes[:300] {
		require.True(t, n.session(host).Failed)
	}
}

// Single peers that come and go do not change the intervals of all others.
func TestScaleHasSteps(t *testing.T) {
	table := newTable(fast)
	scale := func(up int) time.Duration {
		table.up = up
		table.rescale()
		return table.wanted().rx
	}
	const ms = time.Millisecond
	for _, c := range []struct {
		up   int
		want time.Duration
	}{
		{0, 100 * ms},
		{500, 100 * ms},
		{501, 110 * ms},
		{550, 110 * ms},
		{551, 120 * ms},
		{501, 120 * ms},
		{500, 100 * ms},
		{1000, 200 * ms},
		{999, 200 * ms},
		{951, 200 * ms},
		{950, 200 * ms},
		{900, 180 * ms},
		{5000, 1000 * ms},
		{0, 100 * ms},
	} {
		require.Equal(t, c.want, scale(c.up), "%d up", c.up)
	}
}
