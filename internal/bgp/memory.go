package bgp

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

const (
	// lookAtMemoryEvery is how often memory use is checked. A malicious peer fills about 150 MiB in a second.
	lookAtMemoryEvery = 250 * time.Millisecond
	// weighEvery is the shortest time between two estimates of the peers' memory, while memory grows by less than
	// weighGrowth.
	weighEvery  = time.Second
	weighGrowth = 16 << 20
	// loud is how many UPDATEs a peer may send while memory is scarce before it is blamed for the UPDATEs that GoBGP
	// has queued. A router that sends its table sends fewer, and a long queue comes from many more.
	loud = 2000
	// firstLapse and lastLapse are the shortest and the longest time for which a session that was ended for memory
	// stays down.
	firstLapse = 15 * time.Second
	lastLapse  = time.Hour
)

// peerKey identifies a session of any network.
type peerKey struct {
	network string
	address netip.Addr
}

// GuardMemory keeps the memory of peers below most bytes, until ctx ends. Each peer may use an equal share, and more
// while there is room. If there is none left, it ends the session of the peer that exceeds its share most, for a while;
// a peer within its share keeps its session.
func (s *Speakers) GuardMemory(ctx context.Context, most uint64) {
	tick := time.NewTicker(lookAtMemoryEvery)
	defer tick.Stop()
	g := memoryGuard{speakers: s, most: most}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		g.look(ctx)
	}
}

// inMemory returns the bytes in use after the last garbage collection.
func inMemory() uint64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return live[0].Value.Uint64()
}

// memoryGuard is the state of GuardMemory between two checks.
type memoryGuard struct {
	speakers *Speakers
	most     uint64
	before   map[peerKey]uint64 // UPDATEs received when memory became scarce
	weighed  time.Time          // when peers were weighed last
	then     uint64             // memory in use at that time
}

// look ends a session if too much memory is in use.
func (g *memoryGuard) look(ctx context.Context) {
	live := inMemory()
	if live > g.most && g.justWeighed(live) {
		return
	}
	if live > g.most {
		debug.FreeOSMemory() // the routes of an ended session may be garbage by now
		live = inMemory()
	}
	if live <= g.most {
		g.before = nil
		return
	}
	g.then = live
	g.relieve(ctx, live)
	g.weighed = time.Now()
}

// justWeighed reports whether peers were weighed a moment ago, and memory has hardly grown since.
func (g *memoryGuard) justWeighed(live uint64) bool {
	return time.Since(g.weighed) < weighEvery && live < g.then+weighGrowth
}

// relieve weighs the peers, and ends the session with the heaviest.
func (g *memoryGuard) relieve(ctx context.Context, live uint64) {
	s := g.speakers
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.weigh(ctx)
	if g.before == nil {
		g.before = updatesOf(all)
	}
	key, why, found := heaviest(all, g.before, g.most)
	if !found {
		return
	}
	sp := s.byNetwork[key.network]
	sp.log.Warn("memory is scarce: ending the session of a peer for a while",
		"peer", key.address, "reason", why, "routes", all[key].routes, "held", all[key].held, "bytes", live, "most", g.most)
	if err := sp.pause(ctx, key.address, why, time.Now()); err != nil {
		sp.log.Warn("cannot end the session", "peer", key.address, "error", err)
	}
	g.before = nil
}

// weight is a peer's use of memory.
type weight struct {
	held    uint64 // bytes of its routes
	routes  int
	updates uint64 // received from it
	message int    // most bytes of a message from it
}

const (
	holdsTooMuch = "the peer's routes took more than its share of memory"
	sendsTooMuch = "the peer sent UPDATEs faster than they could be read"
)

// heaviest returns the peer whose session should be ended. If routes fill at least half of most, this is the peer that
// holds most, provided that it exceeds its share. Otherwise the UPDATEs that GoBGP has queued fill memory, and it is
// the peer that sent most of them.
func heaviest(all map[peerKey]weight, before map[peerKey]uint64, most uint64) (heaviest peerKey, why string, found bool) {
	var held, sent uint64
	for key, w := range all {
		held += w.held
		sent += w.since(before[key])
	}
	if held >= most/2 {
		return holdsMost(all, min(held, most))
	}
	return sendsMost(all, before, sent)
}

// since returns how many UPDATEs were received after the first before ones. A new session counts from 0 again.
func (w weight) since(before uint64) uint64 { return w.updates - min(before, w.updates) }

func updatesOf(all map[peerKey]weight) map[peerKey]uint64 {
	updates := make(map[peerKey]uint64, len(all))
	for key, w := range all {
		updates[key] = w.updates
	}
	return updates
}

// holdsMost returns the peer that holds most, if that is more than an equal share of held bytes.
func holdsMost(all map[peerKey]weight, held uint64) (heaviest peerKey, why string, found bool) {
	n, largest := uint64(len(all)), uint64(0)
	for key, w := range all {
		if w.held*n > held && w.held > largest {
			heaviest, why, largest = key, holdsTooMuch, w.held
		}
	}
	return heaviest, why, largest > 0
}

// sendsMost returns the peer that has sent most UPDATEs since before, if that is loud and an equal share of sent ones.
func sendsMost(all map[peerKey]weight, before map[peerKey]uint64, sent uint64) (heaviest peerKey, why string, found bool) {
	n, largest := uint64(len(all)), uint64(0)
	for key, w := range all {
		if since := w.since(before[key]); since > loud && since*n >= sent && since > largest {
			heaviest, why, largest = key, sendsTooMuch, since
		}
	}
	return heaviest, why, largest > 0
}

