package kube

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
)

// service creates an EgressService, and waits until the daemon knows it.
func (f *fixture) service(t *testing.T, d *daemon, namespace, name string) (cluster.Key, *egressv1.EgressService) {
	t.Helper()
	o := &egressv1.EgressService{}
	require.NoError(t, f.egress.Post().Namespace(namespace).Resource("egressservices").
		Body(&egressv1.EgressService{ObjectMeta: metav1.ObjectMeta{Name: name}}).Do(t.Context()).Into(o))
	key := cluster.Key{Namespace: namespace, Name: name}
	require.Eventually(t, func() bool {
		objects, ok := d.latest()
		_, there := objects.EgressServices.Get(key)
		return ok && there
	}, soon, step)
	return key, o
}

// get returns an EgressService as the server has it.
func (f *fixture) get(t *testing.T, key cluster.Key) *egressv1.EgressService {
	t.Helper()
	o := &egressv1.EgressService{}
	require.NoError(t, f.egress.Get().Namespace(key.Namespace).Resource("egressservices").Name(key.Name).Do(t.Context()).Into(o))
	return o
}

// edit patches the status by hand, as kubectl does.
func (f *fixture) edit(t *testing.T, key cluster.Key, status string) *egressv1.EgressService {
	t.Helper()
	return f.patch(t, "kubectl-patch", key, status)
}

// patch patches the status as a field manager.
func (f *fixture) patch(t *testing.T, manager string, key cluster.Key, status string) *egressv1.EgressService {
	t.Helper()
	o := &egressv1.EgressService{}
	require.NoError(t, f.egress.Patch(types.MergePatchType).Namespace(key.Namespace).Resource("egressservices").Name(key.Name).
		SubResource("status").Param("fieldManager", manager).Body([]byte(`{"status":`+status+`}`)).Do(t.Context()).Into(o))
	return o
}

// decides acts as a leader: it writes the wanted statuses whenever something changed, until ok.
func (d *daemon) decides(t *testing.T, want map[cluster.Key]Wanted, ok func() bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		d.Write(want)
		return ok()
	}, soon, step)
}

func wanted(o *egressv1.EgressService, host string) Wanted {
	return Wanted{
		UID: string(o.UID),
		Status: cluster.Status{
			Host: host, Standby: "b", Term: 3, Generation: 1, IngressIPs: []string{"192.0.2.1", "2001:db8::1"},
			Conditions: []metav1.Condition{{
				Type: "Programmed", Status: metav1.ConditionTrue, Reason: "Programmed", Message: "node " + host + " is the host",
			}},
		},
		Events: []Event{{Reason: "Elected", Message: "node " + host + " is the host"}, {Warning: true, Reason: "Moved", Message: "moved"}},
	}
}

