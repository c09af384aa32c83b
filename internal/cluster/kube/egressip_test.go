package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
)

const (
	ipCRD         = "../../../config/crd/k8s.ovn.org_egressips.yaml"
	upstreamIPCRD = "testdata/upstream-egressips.yaml"
)

var teamKey = cluster.Key{Name: "team"}

// anEgressIP returns the EgressIP of namespaces with a label of the daemon's namespace, of which the test may have many.
func anEgressIP(namespace string) string {
	return fmt.Sprintf(`{apiVersion: k8s.ovn.org/v1, kind: EgressIP, metadata: {name: team},
  spec: {egressIPs: [192.0.2.33, 192.0.2.34], namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}, podSelector: {matchLabels: {app: web}}}}`, namespace)
}

func (f *fixture) egressIP(t *testing.T) (o egressv1.EgressIP) {
	t.Helper()
	require.NoError(t, f.egress.Get().Resource("egressips").Name("team").Do(t.Context()).Into(&o))
	return o
}

// writeAs patches the items as another program.
func (f *fixture) writeAs(t *testing.T, manager, items string) {
	t.Helper()
	require.NoError(t, f.egress.Patch(types.MergePatchType).Resource("egressips").Name("team").Param("fieldManager", manager).
		Body([]byte(`{"status": {"items": `+items+`}}`)).Do(t.Context()).Error())
}

func wantedItems(o *egressv1.EgressIP, host, standby string) WantedItems {
	return WantedItems{
		UID: string(o.UID),
		Items: []cluster.Holder{
			{Addr: netip.MustParseAddr("192.0.2.33"), Host: host, Standby: standby, Term: 2},
			{Addr: netip.MustParseAddr("192.0.2.34"), Host: standby, Standby: host, Term: 1},
		},
		Conditions: []metav1.Condition{{Type: "Assigned", Status: metav1.ConditionTrue, Reason: "Elected", Message: host}},
	}
}

