package bgp

import (
	"context"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/egressway/egressway/internal/plan"
)

// openingsMost is how many consecutive failures are followed by an immediate retry.
const openingsMost = 3

// lastingSession is how long a session must have been established for an immediate retry after its end. A peer may end a shorter one
// because of what we send.
const lastingSession = 10 * time.Second

// failedOpenings counts how often a peer ended a session before it was established, since the last established one. A
// peer that has not noticed the end of the former session treats a new one as a collision and refuses it (RFC 4271,
// 6.8); a router with graceful restart then ends the former session and accepts the next connection (RFC 4724, 4.2).
// The end of a session that lasted counts too, as where BFD of a router has expired. GoBGP waits 5 s after each.
type failedOpenings struct {
	times int
	again bool // retry at once
}

// noteOpening records a change of a session's state. lasted is how long it was in the state before. The caller holds s.mu.
func (s *speaker) noteOpening(now apiutil.PeerState, st *sessionState, before bgp.FSMState, lasted time.Duration) {
	addr := now.NeighborAddress
	switch is := now.SessionState; {
	case is == bgp.BGP_FSM_ESTABLISHED:
		delete(s.failed, addr)
	case before == bgp.BGP_FSM_ESTABLISHED:
		if lasted > lastingSession && !graceful(now) && !st.overLimit && st.resetFor == "" {
			s.noteFailedOpening(addr)
		}
	case is == bgp.BGP_FSM_IDLE && (before == bgp.BGP_FSM_OPENSENT || before == bgp.BGP_FSM_OPENCONFIRM):
		s.noteFailedOpening(addr)
	}
}

func (s *speaker) noteFailedOpening(addr netip.Addr) {
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

// tryAgain reports whether a session should be removed and added again: an added one connects at once. After a failed
// opening it returns true only once.
func (s *speaker) tryAgain(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.states[addr]; st != nil && (st.restart || st.lapsed(time.Now())) {
		return true // adding the peer replaces this state
	}
	r := s.failed[addr]
	if r == nil || !r.again {
		return false
	}
	r.again = false
	return true
}

// lapsed reports whether the time for which a session was ended is over.
func (st *sessionState) lapsed(now time.Time) bool {
	return !st.lapses.IsZero() && !now.Before(st.lapses)
}

// silence returns how long a new session must wait because an earlier speaker may have left BFD up with the peer: FRR
// keeps its BFD session when the BGP session ends. When that BFD session expires, or sees ours start from scratch, FRR
// takes down the BGP session that exists by then, and with it the routes that it kept for graceful restart. The peer's
// detection time is assumed to follow from our timers, plus one packet.
func (s *speaker) silence(p plan.Peer) time.Duration {
	if p.BFD == nil || !s.following[nameOf(p)] {
		return 0
	}
	interval := time.Duration(max(p.BFD.TransmitInterval, p.BFD.ReceiveInterval)) * time.Millisecond
	return time.Until(s.started.Add(interval * (time.Duration(p.BFD.DetectMultiplier) + 1)))
}

const (
	// leastPatience is the least time that a peer has for answering an OPEN.
	leastPatience = 10 * time.Second
	// patienceConnects is how many of its connect times a peer has, if that is longer.
	patienceConnects = 3
	// lookEvery is the shortest time between two checks for unanswered OPENs.
	lookEvery = time.Second
)

// unanswered is an OPEN that a peer has not answered.
type unanswered struct {
	sent  uint64 // number of OPENs sent, including this one; 0: none is unanswered
	since time.Time
}

// noteUnanswered marks sessions to be set up again whose peers accepted a connection but send nothing on it. A router
// that is stopped or busy does so, and a firewall that lost the connection. GoBGP waits 240 s for the OPEN (RFC 4271,
// 8.2.2) without trying another connection; all that time the session is active, as if no router were there.
func (s *speaker) noteUnanswered(ctx context.Context, now time.Time) {
	if now.Sub(s.looked) < lookEvery {
		return
	}
	s.looked = now
	for addr, c := range s.configs {
		st, state := s.opening(addr)
		if st == nil {
			continue
		}
		if sent, received, err := s.opens(ctx, addr); err == nil {
			s.noteOpens(addr, st, state, sent, received, max(patienceConnects*c.connect, leastPatience), now)
		}
	}
}

// opening returns a session that is about to exchange OPENs, or has done so and was not counted, and its state; nil: it is in another
// state.
func (s *speaker) opening(addr netip.Addr) (*sessionState, bgp.FSMState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.states[addr]
	switch {
	case st == nil:
		return nil, 0
	case st.state == bgp.BGP_FSM_ACTIVE, st.state == bgp.BGP_FSM_OPENSENT, st.state == bgp.BGP_FSM_ESTABLISHED && !st.counted:
		return st, st.state
	}
	return nil, 0
}

// opens returns the numbers of OPENs sent to and received from a peer.
func (s *speaker) opens(ctx context.Context, addr netip.Addr) (sent, received uint64, err error) {
	err = s.server.ListPeer(ctx, &api.ListPeerRequest{Address: addr.String()}, func(p *api.Peer) {
		sent = p.GetState().GetMessages().GetSent().GetOpen()
		received = p.GetState().GetMessages().GetReceived().GetOpen()
	})
	return sent, received, err
}

// noteOpens marks a session to be set up again if its last OPEN has been unanswered for longer than patience, unless routes of the peer are
// kept for a graceful restart: setting it up again would remove them. OPENs that were counted in another state of
// the session are ignored.
func (s *speaker) noteOpens(
	addr netip.Addr, st *sessionState, was bgp.FSMState, sent, received uint64, patience time.Duration, now time.Time,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case st.state != was:
	case st.state == bgp.BGP_FSM_ESTABLISHED:
		st.former, st.counted = sent-min(sent, received), true
	case sent <= received+st.former:
		st.unanswered = unanswered{}
	case sent != st.unanswered.sent:
		st.unanswered = unanswered{sent, now}
	case now.Sub(st.unanswered.since) > patience && !s.rib.has(addr):
		st.unanswered = unanswered{}
		st.lastError = "the peer has not answered an OPEN for " + patience.String()
		st.restart = true
		s.log.Warn("BGP peer does not answer, setting the session up again", "peer", addr, "after", patience)
	}
}

// leastStep is the least change of the wall clock that counts: a process cannot read both clocks at the same time.
const leastStep = 100 * time.Millisecond

var began = time.Now()

// clockShift returns how far the wall clock was set since the process began: below 0 it was set back.
func clockShift() time.Duration {
	now := time.Now()
	return now.Round(0).Sub(began.Round(0)) - now.Sub(began)
}

// noteClock marks sessions to be set up again whose start was in the future when the clock was set back: GoBGP 4.8.0 drops
// their UPDATEs, without an event, until the clock has passed their start.
func (s *speaker) noteClock(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shift, last := s.clock(), s.timed
	s.timed = now
	for addr, st := range s.states {
		back := st.clock - shift
		if st.state != bgp.BGP_FSM_ESTABLISHED || st.overLimit || back < leastStep || last.Sub(st.since) > back {
			continue
		}
		st.restart, st.lastError = true, "the clock was set back to before the session's start"
		s.log.Warn("the clock was set back, setting a BGP session up again that may have missed UPDATEs",
			"peer", addr, "by", back.Round(time.Millisecond))
	}
}
