package plan

import (
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
)

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
	set := func(key cluster.Key) {
		var now []netip.Addr
		if p, exists := r.Objects.Pods.Get(key); exists && r.Objects.PodsKnown && p.Node == r.Node && !p.HostNetwork && !p.Ended {
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
	if h.of == nil {
		h.of, h.at = map[cluster.Key][]netip.Addr{}, map[netip.Addr][]cluster.Key{}
	}
	if h.known == r.Objects.PodsKnown && !r.anew {
		for key := range changed {
			set(key)
		}
		return
	}
	h.known = r.Objects.PodsKnown
	for key := range h.of {
		set(key)
	}
	for key := range r.Objects.Pods.Keys() {
		set(key)
	}
}
