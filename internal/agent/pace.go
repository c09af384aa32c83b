package agent

import (
	"syscall"
	"time"
)

// Passes that the kernel's events ask for: so many at once, then one every paceEvery. Where passes cost much they are rarer,
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
	cost   time.Duration // processor time of the last pass
}

// every is the time between two passes in the long run.
func (p *pace) every() time.Duration {
	return max(min(max(paceShare*p.cost, paceEvery), paceMost), paceQuarter*p.cost)
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

// processorTime is what this process has used so far. On a busy machine a pass takes long and costs no more than ever.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
