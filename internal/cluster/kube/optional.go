package kube

import (
	"context"
	"errors"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
	"github.com/egressway/egressway/internal/pause"
)

// errAbsent is part of the error of a list of objects of which the server has no kind, which it need not have.
var errAbsent = errors.New("the server has no such kind of objects")

// absent reports whether a request failed because the server has no such kind of objects, which it need not have.
func (s *store[K, V]) absent(ctx context.Context, k clients, failed error) bool {
	switch {
	case !s.optional || failed == nil:
		return false
	case s.custom:
		ctx, cancel := context.WithTimeout(ctx, requestWithin)
		defer cancel()
		return custom.Absent(ctx, k.discovery(), s.resource, failed)
	default:
		return apierrors.IsNotFound(failed)
	}
}

// awaitKind stores that the server has no such kind of objects, and returns when it may have. Objects of a CRD that was deleted stay
// in force, with a Problem: it may have been deleted by mistake, or for another version.
func (s *store[K, V]) awaitKind(ctx context.Context, k clients) error {
	s.cluster.complain(s.about("list"), nil)
	s.cluster.complain(s.about("watch"), nil)
	if !s.custom {
		err := s.Replace(nil, "")
		pause.For(ctx, s.cluster.pauses.unserved)
		return err
	}
	s.unread()
	s.cluster.complain(s.about("absent"), s.orphaned())
	if custom.Await(ctx, k.discovery(), s.resource, s.cluster.pauses.unserved) != nil {
		pause.For(ctx, s.cluster.pauses.unserved) // this daemon may not watch CRDs
	}
	return nil
}

// unread stores that the objects cannot be listed now, and are not waited for. Those that are known stay.
func (s *store[K, V]) unread() {
	s.cluster.change(func() bool {
		former := s.synced
		s.synced, s.served = true, false
		s.cluster.checkSynced()
		return !former
	})
}

// orphaned returns the Problem that objects are in force whose kind the server does not have any more; nil: there are none.
func (s *store[K, V]) orphaned() *cluster.Problem {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	for range s.known() {
		return missingCRD(s.resource)
	}
	return nil
}

// switched is a store that follows the server only while it is wanted: a watch has its cost.
type switched[K comparable, V any] struct {
	*store[K, V]
	wanted bool          // guarded by the Cluster's mutex, as turned is
	turned chan struct{} // closed when wanted changes
}

func newSwitched[K comparable, V any](s *store[K, V], wanted bool) *switched[K, V] {
	return &switched[K, V]{store: s, wanted: wanted, turned: make(chan struct{})}
}

// turn switches the store on or off, and reports whether Objects may be another for it. The caller holds the mutex.
func (s *switched[K, V]) turn(want bool) (changed bool) {
	if s.wanted == want {
		return false
	}
	s.wanted = want
	close(s.turned)
	s.turned = make(chan struct{})
	before := s.cluster.synced.Load()
	s.cluster.checkSynced() // only this may have been missing
	return before != s.cluster.synced.Load() || s.synced
}

// isSynced reports whether the kind delays a snapshot no longer.
func (s *switched[K, V]) isSynced() bool { return !s.wanted || s.store.isSynced() }

// follow keeps the objects up to date while they are wanted, until ctx ends.
func (s *switched[K, V]) follow(ctx context.Context, k clients) {
	for ctx.Err() == nil {
		s.cluster.mu.Lock()
		wanted, turned := s.wanted, s.turned
		s.cluster.mu.Unlock()
		if !wanted {
			s.forget()
			select {
			case <-ctx.Done():
			case <-turned:
			}
			continue
		}
		on, cancel := context.WithCancel(ctx)
		var g sync.WaitGroup
		g.Go(func() {
			defer cancel()
			select {
			case <-on.Done():
			case <-turned:
			}
		})
		s.store.follow(on, k)
		cancel()
		g.Wait()
	}
}

