package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/egressway/egressway/internal/cluster"
)

const (
	// listWithin bounds a list, so that a server that does not answer is noticed. Each list that takes longer doubles the
	// bound, up to listWithinMax.
	listWithin    = 15 * time.Second
	listWithinMax = 2 * time.Minute
)

// kind holds the differences between kinds of objects.
type kind[K comparable, V any] struct {
	resource  string // as kubectl names it
	name      string // of the complaints about it, where another kind has the same resource; empty: resource
	example   runtime.Object
	client    func(clients) rest.Interface
	trim      func(any) (x object[K, V], fits bool)
	changed   func(key K)             // called after every change; may be nil
	moved     func(key K, from, to V) // the same, with the values before and after; may be nil
	settle    func(former V, next *V) // adjusts a new value that replaces a former one; may be nil
	custom    bool                    // the server has it by a CRD, which is named as resource
	optional  bool                    // a server need not have it
	spare     bool                    // a daemon that may not list it does not wait for it, see unread
	namespace string                  // of the objects; empty: all namespaces, or none
	labels    string                  // label selector of lists and watches
	fields    func() string           // returns a field selector of lists and watches, or ""; may be nil
	lists     func(key K) bool        // reports whether lists have this object, by that selector; may be nil
	listed    func() (changed bool)   // called after every list, and reports whether Objects is another for it; may be nil
	noted     func()                  // called after every change of an object or its problems; may be nil
	own       K                       // key of this node's object; a list without it is not believed
	hasOwn    bool
	within    *atomic.Int64 // bound of a list
}

func newStore[K comparable, V any](c *Cluster, k kind[K, V]) *store[K, V] {
	k.within = new(atomic.Int64)
	return &store[K, V]{kind: k, cluster: c, problems: map[K][]cluster.Problem{}, doubts: newDoubts[K]()}
}

// follow keeps the store equal to the server's objects until ctx ends.
func (s *store[K, V]) follow(ctx context.Context, k clients) {
	var g sync.WaitGroup
	defer g.Wait()
	g.Go(func() { s.settleDoubts(ctx, k) })
	if s.custom {
		g.Go(func() { s.settleRemovals(ctx, k) })
	}
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := s.list(ctx, k, o)
			if errors.Is(err, errAbsent) {
				err = errors.Join(err, s.awaitKind(ctx, k))
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return s.watch(ctx, k, o) },
	}
	// client-go's usual pause grows to 30 s and more: a server that is back would be noticed that late.
	cache.NewReflectorWithOptions(from, s.example, s, cache.ReflectorOptions{Name: s.resource, Backoff: backoff()}).RunWithContext(ctx)
}

func (s *store[K, V]) list(ctx context.Context, k clients, o metav1.ListOptions) (runtime.Object, error) {
	within := max(listWithin, time.Duration(s.within.Load()))
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	granted := k.granted.Load() // before the request: a server that starts refuses all requests until it has read its roles
	list, err := s.request(k, &o).Do(bounded).Get()
	switch about := s.about("list"); {
	case ctx.Err() != nil:
	case s.absent(ctx, k, err):
		err = errors.Join(err, errAbsent) // awaitKind says more
	case err != nil:
		if errors.Is(err, context.DeadlineExceeded) {
			s.within.Store(int64(min(2*within, listWithinMax)))
		}
		if p := explain(k.server, s.resource, err); p != nil {
			s.cluster.complain(about, p)
		}
		if s.spare && granted && apierrors.IsForbidden(err) {
			s.unread()
		}
	default:
		s.cluster.complain(about, nil)
		s.answered(k)
	}
	return list, err
}

func (s *store[K, V]) watch(ctx context.Context, k clients, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	w, err := within(ctx, s.cluster.pauses.answer, s.request(k, &o), o.TimeoutSeconds)
	switch about := s.about("watch"); {
	case ctx.Err() != nil:
	case err == nil:
		s.cluster.complain(about, nil)
		s.answered(k)
	case s.unsupported(ctx, k, o, err):
		s.cluster.complain(about, nil)
	default:
		if p := explain(k.server, s.resource, err); p != nil {
			s.cluster.complain(about, p)
		}
	}
	return w, err
}

// answered records that the server has answered a list or watch with these clients.
func (s *store[K, V]) answered(k clients) {
	if s.resource == egressResource {
		k.granted.Store(true)
	}
}

// unsupported reports whether a watch failed because the server has no such objects, or because it does not support
// watches that begin with a list: the reflector lists next.
func (s *store[K, V]) unsupported(ctx context.Context, k clients, o metav1.ListOptions, err error) bool {
	return s.absent(ctx, k, err) || o.SendInitialEvents != nil && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err))
}

// within bounds the time until a watch begins, and ends it if it lasts longer than it was asked to: a proxy or firewall
// on the way may drop its packets silently.
func within(ctx context.Context, answer time.Duration, q *rest.Request, last *int64) (watch.Interface, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(answer, func() { cancel(context.DeadlineExceeded) })
	w, err := q.Watch(ctx)
	if !late.Stop() { // also if it began just now: its context is over
		err = fmt.Errorf("begin to watch: %w", context.DeadlineExceeded)
	}
	if err != nil {
		if w != nil {
			w.Stop()
		}
		cancel(nil)
		return nil, err
	}
	b := &boundedWatch{Interface: w, cancel: func() { cancel(nil) }}
	if last != nil {
		b.late = time.AfterFunc(time.Duration(*last)*time.Second+answer, b.cancel)
	}
	return b, nil
}

// boundedWatch is a watch that late ends.
type boundedWatch struct {
	watch.Interface
	cancel func()
	late   *time.Timer // nil: the watch has no end
}

// Stop ends the watch.
func (w *boundedWatch) Stop() {
	if w.late != nil {
		w.late.Stop()
	}
	w.Interface.Stop()
	w.cancel()
}

func (s *store[K, V]) request(k clients, o *metav1.ListOptions) *rest.Request {
	name, _, _ := strings.Cut(s.resource, ".")
	if s.fields != nil && o.FieldSelector == "" {
		o.FieldSelector = s.fields()
	}
	o.LabelSelector = s.labels
	return s.client(k).Get().NamespaceIfScoped(s.namespace, s.namespace != "").Resource(name).VersionedParams(o, metav1.ParameterCodec)
}
