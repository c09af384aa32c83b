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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
)

// probeEvery is how often a leader checks whether a CRD that dropped parts of the status keeps them now. A write whose
// parts are all dropped makes no new version of the object.
const probeEvery = 30 * time.Second

// Wanted is the status that an EgressService should have. Write fills in the times of its conditions.
type Wanted struct {
	UID    string // of the object on which the leader decided: no other one of its name gets this status
	Status cluster.Status
	Events []Event // written once, after the status
}

// statusWrite is a status to be written to one version of an object.
type statusWrite[S any] struct {
	want    S
	uid     string
	version uint64
	stands  S    // the status in that version
	probe   bool // write although the parts that the CRD keeps are already there, to see whether it keeps more now
	claim   bool // the status is right, but another program wrote a part: make the leader its writer, or no daemon follows it
}

// statuses are those of all objects of a kind. The term's lock protects them.
type statuses[S any] struct {
	same func(a, b S) bool       // equal, except the times of conditions
	kept func(want, have S) bool // equal, in the parts that the CRD keeps

	due     map[cluster.Key]statusWrite[S] // to be written, the newest only
	written map[cluster.Key]statusWrite[S] // as the API server answered, not yet delivered by the watch
	claimed map[cluster.Key]uint64         // versions that resulted from claims
	probed  time.Time                      // time of the last check that the CRD keeps the whole status
	probing bool                           // one of due is such a check
}

func newStatuses[S any](same, kept func(a, b S) bool) statuses[S] {
	return statuses[S]{same: same, kept: kept, written: map[cluster.Key]statusWrite[S]{}, claimed: map[cluster.Key]uint64{}}
}

// restart drops all due writes, and the answers and claims that the objects already contain, or that a later version has replaced.
// version returns an object's version; there is false if it is gone.
func (s *statuses[S]) restart(version func(cluster.Key) (v uint64, there bool)) {
	for key, w := range s.written {
		if v, there := version(key); !there || v >= w.version {
			delete(s.written, key)
		}
	}
	for key, claim := range s.claimed {
		if v, there := version(key); !there || v > claim {
			delete(s.claimed, key)
		}
	}
	s.due, s.probing = map[cluster.Key]statusWrite[S]{}, false
}

// decide makes a write due, unless the object has the status already. other: another program wrote a part of it.
func (s *statuses[S]) decide(key cluster.Key, w statusWrite[S], other bool) (due bool) {
	_, claimed := s.claimed[key]
	switch {
	case !s.kept(w.want, w.stands):
	case other && !claimed:
		w.claim = true
	case s.same(w.want, w.stands) || s.probing || time.Since(s.probed) < probeEvery:
		return false
	default:
		w.probe, s.probing = true, true
	}
	s.due[key] = w
	return true
}

// next returns the write of an object that is due, to the version with which the API server answered last.
func (s *statuses[S]) next(key cluster.Key) (w statusWrite[S], due bool) {
	w, due = s.due[key]
	if last, ok := s.written[key]; ok && last.version > w.version {
		w.version, w.stands, w.claim = last.version, last.stands, false
	}
	if due && w.probe {
		s.probed = time.Now() // not in decide: the next decisions may come before this one is written
	}
	return w, due && (w.probe || w.claim || !s.kept(w.want, w.stands))
}

// answered records the API server's answer to a write.
func (s *statuses[S]) answered(key cluster.Key, w statusWrite[S]) {
	s.written[key] = w
	if w.claim {
		s.claimed[key] = w.version
	}
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
	t.services.restart(func(key cluster.Key) (uint64, bool) {
		e, there := objects.EgressServices.Get(key)
		return e.Version, there
	})
	for key, w := range want {
		e, there := objects.EgressServices.Get(key)
		if !there || e.UID != w.UID {
			continue
		}
		next := statusWrite[Wanted]{want: w, uid: e.UID, version: e.Version, stands: Wanted{Status: e.Stands()}}
		if t.services.decide(key, next, e.Writer == cluster.WriterOther) {
			t.queue.Add(target{service: key})
		}
	}
}

// Pruned reports whether the CRD in the cluster drops Egressway's own fields of the status, as upstream's CRD does.
func (c *Cluster) Pruned() bool { return c.pruned.Load() }

