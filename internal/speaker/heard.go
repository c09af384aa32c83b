package speaker

import (
	"maps"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// heard is the state that a speaker reported. Its parts are replaced, never modified.
type heard struct {
	sessions []bgp.Session
	learned  routes
	nodes    []bfd.Session
}

// routes maps each network to its learned routes.
type routes map[string]sorted.List[plan.Route]

func (r routes) list() []plan.NetworkRoutes {
	all := make([]plan.NetworkRoutes, 0, len(r))
	for _, network := range slices.Sorted(maps.Keys(r)) {
		all = append(all, plan.NetworkRoutes{Network: network, Routes: r[network]})
	}
	return all
}

// with returns a copy of r with other routes of one network.
func (r routes) with(network string, now sorted.List[plan.Route]) routes {
	next := make(routes, len(r)+1)
	maps.Copy(next, r)
	next[network] = now
	return next
}

func (r routes) without(network string) routes {
	next := maps.Clone(r)
	delete(next, network)
	return next
}

// sameHopsMost limits the number of entries of sameHops.
const sameHopsMost = 4096

// sameHops makes routes with an equal single next hop share one slice: nearly all routes of a peer have the same next
// hop.
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

// down returns h as it is after the speaker is gone: no session is up. Learned routes stay, because only the next
// speaker can report whether peers still announce them.
func (h heard) down(why string) heard {
	sessions := slices.Clone(h.sessions)
	for i, s := range sessions {
		if s.Up {
			s.Since = time.Now()
		}
		s.Up, s.State, s.Families, s.Sent, s.BFD, s.LastError = false, "idle", nil, nil, "", why
		s.Received, s.Accepted, s.Announced = 0, 0, 0
		sessions[i] = s
	}
	h.sessions = sessions
	return h
}

// worthAPass reports whether sessions differ in more than their route counts.
func worthAPass(before, after []bgp.Session) bool {
	return !slices.EqualFunc(before, after, func(a, b bgp.Session) bool {
		return a.Network == b.Network && a.Peer == b.Peer && a.Address == b.Address && a.ASN == b.ASN && a.State == b.State &&
			a.Up == b.Up && a.Since.Equal(b.Since) && a.BFD == b.BFD && a.BFDSlowed == b.BFDSlowed && a.Unheard == b.Unheard &&
			a.LastError == b.LastError && sameRoutes(&a, &b)
	})
}

// sameRoutes reports whether two states of a session exchange routes of the same families, whatever their number.
func sameRoutes(a, b *bgp.Session) bool {
	return slices.Equal(a.Families, b.Families) && slices.Equal(a.Sent, b.Sent) &&
		(a.Received > 0) == (b.Received > 0) && (a.Accepted > 0) == (b.Accepted > 0) && (a.Announced > 0) == (b.Announced > 0)
}
