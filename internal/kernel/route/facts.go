package route

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
)

// ReadAllRouted returns, for each of the tables, the families with a usable route.
func ReadAllRouted(ctx context.Context, tables []uint32) (map[uint32]plan.Families, error) {
	routed := make(map[uint32]plan.Families, len(tables))
	for _, table := range tables {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		families, err := ReadRouted(table)
		if err != nil {
			return nil, fmt.Errorf("list routes of table %d: %w", table, err)
		}
		routed[table] = families
	}
	return routed, nil
}

// ReadRouted returns the families for which a table has a usable route.
func ReadRouted(table uint32) (plan.Families, error) { return readFamilies(table, (*Entry).leads) }

// ReadDefaults returns the families for which a table has a default route, usable or not.
func ReadDefaults(table uint32) (plan.Families, error) {
	return readFamilies(table, func(r *Entry) bool { return r.Dst.Bits() == 0 })
}

// readFamilies returns the families for which a table has such a route.
func readFamilies(table uint32, such func(*Entry) bool) (plan.Families, error) {
	return nl.Retry(func() (f plan.Families, err error) {
		for _, family := range []struct {
			number uint8
			found  *bool
		}{{unix.AF_INET, &f.IPv4}, {unix.AF_INET6, &f.IPv6}} {
			err := dumpRoutes(family.number, table, 0, func(r *Entry) bool {
				*family.found = such(r)
				return !*family.found
			})
			if err != nil {
				return f, err
			}
		}
		return f, nil
	})
}

// ReadGateways lists the gateways of the routes that no routing protocol installed, sorted.
func ReadGateways(ctx context.Context) ([]netip.Addr, error) {
	return nl.Retry(func() (all []netip.Addr, err error) {
		for _, family := range nl.Families() {
			for _, protocol := range []uint8{unix.RTPROT_BOOT, unix.RTPROT_STATIC, unix.RTPROT_RA, unix.RTPROT_DHCP} {
				err := dumpRoutes(family, 0, protocol, func(r *Entry) bool {
					for _, l := range r.Legs {
						if l.Gateway.IsValid() {
							all = append(all, l.Gateway)
						}
					}
					return ctx.Err() == nil
				})
				if err := errors.Join(err, ctx.Err()); err != nil {
					return nil, fmt.Errorf("list routes of protocol %d: %w", protocol, err)
				}
			}
		}
		slices.SortFunc(all, netip.Addr.Compare)
		return slices.Compact(all), nil
	})
}

// leads reports whether a route reaches more than a connected subnet, through a device with carrier.
func (r *Entry) leads() bool {
	if r.Kind != unix.RTN_UNICAST {
		return false
	}
	return r.object || slices.ContainsFunc(r.Legs, func(l Leg) bool {
		return !l.dead && (l.Gateway.IsValid() || r.Dst.Bits() == 0)
	})
}
