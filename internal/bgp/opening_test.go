package bgp

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// TestUnansweredOpens sets a session up again whose peer does not answer OPENs: not where the OPENs are of an earlier session, nor where the
// session went on while they were counted, nor while routes of the peer are kept.
func TestUnansweredOpens(t *testing.T) {
	peer, now := netip.MustParseAddr("10.1.0.1"), time.Now()
	s := &speaker{log: slog.New(slog.DiscardHandler)}
	st := &sessionState{}
	const active, established, patience = bgp.BGP_FSM_ACTIVE, bgp.BGP_FSM_ESTABLISHED, leastPatience
	restarts := func(counted, is bgp.FSMState, sent, received uint64, after time.Duration) bool {
		now = now.Add(after)
		st.state, st.restart = is, false
		s.noteOpens(peer, st, counted, sent, received, patience, now)
		return st.restart
	}
	require.False(t, restarts(active, active, 1, 0, 0))
	require.False(t, restarts(active, active, 1, 0, patience))
	require.True(t, restarts(active, active, 1, 0, time.Second))

	require.False(t, restarts(active, established, 2, 0, 0), "counted before the session was established")
	require.False(t, st.counted)
	require.False(t, restarts(established, established, 2, 1, 0))
	require.True(t, st.counted)
	require.False(t, restarts(active, active, 2, 1, 0), "the one without an answer is of the time before the session")
	require.False(t, restarts(active, active, 2, 1, 2*patience))

	require.False(t, restarts(active, active, 3, 1, 0))
	prefix := netip.MustParsePrefix("0.0.0.0/0")
	s.rib.set(peer, prefix, candidate{})
	s.rib.keep(peer)
	require.False(t, restarts(active, active, 3, 1, 2*patience), "its routes are kept")
	s.rib.remove(peer, prefix)
	require.True(t, restarts(active, active, 3, 1, 0))
}

// TestLostSessionIsTriedAgain tries a session at once that a peer has ended after a while: not one that was short, nor one that we ended,
// nor one whose peer restarts gracefully.
func TestLostSessionIsTriedAgain(t *testing.T) {
	peer, begun := netip.MustParseAddr("10.1.0.1"), time.Now()
	for name, c := range map[string]struct {
		lasted time.Duration
		harm   func(*speaker, *apiutil.PeerState)
		again  bool
	}{
		"lasting": {lasted: 11 * time.Second, again: true},
		"short":   {lasted: 9 * time.Second},
		"ours": {lasted: time.Hour, harm: func(s *speaker, now *apiutil.PeerState) {
			s.states[peer].resetFor, now.DisconnectReason = "BFD", api.PeerState_DISCONNECT_REASON_NOTIFICATION_SENT
		}},
		"over its limit": {lasted: time.Hour, harm: func(s *speaker, _ *apiutil.PeerState) { s.states[peer].overLimit = true }},
		"graceful": {lasted: time.Hour, harm: func(_ *speaker, now *apiutil.PeerState) {
			now.DisconnectReason = api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &speaker{
				log: slog.New(slog.DiscardHandler), hint: Hints{Apply: func() {}, Routes: func() {}},
				peers: map[netip.Addr]plan.Peer{peer: {}}, failed: map[netip.Addr]*failedOpenings{},
				states: map[netip.Addr]*sessionState{peer: {state: bgp.BGP_FSM_ESTABLISHED, since: begun}},
			}
			now := apiutil.PeerState{NeighborAddress: peer, SessionState: bgp.BGP_FSM_IDLE}
			if c.harm != nil {
				c.harm(s, &now)
			}
			s.peerChanged(&apiutil.WatchEventMessage_PeerEvent{Type: apiutil.PEER_EVENT_STATE, Peer: apiutil.Peer{State: now}}, begun.Add(c.lasted))
			require.Equal(t, c.again, s.tryAgain(peer))
			require.False(t, s.tryAgain(peer), "only once")
		})
	}
}

