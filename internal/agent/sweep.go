package agent

import (
	"context"
	"time"

	"github.com/egressway/egressway/internal/plan"
)

// Connections that may contradict a plan are searched for at once, and then not again for sweepShare × the duration of
// the search, at most sweepMost: the kernel scans its whole table for that. Meanwhile the rules drop their packets.
// After the death of a node the next search is immediate, because flows then move to its standby.
const (
	sweepShare = 20
	sweepMost  = 200 * time.Millisecond
)

// sweep records when connections were last searched, and how long that took.
type sweep struct {
	ended time.Time
	took  time.Duration
	due   bool // a pass that searches again was requested
}

// rest returns the time until the next search; 0: now.
func (s *sweep) rest(now time.Time) time.Duration {
	return max(0, s.ended.Add(min(sweepShare*s.took, sweepMost)).Sub(now))
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
	now := time.Now()
	*s = sweep{ended: now, took: now.Sub(began)}
	return ended, err
}
