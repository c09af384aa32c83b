package plan

import (
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/sorted"
)

// No object says of a new pod that it will be an endpoint. So with entries of hold, this node lets pods' packets to the
// outside pass by source address: those of Pods that no entry selects. All other addresses wait until they are endpoints.

// holding tracks which addresses of this node's pods pass, and which wait.
type holding struct {
	on      bool
	entries []entry
	pods    map[cluster.Key]ofPod
	at      map[netip.Addr]owners
	// open holds endpoints of this node that are treated as if they were not selected: they need not wait either.
	open sorted.List[Address]
}

// entry is an entry of config.Config.Hold with its selectors parsed.
type entry struct{ namespaces, pods labels.Selector }

// ofPod holds a Pod's addresses and its entry, as holding counts them.
type ofPod struct {
	addresses []netip.Addr
	entry     int // the first entry that selects it; -1: none does
}

// owners are the Pods that have an address. There are several while the source has not reported the end of the first.
type owners struct {
	free  int           // Pods that no entry selects
	bound []cluster.Key // Pods that an entry selects, sorted
}

// letGo reports whether packets of an address pass: a Pod has it, and no selected Pod does.
func (o owners) letGo() bool { return o.free > 0 && len(o.bound) == 0 }

func entriesOf(c *config.Config) (all []entry) {
	selector := func(s *metav1.LabelSelector) labels.Selector {
		if s == nil {
			return labels.Everything()
		}
		parsed, err := metav1.LabelSelectorAsSelector(s)
		if err != nil { // config.Load has refused it
			return labels.Everything()
		}
		return parsed
	}
	for _, h := range c.Hold {
		all = append(all, entry{selector(h.Namespaces), selector(h.Pods)})
	}
	return all
}

// take replaces the former count of a Pod by its present one, and calls touch for each address of either.
func (h *holding) take(r *pass, key cluster.Key, touch func(netip.Addr)) {
	if was, had := h.pods[key]; had {
		for _, a := range was.addresses {
			h.count(a, key, was.entry, -1)
			touch(a)
		}
		delete(h.pods, key)
	}
	p, exists := r.Objects.Pods.Get(key)
	if !exists || !r.holdsAddresses(&p) || len(p.Addresses) == 0 {
		return
	}
	now := ofPod{fit(p.Addresses), -1}
	namespace := labels.Set(r.Objects.Namespaces.At(key.Namespace).Labels)
	now.entry = slices.IndexFunc(h.entries, func(e entry) bool {
		return e.namespaces.Matches(namespace) && e.pods.Matches(labels.Set(p.Labels))
	})
	h.pods[key] = now
	for _, a := range now.addresses {
		h.count(a, key, now.entry, 1)
		touch(a)
	}
}

func (h *holding) count(a netip.Addr, key cluster.Key, by, n int) {
	o := h.at[a]
	i, _ := slices.BinarySearchFunc(o.bound, key, cluster.Key.Compare)
	switch {
	case by < 0:
		o.free += n
	case n > 0:
		o.bound = slices.Insert(o.bound, i, key)
	default:
		o.bound = slices.Delete(o.bound, i, i+1)
	}
	if h.at[a] = o; o.free == 0 && len(o.bound) == 0 {
		delete(h.at, a)
	}
}

// planHold plans which pods' packets to the outside wait. opened holds the changes of the open endpoints.
func (r *pass) planHold(next *NodePlan, opened *edit[Address]) {
	h, d := &r.holding, &next.DataPlane
	if len(r.Config.Hold) == 0 || !r.Objects.PodsKnown {
		*h = holding{open: h.open}
		h.openEndpoints(r, opened)
		d.Hold, d.Let, next.Waiting = false, sorted.List[Address]{}, sorted.List[Waiting]{}
		return
	}
	whole := r.fromScratch || !h.on
	if whole {
		*h = holding{on: true, entries: entriesOf(r.Config), pods: map[cluster.Key]ofPod{}, at: map[netip.Addr]owners{}, open: h.open}
	}
	var let edit[Address]
	var waiting edit[Waiting]
	for a := range h.follow(r, opened, whole) {
		o := h.at[a]
		if _, open := h.open.Get(Address{a}); open || o.letGo() {
			let.put(Address{a})
		} else if !whole {
			let.drop(Address{a})
		}
		if len(o.bound) > 0 {
			pod := o.bound[0]
			waiting.put(Waiting{a, pod, h.pods[pod].entry})
		} else if !whole {
			waiting.drop(Waiting{Addr: a})
		}
	}
	d.Hold = true
	d.Let, _ = let.to(d.Let, whole)
	next.Waiting, _ = waiting.to(next.Waiting, whole)
}

