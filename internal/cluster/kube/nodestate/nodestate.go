// Package nodestate keeps the EgressNode of this node as its daemon reports it. A thousand nodes together send at most about a hundred
// requests a second: each writes a state when it differs, at a random time, and then rests; the larger the cluster, the longer. Before a
// write, it reads the object only where others may have written it.
package nodestate

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/egressway/egressway/api/v1alpha1"
	"github.com/egressway/egressway/internal/pause"
)

const (
	// perNode is the share of each node in the time between two writes of one node.
	perNode = 10 * time.Millisecond
	// leastRest is the time between two writes of a node of a small cluster.
	leastRest = time.Second
	// rewriteEvery is how often an unchanged state is written, if others changed it meanwhile.
	rewriteEvery = 10 * time.Minute
	// absentFor is the pause after an API server did not serve EgressNodes: their CRD is not installed.
	absentFor = 5 * time.Minute
	// requestWithin bounds a request.
	requestWithin = 10 * time.Second
)

// Writer writes the EgressNode of one node.
type Writer struct {
	node    string
	nodes   func() int // how many there are
	owners  func() ([]metav1.OwnerReference, error)
	changed chan struct{}

	mu    sync.Mutex
	state *v1alpha1.EgressNodeStatus // nil: not known yet
	again bool                       // write the state although it is the same
}

// New returns the Writer of a node. nodes returns the number of nodes, owners the owner of a new EgressNode, or an error while there is to
// be none.
func New(node string, nodes func() int, owners func() ([]metav1.OwnerReference, error)) *Writer {
	return &Writer{node: node, nodes: nodes, owners: owners, changed: make(chan struct{}, 1)}
}

// Set sets the state to be written. Its time and those of its conditions are filled in.
func (w *Writer) Set(s v1alpha1.EgressNodeStatus) {
	w.mu.Lock()
	w.state = &s
	w.mu.Unlock()
	w.signal()
}

// Again has the state written once more, after the object was read: the leader may have marked this node as silent.
func (w *Writer) Again() {
	w.mu.Lock()
	w.again = true
	w.mu.Unlock()
	w.signal()
}

func (w *Writer) signal() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Run writes the state until ctx ends. It calls outcome with the error of each request, nil if it succeeded. Where the API server does
// not serve EgressNodes, nothing is written.
func (w *Writer) Run(ctx context.Context, client rest.Interface, outcome func(error)) {
	var written v1alpha1.EgressNodeStatus
	for first := true; ; {
		if !w.await(ctx) || !pause.For(ctx, rand.N(w.rest())) {
			return
		}
		state, due, again := w.due(written)
		if !due {
			continue
		}
		if first || again { // the former run or the leader has written it: the times of its conditions stay
			if before, err := get(ctx, client, w.node); err == nil {
				written = before.Status
			}
			first = false
		}
		state = timed(state, written)
		err := w.write(ctx, client, state)
		switch {
		case ctx.Err() != nil:
			return
		case absent(err):
			outcome(nil)
			w.Again()
			if !pause.For(ctx, absentFor) {
				return
			}
		case err != nil:
			outcome(err)
			w.Again()
		default:
			outcome(nil)
			written = state
		}
		if !pause.For(ctx, w.rest()) {
			return
		}
	}
}

// await waits until the state has changed, or is to be written again.
func (w *Writer) await(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-w.changed:
	case <-time.After(rewriteEvery - rand.N(rewriteEvery/5)):
		w.mu.Lock()
		w.again = true
		w.mu.Unlock()
	}
	return true
}

// rest returns the time between two writes of this node.
func (w *Writer) rest() time.Duration { return max(leastRest, time.Duration(w.nodes())*perNode) }

// due returns the newest state, and whether it differs from the one that was written, or is to be written again.
func (w *Writer) due(written v1alpha1.EgressNodeStatus) (state v1alpha1.EgressNodeStatus, due, again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == nil {
		return state, false, false
	}
	again, w.again = w.again, false
	return *w.state, again || digest(*w.state) != digest(written), again
}

// digest is a state without the times that a write fills in.
func digest(s v1alpha1.EgressNodeStatus) string {
	s.Reported = metav1.Time{}
	s.Conditions = append([]metav1.Condition{}, s.Conditions...)
	for i := range s.Conditions {
		s.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // texts and numbers alone
	}
	return string(text)
}