// sameWanted compares statuses, except the times of conditions.
func sameWanted(a, b Wanted) bool { return sameStatus(a.Status, b.Status) }

// stands reports whether have equals want, in the fields that the CRD keeps.
func (t *term) stands(want, have Wanted) bool {
	if t.earlier.Load() {
		want.Status.Generation, want.Status.IngressIPs = have.Status.Generation, have.Status.IngressIPs
	}
	return sameWanted(want, have) || t.pruned.Load() && want.Status.Host == have.Status.Host
}

// writeStatus writes the status of one EgressService. The caller repeats it after an error.
func (t *term) writeStatus(ctx context.Context, key cluster.Key) error {
	t.mu.Lock()
	w, due := t.services.next(key)
	t.mu.Unlock()
	if !due {
		return nil
	}
	w.want.Status.Conditions = timed(w.want.Status.Conditions, w.stands.Status.Conditions, metav1.Now())
	body, kind := statusPatch(w.version, w.want.Status), types.MergePatchType
	if w.claim {
		body, kind = statusClaim(key, w.version, w.stands.Status), types.ApplyPatchType
	}
	request := t.clients.egress.Patch(kind).Namespace(key.Namespace).Resource("egressservices").Name(key.Name).SubResource("status")
	id, answer := cluster.KindEgressService.ID(key), &egressv1.EgressService{}
	version, missed, err := send(ctx, id, request, body, w.claim, answer)
	if missed || err != nil {
		return err
	}
	before := w.version
	_, now, _, _ := cluster.FromEgressService(answer)
	w.version, w.stands = version, Wanted{Status: now.Status}
	t.mu.Lock()
	t.services.answered(key, w)
	t.mu.Unlock()
	if w.claim {
		return nil
	}
	t.notePruning(w.want.Status, now.Status)
	if version != before {
		t.queueEvents(id, w.uid, before, w.want.Events)
	}
	return nil
}

// send patches the status of an object, and returns the version that results. It is missed if the object has changed or is gone
// since the decision: the watch wakes the leader, which decides again.
func send(
	ctx context.Context, id cluster.ID, request *rest.Request, body any, claim bool, answer versioned,
) (version uint64, missed bool, err error) {
	patch, err := json.Marshal(body)
	if err != nil {
		return 0, false, fmt.Errorf("status of %s: %w", id, err)
	}
	request.Param("fieldManager", leaderManager).Param("fieldValidation", metav1.FieldValidationIgnore).Body(patch)
	if claim {
		request.Param("force", "true")
	}
	err = request.Do(ctx).Into(answer)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return 0, true, nil
	case err != nil:
		return 0, false, fmt.Errorf("patch status of %s: %w", id, err)
	}
	version, err = strconv.ParseUint(answer.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("status of %s: resourceVersion: %w", id, err)
	}
	return version, false, nil
}

// versioned is an object of the API server, of any kind.
type versioned interface {
	runtime.Object
	GetResourceVersion() string
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
		t.wake()
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
var textResources = map[cluster.Kind]string{
	cluster.KindEgressQoS: "egressqoses", cluster.KindEgressFirewall: "egressfirewalls",
}

// WantedText is the status that a revision of an object of such a kind should have. WriteTexts fills in the times of its conditions.
type WantedText struct {
	Of     cluster.Revision // no other one gets this status
	Status cluster.TextStatus
}

// textWrite is a status to be written to one version of an object.
type textWrite struct {
	want  cluster.TextStatus
	of    cluster.Meta
	probe bool // as in statusWrite
}

// WriteTexts sets the statuses that all objects of a kind should have, in place of those of the last call. A status that differs
// is written, unless the object has changed meanwhile: then the change wakes the leader, which decides again. Without
// leadership, nothing is written.
func (c *Cluster) WriteTexts(kind cluster.Kind, want map[cluster.Key]WantedText) {
	t := c.leads()
	objects, ok := c.latest()
	if t == nil || !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.texts, func(id cluster.ID, _ *textWrite) bool { return id.Kind == kind })
	probes := t.dropped[kind] != (drops{}) && time.Since(t.probed[kind]) >= probeEvery
	for key, w := range want {
		id := kind.ID(key)
		m, there := objects.Meta(id)
		if !there || m.Revision() != w.Of || sameText(w.Status, m.Status, drops{}) {
			continue
		}
		probe := sameText(w.Status, m.Status, t.dropped[kind])
		if probe && !probes {
			continue
		}
		probes = probes && !probe
		t.texts[id] = &textWrite{w.Status, m, probe}
		t.queue.Add(target{text: id})
	}
}

