package conntrack

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	vnl "github.com/vishvananda/netlink/nl"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// doubt names the endpoints whose connections may contradict the plan in force, although they agreed with an earlier one. If all are in
// doubt, endpoints has those alone whose policy is another.
type doubt struct {
	all       bool
	endpoints map[netip.Addr]bool  // true: its policy is another
	strays    map[netip.Addr]bool  // ingress IPs whose strays no longer go where they went
	reused    map[plan.PathID]bool // ids of networks that mean another network now, or may do so
}

func (d *doubt) none() bool { return !d.all && d.addresses() == 0 }

// addresses returns the number of addresses whose connections are in doubt.
func (d *doubt) addresses() int { return len(d.endpoints) + len(d.strays) }

// add puts the endpoints of another doubt in doubt, too.
func (d *doubt) add(more doubt) {
	if more.all || d.addresses()+more.addresses() > doubtMost {
		d.everyone()
	}
	for a, policy := range more.endpoints {
		d.put(a, policy)
	}
	for a := range more.strays {
		d.putStrays(a)
	}
	d.reuse(more.reused)
}

// reuse puts all connections that came in by these paths in doubt.
func (d *doubt) reuse(ids map[plan.PathID]bool) {
	if d.reused == nil && len(ids) > 0 {
		d.reused = map[plan.PathID]bool{}
	}
	maps.Copy(d.reused, ids)
}

// everyone puts all endpoints in doubt.
func (d *doubt) everyone() {
	had := d.endpoints
	d.all, d.endpoints, d.strays = true, nil, nil
	for a, policy := range had {
		d.put(a, policy)
	}
}

// doubtOf returns the endpoints whose connections agreed with the plan before and may contradict the plan now. It is
// empty if now permits all that before did.
func doubtOf(before, now *plan.DataPlane) (d doubt) {
	if d.all = allDoubtful(before, now); before == nil {
		return d
	}
	d.putRenumbered(renumbered(before, now), now)
	if ids := reusedIDs(before, now); len(ids) > 0 {
		d.all, d.reused = true, ids
	}
	for x, y := range before.Ingress.Changes(now.Ingress) {
		if divertsStrays(y, x) {
			d.putStrays(x.Addr)
		}
	}
	for x, y := range before.Endpoints.Changes(now.Endpoints) {
		if !permitsAll(y, x) {
			d.put(cmp.Or(x, y).Addr, false)
		}
	}
	d.putFirewalled(before, now)
	return d
}

// putRenumbered puts all endpoints in doubt if ids of policies mean others now, and notes those that have such a policy.
func (d *doubt) putRenumbered(others map[firewall.PolicyID]bool, now *plan.DataPlane) {
	if len(others) == 0 {
		return
	}
	d.all = true
	for y := range now.Firewalled.All() {
		if others[y.Policy] {
			d.put(y.Addr, true)
		}
	}
}

// putFirewalled puts the endpoints in doubt whose policy has another id now.
func (d *doubt) putFirewalled(before, now *plan.DataPlane) {
	for x, y := range before.Firewalled.Changes(now.Firewalled) {
		if y != nil {
			d.put(y.Addr, true)
		} else { // without a policy, all is allowed: what was barred may begin again
			d.put(x.Addr, false)
		}
	}
}

// put puts an endpoint in doubt, also whether names allowed its connections if its policy is another.
func (d *doubt) put(a netip.Addr, policy bool) {
	if d.all && !policy {
		return
	}
	if d.endpoints == nil {
		d.endpoints = map[netip.Addr]bool{}
	}
	d.endpoints[a] = d.endpoints[a] || policy
}

// putStrays puts the strays of an ingress IP in doubt.
func (d *doubt) putStrays(a netip.Addr) {
	if d.all {
		return
	}
	if d.strays == nil {
		d.strays = map[netip.Addr]bool{}
	}
	d.strays[a] = true
}

// allDoubtful reports whether connections of any endpoint may contradict the plan now.
func allDoubtful(before, now *plan.DataPlane) bool {
	return before == nil || before.Marks != now.Marks || losesNetwork(before, now) ||
		losesDestination(before.Cluster, now.Cluster) ||
		len(now.Policies) > 0 && losesDestination(before.Inside, now.Inside)
}

// renumbered returns the ids of policies that mean another one now.
func renumbered(before, now *plan.DataPlane) map[firewall.PolicyID]bool {
	if sorted.OneSlice(before.Policies, now.Policies) {
		return nil
	}
	had, others := newFlowCheck(*before).policies, map[firewall.PolicyID]bool{}
	for _, p := range now.Policies {
		if had[p.ID] != nil && !had[p.ID].Equal(&p) {
			others[p.ID] = true
		}
	}
	return others
}

// losesNetwork reports whether a path id that meant a network before no longer does.
func losesNetwork(before, now *plan.DataPlane) bool {
	if sorted.OneSlice(before.Paths, now.Paths) {
		return false
	}
	f := newFlowCheck(*now)
	return slices.ContainsFunc(before.Paths, func(p plan.Path) bool { return p.Key.Kind == plan.PathNetwork && !f.networks[p.ID] })
}

// reusedIDs returns the path ids of networks that mean another network now, as where no other id was left for it.
func reusedIDs(before, now *plan.DataPlane) map[plan.PathID]bool {
	if sorted.OneSlice(before.Paths, now.Paths) {
		return nil
	}
	ids, had := map[plan.PathID]bool{}, map[plan.PathID]plan.PathKey{}
	for _, p := range before.Paths {
		had[p.ID] = p.Key
	}
	for _, p := range now.Paths {
		if key, is := had[p.ID]; is && key != p.Key && key.Kind == plan.PathNetwork && p.Key.Kind == plan.PathNetwork {
			ids[p.ID] = true
		}
	}
	return ids
}

// losesDestination reports whether a destination left a list of prefixes: no prefix of now contains one of before.
func losesDestination(before, now []netip.Prefix) bool {
	if sorted.SameSlice(before, now) {
		return false
	}
	return slices.ContainsFunc(before, func(p netip.Prefix) bool {
		i, found := cluster.SearchPrefix(now, p.Addr())
		if found {
			return now[i].Bits() > p.Bits()
		}
		return i == 0 || !now[i-1].Contains(p.Addr())
	})
}

// divertsStrays reports whether strays of an ingress IP had a way before, and do not have it now.
func divertsStrays(now, before *plan.IngressIP) bool {
	return before != nil && before.Stray != 0 && (now == nil || now.Stray != before.Stray)
}

// permitsAll reports whether an endpoint permits all flows that it permitted before. One that is new or gone does not.
func permitsAll(e, before *plan.Endpoint) bool {
	if e == nil || before == nil {
		return false
	}
	return (before.Path == 0 || lets(e, before.Way())) &&
		(before.Kept == plan.Way{} || before.Kept == e.Kept || lets(e, before.Kept))
}

// lets reports whether an endpoint permits flows with this path and source.
func lets(e *plan.Endpoint, way plan.Way) bool { return e.Way() == way }

// doubtMost limits the endpoints in doubt. With more of them, all connections are checked.
const doubtMost = 1 << 17

// covers reports whether a connection is in doubt.
func (d *doubt) covers(body []byte) bool {
	source, destination := tupleAddresses(nl.Attr(body, vnl.SizeofNfgenmsg, vnl.CTA_TUPLE_ORIG))
	_, doubted := d.endpoints[source]
	return source.IsValid() && (d.all || doubted || d.strays[destination])
}
