package names

import (
	"strconv"
	"time"

	"github.com/egressway/egressway/internal/cluster"
)

// Reasons of problems.
const (
	ReasonNamesPolled     cluster.Reason = "NamesPolled"
	ReasonNamesExhausted  cluster.Reason = "NamesExhausted"
	ReasonNamesUnresolved cluster.Reason = "NamesUnresolved"
)

// Counts holds counts since the start of the process, and the present number of names.
type Counts struct {
	Known   uint64 // answers whose addresses the sets had
	Written uint64 // answers that waited until the sets had their addresses
	Late    uint64 // answers that waited as long as they may, and passed before
	Ignored uint64 // answers that concern no set, and messages that are not read
	Failed  uint64 // answers with addresses that could not be written, or found no room

	Names int
	Waits Waits // of Written, Late and Failed
}

// Waits is a histogram of the times that answers waited.
type Waits struct {
	Count   uint64
	Sum     time.Duration
	Buckets [len(waitBounds)]uint64 // cumulative: answers that waited at most the bound with the same index
}

// waitBounds are the upper bounds of the buckets, in milliseconds.
var waitBounds = [...]uint64{1, 2, 5, 10, 20, 50, 100, 200, 500}

// BySecond returns the buckets by their upper bounds in seconds, as Prometheus has them.
func (w *Waits) BySecond() map[float64]uint64 {
	all := map[float64]uint64{}
	for i, n := range w.Buckets {
		all[float64(waitBounds[i])/1000] = n
	}
	return all
}

func (w *Waits) add(d time.Duration) {
	w.Count++
	w.Sum += d
	for i, bound := range waitBounds {
		if d <= time.Duration(bound)*time.Millisecond {
			w.Buckets[i]++
		}
	}
}

// Counts returns the present counts.
func (s *Service) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts
	c.Names = len(s.table.names)
	return c
}

// count counts an answer that waited. The caller holds the lock.
func (s *Service) count(w waiter, failed, late bool, at time.Time) {
	s.counts.Waits.add(at.Sub(w.arrived))
	switch {
	case failed:
		s.counts.Failed++
	case late:
		s.counts.Late++
	default:
		s.counts.Written++
	}
}

// exhausted reports whether anything found no room. The caller holds the lock.
func (s *Service) exhausted() bool {
	if s.table.full {
		return true
	}
	for _, f := range s.table.force {
		if f.full {
			return true
		}
	}
	return false
}

// noteFull wakes the daemon where the answer of exhausted changed.
func (s *Service) noteFull() {
	s.mu.Lock()
	former := s.wasFull
	s.wasFull = s.exhausted()
	changed := former != s.wasFull
	s.mu.Unlock()
	if changed {
		s.wake()
	}
}

// Problems returns the problems of names on a node.
func (s *Service) Problems(node string) (problems []cluster.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.index.sets) == 0 {
		return nil
	}
	add := func(reason cluster.Reason, value, message string) {
		problems = append(problems, cluster.Problem{
			Kind: "Node", Object: node, Field: "names", Value: value, Reason: reason, Message: message,
		})
	}
	if s.trouble != "" {
		add(ReasonNamesPolled, "", s.trouble+
			"; names of EgressFirewalls are only asked by the daemon: pods may get an address before it is allowed, "+
			"and wildcards match nothing")
	}
	if s.table.full {
		add(ReasonNamesExhausted, "", "more than "+strconv.Itoa(mostNames)+
			" names match EgressFirewalls of this node: further ones are not allowed; list fewer, or use narrower wildcards")
	}
	for set, f := range s.table.force {
		if f.full && s.index.sets[set] != nil {
			add(ReasonNamesExhausted, set, "the names of this policy have more than "+strconv.Itoa(mostInSet)+
				" addresses: further ones are not in the set; list fewer names in its EgressFirewall")
		}
	}
	for of, n := range s.table.names {
		if n.full && s.index.matches(of) {
			add(ReasonNamesExhausted, of, "this name has more than "+strconv.Itoa(mostAddrs)+
				" addresses, or all names of the node "+strconv.Itoa(mostInAll)+
				": further ones are not in the sets; allow its addresses by cidrSelector")
		}
	}
	for _, a := range s.schedule.names {
		if a.unresolved() {
			add(ReasonNamesUnresolved, a.name, a.fault+"; correct the name, or the resolvers of the configuration")
		}
	}
	return brief(cluster.SortProblems(problems))
}

// brief keeps the first three problems of each reason, with the number of the rest.
func brief(problems []cluster.Problem) (kept []cluster.Problem) {
	const most = 3
	seen, last := map[cluster.Reason]int{}, map[cluster.Reason]int{}
	for _, p := range problems {
		if seen[p.Reason]++; seen[p.Reason] <= most {
			last[p.Reason] = len(kept)
			kept = append(kept, p)
			continue
		}
		kept[last[p.Reason]].More++
	}
	return kept
}
