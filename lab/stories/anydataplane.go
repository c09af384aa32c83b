package stories

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/qos"
	"github.com/egressway/egressway/internal/sorted"
)

// AnyDataPlane returns a random plan that shares addresses with the plan before.
func AnyDataPlane(r *rand.Rand, before plan.DataPlane) plan.DataPlane {
	a := anyPlan{Rand: r}
	d := plan.DataPlane{Marks: plan.Marks{Mask: 0x3f00, Priority: 700}, ClampMSS4: 1410, ClampMSS6: 1390, CountSent: r.IntN(3) > 0}
	a.paths(&d)
	// Most endpoints stay unchanged if their path still exists.
	stands := pathIDs(&d)
	for e := range before.Endpoints.All() {
		if r.IntN(3) > 0 && (e.Path == 0 || stands[e.Path]) {
			d.Endpoints = d.Endpoints.With([]plan.Endpoint{e}, nil)
		}
	}
	for range r.IntN(40) {
		d.Endpoints = d.Endpoints.With([]plan.Endpoint{a.endpoint(r.IntN(120))}, nil)
	}
	d.Ingress = a.ingress(d.CountSent)
	d.IPVS, d.Hold = r.IntN(4) == 0, r.IntN(2) == 0
	d.Let = a.let(d.Hold)
	d.QoS = a.classes()
	d.Marked = a.marked(d.QoS)
	d.OnLink = a.onLink()
	d.Policies = a.policies()
	d.Firewalled = a.firewalled(d.Policies)
	a.prefixes(&d)
	if r.IntN(2) == 0 { // only endpoints and ingress IPs change, as in most passes
		return byShared(r, a.withAddressesOf(before, &d))
	}
	return byShared(r, d)
}

// sharedID is the id of PathShared in random plans.
const sharedID = plan.PathID(6)

// byShared returns a plan whose endpoints and ingress IPs have a host on PathShared, if that is one of their paths.
func byShared(r *rand.Rand, d plan.DataPlane) plan.DataPlane {
	there := pathIDs(&d)[sharedID]
	via := func(of ...plan.PathID) (mac plan.MAC) {
		if there && slices.Contains(of, sharedID) {
			mac = plan.MAC{2, 0, 0, 0, 1, byte(r.IntN(3))}
		}
		return mac
	}
	endpoints, ingress := slices.Clone(d.Endpoints.Slice()), slices.Clone(d.Ingress.Slice())
	for i, e := range endpoints {
		endpoints[i].Via = via(e.Path, e.Kept.Path)
	}
	for i, in := range ingress {
		ingress[i].Via = via(in.Stray)
	}
	d.Endpoints, d.Ingress = sorted.Of(endpoints...), sorted.Of(ingress...)
	return d
}

// anyPlan makes the parts of a random plan.
type anyPlan struct {
	*rand.Rand
	networks, steered []plan.PathID
}

// paths adds some of six paths: by a network, or to another node.
func (a *anyPlan) paths(d *plan.DataPlane) {
	for id := plan.PathID(1); id <= 6; id++ {
		switch p := (plan.Path{ID: id, Table: 1000 + uint32(id)}); {
		case id == 1:
			p.Key = plan.PathKey{Kind: plan.PathNetwork, Name: "default"}
			d.Paths = append(d.Paths, p)
		case a.IntN(4) == 0:
		case id <= 3:
			p.Key = plan.PathKey{Kind: plan.PathNetwork, Name: fmt.Sprintf("net-%d", id)}
			p.Devices = []string{fmt.Sprintf("eth-%d", id), fmt.Sprintf("vrf-%d", id)}
			a.networks = append(a.networks, id)
			d.Paths = append(d.Paths, p)
			for _, device := range p.Devices {
				d.Uplinks = append(d.Uplinks, plan.Uplink{Device: device, Path: id, Nodes: a.IntN(4) == 0})
			}
		case id == sharedID:
			p.Key = plan.PathKey{Kind: plan.PathShared, Name: "tunnel"}
			p.Devices, p.Tunneled = []string{"egressway"}, true
			a.steered = append(a.steered, id)
			d.Paths = append(d.Paths, p)
		default:
			p.Key = plan.PathKey{Kind: plan.PathSteer, Name: fmt.Sprintf("node-%d", id)}
			p.Devices, p.Tunneled = []string{"egressway"}, a.IntN(2) == 0
			a.steered = append(a.steered, id)
			d.Paths = append(d.Paths, p)
		}
	}
}

