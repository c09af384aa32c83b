package kube

import (
	"cmp"
	"fmt"
	"iter"
	"reflect"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/egressway/egressway/internal/cluster"
)

// object holds the parts of an object that are kept.
type object[K comparable, V any] struct {
	key      K
	value    V
	problems []cluster.Problem
	ok       bool // false: only the problems are kept
}

// store holds the objects of one kind. A reflector fills it.
//
// Objects that the API server delivers are stored at once. An object is removed when a watch reports its deletion; one
// that is only missing in a list stays until a second list lacks it too (doubts.go).
type store[K comparable, V any] struct {
	kind[K, V]
	cluster *Cluster

	// The Cluster's mutex guards the fields below.
	objects  cluster.Draft[K, V]
	problems map[K][]cluster.Problem
	synced   bool
	served   bool // the last list was answered
	doubts   doubts[K]
}

// Transformer makes the reflector trim objects as they arrive.
func (s *store[K, V]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) { return s.read(o) }
}

// read trims an object, unless it is trimmed already.
func (s *store[K, V]) read(o any) (*object[K, V], error) {
	switch o := o.(type) {
	case *object[K, V]:
		return o, nil
	case cache.DeletedFinalStateUnknown:
		return s.read(o.Obj)
	}
	x, fits := s.trim(o)
	if !fits {
		return nil, fmt.Errorf("%s: %T is no such object", s.resource, o)
	}
	return &x, nil
}

// Add stores an object.
func (s *store[K, V]) Add(o any) error {
	x, err := s.read(o)
	if err != nil {
		return err
	}
	s.cluster.change(func() bool { return s.put(x) })
	return nil
}

// Update is Add.
func (s *store[K, V]) Update(o any) error { return s.Add(o) }

// Delete removes an object, or leaves that to settleRemovals.
func (s *store[K, V]) Delete(o any) error {
	x, err := s.read(o)
	if err != nil {
		return err
	}
	s.cluster.change(func() bool {
		if s.custom && s.knows(x.key) {
			s.doubts.deleted(x.key)
			return false
		}
		return s.remove(x.key)
	})
	return nil
}

// Replace stores a complete list of objects.
func (s *store[K, V]) Replace(list []any, _ string) error {
	listed := make([]*object[K, V], 0, len(list))
	for _, o := range list {
		x, err := s.read(o)
		if err != nil {
			return err
		}
		listed = append(listed, x)
	}
	s.cluster.complain(s.about("list"), nil) // a list by a watch counts, too
	s.cluster.complain(s.about("absent"), nil)
	s.cluster.change(func() bool { return s.replace(listed) })
	return nil
}

// replace stores a complete list of objects, and reports whether anything differs.
func (s *store[K, V]) replace(listed []*object[K, V]) (changed bool) {
	changed = !s.synced
	for _, x := range listed {
		changed = s.put(x) || changed
	}
	changed = s.doubtUnlisted(listed) || changed
	s.synced, s.served = true, true
	s.cluster.checkSynced()
	if s.listed != nil {
		changed = s.listed() || changed
	}
	return changed
}

// doubtUnlisted doubts the known objects that a complete list lacks, and reports whether one of the doubts is new.
func (s *store[K, V]) doubtUnlisted(listed []*object[K, V]) (arisen bool) {
	there := make(map[K]bool, len(listed))
	for _, x := range listed {
		there[x.key] = true
	}
	for key := range s.known() {
		if !there[key] && (s.lists == nil || s.lists(key)) && s.doubts.lacking(key) {
			arisen, s.cluster.problemsChanged = true, true
		}
	}
	return arisen
}

// about returns the key of the complaints about a request for the objects.
func (s *store[K, V]) about(request string) string { return cmp.Or(s.name, s.resource) + " " + request }

// withdraw withdraws all complaints.
func (s *store[K, V]) withdraw() {
	for _, request := range []string{"list", "watch", "removal", "absent"} {
		s.cluster.complain(s.about(request), nil)
	}
}

