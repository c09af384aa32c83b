package kube

import (
	"context"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/pause"
)

// doubts are objects that may be gone, each since which doubt: an answer to an older one settles no newer one.
type doubts[K comparable] struct {
	count   int
	lacked  map[K]int     // by a list
	removed map[K]removal // by a watch, when perhaps the whole kind is on its way out
	arise   chan struct{}
	removal chan struct{}
}

// removal is when a watch told that an object is gone.
type removal struct {
	since int
	told  time.Time
}

func newDoubts[K comparable]() doubts[K] {
	return doubts[K]{
		lacked: map[K]int{}, removed: map[K]removal{}, arise: make(chan struct{}, 1), removal: make(chan struct{}, 1),
	}
}

// lacking notes that a list lacks an object that was there, and reports whether that is new.
func (d *doubts[K]) lacking(key K) bool {
	if _, already := d.lacked[key]; already {
		return false
	}
	d.count++
	d.lacked[key] = d.count
	signal(d.arise)
	return true
}

// deleted notes that a watch told the end of an object.
func (d *doubts[K]) deleted(key K) {
	d.count++
	d.removed[key] = removal{d.count, time.Now()}
	signal(d.removal)
}

// due gives the removals that were told so long ago, and how long it is until the next is; without any, none is left.
func (d *doubts[K]) due(ago time.Duration) (due map[K]int, next time.Duration, left bool) {
	due = map[K]int{}
	for key, r := range d.removed {
		wait := ago - time.Since(r.told)
		if wait <= 0 {
			due[key] = r.since
		} else if next == 0 || wait < next {
			next = wait
		}
	}
	return due, next, len(d.removed) > 0
}

// settle ends all doubt of an object, and reports whether a list was doubted for it.
func (d *doubts[K]) settle(key K) (doubted bool) {
	_, doubted = d.lacked[key]
	delete(d.lacked, key)
	delete(d.removed, key)
	return doubted
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// doubtful says that what a list lacks is kept for now.
func (s *store[K, V]) doubtful() *cluster.Problem {
	if len(s.doubts.lacked) == 0 {
		return nil
	}
	p := &cluster.Problem{
		Kind: kindAPI, Object: s.resource, Reason: ReasonListDoubted,
		Message: "the API server's list lacks some that were there: they count until a second list lacks them too",
	}
	if _, own := s.doubts.lacked[s.own]; own && s.hasOwn {
		p.Message = "the API server's list lacks this very node: no list does away with any node until it has this one"
	}
	return p
}

// settleDoubts asks for a second list whenever one is doubted, until ctx ends.
func (s *store[K, V]) settleDoubts(ctx context.Context, k clients) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.doubts.arise:
		}
		for wait := s.cluster.pauses.doubt; ; wait = min(2*wait, s.cluster.pauses.doubtMax) {
			if !pause.For(ctx, wait) {
				signal(s.doubts.arise) // for whoever comes next
				return
			}
			s.cluster.mu.Lock()
			doubted := maps.Clone(s.doubts.lacked)
			s.cluster.mu.Unlock()
			if len(doubted) == 0 {
				break
			}
			there, err := s.ask(ctx, k, doubted)
			if err == nil && s.cluster.knowsUs(ctx, k) { // errors are told by list
				s.believe(doubted, there)
			}
		}
	}
}

// knowsUs reports whether the server has this node, if it ever had: one that does not is not what it was, such as one whose
// data was lost, and what it lacks says nothing.
func (c *Cluster) knowsUs(ctx context.Context, k clients) bool {
	c.mu.Lock()
	known := c.nodes.knows(c.nodes.own)
	c.mu.Unlock()
	if !known {
		return true
	}
	us := fields.OneTermEqualSelector(metav1.ObjectNameField, c.nodes.own).String()
	list, err := c.nodes.list(ctx, k, metav1.ListOptions{FieldSelector: us})
	return err == nil && meta.LenList(list) == 1
}

// ask lists what is there right now, and gives those that are doubted.
func (s *store[K, V]) ask(ctx context.Context, k clients, doubted map[K]int) (map[K]*object[K, V], error) {
	there := map[K]*object[K, V]{}
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return s.list(ctx, k, o) })
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		x, err := s.read(o)
		if err != nil {
			return err
		}
		if _, doubted := doubted[x.key]; doubted {
			there[x.key] = x
		}
		return nil
	})
	return there, err
}

// believe settles doubts by what a second list has of the doubted ones.
func (s *store[K, V]) believe(doubted map[K]int, there map[K]*object[K, V]) {
	if _, lacked := doubted[s.own]; lacked && s.hasOwn && there[s.own] == nil {
		return
	}
	s.cluster.change(func() (changed bool) {
		for key, since := range doubted {
			if s.doubts.lacked[key] != since {
				continue
			}
			if x, ok := there[key]; ok {
				changed = s.put(x) || changed
			} else {
				changed = s.remove(key) || changed
			}
		}
		return changed
	})
}

// settleRemovals believes deletions once it is known that the kind itself is there to stay: who deletes a CRD, by mistake
// or to replace it, has the server delete all of its objects first. What they stand for is not given up then.
func (s *store[K, V]) settleRemovals(ctx context.Context, k clients) {
	about := s.resource + " removal"
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.doubts.removal:
		}
		for again := s.cluster.pauses.deletion; ; {
			s.cluster.mu.Lock()
			removed, wait, left := s.doubts.due(s.cluster.pauses.deletion)
			s.cluster.mu.Unlock()
			if !left {
				break
			}
			if len(removed) > 0 {
				bounded, cancel := context.WithTimeout(ctx, requestWithin)
				err := s.served(bounded, k)
				cancel()
				if err == nil {
					s.bury(removed)
					again = s.cluster.pauses.deletion
				} else {
					if ctx.Err() == nil {
						s.cluster.complain(about, explain(k.server, s.resource, err))
					}
					again = min(2*again, retryMost)
					wait = again
				}
			}
			if !pause.For(ctx, wait) {
				signal(s.doubts.removal)
				return
			}
		}
		s.cluster.complain(about, nil)
	}
}

// bury takes leave of what was deleted.
func (s *store[K, V]) bury(removed map[K]int) {
	s.cluster.change(func() (changed bool) {
		for key, since := range removed {
			if s.doubts.removed[key].since == since {
				changed = s.remove(key) || changed
			}
		}
		return changed
	})
}
