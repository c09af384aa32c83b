package bgp

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/stretchr/testify/require"
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
