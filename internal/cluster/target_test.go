package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTargets checks which endpoints of a slice are Pods of its namespace.
func TestTargets(t *testing.T) {
	for want, refs := range map[Target][]*corev1.ObjectReference{
		TargetUnknown: {nil},
		TargetPod:     {{Kind: "Pod", Name: "web-1"}, {Kind: "Pod", Namespace: "shop", Name: "web-1"}},
		TargetOther:   {{}, {Kind: "Pod"}, {Kind: "Pod", Namespace: "kube-system", Name: "dns"}, {Kind: "Node", Name: "a"}},
	} {
		for _, ref := range refs {
			_, all := FromSlice(&discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.1"}, TargetRef: ref}},
			})
			require.Equal(t, []Endpoint{{Address: "10.244.1.1", Target: want}}, all, "%v", ref)
		}
	}
}

// TestSharingKey checks MetalLB's annotation for a shared ingress IP, under its present and its former name.
func TestSharingKey(t *testing.T) {
	for _, name := range []string{"metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"} {
		_, s, _, ok := FromService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: map[string]string{name: "key"}}})
		require.True(t, ok)
		require.Equal(t, "key", s.SharingKey)
	}
	web, mail, other := Key{"shop", "web"}, Key{"shop", "mail"}, Key{"infra", "dns"}
	require.True(t, Shares(web, "", mail, ""))
	require.False(t, Shares(web, "", other, ""))
	require.False(t, Shares(web, "key", other, "another"))
	require.True(t, Shares(web, "key", other, "key"))
}