// items checks that the leader writes statuses of EgressIPs, each once, that daemons obey no other writer, and what the CRD of
// OVN-Kubernetes keeps.
func (f *fixture) items(t *testing.T) {
	f.applyCRD(t, ipCRD)
	ns := f.namespace(t)
	d, follower := f.daemon(t, ns, "a"), f.daemon(t, ns, "b")
	if leader(t, d, follower) == follower {
		d, follower = follower, d
	}
	f.Apply(t, anEgressIP(ns))
	defer f.Delete(t, anEgressIP(ns))
	holders := func(d *daemon) []cluster.Holder {
		objects, _ := d.latest()
		return objects.EgressIPs.At(teamKey).Holders
	}
	written := func(o egressv1.EgressIP) []cluster.Holder { return cluster.HoldersOf(o.Status.Items) }
	writes := func(want WantedItems) (o egressv1.EgressIP) {
		t.Helper()
		require.Eventually(t, func() bool {
			d.WriteItems(map[cluster.Key]WantedItems{teamKey: want, {Name: "gone"}: want})
			want.Events, o = nil, f.egressIP(t)
			return slices.Equal(written(o), want.Items) && slices.Equal(holders(d), want.Items) && slices.Equal(holders(follower), want.Items) &&
				d.leads().queue.Len() == 0
		}, soon, step)
		return o
	}
	created := f.egressIP(t)
	want := wantedItems(&created, "a", "b")
	first := writes(want)
	for range 10 {
		writes(want)
	}
	require.Equal(t, first.ResourceVersion, f.egressIP(t).ResourceVersion, "a status that is right is not written again")
	require.Equal(t, "Assigned", first.Status.Conditions[0].Type)
	require.False(t, d.PrunedItems())

	// Another program writes: daemons follow the former items until the leader has put them right.
	stands := func(d *daemon) []cluster.Holder {
		objects, _ := d.latest()
		return objects.EgressIPs.At(teamKey).Stands()
	}
	for _, items := range []string{`[{"egressIP": "192.0.2.33", "node": "mallory"}]`, `[]`} {
		f.writeAs(t, "mallory", items)
		require.Eventually(t, func() bool { return !slices.Equal(stands(follower), want.Items) }, soon, step)
		require.Equal(t, want.Items, holders(follower))
		require.Equal(t, want.Items, holders(d))
		writes(want)
	}
	// It writes what the leader wants next: the leader makes itself the writer.
	next := wantedItems(&created, "c", "b")
	f.writeAs(t, "mallory", `[{"egressIP": "192.0.2.33", "node": "c", "standby": "b", "term": 2}, {"egressIP": "192.0.2.34", "node": "b", "standby": "c", "term": 1}]`)
	writes(next)

	// Events are written once, in the namespace of those of objects without one.
	next.Events = []Event{{Warning: true, Reason: "UnassignedRequest", Message: "no node"}}
	d.WriteItems(map[cluster.Key]WantedItems{teamKey: next})
	require.Eventually(t, func() bool {
		list, err := f.core.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.Reason == "UnassignedRequest" && e.InvolvedObject.Kind == "EgressIP" && e.InvolvedObject.UID == first.UID
		})
	}, soon, step)
	next.Events = nil

	// OVN-Kubernetes' CRD drops the rest. The server may use the former CRD a little longer.
	f.applyCRD(t, upstreamIPCRD)
	defer f.applyCRD(t, ipCRD)
	bare := func(all []cluster.Holder) (bare []cluster.Holder) {
		for _, h := range all {
			bare = append(bare, cluster.Holder{Addr: h.Addr, Host: h.Host})
		}
		return bare
	}
	for n := 0; !d.PrunedItems(); n++ {
		want = wantedItems(&created, []string{"a", "b"}[n%2], []string{"b", "a"}[n%2])
		require.Eventually(t, func() bool {
			d.WriteItems(map[cluster.Key]WantedItems{teamKey: want})
			return slices.Equal(bare(written(f.egressIP(t))), bare(want.Items)) && slices.Equal(bare(holders(d)), bare(want.Items))
		}, soon, step)
	}
	version := f.egressIP(t).ResourceVersion
	for range 10 {
		d.WriteItems(map[cluster.Key]WantedItems{teamKey: want})
	}
	require.Eventually(t, func() bool { return d.leads().queue.Len() == 0 }, soon, step)
	require.Equal(t, version, f.egressIP(t).ResourceVersion, "what the CRD keeps is right")
}

