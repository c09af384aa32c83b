package kube

import (
	"cmp"
	"context"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
	"github.com/egressway/egressway/internal/pause"
)

// doubts holds objects that may have been deleted, each with the number of its doubt: a check that began for an older
// doubt does not settle a newer one.
type doubts[K comparable] struct {
	count   int
	lacked  map[K]int     // missing in a list
	removed map[K]removal // deleted according to a watch, perhaps because the CRD is being deleted
	arise   chan struct{}
	removal chan struct{}
}

// removal is an object's deletion that a watch delivered.
type removal struct {
	since int
	at    time.Time
}

func newDoubts[K comparable]() doubts[K] {
	return doubts[K]{
		lacked: map[K]int{}, removed: map[K]removal{}, arise: make(chan struct{}, 1), removal: make(chan struct{}, 1),
	}
}

// lacking records that a known object is missing in a list, and reports whether that is a new doubt.
func (d *doubts[K]) lacking(key K) bool {
	if _, already := d.lacked[key]; already {
		return false
	}
	d.count++
	d.lacked[key] = d.count
	signal(d.arise)
	return true
}

// deleted records that a watch delivered an object's deletion.
func (d *doubts[K]) deleted(key K) {
	d.count++
	d.removed[key] = removal{d.count, time.Now()}
	signal(d.removal)
}

// due returns the deletions that were delivered at least ago before now, and the time until the next one is due. left
// is false if there are no deletions at all.
func (d *doubts[K]) due(ago time.Duration) (due map[K]int, next time.Duration, left bool) {
	due = map[K]int{}
	for key, r := range d.removed {
		wait := ago - time.Since(r.at)
		if wait <= 0 {
			due[key] = r.since
		} else if next == 0 || wait < next {
			next = wait
		}
	}
	return due, next, len(d.removed) > 0
}

// settle ends all doubts about an object, and reports whether a list had raised one.
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

// doubtful returns the Problem that objects missing in a list are kept for now; nil if there are none.
func (s *store[K, V]) doubtful() *cluster.Problem {
	if len(s.doubts.lacked) == 0 {
		return nil
	}
	p := &cluster.Problem{
		Kind: kindAPI, Object: s.resource, Reason: ReasonListDoubted,
		Message: "the API server's list lacks objects that it had before: they stay in force until a second list lacks them too",
	}
	if _, own := s.doubts.lacked[s.own]; own && s.hasOwn {
		p.Message = "the API server's list lacks this very node: lists remove no nodes until one has this node again"
	}
	return p
}

// settleDoubts asks for a second list whenever a list has raised doubts, until ctx ends.
func (s *store[K, V]) settleDoubts(ctx context.Context, k clients) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.doubts.arise:
		}
		if !s.askUntilSettled(ctx, k) {
			signal(s.doubts.arise) // for the next call
			return
		}
	}
}

// askUntilSettled lists the objects again until there is no doubt; false: ctx has ended before.
func (s *store[K, V]) askUntilSettled(ctx context.Context, k clients) bool {
	for wait := s.cluster.pauses.doubt; pause.For(ctx, wait); wait = min(2*wait, s.cluster.pauses.doubtMax) {
		s.cluster.mu.Lock()
		doubted := maps.Clone(s.doubts.lacked)
		s.cluster.mu.Unlock()
		if len(doubted) == 0 {
			return true
		}
		there, err := s.ask(ctx, k, doubted)
		if err == nil && s.cluster.knowsThisNode(ctx, k) { // list reports errors
			s.believe(doubted, there)
		}
	}
	return false
}

// knowsThisNode reports whether the server still has this node's Node, or never had it. A server that lost it has lost data,
// or is another server: objects missing in its lists are no evidence.
func (c *Cluster) knowsThisNode(ctx context.Context, k clients) bool {
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

// ask lists all objects and returns the doubted ones that exist.
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

// believe settles doubts by a second list: there holds the doubted objects that it has.
func (s *store[K, V]) believe(doubted map[K]int, there map[K]*object[K, V]) {
	if _, lacked := doubted[s.own]; lacked && s.hasOwn && there[s.own] == nil {
		return
	}
	s.cluster.change(func() (changed bool) {
		for key, since := range doubted {
			if s.doubts.lacked[key] == since {
				changed = s.put(cmp.Or(there[key], &object[K, V]{key: key})) || changed
			}
		}
		return changed
	})
}

// settleRemovals removes deleted objects once it is known that the server does not delete their kind. When a CRD is deleted, by
// mistake or to replace it, the server deletes all of its objects first; those stay in force here.
func (s *store[K, V]) settleRemovals(ctx context.Context, k clients) {
	defined, _ := s.definitionNow(ctx, k)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.doubts.removal:
		}
		was := defined
		if defined = s.removeDefined(ctx, k, was); defined == was && was != "" {
			pause.For(ctx, s.cluster.pauses.deletion) // many deletions need few questions
		} else if !s.removeLater(ctx, k) {
			signal(s.doubts.removal)
			return
		}
	}
}

// removeDefined removes objects that were deleted before now if the server's storage still has the same definition of their kind.
// It returns the definition's UID; empty: the definition is being deleted, or this daemon may not read it.
func (s *store[K, V]) removeDefined(ctx context.Context, k clients, defined types.UID) types.UID {
	s.cluster.mu.Lock()
	removed, _, _ := s.doubts.due(0)
	s.cluster.mu.Unlock()
	now, err := s.definitionNow(ctx, k)
	if err == nil && now == defined {
		s.removeDeleted(removed)
	}
	return now
}

func (s *store[K, V]) definitionNow(ctx context.Context, k clients) (types.UID, error) {
	bounded, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	return custom.UID(bounded, k.discovery(), s.resource)
}

// removeLater removes the remaining deleted objects once the server has served their kind for a while after. It returns false when
// ctx ends.
func (s *store[K, V]) removeLater(ctx context.Context, k clients) bool {
	about := s.about("removal")
	for again := s.cluster.pauses.deletion; ; {
		s.cluster.mu.Lock()
		removed, wait, left := s.doubts.due(s.cluster.pauses.deletion)
		s.cluster.mu.Unlock()
		if !left {
			s.cluster.complain(about, nil)
			return true
		}
		switch {
		case len(removed) == 0:
		case s.removeServed(ctx, k, about, removed):
			again = s.cluster.pauses.deletion
		default:
			again = min(2*again, retryMost)
			wait = again
		}
		if !pause.For(ctx, wait) {
			return false
		}
	}
}

// removeServed removes deleted objects if the server serves their kind, and reports whether it does.
func (s *store[K, V]) removeServed(ctx context.Context, k clients, about string, removed map[K]int) bool {
	bounded, cancel := context.WithTimeout(ctx, requestWithin)
	err := custom.Creatable(bounded, k.discovery(), s.resource)
	cancel()
	if err == nil {
		s.removeDeleted(removed)
	} else if ctx.Err() == nil {
		s.cluster.complain(about, explain(k.server, s.resource, err))
	}
	return err == nil
}

// removeDeleted removes objects that a watch reported deleted, unless there is a newer doubt about them.
func (s *store[K, V]) removeDeleted(removed map[K]int) {
	s.cluster.change(func() (changed bool) {
		for key, since := range removed {
			if s.doubts.removed[key].since == since {
				changed = s.remove(key) || changed
			}
		}
		return changed
	})
}
