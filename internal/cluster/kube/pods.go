package kube

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/egressway/egressway/internal/cluster"
)

// podResource is how kubectl names Pods.
const podResource = "pods"

// ownPods holds the Pods of this node. It watches them only while a feature needs them, since the watch has its cost.
type ownPods struct {
	*store[cluster.Key, cluster.Pod]
	wanted bool          // guarded by the Cluster's mutex, as turned is
	turned chan struct{} // closed when wanted changes
}

func newOwnPods(c *Cluster) *ownPods {
	s := &c.source
	return &ownPods{
		wanted: c.options.Pods, turned: make(chan struct{}),
		store: newStore(c, kind[cluster.Key, cluster.Pod]{
			resource: podResource, example: &corev1.Pod{}, client: coreClient,
			fields:  fields.OneTermEqualSelector("spec.nodeName", c.options.Node).String,
			changed: func(key cluster.Key) { s.changed.AddPod(key) },
			trim: trimmer(func(o *corev1.Pod) object[cluster.Key, cluster.Pod] {
				key, p, problems, ok := cluster.FromPod(o)
				key.Namespace, p.Node, p.Labels = s.texts.intern(key.Namespace), s.texts.intern(p.Node), s.labels(p.Labels)
				return object[cluster.Key, cluster.Pod]{key, p, problems, ok}
			}),
		}),
	}
}

// FollowPods switches the Pods of this node on or off in Objects. Pods that are wanted before the first complete
// snapshot delay it until they are known.
func (c *Cluster) FollowPods(want bool) {
	c.change(func() bool {
		p := c.pods
		if p.wanted == want {
			return false
		}
		p.wanted = want
		close(p.turned)
		p.turned = make(chan struct{})
		before := c.synced.Load()
		c.checkSynced() // only Pods may have been missing
		return before != c.synced.Load() || p.synced
	})
}

// isSynced reports whether Pods delay a snapshot no longer.
func (p *ownPods) isSynced() bool { return !p.wanted || p.store.isSynced() }

// handOut returns the Pods, and whether they are wanted and known.
func (p *ownPods) handOut() (all cluster.Map[cluster.Key, cluster.Pod], known bool) {
	if !p.wanted || !p.synced {
		return all, false
	}
	return p.objects.Map(), true
}

// follow keeps the Pods up to date while they are wanted, until ctx ends.
func (p *ownPods) follow(ctx context.Context, k clients) {
	for ctx.Err() == nil {
		p.cluster.mu.Lock()
		wanted, turned := p.wanted, p.turned
		p.cluster.mu.Unlock()
		if !wanted {
			p.forget()
			select {
			case <-ctx.Done():
			case <-turned:
			}
			continue
		}
		on, cancel := context.WithCancel(ctx)
		var g sync.WaitGroup
		g.Go(func() {
			defer cancel()
			select {
			case <-on.Done():
			case <-turned:
			}
		})
		p.store.follow(on, k)
		cancel()
		g.Wait()
	}
}

// forget drops Pods that are no longer wanted, with their problems.
func (p *ownPods) forget() {
	p.cluster.change(func() bool {
		if p.wanted || !p.synced {
			return false
		}
		for key := range p.objects.All() { // they may have changed when they are known again
			p.cluster.changed.AddPod(key)
		}
		p.objects, p.synced, p.doubts = cluster.Draft[cluster.Key, cluster.Pod]{}, false, newDoubts[cluster.Key]()
		changed := len(p.problems) > 0
		p.cluster.problemsChanged = p.cluster.problemsChanged || changed
		p.problems = map[cluster.Key][]cluster.Problem{}
		return changed
	})
	p.cluster.complain(podResource+" list", nil)
	p.cluster.complain(podResource+" watch", nil)
}
