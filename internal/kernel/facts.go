package kernel

import (
	"context"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// readFacts reads what a plan depends on: the links, and in which of the tables a usable route stands.
func readFacts(ctx context.Context, h *netlink.Handle, tables []uint32) ([]plan.Link, map[uint32]plan.Families, error) {
	links, err := readLinks(h)
	if err != nil {
		return nil, nil, err
	}
	routed := make(map[uint32]plan.Families, len(tables))
	for _, table := range tables {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		families, err := readRouted(table)
		if err != nil {
			return nil, nil, fmt.Errorf("list routes of table %d: %w", table, err)
		}
		routed[table] = families
	}
	return links, routed, nil
}

// readRouted says for which families a table leads somewhere.
func readRouted(table uint32) (plan.Families, error) {
	return retried(func() (f plan.Families, err error) {
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

// leads says whether a route reaches more than a connected subnet, by a device with carrier.
func (r *route) leads() bool {
	if r.kind != unix.RTN_UNICAST {
		return false
	}
	return r.object || slices.ContainsFunc(r.legs, func(l leg) bool {
		return !l.dead && (l.gateway.IsValid() || r.dst.Bits() == 0)
	})
}