func (f *fixture) status(t *testing.T) {
	ns := f.namespace(t)
	d := f.daemon(t, ns, "a")
	key, created := f.service(t, d, ns, "web")
	want := map[cluster.Key]Wanted{key: wanted(created, "a"), {Namespace: ns, Name: "gone"}: wanted(created, "b")}
	d.Write(want) // there is no leader yet, or no other event

	leader(t, d)
	var o *egressv1.EgressService
	right := func() bool { // the status is written, and the daemon knows
		o = f.get(t, key)
		objects, _ := d.latest()
		return sameStatus(want[key].Status, cluster.Status{
			Host: o.Status.Host, Standby: o.Status.Standby, Term: o.Status.Term, Conditions: o.Status.Conditions,
			Generation: o.Status.ObservedGeneration, IngressIPs: o.Status.IngressIPs,
		}) && sameStatus(want[key].Status, objects.EgressServices.At(key).Status)
	}
	d.decides(t, want, right)
	since := o.Status.Conditions[0].LastTransitionTime
	require.False(t, since.IsZero())
	require.False(t, d.Pruned())
	version := o.ResourceVersion

	// Each of its events is written once, and a status that is right is not written again.
	events := f.core.CoreV1().Events(ns)
	require.Eventually(t, func() bool {
		list, err := events.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return len(list.Items) == 2
	}, soon, step)
	for range 10 {
		d.Write(want)
	}
	require.Eventually(t, func() bool { return d.leads().queue.Len() == 0 }, soon, step)
	list, err := events.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	for _, e := range list.Items {
		require.Equal(t, created.UID, e.InvolvedObject.UID)
		require.Equal(t, "EgressService", e.InvolvedObject.Kind)
		require.Equal(t, component, e.Source.Component)
		require.EqualValues(t, 1, e.Count)
	}
	require.Equal(t, version, f.get(t, key).ResourceVersion)

	// An edit by hand is undone, including the time of a condition that stays.
	f.edit(t, key, `{"host":"mallory","standby":null,"term":null,"ingressIPs":["10.0.0.1"],"observedGeneration":9}`)
	d.decides(t, want, right)
	require.Equal(t, since, o.Status.Conditions[0].LastTransitionTime)

	// A decision from an older version is not written.
	edited := f.edit(t, key, `{"host":"mallory"}`)
	w := d.leads()
	w.mu.Lock()
	w.services.written = map[cluster.Key]statusWrite[Wanted]{}
	w.services.due = map[cluster.Key]statusWrite[Wanted]{key: {want: wanted(o, "c"), version: 1}}
	w.mu.Unlock()
	require.NoError(t, w.writeStatus(t.Context(), key))
	require.Equal(t, edited.ResourceVersion, f.get(t, key).ResourceVersion)
	d.decides(t, want, right)

	// Nil: no status is wanted.
	version = o.ResourceVersion
	d.Write(nil)
	require.Eventually(t, func() bool { return d.leads().queue.Len() == 0 }, soon, step)
	require.Equal(t, version, f.get(t, key).ResourceVersion)
}

// successors has an object of each kind deleted and made again, and then a decision about the former one: it is not written.
func (f *fixture) successors(t *testing.T) {
	ns := f.namespace(t)
	d := f.daemon(t, ns, "a")
	leader(t, d)
	due := func() int {
		l := d.leads()
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.services.due) + len(l.ips.due) + len(l.texts)
	}
	service := fmt.Sprintf(`{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {name: web, namespace: %s}, spec: {}}`, ns)
	web := cluster.Key{Namespace: ns, Name: "web"}
	for _, of := range []struct {
		kind        cluster.Kind
		crd, object string
		meta        func(cluster.Objects) cluster.Meta
		write       func(cluster.Revision)
	}{
		{cluster.KindEgressService, ourCRD, service, func(o cluster.Objects) cluster.Meta {
			e := o.EgressServices.At(web)
			return cluster.Meta{UID: e.UID, Version: e.Version}
		}, func(of cluster.Revision) {
			d.Write(map[cluster.Key]Wanted{web: {UID: of.UID, Status: cluster.Status{Host: "a"}}})
		}},
		{cluster.KindEgressIP, ipCRD, anEgressIP(ns), func(o cluster.Objects) cluster.Meta {
			e := o.EgressIPs.At(teamKey)
			return cluster.Meta{UID: e.UID, Version: e.Version}
		}, func(of cluster.Revision) {
			items := []cluster.Holder{{Addr: netip.MustParseAddr("192.0.2.33"), Host: "a"}}
			d.WriteItems(map[cluster.Key]WantedItems{teamKey: {UID: of.UID, Items: items}})
		}},
		{cluster.KindEgressFirewall, firewallCRD, anEgressFirewall, func(o cluster.Objects) cluster.Meta {
			return o.EgressFirewalls.At(firewallKey).Meta
		}, func(of cluster.Revision) {
			d.WriteTexts(cluster.KindEgressFirewall, map[cluster.Key]WantedText{firewallKey: {of, cluster.TextStatus{Text: "applied"}}})
		}},
	} {
		t.Run(of.kind.String(), func(t *testing.T) {
			f.applyCRD(t, of.crd)
			known := func(ok func(cluster.Meta) bool) (m cluster.Meta) {
				t.Helper()
				require.Eventually(t, func() bool {
					objects, _ := d.latest()
					m = of.meta(objects)
					return ok(m)
				}, soon, step)
				return m
			}
			f.Apply(t, of.object)
			defer f.Delete(t, of.object)
			first := known(func(m cluster.Meta) bool { return m.UID != "" })
			f.Delete(t, of.object)
			f.Apply(t, of.object)
			second := known(func(m cluster.Meta) bool { return m.UID != "" && m.UID != first.UID })
			before := due()
			of.write(first.Revision())
			require.Equal(t, before, due())
			of.write(second.Revision())
			known(func(m cluster.Meta) bool { return m.Version > second.Version })
		})
	}
}

