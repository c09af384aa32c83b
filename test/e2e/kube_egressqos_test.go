package e2e

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/trace"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// ourCRD is our CRD of a resource.
func ourCRD(t *testing.T, resource string) string {
	t.Helper()
	b, err := os.ReadFile("../../config/crd/k8s.ovn.org_" + resource + ".yaml")
	require.NoError(t, err)
	return string(b)
}

// ofGuide is the object of a kind in the guide for those who come from OVN-Kubernetes.
func ofGuide(t *testing.T, kind string) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/guides/from-ovn-kubernetes.md")
	require.NoError(t, err)
	for block := range strings.SplitSeq(string(b), "```yaml\n") {
		if object, _, _ := strings.Cut(block, "```"); strings.Contains(object, "kind: "+kind+"\n") {
			return object
		}
	}
	require.Fail(t, "the guide has no "+kind)
	return ""
}

// textObject is an object whose status is a text with conditions.
type textObject struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Status     string             `json:"status"`
		Messages   []string           `json:"messages"`
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// awaitText waits until the status of an object of a kind in namespace shop is about the present generation, and right.
func awaitText(t *testing.T, s *stage.Stage, kind string, right func(textObject) bool) (o textObject) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		o = textObject{}
		if err := s.API.Get(t.Context(), "{apiVersion: k8s.ovn.org/v1, kind: "+kind+", metadata: {namespace: shop, name: default}}", &o); err != nil {
			return err
		}
		stale := slices.ContainsFunc(o.Status.Conditions, func(c metav1.Condition) bool { return c.ObservedGeneration != o.Generation })
		if stale || !right(o) {
			return fmt.Errorf("the status of generation %d is %+v", o.Generation, o.Status)
		}
		return nil
	}))
	return o
}

// isApplied checks for the text for which users of OVN-Kubernetes wait.
func isApplied(kind string) func(textObject) bool {
	return func(o textObject) bool {
		return len(o.Status.Conditions) > 0 && o.Status.Status == kind+" Rules applied"
	}
}

func isNotApplied(kind string) func(textObject) bool {
	return func(o textObject) bool { return o.Status.Status == kind+" Rules not correctly applied" }
}

func awaitEgressQoS(t *testing.T, s *stage.Stage, right func(textObject) bool) textObject {
	t.Helper()
	return awaitText(t, s, "EgressQoS", right)
}

var qosApplied, qosNotApplied = isApplied("EgressQoS"), isNotApplied("EgressQoS")

// isBehind returns a check that a status names a node as the only one without the present rules.
func isBehind(node string) func(textObject) bool {
	return func(o textObject) bool {
		var zones []string
		for _, c := range o.Status.Conditions {
			if zone, of := strings.CutPrefix(c.Type, "Ready-In-Zone-"); of {
				zones = append(zones, zone)
			}
		}
		return qosNotApplied(o) && slices.Equal(zones, []string{node})
	}
}

// follower returns a node whose daemon does not lead.
func follower(t *testing.T, s *stage.Stage) string {
	t.Helper()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.Daemons)), func(node string) bool { return node == leaderOf(t, s) })[0]
}

// awaitReports waits until all nodes report objects of a kind as in force, in a field: a status is about the nodes that report.
func awaitReports(t *testing.T, s *stage.Stage, field string) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		var all coordinationv1.LeaseList
		if err := s.API.List(t.Context(), "{apiVersion: coordination.k8s.io/v1, kind: Lease}", &all); err != nil {
			return err
		}
		reports := 0
		for _, l := range all.Items {
			if strings.Contains(l.Annotations["egressway.io/report"], field) {
				reports++
			}
		}
		if reports != len(s.Daemons) {
			return fmt.Errorf("%d of %d nodes report %s", reports, len(s.Daemons), field)
		}
		return nil
	}))
}

// leaderOf returns the node whose daemon leads.
func leaderOf(t *testing.T, s *stage.Stage) string {
	t.Helper()
	var l coordinationv1.Lease
	require.NoError(t, s.API.Get(t.Context(), "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: "+stage.Namespace+", name: egressway}}", &l))
	require.NotNil(t, l.Spec.HolderIdentity)
	node, _, _ := strings.Cut(*l.Spec.HolderIdentity, "_")
	return node
}

