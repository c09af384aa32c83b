package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// recountEvery is how often all routes that peers send are counted, at least.
const recountEvery = 10 * time.Second

const tooManyPrefixes = "the peer sent more routes than maxPrefixes allows"

// received counts what a peer sends, per family. GoBGP would keep to a limit itself, but for that it goes through all routes of
// the peer at each of its UPDATEs.
type received struct {
	counted perFamily // when it was counted last
	since   perFamily // routes in UPDATEs since: as many as this may have come, of which some were there
}

// noteReceived counts paths that a peer sent, and asks for Apply where they may be too many. s.mu is held.
func (s *speaker) noteReceived(paths []*apiutil.Path) {
	for _, p := range paths {
		st := s.states[p.PeerAddress]
		if st == nil || p.Withdrawal || p.Nlri == nil {
			continue
		}
		i := 0
		if p.Family.Afi() == bgp.AFI_IP6 {
			i = 1
		}
		st.received.since[i]++
		if most := int(s.peers[p.PeerAddress].MaxPrefixes); most > 0 && st.received.counted[i]+st.received.since[i] > most && !st.suspect && !st.overLimit {
			st.suspect = true
			s.hint.Apply()
		}
	}
}

// sent is how many routes peers may have sent, at most, that are still there. s.mu is held.
func (s *speaker) sent() (n int) {
	for _, st := range s.states {
		r := st.received
		n += r.counted[0] + r.counted[1] + r.since[0] + r.since[1]
	}
	return n
}

// limit ends the sessions with peers that send more routes of a family than they may. It stays so until the session's
// configuration is another one.
func (s *speaker) limit(ctx context.Context) error {
	// GoBGP keeps routes of which no event tells: those whose AS path holds our AS more than ownASNMost times.
	all := time.Since(s.recounted) > recountEvery
	if all {
		s.recounted = time.Now()
	}
	s.mu.Lock()
	var suspects []netip.Addr
	for addr, st := range s.states {
		if st.suspect || all && st.state == bgp.BGP_FSM_ESTABLISHED {
			suspects = append(suspects, addr)
			st.suspect = false
		}
	}
	s.mu.Unlock()
	for _, addr := range suspects {
		s.countOf(addr.String())
		s.mu.Lock()
		st, most := s.states[addr], int(s.peers[addr].MaxPrefixes)
		over := st != nil && most > 0 && !st.overLimit && max(st.received.counted[0], st.received.counted[1]) > most
		s.mu.Unlock()
		if !over {
			continue
		}
		if err := s.close(ctx, addr, tooManyPrefixes); err != nil {
			return fmt.Errorf("it sends more than %d routes: %w", most, err)
		}
	}
	return nil
}

// count counts the routes that peers send, where that may have changed.
func (s *speaker) count() {
	s.mu.Lock()
	uncounted := s.uncounted
	s.uncounted = false
	s.mu.Unlock()
	if uncounted {
		s.countOf("")
	}
}

// countOf counts the routes that one peer sends; empty: all of them.
func (s *speaker) countOf(address string) {
	// GoBGP counts what it sends by making all of it once more: that is known without it.
	if err := s.server.ListPeer(context.Background(), &api.ListPeerRequest{Address: address}, func(p *api.Peer) {
		addr, err := netip.ParseAddr(p.GetState().GetNeighborAddress())
		if err != nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		st := s.states[addr]
		if st == nil {
			return
		}
		st.received = received{}
		st.updates = p.GetState().GetMessages().GetReceived().GetUpdate()
		for _, family := range p.AfiSafis {
			i := 0
			if family.GetConfig().GetFamily().GetAfi() == api.Family_AFI_IP6 {
				i = 1
			}
			st.received.counted[i] += int(family.GetState().GetReceived())
		}
	}); err != nil {
		s.log.Debug("cannot list BGP peers", "error", err)
	}
}
