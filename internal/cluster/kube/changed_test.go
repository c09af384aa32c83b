package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
)

// world makes random changes to a Cluster's stores.
type world struct {
	*toldCluster
	*rand.Rand
}

func (w *world) name() string { return fmt.Sprint("x", w.IntN(8)) }

func (w *world) egressService(name string) *custom.Object {
	return &custom.Object{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", ResourceVersion: strconv.Itoa(w.IntN(3))},
		Spec:       json.RawMessage(fmt.Sprintf(`{"network": %q}`, w.name())),
	}
}

// podRef is the targetRef of endpoints, so that their addresses belong to a Pod.
var podRef = &corev1.ObjectReference{Kind: "Pod", Name: "pod"}

func (w *world) slice(name string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: w.name()}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for range w.IntN(3) {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.244.0.", w.IntN(3))}, TargetRef: podRef})
	}
	return s
}

func (w *world) service(name string) *corev1.Service {
	s := aService(name, w.Int32N(4)) // no port 0
	if w.IntN(4) == 0 {
		s.Spec.ClusterIP = "nonsense"
	}
	return s
}

// step changes something, and reports whether it was of a kind whose changes set Changed.All.
func (w *world) step(t *testing.T) (all bool) {
	t.Helper()
	name := w.name()
	switch w.IntN(13) {
	case 0, 1:
		require.NoError(t, w.services.Update(w.service(name)))
	case 2:
		require.NoError(t, w.services.Delete(w.service(name)))
	case 3, 4, 5:
		require.NoError(t, w.slices.Update(w.slice(name)))
	case 6:
		require.NoError(t, w.slices.Delete(w.slice(name)))
	case 7, 8:
		require.NoError(t, w.egressServices.Update(w.egressService(name)))
	case 9:
		require.NoError(t, w.egressServices.Delete(w.egressService(name)))
		removed, _, _ := w.egressServices.doubts.due(0)
		w.egressServices.removeDeleted(removed)
	case 10:
		require.NoError(t, w.services.Replace([]any{w.service(name), w.service("y")}, ""))
		w.services.believe(maps.Clone(w.services.doubts.lacked), nil)
	case 11:
		w.complain(name, explainSkew(name, w.ahead()))
	default:
		switch w.IntN(12) { // seldom, since it changes everything
		case 0:
			require.NoError(t, w.nodes.Update(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: w.IntN(2) == 0}}))
		case 1:
			require.NoError(t, w.namespaces.Update(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"a": w.name()}}}))
		case 2:
			require.NoError(t, w.serviceCIDRs.Update(&networkingv1.ServiceCIDR{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{fmt.Sprintf("10.%d.0.0/16", w.IntN(9))}},
			}))
		}
		return true
	}
	return false
}

// ahead returns a difference between clocks, small or too large.
func (w *world) ahead() time.Duration { return time.Duration(w.IntN(2)) * 2 * skewMost }