// TestEgressQoSByAPI serves an EgressQoS of an API server. Once its status says that rules are applied, the next packets have their values.
func TestEgressQoSByAPI(t *testing.T) {
	s := qosStage{Stage: play(t, stage.Options{
		API: true, Nodes: stage.Nodes, Objects: []string{ourCRD(t, "egressqoses")},
		Manifests: map[string]string{
			"cluster.yaml": manifest(t, "cluster.yaml"), "web.yaml": manifest(t, "web.yaml"), "pods.yaml": podManifests(), "qos.yaml": qosManifest,
		},
	})}
	ctx := t.Context()
	var err error
	s.inner, err = s.Lab.Witness("a-p1", "b-p1")
	require.NoError(t, err)
	pods := identities{"a-p1": web, "b-p1": web, "a-p2": nodeA, "c-p1": nodeC, "b-p2": nodeB}
	awaitAll(t, s.Stage, pods)
	awaitReports(t, s.Stage, "egressQoSes")
	awaitEgressQoS(t, s.Stage, qosApplied)
	// sees asks from every pod that rules select, once: each packet of these has the value. Former connections may be sending their last
	// packets: of a pod that no rule selects, and of a node, which answers for a connection that was ended.
	asked := slices.DeleteFunc(slices.Sorted(maps.Keys(pods)), func(pod string) bool { return pod == "b-p2" })
	sees := func(t *testing.T, outside4, outside6 uint8) {
		t.Helper()
		s.Witness.Reset()
		for i, want := range []uint8{outside4, outside6} {
			f, of, seen := ipFamilies[i], map[netip.Addr]bool{}, map[netip.Addr]bool{}
			for _, pod := range asked {
				require.NoError(t, askBoth(s.Stage, pod, f.outside)(ctx))
				of[netip.MustParseAddr(pods[pod].source(f.outside))] = true
			}
			for p := range s.Witness.Find(func(p lab.Packet) bool { return of[p.Src] && p.Dst == f.outside.Addr() && !p.Fresh && atRouter(p) }) {
				require.Equal(t, want, p.DSCP, "%s", p)
				seen[p.Src] = true
			}
			require.Len(t, seen, len(of))
		}
	}
	sees(t, 46, 34)

	t.Run("a status holds for the next packet", func(t *testing.T) {
		was4, was6 := 46, 34
		for n := range 5 {
			now4, now6 := 20+n, 30+n
			require.NoError(t, s.Edit(ctx, "qos.yaml", fmt.Sprintf("dscp: %d, dstCIDR: 198.51.100.0/24", was4), fmt.Sprintf("dscp: %d, dstCIDR: 198.51.100.0/24", now4),
				fmt.Sprintf(`dscp: %d, dstCIDR: "2001`, was6), fmt.Sprintf(`dscp: %d, dstCIDR: "2001`, now6)))
			awaitEgressQoS(t, s.Stage, qosApplied)
			sees(t, uint8(now4), uint8(now6))
			was4, was6 = now4, now6
		}
		require.NoError(t, s.Edit(ctx, "qos.yaml", "dscp: 24, ", "dscp: 46, ", "dscp: 34, dstCIDR", "dscp: 34, dstCIDR"))
		awaitEgressQoS(t, s.Stage, qosApplied)
	})

	t.Run("a node that does not follow is named", func(t *testing.T) {
		node := follower(t, s.Stage)
		require.NoError(t, s.Daemons[node].Signal(syscall.SIGSTOP))
		require.NoError(t, s.Edit(ctx, "qos.yaml", "dscp: 46, ", "dscp: 18, "))
		awaitEgressQoS(t, s.Stage, isBehind(node))
		s.outsideSees(t, node+"-p1", web, ipFamilies[0], 46) // which is true
		require.NoError(t, s.Daemons[node].Signal(syscall.SIGCONT))
		awaitEgressQoS(t, s.Stage, qosApplied)
		sees(t, 18, 34)
	})

	t.Run("trace names the rule", func(t *testing.T) {
		for i, f := range ipFamilies {
			r, code := traced(t, s.Stage, "a", fromTo(f.pod("a-p1"), f.outside.Addr())...)
			require.Zero(t, code)
			require.NotNil(t, r.Verdict.DSCP)
			require.EqualValues(t, []uint8{18, 34}[i], *r.Verdict.DSCP)
			require.Contains(t, found(r, "DSCP"), []string{
				"18: EgressQoS shop/default, rule 1: DSCP 18 to 198.51.100.0/24 from pods with app=web; rules 3, 6 match too, but come later",
				"34: EgressQoS shop/default, rule 2: DSCP 34 to 2001:db8:100::/64 from pods with app=web; rule 6 matches too, but comes later",
			}[i])
			require.Empty(t, r.Differences)
			r, _ = traced(t, s.Stage, "b", fromTo(f.pod("b-p2"), f.outside.Addr())...) // not selected
			require.Nil(t, r.Verdict.DSCP)
			require.Empty(t, found(r, "DSCP"))
		}
		s.Daemons["a"].Kill()
		inKernel(t, s.Stage, "a", "nft delete element inet egressway classes4 '{ 10.244.1.11 }'")
		r, _ := traced(t, s.Stage, "a", fromTo(ipFamilies[0].pod("a-p1"), ipFamilies[0].outside.Addr())...)
		require.Nil(t, r.Verdict.DSCP, "the kernel decides")
		require.NoError(t, s.StartDaemon("a"))
		s.outsideSees(t, "a-p1", web, ipFamilies[0], 18)
	})

	t.Run("a bad rule leaves the others in force", func(t *testing.T) {
		require.NoError(t, s.Edit(ctx, "qos.yaml", "  - {dscp: 1, dstCIDR: 198.51.0.0/16, podSelector: {matchLabels: {app: web}}}\n",
			"  - {dscp: 1, podSelector: {matchLabels: {app: \"not a label\"}}}\n"))
		q := awaitEgressQoS(t, s.Stage, qosNotApplied)
		valid := meta.FindStatusCondition(q.Status.Conditions, "Valid")
		require.NotNil(t, valid)
		require.Equal(t, "InvalidSelector", valid.Reason)
		require.Contains(t, valid.Message, "spec.egress[2].podSelector")
		sees(t, 18, 34)
	})

	t.Run("the object of the migration guide", func(t *testing.T) {
		require.NoError(t, s.Write(ctx, "qos.yaml", ofGuide(t, "EgressQoS")))
		awaitEgressQoS(t, s.Stage, qosApplied)
		sees(t, 30, 42)
		s.outsideSees(t, "b-p2", nodeB, ipFamilies[0], 30)
		s.outsideSees(t, "b-p2", nodeB, ipFamilies[1], 28)
	})

	t.Run("removal", func(t *testing.T) {
		require.NoError(t, s.Remove(ctx, "qos.yaml"))
		for _, f := range ipFamilies {
			for _, pod := range asked {
				s.outsideSees(t, pod, pods[pod], f, 0)
			}
		}
	})
	requireInnocent(t, s.Stage, pods)
}

// found returns the texts of the steps of a walk about one thing.
func found(r trace.Result, what string) (text string) {
	for _, step := range r.Steps {
		if step.What == what {
			text += step.Found
		}
	}
	return text
}
