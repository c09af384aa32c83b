package agent

import (
	"context"
	"time"

	"github.com/egressway/egressway/internal/plan"
)

// Connections that may contradict a plan are searched for at once. The kernel scans its whole table for that, so a search owes sweepShare ×
// its duration of rest, at most sweepMost. Once a few searches owe more than sweepBurst, the next one waits: a move takes three in a row.
// Meanwhile the rules drop packets of these connections. After the death of a node the next search is immediate, because flows then move to
// its standby.
const (
	sweepShare = 20
	sweepMost  = 200 * time.Millisecond
	sweepBurst = 600 * time.Millisecond
)

// sweep records when connections were last searched, and how much rest was owed then.
type sweep struct {
	ended time.Time
	owed  time.Duration
	due   bool // a pass that searches again was requested
}

// owes returns the rest that is owed.
func (s *sweep) owes(now time.Time) time.Duration { return max(0, s.owed-now.Sub(s.ended)) }

// rest returns the time until the next search; 0: now.
func (s *sweep) rest(now time.Time) time.Duration { return max(0, s.owes(now)-sweepBurst) }

// done records a search.
func (s *sweep) done(began, now time.Time) {
	*s = sweep{ended: now, owed: s.owes(began) + min(sweepShare*now.Sub(began), sweepMost)}
}

// endContradictions ends the connections that contradict the plan in force, now or in a later pass that it requests.
func (a *Agent) endContradictions(ctx context.Context, desired *plan.NodePlan) (ended uint, err error) {
	s, began := &a.last.sweep, time.Now()
	if wait := s.rest(began); wait > 0 {
		if !s.due {
			s.due = true
			time.AfterFunc(wait, a.wake)
		}
		return 0, nil
	}
	ended, err = a.kernel.EndContradictions(ctx, desired.DataPlane)
	s.done(began, time.Now())
	return ended, err
}