// members checks that the leader writes the pods that an EgressIP selects, and that a daemon reads them without following the Pods of other
// nodes.
func (f *fixture) members(t *testing.T) {
	f.applyCRD(t, ipCRD)
	ns := f.namespace(t)
	d, follower := f.daemon(t, ns, "a"), f.daemon(t, ns, "b")
	if leader(t, d, follower) == follower {
		d, follower = follower, d
	}
	pod := func(name, node, address string) {
		t.Helper()
		p, err := f.core.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "it", Image: "it"}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		p.Status.PodIPs, p.Status.PodIP = []corev1.PodIP{{IP: address}}, address
		_, err = f.core.CoreV1().Pods(ns).UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	all := func() []discoveryv1.EndpointSlice {
		list, err := f.core.DiscoveryV1().EndpointSlices(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "egressway.io/egressip=team"})
		require.NoError(t, err)
		return list.Items
	}
	sees := func(addresses ...string) {
		t.Helper()
		for _, d := range []*daemon{d, follower} {
			var have []string
			require.Eventually(t, func() bool {
				objects, _, _, _ := d.Objects()
				have = nil
				for _, m := range objects.Members.At(teamKey) {
					have = append(have, m.Addr.String())
				}
				for _, p := range objects.Pods.All() {
					require.Equal(t, d.options.Node, p.Node, "a daemon has the Pods of its node only")
				}
				return slices.Equal(have, addresses)
			}, soon, step, "%v", &have)
		}
	}
	pod("p1", "a", "10.244.1.1")
	pod("p2", "c", "10.244.3.1")
	f.Apply(t, anEgressIP(ns))
	sees("10.244.1.1", "10.244.3.1")
	require.Len(t, all(), 1)
	require.Equal(t, "egressway", all()[0].Labels["service.kubernetes.io/service-proxy-name"], "kube-proxy does not watch it")
	pod("p3", "c", "fd44::3")
	sees("10.244.1.1", "10.244.3.1") // the object has no IPv6 address
	pod("p4", "c", "10.244.3.4")
	sees("10.244.1.1", "10.244.3.1", "10.244.3.4")

	// A label goes.
	_, err := f.core.CoreV1().Pods(ns).Patch(t.Context(), "p2", types.MergePatchType, []byte(`{"metadata": {"labels": {"app": "db"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	sees("10.244.1.1", "10.244.3.4")

	// Another program removes the label of the slice, and its annotation.
	require.Len(t, all(), 1)
	slice := all()[0]
	for _, part := range []string{"labels", "annotations"} {
		patch := fmt.Sprintf(`{"metadata": {%q: {"egressway.io/egressip": null}}, "endpoints": []}`, part)
		_, err = f.core.DiscoveryV1().EndpointSlices(ns).Patch(t.Context(), slice.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
		require.True(t, waitFor(t, func() bool {
			return len(all()) == 1 && len(all()[0].Endpoints) == 2 && maps.Equal(all()[0].Annotations, slice.Annotations)
		}), part)
		sees("10.244.1.1", "10.244.3.4")
	}

	// Another program changes the slice, and deletes it; a tenant makes one.
	_, err = f.core.DiscoveryV1().EndpointSlices(ns).Patch(t.Context(), slice.Name, types.MergePatchType, []byte(`{"endpoints": []}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(all()) == 1 && len(all()[0].Endpoints) == 2 }, soon, step)
	require.NoError(t, f.core.DiscoveryV1().EndpointSlices(ns).Delete(t.Context(), slice.Name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return len(all()) == 1 && len(all()[0].Endpoints) == 2 }, soon, step)
	other := f.namespace(t)
	theirs := slice.DeepCopy()
	theirs.ObjectMeta = metav1.ObjectMeta{Namespace: other, Name: slice.Name, Labels: slice.Labels, Annotations: slice.Annotations}
	theirs.Endpoints[0].Addresses = []string{"10.244.9.9"}
	_, err = f.core.DiscoveryV1().EndpointSlices(other).Create(t.Context(), theirs, metav1.CreateOptions{})
	require.NoError(t, err)
	pod("p5", "b", "10.244.2.5")
	sees("10.244.1.1", "10.244.2.5", "10.244.3.4")

	// The next leader goes on where this one stopped, and deletes what is stale.
	d.stop()
	d = leader(t, follower)
	sees("10.244.1.1", "10.244.2.5", "10.244.3.4")
	f.Delete(t, anEgressIP(ns))
	require.Eventually(t, func() bool { return len(all()) == 0 }, soon, step)
}

