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
	// retryFirst is the pause before a failed write is repeated. It doubles up to retryLast.
	retryFirst = 100 * time.Millisecond
	retryLast  = 10 * time.Second
	// finishWithin bounds the end of a term: writes in progress finish, and the Events of written statuses are sent.
	finishWithin = 2 * time.Second

	requestWrite = "write"
	requestEvent = "event"
)

// term is one period of leadership. Its knowledge ends with it: the next leader starts from the API server's objects.
type term struct {
	*Cluster
	clients    clients
	elector    *leaderelection.LeaderElector
	reports    reports
	queue      workqueue.TypedRateLimitingInterface[target]
	eventQueue workqueue.TypedRateLimitingInterface[*queuedEvent]
	events     *record.EventCorrelator

	mu       sync.Mutex
	failing  map[target]bool
	statuses map[cluster.Key]statusWrite // to be written, the newest only
	written  map[cluster.Key]written     // not yet delivered by the watch
	claimed  map[cluster.Key]uint64      // versions that resulted from claims, see statusClaim
	labels   map[string]labelWrite       // of nodes
	probed   time.Time                   // time of the last check that the CRD keeps the whole status
}

// target names a write: the status of an EgressService, or the labels of a node.
type target struct {
	service cluster.Key
	node    string
}

func newQueue[T comparable]() workqueue.TypedRateLimitingInterface[T] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[T](retryFirst, retryLast))
}

// Leading returns the reports of the living nodes. leading is false unless this daemon leads and has read every node's
// Lease.
func (c *Cluster) Leading() (reports map[string]cluster.Report, leading bool) {
	t := c.leads()
	if t == nil {
		return nil, false
	}
	return t.reports.living()
}

// leads returns this daemon's term, or nil when it does not lead. A leader without an answer from the API server for
// almost the duration of its Lease no longer leads: another daemon may soon.
func (c *Cluster) leads() *term {
	t := c.term.Load()
	if t == nil || !t.elector.IsLeader() || t.elector.Check(-c.timing.retry) != nil {
		return nil
	}
	return t
}

// lead leads until ctx ends, and returns after its last write.
func (c *Cluster) lead(ctx context.Context, k clients, elector *leaderelection.LeaderElector) {
	t := &term{
		Cluster: c, clients: k, elector: elector,
		reports:    reports{gap: c.timing.life / 2, wake: c.wake},
		queue:      newQueue[target](),
		eventQueue: newQueue[*queuedEvent](),
		events:     record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{}),
		failing:    map[target]bool{}, written: map[cluster.Key]written{}, claimed: map[cluster.Key]uint64{},
	}
	c.term.Store(t)
	c.log.Info("leading", "lease", c.options.Namespace+"/"+leaseName)
	defer c.wake()

	ending, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var watching, writing, sending sync.WaitGroup
	watching.Go(func() {
		ofNodes := func(o *metav1.ListOptions) { o.LabelSelector = labels.Set{labelReport: ""}.String() }
		c.watchLeases(ctx, k, "watch reports", ofNodes,
			&leases{changed: t.reports.changed, deleted: t.reports.deleted, listed: t.reports.listed})
	})
	for range writers {
		writing.Go(func() { t.write(ending) })
	}
	sending.Go(func() { t.writeEvents(ending) })
	<-ctx.Done()
	c.term.Store(nil)
	defer time.AfterFunc(finishWithin, end).Stop()
	t.queue.ShutDown()
	writing.Wait()
	t.eventQueue.ShutDown()
	sending.Wait()
	watching.Wait()
	c.outcome(k, requestWrite, "", nil)
	c.outcome(k, requestEvent, "", nil)
	c.log.Info("stopped leading", "lease", c.options.Namespace+"/"+leaseName)
}

// write performs queued writes until the queue is shut down.
func (t *term) write(ctx context.Context) {
	for {
		item, shutDown := t.queue.Get()
		if shutDown {
			return
		}
		if t.leads() == t && !t.writeOne(ctx, item) {
			t.queue.AddRateLimited(item)
		} else {
			t.queue.Forget(item)
		}
		t.queue.Done(item)
	}
}

func (t *term) writeOne(ctx context.Context, item target) (done bool) {
	bounded, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	resource, err := egressResource, error(nil)
	if item.node == "" {
		err = t.writeStatus(bounded, item.service)
	} else {
		resource = nodeResource
		err = t.writeLabels(bounded, item.node)
	}
	if err != nil && (ctx.Err() != nil || t.leads() != t) {
		return true // the next leader writes it
	}
	t.mu.Lock()
	if err != nil {
		t.failing[item] = true
	} else {
		delete(t.failing, item)
	}
	well := len(t.failing) == 0
	t.mu.Unlock()
	if err != nil || well {
		t.outcome(t.clients, requestWrite, resource, err)
	}
	return err == nil
}
