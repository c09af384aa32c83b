package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

const mainTable = 254 // RT_TABLE_MAIN

// learnedMetric leaves an operator's own routes in front of those that peers tell, as FRR's distance of 20 does.
const learnedMetric = 20

// vrfFloorMetric is the metric of the unreachable default route of a VRF we make, the kernel's own advice
// (Documentation/networking/vrf.rst): a lookup in the VRF must not fall through to the main table.
const vrfFloorMetric = 4278198272

// Build is the plan: what this node should be, and what is wrong with which object. A bad object is a Problem of that
// object alone.
func Build(s Snapshot) (*NodePlan, []cluster.Problem) {
	s.Facts.Links = slices.Clone(s.Facts.Links)
	slices.SortFunc(s.Facts.Links, func(x, y Link) int { return compareStrings(x.Name, y.Name) })
	b := &builder{
		Snapshot: s,
		marks:    Marks{Mask: s.Config.Marks.Mask, Priority: s.Config.Marks.RulePriority},
		plan:     &NodePlan{Node: s.Node},
		owner:    map[netip.Addr]cluster.Key{},
		ingress:  map[netip.Addr]ingressOwner{},
		nodeIPs:  map[netip.Addr]string{},
		peers:    map[netip.Addr]string{},
	}
	b.readNodes()
	b.readNetworks()
	services := b.readServices()
	b.findTargets(services)
	b.allotPaths()
	b.steer()
	b.selectEndpoints(services)
	b.needRoutes()
	b.dataPlane(services)
	b.rules()
	b.routes()
	b.speakers(services)
	slices.SortFunc(b.problems, func(x, y cluster.Problem) int {
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Object, y.Object), cmp.Compare(x.Field, y.Field),
			cmp.Compare(x.Value, y.Value), cmp.Compare(x.Reason, y.Reason), cmp.Compare(x.Message, y.Message))
	})
	return b.plan, slices.Compact(b.problems)
}

// builder carries what the steps of Build share.
type builder struct {
	Snapshot
	marks    Marks
	plan     *NodePlan
	problems []cluster.Problem

	networks   []*network
	byName     map[string]*network
	paths      map[PathKey]PathID
	targets    []*target
	hosts      map[string]*steering // by node, of those steered to
	nodeIPs    map[netip.Addr]string
	clusterIPs map[netip.Addr]cluster.Key
	inside     []netip.Prefix             // pods' and Services' ranges
	owner      map[netip.Addr]cluster.Key // whose endpoint an address is
	ingress    map[netip.Addr]ingressOwner
	peers      map[netip.Addr]string // the network whose peer it is
}

type ingressOwner struct {
	key     cluster.Key
	network string
}

func (b *builder) problem(kind, object, field, value string, reason cluster.Reason, format string, args ...any) {
	b.problems = append(b.problems, cluster.Problem{
		Kind: kind, Object: object, Field: field, Value: value, Reason: reason, Message: fmt.Sprintf(format, args...),
	})
}

// ipvsDevice is where kube-proxy binds the addresses of Services in its IPVS mode: they do not become the node's.
const ipvsDevice = "kube-ipvs0"

func (b *builder) readNodes() {
	inside := slices.Clone(b.Objects.ServiceCIDRs)
	for _, name := range sortedKeys(b.Objects.Nodes) {
		n := b.Objects.Nodes[name]
		for _, a := range n.Addresses {
			b.nodeIPs[a] = name
		}
		inside = append(inside, n.PodCIDRs...)
	}
	b.inside = minimal(inside)
	for _, l := range b.Facts.Links {
		if l.Name == ipvsDevice {
			continue
		}
		for _, p := range l.Addrs {
			b.nodeIPs[p.Addr()] = b.Node
		}
	}
	b.clusterIPs = map[netip.Addr]cluster.Key{}
	for k, s := range b.Objects.Services {
		for _, a := range s.ClusterIPs {
			if old, taken := b.clusterIPs[a]; !taken || k.Compare(old) < 0 {
				b.clusterIPs[a] = k
			}
		}
	}
}

