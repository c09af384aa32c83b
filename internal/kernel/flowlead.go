package kernel

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// leadOn has egress flows of this node's pods follow where their packets are steered now: to another host, or to a host
// instead of out of this node. There the flow goes on if it is known, and else begins anew. Without its entry here, the
// flow would have to begin anew on this node too, which only the pod can do: what the remote sends meanwhile, and after it
// for as long as the pod has nothing to say, would find no connection.
func leadOn(ctx context.Context, d plan.DataPlane) error {
	check := newFlowCheck(d)
	steer := map[plan.PathID]bool{}
	for _, p := range d.Paths {
		steer[p.ID] = p.Key.Kind == plan.PathSteer
	}
	var moved []entryChange
	var elsewhere []Flow
	err := dumpEntries(ctx, d.Marks, func(e ctEntry) bool {
		way := plan.Way{Path: d.Marks.Path(e.mark), Source: e.SNAT.Addr()}
		to, selected := check.endpoints[e.Src.Addr()]
		steered := selected && steer[to.Path] && to.Source == to.Addr
		switch {
		case !steered || way == to.Kept || way == plan.Way{Path: to.Path, Source: to.Source}:
		case e.SNAT.Addr() == e.Src.Addr():
			m := e.about(nl.IPCTNL_MSG_CT_NEW, 0)
			m.body = appendMark(m.body, d.Marks.Egress(to.Path), d.Marks.Mask)
			moved = append(moved, entryChange{message: m})
		case e.from == e.Dst && (e.Proto == unix.IPPROTO_UDP || e.State == TCPEstablished):
			e.Path = to.Path
			elsewhere = append(elsewhere, e.Flow)
		}
		return true
	})
	if err == nil {
		err = exchangeAll(moved)
	}
	if err == nil {
		err = LeadFlows(d.Marks, elsewhere)
	}
	if err != nil {
		return fmt.Errorf("lead egress flows to where they are steered now: %w", err)
	}
	// What ended meanwhile needs nothing. What cannot be led on contradicts the plan as before, and is ended.
	return nil
}

// LeadFlows has flows of this node's pods that left by this node be steered by their paths to another, which changes their
// source as it was changed here. A change of the source cannot be taken back: another entry, that leaves it as it is, takes
// the place of each.
func LeadFlows(m plan.Marks, flows []Flow) error {
	changes := make([]entryChange, 0, 2*len(flows))
	for _, f := range flows {
		changes = append(changes, entryChange{message: f.about(nl.IPCTNL_MSG_CT_DELETE, 0)})
		f.SNAT = f.Src
		changes = append(changes, entryChange{message: f.creation(m)})
	}
	return exchangeAll(changes)
}
