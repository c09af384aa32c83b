package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/trace"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

const (
	podA1of4 = "  - {addresses: [10.244.1.11], nodeName: a, conditions: {ready: true}}\n"
	podA1of6 = "  - {addresses: [\"fd44:1::11\"], nodeName: a, conditions: {ready: true}}\n"

	holdEntry = "hold: [{namespaces: {matchLabels: {egress: held}}}]\n"
	heldShop  = `apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {egress: held}}
---
apiVersion: v1
kind: Namespace
metadata: {name: open}
`
)

// pod is a Pod that runs on node a with these addresses.
func pod(namespace, name, ipv4, ipv6 string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {namespace: %[1]s, name: %[2]s, annotations: {kubelab/pod-ip: "%[3]s,%[4]s"}}
spec: {nodeName: a, automountServiceAccountToken: false, containers: [{name: it, image: it}]}
status: {phase: Running, podIP: %[3]s, podIPs: [{ip: %[3]s}, {ip: "%[4]s"}]}
`, namespace, name, ipv4, ipv6)
}

// awaitTable waits until the nftables table of a node has, or has not, a chain for held pods.
func awaitTable(t *testing.T, s *stage.Stage, node string, held bool) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		rules, err := s.Node(node).Run(t.Context(), "nft", "list", "table", "inet", "egressway")
		if err == nil && strings.Contains(rules, "drop-held") != held {
			err = fmt.Errorf("node %s holds pods: %t", node, !held)
		}
		return err
	}))
}

// requireCluster has a pod ask a Service and another pod.
func requireCluster(t *testing.T, s *stage.Stage, from string) {
	t.Helper()
	for _, f := range ipFamilies {
		for _, to := range []netip.AddrPort{f.webCluster, netip.AddrPortFrom(f.pod("b-p1"), f.outside.Port())} {
			require.NoError(t, lab.Wait(t.Context(), patience, func() error {
				_, err := s.Node(from).AskTCP(t.Context(), to)
				return err
			}), "pod %s to %s", from, to)
		}
	}
}

// TestHold holds the pods of a namespace until they are endpoints, and all that no Pod is known to have the address of.
// Whatever comes between, no packet of theirs leaves with another source or by another network. The pods' ranges are not those of the
// Nodes, as with a CNI that has its own.
func TestHold(t *testing.T) {
	files := oneFile(t)
	files["cluster.yaml"] = strings.NewReplacer("[10.244.", "[10.200.", `"fd44:`, `"fd40:`).Replace(files["cluster.yaml"])
	files["namespaces.yaml"] = heldShop
	files["shop.yaml"] = strings.NewReplacer(podA1of4, "# a1 4\n", podA1of6, "# a1 6\n", podA2of4, "# a2 4\n", podA2of6, "# a2 6\n").Replace(files["shop.yaml"])
	s := play(t, stage.Options{
		API: true, Manifests: files,
		Config: func(c string) string { return c + holdEntry + "podCIDRs: [10.244.0.0/16, \"fd44::/16\"]\n" },
	})
	ctx := t.Context()
	others := identities{"b-p1": web, "b-p2": batchB} // endpoints from the beginning
	for _, node := range []string{"a", "b"} {
		awaitTable(t, s, node, true)
	}
	awaitServed(t, s, others)
	traffic := ask(t, s, "a-p1", "b-p1", "b-p2")
	free := func(name, ipv4, ipv6 string) func() {
		t.Helper()
		file := name + ".yaml"
		require.NoError(t, s.Write(ctx, file, pod("open", name, ipv4, ipv6)))
		return func() { t.Helper(); require.NoError(t, s.Remove(ctx, file)) }
	}
	says := func(pod string, words ...string) {
		t.Helper()
		for _, f := range ipFamilies {
			r, code := traced(t, s, "a", "--from", f.pod(pod).String(), "--to", f.outside.Addr().String())
			require.Equal(t, 2, code)
			require.Equal(t, trace.Dropped, r.Verdict.Kind)
			for _, w := range words {
				require.Contains(t, r.Verdict.Text, w)
			}
			require.Empty(t, r.Damage)
			require.Empty(t, r.Differences)
		}
	}

	// Nobody knows these pods.
	awaitDropped(t, s, "a-p1", "a-p2")
	requireInnocent(t, s, others)
	requireCluster(t, s, "a-p1")
	says("a-p1", "held", "no running Pod of this node is known to have it")

	// The Pod is known, and one of those that are held.
	require.NoError(t, s.Write(ctx, "web-1.yaml", pod("shop", "web-1", "10.244.1.11", "fd44:1::11")))
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		r, _ := traced(t, s, "a", "--from", "10.244.1.11", "--to", stage.Outside4.Addr().String())
		if !strings.Contains(r.Verdict.Text, "pod shop/web-1 is selected by hold[0]") {
			return errors.New(r.Verdict.Text)
		}
		return nil
	}))
	awaitDropped(t, s, "a-p1", "a-p2")
	requireInnocent(t, s, others)

	// It becomes an endpoint, while it asks all the time.
	require.NoError(t, s.Edit(ctx, "shop.yaml", "# a1 4\n", podA1of4, "# a1 6\n", podA1of6))
	all := others.with(identities{"a-p1": web})
	traffic.answered(t, 5, all)
	requireInnocent(t, s, all)

	// And is one no more: it is held again, instead of leaving as its node.
	require.NoError(t, s.Edit(ctx, "shop.yaml", podA1of4, "# a1 4\n", podA1of6, "# a1 6\n"))
	awaitDropped(t, s, "a-p1")
	requireInnocent(t, s, all)
	s.Witness.Reset()
	awaitDropped(t, s, "a-p1", "a-p2")
	requireInnocent(t, s, others)
	requireCluster(t, s, "a-p1")
	traffic.stop(t, all, all.with(identities{"a-p1": {}}))
	requireInnocent(t, s, others)

	// A Pod that need not be one leaves as its node, until it ends.
	gone := free("job", "10.244.1.12", "fd44:1::12")
	awaitAll(t, s, identities{"a-p2": nodeA})
	gone()
	awaitDropped(t, s, "a-p2")
	s.Witness.Reset()
	awaitDropped(t, s, "a-p1", "a-p2")
	requireInnocent(t, s, others)

	// Nor does one that has the address of a held Pod let that one go.
	gone = free("double", "10.244.1.11", "fd44:1::11")
	free("job", "10.244.1.12", "fd44:1::12")
	awaitAll(t, s, identities{"a-p2": nodeA}) // it was told after the other
	awaitDropped(t, s, "a-p1")
	gone()

	// The configuration changes.
	configure := func(from, to string) {
		t.Helper()
		path := strings.TrimSuffix(s.Kubeconfig("a"), ".kubeconfig") + ".yaml"
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(b), from)
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(b), from, to, 1)), 0o644))
	}
	const none = "# nothing is held\n"
	configure(holdEntry, none)
	awaitTable(t, s, "a", false)
	awaitAll(t, s, identities{"a-p1": nodeA, "a-p2": nodeA})
	configure(none, holdEntry)
	awaitTable(t, s, "a", true)
	awaitDropped(t, s, "a-p1")
	s.Witness.Reset()
	awaitDropped(t, s, "a-p1")
	requireInnocent(t, s, others)
	awaitAll(t, s, identities{"a-p2": nodeA})

	require.NotContains(t, strings.ToLower(s.Daemons["a"].Log()), "pass failed")
}
