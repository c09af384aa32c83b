package leader

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
)

// TestUnservedIsReported checks that the problems of an EgressService on another node come with its report.
func TestUnservedIsReported(t *testing.T) {
	web := cluster.Problem{Kind: "EgressService", Object: "shop/web", Field: "status.host", Value: "b", Reason: plan.ReasonPathsExhausted, Message: "node c has no path id left"}
	other := cluster.Problem{Kind: "EgressService", Object: "shop/web", Reason: plan.ReasonIngressConflict}
	require.Equal(t, []cluster.Problem{web}, Unserved([]cluster.Problem{other, web, {Kind: "Config", Reason: plan.ReasonPathsExhausted}}))
	require.Len(t, Unserved(slices.Repeat([]cluster.Problem{web}, 1000)), unservedMost)
	found := byObject(withReported([]cluster.Problem{other}, map[string]cluster.Report{"c": {Unserved: []cluster.Problem{web}}, "d": {}}))
	require.Equal(t, []cluster.Problem{other, web}, found["shop/web"])
}