// similarEvents has so many similar Events written that the later ones are combined in one, which counts them.
func (f *fixture) similarEvents(t *testing.T) {
	const single, combined = 9, 3 // client-go combines the tenth of ten minutes and all that follow
	ns := f.namespace(t)
	d := f.daemon(t, ns, "a")
	key, o := f.service(t, d, ns, "web")
	leader(t, d)
	for i := range single + combined {
		d.leads().queueEvents(cluster.KindEgressService.ID(key), string(o.UID), 0, []Event{{Reason: "Moved", Message: fmt.Sprint("move ", i)}})
	}
	require.Eventually(t, func() bool {
		list, err := f.core.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		counts := map[bool][]int32{}
		for _, e := range list.Items {
			require.Equal(t, o.UID, e.InvolvedObject.UID)
			is := strings.HasPrefix(e.Message, "(combined from similar events)")
			counts[is] = append(counts[is], e.Count)
		}
		return slices.Equal(counts[true], []int32{combined}) && slices.Equal(counts[false], slices.Repeat([]int32{1}, single))
	}, soon, step)
}

// lostEvents writes Events in a namespace before, during and after its deletion: the server refuses the later ones, which is no error.
func (f *fixture) lostEvents(t *testing.T) {
	lost := f.namespace(t)
	d := f.daemon(t, f.namespace(t), "a")
	leader(t, d)
	events, namespaces := f.core.CoreV1().Events(lost), f.core.CoreV1().Namespaces()
	write := func(message string, there int) {
		t.Helper()
		require.NoError(t, d.leads().writeEvent(t.Context(), &queuedEvent{event: &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: lost, GenerateName: "web."},
			InvolvedObject: corev1.ObjectReference{Kind: "EgressService", Namespace: lost, Name: "web"},
			Type:           corev1.EventTypeNormal, Reason: "Moved", Message: message, Count: 1, Source: corev1.EventSource{Component: component},
		}}))
		list, err := events.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, there, message)
	}
	write("before", 1)
	require.NoError(t, namespaces.Delete(t.Context(), lost, metav1.DeleteOptions{}))
	write("during", 1)
	require.NoError(t, events.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	n, err := namespaces.Get(t.Context(), lost, metav1.GetOptions{})
	require.NoError(t, err)
	n.Spec.Finalizers = nil
	_, err = namespaces.Finalize(t.Context(), n, metav1.UpdateOptions{})
	require.NoError(t, err)
	write("after", 0)
}

// lastWords stops a leader as soon as it has written: its events are sent all the same.
func (f *fixture) lastWords(t *testing.T) {
	ns := f.namespace(t)
	d := f.daemon(t, ns, "a")
	want := map[cluster.Key]Wanted{}
	for _, name := range []string{"one", "two", "three", "four", "five", "six", "seven", "eight"} {
		key, o := f.service(t, d, ns, name)
		want[key] = wanted(o, "a")
	}
	leader(t, d)
	d.decides(t, want, func() bool {
		objects, _ := d.latest()
		for key := range want {
			if objects.EgressServices.At(key).Status.Host != "a" {
				return false
			}
		}
		return true
	})
	d.stop()
	list, err := f.core.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2*len(want))
}

