// Package e2e proves the daemon on real kernels, packets and routers: what pods, clients and routers see, never what the
// daemon says of itself.
package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab/stage"
)

const containerlab = "../../containerlab"

// play deploys a stage for one test.
func play(t *testing.T, o stage.Options) *stage.Stage {
	t.Helper()
	s, err := stage.New(t.Context(), containerlab, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for node, d := range s.Daemons {
				t.Logf("daemon on %s:\n%s", node, d.Log())
			}
			for node, d := range s.Speakers {
				t.Logf("speaker on %s:\n%s", node, d.Log())
			}
		}
		require.NoError(t, s.Close())
	})
	return s
}
