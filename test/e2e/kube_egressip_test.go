package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// egressIPInAPI is the EgressIP of the manifests without a status.
func egressIPInAPI() string {
	spec, _, _ := strings.Cut(egressIPManifest, "status:\n")
	return spec
}

// egressIPOf reads the EgressIP from the API server.
func egressIPOf(t *testing.T, s *stage.Stage) (e egressv1.EgressIP) {
	t.Helper()
	require.NoError(t, s.API.Get(t.Context(), "{apiVersion: k8s.ovn.org/v1, kind: EgressIP, metadata: {name: team}}", &e))
	return e
}

// awaitItems waits until the status of the EgressIP is right, and returns the hosts by address.
func awaitItems(t *testing.T, s *stage.Stage, right func(egressv1.EgressIPStatus) bool) map[string]egressv1.EgressIPStatusItem {
	t.Helper()
	hosts := map[string]egressv1.EgressIPStatusItem{}
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		e := egressIPOf(t, s)
		if !right(e.Status) {
			return fmt.Errorf("the status is %+v", e.Status)
		}
		clear(hosts)
		for _, item := range e.Status.Items {
			hosts[item.EgressIP] = item
		}
		return nil
	}))
	return hosts
}

// seated reports whether all four addresses are in the status, and the conditions are true.
func seated(s egressv1.EgressIPStatus) bool {
	return len(s.Items) == 4 && meta.IsStatusConditionTrue(s.Conditions, "Assigned") &&
		meta.IsStatusConditionTrue(s.Conditions, "Programmed") && meta.IsStatusConditionTrue(s.Conditions, "Valid")
}

// backed reports the same, and that all addresses have standbys.
func backed(s egressv1.EgressIPStatus) bool {
	return seated(s) && !slices.ContainsFunc(s.Items, func(i egressv1.EgressIPStatusItem) bool { return i.Standby == "" })
}

// routesTo are the best paths to the addresses at the routers of red, by their hosts.
func routesTo(items map[string]egressv1.EgressIPStatusItem) map[string]map[string][]string {
	red := map[string][]string{}
	for a, item := range items {
		f, bits := ipFamilies[0], 32
		if strings.Contains(a, ":") {
			f, bits = ipFamilies[1], 128
		}
		red[fmt.Sprintf("%s/%d", a, bits)] = []string{f.of(f.red, item.Node).String()}
	}
	return map[string]map[string][]string{"red1": red, "red2": red}
}

// memberSlices returns the EndpointSlices that the leader keeps.
func memberSlices(t *testing.T, s *stage.Stage) []discoveryv1.EndpointSlice {
	t.Helper()
	var list discoveryv1.EndpointSliceList
	require.NoError(t, s.API.List(t.Context(), "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: "+stage.Namespace+"}}", &list))
	return slices.DeleteFunc(list.Items, func(o discoveryv1.EndpointSlice) bool { return o.Labels["egressway.io/egressip"] == "" })
}

// awaitEgressIPEvent waits for so many Events about the EgressIP, and returns how many there are with this reason.
func awaitEgressIPEvent(t *testing.T, s *stage.Stage, reason string, wanted int) (count int) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		var list corev1.EventList
		if err := s.API.List(t.Context(), "{apiVersion: v1, kind: Event, metadata: {namespace: default}}", &list); err != nil {
			return err
		}
		count = 0
		for _, e := range list.Items {
			if e.Reason == reason && e.InvolvedObject.Kind == "EgressIP" && e.InvolvedObject.Name == "team" {
				count += int(e.Count)
			}
		}
		if count < wanted {
			return fmt.Errorf("%d Events %s, want %d", count, reason, wanted)
		}
		return nil
	}))
	return count
}