func (f *fixture) prunes(t *testing.T) {
	f.applyCRD(t, upstreamCRD)
	defer f.applyCRD(t, ourCRD)
	ns := f.namespace(t)
	d := f.daemon(t, ns, "a")
	key, o := f.service(t, d, ns, "web")
	leader(t, d)
	again := func() { // each time with a probe
		t := d.leads()
		t.mu.Lock()
		t.services.probed = time.Time{}
		t.mu.Unlock()
	}

	// The server may use the former CRD a little longer.
	host := "a"
	require.Eventually(t, func() bool {
		again()
		host += "a"
		d.Write(map[cluster.Key]Wanted{key: wanted(o, host)})
		return d.Pruned()
	}, soon, step)
	want := map[cluster.Key]Wanted{key: wanted(o, "a")}
	d.decides(t, want, func() bool {
		objects, _ := d.latest()
		return objects.EgressServices.At(key).Status.Host == "a" && f.get(t, key).Status.Host == "a"
	})
	require.Empty(t, f.get(t, key).Status.Standby)
	version := f.get(t, key).ResourceVersion
	for range 10 {
		again()
		d.Write(want)
		require.Eventually(t, func() bool { return d.leads().queue.Len() == 0 }, soon, step)
	}
	require.Equal(t, version, f.get(t, key).ResourceVersion)
	require.True(t, d.Pruned())

	// Our CRD is applied meanwhile.
	f.applyCRD(t, ourCRD)
	require.Eventually(t, func() bool {
		again()
		d.Write(want)
		return !d.Pruned() && f.get(t, key).Status.Standby == "b"
	}, soon, step)
}

// earlierCRD serves by a CRD of Egressway that has fewer fields of the status, and then by the present one.
func (f *fixture) earlierCRD(t *testing.T) {
	text, err := os.ReadFile(ourCRD)
	require.NoError(t, err)
	var crd map[string]any
	require.NoError(t, yaml.Unmarshal(text, &crd))
	versions, _, err := unstructured.NestedSlice(crd, "spec", "versions")
	require.NoError(t, err)
	for _, field := range []string{"observedGeneration", "ingressIPs"} {
		unstructured.RemoveNestedField(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "status", "properties", field)
	}
	require.NoError(t, unstructured.SetNestedSlice(crd, versions, "spec", "versions"))
	text, err = yaml.Marshal(crd)
	require.NoError(t, err)
	f.Apply(t, string(text))
	defer f.applyCRD(t, ourCRD)
	ns := f.namespace(t)
	d := f.daemon(t, ns, "a")
	key, o := f.service(t, d, ns, "web")
	leader(t, d)

	// The server may use the former CRD a little longer.
	host := "a"
	require.Eventually(t, func() bool {
		host += "a"
		d.Write(map[cluster.Key]Wanted{key: wanted(o, host)})
		return d.earlier.Load()
	}, soon, step)
	require.False(t, d.Pruned())
	require.True(t, d.Drops(cluster.KindEgressService))
	want := map[cluster.Key]Wanted{key: wanted(o, "a")}
	d.decides(t, want, func() bool {
		objects, _ := d.latest()
		return objects.EgressServices.At(key).Status.Host == "a" && f.get(t, key).Status.Host == "a"
	})
	version := f.get(t, key).ResourceVersion
	require.Zero(t, f.get(t, key).Status.ObservedGeneration)
	for range 10 {
		d.Write(want)
		require.Eventually(t, func() bool { return d.leads().queue.Len() == 0 }, soon, step)
	}
	require.Equal(t, version, f.get(t, key).ResourceVersion)

	f.applyCRD(t, ourCRD)
	require.Eventually(t, func() bool {
		term := d.leads()
		term.mu.Lock()
		term.services.probed = time.Time{}
		term.mu.Unlock()
		d.Write(want)
		return !d.earlier.Load() && f.get(t, key).Status.ObservedGeneration == 1
	}, soon, step)
}

