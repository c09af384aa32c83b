package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/pause"
)

const (
	component        = "egressway"
	labelName        = "app.kubernetes.io/name"
	labelReport      = "egressway.io/node-report" // on the Leases by which nodes report
	annotationReport = "egressway.io/report"      // what a node reports, as JSON

	// settle is how long a report waits for further changes, pace the least time between two that are written.
	settle = 50 * time.Millisecond
	pace   = 200 * time.Millisecond
	// tellAgain is the least pause after a report that could not be written.
	tellAgain = time.Second
)

// report is what this node tells, as JSON.
type report struct {
	mu      sync.Mutex
	text    string // empty: nothing yet
	changed chan struct{}
}

// news signals that there is something else to tell.
func (r *report) news() chan struct{} {
	if r.changed == nil {
		r.changed = make(chan struct{}, 1)
	}
	return r.changed
}

// Report tells the leader about this node. The newest report is written to this node's Lease soon when it differs from
// the former, and renewed from then on.
func (c *Cluster) Report(r cluster.Report) {
	text, err := json.Marshal(r)
	if err != nil {
		c.log.Error("this node's report cannot be written", "error", err)
		return
	}
	c.report.mu.Lock()
	defer c.report.mu.Unlock()
	if c.report.text == string(text) {
		return
	}
	c.report.text = string(text)
	select {
	case c.report.news() <- struct{}{}:
	default:
	}
}

// tellReports keeps this node's Lease until ctx ends. It stays then: a daemon that restarts is no node that died.
func (c *Cluster) tellReports(ctx context.Context, k clients) {
	defer c.outcome(k, "report", leaseResource, nil)
	c.report.mu.Lock()
	changed := c.report.news()
	var due <-chan time.Time
	if c.report.text != "" {
		due = time.After(0)
	}
	c.report.mu.Unlock()
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
		err := c.tellReport(ctx, k)
		if ctx.Err() != nil {
			return
		}
		c.outcome(k, "report", leaseResource, err)
		next := c.timing.beat - rand.N(c.timing.beat/5)
		if err != nil {
			next = min(next, tellAgain+rand.N(2*tellAgain))
		}
		due = time.After(next)
		if !pause.For(ctx, pace) {
			return
		}
	}
}

// tellReport writes the newest report to this node's Lease. A Lease whose Node is gone is collected with it.
func (c *Cluster) tellReport(ctx context.Context, k clients) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	c.report.mu.Lock()
	text := c.report.text
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
	patch, err := json.Marshal(lease)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	to := k.core.CoordinationV1().Leases(c.options.Namespace)
	if _, err = to.Patch(ctx, lease.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	// Only here: to change the owner of what is there takes permission to delete it, on some clusters.
	c.mu.Lock()
	uid := c.nodes.objects.At(node).UID
	c.mu.Unlock()
	if uid != "" && c.synced.Load() {
		lease.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Node", Name: node, UID: types.UID(uid),
		}}
	}
	if _, err = to.Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	return nil
}

// reportName names the Lease by which a node reports.
func reportName(node string) string {
	const prefix, longest = "node.", 253
	if len(prefix+node) <= longest {
		return prefix + node
	}
	sum := sha256.Sum256([]byte(node))
	return prefix + hex.EncodeToString(sum[:])
}

// reports is what the nodes told the leader.
//
// A node is presumed dead when its Lease was not renewed for as long as it lasts while those of others were: the leader
// renews its own, so a watch that is silent tells nothing about anybody, and when it speaks again everyone gets the whole
// time anew. A Lease that is deleted is no sign of death either; its daemon makes another.
type reports struct {
	gap  time.Duration // a watch that told nothing for that long was interrupted
	wake func()

	mu    sync.Mutex
	known bool // every Lease there is was told
	heard time.Time
	nodes map[string]*told
}

// told is what one node told, and when by the leader's clock.
type told struct {
	version string // of the Lease
	text    string
	report  cluster.Report
	at      time.Time
	lasts   time.Duration
}

func (r *reports) changed(l *coordinationv1.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	news := r.take(l, r.hear())
	if r.bury() || news {
		r.wake()
	}
}

func (r *reports) deleted(*coordinationv1.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hear()
	if r.bury() {
		r.wake()
	}
}

// listed begins the time anew for everyone: a list follows an interruption, or the start.
func (r *reports) listed(all []*coordinationv1.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, l := range all {
		r.take(l, now)
	}
	r.restart(now)
	r.known = true
	r.wake()
}

// hear notes that the watch speaks.
func (r *reports) hear() time.Time {
	now := time.Now()
	if now.Sub(r.heard) > r.gap {
		r.restart(now)
	}
	r.heard = now
	return now
}

func (r *reports) restart(now time.Time) {
	r.heard = now
	for _, n := range r.nodes {
		n.at = now
	}
}

// take keeps what a Lease tells, and reports whether it is something else than before. What is no report is passed over: the
// node that should have written it soon writes a better one.
func (r *reports) take(l *coordinationv1.Lease, now time.Time) bool {
	if l.Spec.HolderIdentity == nil || reportName(*l.Spec.HolderIdentity) != l.Name || l.Spec.LeaseDurationSeconds == nil {
		return false
	}
	node := *l.Spec.HolderIdentity
	former := r.nodes[node]
	if former != nil && former.version == l.ResourceVersion {
		return false
	}
	n := &told{
		version: l.ResourceVersion, text: l.Annotations[annotationReport],
		at: now, lasts: time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second,
	}
	if former != nil && former.text == n.text {
		n.report = former.report // it was only renewed
	} else if json.Unmarshal([]byte(n.text), &n.report) != nil {
		return false
	}
	if r.nodes == nil {
		r.nodes = map[string]*told{}
	}
	r.nodes[node] = n
	return former == nil || former.text != n.text
}

// bury forgets who was not heard in time, and reports whether there was anyone.
func (r *reports) bury() (someone bool) {
	for node, n := range r.nodes {
		if r.heard.Sub(n.at) >= n.lasts {
			delete(r.nodes, node)
			someone = true
		}
	}
	return someone
}

// living gives what the living nodes reported; false: not every Lease is known yet.
func (r *reports) living() (map[string]cluster.Report, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known {
		return nil, false
	}
	all := make(map[string]cluster.Report, len(r.nodes))
	for node, n := range r.nodes {
		all[node] = n.report
	}
	return all, true
}