func (a *anyPlan) path(ids ...plan.PathID) plan.PathID {
	if len(ids) == 0 {
		return 0
	}
	return ids[a.IntN(len(ids))]
}

// address returns an address by the format of its family.
func address(v6 bool, four, six string, n int) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf(six, n))
	}
	return netip.MustParseAddr(fmt.Sprintf(four, n))
}

func (a *anyPlan) endpoint(n int) plan.Endpoint {
	v6 := n%2 == 1
	e := plan.Endpoint{
		Addr: address(v6, "10.244.1.%d", "fd44:1::%d", n), Path: a.path(slices.Concat(a.networks, a.steered, []plan.PathID{0, 1})...),
	}
	sources := []netip.Addr{
		{}, e.Addr, address(v6, "203.0.113.%d", "2001:db8:203::%d", a.IntN(3)), address(v6, "203.0.113.%d", "2001:db8:203::%d", a.IntN(3)),
	}
	e.Source = sources[a.IntN(len(sources))]
	if a.IntN(2) == 0 {
		e.Kept = plan.Way{Path: plan.PathID(a.IntN(7)), Source: sources[a.IntN(len(sources))]}
	}
	return e
}

func (a *anyPlan) ingress(countSent bool) sorted.List[plan.IngressIP] {
	var all []plan.IngressIP
	for range a.IntN(6) {
		i := plan.IngressIP{
			Addr: address(a.IntN(2) == 0, "203.0.113.%d", "2001:db8:203::%d", a.IntN(3)), Path: a.path(a.networks...),
			Resumed: a.IntN(2) == 0, Handed: a.IntN(2) == 0, Counted: countSent && a.IntN(2) == 0,
		}
		if a.IntN(2) == 0 {
			i.Stray = a.path(a.steered...)
		}
		all = append(all, i)
	}
	return sorted.Of(all...)
}

// onLink returns addresses for which the node answers on a link.
func (a *anyPlan) onLink() (list sorted.List[plan.OnLink]) {
	for range a.IntN(4) {
		one := plan.OnLink{Device: fmt.Sprintf("eth-%d", a.IntN(2))}
		one.Addr = address(a.IntN(2) == 0, "203.0.113.%d", "2001:db8:203::%d", a.IntN(3))
		list = list.With([]plan.OnLink{one}, nil)
	}
	return list
}

// let returns the pods that a plan with hold lets send.
func (a *anyPlan) let(hold bool) (list sorted.List[plan.Address]) {
	for range a.IntN(20) {
		if n := a.IntN(30); hold {
			list = list.With([]plan.Address{{Addr: address(n%2 == 1, "10.244.9.%d", "fd44:9::%d", n)}}, nil)
		}
	}
	return list
}

// classes returns some of six classes of EgressQoS; the first one has all values.
func (a *anyPlan) classes() (all []qos.Class) {
	for n := range 6 {
		if a.IntN(2) == 0 {
			continue
		}
		c, v6 := qos.Class{ID: qos.ClassID(n * 1000)}, n%2 == 1
		values := 1 + n
		if n == 0 {
			values = 64
		}
		for i := range values {
			from, to := address(v6, "203.0.%d.0", "2001:db8:%d::", i), address(v6, "203.0.%d.255", "2001:db8:%d:ffff::", i)
			if i+1 == values { // to the end of the address space
				to = cluster.LastAddr(netip.PrefixFrom(from, 0))
			}
			c.Ranges = append(c.Ranges, qos.Range{First: from, Last: to, DSCP: uint8(i)})
		}
		all = append(all, c)
	}
	return all
}

