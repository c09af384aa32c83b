// Package bgp speaks BGP for the networks of this node: one GoBGP server per network, bound to the network's VRF
// device. It denies by default in both directions: it announces exactly the prefixes of the plan, accepts only the
// listed ones, and never passes a learned route on.
package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// Speakers is the set of BGP speakers of this node. Its methods may be called concurrently.
type Speakers struct {
	log  *slog.Logger
	hint Hints

	guards *guards

	mu        sync.Mutex // held while speakers change
	byNetwork map[string]*speaker
	applied   bool // Apply was called: speakers made later do not follow a restart of the daemon
}

// Hints are called on changes. They must neither block nor call back.
type Hints struct {
	Apply  func() // a session has changed: apply again, since some sessions can only be completed then
	Routes func() // learned routes may have changed; called once until they are read
}

// New makes an empty set.
func New(log *slog.Logger, hint Hints) *Speakers {
	return &Speakers{log: log, hint: hint, guards: newGuards(log, hint.Apply), byNetwork: map[string]*speaker{}}
}

// Withdraw is the first step of a change: it withdraws the announcements, closes the sessions and stops the speakers
// that desired does not contain. When it returns, the withdrawals are in the sessions' send queues. It never starts or
// announces anything.
func (s *Speakers) Withdraw(ctx context.Context, desired []plan.Speaker) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := byNetwork(desired)
	err := each(slices.Sorted(maps.Keys(s.byNetwork)), func(network string) error {
		d, ok := wanted[network]
		if !ok {
			return s.remove(ctx, network)
		}
		return s.byNetwork[network].withdraw(ctx, d)
	})
	return errors.Join(err, s.guards.set(s.list()))
}

// Apply is the last step of a change: it makes speakers, sessions and announcements equal to desired. Sessions whose
// parameters did not change are left alone; import and export rules change without a reset. A network that fails does
// not affect the others.
func (s *Speakers) Apply(ctx context.Context, desired []plan.Speaker) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := byNetwork(desired)
	gone := slices.DeleteFunc(slices.Sorted(maps.Keys(s.byNetwork)), func(n string) bool { _, ok := wanted[n]; return ok })
	err := each(gone, func(network string) error { return s.remove(ctx, network) })
	err = errors.Join(err, each(slices.Sorted(maps.Keys(wanted)), func(network string) error {
		return s.apply(ctx, wanted[network])
	}))
	s.applied = true
	return errors.Join(err, s.guards.set(s.list()))
}

func (s *Speakers) apply(ctx context.Context, d plan.Speaker) error {
	var errs []error
	following := map[string]bool{}
	for _, p := range d.Peers {
		following[nameOf(p)] = !s.applied
	}
	sp := s.byNetwork[d.Network]
	if sp != nil {
		if sp.identity == identityOf(d) {
			following = sp.following
		}
		if s.outlived(sp, d) {
			errs = append(errs, s.remove(ctx, d.Network))
			sp = nil
		}
	}
	if sp == nil {
		var err error
		if sp, err = start(ctx, s.log, s.hint, s.guards, d, following); err != nil {
			return errors.Join(append(errs, err)...)
		}
		s.byNetwork[d.Network] = sp
	}
	why, _ := s.unheard(sp, d)
	sp.noteUnheard(why)
	return errors.Join(append(errs, sp.apply(ctx, d))...)
}

// remove stops the speaker of a network. It hints that routes may have changed: no event reports that the network's are gone.
func (s *Speakers) remove(ctx context.Context, network string) error {
	sp := s.byNetwork[network]
	delete(s.byNetwork, network)
	s.hint.Routes()
	return sp.stop(ctx, false)
}

// outlived reports whether a speaker must be started again for d. With another identity, the OPEN messages and the sockets of
// all its sessions change: nothing can be kept. An idle one is started again if it accepts more connections then.
func (s *Speakers) outlived(sp *speaker, d plan.Speaker) bool {
	if sp.identity != identityOf(d) {
		return true
	}
	_, curable := s.unheard(sp, d)
	return curable && sp.idle()
}

// NetworkRoutes holds the routes that the peers of one network announce.
type NetworkRoutes struct {
	Network string
	Routes  sorted.List[plan.Route] // Table and Metric are 0
}

// Learned returns the routes that peers announce and that pass their import rules, of every network that has a speaker,
// sorted. Unchanged parts share memory with the result of the last call.
func (s *Speakers) Learned() []NetworkRoutes {
	var out []NetworkRoutes
	for _, sp := range s.running() {
		out = append(out, NetworkRoutes{Network: sp.network, Routes: sp.learnedRoutes()})
	}
	return out
}

// Sessions returns the state of every configured session, sorted by network and peer. Accepted counts the routes that
// Learned returned last.
func (s *Speakers) Sessions() []Session { return s.sessions(true) }

// States returns Sessions with the counts of received routes as of the last call of Sessions: its cost does not depend
// on the number of routes.
func (s *Speakers) States() []Session { return s.sessions(false) }

func (s *Speakers) sessions(count bool) []Session {
	var out []Session
	for _, sp := range s.running() {
		out = append(out, sp.sessions(count)...)
	}
	return out
}

// Close ends all sessions and stops all speakers. A graceful close lets peers that negotiated graceful restart keep our
// routes for a while, as before a restart of the daemon; otherwise they drop the routes at once.
func (s *Speakers) Close(ctx context.Context, graceful bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := each(slices.Sorted(maps.Keys(s.byNetwork)), func(network string) error {
		return s.byNetwork[network].stop(ctx, graceful)
	})
	clear(s.byNetwork)
	if graceful {
		return errors.Join(err, s.guards.abandon())
	}
	return errors.Join(err, s.guards.set(nil)) // after BGP: to a router, an end of BFD would be a failure of the session
}

func (s *Speakers) running() []*speaker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list()
}

// list returns all speakers, sorted by network. The caller holds s.mu.
func (s *Speakers) list() []*speaker {
	out := make([]*speaker, 0, len(s.byNetwork))
	for _, network := range slices.Sorted(maps.Keys(s.byNetwork)) {
		out = append(out, s.byNetwork[network])
	}
	return out
}

// each calls f for every network and names the network in the errors.
func each(networks []string, f func(network string) error) error {
	var errs []error
	for _, network := range networks {
		if err := f(network); err != nil {
			errs = append(errs, fmt.Errorf("network %s: %w", network, err))
		}
	}
	return errors.Join(errs...)
}

func byNetwork(speakers []plan.Speaker) map[string]plan.Speaker {
	m := make(map[string]plan.Speaker, len(speakers))
	for _, sp := range speakers {
		m[sp.Network] = sp
	}
	return m
}
