package conntrack

import (
	"context"
	"net/netip"
	"slices"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// lead returns the change that redirects a local pod's egress flow to the host that it is steered to now; ok is false if
// the entry is not a flow steered to another host. It may be of any protocol. The new host continues the flow if it knows it, and otherwise
// treats it as a new one. Without its entry on this node, the flow would have to begin again here too, which only the
// pod can do: until the pod sends something, packets from the remote would find no connection. A flow that cannot be
// moved contradicts the plan and is ended.
func (f *flowCheck) lead(body []byte) (m entryChange, ok bool) {
	c := DecodeConnection(body)
	if c.zoned || c.mark&f.Marks.EgressBit() == 0 {
		return m, false
	}
	to, steered := f.steered(c.source)
	if !steered || !goesAstray(plan.Way{Path: f.Marks.Path(c.mark), Source: c.leaves}, &to) {
		return m, false
	}
	return entryChange{Message: remarking(body, f.Marks.Egress(to.Path), f.Marks.Mask), instead: deletion(body)}, true
}

// HandOver sends flows of this node's pods to the host that these pods are steered to now, and waits until that host has made their
// entries. It returns the flows that the host has confirmed.
type HandOver func(context.Context, []Flow) []Flow

// EndKept moves or ends connections on a way that only the plan in force keeps, where new connections of the endpoint have the same way in
// both plans. Call it before the next plan comes into force: the rules of both plans permit the result. End alone is late: the new rules
// drop packets of these connections until it has run.
//
// A TCP connection that left this node with SNAT goes on by the host if that has its entry first: otherwise it would get another port
// there.
func (a *Audit) EndKept(ctx context.Context, before, next *plan.DataPlane, over HandOver) error {
	of, endpoints := keptOnlyBefore(before, next)
	if of.none() {
		return nil
	}
	d := *next
	d.Endpoints = endpoints
	d.Policies = nil // not in force yet
	check := newCheck(d, noNames, of)
	check.over = over
	_, err := a.run(ctx, check)
	return err
}

// hands returns the TCP connection of a local pod that left this node with SNAT and contradicts the plan, since the pod is steered to a
// host now; ok is false if the entry is another one.
func (f *flowCheck) hands(body []byte) (flow Flow, ok bool) {
	if f.over == nil {
		return flow, false
	}
	e, ok := DecodeEntry(body)
	if !ok || e.Proto != unix.IPPROTO_TCP {
		return flow, false
	}
	flow, ok = e.flow(f.Marks)
	to, steered := f.steered(flow.Src.Addr())
	return flow, ok && steered && f.networks[flow.Path] && !f.accepts(&to, plan.Way{Path: flow.Path, Source: flow.SNAT.Addr()})
}

// handOver hands flows over to the hosts that their pods are steered to, and replaces their entries by ones that steer them there. It ends
// the others, and returns the requests for that with their results.
func (c *Conn) handOver(ctx context.Context, check *flowCheck, flows []Flow) (ended []entryChange, err error) {
	if len(flows) == 0 {
		return nil, nil
	}
	confirmed := map[Flow]bool{}
	for _, f := range check.over(ctx, flows) {
		confirmed[f] = true
	}
	var replace []entryChange
	for _, f := range flows {
		removal := entryChange{Message: f.about(vnl.IPCTNL_MSG_CT_DELETE, 0)}
		if !confirmed[f] {
			ended = append(ended, removal)
			continue
		}
		to, _ := check.steered(f.Src.Addr())
		steered := f
		steered.Path, steered.SNAT = to.Path, f.Src
		replace = append(replace, removal, entryChange{Message: steered.creation(check.Marks)})
	}
	if err := c.exchange(replace); err != nil { // a packet between deletion and creation has made the entry itself
		return nil, err
	}
	return ended, c.exchange(ended)
}

// keptOnlyBefore returns the endpoints of which the next plan changes only the kept way, and that plan's endpoints. Those whose kept way
// is PathShared in both plans, to different hosts, have none there: no connection has begun on the next one.
func keptOnlyBefore(before, next *plan.DataPlane) (d doubt, endpoints sorted.List[plan.Endpoint]) {
	if allDoubtful(before, next) || len(renumbered(before, next)) > 0 {
		return d, next.Endpoints
	}
	stay, shared := stayingPaths(before, next), sharedPath(next)
	var elsewhere []plan.Endpoint
	for x, y := range before.Endpoints.Changes(next.Endpoints) {
		if !losesOnlyKept(x, y, shared) || !stay[y.Path] {
			continue
		}
		d.put(x.Addr, false)
		if x.Kept == y.Kept {
			e := *y
			e.Kept = plan.Way{}
			elsewhere = append(elsewhere, e)
		}
	}
	return d, next.Endpoints.With(elsewhere, nil)
}

// sharedPath returns the id of a plan's PathShared; 0: it has none.
func sharedPath(d *plan.DataPlane) plan.PathID {
	for i := range d.Paths {
		if d.Paths[i].Key.Kind == plan.PathShared {
			return d.Paths[i].ID
		}
	}
	return 0
}

// stayingPaths returns the ids of the paths that the next plan leaves as they are.
func stayingPaths(before, next *plan.DataPlane) map[plan.PathID]bool {
	stay := map[plan.PathID]bool{}
	for i := range next.Paths {
		p := &next.Paths[i]
		stay[p.ID] = slices.ContainsFunc(before.Paths, func(b plan.Path) bool { return sorted.Same(p, &b) })
	}
	return stay
}

// losesOnlyKept reports whether an endpoint had a kept way that it does not have now, and is the same otherwise. shared is the id of
// PathShared: another host there is another way.
func losesOnlyKept(before, now *plan.Endpoint, shared plan.PathID) bool {
	if before == nil || now == nil || before.Kept == (plan.Way{}) {
		return false
	}
	same := *now
	same.Kept = before.Kept
	if now.Path != shared { // the host is that of the kept way
		same.Via = before.Via
	}
	return same == *before && (now.Kept != before.Kept || now.Via != before.Via)
}

// steered returns the endpoint with an address, and whether its flows are steered to a host that gives them their source.
func (f *flowCheck) steered(a netip.Addr) (e plan.Endpoint, ok bool) {
	e, selected := f.Endpoints.Get(plan.Endpoint{Addr: a})
	return e, selected && f.steering[e.Path] && e.Source == e.Addr
}

// goesAstray reports whether a flow of a steered endpoint goes to another host than new ones, and may not stay there.
func goesAstray(way plan.Way, to *plan.Endpoint) bool {
	return way.Source == to.Source && way.Path != to.Path && way != to.Kept
}
