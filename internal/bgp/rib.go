package bgp

import (
	"iter"
	"net/netip"
	"slices"
	"sync"
)

// rib holds the routes that peers announce, as GoBGP's events report them. GoBGP's own tables hold the same routes, but a
// lookup there costs far more. Its methods may be called concurrently.
type rib struct {
	mu     sync.RWMutex
	byPeer map[netip.Addr]map[netip.Prefix]entry // without empty maps
	last   *candidate                            // that was set last
}

// entry is a route of one peer.
type entry struct {
	*candidate      // of all routes that were announced together; never modified
	kept       bool // since its peer restarts gracefully
}

// set records a route that a peer announces.
func (r *rib) set(peer netip.Addr, prefix netip.Prefix, c candidate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || *r.last != c {
		shared := c
		r.last = &shared
	}
	routes := r.byPeer[peer]
	if routes == nil {
		if r.byPeer == nil {
			r.byPeer = map[netip.Addr]map[netip.Prefix]entry{}
		}
		routes = map[netip.Prefix]entry{}
		r.byPeer[peer] = routes
	}
	routes[prefix] = entry{candidate: r.last}
}

// remove records that a peer does not announce a prefix any more.
func (r *rib) remove(peer netip.Addr, prefix netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byPeer[peer], prefix)
	r.tidy(peer)
}

// keep records that a peer restarts gracefully: its routes stay until it announces them again, or has announced all others.
func (r *rib) keep(peer netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for prefix, e := range r.byPeer[peer] {
		e.kept = true
		r.byPeer[peer][prefix] = e
	}
}

// drop removes the routes of a peer that match, and reports whether there were any.
func (r *rib) drop(peer netip.Addr, match func(entry) bool) (dropped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for prefix, e := range r.byPeer[peer] {
		if match(e) {
			delete(r.byPeer[peer], prefix)
			dropped = true
		}
	}
	r.tidy(peer)
	return dropped
}

// has reports whether a peer announces routes, or announced some that are kept.
func (r *rib) has(peer netip.Addr) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.byPeer[peer]) > 0
}

// tidy releases the map of a peer without routes. The caller holds r.mu.
func (r *rib) tidy(peer netip.Addr) {
	if routes, ok := r.byPeer[peer]; ok && len(routes) == 0 {
		delete(r.byPeer, peer)
	}
}

// of iterates over the peers that announce a prefix, with their routes to it. The loop must not call other methods of r.
func (r *rib) of(prefix netip.Prefix) iter.Seq2[netip.Addr, entry] {
	return func(yield func(netip.Addr, entry) bool) {
		r.mu.RLock()
		defer r.mu.RUnlock()
		for peer, routes := range r.byPeer {
			if e, ok := routes[prefix]; ok && !yield(peer, e) {
				return
			}
		}
	}
}

// prefixes returns all announced prefixes, sorted.
func (r *rib) prefixes() []netip.Prefix {
	r.mu.RLock()
	most := 0
	for _, routes := range r.byPeer {
		most += len(routes)
	}
	all := make([]netip.Prefix, 0, most)
	for _, routes := range r.byPeer {
		for prefix := range routes {
			all = append(all, prefix)
		}
	}
	r.mu.RUnlock()
	slices.SortFunc(all, comparePrefixes)
	return slices.Compact(all)
}
