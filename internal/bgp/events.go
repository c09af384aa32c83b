package bgp

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// peerChanged records a change of a session. GoBGP calls it, and waits for it.
func (s *speaker) peerChanged(ev *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	if ev.Type == apiutil.PEER_EVENT_END_OF_INIT {
		return
	}
	now := ev.Peer.State
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.peers[now.NeighborAddress]
	if !ok {
		return // a late event of a session that was removed
	}
	st := s.stateOf(now.NeighborAddress, at)
	before, lasted := st.state, at.Sub(st.since)
	if now.SessionState != before {
		st.state, st.since = now.SessionState, at
	}
	if st.ended != nil { // by removePeer: not a loss to report
		if before == bgp.BGP_FSM_ESTABLISHED && now.SessionState != before {
			close(st.ended)
		}
		return
	}
	s.noteOpening(now, st, before, lasted)
	was, is := before == bgp.BGP_FSM_ESTABLISHED, now.SessionState == bgp.BGP_FSM_ESTABLISHED
	switch {
	case is && !was:
		s.noteEstablished(p, st, now)
		s.forgetFormer(now.NeighborAddress, st.families)
	case !is:
		s.noteDown(p, st, was, now)
	}
	if was && graceful(now) {
		// Its routes stay but become stale, which no event reports.
		s.rib.keep(now.NeighborAddress)
		s.changed((*outdated).addAll)
	}
	if was || is {
		s.uncounted = true
		s.hint.Apply()
	}
}

// graceful reports whether a session was lost whose peer restarts gracefully.
func graceful(now apiutil.PeerState) bool {
	return now.DisconnectReason == api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART
}

// stateOf returns the state of a session, which begins at a time unless it is known. The caller holds s.mu.
func (s *speaker) stateOf(addr netip.Addr, at time.Time) *sessionState {
	st := s.states[addr]
	if st == nil {
		st = &sessionState{since: at}
		s.states[addr] = st
	}
	return st
}

// forgetFormer removes routes of a peer's former session that the new one, which carries some families, cannot confirm. There are
// others than those kept if GoBGP reported an UPDATE of a session after it had removed that. The caller holds s.mu.
func (s *speaker) forgetFormer(addr netip.Addr, families []config.Family) {
	if s.rib.drop(addr, func(e entry) bool { return !e.kept || !slices.Contains(families, familyName(e.family)) }) {
		s.changed((*outdated).addAll)
	}
}

// noteEstablished records what the peer of a new session offered. The caller holds s.mu.
func (s *speaker) noteEstablished(p plan.Peer, st *sessionState, now apiutil.PeerState) {
	st.lastError, st.resetFor, st.asn, st.refusedLogged = "", "", now.PeerASN, false
	st.clock, s.lastASN[now.NeighborAddress] = s.clock(), now.PeerASN
	st.extendedMessages = slices.ContainsFunc(now.RemoteCap, func(c bgp.ParameterCapabilityInterface) bool {
		return c.Code() == bgp.BGP_CAP_EXTENDED_MESSAGE
	})
	if extended := extendedNextHop(now.RemoteCap); extended != st.extended || extended == st.plain {
		st.extended, st.plain = extended, !extended
		s.changed((*outdated).addAll) // routes of the previous session, which stay while the peer restarts gracefully
	}
	st.unanswered, st.counted = unanswered{}, false
	st.families = bothSpeak(now.LocalCap, now.RemoteCap)
	s.log.Info("BGP session established", "peer", nameOf(p), "asn", now.PeerASN)
}

// noteDown records why a session is not established. was: it has just been lost. The caller holds s.mu.
func (s *speaker) noteDown(p plan.Peer, st *sessionState, was bool, now apiutil.PeerState) {
	if !st.overLimit && now.DisconnectMessage != "" && now.SessionState == bgp.BGP_FSM_IDLE {
		st.lastError = cmp.Or(st.resetFor, now.DisconnectMessage)
	}
	if was {
		// GoBGP 4.8.0 keeps a reset that came too late for this session, and would end the next one by it.
		if st.resetFor != "" && !st.overLimit && now.DisconnectReason != api.PeerState_DISCONNECT_REASON_NOTIFICATION_SENT {
			st.restart = true
		}
		st.asn, st.families, st.received = 0, nil, received{}
		s.log.Warn("BGP session lost", "peer", nameOf(p), "reason", st.lastError)
	}
}

