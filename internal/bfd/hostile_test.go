package bfd

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process that stood still finds the packets of who lives, and takes nobody for dead whom it could not hear.
func TestPausedProcess(t *testing.T) {
	for _, pause := range []time.Duration{90 * time.Millisecond, 250 * time.Millisecond, 310 * time.Millisecond, 5 * time.Second, 10 * time.Minute} {
		t.Run(pause.String(), func(t *testing.T) {
			w, node, host := pair(t)
			dead := w.boot(3, fast)
			node.watch(w, true, host, dead)
			dead.watch(w, false, node)
			w.meet(node, host)
			w.meet(node, dead)
			node.stopped = true
			w.pass(pause / 2)
			dead.kill()
			w.pass(pause / 2)
			node.stopped = false
			began := w.now
			w.work(node) // the timer comes first, packets wait
			require.False(t, node.everFailed(host))
			require.False(t, node.everFailed(dead), "not yet")
			node.readWaiting(w.now)
			w.until(5*time.Second, "the dead one failed", func() bool { return node.session(dead).Failed })
			if pause < time.Second {
				require.LessOrEqual(t, w.now-began, 605*time.Millisecond)
			} else { // it had said that it hears nothing and sends one packet a second
				require.LessOrEqual(t, w.now-began, 3100*time.Millisecond)
			}
			w.until(2*time.Second, "the session is up", func() bool { return node.session(host).State == Up })
			w.pass(time.Minute)
			require.False(t, node.everFailed(host))
		})
	}
}

// A whole machine that stood still finds no packets at all.
func TestPausedMachine(t *testing.T) {
	for _, pause := range []time.Duration{90 * time.Millisecond, 250 * time.Millisecond, 310 * time.Millisecond, 5 * time.Second, 10 * time.Minute} {
		t.Run(pause.String(), func(t *testing.T) {
			for range 20 {
				w, node, host := pair(t)
				w.meet(node, host)
				w.pass(rand.N(time.Second))
				node.frozen = true
				if pause < 10*time.Minute {
					w.pass(pause)
				} else {
					w.now += pause
					host.kill() // its sessions have long ended
				}
				node.frozen = false
				w.work(node)
				require.False(t, node.everFailed(host))
				if pause == 10*time.Minute {
					w.until(700*time.Millisecond, "the host failed", func() bool { return node.session(host).Failed })
					continue
				}
				w.pass(10 * time.Second)
				require.Equal(t, Up, node.session(host).State)
				require.False(t, node.everFailed(host))
			}
		})
	}
}

// A process that hardly ever runs still finds out.
func TestStarvedProcess(t *testing.T) {
	for _, every := range []time.Duration{50 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond, time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			w, node, host := pair(t)
			w.meet(node, host)
			run := func(d time.Duration) {
				for end := w.now + d; w.now < end; {
					node.stopped = true
					w.pass(every)
					node.stopped = false
					w.work(node)
					node.readWaiting(w.now)
				}
			}
			run(time.Minute)
			require.False(t, node.everFailed(host))
			host.kill()
			began := w.now
			for !node.session(host).Failed && w.now < began+time.Minute {
				run(every)
			}
			require.True(t, node.session(host).Failed)
			require.LessOrEqual(t, w.now-began, 6*time.Second+5*every)
		})
	}
}

// Who can send with a peer's address, but hears nothing, cannot end a session, nor hide a death.
func TestForgedPackets(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	s := node.sessions[host.addr]
	forge := func(p packet) { node.receive(host.addr, p.encode(nil), w.now); node.next = w.now }
	for _, p := range []packet{
		{state: Down, mult: 1, mine: 7, yours: s.local ^ 1},
		{state: AdminDown, mult: 1, mine: 7, yours: s.local ^ 1},
		{state: Up, mult: 255, mine: s.remote, yours: s.local ^ 1, desiredTx: time.Hour},
	} {
		forge(p)
		require.Equal(t, Up, node.session(host).State)
		require.Equal(t, 300*time.Millisecond, node.session(host).Detection)
	}
	require.EqualValues(t, 3, node.counters.Discarded[errSession.Error()])
	changes := len(node.changes)
	for range 1000 {
		forge(packet{state: Down, mult: 3, mine: rand.Uint32() | 1, desiredTx: time.Millisecond, requiredRx: time.Millisecond})
		forge(packet{state: AdminDown, mult: 3, mine: rand.Uint32() | 1})
		w.pass(rand.N(20 * time.Millisecond))
	}
	require.Len(t, node.changes, changes)
	require.Len(t, host.changes, 2, "init and up")
	require.Equal(t, 300*time.Millisecond, node.session(host).Detection)
	host.kill()
	w.until(time.Second, "the host failed", func() bool {
		forge(packet{state: Down, mult: 3, mine: rand.Uint32() | 1, desiredTx: time.Second})
		return node.session(host).Failed
	})

	node.receive(address(99), packet{state: Down, mult: 3, mine: 7}.encode(nil), w.now)
	require.EqualValues(t, 1, node.counters.Discarded[errPeer.Error()])
}

