package kernel

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

// readAllRouted returns, for each of the tables, the families with a usable route.
func readAllRouted(ctx context.Context, tables []uint32) (map[uint32]plan.Families, error) {
	routed := make(map[uint32]plan.Families, len(tables))
	for _, table := range tables {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		families, err := readRouted(table)
		if err != nil {
			return nil, fmt.Errorf("list routes of table %d: %w", table, err)
		}
		routed[table] = families
	}
	return routed, nil
}

// readRouted returns the families for which a table has a usable route.
func readRouted(table uint32) (plan.Families, error) {
	return nl.Retry(func() (f plan.Families, err error) {
		for _, family := range []struct {
			number uint8
			routed *bool
		}{{unix.AF_INET, &f.IPv4}, {unix.AF_INET6, &f.IPv6}} {
			err := dumpRoutes(family.number, table, 0, func(r *route) bool {
				*family.routed = r.leads()
				return !*family.routed
			})
			if err != nil {
				return f, err
			}
		}
		return f, nil
	})
}

// readGateways lists the gateways of the routes that no routing protocol installed, sorted.
func readGateways(ctx context.Context) ([]netip.Addr, error) {
	return nl.Retry(func() (all []netip.Addr, err error) {
		for _, family := range nl.Families() {
			for _, protocol := range []uint8{unix.RTPROT_BOOT, unix.RTPROT_STATIC, unix.RTPROT_RA, unix.RTPROT_DHCP} {
				err := dumpRoutes(family, 0, protocol, func(r *route) bool {
					for _, l := range r.legs {
						if l.gateway.IsValid() {
							all = append(all, l.gateway)
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
func (r *route) leads() bool {
	if r.kind != unix.RTN_UNICAST {
		return false
	}
	return r.object || slices.ContainsFunc(r.legs, func(l leg) bool {
		return !l.dead && (l.gateway.IsValid() || r.dst.Bits() == 0)
	})
}
