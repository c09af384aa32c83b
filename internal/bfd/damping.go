package bfd

import (
	"math"
	"time"
)

const (
	// lossHalfLife is the time after which a loss of the session counts half, as RFC 2439 damps routes.
	lossHalfLife = time.Minute
	// lossLimit is the sum of losses at which the session gets slower: three in half a minute, or one every 40 seconds.
	lossLimit = 2.5
	// slowestStep is the last step. Each step makes intervals 4 times longer: 3 × 100 ms become 1.2, 4.8 and 19.2 s.
	slowestStep = 3
	// easeAfter is the time without a loss after which the session gets one step faster again.
	easeAfter = 5 * time.Minute
	// rememberFor is the time after the last loss within which a peer that comes back is damped as before.
	rememberFor = slowestStep * easeAfter
)

// damping lengthens the intervals of a session that flaps. The session continues: a peer that is silent for longer is
// still detected, and both ends use the intervals of the slower one (RFC 5880, 6.8.4).
type damping struct {
	losses float64       // their number, each halved every lossHalfLife
	at     time.Duration // time of the last loss
	step   int
}

// lose records a loss and returns when to ease.
func (d *damping) lose(now time.Duration) time.Duration {
	d.losses = d.losses*math.Exp2(-float64(now-d.at)/float64(lossHalfLife)) + 1
	d.at = now
	if d.losses >= lossLimit && d.step < slowestStep {
		d.losses = 0
		d.step++
	}
	return d.easeAt(now)
}

// ease goes back a step and returns when to ease again.
func (d *damping) ease(now time.Duration) time.Duration {
	d.step = max(d.step-1, 0)
	return d.easeAt(now)
}

func (d *damping) easeAt(now time.Duration) time.Duration {
	if d.step == 0 {
		return never
	}
	return now + easeAfter
}

// factor returns by which factor intervals are longer; 0: not damped.
func (d *damping) factor() int {
	if d.step == 0 {
		return 0
	}
	return 1 << (2 * d.step)
}

// slow returns an interval with damping.
func (d *damping) slow(interval time.Duration) time.Duration {
	return max(interval, min(interval*time.Duration(d.factor()), longestInterval))
}
