package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// awaitOwner waits until the table on a node belongs to its daemon.
func awaitOwner(t *testing.T, s *stage.Stage, node string) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		if lines := inKernel(t, s, node, "nft list table inet egressway | head -n 2"); !strings.Contains(lines[1], "flags owner") {
			return fmt.Errorf("the table has no owner: %q", lines)
		}
		return nil
	}))
}

const listOurs = "nft list tables | grep -c 'inet egressway' || true"

// TestFlush has others flush all of nftables, as scripts and firewalls do when they start. Selected pods do not notice.
func TestFlush(t *testing.T) {
	s := play(t, stage.Options{Manifests: oneFile(t), Config: steady})
	ctx := t.Context()
	all := asDeployed()
	awaitServed(t, s, all)
	flush := func(node string) {
		t.Helper()
		_, err := s.Node(node).Run(ctx, "nft", "flush", "ruleset")
		require.NoError(t, err)
	}
	there := func(node string) bool { return inKernel(t, s, node, listOurs)[0] == "1" }
	// What of the pods is not of our doing: the CNI's masquerade, and Services.
	mend := func() {
		t.Helper()
		for _, node := range []string{"a", "b"} {
			_, err := s.Node(node).Run(ctx, "nft", "-f", "/etc/cni/cni.nft")
			require.NoError(t, err)
		}
		require.NoError(t, s.Write(ctx, "shop.yaml", oneFile(t)["shop.yaml"]))
	}

	t.Run("while the daemon runs", func(t *testing.T) {
		old := talk(t, s, all)
		traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1") // on a and b all are selected
		traffic.answered(t, 3, all)
		for range 20 {
			flush("a")
			flush("b")
			traffic.answered(t, 1, all)
		}
		old.goOn(t, all, all)
		traffic.stop(t, all)
		requireInnocent(t, s, all)
		for _, line := range []string{"delete table inet egressway", "flush chain inet egressway guard", "delete chain inet egressway guard", "flush set inet egressway pods4"} {
			_, err := s.Node("a").Run(ctx, "nft", line)
			require.ErrorContains(t, err, "Operation not permitted")
		}
		mend()
	})

	t.Run("killed and started", func(t *testing.T) {
		s.Witness.Reset()
		old := talk(t, s, all)
		traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
		traffic.answered(t, 3, all)
		for range 3 {
			s.Daemons["a"].Kill()
			traffic.answered(t, 3, all)
			require.True(t, there("a"), "it outlives its owner")
			require.NoError(t, s.StartDaemon("a"))
			awaitOwner(t, s, "a")
			flush("a")
			traffic.answered(t, 3, all)
		}
		old.goOn(t, all, all)
		traffic.stop(t, all)
		requireInnocent(t, s, all)
		mend()
	})

	t.Run("while no daemon runs", func(t *testing.T) {
		for name, end := range map[string]func(){
			"killed":  func() { s.Daemons["a"].Kill() },
			"stopped": func() { require.NoError(t, s.Daemons["a"].Stop(ctx)) },
		} {
			end()
			require.True(t, there("a"), name)
			flush("a")
			require.False(t, there("a"), "%s: nobody's table is anybody's", name)
			require.NoError(t, s.StartDaemon("a"))
			mend()
			awaitServed(t, s, all)
			traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
			traffic.answered(t, 3, all)
			traffic.stop(t, all)
			requireInnocent(t, s, all)
		}
	})
	require.NotContains(t, s.Daemons["a"].Log(), "TableNotOwned")
	require.NotContains(t, strings.ToLower(s.Daemons["b"].Log()), "pass failed")
}
