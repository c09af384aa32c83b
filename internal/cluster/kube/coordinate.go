package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

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
	able   chan struct{} // closed by Contend
	once   sync.Once
	term   atomic.Pointer[term] // while this daemon leads
	pruned atomic.Bool          // the CRD drops all of a status but the host, as upstream's does
	// prunedItems means the same of EgressIPs.
	prunedItems atomic.Bool

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

// outcome reports the error of a request that is repeated until it succeeds, as a Problem; nil withdraws the Problem. errRemoved
// is none: the daemon of a node that was removed ends soon.
func (c *Cluster) outcome(k clients, request, resource string, err error) {
	if err == nil || errors.Is(err, errRemoved) {
		c.complain(request, nil)
		return
	}
	c.complain(request, explain(k.server, resource, err))
}

// watchLeases calls to for every change of the Leases in the daemon's namespace that choose selects, until ctx ends. what is
// the name of this watch in Problems.
func (c *Cluster) watchLeases(ctx context.Context, k clients, request string, choose func(*metav1.ListOptions), to *leases) {
	ask := func(o *metav1.ListOptions) *rest.Request {
		choose(o)
		return k.core.CoordinationV1().RESTClient().Get().Namespace(c.options.Namespace).Resource("leases").
			VersionedParams(o, metav1.ParameterCodec)
	}
	report := func(err error) {
		if ctx.Err() == nil && !apierrors.IsResourceExpired(err) && !apierrors.IsInvalid(err) { // a list follows these
			c.outcome(k, request, leaseResource, err)
		}
	}
	defer c.outcome(k, request, leaseResource, nil)
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			bounded, cancel := context.WithTimeout(ctx, listWithin)
			defer cancel()
			list, err := ask(&o).Do(bounded).Get()
			report(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := within(ctx, c.pauses.answer, ask(&o), o.TimeoutSeconds)
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

// A thousand daemons that poll one Lease would load the API server. So each of them watches the Lease, and stands for
// election only while no daemon holds it.

// watchLease keeps the sighting of the leader's Lease up to date until ctx ends.
func (c *Cluster) watchLease(ctx context.Context, k clients) {
	one := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, leaseName).String()
	}
	c.watchLeases(ctx, k, "watch the leader's Lease", one, &leases{
		changed: c.lease.observe,
		deleted: func(*coordinationv1.Lease) { c.lease.observe(nil) },
		listed: func(all []*coordinationv1.Lease) {
			if len(all) == 0 {
				c.lease.observe(nil)
				return
			}
			c.lease.observe(all[0])
		},
	})
}

// Contend lets this daemon stand for election from now on: it can plan.
func (c *Cluster) Contend() { c.once.Do(func() { close(c.able) }) }

// contend stands for election whenever there is no leader, until ctx ends. A daemon that has not listed all objects yet, or may not list
// some, or that has no plan, would hold the Lease and elect no host.
func (c *Cluster) contend(ctx context.Context, k clients) {
	for _, needed := range []<-chan struct{}{c.allKnown, c.able} {
		select {
		case <-needed:
		case <-ctx.Done():
			return
		}
	}
	for c.lease.vacant(ctx, c.timing.retry/2) {
		c.stand(ctx, k)
	}
}

// stand tries to acquire the Lease, and leads while this daemon holds it. It returns when another daemon holds the
// Lease, or ctx ends.
func (c *Cluster) stand(ctx context.Context, k clients) {
	identity := c.options.Node + "_" + string(uuid.NewUUID()) // each run of the daemon is a candidate of its own
	won := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &lock{
			LeaseLock: resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: c.options.Namespace, Name: leaseName},
				Client:     k.core.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
				Labels:     map[string]string{labelName: component},
			},
			seen: &c.lease, within: c.timing.renew / 2,
			report: func(err error) { c.outcome(k, "lead", leaseResource, err) },
		},
		LeaseDuration: c.timing.lease, RenewDeadline: c.timing.renew, RetryPeriod: c.timing.retry,
		ReleaseOnCancel: true, Name: leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(won) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		c.log.Error("this daemon cannot stand for election", "error", err)
		<-ctx.Done()
		return
	}

	// The elector outlives ctx: it releases the Lease after the last write.
	running, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	leading, lose := context.WithCancel(ctx)
	var g sync.WaitGroup
	g.Go(func() {
		defer lose()
		elector.Run(running)
	})
	g.Go(func() {
		defer lose()
		c.lease.awaitOther(leading, identity)
	})
	select {
	case <-won:
		c.lead(leading, k, elector, identity)
	case <-leading.Done():
	}
	lose()
	giveUp()
	g.Wait()
	c.outcome(k, "lead", leaseResource, nil)
}

