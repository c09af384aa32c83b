package bgp

import "time"

// silence is how long a new session must wait because an earlier speaker may have left BFD up with the peer: FRR keeps that
// when the BGP session ends. When it expires, or hears that ours begins anew, it takes down whatever BGP session there is by
// then, and the routes that it kept for graceful restart with it. The peer's detection time is taken for what our timers
// make of it, and one packet more.
func (s *speaker) silence(c session, name string) time.Duration {
	if !s.following[name] {
		return 0
	}
	interval := time.Duration(max(c.bfd.TransmitInterval, c.bfd.ReceiveInterval)) * time.Millisecond
	return time.Until(s.started.Add(interval * (time.Duration(c.bfd.DetectMultiplier) + 1)))
}
