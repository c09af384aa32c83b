package route

import (
	"context"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/egressway/egressway/internal/plan"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func via(gateway, device string) plan.NextHop {
	return plan.NextHop{Gateway: addr(gateway), Device: device}
}

func addRoutes(ctx context.Context, h *netlink.Handle, desired []plan.Route) error {
	return Socket{}.AddRoutes(ctx, h, desired, func(_ *plan.Route, err error) error { return err })
}

func pruneRoutes(ctx context.Context, desired []plan.Route) error {
	return Socket{}.PruneRoutes(ctx, desired)
}

func addRules(ctx context.Context, desired []plan.Rule) error {
	return Socket{}.AddRules(ctx, desired)
}

func pruneRules(ctx context.Context, desired []plan.Rule) error {
	return Socket{}.PruneRules(ctx, desired)
}