// TestEgressIPByAPI has an API server deliver an EgressIP to daemons that run. Each follows the Pods of its own node only, and
// the leader writes the members for the hosts.
func TestEgressIPByAPI(t *testing.T) {
	crd, err := os.ReadFile("../../config/crd/k8s.ovn.org_egressips.yaml")
	require.NoError(t, err)
	s := play(t, stage.Options{
		API: true, BFD: true, BFDInterval: 1000, Nodes: []string{"a", "b", "c"},
		Config: egressIPConfig,
		Manifests: map[string]string{
			"cluster.yaml": strings.NewReplacer(plainB, assignableB, plainC, assignableC).Replace(topologyManifest(t, "cluster.yaml")),
			"pods.yaml":    podManifests(),
		},
	})
	ctx, pods := t.Context(), egressIPPods()
	plain := identities{"a-p1": nodeA, "a-p2": nodeA, "b-p1": nodeB, "b-p2": nodeB, "c-p1": nodeC}
	var hosts map[string]egressv1.EgressIPStatusItem
	inForce := func(t *testing.T, right func(egressv1.EgressIPStatus) bool) {
		t.Helper()
		hosts = awaitItems(t, s, right)
		expectRIBs(t, s, routesTo(hosts))
		awaitAll(t, s, pods)
	}

	t.Run("the CRD comes, and an object", func(t *testing.T) {
		awaitAll(t, s, plain)
		require.NoError(t, s.API.Apply(ctx, string(crd)))
		require.NoError(t, s.Write(ctx, "egressip.yaml", egressIPInAPI()))
		inForce(t, backed)
		for _, item := range hosts { // a session may come up late: then one node has them all
			require.ElementsMatch(t, []string{"b", "c"}, []string{item.Node, item.Standby})
			require.Positive(t, item.Term)
		}
		require.Len(t, memberSlices(t, s), 2)
		s.Witness.Reset()
		awaitAll(t, s, pods)
		requireInnocent(t, s, pods)
	})

	t.Run("commands show it", func(t *testing.T) {
		for _, show := range [][]string{
			{"status"}, {"trace", "--from", ipFamilies[0].pod("a-p1").String(), "--to", stage.Outside4.Addr().String()},
		} {
			out, err := s.Egressway(ctx, "a", show...)
			require.NoError(t, err)
			require.Contains(t, out, "team", "%v", show)
			require.Contains(t, out, hosts["192.0.2.33"].Node, "%v", show)
		}
	})

	t.Run("a Pod leaves, and comes back", func(t *testing.T) {
		const is, not = "name: a-p1, labels: {app: web}", "name: a-p1, labels: {app: db}"
		require.NoError(t, s.Edit(ctx, "pods.yaml", is, not))
		awaitAll(t, s, pods.with(identities{"a-p1": nodeA}))
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			for _, o := range memberSlices(t, s) {
				if len(o.Endpoints) != 3 {
					return fmt.Errorf("%s has %d members", o.Name, len(o.Endpoints))
				}
			}
			return nil
		}))
		require.NoError(t, s.Edit(ctx, "pods.yaml", not, is))
		awaitAll(t, s, pods)
		requireInnocent(t, s, pods, identities{"a-p1": nodeA})
	})

	t.Run("a Namespace leaves, and comes back", func(t *testing.T) {
		s.Witness.Reset()
		require.NoError(t, s.Edit(ctx, "pods.yaml", `labels: {egress: "yes"}`, `labels: {egress: "no"}`))
		awaitAll(t, s, plain)
		require.NoError(t, s.Edit(ctx, "pods.yaml", `labels: {egress: "no"}`, `labels: {egress: "yes"}`))
		awaitAll(t, s, pods)
		requireInnocent(t, s, pods, plain)
	})

	t.Run("another program writes the status", func(t *testing.T) {
		s.Witness.Reset()
		traffic := ask(t, s, "a-p1", "a-p2", "b-p1", "c-p1")
		client, err := dynamic.NewForConfig(s.API.Config())
		require.NoError(t, err)
		_, err = client.Resource(egressv1.GroupVersion.WithResource("egressips")).Patch(ctx, "team", types.MergePatchType,
			[]byte(`{"status": {"items": [{"egressIP": "192.0.2.33", "node": "a"}, {"egressIP": "192.0.2.34", "node": "a"}]}}`),
			metav1.PatchOptions{FieldManager: "another"})
		require.NoError(t, err)
		require.Equal(t, hosts, awaitItems(t, s, backed))
		traffic.answered(t, 20, pods)
		traffic.stop(t, pods)
		requireInnocent(t, s, pods)
	})

	t.Run("the leader and a host start again", func(t *testing.T) {
		s.Witness.Reset()
		for _, node := range []string{leaderOf(t, s), hosts["192.0.2.33"].Node} {
			s.Daemons[node].Kill()
			require.NoError(t, s.StartDaemon(node))
		}
		inForce(t, backed)
		requireInnocent(t, s, pods)
	})

	t.Run("a node loses its label", func(t *testing.T) {
		s.Witness.Reset()
		require.NoError(t, s.Edit(ctx, "cluster.yaml", assignableC, plainC))
		awaitItems(t, s, func(now egressv1.EgressIPStatus) bool {
			return seated(now) && !slices.ContainsFunc(now.Items, func(i egressv1.EgressIPStatusItem) bool { return i.Node != "b" })
		})
		inForce(t, seated)
		requireInnocent(t, s, pods)
	})

	t.Run("no node may be the host", func(t *testing.T) {
		require.NoError(t, s.Edit(ctx, "cluster.yaml", assignableB, plainB))
		awaitItems(t, s, func(now egressv1.EgressIPStatus) bool { return len(now.Items) == 0 })
		awaitDropped(t, s, "a-p1", "a-p2", "b-p1", "c-p1")
		expectRIBs(t, s, nil)
		require.Equal(t, 4, awaitEgressIPEvent(t, s, "NoMatchingNodeFound", 4), "one for each address")
		require.NoError(t, s.Edit(ctx, "cluster.yaml", plainC, assignableC, plainB, assignableB))
		inForce(t, backed)
		requireInnocent(t, s, pods)
	})

	t.Run("the object goes", func(t *testing.T) {
		require.NoError(t, s.Remove(ctx, "egressip.yaml"))
		awaitAll(t, s, plain)
		expectRIBs(t, s, nil)
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			if left := memberSlices(t, s); len(left) > 0 {
				return fmt.Errorf("%d slices of members are left", len(left))
			}
			return nil
		}))
		require.NoError(t, s.Write(ctx, "egressip.yaml", egressIPInAPI()))
		inForce(t, backed)
	})

	t.Run("the CRD of OVN-Kubernetes, and ours again", func(t *testing.T) {
		upstream, err := os.ReadFile("../../internal/cluster/kube/testdata/upstream-egressips.yaml")
		require.NoError(t, err)
		s.Witness.Reset()
		require.NoError(t, s.API.Apply(ctx, string(upstream)))
		require.NoError(t, s.Edit(ctx, "cluster.yaml", assignableC, plainC))
		onB := awaitItems(t, s, func(now egressv1.EgressIPStatus) bool {
			return len(now.Items) == 4 && !slices.ContainsFunc(now.Items, func(i egressv1.EgressIPStatusItem) bool { return i.Node != "b" })
		})
		expectRIBs(t, s, routesTo(onB))
		awaitAll(t, s, pods)
		requireInnocent(t, s, pods)
		require.NoError(t, s.API.Apply(ctx, string(crd)))
		require.NoError(t, s.Edit(ctx, "cluster.yaml", plainC, assignableC))
		inForce(t, backed)
		requireInnocent(t, s, pods)
	})

	t.Run("the API server is away", func(t *testing.T) {
		s.Witness.Reset()
		require.NoError(t, s.API.Kill(ctx))
		traffic := ask(t, s, "a-p1", "a-p2", "b-p1", "c-p1")
		for _, node := range []string{"a", hosts["192.0.2.33"].Node} { // they know of no object
			s.Daemons[node].Kill()
			require.NoError(t, s.StartDaemon(node))
		}
		traffic.answered(t, 20, pods)
		traffic.stop(t, pods)
		require.NoError(t, s.API.Up(ctx))
		const is, not = "name: a-p1, labels: {app: web}", "name: a-p1, labels: {app: db}"
		require.NoError(t, s.Edit(ctx, "pods.yaml", is, not))
		awaitAll(t, s, pods.with(identities{"a-p1": nodeA}))
		require.NoError(t, s.Edit(ctx, "pods.yaml", not, is))
		inForce(t, backed)
		requireInnocent(t, s, pods, identities{"a-p1": nodeA})
	})

	t.Run("switched off and on", func(t *testing.T) {
		for _, node := range []string{"a", "b", "c"} {
			path := strings.TrimSuffix(s.Kubeconfig(node), ".kubeconfig") + ".yaml"
			config, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, append(slices.Clone(config), "kinds: {egressIP: off}\n"...), 0o644))
			t.Cleanup(func() { require.NoError(t, os.WriteFile(path, config, 0o644)) })
		}
		awaitAll(t, s, plain)
		expectRIBs(t, s, nil)
	})

	t.Run("a host dies", func(t *testing.T) {
		inForce(t, backed)
		s.Witness.Reset()
		require.NoError(t, s.PowerOff(ctx, "b"))
		onB := identities{"b-p1": pods["b-p1"], "b-p2": pods["b-p2"]}
		delete(pods, "b-p1")
		delete(pods, "b-p2")
		awaitAll(t, s, pods)
		hosts = awaitItems(t, s, func(now egressv1.EgressIPStatus) bool {
			return len(now.Items) == 4 && !slices.ContainsFunc(now.Items, func(i egressv1.EgressIPStatusItem) bool { return i.Node != "c" })
		})
		expectRIBs(t, s, routesTo(hosts))
		awaitAll(t, s, pods)
		requireInnocent(t, s, pods, onB)
	})
	for node, d := range s.Daemons {
		require.NotContains(t, strings.ToLower(d.Log()), "pass failed", node)
	}
}