// allotPaths gives every network and every node steered to a path id, keeping those in force: live packets and
// connections carry them. Ids for paths that are not needed, only of use, are given last and taken back first.
func (b *builder) allotPaths() {
	var want, unlisted, useful []PathKey
	for _, n := range b.networks {
		switch k := (PathKey{PathNetwork, n.name}); {
		case n.listed:
			want = append(want, k)
		case n.usable:
			unlisted = append(unlisted, k)
		}
	}
	for _, t := range b.targets {
		if t.needed {
			want = append(want, PathKey{PathSteer, t.node})
		} else {
			useful = append(useful, PathKey{PathSteer, t.node})
		}
	}
	want = append(want, unlisted...) // last: whoever writes objects can make many up
	b.paths = map[PathKey]PathID{}
	taken, inForce := map[PathID]bool{}, map[PathID]bool{}
	for _, id := range b.Facts.Paths {
		inForce[id] = true
	}
	for _, k := range slices.Concat(want, useful) {
		if id := b.Facts.Paths[k]; id > 0 && id <= b.marks.MaxPath() && !taken[id] {
			b.paths[k], taken[id] = id, true
		}
	}
	free := func() PathID {
		// An id that was given up a moment ago may still stand in a connection's mark: use it last.
		for _, fresh := range []bool{true, false} {
			for id := PathID(1); id <= b.marks.MaxPath(); id++ {
				if !taken[id] && (!fresh || !inForce[id]) {
					return id
				}
			}
		}
		return 0
	}
	for _, k := range want {
		if b.paths[k] != 0 {
			continue
		}
		id := free()
		for i := len(useful) - 1; i >= 0 && id == 0; i-- {
			id = b.paths[useful[i]]
			delete(b.paths, useful[i])
		}
		if id == 0 {
			b.problem("Config", "marks.mask", "", fmt.Sprintf("%#x", b.marks.Mask), ReasonPathsExhausted,
				"%d networks and hosts need a path id each but only %d fit: %s %s is not served, widen the mask", len(want), b.marks.MaxPath(), k.Kind, k.Name)
			if k.Kind == PathNetwork {
				b.byName[k.Name].usable = false
			}
			continue
		}
		b.paths[k], taken[id] = id, true
	}
	for _, k := range useful {
		if id := free(); b.paths[k] == 0 && id != 0 {
			b.paths[k], taken[id] = id, true
		}
	}
}

// rules are few and constant: one a path, whatever the number of endpoints.
func (b *builder) rules() {
	m, base := b.marks, b.marks.Priority
	add := func(r Rule) { b.plan.Rules = append(b.plan.Rules, r) }
	add(Rule{Priority: base, Mark: m.Cluster(), Mask: m.Mask, Table: mainTable})
	for _, p := range b.plan.DataPlane.Paths {
		if p.Table != 0 {
			add(Rule{Priority: base + 1, Mark: m.Egress(p.ID), Mask: m.Mask, Table: p.Table})
		}
	}
	// What found no route above must not fall through to the tables below.
	add(Rule{Priority: base + 98, Mark: m.Cluster(), Mask: m.Mask, Unreachable: true})
	add(Rule{Priority: base + 99, Mark: m.EgressBit(), Mask: m.EgressBit(), Unreachable: true})
}

func (b *builder) routes() {
	add := func(r Route) { b.plan.Routes = append(b.plan.Routes, r) }
	for _, n := range b.networks {
		if n.create {
			for _, any := range []netip.Prefix{anyIPv4, anyIPv6} {
				add(Route{Table: n.table, Dst: any, Metric: vrfFloorMetric, Unreachable: true})
			}
		}
	}
	for _, l := range b.Learned {
		n := b.byName[l.Network]
		if n == nil || !n.usable {
			continue
		}
		for _, r := range l.Routes {
			r.Table, r.Metric = n.table, learnedMetric
			add(r)
		}
	}
	for _, host := range sortedKeys(b.hosts) {
		for _, r := range b.hosts[host].routes {
			add(r)
		}
	}
	slices.SortFunc(b.plan.Routes, func(x, y Route) int {
		return cmp.Or(cmp.Compare(x.Table, y.Table), comparePrefix(x.Dst, y.Dst), cmp.Compare(x.Metric, y.Metric))
	})
}

var (
	anyIPv4 = netip.MustParsePrefix("0.0.0.0/0")
	anyIPv6 = netip.MustParsePrefix("::/0")
)

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// noPath is what becomes of a selected pod of network n, which may be nil, while there is no path for it.
func (b *builder) noPath(n *network) config.NoPath {
	if n != nil && n.onNoPath != config.NoPathDefault {
		return n.onNoPath
	}
	return b.Config.OnNoPath
}
