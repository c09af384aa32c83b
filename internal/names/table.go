package names

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Bounds.
const (
	mostAddrs = 1000    // of a name
	mostInSet = 65_535  // addresses
	mostNames = 10_000  // of a node
	mostInAll = 200_000 // addresses of a node's names
)

// Bounds of an element's time, before and after the grace.
const (
	leastTTL    = 5 * time.Second
	mostTimeout = 24 * time.Hour
)

// table holds the addresses that names have, and those that the sets have. It is pure: callers hand the time in.
type table struct {
	names map[string]*name
	below map[string]map[string]*name // the same names, by the name without its first label
	force map[string]*force           // by set
	full  bool                        // a name found no room
	addrs int                         // of all names

	cleared *index // the last one that clear was called with
	clearAt time.Time
}

// name is a name that was answered.
type name struct {
	expiry map[netip.Addr]time.Time
	full   bool // an address found no room
}

// force holds the time until which a set has each address, by all that was written.
type force struct {
	until map[netip.Addr]time.Time
	full  bool // an address found no room
}

func newTable() *table {
	return &table{names: map[string]*name{}, below: map[string]map[string]*name{}, force: map[string]*force{}}
}

// timeoutOf returns the time that an element gets.
func timeoutOf(ttl, grace time.Duration) time.Duration {
	return min(max(ttl, leastTTL)+grace, mostTimeout)
}

// learn adds or renews the addresses of a name, and returns those that found room.
func (t *table) learn(of string, addrs []Addr, x *index, grace time.Duration, at time.Time) (kept []Addr) {
	n := t.names[of]
	if n == nil {
		if !t.room(of, x, at) {
			t.full = true
			return nil
		}
		n = &name{expiry: map[netip.Addr]time.Time{}}
		t.add(of, n)
	}
	for _, a := range addrs {
		if _, has := n.expiry[a.Addr]; !has {
			if len(n.expiry) >= mostAddrs || t.addrs >= mostInAll {
				n.full = true
				continue
			}
			t.addrs++
		}
		n.expiry[a.Addr] = later(n.expiry[a.Addr], at.Add(timeoutOf(a.TTL, grace)))
		kept = append(kept, a)
	}
	return kept
}

// room makes room for a name. Those that rules list come before those that match a wildcard, which anyone may invent.
func (t *table) room(of string, x *index, at time.Time) bool {
	most := mostNames
	if len(x.exact[of]) == 0 {
		most = max(0, mostNames-len(x.exact))
	}
	if len(t.names) < most {
		return true
	}
	t.clear(x, at)
	if len(t.names) >= most && len(x.exact[of]) > 0 {
		for other := range t.names {
			if len(x.exact[other]) == 0 {
				t.drop(other)
				break
			}
		}
	}
	return len(t.names) < most
}

// clearEvery is the least time between two searches for names that no rule matches, while the rules stay the same: answers wait meanwhile.
const clearEvery = time.Second

// clear drops names that x does not match. Only another index, or answers for sets that are being made, can bring such names.
func (t *table) clear(x *index, at time.Time) {
	if x == t.cleared && at.Sub(t.clearAt) < clearEvery {
		return
	}
	t.cleared, t.clearAt = x, at
	for other := range t.names {
		if !x.matches(other) {
			t.drop(other)
		}
	}
}

func (t *table) add(of string, n *name) {
	t.names[of] = n
	under := parent(of)
	if t.below[under] == nil {
		t.below[under] = map[string]*name{}
	}
	t.below[under][of] = n
}

func (t *table) drop(of string) {
	t.addrs -= len(t.names[of].expiry)
	delete(t.names, of)
	under := parent(of)
	if delete(t.below[under], of); len(t.below[under]) == 0 {
		delete(t.below, under)
	}
}

// lack is the urgency with which sets need an address.
type lack uint8

const (
	lackNone lack = iota
	lackSoon      // less is left than the answer may be kept and half of the grace
	lackNow       // it is not there, or at most half of its time is left
)

// lacks compares the sets with an answer.
func (t *table) lacks(sets []*Set, addrs []Addr, grace time.Duration, at time.Time) (worst lack) {
	for _, s := range sets {
		f := t.force[s.Name]
		for _, a := range addrs {
			if a.Is6() == s.IPv6 {
				worst = max(worst, f.lacks(a, grace, at))
			}
		}
	}
	return worst
}

