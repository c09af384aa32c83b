package kubetest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/kubetest"
)

// web is a Service with an ingress IP and the EgressService that belongs to it.
const web = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{name: http, port: 80}]
status:
  loadBalancer: {ingress: [{ip: 192.0.2.10}]}
---
apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {name: web, namespace: shop}
spec: {sourceIPBy: LoadBalancerIP, network: red}
status: {host: node-a}
`

// reader may get Services, and nothing else.
const reader = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [services], verbs: [get, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
`

func client(t *testing.T, s *kubetest.Server) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(s.Config())
	require.NoError(t, err)
	return c
}

func applyCRDs(t *testing.T, s *kubetest.Server) {
	t.Helper()
	files, err := filepath.Glob("../../config/crd/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		s.Apply(t, string(b))
	}
}

func TestStateOutlivesTheServer(t *testing.T) {
	s := kubetest.Start(t, kubetest.Options{})
	applyCRDs(t, s)
	s.Apply(t, web)
	check := func() {
		t.Helper()
		service, err := client(t, s).CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "192.0.2.10", service.Status.LoadBalancer.Ingress[0].IP)
		d, err := dynamic.NewForConfig(s.Config())
		require.NoError(t, err)
		egress, err := d.Resource(schema.GroupVersionResource{Group: "k8s.ovn.org", Version: "v1", Resource: "egressservices"}).
			Namespace("shop").Get(t.Context(), "web", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, map[string]any{"host": "node-a"}, egress.Object["status"])
	}
	check()

	before := s.Config().Host
	s.Kill(t)
	_, err := client(t, s).CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
	require.ErrorContains(t, err, "connection refused")
	s.Up(t)
	require.Equal(t, before, s.Config().Host)
	check()

	s.Freeze(t)
	silent := func() bool { // its threads stop one by one
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := client(t, s).CoreV1().Services("shop").Get(ctx, "web", metav1.GetOptions{})
		return err != nil && ctx.Err() != nil
	}
	require.Eventually(t, silent, lab.Patience, 10*time.Millisecond)
	s.Thaw(t)
	check()
}

func TestApplyTakesAway(t *testing.T) {
	s := kubetest.Start(t, kubetest.Options{})
	applyCRDs(t, s)
	s.Apply(t, web)
	s.Apply(t, strings.Replace(web, "{ingress: [{ip: 192.0.2.10}]}", "{}", 1))
	services := client(t, s).CoreV1().Services("shop")
	service, err := services.Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, service.Status.LoadBalancer.Ingress)

	// A node in both families has two addresses of one type.
	node := `{apiVersion: v1, kind: Node, metadata: {name: a}, status: %s}`
	s.Apply(t, fmt.Sprintf(node, `{addresses: [{type: InternalIP, address: 10.0.0.1}, {type: InternalIP, address: "fd00::1"}]}`))
	s.Apply(t, fmt.Sprintf(node, `{conditions: [{type: Ready, status: "True"}]}`))
	n, err := client(t, s).CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, n.Status.Addresses, 2)

	s.Delete(t, `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}}`)
	_, err = services.Get(t.Context(), "web", metav1.GetOptions{})
	require.True(t, errors.IsNotFound(err), "%v", err)

	err = s.API.Apply(t.Context(), strings.Replace(web, "LoadBalancerIP", "Magic", 1))
	require.ErrorContains(t, err, `apply EgressService shop/web`)
	require.ErrorContains(t, err, `Unsupported value: "Magic"`)
	require.ErrorContains(t, s.API.Apply(t.Context(), `{apiVersion: v1, kind: Nothing, metadata: {name: x}}`), "no matches")
}

func TestServiceAccountMayDoWhatItsRoleSays(t *testing.T) {
	s := kubetest.Start(t, kubetest.Options{})
	s.Apply(t, reader)
	config, kubeconfig := s.ServiceAccountConfig(t, "default", "reader")
	require.Contains(t, string(kubeconfig), config.BearerToken)
	c, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	// The authorizer learns of a binding a moment after it was made.
	require.NoError(t, lab.Wait(t.Context(), lab.Patience, func() error {
		_, err := c.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		return err
	}))
	_, err = c.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, metav1.CreateOptions{})
	require.True(t, errors.IsForbidden(err), "%v", err)
	w, err := c.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	w.Stop()

	user := "system:serviceaccount:default:reader"
	require.NoError(t, lab.Wait(t.Context(), lab.Patience, func() error {
		seen := map[string]int{}
		for _, e := range s.Audit(t) {
			if e.User == user && e.Resource == "services" {
				seen[fmt.Sprintf("%s %s/%s %d %t", e.Verb, e.Namespace, e.Name, e.Code, e.Forbidden())]++
			}
		}
		for _, want := range []string{"get default/kubernetes 200 false", "create default/ 403 true", "watch / 200 false"} {
			if seen[want] != 1 {
				return fmt.Errorf("%q was not seen once: %v", want, seen)
			}
		}
		return nil
	}))
}

func TestPretendedKubelets(t *testing.T) {
	s := kubetest.Start(t, kubetest.Options{Args: []string{
		"-nodes=1", "-nodelifecycle", "-heartbeat=200ms", "-node-monitor-period=200ms", "-node-monitor-grace=2s",
	}})
	s.Apply(t, `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}, annotations: {kubelab/pod-ip: "10.244.1.7,fd44:1::7"}}
spec: {nodeName: node-0, automountServiceAccountToken: false, containers: [{name: web, image: web}]}
`)
	c := client(t, s)
	require.NoError(t, lab.Wait(t.Context(), lab.Patience, func() error {
		slices, err := c.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
		if err != nil {
			return err
		}
		got := map[string]string{}
		for _, slice := range slices.Items {
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					got[e.Addresses[0]] = *e.NodeName
				}
			}
		}
		if got["10.244.1.7"] != "node-0" || got["fd44:1::7"] != "node-0" {
			return fmt.Errorf("endpoints %v", got)
		}
		return nil
	}))
	ready := func(want corev1.ConditionStatus) {
		t.Helper()
		require.NoError(t, lab.Wait(t.Context(), lab.Patience, func() error {
			n, err := c.CoreV1().Nodes().Get(t.Context(), "node-0", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, condition := range n.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == want {
					return nil
				}
			}
			return fmt.Errorf("conditions %v", n.Status.Conditions)
		}))
	}
	ready(corev1.ConditionTrue)
	s.Apply(t, `{apiVersion: v1, kind: Node, metadata: {name: node-0, annotations: {kubelab/not-ready: ""}}}`)
	ready(corev1.ConditionFalse)
	s.Apply(t, `{apiVersion: v1, kind: Node, metadata: {name: node-0, annotations: {kubelab/dead: ""}}}`)
	ready(corev1.ConditionUnknown)
	s.Apply(t, `{apiVersion: v1, kind: Node, metadata: {name: node-0}}`)
	ready(corev1.ConditionTrue)
}

func TestSeed(t *testing.T) {
	s := kubetest.Start(t, kubetest.Options{Args: []string{"-seed-services=200", "-seed-nodes=10"}})
	services, err := client(t, s).CoreV1().Services("").List(t.Context(), metav1.ListOptions{LabelSelector: "app"})
	require.NoError(t, err)
	require.Len(t, services.Items, 200)
}

func TestWithoutKubelabItSaysWhatToDo(t *testing.T) {
	t.Setenv(kubetest.BinaryEnv, "")
	t.Setenv(kubetest.ControlEnv, "")
	_, err := kubetest.New(t.Context(), kubetest.Options{})
	require.ErrorContains(t, err, "`make kubelab`")
}