// Drops reports whether the CRD of a kind in the cluster drops a part of the status. Another CRD may be there by now: a leader that sets
// the statuses again finds out.
func (c *Cluster) Drops(kind cluster.Kind) bool {
	switch kind {
	case cluster.KindEgressService:
		return c.pruned.Load() || c.earlier.Load()
	case cluster.KindEgressIP:
		return c.prunedItems.Load()
	}
	t := c.leads()
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropped[kind] != drops{}
}

// drops holds the parts of a status that a CRD does not keep, as that of OVN-Kubernetes may not.
type drops struct{ text, messages, conditions bool }

// after returns the parts that the CRD does not keep, by the answer to a write: it shows nothing of parts that were not asked for.
func (d drops) after(asked, kept cluster.TextStatus) drops {
	if asked.Text != "" {
		d.text = kept.Text == ""
	}
	if len(asked.Messages) > 0 {
		d.messages = len(kept.Messages) == 0
	}
	if len(asked.Conditions) > 0 {
		d.conditions = len(kept.Conditions) == 0
	}
	return d
}

// sameText compares statuses in the parts that the CRD keeps, except the times of conditions.
func sameText(a, b cluster.TextStatus, not drops) bool {
	return (not.text || a.Text == b.Text) && (not.messages || slices.Equal(a.Messages, b.Messages)) &&
		(not.conditions || sameStatus(cluster.Status{Conditions: a.Conditions}, cluster.Status{Conditions: b.Conditions}))
}

// writeText writes one such status. The caller repeats it after an error.
func (t *term) writeText(ctx context.Context, id cluster.ID) error {
	t.mu.Lock()
	w, wanted := t.texts[id]
	if wanted && w.probe {
		t.probed[id.Kind] = time.Now()
	}
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
	body := map[string]any{
		"metadata": map[string]any{"resourceVersion": strconv.FormatUint(w.of.Version, 10)}, "status": status,
	}
	request := t.clients.raw.Patch(types.MergePatchType).NamespaceIfScoped(id.Namespace, id.Namespace != "").
		Resource(textResources[id.Kind]).Name(id.Name).SubResource("status")
	answer := &custom.Object{}
	if _, missed, err := send(ctx, id, request, body, false, answer); missed || err != nil {
		return err
	}
	t.mu.Lock()
	if t.texts[id] == w {
		delete(t.texts, id)
	}
	former := t.dropped[id.Kind]
	now := former.after(w.want, t.metaOf(answer).Status)
	t.dropped[id.Kind] = now
	t.mu.Unlock()
	if now != former {
		t.wake()
	}
	return nil
}

const egressIPResource = "egressips." + egressv1.GroupName

// WantedItems is the status that an EgressIP should have. Write fills in the times of its conditions.
type WantedItems struct {
	UID        string           // as in Wanted
	Items      []cluster.Holder // in the order of the spec
	Conditions []metav1.Condition
	Events     []Event // written at once: the CRD of OVN-Kubernetes keeps no reasons in the status
}

// WriteItems sets the statuses that every EgressIP should have, in place of those of the last call, as Write does.
func (c *Cluster) WriteItems(want map[cluster.Key]WantedItems) {
	t := c.leads()
	objects, ok := c.latest()
	if t == nil || !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ips.restart(func(key cluster.Key) (uint64, bool) {
		e, there := objects.EgressIPs.Get(key)
		return e.Version, there
	})
	for key, w := range want {
		e, there := objects.EgressIPs.Get(key)
		if !there || e.UID != w.UID {
			continue
		}
		id := cluster.KindEgressIP.ID(key)
		t.queueEvents(id, e.UID, e.Version, w.Events)
		next := statusWrite[WantedItems]{want: w, uid: e.UID, version: e.Version, stands: itemsIn(&e)}
		if t.ips.decide(key, next, e.Writer == cluster.WriterOther) {
			t.queue.Add(target{text: id})
		}
	}
}

