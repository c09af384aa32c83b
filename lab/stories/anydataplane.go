package stories

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// AnyDataPlane returns a random plan that shares addresses with the plan before.
func AnyDataPlane(r *rand.Rand, before plan.DataPlane) plan.DataPlane {
	d := plan.DataPlane{Marks: plan.Marks{Mask: 0x3f00, Priority: 700}, ClampMSS4: 1410, ClampMSS6: 1390, CountSent: r.IntN(3) > 0}
	networks, steered := []plan.PathID{}, []plan.PathID{}
	for id := plan.PathID(1); id <= 6; id++ {
		switch p := (plan.Path{ID: id, Table: 1000 + uint32(id)}); {
		case id == 1:
			p.Key = plan.PathKey{Kind: plan.PathNetwork, Name: "default"}
			d.Paths = append(d.Paths, p)
		case r.IntN(4) == 0:
		case id <= 3:
			p.Key, p.Devices = plan.PathKey{Kind: plan.PathNetwork, Name: fmt.Sprintf("net-%d", id)}, []string{fmt.Sprintf("eth-%d", id), fmt.Sprintf("vrf-%d", id)}
			networks = append(networks, id)
			d.Paths = append(d.Paths, p)
			for _, device := range p.Devices {
				d.Uplinks = append(d.Uplinks, plan.Uplink{Device: device, Path: id})
			}
		default:
			p.Key, p.Devices, p.Tunneled = plan.PathKey{Kind: plan.PathSteer, Name: fmt.Sprintf("node-%d", id)}, []string{"egressway"}, r.IntN(2) == 0
			steered = append(steered, id)
			d.Paths = append(d.Paths, p)
		}
	}
	anyOf := func(ids []plan.PathID) plan.PathID {
		if len(ids) == 0 {
			return 0
		}
		return ids[r.IntN(len(ids))]
	}
	address := func(v6 bool, four, six string, n int) netip.Addr {
		if v6 {
			return netip.MustParseAddr(fmt.Sprintf(six, n))
		}
		return netip.MustParseAddr(fmt.Sprintf(four, n))
	}
	endpoint := func(n int) plan.Endpoint {
		v6 := n%2 == 1
		e := plan.Endpoint{Addr: address(v6, "10.244.1.%d", "fd44:1::%d", n), Path: anyOf(slices.Concat(networks, steered, []plan.PathID{0, 1}))}
		sources := []netip.Addr{{}, e.Addr, address(v6, "203.0.113.%d", "2001:db8:203::%d", r.IntN(3)), address(v6, "203.0.113.%d", "2001:db8:203::%d", r.IntN(3))}
		e.Source = sources[r.IntN(len(sources))]
		if r.IntN(2) == 0 {
			e.Kept = plan.Way{Path: plan.PathID(r.IntN(7)), Source: sources[r.IntN(len(sources))]}
		}
		return e
	}
	// Most endpoints stay unchanged if their path still exists.
	stands := pathIDs(&d)
	for e := range before.Endpoints.All() {
		if r.IntN(3) > 0 && (e.Path == 0 || stands[e.Path]) {
			d.Endpoints = d.Endpoints.With([]plan.Endpoint{e}, nil)
		}
	}
	for range r.IntN(40) {
		d.Endpoints = d.Endpoints.With([]plan.Endpoint{endpoint(r.IntN(120))}, nil)
	}
	var ingress []plan.IngressIP
	for range r.IntN(6) {
		i := plan.IngressIP{
			Addr: address(r.IntN(2) == 0, "203.0.113.%d", "2001:db8:203::%d", r.IntN(3)), Path: anyOf(networks), Resumed: r.IntN(2) == 0,
			Counted: d.CountSent && r.IntN(2) == 0,
		}
		if r.IntN(2) == 0 {
			i.Stray = anyOf(steered)
		}
		ingress = append(ingress, i)
	}
	d.Ingress = sorted.Of(ingress...)
	let := func(hold bool) (list sorted.List[plan.Address]) {
		for range r.IntN(20) {
			if n := r.IntN(30); hold {
				list = list.With([]plan.Address{{Addr: address(n%2 == 1, "10.244.9.%d", "fd44:9::%d", n)}}, nil)
			}
		}
		return list
	}
	d.Hold = r.IntN(2) == 0
	d.Let = let(d.Hold)
	for _, p := range []string{"10.244.0.0/16", "10.96.0.0/12", "255.255.255.255/32", "fd44::/16", "ff00::/8"} {
		if r.IntN(3) > 0 {
			d.Cluster = append(d.Cluster, netip.MustParsePrefix(p))
		}
		if r.IntN(3) == 0 {
			d.Pods, d.Guests = append(d.Pods, netip.MustParsePrefix(p)), append(d.Guests, netip.MustParsePrefix(p))
		}
	}
	if r.IntN(2) == 0 { // only endpoints and ingress IPs change, as in most passes
		fixed := before
		fixed.Endpoints, fixed.Ingress = sorted.List[plan.Endpoint]{}, sorted.List[plan.IngressIP]{}
		fixed.Let = let(fixed.Hold)
		stands := pathIDs(&before)
		for e := range d.Endpoints.All() {
			if e.Path == 0 || stands[e.Path] {
				fixed.Endpoints = fixed.Endpoints.With([]plan.Endpoint{e}, nil)
			}
		}
		for i := range d.Ingress.All() {
			if i.Stray == 0 || stands[i.Stray] {
				i.Counted = i.Counted && fixed.CountSent
				fixed.Ingress = fixed.Ingress.With([]plan.IngressIP{i}, nil)
			}
		}
		return fixed
	}
	return d
}

// CmpOr returns an endpoint, or an empty one instead of nil.
func CmpOr(e *plan.Endpoint) *plan.Endpoint {
	if e == nil {
		return &plan.Endpoint{}
	}
	return e
}

func pathIDs(d *plan.DataPlane) map[plan.PathID]bool {
	ids := map[plan.PathID]bool{}
	for _, p := range d.Paths {
		ids[p.ID] = true
	}
	return ids
}
