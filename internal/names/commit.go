package names

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// renewWithin gathers elements that are in force and get a new timeout.
	renewWithin = time.Second

	// writeAgain is the pause after a transaction that failed.
	writeAgain = 100 * time.Millisecond

	// mostElements bounds a transaction, beside the elements of its last name: others wait for it.
	mostElements = 4096
)

// batch is a number of names that one transaction writes.
type batch struct {
	served uint64
	names  []written
	parts  map[string]*part // by set
}

// written is a name in a batch.
type written struct {
	name  string
	seq   uint64
	parts []*part
	fits  bool
}

// part is the share of one set in a batch.
type part struct {
	set      *Set
	add      addition
	elements []Element
	err      error
	again    bool // the set was gone, but Serve has come meanwhile
}

// commit writes names that sets lack: new ones at once, all that came meanwhile in one transaction; others later.
func (s *Service) commit(ctx context.Context) error {
	timer := time.NewTimer(renewWithin)
	defer timer.Stop()
	armed := true
	for {
		all := false
		select {
		case <-ctx.Done():
			return nil
		case <-s.committing:
		case <-timer.C:
			all, armed = true, false
		}
		again := s.writeDirty(ctx, all)
		s.noteFull()
		if again > 0 && (!armed || again < renewWithin) {
			timer.Reset(again)
			armed = true
		}
	}
}

// writeDirty writes batches while there is an urgent name, or one at all. It returns the pause before the next attempt; 0: nothing is left.
func (s *Service) writeDirty(ctx context.Context, all bool) time.Duration {
	for ctx.Err() == nil {
		b, left := s.next(all, time.Now())
		if len(b.names) == 0 {
			s.accept(s.settle(b, time.Now()))
			if left {
				return renewWithin
			}
			return 0
		}
		err := s.write(b)
		s.accept(s.settle(b, time.Now()))
		if err != nil {
			s.complain(err)
			return writeAgain
		}
	}
	return 0
}

// complainEvery is the least time between two log lines about such failures.
const complainEvery = 10 * time.Second

// complain logs that a transaction failed. Only the committer calls it.
func (s *Service) complain(err error) {
	if at := time.Now(); at.Sub(s.complained) >= complainEvery {
		s.complained = at
		s.log.Warn("addresses of names were not written", "error", err)
	}
}

// next returns the next batch. Without all, it is empty unless a name is urgent; otherwise it has all names, as far as they fit. left
// reports whether there are names.
func (s *Service) next(all bool, at time.Time) (b batch, left bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b = batch{served: s.served, parts: map[string]*part{}}
	var order []string
	for of, d := range s.dirty {
		if !d.parked {
			order = append(order, of)
			all = all || d.urgent
		}
	}
	if !all {
		return b, len(order) > 0
	}
	slices.SortFunc(order, func(a, b string) int { // urgent ones first, then by their order
		x, y := s.dirty[a], s.dirty[b]
		if x.urgent != y.urgent {
			return map[bool]int{true: -1, false: 1}[x.urgent]
		}
		return cmp.Compare(x.seq, y.seq)
	})
	size := 0
	for _, of := range order {
		if size >= mostElements {
			break
		}
		size += s.addName(&b, of, at)
	}
	for _, p := range b.parts {
		p.elements = elements(p.set.Name, p.add.until, s.table.force[p.set.Name], at)
	}
	return b, true
}

// addName adds all that sets lack of a name, and returns the number of these elements. The caller holds the lock.
func (s *Service) addName(b *batch, of string, at time.Time) (size int) {
	w := written{name: of, seq: s.dirty[of].seq, fits: true}
	for _, set := range s.index.matching(of) {
		if s.coming.sets[set.Name] != nil {
			continue
		}
		p := b.parts[set.Name]
		if p == nil {
			p = &part{set: set, add: addition{until: map[netip.Addr]time.Time{}}}
			b.parts[set.Name] = p
		}
		before := len(p.add.until)
		w.fits = s.table.collect(&p.add, set, of, at) && w.fits
		w.parts = append(w.parts, p)
		size += len(p.add.until) - before
	}
	b.names = append(b.names, w)
	return size
}