// TestForgedBeginnings has somebody send a single packet with the address of a peer that is not up, with the longest intervals
// that the format knows: the peer's session comes up no later than without it, whether it begins itself or waits.
func TestForgedBeginnings(t *testing.T) {
	const longest = (1<<32 - 1) * time.Microsecond
	for _, hostActive := range []bool{true, false} {
		w := newWorld(t)
		node, host := w.boot(1, fast), w.boot(2, fast)
		node.watch(w, true, host)
		w.pass(time.Second)
		for _, p := range []packet{
			{state: Down, mult: 255, mine: 7, desiredTx: longest, requiredRx: longest},
			{state: AdminDown, mult: 255, mine: 8, desiredTx: longest, requiredRx: longest},
			{state: Down, mult: 255, mine: 9, desiredTx: longest},
			{state: Down, poll: true, demand: true, mult: 255, mine: 10, desiredTx: longest, requiredRx: longest},
		} {
			node.receive(host.addr, p.encode(nil), w.now)
		}
		node.next = w.now
		w.pass(10 * time.Millisecond)
		host.watch(w, hostActive, node)
		took := w.until(10*time.Second, "the session is up", func() bool { return node.session(host).State == Up && host.session(node).State == Up })
		if hostActive {
			require.Less(t, took, 1500*time.Millisecond)
		} else {
			require.Less(t, took, claimMost+1500*time.Millisecond)
		}
		w.meet(node, host)
		require.Equal(t, 300*time.Millisecond, node.session(host).Detection)
		require.Zero(t, node.session(host).Losses)
		require.Zero(t, host.session(node).Losses)
	}
}

// TestForgedInSilence never lets a packet of a peer in that is not there: forged ones end nothing, since there is nothing.
func TestForgedInSilence(t *testing.T) {
	w, node, host := pair(t)
	host.kill()
	for range 200 {
		node.receive(host.addr, packet{state: Down, mult: 3, mine: rand.Uint32() | 1, desiredTx: time.Second}.encode(nil), w.now)
		node.next = w.now
		w.pass(rand.N(5 * time.Second))
	}
	require.Zero(t, node.session(host).Losses)
	require.False(t, node.everFailed(host))
}

// TestPeersIntervalsAreBounded has a peer that is up ask for the longest intervals.
func TestPeersIntervalsAreBounded(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	s := node.sessions[host.addr]
	const longest = (1<<32 - 1) * time.Microsecond
	node.receive(host.addr, packet{state: Up, mult: 3, mine: s.remote, yours: s.local, desiredTx: longest, requiredRx: longest}.encode(nil), w.now)
	require.Equal(t, 3*longestInterval, node.session(host).Detection)
	require.Equal(t, longestInterval, s.interval())
}

// A flood of packets of an unknown session is not answered in kind.
func TestUnknownSessionIsAnsweredSeldom(t *testing.T) {
	w, node, host := pair(t)
	host.kill()
	node.watch(w, false, host)
	from := w.now
	for range 1000 {
		node.receive(host.addr, packet{state: Up, mult: 3, mine: 7, yours: 8}.encode(nil), w.now)
		node.next = w.now
		w.pass(time.Millisecond)
	}
	require.InDelta(t, 50, len(node.since(from)), 5)
}

// A peer that wants none gets no packets.
func TestUnwantedPackets(t *testing.T) {
	for _, p := range []packet{{requiredRx: 0}, {requiredRx: time.Millisecond, demand: true}} {
		w, node, host := pair(t)
		w.meet(node, host)
		host.kill()
		s := node.sessions[host.addr]
		p.state, p.mult, p.mine, p.yours, p.desiredTx = Up, 200, s.remote, s.local, time.Second
		node.receive(host.addr, p.encode(nil), w.now)
		from := w.now
		w.pass(100 * time.Second)
		require.Empty(t, node.since(from))
	}
}

// A peer that goes on naming the session before, though it is down, is told the new one.
func TestStaleDiscriminator(t *testing.T) {
	w, node, host := pair(t)
	node.stopped = true
	host.receive(node.addr, packet{state: Down, mult: 3, mine: 7, yours: 8, desiredTx: time.Second}.encode(nil), w.now)
	w.work(host)
	require.Len(t, host.sent, 1)
	answer := host.sent[0].packet
	require.Equal(t, Down, answer.state)
	require.EqualValues(t, 7, answer.yours)
	host.receive(node.addr, packet{state: Init, mult: 3, mine: 7, yours: answer.mine, desiredTx: time.Second}.encode(nil), w.now)
	require.Equal(t, Up, host.session(node).State)
}