// timed fills in the times of a state: a condition keeps the time of the former one with the same status.
func timed(s, former v1alpha1.EgressNodeStatus) v1alpha1.EgressNodeStatus {
	s.Reported = metav1.Now()
	conditions := append([]metav1.Condition{}, former.Conditions...)
	for _, c := range s.Conditions {
		meta.SetStatusCondition(&conditions, c)
	}
	s.Conditions = conditions
	return s
}

// get reads an EgressNode.
func get(ctx context.Context, client rest.Interface, node string) (n v1alpha1.EgressNode, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	text, err := client.Get().AbsPath(path(node)).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(text, &n)
	}
	if err != nil {
		return n, fmt.Errorf("get EgressNode %s: %w", node, err)
	}
	return n, nil
}

// write writes the state, and creates the object if there is none.
func (w *Writer) write(ctx context.Context, client rest.Interface, s v1alpha1.EgressNodeStatus) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	err := patch(ctx, client, w.node, "", s)
	if !apierrors.IsNotFound(err) {
		return err
	}
	owners, err := w.owners()
	if err != nil {
		return fmt.Errorf("create EgressNode %s: %w", w.node, err)
	}
	n := v1alpha1.EgressNode{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "EgressNode"},
		ObjectMeta: metav1.ObjectMeta{Name: w.node, OwnerReferences: owners}, Status: s,
	}
	text, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("encode EgressNode %s: %w", w.node, err)
	}
	if err := client.Post().AbsPath(path("")).SetHeader("Content-Type", "application/json").Body(text).Do(ctx).Error(); err != nil {
		return fmt.Errorf("create EgressNode %s: %w", w.node, err)
	}
	return nil
}

// absent reports whether the API server does not know EgressNodes.
func absent(err error) bool { return apierrors.IsNotFound(err) }

// patch replaces the state, if the object still has the version; empty: any.
func patch(ctx context.Context, client rest.Interface, node, version string, s v1alpha1.EgressNodeStatus) error {
	change := map[string]any{"status": part(s)}
	if version != "" {
		change["metadata"] = map[string]any{"resourceVersion": version}
	}
	text, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode EgressNode %s: %w", node, err)
	}
	if err := client.Patch(types.MergePatchType).AbsPath(path(node)).Body(text).Do(ctx).Error(); err != nil {
		return fmt.Errorf("patch EgressNode %s: %w", node, err)
	}
	return nil
}

// part returns the fields of a state that a write replaces. A daemon that does not know all objects yet replaces the conditions alone:
// kernel and speaker go on as the last daemon reported.
func part(s v1alpha1.EgressNodeStatus) any {
	unknowing := func(c metav1.Condition) bool { return c.Reason == v1alpha1.ReasonObjectsUnknown }
	if slices.ContainsFunc(s.Conditions, unknowing) {
		return map[string]any{"conditions": s.Conditions}
	}
	return s
}

// Silence marks a node whose daemon does not report any more: its state is not known. A node without an EgressNode needs no mark. silent
// returns whether the daemon still does not report, after the object was read.
func Silence(ctx context.Context, client rest.Interface, node string, silent func() bool) error {
	n, err := get(ctx, client, node)
	if absent(err) || err == nil && !silent() {
		return nil
	}
	if err != nil {
		return err
	}
	s := v1alpha1.EgressNodeStatus{
		Reported: n.Status.Reported, Version: n.Status.Version,
		Down: []string{}, Networks: []v1alpha1.EgressNodeNetwork{}, Sessions: []v1alpha1.EgressNodeSession{},
		Conditions: append([]metav1.Condition{}, n.Status.Conditions...),
	}
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNodeSilent,
		Message: "the daemon of this node does not renew its Lease: its networks and sessions are not known",
	})
	if err := patch(ctx, client, node, n.ResourceVersion, s); !absent(err) {
		return err
	}
	return nil
}

func path(node string) string {
	p := "/apis/" + v1alpha1.GroupVersion.String() + "/" + v1alpha1.EgressNodes
	if node != "" {
		p += "/" + node
	}
	return p
}
