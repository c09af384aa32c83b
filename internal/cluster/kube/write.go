package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
)

// probeEvery is how often a leader checks whether a CRD that dropped parts of the status keeps them now. A write whose
// parts are all dropped makes no new version of the object.
const probeEvery = time.Minute

// Wanted is the status that an EgressService should have. Write fills in the times of its conditions.
type Wanted struct {
	Status cluster.Status
	Events []Event // written once, after the status
}

// statusWrite is a status to be written to one version of an EgressService.
type statusWrite struct {
	Wanted
	uid     string
	version uint64
	stands  cluster.Status
	probe   bool // write although the parts that the CRD keeps are already there, to see whether it keeps more now
	claim   bool // the status is right, but another program wrote a part: make the leader its writer, or no daemon follows it
}

// written is the API server's answer to a write.
type written struct {
	version uint64
	status  cluster.Status
}

// Write sets the statuses that every EgressService should have, in place of those of the last call. A status that
// differs is written, unless the object has changed meanwhile: then the change wakes the leader, which decides again.
// Without leadership, nothing is written.
func (c *Cluster) Write(want map[cluster.Key]Wanted) {
	t := c.leads()
	objects, ok := c.latest()
	if t == nil || !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetOlder(objects)
	t.statuses = map[cluster.Key]statusWrite{}
	for key, w := range want {
		e, there := objects.EgressServices.Get(key)
		if !there {
			continue
		}
		if next, due := t.due(key, w, &e); due {
			t.statuses[key] = next
			t.queue.Add(target{service: key})
		}
	}
}

// due returns the write after which e has the status that it should have; due is false if none is needed now.
func (t *term) due(key cluster.Key, w Wanted, e *cluster.EgressService) (next statusWrite, due bool) {
	next = statusWrite{Wanted: w, uid: e.UID, version: e.Version, stands: e.Stands()}
	if !t.stands(w.Status, next.stands) {
		return next, true
	}
	if _, claimed := t.claimed[key]; e.Writer == cluster.WriterOther && !claimed {
		next.claim = true
		return next, true
	}
	if sameStatus(w.Status, next.stands) || time.Since(t.probed) < probeEvery {
		return next, false
	}
	next.probe, t.probed = true, time.Now()
	return next, true
}

// forgetOlder drops the answers and claims that objects already contain, or that a later version has replaced.
func (t *term) forgetOlder(objects cluster.Objects) {
	for key, w := range t.written {
		if e, there := objects.EgressServices.Get(key); !there || e.Version >= w.version {
			delete(t.written, key)
		}
	}
	for key, version := range t.claimed {
		if e, there := objects.EgressServices.Get(key); !there || e.Version > version {
			delete(t.claimed, key)
		}
	}
}

// Pruned reports whether the CRD in the cluster drops Egressway's own fields of the status, as upstream's CRD does.
func (c *Cluster) Pruned() bool { return c.pruned.Load() }

// stands reports whether have equals want, in the fields that the CRD keeps.
func (t *term) stands(want, have cluster.Status) bool {
	if t.earlier.Load() {
		want.Generation, want.IngressIPs = have.Generation, have.IngressIPs
	}
	return sameStatus(want, have) || t.pruned.Load() && want.Host == have.Host
}

// writeStatus writes one status. The caller repeats it after an error.
func (t *term) writeStatus(ctx context.Context, key cluster.Key) error {
	t.mu.Lock()
	w, wanted := t.statuses[key]
	if last, ok := t.written[key]; ok && last.version > w.version {
		w.version, w.stands, w.claim = last.version, last.status, false
	}
	t.mu.Unlock()
	if !wanted || t.stands(w.Status, w.stands) && !w.probe && !w.claim {
		return nil
	}
	w.Status.Conditions = timed(w.Status.Conditions, w.stands.Conditions, metav1.Now())
	request, err := t.statusRequest(key, w)
	if err != nil {
		return err
	}
	answer := &egressv1.EgressService{}
	err = request.Do(ctx).Into(answer)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // changed or deleted: the watch wakes the leader, which decides again
	case err != nil:
		return fmt.Errorf("patch status of EgressService %s: %w", key, err)
	}
	_, now, _, _ := cluster.FromEgressService(answer)
	now.Version, err = strconv.ParseUint(answer.ResourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("status of EgressService %s: resourceVersion: %w", key, err)
	}
	t.mu.Lock()
	t.written[key] = written{now.Version, now.Status}
	if w.claim {
		t.claimed[key] = now.Version
	}
	t.mu.Unlock()
	if w.claim {
		return nil
	}
	t.notePruning(w.Status, now.Status)
	if now.Version != w.version {
		t.queueEvents(key, w)
	}
	return nil
}