// movingMembers has members move from their slices to another one, which cannot be written at first: the former slices stay until it is.
func (f *fixture) movingMembers(t *testing.T) {
	ns := f.namespace(t)
	to := f.core.DiscoveryV1().EndpointSlices(ns)
	have, pods, changed := map[string]cluster.MemberSlice{}, map[cluster.Key]cluster.Pod{}, map[cluster.Key]bool{}
	for i := range 6 {
		key, addr := cluster.Key{Namespace: ns, Name: fmt.Sprint("p", i)}, netip.AddrFrom4([4]byte{10, 244, 1, byte(i)})
		pods[key], changed[key] = cluster.Pod{Node: "a", Addresses: []netip.Addr{addr}}, true
		have[fmt.Sprint("slice-", i)] = cluster.MemberSlice{Members: []cluster.Member{{Addr: addr, Node: "a", Namespace: ns}}}
	}
	m := &memberKeeper{
		term: &term{Cluster: &Cluster{options: Options{Namespace: ns}}, clients: f.clients}, written: map[string]writtenSlice{},
	}
	every := cluster.EgressIP{IPv4: true, Namespaces: labels.Everything(), Pods: labels.Everything()}
	m.selection.Update(cluster.MapOf(map[cluster.Key]cluster.EgressIP{teamKey: every}), cluster.Map[string, cluster.Namespace]{}, cluster.MapOf(pods), changed)
	put, gone := cluster.PackMembers(teamKey.Name, have, m.selection.Of(teamKey))
	require.Len(t, put, 1)
	require.NotEmpty(t, gone)
	create := func(name string, s cluster.MemberSlice) {
		t.Helper()
		_, err := to.Create(t.Context(), s.EndpointSlice(ns, name, teamKey.Name), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	count := func() (n [2]int) { // slices, and their members
		list, err := to.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		n[0] = len(list.Items)
		for i := range list.Items {
			n[1] += len(list.Items[i].Endpoints)
		}
		return n
	}
	var next string
	for name, s := range have {
		if _, puts := put[name]; puts {
			next, s = name, cluster.MemberSlice{IPv6: true} // another family: the API server refuses the members
		}
		create(name, s)
	}
	require.Error(t, m.write(t.Context(), teamKey, have))
	require.Equal(t, [2]int{len(have), len(have) - 1}, count(), "no member is lost")
	require.NoError(t, to.Delete(t.Context(), next, metav1.DeleteOptions{}))
	create(next, have[next])
	require.NoError(t, m.write(t.Context(), teamKey, have))
	require.Equal(t, [2]int{len(have) - len(gone), len(have)}, count())
}

// TestBadEgressIPs reads objects that a CRD without a schema admits.
func TestBadEgressIPs(t *testing.T) {
	for _, test := range []struct {
		name, spec, status string
		kept               bool
		fields             []string // of problems
	}{
		{"good", `{"egressIPs": ["192.0.2.1"], "namespaceSelector": {}}`, `{"items": [{"egressIP": "192.0.2.1", "node": "a"}]}`, true, nil},
		{"no status", `{"egressIPs": ["192.0.2.1"], "namespaceSelector": {}}`, ``, true, nil},
		{"a status of another type", `{"egressIPs": ["192.0.2.1"], "namespaceSelector": {}}`, `{"items": 1}`, true, []string{"status"}},
		{"no spec", ``, ``, false, []string{"spec"}},
		{"no namespaceSelector", `{"egressIPs": ["192.0.2.1"]}`, ``, false, []string{"spec"}},
		{"addresses of another type", `{"egressIPs": "192.0.2.1", "namespaceSelector": {}}`, ``, false, []string{"spec"}},
		{"one bad address", `{"egressIPs": ["192.0.2.1", "x"], "namespaceSelector": {}}`, ``, true, []string{"spec.egressIPs[1]"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newTold(t)
			c.sync(t)
			bad := &custom.Object{Spec: []byte(test.spec), Status: []byte(test.status)}
			bad.Name = "bad"
			good := &custom.Object{Spec: []byte(`{"egressIPs": ["192.0.2.9"], "namespaceSelector": {}}`)}
			good.Name = "good"
			require.NoError(t, c.egressIPs.Replace([]any{bad, good}, ""))
			require.NoError(t, c.pods.Replace(nil, ""))
			o, _, problems, ok := c.Objects()
			require.True(t, ok)
			_, kept := o.EgressIPs.Get(cluster.Key{Name: "bad"})
			require.Equal(t, test.kept, kept)
			require.Len(t, o.EgressIPs.At(cluster.Key{Name: "good"}).Addresses, 1, "others are served")
			var fields []string
			for _, p := range problems {
				require.Equal(t, "EgressIP", p.Kind)
				fields = append(fields, p.Field)
			}
			require.Equal(t, test.fields, fields, "%v", problems)
		})
	}
}

// TestForbiddenEgressIPs finds that a daemon which may not list EgressIPs does not wait for them, and keeps those that it knows.
func TestForbiddenEgressIPs(t *testing.T) {
	c := newTold(t)
	require.False(t, c.egressIPs.isSynced())
	c.egressIPs.unread()
	require.True(t, c.egressIPs.isSynced())
	require.False(t, c.egressIPs.served)
	o := &custom.Object{Spec: []byte(`{"egressIPs": ["192.0.2.9"], "namespaceSelector": {}}`)}
	o.Name = "team"
	require.NoError(t, c.egressIPs.Replace([]any{o}, ""))
	require.True(t, c.egressIPs.served)
	c.egressIPs.unread()
	require.Equal(t, 1, c.egressIPs.objects.Map().Len())
}
