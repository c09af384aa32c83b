package agent

import (
	"syscall"
	"time"
)

// Limits of passes that kernel events request: paceBurst at once, then one every paceEvery. If passes are expensive
// they are rarer, up to paceMost, and use a twentieth of a core; beyond that repairs would be late, so they may use a
// quarter. Drift is repaired soon and at a low cost, also while another program works against it; passes for sources
// and peers are not delayed. Most events come from our own changes, and the pass that they request finds nothing to do.
const (
	paceBurst   = 5
	paceEvery   = 100 * time.Millisecond
	paceMost    = 200 * time.Millisecond
	paceShare   = 20
	paceQuarter = 4
)

// A pass that changes the kernel or fails, and is requested again by the events of its own changes, would repeat
// forever. After paceEndless such passes each waits twice as long as the last, up to paceRest, after which everything
// is checked anyway.
const (
	paceEndless = 30
	paceRest    = 10 * time.Second
	// paceEcho is the time after a pass within which the events of its own changes arrive.
	paceEcho = 20 * time.Millisecond
)

// pace is a token bucket for passes that kernel events request.
type pace struct {
	tokens float64
	filled time.Time     // when tokens were last added; zero: never
	cost   time.Duration // processor time of the last pass

	ended    time.Time // end of the last pass
	echo     bool      // the due pass was requested right after the last one
	restless int       // unsettled passes that were an echo, minus two for each that was not
}

// ran records the end of a pass: whether kernel events requested it, and whether it was unsettled: it failed or changed
// the kernel, and no other program did.
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

// endless reports whether passes repeat because of their own changes.
func (p *pace) endless() bool { return p.restless >= paceEndless }

// rest returns how long repeating passes wait.
func (p *pace) rest() time.Duration {
	if !p.endless() {
		return 0
	}
	return min(paceMost<<min(p.restless-paceEndless, 10), paceRest)
}

// every returns the time between two passes in the long run.
func (p *pace) every() time.Duration {
	return max(min(max(paceShare*p.cost, paceEvery), paceMost), paceQuarter*p.cost)
}

// request asks for a pass and returns how long to wait for it. Call it again only after that pass.
func (p *pace) request(now time.Time) time.Duration {
	if p.filled.IsZero() {
		p.tokens, p.filled = paceBurst, now
	}
	p.tokens = min(p.tokens+float64(now.Sub(p.filled))/float64(p.every()), paceBurst)
	p.filled = now
	p.tokens = max(p.tokens-1, -1)
	p.echo = now.Sub(p.ended) < paceEcho
	return max(0, time.Duration(-p.tokens*float64(p.every())), p.rest())
}

// processorTime returns the processor time of this process. On a busy machine a pass takes longer, but costs no more.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
