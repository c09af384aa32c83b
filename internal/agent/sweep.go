package agent

import (
	"context"
	"time"

	"github.com/egressway/egressway/internal/plan"
)

// Connections that may contradict a plan are looked for at once, and then not again before some times as long has passed as that took: the
// kernel goes through its whole table for them. The rules drop their packets meanwhile. Where a node died they are looked for at once again: flows
// are led to its standby then.
const (
	sweepShare = 20
	sweepMost  = 200 * time.Millisecond
)

// sweep is when connections were looked for last, and what that took.
type sweep struct {
	ended time.Time
	took  time.Duration
	due   bool // a pass will come that looks again
}

// rest is how long the next look has to wait; 0: not at all.
func (s *sweep) rest(now time.Time) time.Duration {
	return max(0, s.ended.Add(min(sweepShare*s.took, sweepMost)).Sub(now))
}

// endContradictions ends the connections that contradict the plan that is in force, now or by a pass that it asks for.
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
