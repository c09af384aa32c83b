package kube

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/egressway/egressway/internal/cluster"
)

// hears waits until a daemon knows these secondary addresses of a node.
func (d *daemon) hears(t *testing.T, node string, want cluster.Secondary) {
	t.Helper()
	require.Eventually(t, func() bool {
		o, ok := d.latest()
		return ok && o.Secondary.At(node).Equal(want)
	}, soon, step, "%s hears of the addresses of %s", d.options.Node, node)
}

// addresses checks that each daemon knows the secondary addresses of all nodes, as their daemons know them.
func (f *fixture) addresses(t *testing.T) {
	ns := f.namespace(t)
	a, b := f.daemon(t, ns, "a"), f.daemon(t, ns, "b")
	leases := f.core.CoordinationV1().Leases(ns)
	of := cluster.Secondary{
		Beside: []netip.Addr{netip.MustParseAddr("10.0.0.50"), netip.MustParseAddr("fd00::50")}, Apart: []netip.Addr{netip.MustParseAddr("10.50.0.1")},
	}
	a.ShareAddresses(of)
	b.ShareAddresses(cluster.Secondary{})
	b.hears(t, "a", of)
	lease, err := leases.Get(t.Context(), "addresses.a", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "Node", lease.OwnerReferences[0].Kind)
	require.JSONEq(t, `{"beside":["10.0.0.50","fd00::50"],"apart":["10.50.0.1"]}`, lease.Annotations[annotationAddresses])

	late := f.daemon(t, ns, "c")
	late.hears(t, "a", of)

	// What another program writes counts only if it is valid, and only until the node's own daemon sees it.
	patch := func(text string) {
		t.Helper()
		_, err := leases.Patch(t.Context(), "addresses.a", types.MergePatchType, []byte(text), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	patch(`{"metadata":{"annotations":{"` + annotationAddresses + `":"[\"0.0.0.0/0\"]"}}}`)
	for _, d := range []*daemon{a, b, late} {
		d.hears(t, "a", of)
	}
	require.NoError(t, leases.Delete(t.Context(), "addresses.a", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		again, err := leases.Get(t.Context(), "addresses.a", metav1.GetOptions{})
		return err == nil && again.UID != lease.UID
	}, soon, step)
	b.hears(t, "a", of)

	// A stop changes nothing, and a daemon that starts corrects what has changed meanwhile.
	a.stop()
	b.hears(t, "a", of)
	a = f.daemon(t, ns, "a")
	a.ShareAddresses(cluster.Secondary{})
	for _, d := range []*daemon{a, b, late} {
		d.hears(t, "a", cluster.Secondary{})
	}
	_, err = leases.Get(t.Context(), "addresses.b", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "a node without secondary addresses has no such Lease")
}

func TestTrimAddresses(t *testing.T) {
	lease := leaseOf("a", 1, "")
	lease.Name, lease.Annotations = "addresses.a.example", map[string]string{annotationAddresses: `{"apart":["10.0.0.9"]}`}
	x := trimAddresses(lease)
	require.True(t, x.ok)
	require.Equal(t, "a.example", x.key)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.9")}, x.value.Apart)

	lease.Annotations = nil
	x = trimAddresses(lease)
	require.False(t, x.ok)
	require.Equal(t, "a.example", x.key)
	require.Equal(t, cluster.ReasonInvalidValue, x.problems[0].Reason)

	lease.Name = "a.example"
	x = trimAddresses(lease)
	require.False(t, x.ok)
	require.NotEqual(t, "a.example", x.key)
	require.Empty(t, x.problems)
}
