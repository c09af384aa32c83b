package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/egressway/egressway/api/v1alpha1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/nodestate"
	"github.com/egressway/egressway/internal/pause"
)

const (
	component        = "egressway"
	labelName        = "app.kubernetes.io/name"
	labelReport      = "egressway.io/node-report" // on the Leases with nodes' reports
	annotationReport = "egressway.io/report"      // the report, as JSON

	// settle is how long a report waits for further changes, pace the least time between two writes.
	settle = 50 * time.Millisecond
	pace   = 200 * time.Millisecond
	// manyNodes is the number of Nodes above which a report that other EgressQoSes and EgressFirewalls alone change waits for its renewal.
	manyNodes = 100
	// rewriteAfter is the least pause after a write that failed.
	rewriteAfter = time.Second
)

// report holds this node's report, as JSON.
type report struct {
	mu      sync.Mutex
	text    string // empty: nothing yet
	last    cluster.Report
	drains  bool // the API server has a report that the node drains
	changed chan struct{}
}

// changes returns a channel that signals a changed report.
func (r *report) changes() chan struct{} {
	if r.changed == nil {
		r.changed = make(chan struct{}, 1)
	}
	return r.changed
}

// setDrains records what a written report says, and reports whether it is new.
func (r *report) setDrains(drains bool) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed, r.drains = r.drains != drains, drains
	return changed
}

// DrainReported reports whether the API server has this node's report that it drains.
func (c *Cluster) DrainReported() bool {
	c.report.mu.Lock()
	defer c.report.mu.Unlock()
	return c.report.drains
}

// Report sets this node's report for the leader. If it differs from the former one, it is soon written to this node's
// Lease, and is renewed from then on. In a large cluster, other EgressQoSes and EgressFirewalls alone are written with the next
// renewal: every node has them.
func (c *Cluster) Report(r cluster.Report) {
	text, err := json.Marshal(r)
	if err != nil {
		c.log.Error("this node's report cannot be written", "error", err)
		return
	}
	c.mu.Lock()
	nodes := c.nodes.objects.Map().Len()
	c.mu.Unlock()
	c.report.mu.Lock()
	defer c.report.mu.Unlock()
	if c.report.text == string(text) && c.report.last.Starting == r.Starting {
		return
	}
	former := c.report.last
	c.report.text, c.report.last = string(text), r
	former.EgressQoSes, former.EgressFirewalls, former.Firewalled = r.EgressQoSes, r.EgressFirewalls, r.Firewalled
	if reflect.DeepEqual(former, r) && nodes > manyNodes {
		return
	}
	select {
	case c.report.changes() <- struct{}{}:
	default:
	}
}

// writeReports writes and renews this node's Lease until ctx ends. It does not delete the Lease then: a restart of the
// daemon must not look like a node's death.
func (c *Cluster) writeReports(ctx context.Context, k clients) {
	defer c.outcome(k, "report", leaseResource, nil)
	c.report.mu.Lock()
	changed := c.report.changes()
	var due <-chan time.Time
	if c.report.text != "" {
		due = time.After(0)
	}
	c.report.mu.Unlock()
	var renewed time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if !pause.For(ctx, settle) {
				return
			}
		case <-due:
		}
		renews, err := c.writeReport(ctx, k)
		if ctx.Err() != nil {
			return
		}
		c.outcome(k, "report", leaseResource, err)
		next := c.timing.beat - rand.N(c.timing.beat/5)
		if renews {
			if time.Since(renewed) > c.timing.life {
				c.states.Again() // the leader may have marked this node as silent
			}
			renewed = time.Now()
		}
		if err != nil {
			next = min(next, rewriteAfter+rand.N(2*rewriteAfter))
		}
		due = time.After(next)
		if !pause.For(ctx, pace) {
			return
		}
	}
}