// TestChanged applies Changed to the last result of Objects: that makes the present one.
func TestChanged(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	w := &world{newTold(t), rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // to be repeated
	w.sync(t)
	former, changed, problems, ok := w.Objects()
	require.True(t, ok)
	require.Equal(t, cluster.Everything(), changed)
	for range 3000 {
		steps, everything := w.IntN(4), false
		for range steps {
			everything = w.step(t) || everything
		}
		if w.IntN(3) == 0 {
			w.latest() // does not consume changes
		}
		objects, changed, found, _ := w.Objects()
		require.Equal(t, found, cluster.SortProblems(append(w.foundAnew(), w.complaints.all()...)))
		if steps == 0 {
			require.True(t, changed.Empty())
			require.Equal(t, unsafe.SliceData(problems), unsafe.SliceData(found), "the same slice")
		}
		if !everything {
			require.False(t, changed.All)
		}
		if !changed.All {
			objects.EgressServices, former.EgressServices = adopt(former.EgressServices, objects.EgressServices, changed), objects.EgressServices
			objects.Services, former.Services = adopt(former.Services, objects.Services, changed), objects.Services
			objects.Endpoints, former.Endpoints = adopt(former.Endpoints, objects.Endpoints, changed), objects.Endpoints
			require.Equal(t, former, objects)
		}
		former, problems = objects, found
	}
}

// adopt returns the former map with the keys of changed taken from the present one.
func adopt[V any](former, now cluster.Map[cluster.Key, V], changed cluster.Changed) cluster.Map[cluster.Key, V] {
	next := former.Draft()
	for key := range changed.Of[cluster.KindEgressService] {
		if v, there := now.Get(key); there {
			next.Set(key, v)
		} else {
			next.Delete(key)
		}
	}
	return next.Map()
}

func (w *world) foundAnew() (problems []cluster.Problem) {
	for _, k := range w.kinds {
		problems = append(problems, k.found()...)
	}
	return problems
}

// TestLoneChange checks that a lone change names its key, and that the same object again is no change.
func TestLoneChange(t *testing.T) {
	c := newTold(t)
	c.sync(t)
	a := cluster.Key{Namespace: "default", Name: "a"}
	w := &world{c, rand.New(rand.NewPCG(0, 0))} //nolint:gosec // to be repeated
	slice := w.slice("s")
	slice.Labels[discoveryv1.LabelServiceName] = "a"
	slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.1"}, TargetRef: podRef}}
	c.Objects()
	for what, tell := range map[string]func(){
		"Service": func() { require.NoError(t, c.services.Update(aService("a", 80))) },
		"EgressService": func() {
			require.NoError(t, c.egressServices.Update(&custom.Object{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}}))
		},
		"EndpointSlice": func() { require.NoError(t, c.slices.Update(slice)) },
	} {
		tell()
		_, changed, _, _ := c.Objects()
		require.Equal(t, changeOf(a), changed, what)
		tell()
		_, changed, _, _ = c.Objects()
		require.True(t, changed.Empty(), what)
	}
	other := slice.DeepCopy() // of other ports, with the same endpoints
	other.Name = "t"
	require.NoError(t, c.slices.Update(other))
	_, changed, _, _ := c.Objects()
	require.True(t, changed.Empty())
}

// BenchmarkObjects takes snapshots of 10,000 Services with 10 endpoints each, one of which changes each time.
func BenchmarkObjects(b *testing.B) {
	c := newTold(b)
	c.sync(b)
	of := func(i, n int) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: fmt.Sprint("slice-", i), Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("seed-", i)}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for e := range 10 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i>>8, i&255, n+e)}, TargetRef: podRef})
		}
		return s
	}
	for i := range 10_000 {
		require.NoError(b, c.services.Add(aService(fmt.Sprint("seed-", i), 80)))
		require.NoError(b, c.egressServices.Add(&custom.Object{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("seed-", i), Namespace: "default"}}))
		require.NoError(b, c.slices.Add(of(i, 0)))
	}
	c.Objects()
	n := 0
	for what, change := range map[string]func(i int) error{
		"nothing":       func(int) error { return nil },
		"EndpointSlice": func(i int) error { return c.slices.Update(of(i, n%2)) },
		"Service":       func(i int) error { return c.services.Update(aService(fmt.Sprint("seed-", i), int32(1+n%2))) },
		"EgressService": func(i int) error {
			return c.egressServices.Update(&custom.Object{ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprint("seed-", i), Namespace: "default", ResourceVersion: strconv.Itoa(n),
			}})
		},
	} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n++
				if err := change(n % 10_000); err != nil {
					b.Fatal(err)
				}
				if _, changed, _, _ := c.Objects(); changed.All || len(changed.Of[cluster.KindEgressService]) > 1 {
					b.Fatal(changed)
				}
			}
		})
	}
}

// changeOf is the change of one EgressService.
func changeOf(key cluster.Key) (changed cluster.Changed) {
	changed.Add(cluster.KindEgressService.ID(key))
	return changed
}
