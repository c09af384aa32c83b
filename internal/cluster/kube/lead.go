package kube

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/egressway/egressway/internal/cluster"
)

const (
	// writers is how many objects are written at once.
	writers = 8
	// What could not be written is tried again after retryFirst, then ever more seldom, down to every retryLast.
	retryFirst = 100 * time.Millisecond
	retryLast  = 10 * time.Second
	// lastWords is how long a term that has ended goes on: writes under way are waited for, and what was written is told.
	lastWords = 2 * time.Second

	requestWrite = "write"
	requestEvent = "event"
)

// term is one time of leading. What it knows ends with it: the next leader begins with what the API server tells.
type term struct {
	*Cluster
	clients clients
	elector *leaderelection.LeaderElector
	reports reports
	queue   workqueue.TypedRateLimitingInterface[target]
	told    workqueue.TypedRateLimitingInterface[*telling]
	events  *record.EventCorrelator

	mu       sync.Mutex
	failing  map[target]bool
	statuses map[cluster.Key]statusWrite // to be written, the newest wish
	written  map[cluster.Key]written     // what the source has not told yet
	claimed  map[cluster.Key]uint64      // the versions that a claim gave
	labels   map[string]labelWrite       // of nodes
	probed   time.Time                   // when it was last tried whether the CRD keeps the whole status
}

// target is what is to be written: an EgressService's status, or a node's labels.
type target struct {
	service cluster.Key
	node    string
}

func newQueue[T comparable]() workqueue.TypedRateLimitingInterface[T] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[T](retryFirst, retryLast))
}

// Leading gives what the living nodes reported, while this daemon leads and knows every node's report.
func (c *Cluster) Leading() (reports map[string]cluster.Report, leading bool) {
	t := c.leads()
	if t == nil {
		return nil, false
	}
	return t.reports.living()
}

// leads gives the term of this daemon, nil when it does not lead. A leader that has not heard from the API server for
// almost as long as its Lease lasts leads no more: another one may soon.
func (c *Cluster) leads() *term {
	t := c.term.Load()
	if t == nil || !t.elector.IsLeader() || t.elector.Check(-c.timing.retry) != nil {
		return nil
	}
	return t
}

// lead leads until ctx ends. Nothing is written after it has returned.
func (c *Cluster) lead(ctx context.Context, k clients, elector *leaderelection.LeaderElector) {
	t := &term{
		Cluster: c, clients: k, elector: elector,
		reports: reports{gap: c.timing.life / 2, wake: c.wake},
		queue:   newQueue[target](),
		told:    newQueue[*telling](),
		events:  record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{}),
		failing: map[target]bool{}, written: map[cluster.Key]written{}, claimed: map[cluster.Key]uint64{},
	}
	c.term.Store(t)
	c.log.Info("leading", "lease", c.options.Namespace+"/"+leaseName)
	defer c.wake()

	ending, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var watching, writing, telling sync.WaitGroup
	watching.Go(func() {
		ofNodes := func(o *metav1.ListOptions) { o.LabelSelector = labels.Set{labelReport: ""}.String() }
		c.watchLeases(ctx, k, "watch reports", ofNodes,
			&leases{changed: t.reports.changed, deleted: t.reports.deleted, listed: t.reports.listed})
	})
	for range writers {
		writing.Go(func() { t.write(ending) })
	}
	telling.Go(func() { t.tellEvents(ending) })
	<-ctx.Done()
	c.term.Store(nil)
	defer time.AfterFunc(lastWords, end).Stop()
	t.queue.ShutDown()
	writing.Wait()
	t.told.ShutDown()
	telling.Wait()
	watching.Wait()
	c.outcome(k, requestWrite, "", nil)
	c.outcome(k, requestEvent, "", nil)
	c.log.Info("leading no more", "lease", c.options.Namespace+"/"+leaseName)
}

// write writes what is queued until the queue is shut down.
func (t *term) write(ctx context.Context) {
	for {
		what, shutDown := t.queue.Get()
		if shutDown {
			return
		}
		if t.leads() == t && !t.writeOne(ctx, what) {
			t.queue.AddRateLimited(what)
		} else {
			t.queue.Forget(what)
		}
		t.queue.Done(what)
	}
}

func (t *term) writeOne(ctx context.Context, what target) (done bool) {
	bounded, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	resource, err := egressResource, error(nil)
	if what.node == "" {
		err = t.writeStatus(bounded, what.service)
	} else {
		resource = nodeResource
		err = t.writeLabels(bounded, what.node)
	}
	if err != nil && (ctx.Err() != nil || t.leads() != t) {
		return true // another one's now
	}
	t.mu.Lock()
	if err != nil {
		t.failing[what] = true
	} else {
		delete(t.failing, what)
	}
	well := len(t.failing) == 0
	t.mu.Unlock()
	if err != nil || well {
		t.outcome(t.clients, requestWrite, resource, err)
	}
	return err == nil
}
