package names

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/kernel/queue"
	"github.com/egressway/egressway/internal/pause"
)

// Pauses before the queue is opened again.
const (
	openAgain     = time.Second
	openAgainLate = time.Minute // the kernel lacks it, and looks for a module each time
)

// read reads the queue while rules list names.
func (s *Service) read(ctx context.Context) error {
	for {
		reader, end := context.WithCancel(ctx)
		s.mu.Lock()
		needed := len(s.settings.Sets) > 0
		s.unwanted = end
		s.mu.Unlock()
		rest := time.Duration(0)
		if needed {
			rest = s.readQueue(reader)
		} else {
			s.setTrouble("")
		}
		switch {
		case ctx.Err() != nil:
		case needed && reader.Err() == nil:
			pause.For(reader, rest)
		case !needed:
			select {
			case <-ctx.Done():
			case <-s.reading:
			}
		}
		end()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// readQueue opens the queue and reads it until ctx ends or the queue fails. It returns the pause before the next attempt.
func (s *Service) readQueue(ctx context.Context) time.Duration {
	q, err := s.open()
	if err != nil {
		s.setTrouble(err.Error())
		if errors.Is(err, queue.ErrUnsupported) {
			return openAgainLate
		}
		return openAgain
	}
	s.setTrouble("")
	stop := context.AfterFunc(ctx, func() { _ = q.Close() })
	for {
		all, err := q.Read()
		if err != nil {
			if stop() {
				_ = q.Close()
			}
			s.forget(q)
			if ctx.Err() == nil {
				s.setTrouble(err.Error())
			}
			return openAgain
		}
		s.accept(map[packets][]uint32{q: s.receive(q, all, time.Now())})
	}
}

// setTrouble notes why the queue is not read.
func (s *Service) setTrouble(trouble string) {
	s.mu.Lock()
	former := s.trouble
	s.trouble = trouble
	s.mu.Unlock()
	if former != trouble {
		s.wake()
	}
}

// forget drops the packets of a queue that was closed.
func (s *Service) forget(q packets) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.waiting[:0]
	for _, w := range s.waiting {
		if w.from != q {
			kept = append(kept, w)
		}
	}
	s.waiting = kept
}

// receive learns from packets. It returns those that need not wait.
func (s *Service) receive(q packets, all []queue.Packet, at time.Time) (free []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range all {
		if !s.holds(q, p, at) {
			free = append(free, p.ID)
		}
	}
	return free
}

// holds learns from a packet, and reports whether it has to wait. The caller holds the lock.
func (s *Service) holds(q packets, p queue.Packet, at time.Time) bool {
	message, content := queue.Message(p.Payload)
	switch content {
	case queue.None:
		return false
	case queue.Part:
		s.counts.Ignored++
		s.want(Question(message), at)
		return false
	}
	a, err := Parse(message)
	if a.Truncated {
		s.want(a.Name, at)
	}
	if err != nil {
		s.counts.Ignored++
		return false
	}
	switch needs, seq := s.learn(a, at); needs {
	case learnedNothing:
		s.counts.Ignored++
	case learnedNoRoom:
		s.counts.Failed++
		notify(s.committing) // it notes that there is no room
	case learnedKnown:
		s.counts.Known++
	case learnedNew:
		if len(s.waiting) == 0 {
			notify(s.releasing)
		}
		s.waiting = append(s.waiting, waiter{
			from: q, id: p.ID, name: a.Name, seq: seq, arrived: at, deadline: at.Add(s.settings.Wait),
		})
		return true
	}
	return false
}

// want asks for a name soon, if rules list it. The caller holds the lock.
func (s *Service) want(name string, at time.Time) {
	if name != "" && s.schedule.want(name, at) {
		notify(s.asking)
	}
}

// learned is the consequence of an answer.
type learned uint8

const (
	learnedNothing learned = iota // no set is concerned
	learnedNoRoom
	learnedKnown // the sets have all addresses
	learnedNew   // the sets lack one; the name is to be written
)

// learn adds an answer to the table. seq is that of the write for which it waits. The caller holds the lock.
func (s *Service) learn(a Answer, at time.Time) (consequence learned, seq uint64) {
	sets := slices.Concat(s.index.matching(a.Name), s.coming.matching(a.Name))
	addrs := s.allowed(sets, a.Addrs)
	if len(addrs) == 0 {
		return learnedNothing, 0
	}
	s.sweep(at)
	addrs = s.table.learn(a.Name, addrs, s.index, s.settings.Grace, at)
	if len(addrs) == 0 {
		return learnedNoRoom, 0
	}
	lacks := s.table.lacks(sets, addrs, s.settings.Grace, at)
	if lacks == lackNone {
		return learnedKnown, 0
	}
	s.seq++
	s.dirty[a.Name] = dirt{seq: s.seq, urgent: s.dirty[a.Name].urgent || lacks == lackNow}
	notify(s.committing)
	if lacks == lackSoon {
		return learnedKnown, 0
	}
	return learnedNew, s.seq
}

// allowed returns the addresses that one of the sets may have. The caller holds the lock.
func (s *Service) allowed(sets []*Set, addrs []Addr) (kept []Addr) {
	for _, a := range addrs {
		ofFamily := func(set *Set) bool { return set.IPv6 == a.Is6() }
		if outside(a.Addr) && slices.ContainsFunc(sets, ofFamily) && (s.settings.Inside == nil || !s.settings.Inside(a.Addr)) {
			kept = append(kept, a)
		}
	}
	return kept
}
