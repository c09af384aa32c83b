package speaker

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// prefix is what a list is sorted by.
type prefix = netip.Prefix

func comparePrefixes(a, b prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// listChange turns a list into another. Both are sorted by prefix and hold each once.
type listChange[T any] struct {
	Set  []T      `json:"set,omitempty"` // new, or other than before
	Gone []prefix `json:"gone,omitempty"`
}

func (c listChange[T]) empty() bool { return len(c.Set) == 0 && len(c.Gone) == 0 }

// changeOf compares two lists.
func changeOf[T any](before, after []T, of func(T) prefix, same func(a, b T) bool) (c listChange[T]) {
	for len(before) > 0 || len(after) > 0 {
		switch order := first(before, after, of); {
		case order < 0:
			c.Gone = append(c.Gone, of(before[0]))
			before = before[1:]
		case order > 0:
			c.Set = append(c.Set, after[0])
			after = after[1:]
		default:
			if !same(before[0], after[0]) {
				c.Set = append(c.Set, after[0])
			}
			before, after = before[1:], after[1:]
		}
	}
	return c
}

// apply makes the changed list. The one before stays as it is.
func (c listChange[T]) apply(before []T, of func(T) prefix) []T {
	if c.empty() {
		return before
	}
	gone := make(map[prefix]bool, len(c.Gone))
	for _, p := range c.Gone {
		gone[p] = true
	}
	after := make([]T, 0, max(0, len(before)+len(c.Set)-len(c.Gone)))
	set := c.Set
	for len(before) > 0 || len(set) > 0 {
		order := first(before, set, of)
		if order >= 0 {
			after = append(after, set[0])
			set = set[1:]
		} else if !gone[of(before[0])] {
			after = append(after, before[0])
		}
		if order <= 0 {
			before = before[1:]
		}
	}
	if len(after) == 0 {
		return nil
	}
	return after
}

// first compares the first entries of two lists, of which one may be empty.
func first[T any](a, b []T, of func(T) prefix) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return comparePrefixes(of(a[0]), of(b[0]))
}

// changeIn is changeOf for lists that share what they have in common.
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

// applyIn is apply for them. like makes an element of a prefix.
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
func refusal(p prefix) plan.Prefix         { return plan.Prefix{Prefix: p} }

func sameRoute(a, b plan.Route) bool {
	return a.Table == b.Table && a.Dst == b.Dst && a.Metric == b.Metric && a.Unreachable == b.Unreachable &&
		slices.Equal(a.NextHops, b.NextHops)
}
