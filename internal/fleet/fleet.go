// Package fleet runs this program's commands in the daemons' pods of a cluster, by exec through the API server: daemons need no
// port for it, and the API server decides who may.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	_ "k8s.io/client-go/plugin/pkg/client/auth/oidc" // for kubeconfigs that kubectl accepts
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// program is the daemon's container, its value of the label app.kubernetes.io/name, and the program in its image.
const program = "egressway"

// pageSize limits the pods in one answer of the API server.
const pageSize = 500

// Options choose a cluster as kubectl does.
type Options struct {
	Kubeconfig string // empty: KUBECONFIG, or ~/.kube/config
	Context    string // of the kubeconfig; empty: its current one
	Namespace  string // of objects; empty: that of the context
	Daemons    string // namespace of the daemons
}

// Fleet is the daemons of a cluster.
type Fleet struct {
	config    *rest.Config
	client    kubernetes.Interface
	namespace string
	daemons   string
}

// Open reads the kubeconfig. It sends no request.
func Open(o Options) (*Fleet, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.Context}
	overrides.Context.Namespace = o.Namespace
	from := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := from.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	namespace, _, err := from.Namespace()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("use the kubeconfig: %w", err)
	}
	return &Fleet{config, client, namespace, o.Daemons}, nil
}

// Daemon is the daemon of one node.
type Daemon struct {
	Node, Pod string
	Down      string // why it cannot be asked; empty: it can
}

// Daemons lists the daemons by their nodes.
func (f *Fleet) Daemons(ctx context.Context) ([]Daemon, error) {
	pods, err := f.pods(ctx, "")
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("namespace %s has no pod of a daemon: name theirs with --daemons", f.daemons)
	}
	return byNode(pods), nil
}

// On returns the daemon of a node.
func (f *Fleet) On(ctx context.Context, node string) (Daemon, error) {
	pods, err := f.pods(ctx, fields.OneTermEqualSelector("spec.nodeName", node).String())
	if err != nil {
		return Daemon{}, err
	}
	all := byNode(pods)
	switch {
	case len(all) == 0:
		return Daemon{}, fmt.Errorf("node %s has no pod of a daemon in namespace %s", node, f.daemons)
	case all[0].Down != "":
		return Daemon{}, fmt.Errorf("node %s: %s", node, all[0].Down)
	}
	return all[0], nil
}

// pods lists the daemons' pods that a field selector admits.
func (f *Fleet) pods(ctx context.Context, field string) (all []corev1.Pod, err error) {
	o := metav1.ListOptions{
		LabelSelector: labels.Set{"app.kubernetes.io/name": program}.String(), FieldSelector: field, Limit: pageSize,
	}
	for {
		list, err := f.client.CoreV1().Pods(f.daemons).List(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("list the daemons' pods in namespace %s: %w", f.daemons, err)
		}
		all = append(all, list.Items...)
		if o.Continue = list.Continue; o.Continue == "" {
			return all, nil
		}
	}
}

// byNode returns the daemon of each node, by the pod that is most likely to answer: an update has two for a while.
func byNode(pods []corev1.Pod) (all []Daemon) {
	best := map[string]*corev1.Pod{}
	for i := range pods {
		p := &pods[i]
		node := nodeOf(p)
		if had := best[node]; had == nil || better(p, had) {
			best[node] = p
		}
	}
	for node, p := range best {
		all = append(all, Daemon{Node: node, Pod: p.Name, Down: down(p)})
	}
	slices.SortFunc(all, func(a, b Daemon) int { return strings.Compare(a.Node, b.Node) })
	return all
}

// better reports whether a pod is more likely to answer than another of its node.
func better(p, than *corev1.Pod) bool {
	if a, b := down(p) == "", down(than) == ""; a != b {
		return a
	}
	return p.CreationTimestamp.After(than.CreationTimestamp.Time)
}

