package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/egressway/egressway/internal/cluster"
)

// podResource is how kubectl names Pods.
const podResource = "pods"

// ownPods holds the Pods of this node, while a feature or an object needs them.
type ownPods struct {
	*switched[cluster.Key, cluster.Pod]
	asked bool // by FollowPods
}

func newOwnPods(c *Cluster) *ownPods {
	s := &c.source
	pods := newStore(c, kind[cluster.Key, cluster.Pod]{
		resource: podResource, example: &corev1.Pod{}, client: coreClient,
		fields:  fields.OneTermEqualSelector("spec.nodeName", c.options.Node).String,
		changed: func(key cluster.Key) { s.changed.AddPod(key) },
		trim: trimmer(func(o *corev1.Pod) object[cluster.Key, cluster.Pod] {
			key, p, problems, ok := cluster.FromPod(o)
			key.Namespace, p.Node, p.Labels = s.texts.intern(key.Namespace), s.texts.intern(p.Node), s.labels(p.Labels)
			return object[cluster.Key, cluster.Pod]{key, p, problems, ok}
		}),
	})
	return &ownPods{asked: c.options.Pods, switched: newSwitched(pods, c.options.Pods)}
}

// FollowPods includes the Pods of this node in Objects, or only while objects of other kinds select Pods. Pods that are wanted
// before the first complete snapshot delay it until they are known.
func (c *Cluster) FollowPods(want bool) {
	c.change(func() bool {
		c.pods.asked = want
		return c.turnPods()
	})
}

// wantPods follows the Pods of this node while they are needed. The caller holds the mutex.
func (s *source) wantPods() { s.turnPods() }

func (s *source) turnPods() (changed bool) {
	return s.pods.turn(s.pods.asked || slices.ContainsFunc(s.optional, optional.needsPods))
}

// handOut returns the Pods, and whether they are wanted and known.
func (p *ownPods) handOut() (all cluster.Map[cluster.Key, cluster.Pod], known bool) {
	if !p.wanted || !p.synced {
		return all, false
	}
	return p.objects.Map(), true
}
