package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/egressway/egressway/api/v1alpha1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/nodestate"
)

// nodeRows returns the columns that kubectl prints for EgressNodes, without the age of the report, by node.
func (f *fixture) nodeRows(t *testing.T) map[string]string {
	t.Helper()
	text, err := f.core.Discovery().RESTClient().Get().AbsPath("/apis/egressway.io/v1alpha1/egressnodes").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	require.NoError(t, err)
	var table metav1.Table
	require.NoError(t, json.Unmarshal(text, &table))
	rows := map[string]string{}
	for _, r := range table.Rows {
		var cells []string
		for i, column := range table.ColumnDefinitions {
			if column.Type != "date" {
				cells = append(cells, strings.TrimSpace(fmt.Sprint(r.Cells[i])))
			}
		}
		rows[fmt.Sprint(r.Cells[0])] = strings.Join(cells[1:], " ")
	}
	return rows
}

// stateWith is the state of a ready node with one session.
func stateWith(up bool) v1alpha1.EgressNodeStatus {
	s := v1alpha1.EgressNodeStatus{
		Version: "v1", HostOf: 2, NetworksUsable: "1/1", SessionsUp: "1/1", Down: []string{},
		Networks: []v1alpha1.EgressNodeNetwork{{Name: "red", Usable: true}}, Sessions: []v1alpha1.EgressNodeSession{{Network: "red", Peer: "10.0.0.1", Up: up}},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonInForce}},
	}
	if !up {
		s.SessionsUp, s.Down = "0/1", []string{"red/10.0.0.1"}
	}
	return s
}

const nodeCRD = "../../../config/crd/egressway.io_egressnodes.yaml"

// nodeStates follows the EgressNodes of two nodes: their columns, few writes, a node that falls silent, its return, a daemon that does not
// know all objects, and the owner.
func (f *fixture) nodeStates(t *testing.T) {
	f.applyCRD(t, nodeCRD)
	ns := f.namespace(t)
	shows := func(node, want string) {
		t.Helper()
		require.Eventually(t, func() bool { return f.nodeRows(t)[node] == want }, soon, step, "%s: want %q, has %q", node, want, f.nodeRows(t)[node])
	}
	a := f.daemon(t, ns, "a")
	leader(t, a)
	b := f.daemon(t, ns, "b")
	require.Eventually(t, func() bool {
		owners, _ := b.owners()
		return len(owners) == 1
	}, soon, step)
	a.ReportNode(stateWith(true))
	b.ReportNode(stateWith(true))
	shows("a", "True 1/1 1/1 2 InForce 0 [] v1")
	shows("b", "True 1/1 1/1 2 InForce 0 [] v1")

	writes := f.nodeWrites(t)
	for range 100 { // nothing changes
		b.ReportNode(stateWith(true))
	}
	b.ReportNode(stateWith(false))
	shows("b", `True 1/1 0/1 2 InForce 0 ["red/10.0.0.1"] v1`)
	require.LessOrEqual(t, f.nodeWrites(t)-writes, 4, "reports without a change are written")

	b.stop()
	shows("b", "Unknown   0 NodeSilent 0 [] v1")
	shows("a", "True 1/1 1/1 2 InForce 0 [] v1")
	back := f.daemon(t, ns, "b")
	back.ReportNode(stateWith(true))
	shows("b", "True 1/1 1/1 2 InForce 0 [] v1")
	unknowing := v1alpha1.EgressNodeStatus{
		Version: "v2", Down: []string{}, Networks: []v1alpha1.EgressNodeNetwork{}, Sessions: []v1alpha1.EgressNodeSession{},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonObjectsUnknown}},
	}
	back.ReportNode(unknowing)
	shows("b", "False 1/1 1/1 2 ObjectsUnknown 0 [] v1")

	// The leader marks a node whose daemon goes on: it is ready since the daemon has written again, not since before.
	ready := func() metav1.Condition {
		n, err := f.egressNode(t, "a")
		require.NoError(t, err)
		return *meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionReady)
	}
	before := ready().LastTransitionTime
	require.Eventually(t, func() bool { return time.Since(before.Time) > time.Second }, soon, step) // the API's times are whole seconds
	require.NoError(t, nodestate.Silence(t.Context(), f.core.Discovery().RESTClient(), "a", func() bool { return true }))
	unknown := ready()
	require.Equal(t, metav1.ConditionUnknown, unknown.Status)
	require.True(t, before.Before(&unknown.LastTransitionTime))
	a.states.Again()
	shows("a", "True 1/1 1/1 2 InForce 0 [] v1")
	since := ready().LastTransitionTime
	require.False(t, since.Before(&unknown.LastTransitionTime), "%s, was unknown since %s", since, unknown.LastTransitionTime)

	n, err := f.egressNode(t, "b")
	require.NoError(t, err)
	node, err := f.core.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, n.OwnerReferences, 1)
	require.Equal(t, node.UID, n.OwnerReferences[0].UID, "Kubernetes deletes it with the Node")
	require.Len(t, n.Status.Conditions, 1)
	require.False(t, n.Status.Reported.IsZero())
}

