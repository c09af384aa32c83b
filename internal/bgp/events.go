package bgp

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// changed notes that the learned routes may be others now. It wakes once until somebody looks. s.mu is held.
func (s *speaker) changed() {
	if !s.dirty {
		s.dirty = true
		s.wake()
	}
}

// pathsChanged is called by GoBGP, which waits for it.
func (s *speaker) pathsChanged(paths []*apiutil.Path, _ time.Time) {
	if len(paths) > 0 && !slices.ContainsFunc(paths, func(p *apiutil.Path) bool { return p.PeerAddress.IsValid() }) {
		return // our own announcements
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed()
}

// peerChanged is called by GoBGP, which waits for it.
func (s *speaker) peerChanged(ev *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	if ev.Type == apiutil.PEER_EVENT_END_OF_INIT {
		return
	}
	now := ev.Peer.State
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.peers[now.NeighborAddress]
	if !ok {
		return // the last words of a session that was removed
	}
	st := s.states[now.NeighborAddress]
	if st == nil {
		st = &sessionState{since: at}
		s.states[now.NeighborAddress] = st
	}
	before := st.state
	if now.SessionState != before {
		st.state, st.since = now.SessionState, at
	}
	st.overLimit = now.AdminState == api.PeerState_ADMIN_STATE_PFX_CT
	s.noteOpening(now.NeighborAddress, before, now.SessionState)
	switch {
	case now.SessionState == bgp.BGP_FSM_ESTABLISHED && before != bgp.BGP_FSM_ESTABLISHED:
		st.lastError, st.asn = "", now.PeerASN
		st.families = bothSpeak(now.LocalCap, now.RemoteCap)
		s.log.Info("BGP session established", "peer", nameOf(p), "asn", now.PeerASN)
	case now.SessionState != bgp.BGP_FSM_ESTABLISHED:
		switch {
		case st.overLimit:
			st.lastError = "the peer sent more routes than maxPrefixes allows"
		case now.DisconnectMessage != "" && now.SessionState == bgp.BGP_FSM_IDLE:
			st.lastError = now.DisconnectMessage
		}
		if before == bgp.BGP_FSM_ESTABLISHED {
			st.asn, st.families = 0, nil
			s.log.Warn("BGP session lost", "peer", nameOf(p), "reason", st.lastError)
		}
	}
	if before == bgp.BGP_FSM_ESTABLISHED || now.SessionState == bgp.BGP_FSM_ESTABLISHED {
		s.dirty = true
		s.wake()
	}
}

// remoteASN is the AS of an established peer, 0 for others.
func (s *speaker) remoteASN(addr netip.Addr) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.states[addr]; st != nil {
		return st.asn
	}
	return 0
}

// learnedRoutes returns the routes to install.
func (s *speaker) learnedRoutes() []plan.Route {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dirty {
		s.dirty = false
		desired, peers := s.desired, s.peers
		over := map[netip.Addr]bool{}
		for addr, st := range s.states {
			over[addr] = st.overLimit
		}
		s.mu.Unlock()
		routes, passed := s.readRoutes(desired, peers, over)
		s.mu.Lock()
		s.learned, s.passed = routes, passed
	}
	return slices.Clone(s.learned)
}

// readRoutes computes the learned routes from GoBGP's tables. Import rules are GoBGP's policy too, but it knows neither
// refused ranges nor whether its policy is the plan's yet: they are applied here once more, where it counts.
func (s *speaker) readRoutes(d plan.Speaker, peers map[netip.Addr]plan.Peer, over map[netip.Addr]bool) ([]plan.Route, map[netip.Addr]int) {
	var routes []plan.Route
	passed := map[netip.Addr]int{}
	refusal := newRefusal(d.Refuse)
	own := func(p netip.Prefix) bool { _, ok := d.Announce.Get(plan.Announcement{Prefix: p}); return ok }
	for _, family := range []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC} {
		err := s.server.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family},
			func(nlri bgp.NLRI, paths []*apiutil.Path) {
				n, ok := nlri.(*bgp.IPAddrPrefix)
				if !ok || own(n.Prefix) || refusal.covers(n.Prefix) {
					return
				}
				var candidates []candidate
				for _, p := range paths {
					peer, known := peers[p.PeerAddress]
					if !known || over[p.PeerAddress] || !matches(peer.Receive, n.Prefix) {
						continue
					}
					if c, usable := newCandidate(p, d.ASN, peer); usable {
						candidates = append(candidates, c)
						passed[p.PeerAddress]++
					}
				}
				if hops := bestNextHops(candidates); len(hops) > 0 {
					routes = append(routes, plan.Route{Dst: n.Prefix, NextHops: hops})
				}
			})
		if err != nil {
			s.log.Debug("cannot list learned routes", "error", err)
		}
	}
	slices.SortFunc(routes, func(a, b plan.Route) int { return comparePrefixes(a.Dst, b.Dst) })
	return routes, passed
}

// sessions returns the state of every configured session.
func (s *speaker) sessions() []Session {
	s.learnedRoutes() // for the counts
	counts := map[netip.Addr]*api.Peer{}
	if err := s.server.ListPeer(context.Background(), &api.ListPeerRequest{EnableAdvertised: true}, func(p *api.Peer) {
		if addr, err := netip.ParseAddr(p.GetState().GetNeighborAddress()); err == nil {
			counts[addr] = p
		}
	}); err != nil {
		s.log.Debug("cannot list BGP peers", "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	spoken := map[string]netip.Addr{}
	for addr, p := range s.peers {
		spoken[nameOf(p)] = addr
	}
	out := make([]Session, 0, len(s.desired.Peers))
	for _, p := range s.desired.Peers {
		addr := spoken[nameOf(p)]
		e := Session{Network: s.network, Peer: nameOf(p), Address: addr, ASN: p.ASN, State: StateWaiting}
		if p.DynamicASN == config.DynamicInternal {
			e.ASN = s.desired.ASN
		}
		st := s.states[addr]
		if st != nil {
			e.State, e.Since, e.Families, e.Accepted = stateName(st.state), st.since, st.families, s.passed[addr]
			e.ASN = cmp.Or(st.asn, e.ASN)
			e.LastError = st.lastError
			e.Up = st.state == bgp.BGP_FSM_ESTABLISHED
			if e.Up && p.DynamicASN == config.DynamicExternal && st.asn == s.desired.ASN {
				e.Up, e.LastError = false, "the peer is not external: its AS is ours"
			}
		}
		e.LastError = cmp.Or(s.faults[nameOf(p)], e.LastError)
		if c := counts[addr]; c != nil {
			for _, family := range c.AfiSafis {
				e.Received += int(family.GetState().GetReceived())
				e.Announced += int(family.GetState().GetAdvertised())
			}
			if p.BFD != nil {
				e.BFD = bfdName(c.GetState().GetBfdState().GetSessionState())
			}
		}
		out = append(out, e)
	}
	return out
}

func bfdName(s api.BfdSessionState) string {
	switch s {
	case api.BfdSessionState_BFD_SESSION_STATE_UP:
		return "up"
	case api.BfdSessionState_BFD_SESSION_STATE_INIT:
		return "init"
	case api.BfdSessionState_BFD_SESSION_STATE_ADMIN_DOWN:
		return "admindown"
	}
	return "down"
}
