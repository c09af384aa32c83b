package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab/chaos"
)

// TestChaos has one fault of each kind happen that is mended quickly and moves no host, under traffic. `make chaos` has all kinds happen, again
// and again.
func TestChaos(t *testing.T) {
	result, err := chaos.Run(t.Context(), chaos.Options{
		Containerlab: containerlab,
		Seed:         1,
		Only:         quickFaults,
		Count:        len(quickFaults),
		Out:          t.Output(),
		// Two packages are tested at once, on as few as two processors.
		Slower:  2,
		Slack:   5 * time.Second,
		Patient: true,
	})
	require.NoError(t, err, "%s", result.Log)
	require.NoError(t, result.Print(t.Output()))
	require.Empty(t, result.Failures, "%s", result.Log)
	require.Len(t, result.Rows, len(quickFaults))
	for _, row := range result.Rows {
		require.Zero(t, row.Leaks, "%s", row.Fault)
	}
}

var quickFaults = []string{
	"API server unreachable", "agent killed", "agent stopped", "all agents killed",
	"learned routes flushed", "nft flush ruleset", "nothing", "rival deletes a rule", "rules changed", "rules deleted",
	"split from API", "steering routes flushed",
}
