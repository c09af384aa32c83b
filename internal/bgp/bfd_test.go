package bgp

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// TestBFDGuardsLate has a session come up again and again: BFD begins to watch it only after guardAfter, when FRR has made its
// end of BFD anew.
func TestBFDGuardsLate(t *testing.T) {
	s := newSite(t)
	_, err := s.Node("r1").VTY("bfdd", "configure terminal", "bfd", "profile fast", "receive-interval 100", "transmit-interval 100")
	require.NoError(t, err)
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.1.2 bfd profile fast")
	addr := netip.MustParseAddr("10.0.1.1")
	s.apply(red(peer("10.0.1.1", "red1", func(p *plan.Peer) {
		p.BFD = &config.BFDProfile{Name: "fast", TransmitInterval: 100, ReceiveInterval: 100, DetectMultiplier: 3}
	})))
	sp := s.speakers.byNetwork["red"]
	state := func() (up, watched bool, lasted time.Duration) {
		s.speakers.mu.Lock()
		defer s.speakers.mu.Unlock()
		return sp.remoteASN(addr) != 0, sp.guarded[addr], sp.lasted(addr)
	}
	for range 3 {
		watchedBefore := true
		began := false // BFD did, in a session that was there before
		s.until(func() error {
			up, watched, lasted := state()
			if up && watched && !watchedBefore {
				began = true
				require.GreaterOrEqual(t, lasted, guardAfter, "BFD watches a session that has just come up")
			}
			watchedBefore = watched
			if e := s.session("red", "10.0.1.1"); !began || e.BFD != "up" || !e.Up {
				return fmt.Errorf("BFD began to watch: %t, %+v", began, e)
			}
			return nil
		})
		_, err = s.Node("r1").VTY("bgpd", "enable", "clear bgp vrf red 10.0.1.2")
		require.NoError(t, err)
	}
}
