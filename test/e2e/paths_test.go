package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/lab/stage"
)

// TestPathsExhausted leaves path ids for five networks and one host, where hosts cannot share one. Node a, which does not lead, has to steer to two hosts: it serves
// the older EgressService and drops packets of the younger one, whose condition names node, host and reason until the older is deleted.
func TestPathsExhausted(t *testing.T) {
	at := func(egress, node string) string {
		return strings.Replace(egress, "  network: red", "  network: red\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: "+node+"}}", 1)
	}
	older := at(manifest(t, "web.yaml"), "b")
	younger := lateOf(at(manifest(t, "web.yaml"), "c"))
	s := play(t, narrowed(stage.Options{
		API: true, Nodes: []string{"b", "c"}, // one of them leads
		Config: func(c string) string {
			return strings.Replace(c, "networks:\n", "steering: {mode: direct}\nnetworks:\n", 1)
		},
		Manifests: map[string]string{"cluster.yaml": manifest(t, "cluster.yaml"), "web.yaml": older},
	}))
	ctx := t.Context()
	_, err := s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
		if e.Host != "b" {
			return errors.New("no leader has elected")
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, s.StartDaemon("a"))
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", "b", ""))
	served := identities{"a-p1": web, "b-p1": web}
	awaitServed(t, s, served)
	valid := func(name string, ok func(c metav1.Condition) error) {
		t.Helper()
		_, err := s.AwaitStatus(ctx, "shop", name, func(e egressv1.EgressServiceStatus) error {
			c := meta.FindStatusCondition(e.Conditions, "Valid")
			if c == nil {
				return errors.New("no condition")
			}
			return ok(*c)
		})
		require.NoError(t, err)
	}
	accepted := func(c metav1.Condition) error {
		if c.Status != metav1.ConditionTrue || c.Reason != "Accepted" {
			return fmt.Errorf("%s for %s", c.Status, c.Reason)
		}
		return nil
	}
	exhausted := func(c metav1.Condition) error {
		const why = "node a has no path id left for host c in network red, and drops packets that need it: marks.mask has room for 6 paths"
		if c.Status != metav1.ConditionFalse || c.Reason != "PathsExhausted" || !strings.Contains(c.Message, why) {
			return fmt.Errorf("%s for %s: %s", c.Status, c.Reason, c.Message)
		}
		return nil
	}
	traffic := ask(t, s, "a-p1", "b-p1")
	traffic.answered(t, 3, served)

	require.NoError(t, s.Write(ctx, "late.yaml", younger))
	valid("late", exhausted)
	valid("web", accepted)
	awaitDropped(t, s, "a-p2")
	traffic.answered(t, 5, served)
	traffic.stop(t, served)
	s.Witness.Reset()
	awaitDropped(t, s, "a-p2")
	awaitAll(t, s, served)
	requireInnocent(t, s, served, identities{"b-p2": late})

	require.NoError(t, s.Edit(ctx, "web.yaml", at(webEgress, "b"), "# no web\n"))
	valid("late", accepted)
	require.NoError(t, s.AwaitHost(ctx, "shop", "late", "c", ""))
	awaitAll(t, s, identities{"a-p1": nodeA, "b-p1": nodeB, "a-p2": late, "b-p2": late})
}
