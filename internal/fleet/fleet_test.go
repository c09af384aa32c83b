package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestByNode chooses the pod of each node that is most likely to answer, and names the reason why one cannot.
func TestByNode(t *testing.T) {
	began := time.Now()
	pod := func(name, node string, age time.Duration, change func(*corev1.Pod)) corev1.Pod {
		p := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(began.Add(-age))},
			Spec:       corev1.PodSpec{NodeName: node},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		}
		if change != nil {
			change(&p)
		}
		return p
	}
	waiting := func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: program, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		}}
	}
	unbound := func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodPending
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"d"},
			}}}},
		}}}
	}
	require.Equal(t, []Daemon{
		{Node: "a", Pod: "a2"},
		{Node: "b", Pod: "b1"},
		{Node: "c", Pod: "c1", Down: "pod c1 is waiting: CrashLoopBackOff"},
		{Node: "d", Pod: "d1", Down: "pod d1 is Pending"},
	}, byNode([]corev1.Pod{
		pod("a1", "a", time.Hour, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: began} }), pod("a2", "a", 0, nil),
		pod("b1", "b", time.Hour, nil), pod("b2", "b", 0, waiting),
		pod("c1", "c", 0, waiting), pod("d1", "", 0, unbound),
	}))
}

// TestUsesAddress finds the pod that has an address now among those whose status has it.
func TestUsesAddress(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		change(p)
		return p
	}
	require.True(t, usesAddress(pod(func(*corev1.Pod) {})))
	require.False(t, usesAddress(pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })), "a Job that is complete")
	require.False(t, usesAddress(pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })))
	require.False(t, usesAddress(pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true })))
	require.False(t, usesAddress(pod(func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })))
}
