package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// recountEvery is how often all routes that peers send are counted, at least.
const recountEvery = 10 * time.Second

const tooManyPrefixes = "the peer sent more routes than maxPrefixes allows"

// loopsPerRoute is how many routes that went through our AS a peer may send for each other one. A router may send back to a
// node all that nodes announce, as FRR does where a peer group has several members; they take memory, and nothing else.
const loopsPerRoute = 10

// received counts what a peer sends. GoBGP would keep to a limit itself, but for that it goes through all routes of the peer at
// each of its UPDATEs.
type received struct {
	routes tally
	loops  tally // apart from these: what went through our AS (RFC 4271, 9.1.2)
}

// tally counts routes, per family.
type tally struct {
	counted perFamily // when they were counted last
	since   perFamily // in UPDATEs since: as many as this may have come, of which some were there
}

func (t tally) total() int { return t.counted[0] + t.counted[1] }

// over says whether one family may have more than a limit, of those counted and those that came since.
func (t tally) over(limit int) bool {
	return max(t.counted[0]+t.since[0], t.counted[1]+t.since[1]) > limit
}

// over says whether a peer may have sent more than it may; 0: it may send any number.
func (r received) over(maxPrefixes int) bool {
	return maxPrefixes > 0 && (r.routes.over(maxPrefixes) || r.loops.over(loopsPerRoute*maxPrefixes))
}

// counted is what was there when it was counted last.
func (r received) counted() received {
	r.routes.since, r.loops.since = perFamily{}, perFamily{}
	return r
}

// noteReceived counts paths that a peer sent, and asks for Apply where they may be too many. s.mu is held.
func (s *speaker) noteReceived(paths []*apiutil.Path) {
	for _, p := range paths {
		st := s.states[p.PeerAddress]
		if st == nil || p.Withdrawal || p.Nlri == nil {
			continue
		}
		t := &st.received.routes
		if throughAS(p, s.desired.ASN) {
			t = &st.received.loops
		}
		t.since[familyOf(p.Family.Afi())]++
		if !st.suspect && !st.overLimit && st.received.over(int(s.peers[p.PeerAddress].MaxPrefixes)) {
			st.suspect = true
			s.hint.Apply()
		}
	}
}

func familyOf(afi uint16) int {
	if afi == bgp.AFI_IP6 {
		return 1
	}
	return 0
}

// sent is how many routes peers may have sent, at most, that are still there. s.mu is held.
func (s *speaker) sent() (n int) {
	for _, st := range s.states {
		for _, t := range []tally{st.received.routes, st.received.loops} {
			n += t.total() + t.since[0] + t.since[1]
		}
	}
	return n
}

// limit ends the sessions with peers that send more routes of a family than they may. It stays so until the session's
// configuration is another one.
func (s *speaker) limit(ctx context.Context) error {
	// GoBGP keeps routes of which no event tells: those whose AS path holds our AS more than ownASNMost times.
	all := time.Since(s.recounted) > recountEvery
	if all {
		s.recounted = time.Now()
	}
	s.mu.Lock()
	var suspects []netip.Addr
	for addr, st := range s.states {
		if st.suspect || all && st.state == bgp.BGP_FSM_ESTABLISHED {
			suspects = append(suspects, addr)
			st.suspect = false
		}
	}
	s.mu.Unlock()
	for _, addr := range suspects {
		s.countOf(addr.String())
		s.mu.Lock()
		st, most := s.states[addr], int(s.peers[addr].MaxPrefixes)
		over := st != nil && !st.overLimit && st.received.counted().over(most)
		s.mu.Unlock()
		if !over {
			continue
		}
		if err := s.close(ctx, addr, tooManyPrefixes); err != nil {
			return fmt.Errorf("it sends more than %d routes: %w", most, err)
		}
	}
	return nil
}

// count counts the routes that peers send, where that may have changed.
func (s *speaker) count() {
	s.mu.Lock()
	uncounted := s.uncounted
	s.uncounted = false
	s.mu.Unlock()
	if uncounted {
		s.countOf("")
	}
}

// countOf counts the routes that one peer sends; empty: all of them.
func (s *speaker) countOf(address string) {
	all := map[netip.Addr]perFamily{}
	// GoBGP counts what it sends by making all of it once more: that is known without it.
	if err := s.server.ListPeer(context.Background(), &api.ListPeerRequest{Address: address}, func(p *api.Peer) {
		addr, err := netip.ParseAddr(p.GetState().GetNeighborAddress())
		if err != nil {
			return
		}
		var sent perFamily
		for _, family := range p.AfiSafis {
			afi := family.GetConfig().GetFamily().GetAfi()
			sent[familyOf(uint16(afi))] += int(family.GetState().GetReceived())
		}
		all[addr] = sent
		s.mu.Lock()
		defer s.mu.Unlock()
		if st := s.states[addr]; st != nil {
			st.updates = p.GetState().GetMessages().GetReceived().GetUpdate()
		}
	}); err != nil {
		s.log.Debug("cannot list BGP peers", "error", err)
	}
	for addr, sent := range all {
		s.noteCount(addr, sent)
	}
}

// noteCount takes in how many routes a peer sends. Where they are more than it may send, those that went through our AS are told
// apart, which takes a look at each of them.
func (s *speaker) noteCount(addr netip.Addr, sent perFamily) {
	s.mu.Lock()
	st, most := s.states[addr], int(s.peers[addr].MaxPrefixes)
	if st == nil {
		s.mu.Unlock()
		return
	}
	had, asn := st.received, s.desired.ASN
	st.received.routes.since, st.received.loops.since = perFamily{}, perFamily{}
	s.mu.Unlock()
	var now received
	for i, family := range []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC} {
		switch {
		case most == 0 || sent[i] <= most:
			now.routes.counted[i] = sent[i]
		case had.routes.since[i]+had.loops.since[i] == 0 && had.routes.counted[i]+had.loops.counted[i] == sent[i]:
			now.routes.counted[i], now.loops.counted[i] = had.routes.counted[i], had.loops.counted[i]
		default:
			now.routes.counted[i], now.loops.counted[i] = s.tellApart(addr, family, asn)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.received.routes.counted, st.received.loops.counted = now.routes.counted, now.loops.counted
}

// tellApart counts the routes that a peer sends, and apart from them those that went through an AS.
func (s *speaker) tellApart(addr netip.Addr, family bgp.Family, asn uint32) (routes, loops int) {
	if err := s.server.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_ADJ_IN, Name: addr.String(), Family: family},
		func(_ bgp.NLRI, paths []*apiutil.Path) {
			for _, p := range paths {
				if throughAS(p, asn) {
					loops++
				} else {
					routes++
				}
			}
		}); err != nil {
		s.log.Debug("cannot list what a BGP peer sends", "peer", addr, "error", err)
	}
	return routes, loops
}