// nodeOf returns the node of a DaemonSet's pod. The DaemonSet's controller binds a pod that waits by its affinity.
func nodeOf(p *corev1.Pod) string {
	a := p.Spec.Affinity
	if p.Spec.NodeName != "" || a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return p.Spec.NodeName
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// down returns why a daemon's pod cannot be asked.
func down(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return fmt.Sprintf("pod %s is being deleted", p.Name)
	}
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		if s.Name != program || s.State.Running != nil {
			continue
		}
		if w := s.State.Waiting; w != nil {
			return fmt.Sprintf("pod %s is waiting: %s", p.Name, cmp.Or(w.Reason, w.Message))
		}
		return fmt.Sprintf("pod %s is not running", p.Name)
	}
	if p.Status.Phase != corev1.PodRunning {
		return fmt.Sprintf("pod %s is %s", p.Name, cmp.Or(p.Status.Phase, "not started"))
	}
	return ""
}

// Pod is a pod of any workload.
type Pod struct {
	Name, Node  string // Name has the namespace in front
	Addresses   []netip.Addr
	HostNetwork bool
}

// Find returns the pod that is named as NAMESPACE/POD, as POD in the namespace of the kubeconfig's context, or by its address.
func (f *Fleet) Find(ctx context.Context, name string) (Pod, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		return f.withAddress(ctx, a)
	}
	namespace, pod, qualified := strings.Cut(name, "/")
	if !qualified {
		namespace, pod = f.namespace, name
	}
	p, err := f.client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Pod{}, fmt.Errorf("namespace %s has no pod %s", namespace, pod)
	}
	if err != nil {
		return Pod{}, fmt.Errorf("get pod %s/%s: %w", namespace, pod, err)
	}
	return trim(p)
}

// withAddress returns the pod that has an address.
func (f *Fleet) withAddress(ctx context.Context, a netip.Addr) (Pod, error) {
	list, err := f.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("status.podIP", a.String()).String(),
	})
	if err != nil {
		return Pod{}, fmt.Errorf("find the pod with address %s: %w", a, err)
	}
	for i := range list.Items {
		if p := &list.Items[i]; usesAddress(p) {
			return trim(p)
		}
	}
	return Pod{}, fmt.Errorf("no pod has the address %s as its first one: name it as NAMESPACE/POD", a)
}

// usesAddress reports whether a pod's addresses are its own: a pod that has ended keeps them in its status, and another one may have them.
func usesAddress(p *corev1.Pod) bool {
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	return p.DeletionTimestamp == nil && !p.Spec.HostNetwork && !ended
}

func trim(p *corev1.Pod) (Pod, error) {
	pod := Pod{Name: p.Namespace + "/" + p.Name, Node: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			pod.Addresses = append(pod.Addresses, a)
		}
	}
	switch {
	case pod.Node == "" || len(pod.Addresses) == 0:
		return pod, fmt.Errorf("pod %s has no node and address yet: it is %s", pod.Name, p.Status.Phase)
	case pod.HostNetwork:
		return pod, fmt.Errorf("pod %s is in the host's network: Egressway does not select its packets", pod.Name)
	}
	return pod, nil
}

// Run runs a command line of this program in the daemon's pod, and returns its exit code.
func (f *Fleet) Run(ctx context.Context, d Daemon, out, errs io.Writer, args ...string) (code int, err error) {
	if d.Down != "" {
		return 0, errors.New(d.Down)
	}
	at := f.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(f.daemons).Name(d.Pod).SubResource("exec").VersionedParams(
		&corev1.PodExecOptions{Container: program, Command: append([]string{program}, args...), Stdout: true, Stderr: true},
		scheme.ParameterCodec).URL()
	websocket, err := remotecommand.NewWebSocketExecutor(f.config, "GET", at.String())
	if err != nil {
		return 0, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(f.config, "POST", at)
	if err != nil {
		return 0, err
	}
	either, err := remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return 0, err
	}
	err = either.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: errs})
	if ended := (exec.CodeExitError{}); errors.As(err, &ended) {
		return ended.Code, nil
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("no answer from pod %s in time: %w", d.Pod, ctx.Err())
	}
	return 0, err
}

// Each calls ask for every daemon, most of them at a time, each within a time, and returns when all calls have ended.
func Each(ctx context.Context, daemons []Daemon, most int, within time.Duration, ask func(ctx context.Context, i int)) {
	var asking sync.WaitGroup
	free := make(chan struct{}, most)
	for i := range daemons {
		free <- struct{}{}
		asking.Go(func() {
			defer func() { <-free }()
			ctx, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			ask(ctx, i)
		})
	}
	asking.Wait()
}