// lock is the Lease as the elector sees it: free once the watch has shown that its holder does not renew it. Otherwise
// the elector would wait for the Lease's whole duration again.
type lock struct {
	resourcelock.LeaseLock
	seen   *sighting
	within time.Duration
	report func(error)
	holder string // as of the last Get
}

func (l *lock) Get(ctx context.Context) (record *resourcelock.LeaderElectionRecord, raw []byte, err error) {
	err = l.ask(ctx, func(ctx context.Context) error {
		record, raw, err = l.LeaseLock.Get(ctx)
		return err
	})
	if err == nil {
		if l.seen.expired(raw) {
			record.HolderIdentity = ""
		}
		l.holder = record.HolderIdentity
	}
	return record, raw, err
}

func (l *lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.ask(ctx, func(ctx context.Context) error { return l.LeaseLock.Create(ctx, r) })
}

// Update writes the Lease. It does not release a Lease that another daemon holds: an elector does not notice that it has
// lost the Lease.
func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == "" && l.holder != l.Identity() {
		return errOtherHolder
	}
	return l.ask(ctx, func(ctx context.Context) error { return l.LeaseLock.Update(ctx, r) })
}

var errOtherHolder = errors.New("another daemon holds the Lease")

// ask bounds a request, and reports its error, except those that every election has.
func (l *lock) ask(ctx context.Context, request func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, l.within)
	defer cancel()
	err := request(bounded)
	usual := apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err)
	if !usual && !errors.Is(ctx.Err(), context.Canceled) {
		l.report(err)
	}
	return err
}

// sighting holds the leader's Lease as last seen, and the time by this node's clock, since other nodes' clocks may be
// wrong.
type sighting struct {
	mu      sync.Mutex
	known   bool
	holder  string // empty: no daemon
	raw     []byte // the record, as LeaseLock.Get returns it
	until   time.Time
	changed chan struct{} // closed by the next change
}

// observe records the Lease; nil: there is none.
func (s *sighting) observe(l *coordinationv1.Lease) {
	record := &resourcelock.LeaderElectionRecord{}
	if l != nil {
		record = resourcelock.LeaseSpecToLeaderElectionRecord(&l.Spec)
	}
	raw, err := json.Marshal(record)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known && bytes.Equal(raw, s.raw) {
		return
	}
	s.known, s.holder, s.raw = true, record.HolderIdentity, raw
	s.until = time.Now()
	if s.holder != "" {
		s.until = s.until.Add(time.Duration(record.LeaseDurationSeconds) * time.Second)
	}
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// next returns a channel that is closed when the Lease changes. The caller holds s.mu.
func (s *sighting) next() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// vacant waits until no daemon holds the Lease, plus a random time below spread, so that not all candidates ask for it
// at once. It returns false if ctx ended before.
func (s *sighting) vacant(ctx context.Context, spread time.Duration) bool {
	for {
		s.mu.Lock()
		changed := s.next()
		var due <-chan time.Time
		if s.known {
			due = time.After(time.Until(s.until) + rand.N(spread))
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		case <-due:
			return true
		}
	}
}

// present returns the identity of the daemon that holds the Lease; empty: none does.
func (s *sighting) present() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !time.Now().Before(s.until) {
		return ""
	}
	return s.holder
}

// awaitOther waits until another daemon than identity holds the Lease, or ctx ends.
func (s *sighting) awaitOther(ctx context.Context, identity string) {
	for {
		held, changed := s.heldByOther(identity)
		if held {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// heldByOther reports whether another daemon than identity holds the Lease. changed is closed when that may have changed.
func (s *sighting) heldByOther(identity string) (held bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.next()
	return s.holder != "" && s.holder != identity && time.Now().Before(s.until), changed
}

// expired reports whether the record is the one last seen, and its holder has not renewed it in time.
func (s *sighting) expired(raw []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known && bytes.Equal(raw, s.raw) && !time.Now().Before(s.until)
}
