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

// recountEvery is the longest time between two counts of all received routes.
const recountEvery = 10 * time.Second

const tooManyPrefixes = "the peer sent more routes than maxPrefixes allows"

// loopsPerRoute limits the routes through our own AS that a peer may send, as a multiple of its maxPrefixes. A router
// may send all announcements of all nodes back to each node, as FRR does if a peer group has several members; they cost
// only memory.
const loopsPerRoute = 10

// received counts the routes that a peer sends. GoBGP has a limit of its own, but goes through all routes of the peer
// on each UPDATE.
type received struct {
	routes tally
	loops  tally // separately: routes that went through our AS (RFC 4271, 9.1.2)
}

// tally counts routes, per family.
type tally struct {
	counted perFamily // at the last count
	before  perFamily // received in UPDATEs before that count
	all     perFamily // received in UPDATEs since the session began
}

func (t tally) total() int { return t.counted[0] + t.counted[1] }

// since returns how many routes were received after the last count: an upper bound, since some replace counted ones.
func (t tally) since(family int) int { return t.all[family] - t.before[family] }

// over reports whether the routes of one family may exceed limit, including those received since the last count.
func (t tally) over(limit int) bool {
	return max(t.counted[0]+t.since(0), t.counted[1]+t.since(1)) > limit
}

// over reports whether a peer may exceed maxPrefixes; 0: no limit.
func (r received) over(maxPrefixes int) bool {
	return maxPrefixes > 0 && (r.routes.over(maxPrefixes) || r.loops.over(loopsPerRoute*maxPrefixes))
}

// counted returns r as of the last count.
func (r received) counted() received {
	r.routes.before, r.loops.before = r.routes.all, r.loops.all
	return r
}

// noteRoute counts a path that a peer sent, and requests Apply if there may be too many. The caller holds s.mu.
func (s *speaker) noteRoute(addr netip.Addr, st *sessionState, c *candidate) {
	t := &st.received.routes
	if c.loops {
		t = &st.received.loops
	}
	t.all[familyOf(c.family.Afi())]++
	s.noteSuspect(addr, st)
}

// noteSuspect requests Apply if a peer may send too many routes. The caller holds s.mu.
func (s *speaker) noteSuspect(addr netip.Addr, st *sessionState) {
	if !st.suspect && !st.overLimit && st.received.over(int(s.peers[addr].MaxPrefixes)) {
		st.suspect = true
		s.hint.Apply()
	}
}

func familyOf(afi uint16) int {
	if afi == bgp.AFI_IP6 {
		return 1
	}
	return 0
}

// limit ends the sessions with peers that send more routes of a family than they may. They stay down until a parameter of
// the session changes: another filter would change nothing, as it comes after the limit.
func (s *speaker) limit(ctx context.Context) error {
	for _, addr := range s.suspects() {
		s.countOf(addr.String())
		most, over := s.exceeds(addr)
		if !over {
			continue
		}
		if err := s.close(ctx, addr, tooManyPrefixes); err != nil {
			return fmt.Errorf("it sends more than %d routes: %w", most, err)
		}
	}
	return nil
}

// suspects returns the peers whose routes must be counted, since they may be too many.
func (s *speaker) suspects() (suspects []netip.Addr) {
	// GoBGP keeps routes whose AS path contains our AS more than ownASNMost times, without an event.
	all := time.Since(s.recounted) > recountEvery
	if all {
		s.recounted = time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for addr, st := range s.states {
		if st.suspect || all && st.state == bgp.BGP_FSM_ESTABLISHED {
			suspects = append(suspects, addr)
			st.suspect = false
		}
	}
	return suspects
}

// exceeds reports whether a peer sent more than its maxPrefixes at the last count, and its session has not been ended yet.
func (s *speaker) exceeds(addr netip.Addr) (maxPrefixes int, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, most := s.states[addr], int(s.peers[addr].MaxPrefixes)
	return most, st != nil && !st.overLimit && st.received.counted().over(most)
}

// count counts the routes that peers send, if they may have changed since the last count.
func (s *speaker) count() {
	s.mu.Lock()
	uncounted := s.uncounted
	s.uncounted = false
	s.mu.Unlock()
	if uncounted {
		s.countOf("")
	}
}

// countOf counts the routes that one peer sends; empty: all peers.
func (s *speaker) countOf(address string) {
	all, before := map[netip.Addr]perFamily{}, map[netip.Addr]sessionState{}
	s.mu.Lock()
	for addr, st := range s.states {
		before[addr] = *st
	}
	s.mu.Unlock()
	// Don't ask for the number of announced routes: GoBGP would generate them all again, and s.announcements has the number.
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
			st.noteReceived(p.GetState().GetMessages().GetReceived(), s.announcements[0]+s.announcements[1])
		}
	}); err != nil {
		s.log.Debug("cannot list BGP peers", "error", err)
	}
	for addr, sent := range all {
		s.noteCount(addr, before[addr], sent)
	}
}

// noteReceived counts the UPDATEs that a peer made GoBGP queue: it queues all announcements again for each ROUTE-REFRESH, also for a peer
// that does not read them.
func (st *sessionState) noteReceived(m *api.Message, announcements int) {
	refreshes := m.GetRefresh()
	st.answers += (refreshes - min(st.refreshes, refreshes)) * uint64(max(announcements, 1)) //nolint:gosec // not negative
	st.refreshes = refreshes
	st.updates = m.GetUpdate() + st.answers
}

// noteCount records how many routes a peer sends, as counted after its session was in state had. If there are more than
// maxPrefixes, it counts those that went through our AS separately, which takes a scan of them all.
func (s *speaker) noteCount(addr netip.Addr, had sessionState, sent perFamily) {
	s.mu.Lock()
	peer := s.peers[addr]
	most, asn := int(peer.MaxPrefixes), peer.LocalASN(s.desired.ASN)
	s.mu.Unlock()
	routes, loops := had.received.routes, had.received.loops
	for i, family := range []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC} {
		switch {
		case most == 0 || sent[i] <= most:
			routes.counted[i], loops.counted[i] = sent[i], 0
		case routes.since(i)+loops.since(i) > 0 || routes.counted[i]+loops.counted[i] != sent[i]:
			routes.counted[i], loops.counted[i] = s.tellApart(addr, family, asn)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.states[addr]
	if st == nil || st.since != had.since {
		return // it has another session
	}
	r := &st.received
	r.routes.counted, r.routes.before = routes.counted, had.received.routes.all
	r.loops.counted, r.loops.before = loops.counted, had.received.loops.all
	s.noteSuspect(addr, st)
}

// tellApart counts the routes that a peer sends, and separately those that went through an AS.
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
		s.log.Debug("cannot list the routes of a BGP peer", "peer", addr, "error", err)
	}
	return routes, loops
}
