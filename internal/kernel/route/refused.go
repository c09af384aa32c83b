package route

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
)

// A planned route may be impossible: a peer advertises a next hop that the kernel rejects as a gateway (whether an
// address is on a link depends on routes of the operator and on other learned routes), another program's route has its
// prefix and metric, or a device is missing or down. Such a route is left out, which concerns only the network or the
// host of its table: the rest of the plan is in force without it. Every full re-read tries it again: after changes to
// objects that our routes depend on, and every lookEvery.

// Reasons of Refused routes.
const (
	ReasonNextHopRefused cluster.Reason = "NextHopRefused" // the kernel rejects a next hop
	ReasonRouteCollides  cluster.Reason = "RouteCollides"  // another program's route has its prefix and metric
	ReasonDeviceDown     cluster.Reason = "DeviceDown"     // the devices of its next hops are missing or down
)

// Refused is a planned route that is left out.
type Refused struct {
	Table    uint32
	Dst      netip.Prefix
	NextHops []plan.NextHop
	Learned  bool // from a peer
	Reason   cluster.Reason
	Err      error
}

// OfPeer reports whether a peer alone may have caused the refusal, by the route that it announces.
func (r *Refused) OfPeer() bool { return r.Learned && r.Reason != ReasonDeviceDown }

// Refusals are the planned routes that are left out.
type Refusals map[Key]Refused

// Clone returns a copy that may be modified.
func (f Refusals) Clone() Refusals {
	if f == nil {
		return Refusals{}
	}
	return maps.Clone(f)
}

// Judge records the kernel's answer for a route. It returns the error, unless that concerns this route alone.
func (f Refusals) Judge(r *plan.Route, err error) error {
	if reason := refusalOf(err); reason != "" {
		// Where another program has a route of the floor's metric, packets do not fall through to other tables.
		if !r.Unreachable || reason != ReasonRouteCollides {
			f[KeyOf(r)] = Refused{r.Table, r.Dst, r.NextHops, r.Learned(), reason, err}
		}
		return nil
	}
	if len(f) > 0 {
		delete(f, KeyOf(r))
	}
	return err
}

// refusalOf returns the reason why a route is left out after an error; empty: the error does not concern this route
// alone.
func refusalOf(err error) cluster.Reason {
	switch {
	case err == nil:
		return ""
	case isAny(err, unix.EEXIST):
		return ReasonRouteCollides
	case isAny(err, unix.ENETDOWN, unix.ENODEV), errors.As(err, &netlink.LinkNotFoundError{}):
		return ReasonDeviceDown
	case isAny(err, unix.EINVAL, unix.ENETUNREACH, unix.EHOSTUNREACH),
		isAny(err, unix.EACCES, unix.EAFNOSUPPORT, unix.EOPNOTSUPP): // IPv6 is off
		return ReasonNextHopRefused
	}
	return ""
}

func isAny(err error, errs ...error) bool {
	return slices.ContainsFunc(errs, func(e error) bool { return errors.Is(err, e) })
}

// Has reports whether the kernel rejected a planned route.
func (f Refusals) Has(r *plan.Route) bool {
	if len(f) == 0 {
		return false
	}
	_, ok := f[KeyOf(r)]
	return ok
}

// Take prepares a change: it marks refused routes as fresh, since the kernel does not hold them, and forgets refused
// routes that are being deleted.
func (f Refusals) Take(c *Changes) {
	if len(f) == 0 {
		return
	}
	for _, r := range c.Set {
		if f.Has(r) {
			c.Fresh = append(c.Fresh, r)
		}
	}
	for _, r := range c.Gone {
		delete(f, KeyOf(r))
	}
}

// Examples returns one refused route of each table and reason, the one with the first prefix.
func (f Refusals) Examples() []Refused {
	if len(f) == 0 {
		return nil
	}
	type kind struct {
		table  uint32
		reason cluster.Reason
	}
	first := map[kind]Refused{}
	for _, r := range f {
		k := kind{r.Table, r.Reason}
		if one, ok := first[k]; !ok || r.Dst.Compare(one.Dst) < 0 {
			first[k] = r
		}
	}
	return slices.SortedFunc(maps.Values(first), func(a, b Refused) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Reason, b.Reason))
	})
}