// statusRequest returns the request that writes a status, or that claims its fields from another writer.
func (t *term) statusRequest(key cluster.Key, w statusWrite) (*rest.Request, error) {
	body, kind := statusPatch(w.version, w.Status), types.MergePatchType
	if w.claim {
		body, kind = statusClaim(key, w.version, w.stands), types.ApplyPatchType
	}
	patch, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("status of EgressService %s: %w", key, err)
	}
	request := t.clients.egress.Patch(kind).
		Namespace(key.Namespace).Resource("egressservices").Name(key.Name).SubResource("status").
		Param("fieldManager", leaderManager).Param("fieldValidation", metav1.FieldValidationIgnore).Body(patch)
	if w.claim {
		request.Param("force", "true")
	}
	return request, nil
}

// notePruning compares the status asked for with the one that the API server kept.
func (t *term) notePruning(asked, kept cluster.Status) {
	const whole = "the CRD of EgressService keeps the whole status now"
	switch pruned := dropped(asked, kept); {
	case pruned && t.pruned.CompareAndSwap(false, true):
		t.log.Warn("the CRD of EgressService in this cluster drops standby, term and conditions of the status, as the one of " +
			"OVN-Kubernetes does: moves are not make-before-break, and reasons stand in events only; apply Egressway's CRD")
		t.wake()
	case !pruned && extended(asked) && t.pruned.CompareAndSwap(true, false):
		t.log.Info(whole)
		t.wake()
	}
	if t.pruned.Load() || asked.Generation == 0 {
		return
	}
	switch earlier := kept.Generation == 0; {
	case earlier && t.earlier.CompareAndSwap(false, true):
		t.log.Warn("the CRD of EgressService in this cluster is of an earlier version of Egressway: it drops observedGeneration and " +
			"ingressIPs of the status; apply the CRD of this version")
	case !earlier && t.earlier.CompareAndSwap(true, false):
		t.log.Info(whole)
		t.wake()
	}
}

// dropped reports whether a part of the status was lost that upstream's CRD does not have.
func dropped(asked, kept cluster.Status) bool {
	return asked.Standby != "" && kept.Standby == "" || asked.Term != 0 && kept.Term == 0 ||
		len(asked.Conditions) > 0 && len(kept.Conditions) == 0
}

// extended reports whether the status has a part that upstream's CRD does not have.
func extended(s cluster.Status) bool { return s.Standby != "" || s.Term != 0 || len(s.Conditions) > 0 }

// statusPatch returns the merge patch that sets the status of a version of an EgressService.
func statusPatch(version uint64, s cluster.Status) map[string]any {
	status := map[string]any{
		"host": s.Host, "standby": nil, "term": nil, "observedGeneration": nil, "ingressIPs": nil, "conditions": nil,
	}
	if s.Standby != "" {
		status["standby"] = s.Standby
	}
	if s.Term != 0 {
		status["term"] = s.Term
	}
	if len(s.Conditions) > 0 {
		status["conditions"] = s.Conditions
	}
	if s.Generation != 0 {
		status["observedGeneration"] = s.Generation
	}
	if len(s.IngressIPs) > 0 {
		status["ingressIPs"] = s.IngressIPs
	}
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": strconv.FormatUint(version, 10)},
		"status":   status,
	}
}

// statusClaim returns the server-side apply that leaves the status as it is, and makes the leader a manager of its
// fields: a patch makes it manager only of the fields that it changes.
func statusClaim(key cluster.Key, version uint64, stands cluster.Status) map[string]any {
	status := map[string]any{"host": stands.Host}
	if stands.Standby != "" {
		status["standby"] = stands.Standby
	}
	if stands.Term != 0 {
		status["term"] = stands.Term
	}
	return map[string]any{
		"apiVersion": egressv1.GroupVersion.String(), "kind": "EgressService",
		"metadata": map[string]any{"namespace": key.Namespace, "name": key.Name, "resourceVersion": strconv.FormatUint(version, 10)},
		"status":   status,
	}
}

// sameStatus compares statuses, except the times of conditions.
func sameStatus(a, b cluster.Status) bool {
	return a.Host == b.Host && a.Standby == b.Standby && a.Term == b.Term && len(a.Conditions) == len(b.Conditions) &&
		a.Generation == b.Generation && slices.Equal(a.IngressIPs, b.IngressIPs) &&
		!slices.ContainsFunc(a.Conditions, func(x metav1.Condition) bool {
			y := meta.FindStatusCondition(b.Conditions, x.Type)
			return y == nil || x.Status != y.Status || x.Reason != y.Reason || x.Message != y.Message ||
				x.ObservedGeneration != y.ObservedGeneration
		})
}

// timed sets each condition's transition time: the former one if its status is the same, else now.
func timed(want, have []metav1.Condition, now metav1.Time) []metav1.Condition {
	want = slices.Clone(want)
	for i := range want {
		want[i].LastTransitionTime = now
		if former := meta.FindStatusCondition(have, want[i].Type); former != nil && former.Status == want[i].Status {
			want[i].LastTransitionTime = former.LastTransitionTime
		}
	}
	return want
}

