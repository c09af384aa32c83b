package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// flowCheck says which connections contradict the plan. The address a connection leaves with was bound when it began:
// one that began before its pod was selected, or with another ingress IP or path, can only be ended.
type flowCheck struct {
	marks     plan.Marks
	endpoints map[netip.Addr]plan.Endpoint
	networks  map[plan.PathID]bool
	cluster   []netip.Prefix
}

func newFlowCheck(d plan.DataPlane) *flowCheck {
	f := &flowCheck{marks: d.Marks, endpoints: make(map[netip.Addr]plan.Endpoint, d.Endpoints.Len()), networks: map[plan.PathID]bool{}, cluster: d.Cluster}
	for e := range d.Endpoints.All() {
		f.endpoints[e.Addr] = e
	}
	for _, p := range d.Paths {
		if p.Key.Kind == plan.PathNetwork {
			f.networks[p.ID] = true
		}
	}
	return f
}

// MatchConntrackFlow says that a connection must end.
func (f *flowCheck) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	mark := flow.Mark & f.marks.Mask
	source, _ := netip.AddrFromSlice(flow.Forward.SrcIP)
	target, _ := netip.AddrFromSlice(flow.Reverse.SrcIP) // after DNAT
	leaves, _ := netip.AddrFromSlice(flow.Reverse.DstIP) // after SNAT
	source, target, leaves = source.Unmap(), target.Unmap(), leaves.Unmap()
	e, selected := f.endpoints[source]
	switch {
	case mark&f.marks.EgressBit() != 0:
		way := plan.Way{Path: f.marks.Path(mark), Source: leaves}
		return !selected || way != e.Kept && (e.Path != way.Path || e.Source.IsValid() && e.Source != leaves)
	case mark != 0:
		return !f.networks[f.marks.Path(mark)]
	}
	return selected && !f.inCluster(target)
}

func (f *flowCheck) inCluster(a netip.Addr) bool {
	i, found := slices.BinarySearchFunc(f.cluster, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return found || i > 0 && f.cluster[i-1].Contains(a)
}

// endContradictions deletes the connections that contradict the plan, in one pass over the table. Those that are steered
// elsewhere now are led there first.
func endContradictions(ctx context.Context, h *netlink.Handle, d plan.DataPlane) (ended uint, err error) {
	check := newFlowCheck(d)
	errs := []error{leadOn(ctx, d)}
	for _, f := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if ctx.Err() != nil {
			return ended, ctx.Err()
		}
		n, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, f, check)
		ended += n
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("end connections that contradict the plan: %w", err))
		}
	}
	return ended, errors.Join(errs...)
}