// writeReport writes the newest report to this node's Lease, and reports whether it did: where there is a Lease, a report of a daemon that
// starts is not written.
func (c *Cluster) writeReport(ctx context.Context, k clients) (renews bool, err error) {
	c.report.mu.Lock()
	text, starting, drains := c.report.text, c.report.last.Starting, c.report.last.Draining
	c.report.mu.Unlock()
	node, lasts, now := c.options.Node, int32(c.timing.life/time.Second), metav1.NowMicro()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: reportName(node), Namespace: c.options.Namespace,
			Labels:      map[string]string{labelName: component, labelReport: ""},
			Annotations: map[string]string{annotationReport: text},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &lasts, RenewTime: &now},
	}
	if !starting {
		if err = c.writeLease(ctx, k, lease); err == nil && c.report.setDrains(drains) {
			c.wake()
		}
		return err == nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	if err = c.createLease(ctx, k, lease); apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	return err == nil, err
}

// writeLease writes a Lease of this node. Its owner is the Node, so that Kubernetes deletes it with the Node.
func (c *Cluster) writeLease(ctx context.Context, k clients, lease *coordinationv1.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	patch, err := json.Marshal(lease)
	if err != nil {
		return fmt.Errorf("encode Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	to := k.core.CoordinationV1().Leases(c.options.Namespace)
	if _, err = to.Patch(ctx, lease.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	if err = c.createLease(ctx, k, lease); err == nil {
		c.states.Again() // if there was one, its Node was deleted, and the EgressNode with it
	}
	return err
}

// createLease makes a Lease of this node. If there is one, the error is that of apierrors.IsAlreadyExists.
func (c *Cluster) createLease(ctx context.Context, k clients, lease *coordinationv1.Lease) error {
	// Only a new Lease gets an owner: on some clusters, changing the owner of an object needs permission to delete it.
	select {
	case <-c.nodesKnown:
	case <-ctx.Done():
		return fmt.Errorf("create Lease %s/%s: Nodes were not listed yet, so its owner is not known", lease.Namespace, lease.Name)
	}
	var err error
	if lease.OwnerReferences, err = c.owners(); err != nil {
		return fmt.Errorf("create Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	if _, err := k.core.CoordinationV1().Leases(c.options.Namespace).Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	return nil
}

// errRemoved is the error of a new object of this node after its Node was deleted: Kubernetes would never delete the object.
var errRemoved = errors.New("this node's Node was deleted")

// owners returns the owner of a new object of this node: its Node, with which Kubernetes deletes the object. There is none while the
// Node is not known yet.
func (c *Cluster) owners() ([]metav1.OwnerReference, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, there := c.nodes.objects.Get(c.options.Node)
	switch {
	case there && n.UID != "":
		return []metav1.OwnerReference{{
			APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Node", Name: c.options.Node, UID: types.UID(n.UID),
		}}, nil
	case !there && c.nodes.knewOwn:
		return nil, errRemoved
	}
	return nil, nil
}

// countNodes returns the number of known Nodes.
func (c *Cluster) countNodes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes.objects.Map().Len()
}

// ReportNode sets the state of this node for people: it is written to this node's EgressNode.
func (c *Cluster) ReportNode(s v1alpha1.EgressNodeStatus) { c.states.Set(s) }

// silence marks a node whose Lease has expired as silent.
func (t *term) silence(ctx context.Context, node string) error {
	silent := func() bool {
		living, known := t.reports.living()
		_, lives := living[node]
		return known && !lives
	}
	return nodestate.Silence(ctx, t.clients.core.Discovery().RESTClient(), node, silent)
}

// reportName returns the name of a node's Lease.
func reportName(node string) string {
	const prefix, longest = "node.", 253
	if len(prefix+node) <= longest {
		return prefix + node
	}
	sum := sha256.Sum256([]byte(node))
	return prefix + hex.EncodeToString(sum[:])
}

// reports holds the nodes' reports for the leader.
//
// A node is presumed dead when its Lease was not renewed for the Lease's duration, measured while the watch delivered
// other Leases: the leader renews its own, so a silent watch is no evidence against any node, and after an interruption
// every node gets its whole duration again. A deleted Lease is no sign of death either: its daemon creates another.
type reports struct {
	gap  time.Duration // a watch that delivered nothing for this long was interrupted
	wake func()
	gone func(node string) // a node's Lease has expired

	mu        sync.Mutex
	known     bool // all existing Leases were listed
	delivered time.Time
	nodes     map[string]*nodeReport
}

// nodeReport is one node's report, with the time of its renewal by the leader's clock.
type nodeReport struct {
	version string // of the Lease
	text    string
	report  cluster.Report
	at      time.Time
	lasts   time.Duration
	old     bool // by the wall clock its Lease had expired when it was listed, and it was not renewed since
}

func (r *reports) changed(l *coordinationv1.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	differs := r.update(l, r.noteDelivery())
	if r.expire() || differs {
		r.wake()
	}
}

func (r *reports) deleted(*coordinationv1.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteDelivery()
	if r.expire() {
		r.wake()
	}
}

// listed takes a complete list of Leases. It restarts every node's time, since a list follows an interruption or the
// start.
func (r *reports) listed(all []*coordinationv1.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, l := range all {
		_, known := r.nodes[holder(l)]
		if r.update(l, now); !known && r.nodes[holder(l)] != nil {
			n := r.nodes[holder(l)]
			n.old = l.Spec.RenewTime == nil || now.Sub(l.Spec.RenewTime.Time) > n.lasts+skewMost
		}
	}
	r.restart(now)
	r.known = true
	r.wake()
}

// noteDelivery records that the watch delivered something, and restarts every node's time after an interruption.
func (r *reports) noteDelivery() time.Time {
	now := time.Now()
	if now.Sub(r.delivered) > r.gap {
		r.restart(now)
	}
	r.delivered = now
	return now
}

func (r *reports) restart(now time.Time) {
	r.delivered = now
	for _, n := range r.nodes {
		n.at = now
	}
}

// update stores a Lease's report, and returns whether it differs from the former one. It ignores a Lease without a valid
// report: that node soon writes a better one.
func (r *reports) update(l *coordinationv1.Lease, now time.Time) bool {
	if !isReport(l) {
		return false
	}
	node := holder(l)
	former := r.nodes[node]
	if former != nil && former.version == l.ResourceVersion {
		return false
	}
	n := &nodeReport{
		version: l.ResourceVersion, text: l.Annotations[annotationReport],
		at: now, lasts: time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second,
	}
	renewed := former != nil && former.text == n.text
	if renewed {
		n.report = former.report
	} else if json.Unmarshal([]byte(n.text), &n.report) != nil {
		return false
	}
	if r.nodes == nil {
		r.nodes = map[string]*nodeReport{}
	}
	r.nodes[node] = n
	return !renewed || former.old
}

// holder returns the node that a Lease names.
func holder(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// isReport reports whether a Lease has the name, the holder and the duration of a node's report.
func isReport(l *coordinationv1.Lease) bool {
	return l.Spec.HolderIdentity != nil && reportName(holder(l)) == l.Name && l.Spec.LeaseDurationSeconds != nil
}

// expire removes the nodes whose Leases have expired, and reports whether there were any.
func (r *reports) expire() (expired bool) {
	for node, n := range r.nodes {
		if r.delivered.Sub(n.at) >= n.lasts {
			delete(r.nodes, node)
			r.gone(node)
			expired = true
		}
	}
	return expired
}

// living returns the reports of the living nodes, or false before the first list of Leases.
func (r *reports) living() (map[string]cluster.Report, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known {
		return nil, false
	}
	all := make(map[string]cluster.Report, len(r.nodes))
	for node, n := range r.nodes {
		report := n.report
		report.Old = n.old
		all[node] = report
	}
	return all, true
}