// marked returns pods that have these classes.
func (a *anyPlan) marked(classes []qos.Class) (list sorted.List[qos.Marked]) {
	for _, c := range classes {
		for range a.IntN(5) {
			m := qos.Marked{Addr: address(c.IPv6(), "10.244.1.%d", "fd44:1::%d", a.IntN(30)), Class: c.ID}
			list = list.With([]qos.Marked{m}, nil)
		}
	}
	return list
}

// policies returns some of six policies, with a content that may differ from a former policy of the same id.
func (a *anyPlan) policies() (all []firewall.Policy) {
	for n := range 6 {
		if a.IntN(2) == 0 {
			continue
		}
		p, v6 := firewall.Policy{ID: firewall.PolicyID(1 + n*1000)}, n%2 == 1
		for range 1 + a.IntN(2) {
			var s firewall.Stretch
			for i := range 1 + a.IntN(4) {
				s.Ranges = append(s.Ranges, firewall.Range{
					First: address(v6, "203.0.%d.0", "2001:db8:%d::", i), Last: address(v6, "203.0.%d.255", "2001:db8:%d:ffff::", i),
					Outcome: firewall.Outcome(1 + a.IntN(4)),
				})
			}
			for _, other := range []firewall.Outcome{firewall.Deny, firewall.Undecided} {
				s.Ports = append(s.Ports, firewall.Ports{
					Otherwise: other,
					Allow:     []cluster.FirewallPort{{Protocol: 6, Number: uint16(80 + a.IntN(3))}, {Protocol: 17, Number: 53}},
				})
			}
			p.Stretches = append(p.Stretches, s)
		}
		if a.IntN(2) == 0 {
			names := firewall.Stretch{Names: []string{"*.shop.example", "www.example.com"}, IPv6: v6}
			names.Named = firewall.Deny + firewall.Outcome(a.IntN(2))
			names.Ports = p.Stretches[0].Ports[1:]
			p.Stretches = append(p.Stretches, names)
		}
		all = append(all, p)
	}
	return all
}

// firewalled returns pods that have these policies.
func (a *anyPlan) firewalled(policies []firewall.Policy) (list sorted.List[firewall.Firewalled]) {
	for i := range policies {
		for range a.IntN(5) {
			f := firewall.Firewalled{
				Addr:   address(policies[i].IPv6(), "10.244.9.%d", "fd44:9::%d", a.IntN(30)),
				Policy: policies[i].ID, Asks: policies[i].HasNames(),
			}
			list = list.With([]firewall.Firewalled{f}, nil)
		}
	}
	return list
}

// prefixes adds prefixes of the cluster, of pods and of guests.
func (a *anyPlan) prefixes(d *plan.DataPlane) {
	for _, text := range []string{"10.244.0.0/16", "10.96.0.0/12", "255.255.255.255/32", "fd44::/16", "ff00::/8"} {
		p := netip.MustParsePrefix(text)
		if a.IntN(3) > 0 {
			d.Cluster = append(d.Cluster, p)
		}
		if len(d.Policies) > 0 && a.IntN(2) == 0 {
			d.Inside = append(d.Inside, p)
		}
		if a.IntN(3) == 0 {
			d.Pods, d.Guests = append(d.Pods, p), append(d.Guests, p)
		}
	}
}

// withAddressesOf returns a plan with the endpoints and the ingress IPs of d whose paths it has.
func (a *anyPlan) withAddressesOf(fixed plan.DataPlane, d *plan.DataPlane) plan.DataPlane {
	stands := pathIDs(&fixed)
	fixed.Endpoints, fixed.Ingress = sorted.List[plan.Endpoint]{}, sorted.List[plan.IngressIP]{}
	fixed.Let, fixed.Marked, fixed.Firewalled = a.let(fixed.Hold), a.marked(fixed.QoS), a.firewalled(fixed.Policies)
	fixed.OnLink = a.onLink()
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
