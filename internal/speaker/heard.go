package speaker

import (
	"maps"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/plan"
)

// heard is what a speaker told. What is in it is replaced, never changed.
type heard struct {
	sessions []bgp.Session
	learned  routes
	nodes    []bfd.Session
}

// routes are the learned ones of each network, sorted.
type routes map[string][]plan.Route

func (r routes) list() []plan.NetworkRoutes {
	all := make([]plan.NetworkRoutes, 0, len(r))
	for _, network := range slices.Sorted(maps.Keys(r)) {
		all = append(all, plan.NetworkRoutes{Network: network, Routes: r[network]})
	}
	return all
}

// set makes a copy in which one network has other routes.
func (r routes) set(network string, list []plan.Route) routes {
	next := make(routes, len(r)+1)
	maps.Copy(next, r)
	next[network] = list
	return next
}

func (r routes) without(network string) routes {
	next := maps.Clone(r)
	delete(next, network)
	return next
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
			a.Up == b.Up && a.Since.Equal(b.Since) && slices.Equal(a.Families, b.Families) && a.BFD == b.BFD && a.LastError == b.LastError &&
			(a.Received > 0) == (b.Received > 0) && (a.Accepted > 0) == (b.Accepted > 0) && (a.Announced > 0) == (b.Announced > 0)
	})
}
