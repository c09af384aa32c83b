package kube

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
)

// texts checks that the leader writes statuses of EgressQoSes, each once, and what a CRD keeps of them.
func (f *fixture) texts(t *testing.T) {
	f.applyCRD(t, qosCRD)
	d := f.daemon(t, f.namespace(t), "a")
	leader(t, d)
	f.Apply(t, anEgressQoS(46))
	defer f.Delete(t, anEgressQoS(46))
	get := func() (o egressv1.EgressQoS) {
		t.Helper()
		require.NoError(t, f.egress.Get().Namespace(qosKey.Namespace).Resource("egressqoses").Name(qosKey.Name).Do(t.Context()).Into(&o))
		return o
	}
	status := func(text string, is metav1.ConditionStatus) cluster.TextStatus {
		return cluster.TextStatus{Text: text, Conditions: []metav1.Condition{{Type: "Ready", Status: is, Reason: "Because", ObservedGeneration: 1}}}
	}
	// writes acts as a leader until the object has a status, and the daemon knows.
	writes := func(want cluster.TextStatus, not drops) (o egressv1.EgressQoS) {
		t.Helper()
		require.Eventually(t, func() bool {
			d.WriteTexts(cluster.KindEgressQoS, map[cluster.Key]cluster.TextStatus{qosKey: want, {Namespace: "gone", Name: "default"}: want})
			o = get()
			objects, _ := d.latest()
			return sameText(want, cluster.TextStatus{Text: o.Status.Status, Conditions: o.Status.Conditions}, not) &&
				sameText(want, objects.EgressQoSes.At(qosKey).Status, not) && d.leads().queue.Len() == 0
		}, soon, step)
		return o
	}
	first := writes(status("yes", metav1.ConditionTrue), drops{})
	for range 10 {
		writes(status("yes", metav1.ConditionTrue), drops{})
	}
	require.Equal(t, first.ResourceVersion, get().ResourceVersion, "a status that is right is not written again")
	require.EqualValues(t, 1, get().Generation)
	second := writes(status("still", metav1.ConditionTrue), drops{})
	require.Equal(t, first.Status.Conditions[0].LastTransitionTime, second.Status.Conditions[0].LastTransitionTime)
	writes(status("no", metav1.ConditionFalse), drops{})

	// A CRD without conditions.
	text, err := os.ReadFile(qosCRD)
	require.NoError(t, err)
	before, after, found := strings.Cut(string(text), "              conditions:\n")
	require.True(t, found)
	_, after, found = strings.Cut(after, "\n              status:\n") // not that of a condition
	require.True(t, found)
	f.Apply(t, before+"              status:\n"+after)
	defer f.applyCRD(t, qosCRD)
	// The server may use the former CRD a little longer.
	for n := 0; len(writes(status(strings.Repeat("a", n+1), metav1.ConditionTrue), drops{conditions: true}).Status.Conditions) > 0; n++ {
	}
	stands := writes(status("pruned", metav1.ConditionTrue), drops{conditions: true})
	for range 10 {
		writes(status("pruned", metav1.ConditionTrue), drops{conditions: true})
	}
	require.Equal(t, stands.ResourceVersion, get().ResourceVersion)
}
