package kernel

import (
	"github.com/vishvananda/netlink/nl"

	"github.com/egressway/egressway/internal/plan"
)

// lead is the change that has an egress flow of one of this node's pods that was steered to one host go to the one that it is
// steered to now, if the entry is of such a flow. There it goes on if it is known, and else begins anew. Without its entry here,
// it would have to begin anew on this node too, which only the pod can do: what the remote sends meanwhile, and after it for
// as long as the pod has nothing to say, would find no connection. What cannot be led on contradicts the plan, and is ended.
func (f *flowCheck) lead(body []byte) (c entryChange, ok bool) {
	e, ok := decodeEntry(body)
	if !ok || e.mark&f.Marks.EgressBit() == 0 {
		return c, false
	}
	to, selected := f.Endpoints.Get(plan.Endpoint{Addr: e.Src.Addr()})
	way := plan.Way{Path: f.Marks.Path(e.mark), Source: e.SNAT.Addr()}
	steered := selected && f.steering[to.Path] && to.Source == to.Addr
	if !steered || way.Source != to.Source || way.Path == to.Path || way == to.Kept {
		return c, false
	}
	c.message = e.about(nl.IPCTNL_MSG_CT_NEW, 0)
	c.body = appendMark(c.body, f.Marks.Egress(to.Path), f.Marks.Mask)
	c.instead = deletion(body)
	return c, true
}
