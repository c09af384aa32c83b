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
	"github.com/egressway/egressway/internal/pause"
)

const (
	// listWithin bounds a list, so that a server that is silent is noticed. One that is slow is given more time by and by.
	listWithin    = 15 * time.Second
	listWithinMax = 2 * time.Minute
)

// kind is what one kind of object has of its own.
type kind[K comparable, V any] struct {
	resource string // as kubectl names it
	example  runtime.Object
	client   func(clients) rest.Interface
	trim     func(any) (x object[K, V], fits bool)
	changed  func(key K)                          // told of every change, may be nil
	moved    func(key K, from, to V)              // told of it too, may be nil
	settle   func(former V, next *V)              // has its say in what is kept in place of a former one, may be nil
	served   func(context.Context, clients) error // asked before a deletion is believed, may be nil
	optional bool                                 // old servers do not serve it
	fields   string                               // a field selector: of all, only these are asked for
	own      K                                    // what no list lacks that is believed
	hasOwn   bool
	within   *atomic.Int64 // a list is bounded by
}

func newStore[K comparable, V any](c *Cluster, k kind[K, V]) *store[K, V] {
	k.within = new(atomic.Int64)
	return &store[K, V]{kind: k, cluster: c, problems: map[K][]cluster.Problem{}, doubts: newDoubts[K]()}
}

// follow keeps the store equal to what the server has, until ctx ends.
func (s *store[K, V]) follow(ctx context.Context, k clients) {
	var g sync.WaitGroup
	defer g.Wait()
	g.Go(func() { s.settleDoubts(ctx, k) })
	if s.served != nil {
		g.Go(func() { s.settleRemovals(ctx, k) })
	}
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := s.list(ctx, k, o)
			if s.optional && apierrors.IsNotFound(err) {
				err = errors.Join(err, s.Replace(nil, "")) // there are none
				pause.For(ctx, s.cluster.pauses.unserved)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return s.watch(ctx, k, o) },
	}
	// The usual pause grows to half a minute and more, so long a server that is back would not be noticed.
	cache.NewReflectorWithOptions(from, s.example, s, cache.ReflectorOptions{Name: s.resource, Backoff: backoff()}).RunWithContext(ctx)
}

func (s *store[K, V]) list(ctx context.Context, k clients, o metav1.ListOptions) (runtime.Object, error) {
	within := max(listWithin, time.Duration(s.within.Load()))
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	list, err := s.request(k, &o).Do(bounded).Get()
	switch who := s.resource + " list"; {
	case ctx.Err() != nil:
	case s.optional && apierrors.IsNotFound(err):
		s.cluster.complain(who, nil)
		s.cluster.complain(s.resource+" watch", nil)
	case err != nil:
		if errors.Is(err, context.DeadlineExceeded) {
			s.within.Store(int64(min(2*within, listWithinMax)))
		}
		if p := explain(k.server, s.resource, err); p != nil {
			s.cluster.complain(who, p)
		}
	default:
		s.cluster.complain(who, nil)
	}
	return list, err
}

func (s *store[K, V]) watch(ctx context.Context, k clients, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	w, err := within(ctx, s.cluster.pauses.answer, s.request(k, &o), o.TimeoutSeconds)
	switch who := s.resource + " watch"; {
	case ctx.Err() != nil:
	case err == nil:
		s.cluster.complain(who, nil)
	case o.SendInitialEvents != nil && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)), s.optional && apierrors.IsNotFound(err):
		// A server that does not list by watches is asked for a list next.
		s.cluster.complain(who, nil)
	default:
		if p := explain(k.server, s.resource, err); p != nil {
			s.cluster.complain(who, p)
		}
	}
	return w, err
}

// within bounds the time that a watch takes to begin, and to end when it was to: what stands between may be silent for
// ever.
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

// boundedWatch is a watch that ends in time.
type boundedWatch struct {
	watch.Interface
	cancel func()
	late   *time.Timer // nil: any time will do
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
	if s.fields != "" {
		o.FieldSelector = s.fields
	}
	return s.client(k).Get().Resource(name).VersionedParams(o, metav1.ParameterCodec)
}
