package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Annotations by which a test steers the pretended kubelets.
const (
	podIPs   = "kubelab/pod-ip"    // on a Pod: its address, or two with a comma between; one of 10.244.0.0/14 otherwise
	notReady = "kubelab/not-ready" // on a Pod or a Node: it says that it is not ready
	dead     = "kubelab/dead"      // on a Node: it says nothing any more
)

type kubeletOptions struct {
	nodes     int
	heartbeat time.Duration
	runPods   bool
}

// kubelets stand in for those of all nodes. Their errors are silent: what was not done is done when its turn comes again.
type kubelets struct {
	client kubernetes.Interface
	pods   atomic.Uint32 // that were given an address
}

func startKubelets(ctx context.Context, config *rest.Config, o kubeletOptions) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	k := &kubelets{client: client}
	for i := range o.nodes {
		if err := k.register(ctx, i); err != nil {
			return err
		}
	}
	if o.heartbeat > 0 {
		f := informers.NewSharedInformerFactory(client, 0)
		nodes := f.Core().V1().Nodes().Lister()
		f.Start(ctx.Done())
		f.WaitForCacheSync(ctx.Done())
		go k.heartbeats(ctx, o.heartbeat, nodes)
	}
	if o.runPods {
		k.runPods(ctx)
	}
	return nil
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func nodeAddress(i int) string { return fmt.Sprintf("172.31.%d.%d", i/250, i%250+1) }

func (k *kubelets) register(ctx context.Context, i int) error {
	name, now := nodeName(i), metav1.Now()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress(i)}},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
				LastHeartbeatTime: now, LastTransitionTime: now,
			}},
		},
	}
	_, err := k.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if errors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// heartbeats has every node report once a period.
func (k *kubelets) heartbeats(ctx context.Context, period time.Duration, nodes corelisters.NodeLister) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		all, _ := nodes.List(labels.Everything())
		queue := make(chan *corev1.Node)
		var workers sync.WaitGroup
		for range 16 {
			workers.Go(func() {
				for n := range queue {
					k.report(ctx, n)
				}
			})
		}
		for _, n := range all {
			if _, silent := n.Annotations[dead]; !silent {
				queue <- n
			}
		}
		close(queue)
		workers.Wait()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// report renews the node's lease, and its Ready condition where that is not as it should be: a lease alone makes no node
// ready again.
func (k *kubelets) report(ctx context.Context, n *corev1.Node) {
	now := metav1.NowMicro()
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, now.UTC().Format(metav1.RFC3339Micro))
	_, err := leases.Patch(ctx, n.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if errors.IsNotFound(err) {
		_, _ = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Namespace: corev1.NamespaceNodeLease},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &n.Name, RenewTime: &now},
		}, metav1.CreateOptions{})
	}
	want := wanted(n)
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == want {
			return
		}
	}
	seconds := metav1.NewTime(now.Time)
	_, _ = k.client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, encode(map[string]any{"status": map[string]any{
		"conditions": []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: want, Reason: "KubeletReady",
			LastHeartbeatTime: seconds, LastTransitionTime: seconds,
		}},
	}}), metav1.PatchOptions{}, "status")
}

// wanted is the Ready condition that a Node or a Pod is to have.
func wanted(o metav1.Object) corev1.ConditionStatus {
	if _, no := o.GetAnnotations()[notReady]; no {
		return corev1.ConditionFalse
	}
	return corev1.ConditionTrue
}

// runPods keeps every pod that names a node as it should be.
func (k *kubelets) runPods(ctx context.Context) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[*corev1.Pod]())
	add := func(o any) {
		if p, ok := o.(*corev1.Pod); ok && (p.Status.PodIP == "" || p.DeletionTimestamp != nil || !asWanted(p)) {
			queue.Add(p)
		}
	}
	onNodes := cache.NewFilteredListWatchFromClient(k.client.CoreV1().RESTClient(), "pods", "", func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
	})
	_, pods := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: onNodes, ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }},
	})
	go pods.RunWithContext(ctx)
	for range 8 {
		go func() {
			for {
				p, end := queue.Get()
				if end {
					return
				}
				k.run(ctx, p)
				queue.Done(p)
			}
		}()
	}
	context.AfterFunc(ctx, queue.ShutDown)
}

func asWanted(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == wanted(p)
		}
	}
	return false
}

// run gives a pod addresses and has it Running; one that is being deleted it lets go.
func (k *kubelets) run(ctx context.Context, p *corev1.Pod) {
	pods := k.client.CoreV1().Pods(p.Namespace)
	if p.DeletionTimestamp != nil {
		_ = pods.Delete(ctx, p.Name, *metav1.NewDeleteOptions(0))
		return
	}
	ips := p.Status.PodIPs
	if a := p.Annotations[podIPs]; a != "" {
		ips = nil
		for ip := range strings.SplitSeq(a, ",") {
			ips = append(ips, corev1.PodIP{IP: ip})
		}
	}
	if len(ips) == 0 {
		n := k.pods.Add(1)
		ips = []corev1.PodIP{{IP: netip.AddrFrom4([4]byte{10, byte(244 + n>>16), byte(n >> 8), byte(n)}).String()}}
	}
	now := metav1.Now()
	_, _ = pods.Patch(ctx, p.Name, types.StrategicMergePatchType, encode(map[string]any{"status": map[string]any{
		"phase": corev1.PodRunning, "podIP": ips[0].IP, "podIPs": ips, "startTime": now,
		"conditions": []corev1.PodCondition{{Type: corev1.PodReady, Status: wanted(p), LastTransitionTime: now}},
	}}), metav1.PatchOptions{}, "status")
}

// encode is for what can be encoded.
func encode(patch map[string]any) []byte {
	b, _ := json.Marshal(patch)
	return b
}
