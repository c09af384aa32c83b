package kernel

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink"
)

// cleanup removes from this node every rule, route and link of ours and frees the interfaces that we enslaved. It works
// by the marks that they bear, so it needs no configuration.
func cleanup(ctx context.Context, h *netlink.Handle) error {
	var own *conn // one for each
	return errors.Join(
		own.pruneRules(ctx, nil),
		own.pruneRoutes(ctx, nil),
		applyTunnel(ctx, h, nil),
		new(vrfs).prune(ctx, h, nil),
	)
}