// TestLateReset sets a session up again that ended for another reason before we could reset it: not one that the reset has ended, nor one
// that stays down.
func TestLateReset(t *testing.T) {
	peer := netip.MustParseAddr("10.1.0.1")
	for name, c := range map[string]struct {
		st      sessionState
		reason  api.PeerState_DisconnectReason
		restart bool
	}{
		"reset":                  {sessionState{resetFor: "BFD"}, api.PeerState_DISCONNECT_REASON_NOTIFICATION_SENT, false},
		"ended by the peer":      {sessionState{resetFor: "BFD"}, api.PeerState_DISCONNECT_REASON_NOTIFICATION_RECEIVED, true},
		"lost gracefully":        {sessionState{resetFor: "BFD"}, api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART, true},
		"lost without a reset":   {sessionState{}, api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART, false},
		"ended for sending more": {sessionState{resetFor: "BFD", overLimit: true}, api.PeerState_DISCONNECT_REASON_ADMIN_DOWN, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.st.state = bgp.BGP_FSM_ESTABLISHED
			s := &speaker{
				log: slog.New(slog.DiscardHandler), hint: Hints{Apply: func() {}, Routes: func() {}},
				peers: map[netip.Addr]plan.Peer{peer: {}}, failed: map[netip.Addr]*failedOpenings{},
				states: map[netip.Addr]*sessionState{peer: &c.st},
			}
			now := apiutil.PeerState{NeighborAddress: peer, SessionState: bgp.BGP_FSM_IDLE, DisconnectReason: c.reason}
			s.peerChanged(&apiutil.WatchEventMessage_PeerEvent{Type: apiutil.PEER_EVENT_STATE, Peer: apiutil.Peer{State: now}}, c.st.since)
			require.Equal(t, c.restart, s.tryAgain(peer))
		})
	}
}

// TestClockSetBack sets sessions up again that began in the future of a clock that was set back: neither those that are older, nor
// those that began after it.
func TestClockSetBack(t *testing.T) {
	peer, begun := netip.MustParseAddr("10.1.0.1"), time.Now()
	for name, c := range map[string]struct {
		before, after time.Duration // shifts of the clock when the session began, and now
		last          time.Duration // age of the session when the clock was last checked
		harm          func(*sessionState)
		restart       bool
	}{
		"set back by an hour":          {after: -time.Hour, last: time.Minute, restart: true},
		"set back after a step ahead":  {before: time.Hour, last: time.Minute, restart: true},
		"set back by two seconds":      {after: -2 * time.Second, last: time.Second, restart: true},
		"an older session":             {after: -2 * time.Second, last: 3 * time.Second},
		"set back before the session":  {before: -time.Hour, after: -time.Hour, last: time.Minute},
		"set ahead":                    {after: time.Hour, last: time.Minute},
		"read at two moments":          {after: -time.Millisecond},
		"a session that has ended":     {after: -time.Hour, harm: func(st *sessionState) { st.state = bgp.BGP_FSM_IDLE }},
		"a session that we have ended": {after: -time.Hour, harm: func(st *sessionState) { st.overLimit = true }},
	} {
		t.Run(name, func(t *testing.T) {
			st := &sessionState{state: bgp.BGP_FSM_ESTABLISHED, since: begun, clock: c.before}
			if c.harm != nil {
				c.harm(st)
			}
			s := &speaker{
				log: slog.New(slog.DiscardHandler), states: map[netip.Addr]*sessionState{peer: st},
				clock: func() time.Duration { return c.after }, timed: begun.Add(c.last),
			}
			s.noteClock(begun.Add(c.last + 5*time.Second))
			require.Equal(t, c.restart, s.tryAgain(peer))
		})
	}
}

// TestExternalPeerStaysExternal announces to a peer with any external AS from its first OPEN on, also at the start of a session that
// follows a lost one: not after an OPEN with our own AS.
func TestExternalPeerStaysExternal(t *testing.T) {
	addr := netip.MustParseAddr("10.1.0.1")
	p := plan.Peer{Peer: config.Peer{Address: addr, DynamicASN: config.DynamicExternal}}
	s := &speaker{
		log: slog.New(slog.DiscardHandler), hint: Hints{Apply: func() {}, Routes: func() {}}, clock: clockShift,
		peers: map[netip.Addr]plan.Peer{addr: p}, failed: map[netip.Addr]*failedOpenings{},
		states: map[netip.Addr]*sessionState{}, lastASN: map[netip.Addr]uint32{},
	}
	for i, c := range []struct {
		state  bgp.FSMState
		asn    uint32
		silent bool
	}{
		{bgp.BGP_FSM_ACTIVE, 0, true},
		{bgp.BGP_FSM_ESTABLISHED, 65001, false},
		{bgp.BGP_FSM_IDLE, 0, false},
		{bgp.BGP_FSM_ESTABLISHED, 64512, true},
		{bgp.BGP_FSM_IDLE, 0, true},
		{bgp.BGP_FSM_ESTABLISHED, 65002, false},
	} {
		now := apiutil.PeerState{NeighborAddress: addr, SessionState: c.state, PeerASN: c.asn}
		s.peerChanged(&apiutil.WatchEventMessage_PeerEvent{Type: apiutil.PEER_EVENT_STATE, Peer: apiutil.Peer{State: now}}, time.Now())
		x, err := s.exchange(plan.Speaker{ASN: 64512}, p, addr)
		require.Equal(t, c.silent, x.Silent, "%d: %+v", i, c)
		require.False(t, x.Export.Internal && !x.Silent)
		require.Equal(t, s.lastASN[addr] == 64512, err != nil, "%v", err)
	}
}
