package kernel

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// A peer may tell a next hop that the kernel takes for no gateway: what is on a link depends on routes of the operator's, and on
// other learned ones. Such a route is left out, and the rest of the plan is in force without it. It is tried again when all is
// looked at: after somebody has touched what our routes stand on, and every lookEvery.

// Refused is a learned route that the kernel does not take.
type Refused struct {
	Table    uint32
	Dst      netip.Prefix
	NextHops []plan.NextHop
	Err      error
}

// refusals are the learned routes that the kernel does not take.
type refusals map[routeKey]Refused

// judge takes in whether the kernel took a route. It gives the error back unless that is about the next hops of a learned one.
func (f refusals) judge(r *plan.Route, err error) error {
	if err != nil && r.Learned() && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH)) {
		f[keyOf(r)] = Refused{r.Table, r.Dst, r.NextHops, err}
		return nil
	}
	if len(f) > 0 {
		delete(f, keyOf(r))
	}
	return err
}

// has says whether a route is not in the kernel, although it was planned.
func (f refusals) has(r *plan.Route) bool {
	if len(f) == 0 {
		return false
	}
	_, ok := f[keyOf(r)]
	return ok
}

// take takes in which routes are about to change: one that stands nowhere is a new one, and one that is gone is none.
func (f refusals) take(c *routeChanges) {
	if len(f) == 0 {
		return
	}
	for _, r := range c.set {
		if f.has(r) {
			c.fresh = append(c.fresh, r)
		}
	}
	for _, r := range c.gone {
		delete(f, keyOf(r))
	}
}

// examples gives one route of each table, always the same.
func (f refusals) examples() map[uint32]Refused {
	if len(f) == 0 {
		return nil
	}
	first := map[uint32]Refused{}
	for _, r := range f {
		if one, ok := first[r.Table]; !ok || comparePrefixes(r.Dst, one.Dst) < 0 {
			first[r.Table] = r
		}
	}
	return first
}
