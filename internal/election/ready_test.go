package election

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
)

// current reports whether kstatus counts an EgressService of a generation with this status as served.
func current(t *testing.T, s cluster.Status, generation int64) bool {
	t.Helper()
	o := egressv1.EgressService{TypeMeta: metav1.TypeMeta{APIVersion: "k8s.ovn.org/v1", Kind: "EgressService"}}
	o.Namespace, o.Name, o.Generation = "shop", "a", generation
	o.Status.Host, o.Status.ObservedGeneration, o.Status.Conditions = s.Host, s.Generation, s.Conditions
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&o)
	require.NoError(t, err)
	r, err := kstatus.Compute(&unstructured.Unstructured{Object: fields})
	require.NoError(t, err)
	return r.Status == kstatus.CurrentStatus
}

// TestReady compares Ready with what nodes report: it is true only while the host's kernel, sessions and routes serve the object.
func TestReady(t *testing.T) {
	w := &world{t: t, o: objects(1, "a"), reports: up("n0"), key: key("a"), version: 1}
	change(&w.o, "a", func(e *cluster.EgressService, _ *cluster.Service) { e.Generation = 3 })
	is := func(status metav1.ConditionStatus, reason, message string) {
		t.Helper()
		s := w.step()
		c := condition(t, s, ConditionReady)
		require.Equal(t, []string{string(status), reason}, []string{string(c.Status), c.Reason}, c.Message)
		require.Contains(t, c.Message, message)
		require.EqualValues(t, 3, c.ObservedGeneration)
		require.EqualValues(t, 3, s.Generation)
		require.Equal(t, status == metav1.ConditionTrue, current(t, s, 3), "as kstatus judges, by which Flux and Argo wait")
		require.False(t, current(t, s, 4), "the object has changed since")
	}
	network := func(n cluster.NetworkState) {
		r := w.reports["n0"]
		r.Networks = map[string]cluster.NetworkState{"default": n}
		w.reports["n0"] = r
	}
	well := cluster.NetworkState{Usable: true, IPv4: true, IPv6: true, Sessions: 1, Up: 1}

	is(metav1.ConditionFalse, "Pending", "not yet reported to be in force by n0")
	applied(w.reports, "n0", w.version)
	is(metav1.ConditionTrue, "Served", "node n0 serves it by network default")
	require.Equal(t, []string{"203.0.113.0"}, w.step().IngressIPs)

	network(cluster.NetworkState{Usable: true, Sessions: 1, Up: 1})
	is(metav1.ConditionFalse, "NoRoute", "network default has no IPv4 route on n0")
	network(cluster.NetworkState{Usable: true, IPv4: true, Sessions: 1, Up: 1})
	is(metav1.ConditionTrue, "Served", "") // it has no IPv6 address
	network(cluster.NetworkState{Usable: true, IPv4: true, Sessions: 1})
	is(metav1.ConditionFalse, "NoEligibleNode", "no BGP session of network default is up on n0")
	network(well)
	w.step()
	applied(w.reports, "n0", w.version)
	is(metav1.ConditionTrue, "Served", "")

	w.view.Problems = []cluster.Problem{{Kind: "Service", Object: "shop/a", Reason: cluster.ReasonInvalidAddress, Message: "is bad"}}
	is(metav1.ConditionFalse, "InvalidAddress", "Service shop/a: is bad")
	w.view.Problems = nil

	change(&w.o, "a", func(e *cluster.EgressService, _ *cluster.Service) { e.SourceIPBy = cluster.SourceIPByNetwork })
	w.step()
	applied(w.reports, "n0", w.version)
	is(metav1.ConditionTrue, "Served", "every node with an endpoint serves it by network default")
	network(cluster.NetworkState{Sessions: 1})
	is(metav1.ConditionFalse, "NetworkNotUsable", "network default is not usable on n0")
	network(cluster.NetworkState{Usable: true, Sessions: 1})
	is(metav1.ConditionFalse, "NoRoute", "network default has no IPv4 nor IPv6 route on n0")
	network(cluster.NetworkState{Usable: true, IPv6: true, Sessions: 1})
	is(metav1.ConditionTrue, "Served", "")
	r := w.reports["n0"]
	r.Networks = map[string]cluster.NetworkState{"other": well}
	w.reports["n0"] = r
	is(metav1.ConditionFalse, "NetworkNotUsable", "network default is not usable on n0") // its configuration does not list it
	network(well)
	is(metav1.ConditionTrue, "Served", "")
	w.o.Endpoints = w.o.Endpoints.With(w.key, nil)
	is(metav1.ConditionFalse, "NoEndpoints", "has no endpoint that is a pod of a node")
}
