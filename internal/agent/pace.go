package agent

import "time"

// Passes that the kernel's events ask for: so many at once, then one every paceEvery. Where passes take long they are rarer,
// up to paceMost, so that they cost a twentieth of a core; beyond that repairs would be late, and they may cost a quarter.
// Whatever somebody does to the kernel, it is repaired soon and costs little; what sources and peers tell is not held up. Most
// events are of our own making, and the pass that they cause finds nothing to do.
const (
	paceBurst   = 5
	paceEvery   = 100 * time.Millisecond
	paceMost    = 200 * time.Millisecond
	paceShare   = 20
	paceQuarter = 4
)

// pace is a token bucket for these passes.
type pace struct {
	tokens float64
	filled time.Time     // up to when tokens were given; zero: never
	took   time.Duration // the last pass
}

// every is the time between two passes in the long run.
func (p *pace) every() time.Duration {
	return max(min(max(paceShare*p.took, paceEvery), paceMost), paceQuarter*p.took)
}

// take asks for a pass and says how long to wait for it. The next one is asked for when that has run.
func (p *pace) take(now time.Time) time.Duration {
	if p.filled.IsZero() {
		p.tokens, p.filled = paceBurst, now
	}
	p.tokens = min(p.tokens+float64(now.Sub(p.filled))/float64(p.every()), paceBurst)
	p.filled = now
	p.tokens = max(p.tokens-1, -1)
	return max(0, time.Duration(-p.tokens*float64(p.every())))
}