// write writes a batch in one transaction. Where the kernel refuses it, each set gets its own: one may be gone, or full.
func (s *Service) write(b batch) error {
	var all []Element
	var parts []*part
	for _, p := range b.parts {
		if len(p.elements) > 0 {
			parts = append(parts, p)
		}
	}
	slices.SortFunc(parts, func(a, b *part) int { return cmp.Compare(a.set.Name, b.set.Name) })
	for _, p := range parts {
		all = append(all, p.elements...)
	}
	if len(all) == 0 {
		return nil
	}
	err := s.filter.WriteNames(all)
	var refused syscall.Errno
	each := len(parts) > 1 && errors.As(err, &refused)
	var failed error
	for _, p := range parts {
		if p.err = err; each {
			p.err = s.filter.WriteNames(p.elements)
		}
		if !errors.Is(p.err, unix.ENOENT) {
			failed = cmp.Or(failed, p.err)
		}
	}
	return failed
}

// settle notes a batch that was written, and returns the packets that need not wait any more.
func (s *Service) settle(b batch, at time.Time) (free map[packets][]uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range b.parts {
		s.settlePart(p, b.served)
	}
	results := make(map[string]written, len(b.names))
	for _, w := range b.names {
		results[w.name] = w
		s.settleName(w, b.served)
	}
	current := b.served == s.served
	free = map[packets][]uint32{}
	kept := s.waiting[:0]
	for _, w := range s.waiting {
		d, dirty := s.dirty[w.name]
		r, tried := results[w.name]
		switch {
		case !dirty, current && tried && r.seq >= w.seq && d.seq > r.seq && !r.failed() && !s.coming.matches(w.name):
			free[w.from] = append(free[w.from], w.id)
			s.count(w, tried && !r.fits, false, at)
			continue
		case tried && r.failed():
			w.failed = true
		}
		kept = append(kept, w)
	}
	clear(s.waiting[len(kept):])
	s.waiting = kept
	return free
}

// settlePart notes the elements of one set. A set that is being made loses them; one that is gone is not written before Serve.
func (s *Service) settlePart(p *part, served uint64) {
	switch {
	case p.err == nil && s.coming.sets[p.set.Name] == nil:
		s.table.written(p.set.Name, p.add.until)
	case errors.Is(p.err, unix.ENOENT) && served == s.served:
		s.coming.add(*p.set)
	case errors.Is(p.err, unix.ENOENT):
		p.again = true
	}
}

// settleName notes that a name was written, unless a later answer has come meanwhile, or Serve, after which other sets may need it.
func (s *Service) settleName(w written, served uint64) {
	d, dirty := s.dirty[w.name]
	switch {
	case !dirty || w.failed() || d.seq != w.seq || served != s.served:
	case s.coming.matches(w.name):
		d.parked = true
		s.dirty[w.name] = d
	default:
		delete(s.dirty, w.name)
	}
}

// failed reports whether a name has to be written again. A set that is gone needs it only after Serve.
func (w written) failed() bool {
	return slices.ContainsFunc(w.parts, func(p *part) bool { return p.again || p.err != nil && !errors.Is(p.err, unix.ENOENT) })
}

// release lets packets go that have waited as long as they may.
func (s *Service) release(ctx context.Context) error {
	timer := time.NewTimer(renewWithin)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.releasing:
		case <-timer.C:
		}
		free, next := s.overdue(time.Now())
		s.accept(free)
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// overdue returns the packets whose time is over, and the time until that of the next one; 0: none waits.
func (s *Service) overdue(at time.Time) (free map[packets][]uint32, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free = map[packets][]uint32{}
	over := 0
	for _, w := range s.waiting {
		if next = w.deadline.Sub(at); next > 0 {
			break
		}
		free[w.from] = append(free[w.from], w.id)
		s.count(w, w.failed, true, at)
		over++
	}
	s.waiting = slices.Delete(s.waiting, 0, over)
	return free, max(next, 0)
}

// accept lets packets go.
func (s *Service) accept(free map[packets][]uint32) {
	for q, ids := range free {
		if err := q.Accept(ids...); err != nil && !errors.Is(err, os.ErrClosed) {
			s.log.Warn("answers about names were not let go", "error", err)
		}
	}
}
