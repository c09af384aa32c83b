package election

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

// Since is the time from which on an EgressService has had a host without a break, by the condition that the leader writes. Where no such
// condition stands in the status, it is the time when the object was made.
func Since(e cluster.EgressService) time.Time {
	c := meta.FindStatusCondition(e.Status.Conditions, ConditionHostAssigned)
	if c == nil || c.Status != metav1.ConditionTrue || e.Status.Host == "" {
		return e.Created
	}
	return c.LastTransitionTime.Time
}
