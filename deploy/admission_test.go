package deploy

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	k8syaml "sigs.k8s.io/yaml"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/lab/kubetest"
)

// admissionValues list networks, one for namespaces with a label.
const admissionValues = `{labelHosts: true, admissionPolicy: {enabled: true}, config: {networks: [{name: red, table: 1001}, {name: "100", table: 100},
	{name: blue, table: 1002, namespaces: {matchLabels: {team: a}, matchExpressions: [{key: tier, operator: NotIn, values: [test]}, {key: closed, operator: DoesNotExist}]}}]}}`

// warnings keeps the warnings that an API server sends along with its answers.
type warnings struct {
	mu   sync.Mutex
	said []string
}

// HandleWarningHeaderWithContext is called by client-go.
func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

// since returns the warnings, and forgets them.
func (w *warnings) since() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.said = nil }()
	return w.said
}

// TestAdmissionPolicy creates EgressServices at an API server with the chart's policy: those that the daemon would refuse are refused by the
// server, or cause a warning, and an object that exists keeps its fault until its spec changes.
func TestAdmissionPolicy(t *testing.T) {
	server := kubetest.Start(t, kubetest.Options{})
	server.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}",
		string(run(t, "helm", "template", "egressway", chart, "--include-crds", "--namespace", namespace)), `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: a}}
---
apiVersion: v1
kind: Namespace
metadata: {name: test, labels: {team: a, tier: test}}
---
apiVersion: v1
kind: Namespace
metadata: {name: closed, labels: {team: a, closed: ""}}
---
apiVersion: v1
kind: Namespace
metadata: {name: other}`)
	config, said := server.Config(), &warnings{}
	config.WarningHandlerWithContext = said
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	at := func(ns string) dynamic.ResourceInterface {
		return client.Resource(egressv1.GroupVersion.WithResource("egressservices")).Namespace(ns)
	}
	create := func(ns, name, spec string) error {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": egressv1.GroupVersion.String(), "kind": "EgressService", "metadata": map[string]any{"name": name, "namespace": ns},
		}}
		if spec != "" {
			var s map[string]any
			require.NoError(t, k8syaml.Unmarshal([]byte(spec), &s))
			u.Object["spec"] = s
		}
		_, err := at(ns).Create(t.Context(), u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	patch := func(text string) error {
		_, err := at("shop").Patch(t.Context(), "old", types.MergePatchType, []byte(text), metav1.PatchOptions{})
		return err
	}
	server.Apply(t, "{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {name: old, namespace: shop}, spec: {network: gone}}")

	server.Apply(t, string(run(t, "helm", "template", "egressway", chart, "--namespace", namespace, "--values", file(t, admissionValues))))
	require.Eventually(t, func() bool { return create("shop", "web", "network: none") != nil }, time.Minute, 50*time.Millisecond,
		"the API server does not use the policy")
	long := strings.Repeat("n", 60)
	for _, c := range []struct{ ns, name, spec, refusal string }{
		{"shop", "web", "", ""},
		{"shop", "web", "{sourceIPBy: LoadBalancerIP, network: red, nodeSelector: {matchLabels: {rack: '1', example.com/rack: ''}}}", ""},
		{"shop", "web", "network: default", ""},
		{"shop", "web", "network: '100'", ""},
		{"shop", "web", "network: blue", ""},
		{"shop", "web", "nodeSelector: {matchExpressions: [{key: gpu, operator: Exists}, {key: zone, operator: In, values: [a, b]}]}", ""},
		{"shop", "web", "{sourceIPBy: Network, network: red, nodeSelector: {}}", ""},
		{"other", "web", "network: green", "spec.network: green: no such network: it must be one of default, red, 100, blue"},
		{"other", "web", "network: blue", "spec.network: blue: labels of namespace other do not match"},
		{"test", "web", "network: blue", "spec.network: blue: labels of namespace test do not match"},
		{"closed", "web", "network: blue", "spec.network: blue: labels of namespace closed do not match"},
		{"shop", "web", "{sourceIPBy: Network, network: red, nodeSelector: {matchLabels: {rack: '1'}}}", "spec.nodeSelector: has no effect with sourceIPBy Network"},
		{"shop", "web", "nodeSelector: {matchExpressions: [{key: gpu, operator: exists}]}", "operator must be In or NotIn, with values"},
		{"shop", "web", "nodeSelector: {matchExpressions: [{key: gpu, operator: In}]}", "operator must be In or NotIn, with values"},
		{"shop", "web", "nodeSelector: {matchExpressions: [{key: gpu, operator: Exists, values: [a]}]}", "operator must be In or NotIn, with values"},
		{"shop", "web", "nodeSelector: {matchLabels: {a b: c}}", "each key must be the name of a label"},
		{"shop", "web", "nodeSelector: {matchLabels: {a: b c}}", "each value must be that of a label"},
		{"shop", long, "", "namespace and name must have at most 62 bytes together"},
	} {
		err := create(c.ns, c.name, c.spec)
		if c.refusal == "" {
			require.NoError(t, err, "%+v", c)
			continue
		}
		require.ErrorContains(t, err, c.refusal, "%+v", c)
	}
	require.NoError(t, patch(`{"metadata":{"labels":{"a":"b"}}}`), "an object with an old fault can be labelled")
	require.ErrorContains(t, patch(`{"spec":{"network":"lost"}}`), "no such network")
	require.NoError(t, patch(`{"spec":{"network":"red"}}`))

	// The daemon may write the status of an EgressIP, and not its spec.
	server.Apply(t, "{apiVersion: k8s.ovn.org/v1, kind: EgressIP, metadata: {name: team}, spec: {egressIPs: [192.0.2.1], namespaceSelector: {}}}")
	as := func(user, text string) error {
		config := server.Config()
		config.Impersonate.UserName, config.Impersonate.Groups = user, []string{"system:masters"}
		client, err := dynamic.NewForConfig(config)
		require.NoError(t, err)
		_, err = client.Resource(egressv1.GroupVersion.WithResource("egressips")).Patch(t.Context(), "team", types.MergePatchType, []byte(text), metav1.PatchOptions{})
		return err
	}
	const daemon = "system:serviceaccount:" + namespace + ":egressway"
	require.NoError(t, as(daemon, `{"status": {"items": [{"egressIP": "192.0.2.1", "node": "a"}]}}`))
	require.ErrorContains(t, as(daemon, `{"spec": {"egressIPs": ["192.0.2.2"]}}`), "the daemon writes the status of EgressIPs only")
	require.NoError(t, as("admin", `{"spec": {"egressIPs": ["192.0.2.2"]}}`))

	said.since()
	warn := strings.Replace(admissionValues, "enabled: true", "enabled: true, validationActions: [Warn]", 1)
	server.Apply(t, string(run(t, "helm", "template", "egressway", chart, "--namespace", namespace, "--values", file(t, warn))))
	require.Eventually(t, func() bool { return create("shop", "web", "network: none") == nil }, time.Minute, 50*time.Millisecond)
	require.True(t, slices.ContainsFunc(said.since(), func(w string) bool { return strings.Contains(w, "spec.network: none: no such network") }))
}
