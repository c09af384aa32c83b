package flowlog

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

const (
	// keepFor is how long an address that an object lost still leads to the object: connections end after the change that ends
	// them.
	keepFor = 10 * time.Minute
	// mostKept limits the number of such addresses.
	mostKept = 100_000
)

// owners attributes connections to objects.
type owners struct {
	node      string
	networks  map[plan.PathID]string // names of networks by path, also of paths that are gone
	steers    map[plan.PathID]bool   // paths that lead to other nodes
	endpoints sorted.List[plan.Endpoint]
	rows      sorted.List[plan.Service]
	sources   memory[cluster.ID] // objects by the source addresses that their pods leave with
	pods      memory[member]     // pods by their addresses
	members   addresses          // of pods, by EgressService
	followed  addresses          // of pods, by Pod
}

// member is a pod of an EgressService, or a Pod that the source follows.
type member struct {
	of  cluster.Key // EgressService; empty: it is of no EgressService
	pod cluster.Key // without a name: not known
}

// addresses holds the members of each object, by their addresses.
type addresses map[cluster.Key]map[netip.Addr]member

func newOwners(node string) *owners {
	return &owners{
		node: node, networks: map[plan.PathID]string{}, steers: map[plan.PathID]bool{},
		sources: memory[cluster.ID]{at: map[netip.Addr][]dated[cluster.ID]{}}, pods: memory[member]{at: map[netip.Addr][]dated[member]{}},
		members: addresses{}, followed: addresses{},
	}
}

// follow updates the owners to a plan and its objects, as Log.Set describes.
func (o *owners) follow(objects cluster.Objects, changed cluster.Changed, former, p *plan.NodePlan, now time.Time) {
	for _, path := range p.DataPlane.Paths {
		delete(o.networks, path.ID)
		delete(o.steers, path.ID)
		if path.Key.Steers() {
			o.steers[path.ID] = true
		} else {
			o.networks[path.ID] = path.Key.Name
		}
	}
	var before sorted.List[plan.Service]
	if former != nil {
		before = former.Services
	}
	for was, is := range before.Changes(p.Services) {
		if was != nil {
			o.dropSources(was, now)
		}
		if is != nil {
			for _, a := range is.IngressIPs {
				o.sources.set(a, whole(is))
			}
		}
	}
	o.endpoints, o.rows = p.DataPlane.Endpoints, p.Services
	o.followPods(objects, changed, now)
	o.sources.sweep(now)
	o.pods.sweep(now)
}

func (o *owners) dropSources(was *plan.Service, now time.Time) {
	for _, a := range was.IngressIPs {
		o.sources.drop(a, whole(was), now)
	}
}

// whole returns the identity of a row's object.
func whole(s *plan.Service) cluster.ID { return s.Kind.ID(s.Key) }

// followPods updates the addresses of pods.
func (o *owners) followPods(objects cluster.Objects, changed cluster.Changed, now time.Time) {
	services, pods := changed.Of[cluster.KindEgressService], changed.Pods
	if changed.All {
		services, pods = keysOf(o.members, objects.EgressServices.Keys()), keysOf(o.followed, objects.Pods.Keys())
	}
	for key := range services {
		o.replace(o.members, key, membersOf(objects, key), now)
	}
	for key := range pods {
		at := map[netip.Addr]member{}
		if pod := objects.Pods.At(key); pod.HoldsAddresses() {
			for _, a := range pod.Addresses {
				at[a] = member{pod: key}
			}
		}
		o.replace(o.followed, key, at, now)
	}
}

// keysOf returns the keys of objects that are known, and of those that exist.
func keysOf(known addresses, exist iter.Seq[cluster.Key]) map[cluster.Key]bool {
	all := map[cluster.Key]bool{}
	for key := range known {
		all[key] = true
	}
	for key := range exist {
		all[key] = true
	}
	return all
}

// membersOf returns the pods of an EgressService; none: it does not exist.
func membersOf(objects cluster.Objects, key cluster.Key) map[netip.Addr]member {
	at := map[netip.Addr]member{}
	if _, selects := objects.EgressServices.Get(key); !selects {
		return at
	}
	for _, e := range objects.Endpoints.At(key) {
		if a, err := netip.ParseAddr(e.Address); err == nil {
			at[a] = member{of: key}
		}
	}
	return at
}

