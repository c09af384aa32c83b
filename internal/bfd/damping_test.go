package bfd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stall keeps a machine from sending, but not from receiving, until others have taken it for dead, and lets it go on.
func (w *world) stall(node, host *machine) {
	w.t.Helper()
	before := node.session(host).Losses
	w.lost = func(d flying) bool { return d.from == host.addr }
	w.until(time.Minute, "the session is lost", func() bool { return node.session(host).Losses > before })
	w.lost = nil
	w.meet(node, host)
}

// TestFlappingGetsSlower loses a session again and again: the third loss in a short time makes detection 4 times longer, at both
// ends, a death is still noticed, and the former timers are back after a time without a loss.
func TestFlappingGetsSlower(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	for i, slowed := range []int{0, 0, 4, 4, 4, 16, 16, 16, 64, 64, 64, 64} {
		w.stall(node, host)
		require.EqualValues(t, i+1, node.session(host).Losses)
		require.Equal(t, slowed, node.session(host).Slowed, "after %d losses", i+1)
		detection := 300 * time.Millisecond * time.Duration(max(slowed, 1))
		require.Equal(t, detection, node.session(host).Detection)
		require.Equal(t, detection, host.session(node).Detection)
	}
	for _, slowed := range []int{16, 4, 0} {
		w.pass(easeAfter + 30*time.Second) // polls go out with the slow packets
		require.Equal(t, slowed, node.session(host).Slowed)
		require.Equal(t, slowed, host.session(node).Slowed)
		require.Equal(t, 300*time.Millisecond*time.Duration(max(slowed, 1)), node.session(host).Detection)
	}
	require.EqualValues(t, 12, node.session(host).Losses)
	require.Equal(t, Up, node.session(host).State)

	for range 3 {
		w.stall(node, host)
	}
	require.Equal(t, 4, node.session(host).Slowed)
	host.kill()
	took := w.until(5*time.Second, "the host failed", func() bool { return node.session(host).Failed })
	require.LessOrEqual(t, took, 1205*time.Millisecond)
}

// Losses that are far apart are no flapping, nor are ends on purpose.
func TestRareLossesAreNotDamped(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	for range 20 {
		w.stall(node, host)
		w.pass(time.Minute)
		require.Zero(t, node.session(host).Slowed)
	}
	losses := node.session(host).Losses
	for range 20 {
		host.watch(w, false)
		w.until(time.Second, "the peer took it down", func() bool { return node.session(host).State == Down })
		host.watch(w, false, node)
		w.meet(node, host)
	}
	for range 20 {
		host = w.boot(2, fast)
		host.watch(w, true, node)
		w.until(time.Second, "the peer has begun anew", func() bool { return host.session(node).State == Up })
		w.meet(node, host)
	}
	require.Equal(t, losses, node.session(host).Losses)
	require.Zero(t, node.session(host).Slowed)
}

// TestLossNamesThePeer has the peer believe no packet that names no session, as FRR does while its end is up: the end that has heard
// nothing tells it so.
func TestLossNamesThePeer(t *testing.T) {
	w, node, host := pair(t)
	w.meet(node, host)
	w.lost = func(d flying) bool { return d.from == host.addr || d.packet.yours == 0 }
	w.until(time.Second, "the session is lost", func() bool { return node.session(host).Failed })
	w.until(20*time.Millisecond, "the other end is told", func() bool { return host.session(node).State == Down })
}

// TestComingAndGoing removes the peer after each loss, as one is whose session of BGP ends.
func TestComingAndGoing(t *testing.T) {
	w, node, host := pair(t)
	for range 3 {
		require.Zero(t, node.session(host).Slowed)
		w.meet(node, host)
		w.stall(node, host)
		node.watch(w, true)
		w.pass(time.Second)
		node.watch(w, true, host)
	}
	require.Equal(t, 4, node.session(host).Slowed)
	require.EqualValues(t, 3, node.session(host).Losses)
	node.watch(w, true)
	w.pass(easeAfter + time.Second)
	node.watch(w, true, host)
	w.meet(node, host)
	require.Zero(t, node.session(host).Slowed, "the time without the peer counts")
	node.watch(w, true)
	w.pass(rememberFor)
	node.watch(w, true, host)
	require.Zero(t, node.session(host).Losses)
}

// The profile's intervals are never shortened, however long they are.
func TestDampingHasAnEnd(t *testing.T) {
	d := damping{step: slowestStep}
	require.Equal(t, 6400*time.Millisecond, d.slow(100*time.Millisecond))
	require.Equal(t, longestInterval, d.slow(10*time.Second))
	require.Equal(t, longestInterval, d.slow(longestInterval))
	require.Equal(t, time.Second, (&damping{}).slow(time.Second))
}
