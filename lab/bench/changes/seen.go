package main

import (
	"net/netip"
	"sync"
	"time"
)

// kind is the kind of a sight.
type kind int

const (
	added     kind = iota // an address, to a set of the daemon's table
	removed               // from one
	announced             // a prefix, by the daemon
	withdrawn
)

// seen holds the reports of the kernel and of the peer, with their times.
type seen struct {
	mu    sync.Mutex
	at    map[sight][]time.Time
	moved chan struct{} // closed by the next sight
}

type sight struct {
	kind kind
	addr netip.Addr
}

func newSeen() *seen { return &seen{at: map[sight][]time.Time{}, moved: make(chan struct{})} }

// note adds the sights of one message.
func (s *seen) note(at time.Time, all []sight) {
	if len(all) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range all {
		s.at[x] = append(s.at[x], at)
	}
	close(s.moved)
	s.moved = make(chan struct{})
}

// first is when a sight was first seen after a time; zero: not yet.
func (s *seen) first(x sight, after time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.at[x] {
		if !at.Before(after) {
			return at
		}
	}
	return time.Time{}
}

// next is closed when something else is seen.
func (s *seen) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moved
}

// count is how many addresses were seen that way since a time.
func (s *seen) count(k kind, after time.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x, all := range s.at {
		if x.kind == k && len(all) > 0 && !all[len(all)-1].Before(after) {
			n++
		}
	}
	return n
}

// forget drops all sights: a start reports everything again.
func (s *seen) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = map[sight][]time.Time{}
}
