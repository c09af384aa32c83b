package bgp

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRouterStays has two routers advertise themselves on one link: the one with the session stays, and gives its place up after that has
// been down for a while, or at once where the interface went.
func TestRouterStays(t *testing.T) {
	first, second := netip.MustParseAddr("fe80::1%eth3"), netip.MustParseAddr("fe80::2%eth3")
	up, woken := true, 0
	n := newNeighbors(slog.New(slog.DiscardHandler), func() { woken++ }, func(a netip.Addr) bool { return up && a == first })
	l, now := &listener{}, time.Now()
	n.listeners["eth3"] = l
	advertises := func(a netip.Addr, after time.Duration) netip.Addr {
		now = now.Add(after)
		n.noteRouter(l, a, now)
		return n.address("eth3")
	}
	require.Equal(t, first, advertises(first, 0))
	require.Equal(t, first, advertises(second, time.Hour))
	up = false
	require.Equal(t, first, advertises(second, routerStays))
	require.Equal(t, second, advertises(second, time.Second))
	require.Equal(t, second, advertises(first, routerStays))
	l.since = time.Time{}
	require.Equal(t, first, advertises(first, 0))
	require.Equal(t, 3, woken)
}