// follow counts the Pods and the open endpoints that changed, or all of them if whole, and returns their addresses.
func (h *holding) follow(r *pass, opened *edit[Address], whole bool) map[netip.Addr]bool {
	touched := map[netip.Addr]bool{}
	touch := func(a netip.Addr) { touched[a] = true }
	for a := range h.openEndpoints(r, opened) {
		touch(a.Addr)
	}
	if !whole {
		for key := range r.podsChanged {
			h.take(r, key, touch)
		}
		return touched
	}
	for key := range r.Objects.Pods.Keys() {
		h.take(r, key, touch)
	}
	for a := range h.open.All() {
		touch(a.Addr)
	}
	return touched
}

// openEndpoints applies the changes of the open endpoints, and returns the addresses that differ.
func (h *holding) openEndpoints(r *pass, opened *edit[Address]) map[Address]bool {
	before := h.open
	switch {
	case len(r.Config.Hold) == 0:
		h.open = sorted.List[Address]{}
	default:
		h.open, _ = opened.to(h.open, r.whole())
	}
	differ := map[Address]bool{}
	for x, y := range before.Changes(h.open) {
		if x != nil {
			differ[*x] = true
		} else {
			differ[*y] = true
		}
	}
	return differ
}

// homes maps addresses to the Pods of this node that have them, while a source follows Pods.
type homes struct {
	known bool
	of    map[cluster.Key][]netip.Addr
	at    map[netip.Addr][]cluster.Key // sorted
}

// stranger is a Pod that has a claimed address, where no Pod of the claiming namespace has it.
type stranger struct {
	pod cluster.Key
	is  bool
}

func (h *homes) strange(a netip.Addr, namespace string) stranger {
	pods := h.at[a]
	if len(pods) == 0 || slices.ContainsFunc(pods, func(pod cluster.Key) bool { return pod.Namespace == namespace }) {
		return stranger{}
	}
	return stranger{pods[0], true}
}

// take updates homes from the Pods of a snapshot, in which those in changed differ. It calls note for each address before
// the address changes.
func (h *homes) take(r *pass, changed map[cluster.Key]bool, note func(netip.Addr)) {
	if h.of == nil {
		h.of, h.at = map[cluster.Key][]netip.Addr{}, map[netip.Addr][]cluster.Key{}
	}
	if h.known == r.Objects.PodsKnown && !r.fromScratch {
		for key := range changed {
			h.read(r, key, note)
		}
		return
	}
	h.known = r.Objects.PodsKnown
	for key := range h.of {
		h.read(r, key, note)
	}
	for key := range r.Objects.Pods.Keys() {
		h.read(r, key, note)
	}
}

// read updates the addresses of one Pod, and calls note for each of them before it changes.
func (h *homes) read(r *pass, key cluster.Key, note func(netip.Addr)) {
	var now []netip.Addr
	if p, exists := r.Objects.Pods.Get(key); exists && r.Objects.PodsKnown && r.holdsAddresses(&p) {
		now = fit(p.Addresses)
	}
	was := h.of[key]
	if slices.Equal(was, now) {
		return
	}
	for _, a := range was {
		note(a)
		if pods := slices.DeleteFunc(h.at[a], func(pod cluster.Key) bool { return pod == key }); len(pods) > 0 {
			h.at[a] = pods
		} else {
			delete(h.at, a)
		}
	}
	for _, a := range now {
		note(a)
		i, _ := slices.BinarySearchFunc(h.at[a], key, cluster.Key.Compare)
		h.at[a] = slices.Insert(h.at[a], i, key)
	}
	if delete(h.of, key); len(now) > 0 {
		h.of[key] = now
	}
}

// holdsAddresses reports whether a Pod has addresses of its own on this node, and has not ended.
func (r *pass) holdsAddresses(p *cluster.Pod) bool {
	return p.Node == r.Node && !p.HostNetwork && !p.Ended
}
