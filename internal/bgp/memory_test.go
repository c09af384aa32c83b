package bgp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/stretchr/testify/require"
)

// TestHeaviest has peers fill memory in several ways. Who is within its share is never ended.
func TestHeaviest(t *testing.T) {
	const most = 240 << 20
	key := func(network string, i byte) peerKey { return peerKey{network, netip.AddrFrom4([4]byte{10, 0, 0, i})} }
	hostile := func(n int, w weight) map[peerKey]weight {
		all := map[peerKey]weight{key("blue", 1): {held: 300 << 10, routes: 300, updates: 900}, key("red", 1): {held: 1 << 20, updates: 1000}}
		for i := range n {
			one := w
			one.held += uint64(i) << 10 // the last holds most
			all[key("red", byte(10+i))] = one
		}
		return all
	}
	for name, c := range map[string]struct {
		all    map[peerKey]weight
		before map[peerKey]uint64
		want   peerKey
		why    string // empty: none is ended
	}{
		"many together":             {hostile(8, weight{held: 30 << 20, updates: 500}), nil, key("red", 17), holdsTooMuch},
		"one":                       {hostile(1, weight{held: 250 << 20}), nil, key("red", 10), holdsTooMuch},
		"more than was estimated":   {hostile(8, weight{held: 16 << 20}), nil, key("red", 17), holdsTooMuch},
		"routes are not the reason": {hostile(8, weight{held: 1 << 20, updates: 500}), nil, peerKey{}, ""},
		"a queue":                   {hostile(1, weight{updates: 90_000}), nil, key("red", 10), sendsTooMuch},
		"sent long ago":             {hostile(1, weight{updates: 90_000}), map[peerKey]uint64{key("red", 10): 90_000}, peerKey{}, ""},
		"a session anew":            {hostile(1, weight{updates: 10}), map[peerKey]uint64{key("red", 10): 90_000}, peerKey{}, ""},
		"nobody":                    {nil, nil, peerKey{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, why, found := heaviest(c.all, c.before, most)
			require.Equal(t, c.why != "", found)
			require.Equal(t, c.why, why)
			require.Equal(t, c.want, got)
		})
	}
	// Whatever they hold, somebody is found where it is too much, and it holds more than its share.
	for n := range 30 {
		all := map[peerKey]weight{}
		for i := range n + 1 {
			all[key("red", byte(i))] = weight{held: uint64(most/(n+1) + (i%7-3)<<20 + 4<<20)}
		}
		got, why, found := heaviest(all, nil, most)
		require.True(t, found)
		require.Equal(t, holdsTooMuch, why)
		require.Greater(t, all[got].held, uint64(most/(n+1)))
	}
}

func TestLapse(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var l lapse
	for _, want := range []time.Duration{firstLapse, 2 * firstLapse, 4 * firstLapse} {
		l = l.next(now)
		require.Equal(t, lapse{want, now.Add(want)}, l)
		now = l.until.Add(time.Minute)
	}
	for range 20 {
		l = l.next(l.until.Add(time.Minute))
	}
	require.Equal(t, lastLapse, l.wait, "longer each time, but not for ever")
	require.Equal(t, firstLapse, l.next(l.until.Add(2*lastLapse)).wait, "it has behaved since")
}

// TestRefreshesCount: for each ROUTE-REFRESH, GoBGP queues all announcements.
func TestRefreshesCount(t *testing.T) {
	var st sessionState
	note := func(updates, refreshes uint64, announcements int) uint64 {
		st.noteReceived(&api.Message{Update: updates, Refresh: refreshes}, announcements)
		return st.updates
	}
	require.EqualValues(t, 3, note(3, 0, 100))
	require.EqualValues(t, 203, note(3, 2, 100))
	require.EqualValues(t, 204, note(4, 2, 500), "those before were answered by 100")
	require.EqualValues(t, 705, note(5, 3, 500))
	require.EqualValues(t, 702, note(2, 0, 500), "another session")
	require.EqualValues(t, 703, note(2, 1, 0))
}
