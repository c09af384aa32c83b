package kernel

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// A peer may advertise a next hop that the kernel rejects as a gateway: whether an address is on a link depends on
// routes of the operator and on other learned routes. Such a route is left out, and the rest of the plan is in force
// without it. Every full re-read tries it again: after changes to objects that our routes depend on, and every
// lookEvery.

// Refused is a learned route that the kernel rejects.
type Refused struct {
	Table    uint32
	Dst      netip.Prefix
	NextHops []plan.NextHop
	Err      error
}

// refusals are the learned routes that the kernel rejects.
type refusals map[routeKey]Refused

// judge records the kernel's answer for a route. It returns the error, unless that concerns the next hops of a learned
// route.
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

// has reports whether the kernel rejected a planned route.
func (f refusals) has(r *plan.Route) bool {
	if len(f) == 0 {
		return false
	}
	_, ok := f[keyOf(r)]
	return ok
}

// take prepares a change: it marks refused routes as fresh, since the kernel does not hold them, and forgets refused
// routes that are being deleted.
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

// examples returns one refused route of each table, the one with the first prefix.
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