// itemsIn returns the status of an EgressIP.
func itemsIn(e *cluster.EgressIP) WantedItems {
	return WantedItems{Items: e.Stands(), Conditions: e.Conditions}
}

// PrunedItems reports whether the CRD of EgressIPs in the cluster drops Egressway's own fields of the status, as upstream's CRD does.
func (c *Cluster) PrunedItems() bool { return c.prunedItems.Load() }

// sameItems compares statuses, except the times of conditions.
func sameItems(a, b WantedItems) bool {
	return slices.Equal(a.Items, b.Items) && sameStatus(cluster.Status{Conditions: a.Conditions}, cluster.Status{Conditions: b.Conditions})
}

// itemsStand reports whether have equals want, in the fields that the CRD keeps.
func (t *term) itemsStand(want, have WantedItems) bool {
	return sameItems(want, have) || t.prunedItems.Load() && slices.EqualFunc(want.Items, have.Items, func(a, b cluster.Holder) bool {
		return a.Addr == b.Addr && a.Host == b.Host
	})
}

// writeItems writes the status of one EgressIP. The caller repeats it after an error.
func (t *term) writeItems(ctx context.Context, key cluster.Key) error {
	t.mu.Lock()
	w, due := t.ips.next(key)
	t.mu.Unlock()
	if !due {
		return nil
	}
	w.want.Conditions = timed(w.want.Conditions, w.stands.Conditions, metav1.Now())
	body, kind := itemsPatch(w), types.MergePatchType
	if w.claim {
		body, kind = itemsClaim(key, w), types.ApplyPatchType
	}
	answer := &custom.Object{}
	request := t.clients.raw.Patch(kind).Resource("egressips").Name(key.Name)
	version, missed, err := send(ctx, cluster.KindEgressIP.ID(key), request, body, w.claim, answer)
	if missed || err != nil {
		return err
	}
	now := t.trimEgressIP(answer).value
	w.version, w.stands = version, itemsIn(&now)
	t.mu.Lock()
	t.ips.answered(key, w)
	t.mu.Unlock()
	if !w.claim {
		t.notePrunedItems(w)
	}
	return nil
}

// notePrunedItems compares the status asked for with the one that the API server kept.
func (t *term) notePrunedItems(w statusWrite[WantedItems]) {
	switch pruned := len(w.want.Conditions) > 0 && len(w.stands.Conditions) == 0; {
	case pruned && t.prunedItems.CompareAndSwap(false, true):
		t.log.Warn("the CRD of EgressIP in this cluster drops standby, term and conditions of the status, as the one of OVN-Kubernetes " +
			"does: moves are not make-before-break, and reasons stand in events only; apply Egressway's CRD")
		t.wake()
	case !pruned && len(w.want.Conditions) > 0 && t.prunedItems.CompareAndSwap(true, false):
		t.log.Info("the CRD of EgressIP keeps the whole status now")
		t.wake()
	}
}

// itemsOf returns the items of a status for the API server.
func itemsOf(all []cluster.Holder) []egressv1.EgressIPStatusItem {
	items := make([]egressv1.EgressIPStatusItem, len(all))
	for i, h := range all {
		items[i] = egressv1.EgressIPStatusItem{EgressIP: h.Addr.String(), Node: h.Host, Standby: h.Standby, Term: h.Term}
	}
	return items
}

// itemsPatch returns the merge patch that sets the status of a version of an EgressIP.
func itemsPatch(w statusWrite[WantedItems]) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": strconv.FormatUint(w.version, 10)},
		"status":   map[string]any{"items": itemsOf(w.want.Items), "conditions": w.want.Conditions},
	}
}

// itemsClaim returns the server-side apply that leaves the items as they are, and makes the leader their manager.
func itemsClaim(key cluster.Key, w statusWrite[WantedItems]) map[string]any {
	return map[string]any{
		"apiVersion": egressv1.GroupVersion.String(), "kind": cluster.KindEgressIP.String(),
		"metadata": map[string]any{"name": key.Name, "resourceVersion": strconv.FormatUint(w.version, 10)},
		"status":   map[string]any{"items": itemsOf(w.stands.Items)},
	}
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
