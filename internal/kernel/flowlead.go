package kernel

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink/nl"

	"github.com/egressway/egressway/internal/plan"
)

// leadOn has egress flows of this node's pods that were steered to one host go to the one that they are steered to now. There
// the flow goes on if it is known, and else begins anew. Without its entry here, it would have to begin anew on this node
// too, which only the pod can do: what the remote sends meanwhile, and after it for as long as the pod has nothing to say,
// would find no connection. What cannot be led on contradicts the plan, and is ended.
func leadOn(ctx context.Context, d plan.DataPlane) error {
	steer := map[plan.PathID]bool{}
	for _, p := range d.Paths {
		steer[p.ID] = p.Key.Kind == plan.PathSteer
	}
	steered := func(e plan.Endpoint) bool { return steer[e.Path] && e.Source == e.Addr }
	some := false
	for e := range d.Endpoints.All() {
		if some = steered(e); some {
			break
		}
	}
	if !some {
		return nil
	}
	endpoints := newFlowCheck(d).endpoints
	var changes []entryChange
	err := dumpEntries(ctx, d.Marks, func(e ctEntry) bool {
		to := endpoints[e.Src.Addr()]
		way := plan.Way{Path: d.Marks.Path(e.mark), Source: e.SNAT.Addr()}
		if steered(to) && way.Source == to.Source && way.Path != to.Path && way != to.Kept {
			m := e.about(nl.IPCTNL_MSG_CT_NEW, 0)
			m.body = appendMark(m.body, d.Marks.Egress(to.Path), d.Marks.Mask)
			changes = append(changes, entryChange{message: m})
		}
		return true
	})
	if err == nil {
		err = exchangeAll(changes) // what ended meanwhile needs nothing
	}
	if err != nil {
		return fmt.Errorf("lead egress flows to where they are steered now: %w", err)
	}
	return nil
}
