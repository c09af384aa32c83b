package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab/stage"
)

// TestMovesWithManifests moves web from node to node, where each node elects for itself. All questions are answered, and the
// connections from outside go on.
func TestMovesWithManifests(t *testing.T) {
	at := func(node string) string {
		return "network: red\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: " + node + "}}\n"
	}
	files := oneFile(t)
	files["shop.yaml"] = strings.Replace(files["shop.yaml"], "network: red\n", at("a"), 1)
	s := play(t, stage.Options{Nodes: []string{"a", "b", "c"}, Manifests: files})
	now, host := asDeployed(), "a"
	ledBy(t, s, host)
	awaitServed(t, s, now)
	for _, next := range []string{"b", "c", "a"} {
		all := visit(t, s, "ext-red")
		moving(t, s, now, func() {
			require.NoError(t, s.Edit(t.Context(), "shop.yaml", at(host), at(next)))
			ledBy(t, s, next)
		})
		all.goOn(t)
		host = next
	}
}
