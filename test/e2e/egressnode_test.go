package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes"

	"github.com/egressway/egressway/api/v1alpha1"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// TestEgressNodes finds in the API server the networks and sessions that two daemons have, a session that its router's cable lost, and its
// return.
func TestEgressNodes(t *testing.T) {
	s := play(t, stage.Options{API: true})
	hosts(t, s)
	client, err := kubernetes.NewForConfig(s.API.Config())
	require.NoError(t, err)
	of := func(node string) (n v1alpha1.EgressNode) {
		text, err := client.Discovery().RESTClient().Get().AbsPath("/apis/egressway.io/v1alpha1/egressnodes/" + node).DoRaw(t.Context())
		if err != nil {
			return n // not written yet
		}
		require.NoError(t, json.Unmarshal(text, &n))
		return n
	}
	shows := func(node, what string, want func(v1alpha1.EgressNodeStatus) bool) (n v1alpha1.EgressNode) {
		t.Helper()
		require.NoError(t, lab.Wait(t.Context(), lab.Patience, func() error {
			if n = of(node); !want(n.Status) {
				return fmt.Errorf("%s: %s: %+v", node, what, n.Status)
			}
			return nil
		}))
		return n
	}
	whole := func(n v1alpha1.EgressNodeStatus) bool {
		up, all, _ := strings.Cut(n.SessionsUp, "/")
		return meta.IsStatusConditionTrue(n.Conditions, v1alpha1.ConditionReady) && all != "" && up == all && len(n.Down) == 0
	}
	for _, node := range []string{"a", "b"} {
		n := shows(node, "all sessions are up", whole)
		require.Len(t, n.OwnerReferences, 1)
		require.Equal(t, node, n.OwnerReferences[0].Name)
		for _, session := range n.Status.Sessions {
			require.True(t, session.Up)
			require.False(t, session.Since.IsZero())
		}
	}
	require.NoError(t, s.Unplug("a:eth2"))
	shows("a", "a session is down", func(n v1alpha1.EgressNodeStatus) bool {
		return len(n.Down) > 0 && strings.HasPrefix(n.Down[0], "red/") && len(n.Down) < len(n.Sessions)
	})
	shows("b", "only node a has lost its cable", whole)
	require.NoError(t, s.Plug("a:eth2"))
	shows("a", "the session is back", whole)
}
