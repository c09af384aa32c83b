package conntrack

import (
	vnl "github.com/vishvananda/netlink/nl"

	"github.com/egressway/egressway/internal/plan"
)

// lead returns the change that redirects a local pod's egress flow to the host that it is steered to now; ok is false if
// the entry is not a flow steered to another host. The new host continues the flow if it knows it, and otherwise
// treats it as a new one. Without its entry on this node, the flow would have to begin again here too, which only the
// pod can do: until the pod sends something, packets from the remote would find no connection. A flow that cannot be
// moved contradicts the plan and is ended.
func (f *flowCheck) lead(body []byte) (c entryChange, ok bool) {
	e, ok := DecodeEntry(body)
	if !ok || e.Mark&f.Marks.EgressBit() == 0 {
		return c, false
	}
	to, selected := f.Endpoints.Get(plan.Endpoint{Addr: e.Src.Addr()})
	way := plan.Way{Path: f.Marks.Path(e.Mark), Source: e.SNAT.Addr()}
	steered := selected && f.steering[to.Path] && to.Source == to.Addr
	if !steered || way.Source != to.Source || way.Path == to.Path || way == to.Kept {
		return c, false
	}
	c.Message = e.about(vnl.IPCTNL_MSG_CT_NEW, 0)
	c.Body = appendMark(c.Body, f.Marks.Egress(to.Path), f.Marks.Mask)
	c.instead = deletion(body)
	return c, true
}
