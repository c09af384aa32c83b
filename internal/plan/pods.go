package plan

import (
	"cmp"
	"iter"
	"maps"
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
// With an EgressFirewall in the cluster it does so even without entries: the address of a Pod that is not known yet waits, since
// the Pod's namespace may deny connections.

// holds reports whether packets of unknown addresses wait.
func (s *Snapshot) holds() bool {
	return s.Config != nil && (len(s.Config.Hold) > 0 || s.Config.Firewall.Hold && s.Objects.EgressFirewalls.Len() > 0)
}

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

// none reports whether no Pod has the address.
func (o owners) none() bool { return o.free == 0 && len(o.bound) == 0 }

// letGo reports whether packets of an address pass: a Pod has it, and no selected Pod does.
func (o owners) letGo() bool { return o.free > 0 && len(o.bound) == 0 }

func entriesOf(c *config.Config) (all []entry) {
	for _, h := range c.Hold {
		all = append(all, entry{selectorOf(h.Namespaces), selectorOf(h.Pods)})
	}
	return all
}

// selectorOf parses a selector of the configuration; nil selects everything.
func selectorOf(s *metav1.LabelSelector) labels.Selector {
	if s == nil {
		return labels.Everything()
	}
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil { // config.Load has refused it
		return labels.Everything()
	}
	return parsed
}

// take replaces the former count of a Pod by its present one, and calls touch for each address of either.
func (h *holding) take(r *pass, key cluster.Key, touch func(netip.Addr)) {
	if was, had := h.pods[key]; had {
		h.countAll(key, was, -1, touch)
		delete(h.pods, key)
	}
	p, exists := r.Objects.Pods.Get(key)
	if !exists || !r.holdsAddresses(&p) || len(p.Addresses) == 0 {
		return
	}
	now := ofPod{fit(p.Addresses), h.entryOf(&p, r.Objects.Namespaces.At(key.Namespace).Labels)}
	h.pods[key] = now
	h.countAll(key, now, 1, touch)
}

// entryOf returns the first entry that selects a Pod of a namespace with these labels; -1: none does.
func (h *holding) entryOf(p *cluster.Pod, namespace labels.Set) int {
	return slices.IndexFunc(h.entries, func(e entry) bool {
		return e.namespaces.Matches(namespace) && e.pods.Matches(labels.Set(p.Labels))
	})
}

// countAll counts a Pod at its addresses n times, and calls touch for each of them.
func (h *holding) countAll(key cluster.Key, p ofPod, n int, touch func(netip.Addr)) {
	for _, a := range p.addresses {
		h.count(a, key, p.entry, n)
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
	if h.at[a] = o; o.none() {
		delete(h.at, a)
	}
}

// planHold plans which pods' packets to the outside wait. opened holds the changes of the open endpoints.
func (r *pass) planHold(next *NodePlan, opened *edit[Address]) {
	h, d := &r.holding, &next.DataPlane
	if !r.holds() || !r.Objects.PodsKnown {
		*h = holding{open: h.open}
		h.openEndpoints(r, opened)
		d.Hold, d.Let, next.Waiting = false, sorted.List[Address]{}, sorted.List[Waiting]{}
		return
	}
	whole := r.fromScratch || !h.on
	if whole {
		*h = holding{on: true, entries: entriesOf(r.Config), pods: map[cluster.Key]ofPod{}, at: map[netip.Addr]owners{}, open: h.open}
	}
	e := holdEdits{whole: whole}
	for a := range h.follow(r, opened, whole) {
		e.look(h, a)
	}
	d.Hold = true
	d.Let, _ = e.let.to(d.Let, whole)
	next.Waiting, _ = e.waiting.to(next.Waiting, whole)
}

// holdEdits holds the changes to the addresses that pass and to those that wait. If whole, they set all of them.
type holdEdits struct {
	whole   bool
	let     edit[Address]
	waiting edit[Waiting]
}

// look plans whether an address passes, and whether it waits.
func (e *holdEdits) look(h *holding, a netip.Addr) {
	o := h.at[a]
	if _, open := h.open.Get(Address{a}); open || o.letGo() {
		e.let.put(Address{a})
	} else if !e.whole {
		e.let.drop(Address{a})
	}
	if len(o.bound) > 0 {
		e.waiting.put(Waiting{a, o.bound[0], h.pods[o.bound[0]].entry})
	} else if !e.whole {
		e.waiting.drop(Waiting{Addr: a})
	}
}

// follow counts the Pods and the open endpoints that changed, or all of them if whole, and returns their addresses.
func (h *holding) follow(r *pass, opened *edit[Address], whole bool) map[netip.Addr]bool {
	touched := map[netip.Addr]bool{}
	touch := func(a netip.Addr) { touched[a] = true }
	for a := range h.openEndpoints(r, opened) {
		touch(a.Addr)
	}
	keys := maps.Keys(r.changed.Pods)
	if whole {
		keys = r.Objects.Pods.Keys()
		for a := range h.open.All() {
			touch(a.Addr)
		}
	}
	for key := range keys {
		h.take(r, key, touch)
	}
	return touched
}

// openEndpoints applies the changes of the open endpoints, and returns the addresses that differ.
func (h *holding) openEndpoints(r *pass, opened *edit[Address]) map[Address]bool {
	before := h.open
	if !r.holds() {
		h.open = sorted.List[Address]{}
	} else {
		h.open, _ = opened.to(h.open, r.whole())
	}
	differ := map[Address]bool{}
	for x, y := range before.Changes(h.open) {
		differ[*cmp.Or(x, y)] = true
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
		h.readAll(r, maps.Keys(changed), note)
		return
	}
	h.known = r.Objects.PodsKnown
	h.readAll(r, maps.Keys(h.of), note)
	h.readAll(r, r.Objects.Pods.Keys(), note)
}

// readAll reads the Pods with the keys.
func (h *homes) readAll(r *pass, keys iter.Seq[cluster.Key], note func(netip.Addr)) {
	for key := range keys {
		h.read(r, key, note)
	}
}

// read updates the addresses of one Pod, and calls note for each of them before it changes.
func (h *homes) read(r *pass, key cluster.Key, note func(netip.Addr)) {
	was, now := h.of[key], r.addressesOf(key)
	if slices.Equal(was, now) {
		return
	}
	for _, a := range was {
		note(a)
		h.leave(a, key)
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

// addressesOf returns the addresses that a Pod has here, if the source follows Pods.
func (r *pass) addressesOf(key cluster.Key) []netip.Addr {
	p, exists := r.Objects.Pods.Get(key)
	if !exists || !r.Objects.PodsKnown || !r.holdsAddresses(&p) {
		return nil
	}
	return fit(p.Addresses)
}

// leave removes a Pod from an address.
func (h *homes) leave(a netip.Addr, key cluster.Key) {
	if pods := slices.DeleteFunc(h.at[a], func(pod cluster.Key) bool { return pod == key }); len(pods) > 0 {
		h.at[a] = pods
	} else {
		delete(h.at, a)
	}
}

// holdsAddresses reports whether a Pod has addresses of its own on this node, and has not ended.
func (r *pass) holdsAddresses(p *cluster.Pod) bool {
	return p.Node == r.Node && p.HoldsAddresses()
}
