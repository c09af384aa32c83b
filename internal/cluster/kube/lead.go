package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	egressv1 "github.com/egressway/egressway/api/v1"
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
	services statuses[Wanted]           // of EgressServices
	ips      statuses[WantedItems]      // of EgressIPs
	texts    map[cluster.ID]*textWrite  // to be written, of kinds with a text status
	dropped  map[cluster.Kind]drops     // parts of statuses that the CRDs of kinds do not keep
	probed   map[cluster.Kind]time.Time // times of the last checks that they do not
	labels   map[string]labelWrite      // of nodes
}

// target names a write: the status of an EgressService or of an object of another kind, the labels of a node, or the mark of a
// silent node.
type target struct {
	service cluster.Key
	node    string
	silent  string
	text    cluster.ID // with a name if it is the status of another kind
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

// lead leads under a name until ctx ends, and returns after its last write.
func (c *Cluster) lead(ctx context.Context, k clients, elector *leaderelection.LeaderElector, name string) {
	t := &term{
		Cluster: c, clients: k, elector: elector,
		reports:    reports{gap: c.timing.life / 2, wake: c.wake},
		queue:      newQueue[target](),
		eventQueue: newQueue[*queuedEvent](),
		events:     record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{}),
		failing:    map[target]bool{},
		texts:      map[cluster.ID]*textWrite{}, dropped: map[cluster.Kind]drops{}, probed: map[cluster.Kind]time.Time{},
	}
	t.services, t.ips = newStatuses(sameWanted, t.stands), newStatuses(sameItems, t.itemsStand)
	t.reports.gone = func(node string) { t.queue.Add(target{silent: node}) }
	c.term.Store(t)
	c.log.Info("leading", "lease", c.options.Namespace+"/"+leaseName)
	signal(c.nodes.turned) // the leader watches all Nodes
	defer c.wake()

	ending, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var watching, writing, sending sync.WaitGroup
	watching.Go(func() {
		ofNodes := func(o *metav1.ListOptions) { o.LabelSelector = labels.Set{labelReport: ""}.String() }
		c.watchLeases(ctx, k, "watch reports", ofNodes,
			&leases{changed: t.reports.changed, deleted: t.reports.deleted, listed: t.reports.listed})
	})
	watching.Go(func() { t.keepRoster(ctx, name) })
	watching.Go(func() { t.keepMembers(ctx) })
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
	switch {
	case item.text.Kind == cluster.KindEgressIP:
		resource = egressIPResource
		err = t.writeItems(bounded, item.text.Key)
	case item.text.Name != "":
		resource = textResources[item.text.Kind] + "." + egressv1.GroupName
		err = t.writeText(bounded, item.text)
	case item.silent != "":
		resource = nodeStateResource
		err = t.silence(bounded, item.silent)
	case item.node != "":
		resource = nodeResource
		err = t.writeLabels(bounded, item.node)
	default:
		err = t.writeStatus(bounded, item.service)
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

// Event is a Kubernetes Event about an object, without its object and times.
type Event struct {
	Warning         bool
	Reason, Message string
}

// queuedEvent is an Event to be written to the API server.
type queuedEvent struct {
	event *corev1.Event
	patch []byte // of an earlier Event that this one repeats; nil: it repeats none
	known bool   // whether the correlator has looked for such an Event
}

// queueEvents queues the Events of a status that was written to a version of an object. They have their own queue, so that they do not
// delay statuses.
func (t *term) queueEvents(of cluster.ID, uid string, version uint64, events []Event) {
	now, namespace := metav1.Now(), of.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where Events of objects without a namespace have to be
	}
	for _, e := range events {
		kind := corev1.EventTypeNormal
		if e.Warning {
			kind = corev1.EventTypeWarning
		}
		t.eventQueue.Add(&queuedEvent{event: &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: of.Name + "."},
			InvolvedObject: corev1.ObjectReference{
				APIVersion: egressv1.GroupVersion.String(), Kind: of.Kind.String(), Namespace: of.Namespace, Name: of.Name,
				UID: types.UID(uid), ResourceVersion: strconv.FormatUint(version, 10),
			},
			Type: kind, Reason: e.Reason, Message: e.Message,
			FirstTimestamp: now, LastTimestamp: now, Count: 1,
			Source:              corev1.EventSource{Component: component, Host: t.options.Node},
			ReportingController: component, ReportingInstance: t.options.Node,
		}})
	}
}

// writeEvents writes queued Events until the queue is shut down and empty, even after the term: they report things that
// have happened. An Event that the server refuses is dropped.
func (t *term) writeEvents(ctx context.Context) {
	for {
		item, shutDown := t.eventQueue.Get()
		if shutDown {
			return
		}
		err := t.writeEvent(ctx, item)
		if mayRepeat(ctx, err) {
			t.eventQueue.AddRateLimited(item)
		} else {
			t.eventQueue.Forget(item)
		}
		if ctx.Err() == nil {
			t.outcome(t.clients, requestEvent, eventResource, err)
		}
		t.eventQueue.Done(item)
	}
}

// mayRepeat reports whether another attempt may succeed after err: there is time, and the server has not refused it.
func mayRepeat(ctx context.Context, err error) bool {
	_, refused := errors.AsType[*apierrors.StatusError](err)
	return err != nil && ctx.Err() == nil && !refused
}

// writeEvent writes one Event. A repeated Event only raises the count of the earlier one, and client-go's correlator
// drops Events that come too often.
func (t *term) writeEvent(ctx context.Context, item *queuedEvent) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	about := item.event.InvolvedObject
	if !item.known {
		result, err := t.events.EventCorrelate(item.event)
		if err != nil {
			return fmt.Errorf("event of %s %s/%s: %w", about.Kind, about.Namespace, about.Name, err)
		}
		if result.Skip {
			return nil
		}
		item.event, item.patch, item.known = result.Event, result.Patch, true
	}
	to := t.clients.core.CoreV1().Events(item.event.Namespace)
	counts := item.event.Count > 1 && item.event.Name != ""
	var there *corev1.Event
	var err error
	if counts {
		there, err = to.Patch(ctx, item.event.Name, types.StrategicMergePatchType, item.patch, metav1.PatchOptions{})
	}
	if !counts || apierrors.IsNotFound(err) {
		if item.event.ResourceVersion = ""; item.event.GenerateName != "" {
			item.event.Name = "" // the correlator names the Events that it combines from similar ones, and counts them under that name
		}
		there, err = to.Create(ctx, item.event, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil // its namespace is gone, or being deleted, and its Events with it
		}
	}
	if err != nil {
		return fmt.Errorf("event of %s %s/%s: %w", about.Kind, about.Namespace, about.Name, err)
	}
	t.events.UpdateState(there)
	return nil
}
