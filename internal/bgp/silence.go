package bgp

import (
	"time"

	"github.com/egressway/egressway/internal/plan"
)

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