// Resync does nothing.
func (s *store[K, V]) Resync() error { return nil }

// put stores an object, and reports whether it differs from the former one.
func (s *store[K, V]) put(x *object[K, V]) (changed bool) {
	changed = s.set(x)
	if changed && s.noted != nil {
		s.noted()
	}
	return changed
}

func (s *store[K, V]) set(x *object[K, V]) (changed bool) {
	changed = s.doubts.settle(x.key)
	changed = s.setProblems(x) || changed
	if changed {
		s.cluster.problemsChanged = true
	}
	if x.ok {
		return s.setValue(x) || changed
	}
	former, had := s.objects.Get(x.key)
	if had {
		s.objects.Delete(x.key)
		s.notify(x.key, former, x.value)
	}
	return had || changed
}

// setProblems replaces an object's problems, and reports whether they differ.
func (s *store[K, V]) setProblems(x *object[K, V]) (changed bool) {
	if reflect.DeepEqual(s.problems[x.key], x.problems) {
		return false
	}
	if delete(s.problems, x.key); len(x.problems) > 0 {
		s.problems[x.key] = x.problems
	}
	return true
}

// setValue replaces an object's value, and reports whether it differs.
func (s *store[K, V]) setValue(x *object[K, V]) (changed bool) {
	former, had := s.objects.Get(x.key)
	if had && s.settle != nil {
		s.settle(former, &x.value)
	}
	if had && reflect.DeepEqual(former, x.value) {
		return false
	}
	s.objects.Set(x.key, x.value)
	s.notify(x.key, former, x.value)
	return true
}

// notify calls the functions that follow changes of values.
func (s *store[K, V]) notify(key K, former, now V) {
	if s.moved != nil {
		s.moved(key, former, now)
	}
	if s.changed != nil {
		s.changed(key)
	}
}

// remove removes an object, and reports whether it was there.
func (s *store[K, V]) remove(key K) (changed bool) {
	return s.put(&object[K, V]{key: key})
}

func (s *store[K, V]) knows(key K) bool {
	_, there := s.objects.Get(key)
	return there || s.problems[key] != nil
}

// known iterates over the keys of all objects, also of those that have only problems. Keys may occur twice.
func (s *store[K, V]) known() iter.Seq[K] {
	return func(yield func(K) bool) {
		for key := range s.objects.All() {
			if !yield(key) {
				return
			}
		}
		for key := range s.problems {
			if !yield(key) {
				return
			}
		}
	}
}

func (s *store[K, V]) isSynced() bool { return s.synced }

// found returns the problems of the objects and of their lists.
func (s *store[K, V]) found() (problems []cluster.Problem) {
	for _, p := range s.problems {
		problems = append(problems, p...)
	}
	if p := s.doubtful(); p != nil {
		problems = append(problems, *p)
	}
	return problems
}

// interner interns strings that many objects share.
type interner struct {
	mu   sync.Mutex
	kept map[string]string
}

// internedMost bounds how many values are interned. Above it, the interner starts from empty.
const internedMost = 1 << 14

func (w *interner) intern(word string) string {
	if word == "" {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if kept, ok := w.kept[word]; ok {
		return kept
	}
	if w.kept == nil || len(w.kept) >= internedMost {
		w.kept = map[string]string{}
	}
	word = strings.Clone(word)
	w.kept[word] = word
	return word
}

// selectors interns label selectors.
type selectors struct {
	mu   sync.Mutex
	kept map[string]*metav1.LabelSelector // by their text, which different selectors may share
}

func (s *selectors) intern(selector *metav1.LabelSelector) *metav1.LabelSelector {
	if selector == nil {
		return nil
	}
	text := selector.String()
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept := s.kept[text]; kept != nil && reflect.DeepEqual(kept, selector) {
		return kept
	}
	if s.kept == nil || len(s.kept) >= internedMost {
		s.kept = map[string]*metav1.LabelSelector{}
	}
	s.kept[text] = selector
	return selector
}
