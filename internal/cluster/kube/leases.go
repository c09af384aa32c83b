package kube

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// watchLeases calls to for every change of the Leases in the daemon's namespace that choose selects, until ctx ends. what is
// the name of this watch in Problems.
func (c *Cluster) watchLeases(ctx context.Context, k clients, what string, choose func(*metav1.ListOptions), to *leases) {
	at := k.core.CoordinationV1().Leases(c.options.Namespace)
	tell := func(err error) {
		if ctx.Err() == nil && !apierrors.IsResourceExpired(err) && !apierrors.IsInvalid(err) { // a list follows these
			c.outcome(k, what, leaseResource, err)
		}
	}
	defer c.outcome(k, what, leaseResource, nil)
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			choose(&o)
			list, err := at.List(ctx, o)
			tell(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			choose(&o)
			w, err := at.Watch(ctx, o)
			tell(err)
			return w, err
		},
	}
	cache.NewReflectorWithOptions(from, &coordinationv1.Lease{}, to, cache.ReflectorOptions{Name: what, Backoff: backoff()}).RunWithContext(ctx)
}

// leases implements a reflector's store by calling functions.
type leases struct {
	changed func(*coordinationv1.Lease) // it was created or updated
	deleted func(*coordinationv1.Lease)
	listed  func([]*coordinationv1.Lease) // all that exist
}

func (l *leases) Add(o any) error {
	if lease, ok := o.(*coordinationv1.Lease); ok {
		l.changed(lease)
	}
	return nil
}

func (l *leases) Update(o any) error { return l.Add(o) }

func (l *leases) Delete(o any) error {
	if lease, ok := o.(*coordinationv1.Lease); ok {
		l.deleted(lease)
	}
	return nil
}

func (l *leases) Replace(list []any, _ string) error {
	all := make([]*coordinationv1.Lease, 0, len(list))
	for _, o := range list {
		if lease, ok := o.(*coordinationv1.Lease); ok {
			all = append(all, lease)
		}
	}
	l.listed(all)
	return nil
}

func (l *leases) Resync() error { return nil }
