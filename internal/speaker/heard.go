package speaker

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// heard is what a speaker told. What is in it is replaced, never changed.
type heard struct {
	sessions []bgp.Session
	learned  routes
	nodes    []bfd.Session
}

// routes are the learned ones of each network.
type routes map[string]*networkRoutes

// networkRoutes are those of one network.
type networkRoutes struct {
	mu   sync.Mutex // guards what follows
	now  sorted.List[plan.Route]
	made []plan.Route // of now, once somebody asked; never written to
}

// list is what now holds, and makes the same slice until there is another one.
func (n *networkRoutes) list() []plan.Route {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.made == nil && n.now.Len() > 0 {
		n.made = n.now.Slice()
		n.now = sorted.Of(n.made...) // it is kept: there are not two of each route
	}
	return n.made
}

func (n *networkRoutes) current() sorted.List[plan.Route] {
	if n == nil {
		return sorted.List[plan.Route]{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

func (r routes) list() []plan.NetworkRoutes {
	all := make([]plan.NetworkRoutes, 0, len(r))
	for _, network := range slices.Sorted(maps.Keys(r)) {
		all = append(all, plan.NetworkRoutes{Network: network, Routes: r[network].list()})
	}
	return all
}

// changed makes a copy in which one network has other routes.
func (r routes) changed(network string, c listChange[plan.Route]) routes {
	next := make(routes, len(r)+1)
	maps.Copy(next, r)
	next[network] = &networkRoutes{now: applyIn(c, r[network].current(), routeTo)}
	return next
}

func (r routes) without(network string) routes {
	next := maps.Clone(r)
	delete(next, network)
	return next
}

// sameHopsMost bounds what is remembered.
const sameHopsMost = 4096

// sameHops has routes by the same next hop share it: nearly all routes of a peer have the same.
type sameHops map[plan.NextHop][]plan.NextHop

func (s *sameHops) one(hops []plan.NextHop) []plan.NextHop {
	if len(hops) != 1 {
		return hops
	}
	if same, ok := (*s)[hops[0]]; ok {
		return same
	}
	if *s == nil || len(*s) >= sameHopsMost {
		*s = sameHops{}
	}
	(*s)[hops[0]] = hops
	return hops
}

// down is what holds when the speaker is gone. Learned routes stay: whether peers still have them is not known before
// there is another speaker.
func (h heard) down(why string) heard {
	sessions := slices.Clone(h.sessions)
	for i, s := range sessions {
		if s.Up {
			s.Since = time.Now()
		}
		s.Up, s.State, s.Families, s.BFD, s.LastError = false, "idle", nil, "", why
		s.Received, s.Accepted, s.Announced = 0, 0, 0
		sessions[i] = s
	}
	h.sessions = sessions
	return h
}

// worthAPass says whether sessions differ in more than how many routes they carry.
func worthAPass(before, after []bgp.Session) bool {
	return !slices.EqualFunc(before, after, func(a, b bgp.Session) bool {
		return a.Network == b.Network && a.Peer == b.Peer && a.Address == b.Address && a.ASN == b.ASN && a.State == b.State &&
			a.Up == b.Up && a.Since.Equal(b.Since) && slices.Equal(a.Families, b.Families) && a.BFD == b.BFD && a.BFDSlowed == b.BFDSlowed && a.LastError == b.LastError &&
			(a.Received > 0) == (b.Received > 0) && (a.Accepted > 0) == (b.Accepted > 0) && (a.Announced > 0) == (b.Announced > 0)
	})
}