func (f *fixture) labels(t *testing.T) {
	ns := f.namespace(t)
	d := f.daemon(t, ns, "a")
	leader(t, d)
	labels := func(node string) map[string]string {
		o, err := f.core.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		require.NoError(t, err)
		return o.Labels
	}
	become := func(want map[string][]string, a, b map[string]string) {
		t.Helper()
		require.Eventually(t, func() bool {
			d.Label(want)
			return len(relabel(labels("a"), want["a"])) == 0 && len(relabel(labels("b"), want["b"])) == 0
		}, soon, step)
		require.Equal(t, a, labels("a"))
		require.Equal(t, b, labels("b"))
	}
	edit := func(node, patch string) {
		_, err := f.core.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType,
			[]byte(`{"metadata":{"labels":`+patch+`}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	edit("a", `{"rack":"1"}`)
	web, batch := cluster.HostLabelPrefix+"shop-web", cluster.HostLabelPrefix+"shop-batch"
	want := map[string][]string{"a": {"shop-web", "shop-batch"}, "gone": {"shop-web"}}
	become(want, map[string]string{"rack": "1", web: "", batch: ""}, nil)
	edit("a", `{"`+web+`":"x","`+batch+`":null}`)
	edit("b", `{"`+web+`":""}`)
	become(want, map[string]string{"rack": "1", web: "", batch: ""}, nil)
	become(map[string][]string{"b": {"shop-web"}}, map[string]string{"rack": "1"}, map[string]string{web: ""})
	become(nil, map[string]string{"rack": "1"}, nil)
}

// TestStatuses follows one object's status through decisions and answers.
func TestStatuses(t *testing.T) {
	type status struct{ host, standby string } // the CRD drops the standby
	same := func(a, b status) bool { return a == b }
	kept := func(want, have status) bool { return want.host == have.host }
	s := newStatuses(same, kept)
	s.probed = time.Now()
	key := cluster.Key{Namespace: "shop", Name: "web"}
	decide := func(version uint64, want, stands status, other bool) bool {
		s.restart(func(cluster.Key) (uint64, bool) { return version, true })
		return s.decide(key, statusWrite[status]{want: want, version: version, stands: stands}, other)
	}
	next := func(due bool, version uint64, probe, claim bool) statusWrite[status] {
		t.Helper()
		w, is := s.next(key)
		require.Equal(t, []any{due, version, probe, claim}, []any{is, w.version, w.probe, w.claim})
		return w
	}
	answer := func(w statusWrite[status], version uint64, stands status) {
		w.version, w.stands = version, stands
		s.answered(key, w)
	}

	// It differs: written. Until the watch delivers the answer, nothing is due.
	require.True(t, decide(1, status{"a", "b"}, status{}, false))
	answer(next(true, 1, false, false), 2, status{"a", ""})
	require.True(t, decide(1, status{"a", "b"}, status{}, false))
	next(false, 2, false, false)
	// The next decision is written to the version of the answer.
	require.True(t, decide(1, status{"c", "b"}, status{}, false))
	answer(next(true, 2, false, false), 3, status{"c", ""})
	require.False(t, decide(3, status{"c", "b"}, status{"c", ""}, false), "what the CRD keeps is there")

	// Another program wrote it: the leader claims it, once.
	require.True(t, decide(4, status{"c", "b"}, status{"c", ""}, true))
	answer(next(true, 4, false, true), 5, status{"c", ""})
	require.False(t, decide(5, status{"c", "b"}, status{"c", ""}, true))
	require.True(t, decide(6, status{"c", "b"}, status{"c", ""}, true), "another wrote it again")
	answer(next(true, 6, false, true), 7, status{"c", ""})

	// A check whether the CRD keeps more is due until it is written, however often the leader decides before.
	s.probed = time.Time{}
	require.True(t, decide(8, status{"c", "b"}, status{"c", ""}, false))
	require.True(t, decide(8, status{"c", "b"}, status{"c", ""}, false))
	next(true, 8, true, false)
	require.False(t, decide(8, status{"c", "b"}, status{"c", ""}, false))
}
