package names

import (
	"container/heap"
	"time"
)

// Pauses between two questions about a name.
const (
	leastPause = 5 * time.Second // after an answer with a shorter TTL, and after the first failure
	mostPause  = 30 * time.Minute
	mostRetry  = 2 * time.Minute // after a failure; the pause doubles up to here
)

// schedule says when this daemon asks for names. It is pure: callers hand the time in.
type schedule struct {
	names map[string]*asked
	queue byDue // those that are not being asked
}

// asked is a name that this daemon asks for.
type asked struct {
	name  string
	due   time.Time
	last  time.Time     // of the last question
	retry time.Duration // pause after the last failure; 0: it was answered, or is new
	fault string        // of the last failure
	bare  int           // questions in a row that brought no address
	at    int           // in the queue; -1: the question is under way
}

func newSchedule() *schedule { return &schedule{names: map[string]*asked{}} }

// serve replaces the names. New ones are due at once.
func (s *schedule) serve(names map[string][]*Set, at time.Time) {
	for of, a := range s.names {
		if names[of] == nil {
			delete(s.names, of)
			if a.at >= 0 {
				heap.Remove(&s.queue, a.at)
			}
		}
	}
	for of := range names {
		if s.names[of] == nil {
			a := &asked{name: of, due: at}
			s.names[of] = a
			heap.Push(&s.queue, a)
		}
	}
}

// restart makes all names due that could not be resolved, since other resolvers are asked from now on.
func (s *schedule) restart(at time.Time) {
	for _, a := range s.names {
		if a.retry > 0 {
			a.retry, a.bare = 0, 0
			s.hurry(a, at)
		}
	}
}

// want makes a name due, unless it was asked just now.
func (s *schedule) want(of string, at time.Time) bool {
	a := s.names[of]
	if a == nil || a.at < 0 || at.Sub(a.last) < leastPause || !a.due.After(at) {
		return false
	}
	s.hurry(a, at)
	return true
}

func (s *schedule) hurry(a *asked, at time.Time) {
	if a.due = at; a.at >= 0 {
		heap.Fix(&s.queue, a.at)
	}
}

// next returns a name that is due, which is under way until done; or else the time at which the next one is, zero: never.
func (s *schedule) next(at time.Time) (name string, due time.Time) {
	if len(s.queue) == 0 {
		return "", time.Time{}
	}
	first := s.queue[0]
	if first.due.After(at) {
		return "", first.due
	}
	heap.Pop(&s.queue)
	first.last = at
	return first.name, time.Time{}
}

// unresolved reports whether two questions in a row brought no address. A name that has addresses of one family counts as resolved: some
// servers never answer for the other family.
func (a *asked) unresolved() bool { return a.bare > 1 }

// done notes that a name was asked: the least TTL of its addresses, 0 without any, and the fault. With both, where one family was not
// answered, the next question comes before the other one's addresses run out. It reports whether the result of unresolved changed.
func (s *schedule) done(of string, ttl time.Duration, fault error, at time.Time) bool {
	a := s.names[of]
	if a == nil || a.at >= 0 { // removed meanwhile, and perhaps listed again
		return false
	}
	before := a.unresolved()
	pause := min(max(ttl, leastPause), mostPause)
	if a.fault = ""; fault != nil {
		a.retry = min(max(2*a.retry, leastPause), mostRetry)
		if a.fault = fault.Error(); ttl == 0 {
			a.bare++
			pause = a.retry
		} else {
			a.bare = 0
			pause = min(pause, a.retry)
		}
	} else {
		a.retry, a.bare = 0, 0
	}
	a.due = at.Add(pause)
	heap.Push(&s.queue, a)
	return before != a.unresolved()
}

// byDue is a heap of names.
type byDue []*asked

func (q byDue) Len() int           { return len(q) }
func (q byDue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }

func (q byDue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

func (q *byDue) Push(x any) {
	a := x.(*asked)
	a.at = len(*q)
	*q = append(*q, a)
}

func (q *byDue) Pop() any {
	last := len(*q) - 1
	a := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	a.at = -1
	return a
}