// replace replaces the members of an object.
func (o *owners) replace(of addresses, key cluster.Key, members map[netip.Addr]member, now time.Time) {
	was := of[key]
	for a, m := range was {
		if members[a] != m {
			o.pods.drop(a, m, now)
		}
	}
	for a, m := range members {
		if was[a] != m {
			o.pods.set(a, m)
		}
	}
	if delete(of, key); len(members) > 0 {
		of[key] = members
	}
}

// attribute adds to a line the network and the object by which the connection left. The source address decides which object; where
// several have it, or none, the pod's address does.
func (o *owners) attribute(l *line, r conntrack.Record) {
	if e, ok := o.endpoints.Get(plan.Endpoint{Addr: l.PodIP}); ok {
		l.PodNode = e.Node
	}
	l.Network = o.networks[r.Path]
	id, known := o.owner(l.SourceIP, l.PodIP)
	pod := o.podOf(l.PodIP, id.Key)
	l.Namespace, l.Pod = pod.Namespace, pod.Name
	if !known {
		return
	}
	l.Kind, l.Namespace, l.Name = id.Kind.String(), cmp.Or(id.Namespace, l.Namespace), id.Name
	for row := range o.rows.From(plan.Service{Kind: id.Kind, Key: id.Key}) {
		if whole(&row) != id {
			return
		}
		if slices.Contains(row.IngressIPs, l.SourceIP) || row.Masquerade() {
			l.Role = roleOf(row, o.node)
			return
		}
	}
}

// podOf returns the pod of an address, if it is of an object or of none; without a name: it is not known.
func (o *owners) podOf(a netip.Addr, of cluster.Key) (pod cluster.Key) {
	for _, m := range o.pods.at[a] {
		if m.value.pod.Name != "" && (m.value.of == cluster.Key{} || m.value.of == of) {
			return m.value.pod
		}
	}
	return pod
}

// owner returns the object by which a pod's connection left with a source.
func (o *owners) owner(source, pod netip.Addr) (id cluster.ID, known bool) {
	candidates := o.sources.at[source]
	if len(candidates) == 1 {
		return candidates[0].value, true
	}
	for _, m := range o.pods.at[pod] {
		if m.value.of.Name == "" {
			continue
		}
		of := cluster.KindEgressService.ID(m.value.of)
		if len(candidates) == 0 || slices.ContainsFunc(candidates, func(c dated[cluster.ID]) bool { return c.value == of }) {
			return of, true
		}
	}
	if len(candidates) > 0 {
		return candidates[0].value, true
	}
	return id, false
}

// roleOf returns the role of a node for a row of the plan.
func roleOf(s plan.Service, node string) string {
	switch node {
	case s.Host:
		return "host"
	case s.Standby:
		return "standby"
	}
	return ""
}

// memory maps addresses to values that have them, the present ones first, and for a while to those that had them, the last ones first.
type memory[V comparable] struct {
	at   map[netip.Addr][]dated[V]
	gone []departure[V] // in the order of time
}

type dated[V comparable] struct {
	value V
	gone  time.Time // zero: present
}

type departure[V comparable] struct {
	addr  netip.Addr
	value V
	at    time.Time
}

// set makes a value present at an address.
func (m *memory[V]) set(a netip.Addr, v V) {
	m.at[a] = append([]dated[V]{{value: v}}, m.without(a, func(d dated[V]) bool { return d.value == v })...)
}

// drop ends the presence of a value at an address.
func (m *memory[V]) drop(a netip.Addr, v V, now time.Time) {
	rest := m.without(a, func(d dated[V]) bool { return d.value == v })
	present := slices.IndexFunc(rest, func(d dated[V]) bool { return !d.gone.IsZero() })
	if present < 0 {
		present = len(rest)
	}
	m.at[a] = slices.Insert(rest, present, dated[V]{v, now})
	m.gone = append(m.gone, departure[V]{a, v, now})
}

// without returns the values at an address that do not match, in a new slice.
func (m *memory[V]) without(a netip.Addr, match func(dated[V]) bool) []dated[V] {
	return slices.DeleteFunc(slices.Clone(m.at[a]), match)
}

// sweep forgets values that have been gone for long, or that are too many.
func (m *memory[V]) sweep(now time.Time) {
	n := 0
	for ; n < len(m.gone) && (len(m.gone)-n > mostKept || now.Sub(m.gone[n].at) > keepFor); n++ {
		d := m.gone[n]
		rest := m.without(d.addr, func(o dated[V]) bool { return o.value == d.value && o.gone.Equal(d.at) })
		if m.at[d.addr] = rest; len(rest) == 0 {
			delete(m.at, d.addr)
		}
	}
	m.gone = slices.Delete(m.gone, 0, n)
}