// forget drops objects that are no longer wanted, with their problems.
func (s *switched[K, V]) forget() {
	s.cluster.change(func() bool {
		if s.wanted || !s.synced {
			return false
		}
		former, changed := s.objects, len(s.problems) > 0
		s.cluster.problemsChanged = s.cluster.problemsChanged || changed
		s.objects, s.problems, s.synced, s.doubts = cluster.Draft[K, V]{}, map[K][]cluster.Problem{}, false, newDoubts[K]()
		for key := range former.All() { // they may have changed when they are known again
			s.changed(key)
			changed = true
		}
		if s.noted != nil {
			s.noted()
		}
		return changed
	})
	s.withdraw()
}

// optional is an optionalKind of any type.
type optional interface {
	follower
	kindOf() cluster.Kind
	turn(want bool) (changed bool)
	// needsPods reports whether there are objects that select Pods.
	needsPods() bool
}

// optionalKind holds the objects of a kind that a server need not have, and that the configuration may switch off.
type optionalKind[K comparable, V any] struct {
	*switched[K, V]
	of   cluster.Kind
	pods bool // its objects select Pods of this node
}

// newOptional returns the store of an optional kind whose CRD has a name. convert trims an object; objects of kinds with pods make
// this daemon follow the Pods of its node.
func newOptional[V any](
	c *Cluster, of cluster.Kind, crd string, pods bool, convert func(*custom.Object) object[cluster.Key, V],
) *optionalKind[cluster.Key, V] {
	s := &c.source
	return &optionalKind[cluster.Key, V]{of: of, pods: pods, switched: newSwitched(newStore(c, kind[cluster.Key, V]{
		resource: crd, example: &custom.Object{}, custom: true, optional: true, client: rawClient, noted: s.wantPods,
		spare: of == cluster.KindEgressIP,
		changed: func(key cluster.Key) {
			if !s.changed.All { // All includes every key
				s.changed.Add(of.ID(key))
			}
		},
		trim: trimmer(func(r *custom.Object) object[cluster.Key, V] {
			o := convert(r)
			o.key.Namespace = s.texts.intern(o.key.Namespace)
			return o
		}),
	}), !c.options.Off[of])}
}

func (o *optionalKind[K, V]) kindOf() cluster.Kind { return o.of }

func (o *optionalKind[K, V]) needsPods() bool {
	now := o.objects.Map()
	return o.pods && now.Len() > 0
}

// TurnOff follows the optional kinds except those in off, whose objects Objects then lacks.
func (c *Cluster) TurnOff(off cluster.KindSet) {
	c.change(func() (changed bool) {
		for _, o := range c.optional {
			changed = o.turn(!off[o.kindOf()]) || changed
		}
		return changed
	})
}

// metaOf returns what the leader needs of an object. Of a status that cannot be decoded nothing is kept: the leader replaces it.
func (s *source) metaOf(r *custom.Object) (m cluster.Meta) {
	m.UID, m.Generation = string(r.UID), r.Generation
	m.Version, _ = strconv.ParseUint(r.ResourceVersion, 10, 64) // 0 (unknown) on servers whose versions are not numbers
	var status struct {
		Status     string             `json:"status"`
		Messages   []string           `json:"messages"`
		Conditions []metav1.Condition `json:"conditions"`
	}
	if custom.Decode(r.Status, &status) != nil {
		return m
	}
	m.Status = cluster.TextStatus{Text: s.texts.intern(status.Status), Messages: status.Messages, Conditions: status.Conditions}
	for i := range m.Status.Conditions {
		c := &m.Status.Conditions[i]
		c.Type, c.Reason, c.Message = s.texts.intern(c.Type), s.texts.intern(c.Reason), s.texts.intern(c.Message)
	}
	return m
}

// unreadable returns the Problem of a part of an object that cannot be decoded.
func unreadable(of cluster.Kind, r *custom.Object, field string, err error) cluster.Problem {
	return cluster.Problem{
		Kind: of.String(), Object: cluster.Key{Namespace: r.Namespace, Name: r.Name}.String(), Field: field,
		Reason: cluster.ReasonInvalidValue, Message: "cannot be read: " + err.Error(),
	}
}