// textResources are the resources of the kinds whose status is a text with conditions.
var textResources = map[cluster.Kind]string{cluster.KindEgressQoS: "egressqoses"}

// textWrite is a status to be written to one version of an object.
type textWrite struct {
	want cluster.TextStatus
	of   cluster.Meta
}

// WriteTexts sets the statuses that all objects of a kind should have, in place of those of the last call. A status that differs
// is written, unless the object has changed meanwhile: then the change wakes the leader, which decides again. Without
// leadership, nothing is written.
func (c *Cluster) WriteTexts(kind cluster.Kind, want map[cluster.Key]cluster.TextStatus) {
	t := c.leads()
	objects, ok := c.latest()
	if t == nil || !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.texts, func(id cluster.ID, _ *textWrite) bool { return id.Kind == kind })
	for key, status := range want {
		id := kind.ID(key)
		if m, there := objects.Meta(id); there && !sameText(status, m.Status, t.dropped[kind]) {
			t.texts[id] = &textWrite{status, m}
			t.queue.Add(target{text: id})
		}
	}
}

// drops holds the parts of a status that a CRD does not keep, as that of OVN-Kubernetes may not.
type drops struct{ text, messages, conditions bool }

// sameText compares statuses in the parts that the CRD keeps, except the times of conditions.
func sameText(a, b cluster.TextStatus, not drops) bool {
	return (not.text || a.Text == b.Text) && (not.messages || slices.Equal(a.Messages, b.Messages)) &&
		(not.conditions || sameStatus(cluster.Status{Conditions: a.Conditions}, cluster.Status{Conditions: b.Conditions}))
}

// writeText writes one such status. The caller repeats it after an error.
func (t *term) writeText(ctx context.Context, id cluster.ID) error {
	t.mu.Lock()
	w, wanted := t.texts[id]
	t.mu.Unlock()
	if !wanted {
		return nil
	}
	status := map[string]any{
		"status": w.want.Text, "conditions": timed(w.want.Conditions, w.of.Status.Conditions, metav1.Now()),
	}
	if len(w.want.Messages) > 0 || len(w.of.Status.Messages) > 0 {
		status["messages"] = w.want.Messages
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": strconv.FormatUint(w.of.Version, 10)}, "status": status,
	})
	if err != nil {
		return fmt.Errorf("status of %s: %w", id, err)
	}
	answer := &custom.Object{}
	err = t.clients.raw.Patch(types.MergePatchType).NamespaceIfScoped(id.Namespace, id.Namespace != "").
		Resource(textResources[id.Kind]).Name(id.Name).SubResource("status").
		Param("fieldManager", leaderManager).Param("fieldValidation", metav1.FieldValidationIgnore).Body(patch).Do(ctx).Into(answer)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // changed or deleted: the watch wakes the leader, which decides again
	case err != nil:
		return fmt.Errorf("patch status of %s: %w", id, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.texts[id] == w {
		delete(t.texts, id)
	}
	kept := t.metaOf(answer).Status
	t.dropped[id.Kind] = drops{
		text: w.want.Text != "" && kept.Text == "", messages: len(w.want.Messages) > 0 && len(kept.Messages) == 0,
		conditions: len(w.want.Conditions) > 0 && len(kept.Conditions) == 0,
	}
	return nil
}

// labelWrite is a change of a node's labels; nil removes one.
type labelWrite map[string]*string

// Label sets the labels with cluster.HostLabelPrefix that each node should have; want holds them without the prefix. Nothing is
// written unless this daemon leads and is configured to label hosts.
func (c *Cluster) Label(want map[string][]string) {
	t := c.leads()
	objects, ok := c.latest()
	if t == nil || !ok || !c.options.LabelHosts {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.labels = map[string]labelWrite{}
	for node, n := range objects.Nodes.All() {
		if change := relabel(n.Labels, want[node]); len(change) > 0 {
			t.labels[node] = change
			t.queue.Add(target{node: node})
		}
	}
}

// relabel returns the change from a node's labels to the wanted ones, whose values are empty.
func relabel(have map[string]string, want []string) labelWrite {
	change := labelWrite{}
	for name := range have {
		if strings.HasPrefix(name, cluster.HostLabelPrefix) {
			change[name] = nil
		}
	}
	for _, name := range want {
		name = cluster.HostLabelPrefix + name
		if value, there := have[name]; there && value == "" {
			delete(change, name)
			continue
		}
		change[name] = new(string)
	}
	return change
}

// writeLabels changes the labels of one node. The caller repeats it after an error.
func (t *term) writeLabels(ctx context.Context, node string) error {
	t.mu.Lock()
	change := t.labels[node]
	t.mu.Unlock()
	if len(change) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": change}})
	if err != nil {
		return fmt.Errorf("labels of Node %s: %w", node, err)
	}
	_, err = t.clients.core.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch labels of Node %s: %w", node, err)
	}
	return nil
}
