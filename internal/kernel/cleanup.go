package kernel

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink"
)

// cleanup removes every rule, route and link of ours from this node and frees the interfaces that we enslaved. It finds
// them by their marks, so it needs no configuration.
func cleanup(ctx context.Context, h *netlink.Handle) error {
	var own routeConn // each call opens its own socket
	return errors.Join(
		own.pruneRules(ctx, nil),
		own.pruneRoutes(ctx, nil),
		applyTunnel(ctx, h, nil),
		new(vrfs).prune(ctx, h, nil),
	)
}
