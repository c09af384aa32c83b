package kube

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/egressway/egressway/api/v1alpha1"
	"github.com/egressway/egressway/internal/cluster/kube/nodestate"
)

const (
	// leaseName is the name of the Lease whose holder leads.
	leaseName = "egressway"

	// Resources in requests of the coordination, as kubectl names them.
	leaseResource = "leases.coordination.k8s.io"
	eventResource = "events"
	nodeResource  = "nodes"

	nodeStateResource = v1alpha1.EgressNodes + ".egressway.io"

	// requestWithin bounds a request, so that a server that does not answer is noticed.
	requestWithin = 10 * time.Second
)

// coordination holds a Cluster's part in coordinating the daemons of all nodes: this node's report, and the leader's
// election.
type coordination struct {
	timing timing
	report report
	states *nodestate.Writer
	lease  sighting
	term   atomic.Pointer[term] // while this daemon leads
	pruned atomic.Bool          // the CRD drops all of a status but the host, as upstream's does

	// earlier means that the CRD is of an earlier version of Egressway, and drops observedGeneration and ingressIPs.
	earlier atomic.Bool
}

// timing holds the durations of the coordination. Those of Leases are whole seconds.
type timing struct {
	lease time.Duration // how long the leader's Lease lasts
	renew time.Duration // how long the leader tries to renew it before it stops leading
	retry time.Duration // how often the leader tries

	life time.Duration // how long a node's Lease lasts
	beat time.Duration // how often a node renews its Lease
}

var usualTiming = timing{
	lease: 15 * time.Second, renew: 10 * time.Second, retry: 2 * time.Second,
	life: 60 * time.Second, beat: 20 * time.Second,
}

// coordinate reports this node and shares its addresses, watches the leader's Lease and its roster of the Nodes, and stands
// for election until ctx ends. A leader then releases its Lease.
func (c *Cluster) coordinate(ctx context.Context, k clients) {
	if c.timing == (timing{}) {
		c.timing = usualTiming
	}
	var g sync.WaitGroup
	g.Go(func() { c.writeReports(ctx, k) })
	g.Go(func() {
		defer c.outcome(k, "report the node", nodeStateResource, nil)
		c.states.Run(ctx, k.core.Discovery().RESTClient(), func(err error) { c.outcome(k, "report the node", nodeStateResource, err) })
	})
	g.Go(func() { c.addresses.share(ctx, k) })
	g.Go(func() { c.watchLease(ctx, k) })
	g.Go(func() { c.watchRoster(ctx, k) })
	g.Go(func() { c.contend(ctx, k) })
	g.Wait()
}

// outcome reports the error of a request that is repeated until it succeeds, as a Problem; nil withdraws the Problem.
func (c *Cluster) outcome(k clients, request, resource string, err error) {
	if err == nil {
		c.complain(request, nil)
		return
	}
	c.complain(request, explain(k.server, resource, err))
}

// watchLeases calls to for every change of the Leases in the daemon's namespace that choose selects, until ctx ends. what is
// the name of this watch in Problems.
func (c *Cluster) watchLeases(ctx context.Context, k clients, request string, choose func(*metav1.ListOptions), to *leases) {
	at := k.core.CoordinationV1().Leases(c.options.Namespace)
	report := func(err error) {
		if ctx.Err() == nil && !apierrors.IsResourceExpired(err) && !apierrors.IsInvalid(err) { // a list follows these
			c.outcome(k, request, leaseResource, err)
		}
	}
	defer c.outcome(k, request, leaseResource, nil)
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			choose(&o)
			list, err := at.List(ctx, o)
			report(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			choose(&o)
			w, err := at.Watch(ctx, o)
			report(err)
			return w, err
		},
	}
	options := cache.ReflectorOptions{Name: request, Backoff: backoff()}
	cache.NewReflectorWithOptions(from, &coordinationv1.Lease{}, to, options).RunWithContext(ctx)
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
