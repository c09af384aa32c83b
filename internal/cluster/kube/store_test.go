package kube

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/egressway/egressway/internal/cluster"
)

// toldCluster is a Cluster whose stores a test fills. It counts wakes.
type toldCluster struct {
	*Cluster
	woken int
}

func newTold(tb testing.TB) *toldCluster {
	tb.Helper()
	c := &toldCluster{}
	c.Cluster = New(slog.New(slog.DiscardHandler), Options{Node: "own"}, func() { c.woken++ })
	return c
}

// sync lists no objects of any kind.
func (c *toldCluster) sync(tb testing.TB) {
	tb.Helper()
	for _, s := range []cache.ReflectorStore{c.egressServices, c.services, c.slices, c.nodes, c.namespaces, c.serviceCIDRs, c.addresses, c.egressQoSes, c.firewalls, c.egressIPs} {
		_, synced := c.latest()
		require.False(tb, synced)
		require.NoError(tb, s.Replace(nil, ""))
	}
	_, synced := c.latest()
	require.True(tb, synced)
}

// aService returns a Service of the default namespace with that port.
func aService(name string, port int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port}}},
	}
}

func (c *toldCluster) names() []string {
	o, _ := c.latest()
	var names []string
	for key := range o.Services.Keys() {
		names = append(names, key.Name)
	}
	slices.Sort(names)
	return names
}

func TestStoreWakesForNewsOnly(t *testing.T) {
	c := newTold(t)
	c.sync(t)
	c.woken = 0
	require.NoError(t, c.services.Add(aService("a", 80)))
	require.Equal(t, 1, c.woken)
	again := aService("a", 80)
	again.ResourceVersion, again.Annotations = "7", map[string]string{"not": "read"}
	require.NoError(t, c.services.Update(again))
	require.NoError(t, c.services.Replace([]any{again}, ""))
	require.NoError(t, c.services.Delete(aService("never there", 80)))
	require.Equal(t, 1, c.woken)
	require.NoError(t, c.services.Update(aService("a", 81)))
	require.Equal(t, 2, c.woken)
	require.NoError(t, c.services.Delete(cache.DeletedFinalStateUnknown{Obj: aService("a", 81)}))
	require.Equal(t, 3, c.woken)
	require.Empty(t, c.names())
	require.Error(t, c.services.Add(&corev1.Node{}), "not of this kind")
}

func TestStoreDoubtsLists(t *testing.T) {
	c := newTold(t)
	c.sync(t)
	a, b := aService("a", 80), aService("b", 80)
	doubted := func() bool {
		_, _, problems, _ := c.Objects()
		return slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Object == "services" && p.Reason == ReasonListDoubted })
	}
	lacked := func() map[cluster.Key]int { return maps.Clone(c.services.doubts.lacked) }
	require.NoError(t, c.services.Replace([]any{a, b}, ""))
	require.False(t, doubted())

	// A second list misses one too, and has the other one changed.
	require.NoError(t, c.services.Replace(nil, ""))
	require.Equal(t, []string{"a", "b"}, c.names())
	require.True(t, doubted())
	x, err := c.services.read(aService("a", 81))
	require.NoError(t, err)
	c.services.believe(lacked(), map[cluster.Key]*object[cluster.Key, cluster.Service]{x.key: x})
	require.Equal(t, []string{"a"}, c.names())
	require.False(t, doubted())
	o, _ := c.latest()
	require.EqualValues(t, 81, o.Services.At(x.key).Ports[0].Port)

	// An object that was delivered again meanwhile is not removed by an older doubt, even if there is a newer one.
	require.NoError(t, c.services.Replace(nil, ""))
	older := lacked()
	require.NoError(t, c.services.Add(a))
	require.False(t, doubted())
	c.services.believe(older, nil)
	require.Equal(t, []string{"a"}, c.names())
	require.NoError(t, c.services.Replace(nil, ""))
	c.services.believe(older, nil)
	require.Equal(t, []string{"a"}, c.names())
	require.True(t, doubted())

	// A watch's deletion is believed at once.
	require.NoError(t, c.services.Delete(a))
	require.Empty(t, c.names())
	require.False(t, doubted())

	// Our own Node: a second list without it removes no node.
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	require.NoError(t, c.nodes.Replace([]any{node("own"), node("b")}, ""))
	require.NoError(t, c.nodes.Replace(nil, ""))
	c.nodes.believe(maps.Clone(c.nodes.doubts.lacked), nil)
	o, _, problems, _ := c.Objects()
	require.Len(t, maps.Collect(o.Nodes.All()), 2)
	require.True(t, slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Object == "nodes" && p.Reason == ReasonListDoubted }))
	require.NoError(t, c.nodes.Delete(node("own")))
	c.nodes.believe(maps.Clone(c.nodes.doubts.lacked), nil)
	o, _ = c.latest()
	require.Empty(t, maps.Collect(o.Nodes.All()))
}

