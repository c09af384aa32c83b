package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/sorted"
)

// Compare orders endpoints by their addresses.
func (e Endpoint) Compare(o Endpoint) int { return e.Addr.Compare(o.Addr) }

// Equal reports whether two endpoints are the same.
func (e Endpoint) Equal(o Endpoint) bool { return e == o }

// Compare orders ingress IPs by their addresses.
func (i IngressIP) Compare(o IngressIP) int { return i.Addr.Compare(o.Addr) }

// Equal reports whether two ingress IPs are the same.
func (i IngressIP) Equal(o IngressIP) bool { return i == o }

// Compare orders announcements by their prefixes.
func (a Announcement) Compare(o Announcement) int { return comparePrefix(a.Prefix, o.Prefix) }

// Equal reports whether two announcements are the same.
func (a Announcement) Equal(o Announcement) bool { return a == o }

// Compare orders services by their keys.
func (s Service) Compare(o Service) int { return s.Key.Compare(o.Key) }

// Equal reports whether two services are the same.
func (s Service) Equal(o Service) bool {
	return s.Key == o.Key && s.SourceIPBy == o.SourceIPBy && s.Network == o.Network && s.Host == o.Host && s.Standby == o.Standby &&
		s.Endpoints == o.Endpoints && s.Local == o.Local && s.Aside == o.Aside && slices.Equal(s.IngressIPs, o.IngressIPs) && slices.Equal(s.Announced, o.Announced)
}

// Compare orders waiting addresses.
func (w Waiting) Compare(o Waiting) int { return w.Addr.Compare(o.Addr) }

// Equal reports whether an address waits for the same reason.
func (w Waiting) Equal(o Waiting) bool { return w == o }

// Address is an address as an element of a list.
type Address struct{ netip.Addr }

// Compare orders addresses.
func (a Address) Compare(o Address) int { return a.Addr.Compare(o.Addr) }

// Equal reports whether two addresses are the same.
func (a Address) Equal(o Address) bool { return a == o }

// Prefix is a prefix as an element of a list.
type Prefix struct{ netip.Prefix }

// Compare orders prefixes by their addresses, then by their lengths.
func (p Prefix) Compare(o Prefix) int { return comparePrefix(p.Prefix, o.Prefix) }

// Equal reports whether two prefixes are the same.
func (p Prefix) Equal(o Prefix) bool { return p == o }

// Compare orders routes by their tables, then by their destinations and metrics.
func (r Route) Compare(o Route) int {
	if c := cmp.Compare(r.Table, o.Table); c != 0 {
		return c
	}
	if c := comparePrefix(r.Dst, o.Dst); c != 0 {
		return c
	}
	return cmp.Compare(r.Metric, o.Metric)
}

// Equal reports whether two routes are the same.
func (r Route) Equal(o Route) bool {
	return r.Dst == o.Dst && r.Table == o.Table && r.Metric == o.Metric && r.Unreachable == o.Unreachable && sorted.SameSlice(r.NextHops, o.NextHops)
}
