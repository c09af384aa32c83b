package kube

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
)

// texts checks that the leader writes the statuses of kinds whose status is a text, each once, and what a CRD keeps of them.
func (f *fixture) texts(t *testing.T) {
	text, err := os.ReadFile(qosCRD)
	require.NoError(t, err)
	before, after, found := strings.Cut(string(text), "              conditions:\n")
	require.True(t, found)
	_, after, found = strings.Cut(after, "\n              status:\n") // not that of a condition
	require.True(t, found)
	upstream, err := os.ReadFile("testdata/upstream-egressfirewalls.yaml")
	require.NoError(t, err)
	for _, of := range []textsOf{
		{cluster.KindEgressQoS, qosCRD, anEgressQoS(46), qosKey, nil, before + "              status:\n" + after},
		{cluster.KindEgressFirewall, firewallCRD, anEgressFirewall, firewallKey, []string{"a: so", "b: so"}, string(upstream)},
	} {
		t.Run(of.kind.String(), func(t *testing.T) { of.check(t, f) })
	}
}

// textsOf is a kind whose status is a text.
type textsOf struct {
	kind     cluster.Kind
	crd      string
	object   string
	key      cluster.Key
	messages []string
	pruning  string // a CRD without conditions
}

// check writes statuses, by our CRD and by one without conditions.
func (of *textsOf) check(t *testing.T, f *fixture) {
	f.applyCRD(t, of.crd)
	d := f.daemon(t, f.namespace(t), "a")
	leader(t, d)
	f.Apply(t, of.object)
	defer f.Delete(t, of.object)
	get := func() (o custom.Object) {
		t.Helper()
		require.NoError(t, f.raw.Get().Namespace(of.key.Namespace).Resource(textResources[of.kind]).Name(of.key.Name).Do(t.Context()).Into(&o))
		return o
	}
	status := func(text string, is metav1.ConditionStatus) cluster.TextStatus {
		conditions := []metav1.Condition{{Type: "Ready", Status: is, Reason: "Because", ObservedGeneration: 1}}
		return cluster.TextStatus{Text: text, Messages: of.messages, Conditions: conditions}
	}
	o := get()
	revision := cluster.Revision{UID: string(o.UID), Generation: o.Generation}
	// writes acts as a leader until the object has a status, and the daemon knows.
	writes := func(want cluster.TextStatus, not drops) (m cluster.Meta) {
		t.Helper()
		require.Eventually(t, func() bool {
			w := WantedText{revision, want}
			d.WriteTexts(of.kind, map[cluster.Key]WantedText{of.key: w, {Namespace: "gone", Name: "default"}: w})
			o := get()
			m = d.metaOf(&o)
			objects, _ := d.latest()
			known, _ := objects.Meta(of.kind.ID(of.key))
			return sameText(want, m.Status, not) && sameText(want, known.Status, not) && d.leads().queue.Len() == 0
		}, soon, step)
		return m
	}
	version := func() string { o := get(); return o.ResourceVersion }
	writes(status("yes", metav1.ConditionTrue), drops{})
	first, at := writes(status("yes", metav1.ConditionTrue), drops{}), version()
	for range 10 {
		writes(status("yes", metav1.ConditionTrue), drops{})
	}
	require.Equal(t, at, version(), "a status that is right is not written again")
	require.EqualValues(t, 1, first.Generation)
	second := writes(status("still", metav1.ConditionTrue), drops{})
	require.Equal(t, first.Status.Conditions[0].LastTransitionTime, second.Status.Conditions[0].LastTransitionTime)
	writes(status("no", metav1.ConditionFalse), drops{})
	if of.messages != nil {
		fewer := status("no", metav1.ConditionFalse)
		fewer.Messages = of.messages[1:]
		require.Equal(t, fewer.Messages, writes(fewer, drops{}).Status.Messages)
		fewer.Messages = nil
		require.Empty(t, writes(fewer, drops{}).Status.Messages)
	}

	f.Apply(t, of.pruning)
	defer f.applyCRD(t, of.crd)
	// The server may use the former CRD a little longer.
	for n := 0; len(writes(status(strings.Repeat("a", n+1), metav1.ConditionTrue), drops{conditions: true}).Status.Conditions) > 0; n++ {
	}
	require.Equal(t, of.messages, writes(status("pruned", metav1.ConditionTrue), drops{conditions: true}).Status.Messages)
	at = version()
	for range 10 {
		writes(status("pruned", metav1.ConditionTrue), drops{conditions: true})
	}
	require.Equal(t, at, version())
	require.True(t, d.Drops(of.kind))

	// Our CRD is applied meanwhile.
	f.applyCRD(t, of.crd)
	want := status("pruned", metav1.ConditionTrue)
	require.Eventually(t, func() bool {
		l := d.leads()
		l.mu.Lock()
		l.probed[of.kind] = time.Time{}
		l.mu.Unlock()
		d.WriteTexts(of.kind, map[cluster.Key]WantedText{of.key: {revision, want}})
		o := get()
		return sameText(want, d.metaOf(&o).Status, drops{}) && !d.Drops(of.kind)
	}, soon, step)
}

// TestDropsOfAnswers finds that an answer shows only of the parts that were asked for whether a CRD keeps them.
func TestDropsOfAnswers(t *testing.T) {
	conditions := []metav1.Condition{{Type: "Ready"}}
	d := drops{}.after(cluster.TextStatus{Text: "yes", Messages: []string{"a: yes"}, Conditions: conditions}, cluster.TextStatus{Text: "yes"})
	require.Equal(t, drops{messages: true, conditions: true}, d)
	require.Equal(t, d, d.after(cluster.TextStatus{Text: "yes"}, cluster.TextStatus{Text: "yes"}))
	d = d.after(cluster.TextStatus{Text: "yes", Conditions: conditions}, cluster.TextStatus{Text: "yes", Conditions: conditions})
	require.Equal(t, drops{messages: true}, d)
}