// egressNode reads the EgressNode of a node.
func (f *fixture) egressNode(t *testing.T, node string) (n v1alpha1.EgressNode, err error) {
	t.Helper()
	raw, err := f.core.Discovery().RESTClient().Get().AbsPath("/apis/egressway.io/v1alpha1/egressnodes", node).DoRaw(t.Context())
	if err == nil {
		require.NoError(t, json.Unmarshal(raw, &n))
	}
	return n, err
}

// removedNode deletes a Node with its objects, as Kubernetes' garbage collector does, while its daemon runs: the daemon creates them again
// once there is a Node that owns them.
func (f *fixture) removedNode(t *testing.T) {
	f.applyCRD(t, nodeCRD)
	ns := f.namespace(t)
	f.Apply(t, aNode("removed", "10.0.0.9"))
	defer f.Delete(t, aNode("removed", "10.0.0.9"))
	d := f.daemon(t, ns, "removed")
	d.ShareAddresses(cluster.Secondary{Apart: []netip.Addr{netip.MustParseAddr("10.50.0.9")}})
	d.ReportNode(stateWith(true))
	leases := f.core.CoordinationV1().Leases(ns)
	names := []string{reportName("removed"), addressesPrefix + "removed"}
	owners := func() (uids []types.UID) {
		add := func(o metav1.ObjectMeta, err error) {
			switch {
			case apierrors.IsNotFound(err):
			case len(o.OwnerReferences) == 0:
				require.NoError(t, err)
				uids = append(uids, "")
			default:
				uids = append(uids, o.OwnerReferences[0].UID)
			}
		}
		for _, name := range names {
			l, err := leases.Get(t.Context(), name, metav1.GetOptions{})
			add(l.ObjectMeta, err)
		}
		n, err := f.egressNode(t, "removed")
		add(n.ObjectMeta, err)
		return uids
	}
	owned := func() {
		t.Helper()
		n, err := f.core.CoreV1().Nodes().Get(t.Context(), "removed", metav1.GetOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool { return slices.Equal(owners(), []types.UID{n.UID, n.UID, n.UID}) }, soon, step, "%v", owners())
	}
	owned()
	for range 2 { // the second time, its state does not change
		f.Delete(t, aNode("removed", "10.0.0.9"))
		d.knows(t, "removed", "", "")
		for _, name := range names {
			require.NoError(t, leases.Delete(t.Context(), name, metav1.DeleteOptions{}))
		}
		require.NoError(t, f.core.Discovery().RESTClient().Delete().AbsPath("/apis/egressway.io/v1alpha1/egressnodes/removed").Do(t.Context()).Error())
		d.ReportNode(stateWith(false))
		require.True(t, waitFor(t, func() bool {
			require.Empty(t, owners())
			tried := map[string]int{} // once before the first creation
			for _, e := range f.Audit(t) {
				if e.Verb == "patch" && e.Code == http.StatusNotFound {
					tried[e.Namespace+"/"+e.Name]++
				}
			}
			return tried[ns+"/"+names[0]] > 2 && tried[ns+"/"+names[1]] > 2 && tried["/removed"] > 2
		}))
		_, _, problems, _ := d.Objects()
		require.False(t, slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Kind == kindAPI }), "%v", problems)

		f.Apply(t, aNode("removed", "10.0.0.9"))
		owned()
	}
}

// nodeWrites counts the requests that create or patch EgressNodes.
func (f *fixture) nodeWrites(t *testing.T) (n int) {
	t.Helper()
	for _, e := range f.Audit(t) {
		if e.Resource == v1alpha1.EgressNodes && (e.Verb == "patch" || e.Verb == "create") {
			n++
		}
	}
	return n
}
