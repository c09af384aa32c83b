package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
)

// Event is a Kubernetes Event about an EgressService, without its object and times.
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

// queueEvents queues the Events of a status that was written. They have their own queue, so that they do not delay statuses.
func (t *term) queueEvents(key cluster.Key, w statusWrite) {
	now := metav1.Now()
	for _, e := range w.Events {
		kind := corev1.EventTypeNormal
		if e.Warning {
			kind = corev1.EventTypeWarning
		}
		t.eventQueue.Add(&queuedEvent{event: &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, GenerateName: key.Name + "."},
			InvolvedObject: corev1.ObjectReference{
				APIVersion: egressv1.GroupVersion.String(), Kind: "EgressService", Namespace: key.Namespace, Name: key.Name,
				UID: types.UID(w.uid), ResourceVersion: strconv.FormatUint(w.version, 10),
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
		_, refused := errors.AsType[*apierrors.StatusError](err)
		if err != nil && ctx.Err() == nil && !refused {
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

// writeEvent writes one Event. A repeated Event only raises the count of the earlier one, and client-go's correlator
// drops Events that come too often.
func (t *term) writeEvent(ctx context.Context, item *queuedEvent) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	about := item.event.InvolvedObject
	if !item.known {
		result, err := t.events.EventCorrelate(item.event)
		if err != nil {
			return fmt.Errorf("event of EgressService %s/%s: %w", about.Namespace, about.Name, err)
		}
		if result.Skip {
			return nil
		}
		item.event, item.patch, item.known = result.Event, result.Patch, true
	}
	to := t.clients.core.CoreV1().Events(about.Namespace)
	counts := item.event.Count > 1 && item.event.Name != ""
	var there *corev1.Event
	var err error
	if counts {
		there, err = to.Patch(ctx, item.event.Name, types.StrategicMergePatchType, item.patch, metav1.PatchOptions{})
	}
	if !counts || apierrors.IsNotFound(err) {
		item.event.ResourceVersion, item.event.Name = "", ""
		there, err = to.Create(ctx, item.event, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("event of EgressService %s/%s: %w", about.Namespace, about.Name, err)
	}
	t.events.UpdateState(there)
	return nil
}
