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

// A pass that changes the kernel, or fails, and is asked for again by the events of its own changes would repeat forever. After paceEndless
// such passes each waits twice as long for the next, up to paceRest, which is how often everything is looked at anyway.
const (
	paceEndless = 30
	paceRest    = 10 * time.Second
	// paceEcho is how soon after a pass the events of its own changes are there.
	paceEcho = 20 * time.Millisecond
)

// pace is a token bucket for these passes.
type pace struct {
	tokens float64
	filled time.Time     // up to when tokens were given; zero: never
	cost   time.Duration // processor time of the last pass

	ended    time.Time // of the last pass
	echo     bool      // the pass that is due was asked for right after the last
	restless int       // passes that were an echo and left no peace, less those that were none
}

// ran notes the end of a pass: whether the kernel's events asked for it, and whether it left the kernel as no pass before had, or failed,
// without another program's hand in that.
func (p *pace) ran(now time.Time, byKernel, unsettled bool) {
	p.ended = now
	switch {
	case !unsettled:
		p.restless = 0
	case byKernel && p.echo:
		p.restless++
	case byKernel:
		p.restless = max(p.restless-2, 0)
	}
}

// endless reports whether passes repeat by what they change themselves.
func (p *pace) endless() bool { return p.restless >= paceEndless }

// rest is how long passes wait that repeat.
func (p *pace) rest() time.Duration {
	if !p.endless() {
		return 0
	}
	return min(paceMost<<min(p.restless-paceEndless, 10), paceRest)
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
	p.echo = now.Sub(p.ended) < paceEcho
	return max(0, time.Duration(-p.tokens*float64(p.every())), p.rest())
}

// processorTime is what this process has used so far. On a busy machine a pass takes long and costs no more than ever.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
