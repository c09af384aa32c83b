package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/osrg/gobgp/v4/api"
)

const (
	// lookAtMemoryEvery is how often memory is looked at. A peer that means harm fills about 150 MiB in a second.
	lookAtMemoryEvery = 250 * time.Millisecond
	// memoryMost is what may be in memory without routes of peers, in bytes.
	memoryMost = 96 << 20
	// memoryPerRoute is what may be in memory for each route that a peer may send and does: a route takes about 1 KiB.
	memoryPerRoute = 2 << 10
	// loud is how many UPDATEs between two looks may have filled memory. Who sends less is not ended for what another has sent,
	// who was ended a moment ago and of whose UPDATEs some still wait.
	loud = 100
)

const tooMuch = "the peer sent more at once than there is memory for"

// peerKey names a session of any network.
type peerKey struct {
	network string
	address netip.Addr
}

// GuardMemory ends the session of the peer that sends most, whenever more is in memory than there is reason for, until
// ctx ends. GoBGP queues what it tells of each UPDATE, and its queue has no bound: who sends faster than it is read, or much that never
// counts as a route, would have the process killed, and all sessions with it. A session that was ended stays so until its
// configuration is another one, as with maxPrefixes.
func (s *Speakers) GuardMemory(ctx context.Context) {
	tick := time.NewTicker(lookAtMemoryEvery)
	defer tick.Stop()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	var before map[peerKey]uint64 // UPDATEs so far, when memory was looked at last and was too much
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(live)
		if live[0].Value.Uint64() <= memoryMost {
			before = nil
			continue
		}
		before = s.relieve(ctx, live[0].Value.Uint64(), before)
	}
}

// relieve ends a session when more is in memory than may be. It returns how many UPDATEs each peer has sent.
func (s *Speakers) relieve(ctx context.Context, live uint64, before map[peerKey]uint64) map[peerKey]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	may := uint64(memoryMost)
	now := map[peerKey]uint64{}
	var loudest peerKey
	var most uint64
	for network, sp := range s.byNetwork {
		sp.recounted = time.Time{}
		if err := sp.limit(ctx); err != nil {
			sp.log.Warn("cannot keep a peer to its limit", "error", err)
		}
		sp.mu.Lock()
		for addr, st := range sp.states {
			key := peerKey{network, addr}
			now[key] = st.updates
			if !st.overLimit {
				may += memoryPerRoute * uint64(st.received.due(int(sp.peers[addr].MaxPrefixes)))
			}
			if had, ok := before[key]; ok && !st.overLimit && st.updates >= had+loud && st.updates-had > most {
				loudest, most = key, st.updates-had
			}
		}
		sp.mu.Unlock()
	}
	if live <= may {
		return nil
	}
	if most > 0 {
		sp := s.byNetwork[loudest.network]
		sp.log.Warn("too much is in memory: the session of the peer that sends most is ended", "peer", loudest.address, "updates", most, "bytes", live, "most", may)
		if err := sp.close(ctx, loudest.address, tooMuch); err != nil {
			sp.log.Warn("cannot end the session", "peer", loudest.address, "error", err)
		}
		now = nil
	}
	debug.FreeOSMemory() // and look at what is left
	return now
}

// close ends a session until its configuration is another one.
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
