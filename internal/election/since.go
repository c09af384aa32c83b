package election

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

// Since returns the time since which an EgressService has had a host without interruption, by the condition that the leader
// writes. Without that condition in the status, it is the time when the object was created.
func Since(e cluster.EgressService) time.Time {
	c := meta.FindStatusCondition(e.Status.Conditions, ConditionHostAssigned)
	if c == nil || c.Status != metav1.ConditionTrue || e.Status.Host == "" {
		return e.Created
	}
	return c.LastTransitionTime.Time
}
