package deploy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8syaml "sigs.k8s.io/yaml"

	"github.com/egressway/egressway/lab/kubetest"
)

// TestAPIServerTakesIt applies every object to a real API server, and creates a pod from the DaemonSet's template.
func TestAPIServerTakesIt(t *testing.T) {
	server := kubetest.Start(t, kubetest.Options{})
	kustomize := string(run(t, "kustomize", "build", overlay(t, "host-label")))
	server.Apply(t, kustomize)
	helm := string(run(t, "helm", "template", "egressway", chart, "--include-crds", "--namespace", namespace, "--set", "labelHosts=true"))
	server.Apply(t, helm)
	server.Apply(t, string(run(t, "kustomize", "build", "kustomize/cleanup")))
	server.Apply(t, kustomize) // and back

	require.ErrorContains(t, server.API.Apply(t.Context(), strings.Replace(helm, "hostNetwork: true", "hostNetworking: true", 1)), "hostNetworking",
		"this API server does not report unknown fields")

	for _, admit := range []*corev1.PodTemplateSpec{
		&daemonSet(t, rendered(t, ""), "egressway").Spec.Template,
		&daemonSet(t, built(t, "kustomize/cleanup"), "egressway-cleanup").Spec.Template,
	} {
		pod := &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: admit.Spec.Containers[0].Name},
			Spec:       admit.Spec,
		}
		b, err := k8syaml.Marshal(pod)
		require.NoError(t, err)
		server.Apply(t, string(b))
	}
}
