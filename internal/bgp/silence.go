package bgp

import (
	"time"

	"github.com/egressway/egressway/internal/plan"
)

// silence is how long a new session, and BFD with it, must wait because an earlier speaker may have left BFD up with the peer: FRR keeps
// that when the BGP session ends. When it expires, or hears that ours begins anew, it takes down whatever BGP session there is by
// then, and the routes that it kept for graceful restart with it. The peer's detection time is assumed to be that of our timers,
// and one packet more.
func (s *speaker) silence(p plan.Peer) time.Duration {
	if p.BFD == nil || !s.following[nameOf(p)] {
		return 0
	}
	interval := time.Duration(max(p.BFD.TransmitInterval, p.BFD.ReceiveInterval)) * time.Millisecond
	return time.Until(s.started.Add(interval * (time.Duration(p.BFD.DetectMultiplier) + 1)))
}
