package speaker

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/plan"
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

// sorted returns a list as listChange wants it. What plan and bgp make is so already.
func sorted[T any](list []T, of func(T) prefix) []T {
	order := func(a, b T) int { return comparePrefixes(of(a), of(b)) }
	for i := 1; i < len(list); i++ {
		if order(list[i-1], list[i]) >= 0 {
			list = slices.Clone(list)
			slices.SortStableFunc(list, order)
			return slices.CompactFunc(list, func(a, b T) bool { return order(a, b) == 0 })
		}
	}
	return list
}

func prefixOf(a plan.Announcement) prefix { return a.Prefix }
func itself(p prefix) prefix              { return p }
func destination(r plan.Route) prefix     { return r.Dst }

func equal[T comparable](a, b T) bool { return a == b }

func sameRoute(a, b plan.Route) bool {
	return a.Table == b.Table && a.Dst == b.Dst && a.Metric == b.Metric && a.Unreachable == b.Unreachable &&
		slices.Equal(a.NextHops, b.NextHops)
}
