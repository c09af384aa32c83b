package kube

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/egressway/egressway/internal/cluster"
)

// nodePauses are those of tests.
func nodePauses(p pauses) pauses {
	p.roster, p.leaderless, p.apart, p.addresses = 50*time.Millisecond, 2*time.Second, time.Second, 50*time.Millisecond
	return p
}

// aNode is a Node with an address.
func aNode(name, address string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {rack: "1"}}, status: {addresses: [{type: InternalIP, address: %s}]}}`, name, address)
}

// heartbeat writes a Node's status as a kubelet does: it becomes Ready or not, which is no fact for other nodes.
func (f *fixture) heartbeat(t *testing.T, node string, ready corev1.ConditionStatus) {
	t.Helper()
	_, err := f.core.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType,
		fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, ready), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

// watchesAll reports whether a daemon watches all Nodes.
func (d *daemon) watchesAll() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodes.whole
}

// reliesOnRoster waits until a daemon watches no other Node than its own.
func (d *daemon) reliesOnRoster(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		o, ok := d.latest()
		return ok && o.StaleNodes && !d.watchesAll()
	}, soon, step)
}

// knows waits until a daemon knows a Node with that address and rack; no address: until it does not know it.
func (d *daemon) knows(t *testing.T, node, address, rack string) {
	t.Helper()
	require.Eventually(t, func() bool {
		o, ok := d.latest()
		n, there := o.Nodes.Get(node)
		if address == "" || !there {
			return ok && !there && address == ""
		}
		return ok && len(n.Internal) == 1 && n.Internal[0] == netip.MustParseAddr(address) && n.Labels["rack"] == rack
	}, soon, step, "%s knows %s", d.options.Node, node)
}

// rosters checks that changes of Nodes reach daemons that do not watch them, also after the leader changed.
func (f *fixture) rosters(t *testing.T) {
	ns := f.namespace(t)
	all := []*daemon{f.daemon(t, ns, "a"), f.daemon(t, ns, "b"), f.daemon(t, ns, "c")}
	for range 2 {
		first := leader(t, all...)
		for _, d := range others(all, first) {
			d.reliesOnRoster(t)
		}
		f.Apply(t, aNode("new", "10.0.0.1"))
		for _, d := range all {
			d.knows(t, "new", "10.0.0.1", "1")
		}
		f.heartbeat(t, "new", corev1.ConditionTrue)
		require.Eventually(t, func() bool {
			o, ok := first.latest()
			return ok && !o.StaleNodes && o.Nodes.At("new").Ready
		}, soon, step, "the leader watches all Nodes")
		_, err := f.core.CoreV1().Nodes().Patch(t.Context(), "new", types.MergePatchType, []byte(`{"metadata":{"labels":{"rack":"2"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		f.Apply(t, `{apiVersion: v1, kind: Node, metadata: {name: new}, status: {addresses: [{type: InternalIP, address: 10.0.0.2}]}}`)
		for _, d := range all {
			d.knows(t, "new", "10.0.0.2", "2")
		}
		f.Delete(t, aNode("new", "10.0.0.2"))
		for _, d := range all {
			d.knows(t, "new", "", "")
		}
		first.stop()
		all = others(all, first)
	}
	last := leader(t, all...)
	require.True(t, last.watchesAll())
	require.Eventually(t, func() bool {
		o, ok := last.latest()
		return ok && !o.StaleNodes
	}, soon, step)
}

// hand is a leader of which the test does everything, and no daemon takes over from it.
type hand struct {
	*fixture
	namespace, name string
}

// leads makes it the holder of the leader's Lease, for an hour.
func (h hand) leads(t *testing.T) {
	t.Helper()
	hour, now := int32(3600), metav1.NowMicro()
	leases := h.core.CoordinationV1().Leases(h.namespace)
	spec := coordinationv1.LeaseSpec{HolderIdentity: &h.name, LeaseDurationSeconds: &hour, AcquireTime: &now, RenewTime: &now}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	require.NoError(t, err)
	if _, err := leases.Patch(t.Context(), leaseName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		_, err = leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName}, Spec: spec}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

// writes writes a roster.
func (h hand) writes(t *testing.T, r cluster.Roster) {
	t.Helper()
	c := New(nil, Options{Namespace: h.namespace}, func() {})
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, (&term{Cluster: c, clients: h.clients}).writeRoster(t.Context(), h.name, string(text)))
}

// rosterOf returns the roster of the Nodes that a daemon knows.
func rosterOf(d *daemon, changed ...cluster.RosterEntry) cluster.Roster {
	_, digest := d.nodes.facts()
	return cluster.Roster{Nodes: digest, Changed: changed}
}

// rosterless checks that a daemon watches all Nodes under a leader of an earlier version, which keeps no roster, and under
// one whose roster is wrong.
func (f *fixture) rosterless(t *testing.T) {
	h := hand{f, f.namespace(t), "old_1"}
	h.leads(t)
	d := f.daemon(t, h.namespace, "a")
	follows := func() {
		t.Helper()
		for _, ready := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse} {
			f.heartbeat(t, "b", ready)
			require.Eventually(t, func() bool {
				o, ok := d.latest()
				return ok && !o.StaleNodes && o.Nodes.At("b").Ready == (ready == corev1.ConditionTrue)
			}, soon, step)
		}
	}
	follows()
	former := hand{f, h.namespace, "former_1"}
	former.writes(t, rosterOf(d))
	follows()

	h.writes(t, rosterOf(d))
	d.reliesOnRoster(t)
	require.False(t, d.isLeading())

	// An entry that is not true changes nothing: the Node itself is read. The digest that contradicts it makes the daemon
	// watch all Nodes.
	h.writes(t, rosterOf(d, cluster.RosterEntry{Node: "b"}, cluster.RosterEntry{Node: "none", Facts: "x"}))
	d.reliesOnRoster(t)
	h.writes(t, cluster.Roster{Nodes: "wrong", Changed: []cluster.RosterEntry{{Node: "b"}, {Node: "none", Facts: "x"}}})
	follows()
	d.knows(t, "none", "", "")
	o, _ := d.latest()
	_, there := o.Nodes.Get("b")
	require.True(t, there)

	h.writes(t, rosterOf(d))
	d.reliesOnRoster(t)
	h.name = "old_2"
	h.leads(t)
	follows()

	h.writes(t, rosterOf(d))
	d.reliesOnRoster(t)
	require.NoError(t, f.core.CoordinationV1().Leases(h.namespace).Delete(t.Context(), rosterName, metav1.DeleteOptions{}))
	follows()
}

// hostsAreRead checks that the Node of a host is known before the roster has it.
func (f *fixture) hostsAreRead(t *testing.T) {
	h := hand{f, f.namespace(t), "hand_1"}
	h.leads(t)
	d := f.daemon(t, h.namespace, "a")
	require.Eventually(t, func() bool {
		_, ok := d.latest()
		return ok
	}, soon, step)
	h.writes(t, rosterOf(d))
	d.reliesOnRoster(t)
	f.Apply(t, aNode("late", "10.0.0.3"))
	key, _ := f.service(t, d, h.namespace, "web")
	f.patch(t, leaderManager, key, `{"host":"late"}`)
	d.knows(t, "late", "10.0.0.3", "1")
	f.Delete(t, aNode("late", "10.0.0.3"))
}
