package kernel

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink"

	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// cleanup removes every rule, route and link of ours from this node and frees the interfaces that we enslaved. It finds
// them by their marks, so it needs no configuration.
func cleanup(ctx context.Context, h *netlink.Handle, vrfs *link.VRFs) error {
	var own route.Socket // each call opens its own socket
	return errors.Join(
		link.RemoveOnLink(ctx, h, sorted.List[plan.OnLink]{}),
		own.PruneRules(ctx, nil),
		own.PruneRoutes(ctx, nil),
		link.ApplyTunnel(ctx, h, nil),
		link.PruneVLANs(ctx, h, nil),
		vrfs.Prune(ctx, h, nil),
	)
}
