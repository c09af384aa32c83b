package bgp

import (
	"net/netip"

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
			s.wake()
		}
	}
}

// tryAgain says, once, that a session should be set up anew. A new one does not wait.
func (s *speaker) tryAgain(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.failed[addr]
	if r == nil || !r.again {
		return false
	}
	r.again = false
	return true
}