// weigh weighs the peers of all networks, except those whose sessions were ended. The caller holds s.mu.
func (s *Speakers) weigh(ctx context.Context) map[peerKey]weight {
	all := map[peerKey]weight{}
	for network, sp := range s.byNetwork {
		sp.recounted = time.Time{}
		if err := sp.limit(ctx); err != nil {
			sp.log.Warn("cannot enforce maxPrefixes", "error", err)
		}
		for addr, w := range sp.unended() {
			sp.weigh(addr, &w)
			all[peerKey{network, addr}] = w
		}
	}
	return all
}

// unended returns the peers whose sessions were not ended, without the weight of their routes.
func (s *speaker) unended() map[netip.Addr]weight {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[netip.Addr]weight{}
	for addr, st := range s.states {
		if !st.overLimit {
			all[addr] = weight{updates: st.updates, message: st.longestMessage()}
		}
	}
	return all
}

func (st *sessionState) longestMessage() int {
	if st.extendedMessages {
		return bgp.BGP_MAX_EXTENDED_MESSAGE_LENGTH
	}
	return bgp.BGP_MAX_MESSAGE_LENGTH
}

// weigh estimates the bytes that a peer's routes use.
func (s *speaker) weigh(addr netip.Addr, w *weight) {
	shared := map[bgp.PathAttributeInterface]struct{}{}
	for _, family := range []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC} {
		sent := apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_ADJ_IN, Name: addr.String(), Family: family}
		if err := s.server.ListPath(sent, func(_ bgp.NLRI, paths []*apiutil.Path) {
			for _, p := range paths {
				w.routes++
				w.held += routeTakes + attributesTake(p.Attrs, w.message, shared)
			}
		}); err != nil {
			s.log.Debug("cannot list the routes of a BGP peer", "peer", addr, "error", err)
		}
	}
}

// attributesTake estimates the memory that a route's attributes use, in bytes. It counts large ones once, and keeps them in
// shared: routes from one message share its attributes.
func attributesTake(attrs []bgp.PathAttributeInterface, message int, shared map[bgp.PathAttributeInterface]struct{}) (sum uint64) {
	for _, a := range attrs {
		takes := attributeTakes(a, message)
		if takes > routeTakes {
			if _, known := shared[a]; known {
				continue
			}
			shared[a] = struct{}{}
		}
		sum += uint64(takes)
	}
	return sum
}

// routeTakes is the memory that a route uses besides its attributes, in bytes.
const routeTakes = 768

// attributeTakes estimates the memory that an attribute uses, in bytes, from the values that GoBGP decodes it into.
// Attributes that GoBGP does not decode, or only partly, are slices of the received message, and keep all of it in
// memory.
func attributeTakes(a bgp.PathAttributeInterface, message int) int {
	const itself = 96
	switch a := a.(type) {
	case *bgp.PathAttributeOrigin, *bgp.PathAttributeNextHop, *bgp.PathAttributeMultiExitDisc, *bgp.PathAttributeLocalPref,
		*bgp.PathAttributeAtomicAggregate, *bgp.PathAttributeAggregator, *bgp.PathAttributeAs4Aggregator, *bgp.PathAttributeOriginatorId:
		return itself
	case *bgp.PathAttributeMpReachNLRI:
		return 2 * itself
	case *bgp.PathAttributeAsPath:
		return itself + segmentsTake(a.Value)
	case *bgp.PathAttributeAs4Path:
		return itself + segmentsTake(a.Value)
	case *bgp.PathAttributeCommunities:
		return itself + 4*len(a.Value)
	case *bgp.PathAttributeClusterList:
		return itself + 24*len(a.Value)
	case *bgp.PathAttributeExtendedCommunities:
		return itself + 64*len(a.Value)
	case *bgp.PathAttributeLargeCommunities:
		return itself + 32*len(a.Values)
	}
	return message + 32*min(a.Len(), math.MaxUint16)
}

// segmentsTake estimates the memory that the segments of an AS path use, in bytes.
func segmentsTake[S bgp.AsPathParamInterface](segments []S) (sum int) {
	for _, segment := range segments {
		sum += 80 + 4*len(segment.GetAS())
	}
	return sum
}

// close ends a session until one of its parameters changes.
func (s *speaker) close(ctx context.Context, addr netip.Addr, why string) error {
	s.mu.Lock()
	if st := s.states[addr]; st != nil {
		st.overLimit, st.lastError = true, why
	}
	s.changed((*outdated).addAll)
	s.mu.Unlock()
	if err := s.server.DisablePeer(ctx, &api.DisablePeerRequest{Address: addr.String(), Communication: why}); err != nil {
		return fmt.Errorf("end the session with peer %s: %w", addr, err)
	}
	return nil
}

// lapse is the time for which a session that was ended for memory stays down.
type lapse struct {
	wait  time.Duration
	until time.Time
}

// next returns the lapse that begins now: twice as long, unless the peer has behaved for lastLapse.
func (l lapse) next(now time.Time) lapse {
	wait := min(max(2*l.wait, firstLapse), lastLapse)
	if now.Sub(l.until) > lastLapse {
		wait = firstLapse
	}
	return lapse{wait, now.Add(wait)}
}

// pause ends a session for a while, longer each time.
func (s *speaker) pause(ctx context.Context, addr netip.Addr, why string, now time.Time) error {
	s.mu.Lock()
	l := s.lapses[addr].next(now)
	s.lapses[addr] = l
	if st := s.states[addr]; st != nil {
		st.lapses = l.until
	}
	s.mu.Unlock()
	time.AfterFunc(l.wait, s.hint.Apply)
	return s.close(ctx, addr, fmt.Sprintf("%s; next attempt after %s", why, l.wait))
}
