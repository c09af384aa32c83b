// Package names keeps the addresses of DNS names in sets of the packet filter. Answers to pods wait in a queue of the kernel until the
// sets have their addresses; names that rules list in full are asked by the daemon as well.
package names

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/egressway/egressway/internal/kernel/queue"
)

// Element is an address in a set.
type Element struct {
	Set     string
	Addr    netip.Addr
	Timeout time.Duration
	There   bool // the set has it already, as far as is known, and it gets a new timeout
}

// Filter writes elements in one transaction.
type Filter interface {
	WriteNames(elements []Element) error
}

// Settings are those of the plan in force.
type Settings struct {
	Sets      []Set
	Resolvers []netip.AddrPort
	Inside    func(netip.Addr) bool // addresses that no set gets; nil: none beside loopback, link-local and multicast ones
	Grace     time.Duration         // an address stays after its TTL
	Wait      time.Duration         // bound of the time that an answer waits
}

// packets is a queue of the kernel, with the answers that wait in it.
type packets interface {
	Read() ([]queue.Packet, error)
	Accept(ids ...uint32) error
	Close() error
}

// Service keeps the sets in accord with the answers that it sees.
type Service struct {
	log    *slog.Logger
	filter Filter
	open   func() (packets, error)
	wake   func()

	complained time.Time // the committer's: of its last log line about a failure

	reading, committing, releasing, asking chan struct{} // wake a goroutine: something changed

	mu       sync.Mutex // guards the fields below; never held while the kernel or a resolver is waited for
	settings Settings
	index    *index
	coming   *index            // sets that are being made, or are gone: they are not written before the next Serve
	former   map[string]*force // of sets that are being made: the addresses before; nil: the set was not written
	table    *table
	dirty    map[string]dirt // names of which sets lack an address
	seq      uint64          // of the last answer that changed dirty
	served   uint64          // calls of Serve
	waiting  []waiter        // by the time of their arrival
	schedule *schedule
	counts   Counts
	trouble  string // why the queue is not read; empty: it is
	unwanted func() // ends the reader of the queue; nil: there is none
	swept    time.Time
	wasFull  bool // something found no room, when it was last looked for
}

// dirt is a name of which a set lacks an address.
type dirt struct {
	seq    uint64 // of the latest answer that has one
	urgent bool
	parked bool // all sets have it but those that are being made: it waits for Serve
}

// waiter is a packet that waits for a name.
type waiter struct {
	from     packets
	id       uint32
	name     string
	seq      uint64
	arrived  time.Time
	deadline time.Time
	failed   bool // its addresses could not be written
}

// New returns a service without names, which reads the queue with the number as soon as there are some. wake is called when the result of
// Problems changes.
func New(log *slog.Logger, filter Filter, number uint16, wake func()) *Service {
	open := func() (packets, error) {
		q, err := queue.Open(number)
		if err != nil {
			return nil, err
		}
		return q, nil
	}
	return newService(log, filter, open, wake)
}

func newService(log *slog.Logger, filter Filter, open func() (packets, error), wake func()) *Service {
	signal := func() chan struct{} { return make(chan struct{}, 1) }
	return &Service{
		log: log, filter: filter, open: open, wake: wake,
		reading: signal(), committing: signal(), releasing: signal(), asking: signal(),
		index: newIndex(nil), coming: newIndex(nil), former: map[string]*force{},
		table: newTable(), dirty: map[string]dirt{}, schedule: newSchedule(),
	}
}

// notify wakes the receiver of a signal, at once or when it receives next.
func notify(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// Run reads the queue, writes elements and asks resolvers until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.read(ctx) })
	g.Go(func() error { return s.commit(ctx) })
	g.Go(func() error { return s.release(ctx) })
	g.Go(func() error { return s.ask(ctx) })
	return g.Wait()
}

// Serve follows the plan. The daemon calls it after each pass, when the sets exist. It costs little where nothing changed.
func (s *Service) Serve(settings Settings) {
	at := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	former := s.settings
	s.settings = settings
	s.served++
	if !sameSets(former.Sets, settings.Sets) {
		s.index = newIndex(settings.Sets)
		s.schedule.serve(s.index.exact, at)
		maps.DeleteFunc(s.dirty, func(of string, _ dirt) bool { return !s.index.matches(of) })
		maps.DeleteFunc(s.table.force, func(set string, _ *force) bool { return s.index.sets[set] == nil })
		notify(s.committing)
		notify(s.reading)
		notify(s.asking)
	}
	if !slices.Equal(former.Resolvers, settings.Resolvers) {
		s.schedule.restart(at)
		notify(s.asking)
	}
	if len(s.coming.sets) > 0 {
		s.unpark(nil)
	}
	if len(settings.Sets) == 0 && s.unwanted != nil {
		s.unwanted()
	}
	s.sweep(at)
}

// sweep makes room: it forgets addresses that have run out, unless it did so just now. Few passes come to a quiet node, so answers call it
// too. The caller holds the lock.
func (s *Service) sweep(at time.Time) {
	if at.Sub(s.swept) >= sweepEvery {
		s.table.sweep(s.index, at)
		s.swept = at
		notify(s.committing) // it notes that there is room again
	}
}

// unpark makes all sets writable except missing ones. The caller holds the lock.
func (s *Service) unpark(missing []Set) {
	s.coming, s.former = newIndex(missing), map[string]*force{}
	for of, d := range s.dirty {
		d.parked = false
		s.dirty[of] = d
	}
	notify(s.committing)
}

// sweepEvery is the least time between two searches for addresses that have run out.
const sweepEvery = 10 * time.Second

// Contents returns all that belongs into a set that is being made. From then on the set is not written, until Serve or NotMade: answers
// that it concerns wait.
func (s *Service) Contents(set Set) []Element {
	at := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming.add(set)
	if _, again := s.former[set.Name]; !again {
		s.former[set.Name] = s.table.force[set.Name]
	}
	all := s.table.contents(&set, at)
	s.table.written(set.Name, all)
	return elements(set.Name, all, nil, at)
}

// NotMade undoes Contents. The daemon calls it after a pass that could not write the table: the kernel keeps its sets, so the committer
// writes all that they lack of known names. Sets that are not in the plan in force stay unwritten until Serve.
func (s *Service) NotMade() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.coming.sets) == 0 {
		return
	}
	for set, had := range s.former {
		if s.table.force[set] = had; had == nil {
			delete(s.table.force, set)
		}
	}
	var there, missing []Set
	for name, set := range s.coming.sets {
		if s.index.sets[name] != nil {
			there = append(there, *set)
		} else {
			missing = append(missing, *set)
		}
	}
	s.served++ // no result of a transaction that is under way counts
	s.unpark(missing)
	s.seq++
	kept := newIndex(there)
	for of := range s.table.names {
		if _, dirty := s.dirty[of]; !dirty && kept.matches(of) {
			s.dirty[of] = dirt{seq: s.seq}
		}
	}
}

// elements returns the elements of one set, sorted.
func elements(set string, until map[netip.Addr]time.Time, have *force, at time.Time) []Element {
	all := make([]Element, 0, len(until))
	for a, end := range until {
		e := Element{Set: set, Addr: a, Timeout: end.Sub(at)}
		if have != nil {
			e.There = have.until[a].After(at)
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b Element) int { return a.Addr.Compare(b.Addr) })
	return all
}

// Known lists the names that rules of this node match, with the addresses that pods may reach by them.
func (s *Service) Known() []Known {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.known(s.index, time.Now())
}