func (f *force) lacks(a Addr, grace time.Duration, at time.Time) lack {
	want := timeoutOf(a.TTL, grace)
	var left time.Duration
	if f != nil {
		left = f.until[a.Addr].Sub(at)
	}
	switch {
	case left <= want/2:
		return lackNow
	case left < want-max(grace/2, time.Second):
		return lackSoon
	}
	return lackNone
}

// addition is a number of elements that one set is to get.
type addition struct {
	until map[netip.Addr]time.Time
	fresh int // those that the set has not yet
}

// leastGain is the time by which an element has to last longer for a transaction.
const leastGain = time.Second

// collect adds to an addition all that a set lacks of a name. Where several names have an address, the latest end counts. It returns
// false where an address found no room.
func (t *table) collect(into *addition, s *Set, of string, at time.Time) bool {
	n := t.names[of]
	if n == nil {
		return true
	}
	f, fits := t.forceOf(s.Name), true
	for a, end := range n.expiry {
		until, has := f.until[a]
		if a.Is6() != s.IPv6 || !end.After(at) || has && end.Sub(until) < leastGain {
			continue
		}
		if former, twice := into.until[a]; twice {
			into.until[a] = later(former, end)
			continue
		}
		if !has && len(f.until)+into.fresh >= mostInSet {
			f.full, fits = true, false
			continue
		}
		if into.until[a] = end; !has {
			into.fresh++
		}
	}
	return fits
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (t *table) forceOf(set string) *force {
	f := t.force[set]
	if f == nil {
		f = &force{until: map[netip.Addr]time.Time{}}
		t.force[set] = f
	}
	return f
}

// contents returns all that a set that is made needs.
func (t *table) contents(s *Set, at time.Time) map[netip.Addr]time.Time {
	delete(t.force, s.Name)
	all := &addition{until: map[netip.Addr]time.Time{}}
	for _, p := range s.Patterns {
		under, is := strings.CutPrefix(p, wildcard)
		if !is {
			t.collect(all, s, p, at)
			continue
		}
		for of := range t.below[under] {
			t.collect(all, s, of, at)
		}
	}
	return all.until
}

// written notes elements that a set has. An address that it had longer keeps its time.
func (t *table) written(set string, until map[netip.Addr]time.Time) {
	f := t.forceOf(set)
	for a, end := range until {
		f.until[a] = later(f.until[a], end)
	}
}

// sweep forgets all that has run out, and empty sets that are not in x. A set that is being made is not in x yet.
func (t *table) sweep(x *index, at time.Time) {
	over := func(_ netip.Addr, end time.Time) bool { return !end.After(at) }
	for of, n := range t.names {
		before := len(n.expiry)
		maps.DeleteFunc(n.expiry, over)
		t.addrs -= before - len(n.expiry)
		if n.full = n.full && (len(n.expiry) >= mostAddrs || t.addrs >= mostInAll); len(n.expiry) == 0 {
			t.drop(of)
		}
	}
	for set, f := range t.force {
		maps.DeleteFunc(f.until, over)
		if f.full = f.full && len(f.until) >= mostInSet; x.sets[set] == nil && len(f.until) == 0 {
			delete(t.force, set)
		}
	}
	t.full = t.full && len(t.names) >= max(0, mostNames-len(x.exact))
}

// Known is a name with its addresses, for people.
type Known struct {
	Name      string
	Addresses []KnownAddr // sorted
}

// KnownAddr is an address of a name, and when it leaves the sets unless it is answered again.
type KnownAddr struct {
	Addr   netip.Addr
	Expiry time.Time
}

// known lists the names that sets of x match.
func (t *table) known(x *index, at time.Time) (all []Known) {
	for of, n := range t.names {
		if !x.matches(of) {
			continue
		}
		k := Known{Name: of}
		for a, end := range n.expiry {
			if end.After(at) {
				k.Addresses = append(k.Addresses, KnownAddr{a, end})
			}
		}
		slices.SortFunc(k.Addresses, func(a, b KnownAddr) int { return a.Addr.Compare(b.Addr) })
		if len(k.Addresses) > 0 {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b Known) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
