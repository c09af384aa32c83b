package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/config"
)

// guardAfter is how long a BGP session must be established before BFD watches it. FRR recreates its BFD session after
// it has established a BGP session, and treats the end of the previous BFD session, if that was up, as a failure.
const guardAfter = time.Second

// guards runs BFD with peers while their BGP sessions are established. Networks whose sockets are bound to the same
// device share an engine, because they share its UDP port: all networks without a VRF do.
type guards struct {
	log  *slog.Logger
	hint func() // called when the state of a BFD session has changed

	mu  sync.Mutex // guards the field below; never held while GoBGP is called
	all map[boundTo]*guard
}

// boundTo is the device that sockets are bound to; zero: none.
type boundTo struct {
	device string
	index  int
}

// guard runs BFD on one device.
type guard struct {
	profile config.BFDProfile // of one of the peers
	engine  *bfd.Engine       // kept while any peer is configured with BFD, because it remembers which peers flap
	fault   string            // why there is no engine
	peers   map[netip.Addr]*guarded
	former  map[netip.Addr]*guarded
}

// guarded is a peer with BFD, and the speakers that have a BGP session with it.
type guarded struct {
	bfd.Peer
	speakers []*speaker
	losses   uint64 // losses of the BFD session for which the BGP sessions were reset
}

func newGuards(log *slog.Logger, hint func()) *guards {
	return &guards{log: log, hint: hint, all: map[boundTo]*guard{}}
}

// set makes BFD watch the peers of the speakers.
func (g *guards) set(speakers []*speaker) error {
	wanted := guardsOf(speakers)
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for at, running := range g.all {
		if _, ok := wanted[at]; !ok {
			delete(g.all, at)
			errs = append(errs, running.close())
		}
	}
	for at, now := range wanted {
		if had := g.all[at]; had != nil {
			now.engine, now.former = had.engine, had.peers
		}
		g.all[at] = now
		errs = append(errs, g.watch(at, now))
	}
	return errors.Join(errs...)
}

// abandon ends BFD with all routers without a signal. A router keeps the routes of a speaker that restarts (RFC 4724), unless BFD fails
// while it takes the session for up: one that is slow may read the end of BFD before that of BGP, though it came later.
func (g *guards) abandon() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, running := range g.all {
		if running.engine != nil {
			errs = append(errs, running.engine.Abandon())
		}
	}
	clear(g.all)
	return errors.Join(errs...)
}

// guardsOf returns the guards that speakers need, without engines.
func guardsOf(speakers []*speaker) map[boundTo]*guard {
	wanted := map[boundTo]*guard{}
	for _, s := range speakers {
		profile, watched := s.withBFD()
		if profile == nil {
			continue
		}
		at := s.identity.boundTo()
		if wanted[at] == nil {
			wanted[at] = &guard{profile: *profile, peers: map[netip.Addr]*guarded{}}
		}
		for _, peer := range watched {
			wanted[at].add(peer, s)
		}
	}
	return wanted
}

func (g *guard) add(peer bfd.Peer, s *speaker) {
	p := g.peers[peer.Address]
	if p == nil {
		p = &guarded{Peer: peer}
		g.peers[peer.Address] = p
	}
	p.speakers = append(p.speakers, s)
}

// watch makes the engine of a device watch exactly its peers. The caller holds g.mu.
func (g *guards) watch(at boundTo, now *guard) error {
	if now.engine == nil {
		engine, err := bfd.Listen(bfd.Options{
			OneHop: true, Device: at.device, Profile: now.profile, Log: g.log, Wake: func() { g.stirred(at) },
		})
		if err != nil {
			err = fmt.Errorf("BFD with routers%s: %w", at, err)
			now.fault = err.Error()
			return err
		}
		now.engine = engine
	}
	all := make([]bfd.Peer, 0, len(now.peers))
	for _, p := range now.peers {
		all = append(all, p.Peer)
	}
	now.engine.Set(all)
	for _, s := range now.engine.Sessions() {
		now.peers[s.Address].losses = s.Losses // ignore losses from before this BGP session
		if had := now.former[s.Address]; had != nil {
			now.peers[s.Address].losses = had.losses
		}
	}
	now.former = nil
	return nil
}

// String returns a suffix for error messages.
func (b boundTo) String() string {
	if b.device == "" {
		return " of networks without a VRF"
	}
	return " in VRF " + b.device
}

func (g *guard) close() error {
	if g.engine == nil {
		return nil
	}
	return g.engine.Close()
}

// stirred resets the BGP sessions of peers that BFD has lost.
func (g *guards) stirred(at boundTo) {
	g.mu.Lock()
	if running := g.all[at]; running != nil && running.engine != nil {
		running.resetLost()
	}
	g.mu.Unlock()
	g.hint()
}

func (g *guard) resetLost() {
	for _, s := range g.engine.Sessions() {
		p := g.peers[s.Address]
		if p == nil {
			continue
		}
		lost := s.Losses > p.losses
		p.losses = s.Losses
		if lost {
			p.reset("BFD: " + cmp.Or(s.LastError, "the session was lost"))
		}
	}
}

// reset ends the BGP sessions with the peer.
func (p *guarded) reset(why string) {
	for _, sp := range p.speakers {
		sp.reset(p.Address, why)
	}
}

// sessions returns the BFD sessions with the peers of a device, or the fault that prevents them.
func (g *guards) sessions(at boundTo) (known map[netip.Addr]bfd.Session, fault string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	running := g.all[at]
	if running == nil {
		return nil, ""
	}
	if running.engine == nil {
		return nil, running.fault
	}
	known = map[netip.Addr]bfd.Session{}
	for _, s := range running.engine.Sessions() {
		known[s.Address] = s
	}
	return known, ""
}

// withBFD returns the peers that BFD should watch now, and the profile of one of the peers with BFD; nil: no peer has
// BFD.
func (s *speaker) withBFD() (profile *config.BFDProfile, watched []bfd.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for address := range s.configs {
		p, st := s.peers[address], s.states[address]
		if p.BFD == nil {
			continue
		}
		profile = p.BFD
		if st == nil || st.state != bgp.BGP_FSM_ESTABLISHED {
			continue
		}
		if wait := guardAfter - time.Since(st.since); wait > 0 {
			time.AfterFunc(wait, s.hint.Apply)
		} else {
			watched = append(watched, bfd.Peer{
				Node: nameOf(p), Address: address, Local: p.SourceAddress, Active: true, Profile: *p.BFD, Interface: p.Device,
			})
		}
	}
	return profile, watched
}

// reset ends an established session, which GoBGP then sets up again. It does not wait for GoBGP.
func (s *speaker) reset(addr netip.Addr, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.states[addr]
	// If the session is not established, GoBGP would apply the reset to the next one.
	if s.stopping || st == nil || st.state != bgp.BGP_FSM_ESTABLISHED {
		return
	}
	st.resetFor = why
	s.resets.Go(func() {
		reset := &api.ResetPeerRequest{Address: addr.String(), Communication: "BFD is down"}
		if err := s.server.ResetPeer(context.Background(), reset); err != nil {
			s.log.Warn("cannot reset the session of a peer that BFD has lost", "peer", addr, "reason", why, "error", err)
		}
	})
}
