package speaker

import (
	"net/netip"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// prefix is the sort key of lists.
type prefix = netip.Prefix

// listChange turns one list into another. Both contain each prefix once.
type listChange[T any] struct {
	Set  []T      `json:"set,omitempty"` // new or changed elements
	Gone []prefix `json:"gone,omitempty"`
}

func (c listChange[T]) empty() bool { return len(c.Set) == 0 && len(c.Gone) == 0 }

// changeIn returns the change that turns before into after.
func changeIn[T sorted.Item[T]](before, after sorted.List[T], of func(T) prefix) (c listChange[T]) {
	for had, now := range before.Changes(after) {
		if now == nil {
			c.Gone = append(c.Gone, of(*had))
		} else {
			c.Set = append(c.Set, *now)
		}
	}
	return c
}

// applyIn returns before with c applied. like returns an element that sorts as the given prefix.
func applyIn[T sorted.Item[T]](c listChange[T], before sorted.List[T], like func(prefix) T) sorted.List[T] {
	gone := make([]T, 0, len(c.Gone))
	for _, p := range c.Gone {
		gone = append(gone, like(p))
	}
	return before.With(c.Set, gone)
}

func prefixOf(a plan.Announcement) prefix  { return a.Prefix }
func refused(p plan.Prefix) prefix         { return p.Prefix }
func destination(r plan.Route) prefix      { return r.Dst }
func announced(p prefix) plan.Announcement { return plan.Announcement{Prefix: p} }
func routeTo(p prefix) plan.Route          { return plan.Route{Dst: p} }
func refusal(p prefix) plan.Prefix         { return plan.Prefix{Prefix: p} }