func TestStoreTellsProblems(t *testing.T) {
	c := newTold(t)
	c.sync(t)
	bad := aService("a", 80)
	bad.Spec.ClusterIP = "nonsense"
	require.NoError(t, c.services.Add(bad))
	_, _, problems, _ := c.Objects()
	require.Len(t, problems, 1)
	require.Equal(t, "default/a", problems[0].Object)
	require.Equal(t, []string{"a"}, c.names())
	require.NoError(t, c.services.Replace(nil, ""), "one that has a problem is doubted like any other")
	require.Equal(t, []string{"a"}, c.names())
	require.NoError(t, c.services.Add(aService("a", 80)))
	_, _, problems, _ = c.Objects()
	require.Empty(t, problems)
}

// TestSlices moves slices between Services at random. The endpoints are always those of all slices of a Service, in the order of
// // the slices' names, and earlier snapshots do not change.
func TestSlices(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeated
	c := newTold(t)
	c.sync(t)
	there := map[string]*discoveryv1.EndpointSlice{}
	for range 500 {
		o := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprint("slice-", random.IntN(6)), Namespace: "default",
				Labels: map[string]string{discoveryv1.LabelServiceName: []string{"", "a", "b", "c"}[random.IntN(4)]},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for range random.IntN(4) {
			o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.244.0.", random.IntN(5))}, NodeName: new("own"), TargetRef: podRef})
		}
		before, _ := c.latest()
		text := fmt.Sprint(before)
		if random.IntN(4) == 0 {
			delete(there, o.Name)
			require.NoError(t, c.slices.Delete(o))
		} else {
			there[o.Name] = o
			require.NoError(t, c.slices.Update(o))
		}
		want := map[cluster.Key][]cluster.Endpoint{}
		for _, name := range slices.Sorted(maps.Keys(there)) {
			if key, endpoints := cluster.FromSlice(there[name]); len(endpoints) > 0 {
				want[key] = cluster.CompactEndpoints(append(want[key], endpoints...))
			}
		}
		now, _ := c.latest()
		require.Equal(t, cluster.MapOf(want), now.Endpoints)
		require.Equal(t, text, fmt.Sprint(before), "what was handed out stays as it was")
	}
}

func TestSelectorsAreHeldOnce(t *testing.T) {
	var s selectors
	of := func(labels map[string]string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: labels}
	}
	one := s.intern(of(map[string]string{"a": "b", "c": "d"}))
	require.Same(t, one, s.intern(of(map[string]string{"a": "b", "c": "d"})))
	require.Nil(t, s.intern(nil))
	invalid := of(map[string]string{"a": "b,c: d"})
	require.Equal(t, one.String(), invalid.String())
	require.Same(t, invalid, s.intern(invalid), "of one text, but another")
}

// TestRemovalsAreDue checks that each removal waits for its own time: a recent one delays no older one, and is not believed with it.
func TestRemovalsAreDue(t *testing.T) {
	d := newDoubts[string]()
	_, _, left := d.due(0)
	require.False(t, left)
	d.deleted("old")
	d.removed["old"] = removal{d.count, time.Now().Add(-2 * time.Hour)}
	d.deleted("new")
	due, next, left := d.due(time.Hour)
	require.Equal(t, map[string]int{"old": 1}, due)
	require.InDelta(t, time.Hour, next, float64(time.Minute))
	require.True(t, left)
	d.settle("old")
	due, next, left = d.due(time.Hour)
	require.Empty(t, due)
	require.Positive(t, next)
	require.True(t, left)
}