// offersExtended reports whether a peer offered IPv6 next hops for IPv4 when its session was last established, and whether it ever was.
func (s *speaker) offersExtended(addr netip.Addr) (offered, established bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.states[addr]
	if st == nil {
		return false, false
	}
	return st.extended, st.extended || st.plain
}

// remoteASN returns the AS of an established peer, 0 for others.
func (s *speaker) remoteASN(addr netip.Addr) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.states[addr]; st != nil {
		return st.asn
	}
	return 0
}

// lastError returns why a session was lost.
func (s *speaker) lastError(addr netip.Addr) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.states[addr]; st != nil {
		return st.lastError
	}
	return ""
}

// sessions returns the state of every configured session. Without count, the numbers of received routes may be as old
// as the last call with count, which costs more.
func (s *speaker) sessions(count bool) []Session {
	if count {
		s.count()
	}
	watched, fault := s.guards.sessions(s.identity.boundTo())
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
			e.ASN = p.LocalASN(s.desired.ASN)
		}
		if st := s.states[addr]; st != nil {
			s.describe(&e, p, st)
			if p.BFD != nil {
				e.describeBFD(watched, fault)
			}
		}
		e.Unheard = s.unheard[nameOf(p)]
		e.LastError = cmp.Or(s.faults[nameOf(p)], e.LastError, s.learned.counts[addr].fault())
		out = append(out, e)
	}
	return out
}

// describe adds the state of a session to its report. The caller holds s.mu.
func (s *speaker) describe(e *Session, p plan.Peer, st *sessionState) {
	e.State, e.Since, e.Families, e.Accepted = stateName(st.state), st.since, st.families, s.learned.counts[e.Address].passed
	e.ASN = cmp.Or(st.asn, e.ASN)
	e.LastError, e.Ended = st.lastError, st.overLimit
	established := st.state == bgp.BGP_FSM_ESTABLISHED
	e.Up = established && !st.overLimit
	if e.Up {
		s.describeUp(e, p, st)
	}
	if established {
		e.Received = st.received.routes.total() + st.received.loops.total()
		e.Sent = s.sends[e.Address].among(st.families)
		e.Announced = s.announcements.in(e.Sent)
	}
}

// describeUp adds the reason why an established session is of no use, or lacks a family. The caller holds s.mu.
func (s *speaker) describeUp(e *Session, p plan.Peer, st *sessionState) {
	if p.DynamicASN == config.DynamicExternal && st.asn == p.LocalASN(s.desired.ASN) {
		e.Up, e.LastError = false, "the peer is not external: its AS is ours"
		return
	}
	var lacking []string
	for i, family := range eachFamily {
		if s.announcements[i] > 0 && slices.Contains(st.families, family) {
			lacking = append(lacking, noNextHop(p, e.Address, st, family)...)
		}
	}
	e.LastError = cmp.Or(strings.Join(lacking, "; "), e.LastError)
}

// noNextHop returns why no address of ours can be the next hop of announcements of a family to the peer of an established session, or
// nil if one can.
func noNextHop(p plan.Peer, addr netip.Addr, st *sessionState, family config.Family) []string {
	link := "the interface whose addresses are announced to it"
	if device := cmp.Or(p.Device, p.Interface); device != "" {
		link = "interface " + device
	}
	own6 := p.Interface != "" || p.NextHop6.IsValid()
	switch over6 := p.Interface != "" || addr.Is6(); {
	case family == config.IPv6Unicast && !own6:
		return []string{"IPv6 is not announced to it: " + link + " has no global IPv6 address"}
	case family == config.IPv6Unicast || p.NextHop4.IsValid() || over6 && own6 && st.extended:
		return nil
	case over6 && st.plain:
		return []string{"IPv4 is not announced to it: it has not offered extended next hops (RFC 8950), and " +
			link + " has no IPv4 address"}
	}
	return []string{"IPv4 is not announced to it: " + link + " has no IPv4 address"}
}

// describeBFD adds the BFD session with the peer to the report, or the fault that keeps BFD from running.
func (e *Session) describeBFD(watched map[netip.Addr]bfd.Session, fault string) {
	e.BFD, e.BFDSlowed = bfd.Down.String(), 0
	if w, ok := watched[e.Address]; ok {
		e.BFD, e.BFDSlowed = w.State.String(), w.Slowed
	}
	if e.Up && fault != "" {
		e.LastError = fault
	}
}
