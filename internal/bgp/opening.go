package bgp

import (
	"context"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// openingsMost is how many failures in a row are followed by another try at once.
const openingsMost = 3

// failedOpenings counts how often a peer has ended a session before it was established, since it last was. A peer that has not
// noticed the end of the former session takes a new one for a collision, and refuses it (RFC 4271, 6.8); a router that
// knows graceful restart ends the former one for it, and takes the next (RFC 4724, 4.2). GoBGP waits for 5 s before that.
type failedOpenings struct {
	times int
	again bool // the next try should be now
}

// noteOpening takes in a change of a session's state. s.mu is held.
func (s *speaker) noteOpening(addr netip.Addr, before, now bgp.FSMState) {
	switch {
	case now == bgp.BGP_FSM_ESTABLISHED:
		delete(s.failed, addr)
	case now == bgp.BGP_FSM_IDLE && (before == bgp.BGP_FSM_OPENSENT || before == bgp.BGP_FSM_OPENCONFIRM):
		r := s.failed[addr]
		if r == nil {
			r = &failedOpenings{}
			s.failed[addr] = r
		}
		if r.times++; r.times <= openingsMost {
			r.again = true
			s.hint.Apply()
		}
	}
}

// tryAgain says, once, that a session should be set up anew. A new one does not wait.
func (s *speaker) tryAgain(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.states[addr]; st != nil && (st.anew || !st.lapses.IsZero() && !time.Now().Before(st.lapses)) {
		return true // the next state is another one
	}
	r := s.failed[addr]
	if r == nil || !r.again {
		return false
	}
	r.again = false
	return true
}

const (
	// leastPatience is how long a peer may take at least to answer an OPEN.
	leastPatience = 10 * time.Second
	// patienceConnects is how many of its connect times it may take, where that is longer.
	patienceConnects = 3
	// lookEvery is how often peers are looked at that may not answer.
	lookEvery = time.Second
)

// unanswered is an OPEN that a peer has not answered.
type unanswered struct {
	sent  uint64 // OPENs so far, this one included; 0: none is unanswered
	since time.Time
}

// noteUnanswered has sessions set up anew whose peers have taken a connection and say nothing on it. A router that is
// stopped, or busy, does that, and a firewall that lost the connection. GoBGP waits 240 s for the OPEN (RFC 4271, 8.2.2) and
// tries no other connection meanwhile; the session is active all that time, as if nobody were there.
func (s *speaker) noteUnanswered(ctx context.Context, now time.Time) {
	if now.Sub(s.looked) < lookEvery {
		return
	}
	s.looked = now
	for addr, c := range s.configs {
		s.mu.Lock()
		st := s.states[addr]
		opening := st != nil && (st.state == bgp.BGP_FSM_ACTIVE || st.state == bgp.BGP_FSM_OPENSENT)
		s.mu.Unlock()
		if !opening {
			continue
		}
		var sent, received uint64
		if err := s.server.ListPeer(ctx, &api.ListPeerRequest{Address: addr.String()}, func(p *api.Peer) {
			sent = p.GetState().GetMessages().GetSent().GetOpen()
			received = p.GetState().GetMessages().GetReceived().GetOpen()
		}); err != nil {
			continue
		}
		s.mu.Lock()
		switch patience := max(patienceConnects*c.connect, leastPatience); {
		case sent <= received:
			st.unanswered = unanswered{}
		case sent != st.unanswered.sent:
			st.unanswered = unanswered{sent, now}
		case now.Sub(st.unanswered.since) > patience:
			st.unanswered = unanswered{}
			st.lastError = "the peer has not answered an OPEN for " + patience.String()
			st.anew = true
			s.log.Warn("BGP peer does not answer, the session is set up anew", "peer", addr, "after", patience)
		}
		s.mu.Unlock()
	}
}
