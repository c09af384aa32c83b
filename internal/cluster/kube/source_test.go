package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/lab/kubetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// impatient holds the pauses of tests. The doubt is long enough to be seen. A server that refuses a token also closes the
// // connection, and HTTP/2 takes seconds to ask again.
var impatient = pauses{
	access: 20 * time.Millisecond, answer: 5 * time.Second, doubt: 500 * time.Millisecond, doubtMax: time.Second,
	deletion: 100 * time.Millisecond, unserved: 100 * time.Millisecond,
}

// reader is a Cluster that a test follows.
type reader struct {
	*Cluster
	log  *lines
	stop func() // also waits for the end
}

// read starts a Cluster that follows the kubeconfig's server, as node own.
func read(t *testing.T, kubeconfig string, edit ...func(*Options)) *reader {
	t.Helper()
	return readWith(t, impatient, kubeconfig, edit...)
}

// readWith is read with other pauses.
func readWith(t *testing.T, pauses pauses, kubeconfig string, edit ...func(*Options)) *reader {
	t.Helper()
	r := &reader{log: &lines{}}
	log := slog.New(slog.NewTextHandler(r.log, nil))
	options := Options{Kubeconfig: kubeconfig, Namespace: "default", Node: "own", Version: "test"}
	for _, f := range edit {
		f(&options)
	}
	r.Cluster = New(log, options, func() {})
	r.pauses = nodePauses(pauses)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	r.stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// count returns the number of lines that have all of the words.
func (l *lines) count(words ...string) (n int) {
	for line := range strings.Lines(l.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}

// until waits for objects and problems that satisfy a condition.
func (r *reader) until(t *testing.T, what string, ok func(o cluster.Objects, problems []cluster.Problem, synced bool) bool) {
	t.Helper()
	if !waitFor(t, func() bool {
		o, _, problems, synced := r.Objects()
		return ok(o, problems, synced)
	}) {
		_, _, problems, synced := r.Objects()
		require.Fail(t, what, "synced %t, problems %v", synced, problems)
	}
}

// waitFor is require.Eventually on the test's own goroutine.
func waitFor(t *testing.T, ok func() bool) bool {
	t.Helper()
	limit, poll := time.NewTimer(soon), time.NewTicker(step)
	defer limit.Stop()
	defer poll.Stop()
	for !ok() {
		select {
		case <-limit.C:
			return false
		case <-poll.C:
		}
	}
	return true
}

func (r *reader) objects(t *testing.T) cluster.Objects {
	t.Helper()
	o, synced := r.latest()
	require.True(t, synced)
	return o
}

// untilProblem waits for a problem with the API server, and returns its message.
func (r *reader) untilProblem(t *testing.T, object string, reason cluster.Reason) (message string) {
	t.Helper()
	r.until(t, string(reason), func(_ cluster.Objects, problems []cluster.Problem, _ bool) bool {
		for _, p := range problems {
			if p.Kind == kindAPI && strings.HasPrefix(p.Object, object) && p.Reason == reason {
				message = p.Message
				return true
			}
		}
		return false
	})
	require.NotEmpty(t, message)
	return message
}

// untilWell waits until there is no problem with the API server.
func (r *reader) untilWell(t *testing.T) {
	t.Helper()
	r.until(t, "all is well", func(_ cluster.Objects, problems []cluster.Problem, synced bool) bool {
		return synced && !slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Kind == kindAPI })
	})
}

// site is a server that the source's tests share.
type site struct {
	fixture
	kubeconfig string // the administrator's
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{fixture: fixture{Server: kubetest.Start(t, kubetest.Options{Args: []string{"-endpointslice=false", "-run-pods=false"}})}}
	s.kubeconfig = fileOf(t, s.Kubeconfig())
	var err error
	s.clients, err = newClients(Options{Kubeconfig: s.kubeconfig}, func(time.Duration) {}, func(netip.Addr) {})
	require.NoError(t, err)
	t.Cleanup(s.close)
	return s
}

func fileOf(t *testing.T, text []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return file
}

func TestSource(t *testing.T) {
	s := newSite(t)
	s.Apply(t, `{apiVersion: v1, kind: Node, metadata: {name: own}, status: {addresses: [{type: InternalIP, address: 10.0.0.1}]}}`)
	t.Run("CRD missing", s.crdMissing) // installs it
	t.Run("every kind", s.everyKind)
	t.Run("current", s.current)
	t.Run("names", s.names)
	t.Run("unreadable", s.unreadable)
	t.Run("random", s.random)
	t.Run("kubeconfig", s.kubeconfigs)
	t.Run("forbidden", s.forbidden)
	t.Run("old server", s.oldServer)
	t.Run("clock", s.clock)
	t.Run("lies", s.lies)
	t.Run("own node", s.ownNode)
	t.Run("pods", s.pods)
	t.Run("silent", s.silent)
	t.Run("killed", func(t *testing.T) { s.outage(t, s.Kill, s.Up) })
	t.Run("frozen", func(t *testing.T) { s.outage(t, s.Freeze, s.Thaw) })
	t.Run("deleted at once", s.deletedAtOnce)
	t.Run("optional kind", s.optional)
	t.Run("first snapshot", s.firstSnapshot)
	t.Run("forbidden kind", s.forbiddenKind)
	t.Run("CRD deleted", s.crdDeleted)
}

const webService = `{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {name: web, namespace: default}}`

var web = cluster.Key{Namespace: "default", Name: "web"}

func (s *site) crdMissing(t *testing.T) {
	r := read(t, s.kubeconfig)
	message := r.untilProblem(t, egressResource, ReasonCRDMissing)
	require.Contains(t, message, "this CRD is not installed")
	r.until(t, "everything else", func(cluster.Objects, []cluster.Problem, bool) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return !slices.ContainsFunc(r.kinds[1:], func(f follower) bool { return !f.isSynced() })
	})
	_, synced := r.latest()
	require.False(t, synced)
	s.applyCRD(t, ourCRD)
	r.untilWell(t)
	require.Equal(t, 1, r.log.count("level=WARN", string(ReasonCRDMissing)), r.log)
	require.Equal(t, 1, r.log.count("problem gone", string(ReasonCRDMissing)), r.log)
}

// everyKind checks that creations, changes and deletions of each kind arrive.
func (s *site) everyKind(t *testing.T) {
	r := read(t, s.kubeconfig)
	r.untilWell(t)
	for _, step := range []struct {
		apply, remove string
		status        string // of web, written by the leader
		ok            func(o cluster.Objects) bool
	}{
		{apply: `
apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {name: web, namespace: default}
spec: {network: red, nodeSelector: {matchLabels: {a: b}}}
`, ok: func(o cluster.Objects) bool { return o.EgressServices.At(web).Network == "red" }},
		{status: `{"host": "own", "standby": "b", "term": 3}`, ok: func(o cluster.Objects) bool {
			e := o.EgressServices.At(web)
			return e.Network == "red" && e.Status.Host == "own" && e.Status.Standby == "b" && e.Status.Term == 3 &&
				e.NodeSelector.MatchLabels["a"] == "b" && e.UID != "" && !e.Created.IsZero() && e.Generation == 1 && e.Version > 0
		}},
		{apply: `
apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {name: web, namespace: default}
spec: {network: blue}
`, ok: func(o cluster.Objects) bool { return o.EgressServices.At(web).Network == "blue" }},
		{apply: `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {type: LoadBalancer, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.10}]}}
`, ok: func(o cluster.Objects) bool {
			w := o.Services.At(web)
			return w.LoadBalancer && len(w.ClusterIPs) == 1 && len(w.Ingress) == 1 && w.Ingress[0].IP == "192.0.2.10"
		}},
		{apply: `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {type: ClusterIP, ports: [{port: 80}]}
`, ok: func(o cluster.Objects) bool {
			_, there := o.Services.Get(web)
			return there && !o.Services.At(web).LoadBalancer
		}},
		{apply: endpointSlice("web-1", "web", "10.244.0.1", "10.244.0.2"), ok: endpointsAre("10.244.0.1", "10.244.0.2")},
		{apply: endpointSlice("web-0", "web", "10.244.0.3", "10.244.0.2"), ok: endpointsAre("10.244.0.3", "10.244.0.2", "10.244.0.1")},
		{apply: endpointSlice("web-1", "web", "10.244.0.4"), ok: endpointsAre("10.244.0.3", "10.244.0.2", "10.244.0.4")},
		{apply: endpointSlice("web-0", "other", "10.244.0.3"), ok: endpointsAre("10.244.0.4")},
		{remove: endpointSlice("web-1", "web"), ok: func(o cluster.Objects) bool { _, there := o.Endpoints.Get(web); return !there }},
		{remove: endpointSlice("web-0", "other"), ok: func(o cluster.Objects) bool { return o.Endpoints.Len() == 0 || o.Endpoints.At(web) == nil }},
		{
			apply: `{apiVersion: v1, kind: Node, metadata: {name: b, labels: {zone: x}}, status: {addresses: [{type: InternalIP, address: 10.0.0.2}], conditions: [{type: Ready, status: "True"}]}}`,
			ok:    func(o cluster.Objects) bool { return o.Nodes.At("b").Ready && o.Nodes.At("b").Labels["zone"] == "x" },
		},
		{
			apply: `{apiVersion: v1, kind: Node, metadata: {name: b}, status: {conditions: [{type: Ready, status: Unknown}]}}`,
			ok:    func(o cluster.Objects) bool { _, there := o.Nodes.Get("b"); return there && !o.Nodes.At("b").Ready },
		},
		{
			apply: `{apiVersion: v1, kind: Node, metadata: {name: b}, spec: {unschedulable: true}}`,
			ok:    func(o cluster.Objects) bool { return o.Nodes.At("b").Cordoned },
		},
		{
			apply: `{apiVersion: v1, kind: Node, metadata: {name: b}, spec: {unschedulable: false}}`,
			ok:    func(o cluster.Objects) bool { return !o.Nodes.At("b").Cordoned },
		},
		{
			apply: `{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: x}}}`,
			ok:    func(o cluster.Objects) bool { return o.Namespaces.At("shop").Labels["team"] == "x" },
		},
		{
			apply: `{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: more}, spec: {cidrs: [10.200.0.0/16]}}`,
			ok: func(o cluster.Objects) bool {
				return slices.Contains(o.ServiceCIDRs, netip.MustParsePrefix("10.200.0.0/16")) && len(o.ServiceCIDRs) > 1
			},
		},
		{
			remove: `{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: more}}`,
			ok: func(o cluster.Objects) bool {
				return !slices.Contains(o.ServiceCIDRs, netip.MustParsePrefix("10.200.0.0/16"))
			},
		},
		{
			remove: `{apiVersion: v1, kind: Node, metadata: {name: b}}`,
			ok:     func(o cluster.Objects) bool { _, there := o.Nodes.Get("b"); return !there },
		},
		{
			remove: `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}}`,
			ok:     func(o cluster.Objects) bool { _, there := o.Services.Get(web); return !there },
		},
		{remove: webService, ok: func(o cluster.Objects) bool { _, there := o.EgressServices.Get(web); return !there }},
	} {
		before := r.objects(t)
		kept := fmt.Sprintf("%+v", before)
		switch {
		case step.apply != "":
			s.Apply(t, step.apply)
		case step.status != "":
			s.patch(t, leaderManager, web, step.status)
		default:
			s.Delete(t, step.remove)
		}
		r.until(t, step.apply+step.remove, func(o cluster.Objects, _ []cluster.Problem, synced bool) bool { return synced && step.ok(o) })
		require.Equal(t, kept, fmt.Sprintf("%+v", before), "what was handed out stays as it was")
	}
	require.Zero(t, r.log.count("level=WARN"), r.log)
}

func endpointSlice(name, service string, addresses ...string) string {
	var list []string
	for _, a := range addresses {
		list = append(list, fmt.Sprintf("{addresses: [%s], nodeName: own}", a))
	}
	return fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, endpoints: [%s],
metadata: {name: %s, namespace: default, labels: {kubernetes.io/service-name: %s}}}`, strings.Join(list, ","), name, service)
}

func endpointsAre(addresses ...string) func(o cluster.Objects) bool {
	return func(o cluster.Objects) bool {
		var have []string
		for _, e := range o.Endpoints.At(web) {
			have = append(have, e.Address)
		}
		return slices.Equal(have, addresses)
	}
}

// names checks that an EgressService with a name that no Service can have is kept, so that its status can report it.
func (s *site) names(t *testing.T) {
	long := cluster.Key{Namespace: "default", Name: strings.Repeat("x", 64)}
	dotted := cluster.Key{Namespace: "default", Name: "a.b"}
	r := read(t, s.kubeconfig)
	for _, key := range []cluster.Key{long, dotted} {
		text := fmt.Sprintf(`{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {name: %s, namespace: default}}`, key.Name)
		s.Apply(t, text)
		told := func(problems []cluster.Problem) bool {
			return slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Object == key.String() && p.Field == "metadata.name" })
		}
		r.until(t, key.Name, func(o cluster.Objects, problems []cluster.Problem, _ bool) bool {
			_, there := o.EgressServices.Get(key)
			return there && told(problems)
		})
		s.Delete(t, text)
		r.until(t, "gone", func(o cluster.Objects, problems []cluster.Problem, _ bool) bool {
			_, there := o.EgressServices.Get(key)
			return !there && !told(problems)
		})
	}
}

// unreadable checks that a value which the API server admits and Go does not read hides no other object.
func (s *site) unreadable(t *testing.T) {
	odd := cluster.Key{Namespace: "default", Name: "odd"}
	oddService := strings.Replace(webService, "web", "odd", 1)
	s.Apply(t, webService, oddService)
	patch := func(status string) {
		t.Helper()
		require.NoError(t, s.egress.Patch(types.MergePatchType).Namespace(odd.Namespace).Resource("egressservices").Name(odd.Name).
			SubResource("status").Body([]byte(`{"status":`+status+`}`)).Do(t.Context()).Error())
	}
	patch(`{"host":"own","term":2}`)
	early := read(t, s.kubeconfig)
	early.untilWell(t)
	_, err := s.egress.Patch(types.MergePatchType).Namespace(odd.Namespace).Resource("egressservices").Name(odd.Name).SubResource("status").Body(
		[]byte(`{"status":{"conditions":[{"type":"X","status":"True","reason":"X","message":"","lastTransitionTime":"2026-01-01t00:00:00z"}]}}`),
	).Do(t.Context()).Raw()
	require.NoError(t, err)
	told := func(problems []cluster.Problem) bool {
		return slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Object == odd.String() && p.Field == "status" })
	}
	for _, r := range []*reader{early, read(t, s.kubeconfig)} {
		r.until(t, "told", func(o cluster.Objects, problems []cluster.Problem, synced bool) bool {
			_, there := o.EgressServices.Get(web)
			return synced && there && o.EgressServices.At(odd).Status.Host == "own" && o.EgressServices.At(odd).Status.Term == 2 && told(problems)
		})
		r.untilWell(t)
	}
	patch(`{"host":"own","conditions":null}`)
	early.until(t, "mended", func(_ cluster.Objects, problems []cluster.Problem, _ bool) bool { return !told(problems) })
	s.Delete(t, webService, oddService)
}

// random checks that after many changes the objects equal those of a direct list.
func (s *site) random(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeated
	r := read(t, s.kubeconfig)
	r.untilWell(t)
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	number := func(n int) int { return random.IntN(n) }
	for range 200 {
		name := pick("a", "b", "c", "d")
		text := map[string]func() string{
			"egressservice": func() string {
				return fmt.Sprintf(`{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {name: %s, namespace: default},
spec: {network: %s, sourceIPBy: %s}}`, name, pick("red", "blue"), pick("Network", "LoadBalancerIP"))
			},
			"service": func() string {
				return fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: default}, spec: {type: %s, ports: [{port: %d}]}}`,
					name, pick("LoadBalancer", "ClusterIP"), 1+number(9))
			},
			"slice": func() string {
				return endpointSlice("s-"+pick("1", "2", "3", "4", "5"), name, fmt.Sprint("10.244.0.", 1+number(9)), fmt.Sprint("10.244.1.", 1+number(9)))
			},
			"node": func() string {
				return fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: n-%s, labels: {l: x%d}}, status: {addresses: [{type: InternalIP, address: 10.0.0.%d}], conditions: [{type: Ready, status: %q}]}}`,
					name, number(3), 1+number(9), pick("True", "False"))
			},
			"namespace": func() string {
				return fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: ns-%s, labels: {l: x%d}}}`, name, number(3))
			},
		}[pick("egressservice", "service", "slice", "slice", "node", "namespace")]()
		if number(3) == 0 && !strings.Contains(text, "kind: Namespace") { // namespaces are slow
			if err := s.API.Delete(t.Context(), text); err != nil {
				require.Contains(t, err.Error(), "not found")
			}
		} else {
			s.Apply(t, text)
			if strings.Contains(text, "kind: EgressService") {
				s.patch(t, leaderManager, cluster.Key{Namespace: "default", Name: name}, fmt.Sprintf(`{"host":%q,"term":%d}`, pick("own", "b"), 1+number(9)))
			}
		}
	}
	server, err := url.Parse(s.server)
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{netip.MustParseAddr(server.Hostname())}, r.Reached())
	want := s.direct(t)
	r.until(t, "the same", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool { return reflect.DeepEqual(want, o) })
}

// direct converts lists to objects.
func (s *site) direct(t *testing.T) cluster.Objects {
	t.Helper()
	var o cluster.Objects
	var egress egressv1.EgressServiceList
	require.NoError(t, s.egress.Get().Resource("egressservices").Do(t.Context()).Into(&egress))
	for i := range egress.Items {
		key, e, _, ok := cluster.FromEgressService(&egress.Items[i])
		require.True(t, ok)
		var err error
		e.Version, err = strconv.ParseUint(egress.Items[i].ResourceVersion, 10, 64)
		require.NoError(t, err)
		e.Writer = cluster.WriterLeader
		o.EgressServices = o.EgressServices.With(key, e)
	}
	each(t, s.core.CoreV1().Services("").List, func(l *corev1.ServiceList) []corev1.Service { return l.Items }, func(x *corev1.Service) {
		key, service, _, _ := cluster.FromService(x)
		o.Services = o.Services.With(key, service)
	})
	each(t, s.core.DiscoveryV1().EndpointSlices("").List, func(l *discoveryv1.EndpointSliceList) []discoveryv1.EndpointSlice { return l.Items },
		func(x *discoveryv1.EndpointSlice) {
			if key, endpoints := cluster.FromSlice(x); len(endpoints) > 0 {
				o.Endpoints = o.Endpoints.With(key, cluster.CompactEndpoints(append(o.Endpoints.At(key), endpoints...)))
			}
		})
	each(t, s.core.CoreV1().Nodes().List, func(l *corev1.NodeList) []corev1.Node { return l.Items }, func(x *corev1.Node) {
		name, n, _, _ := cluster.FromNode(x)
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		o.Nodes = o.Nodes.With(name, n)
	})
	each(t, s.core.CoreV1().Namespaces().List, func(l *corev1.NamespaceList) []corev1.Namespace { return l.Items }, func(x *corev1.Namespace) {
		name, n, _, _ := cluster.FromNamespace(x)
		o.Namespaces = o.Namespaces.With(name, n)
	})
	cidrs, err := s.core.NetworkingV1().ServiceCIDRs().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range cidrs.Items {
		prefixes, _ := cluster.FromServiceCIDR(&cidrs.Items[i])
		o.ServiceCIDRs = append(o.ServiceCIDRs, prefixes...)
	}
	return o
}

func each[L, O any](t *testing.T, list func(context.Context, metav1.ListOptions) (L, error), items func(L) []O, do func(*O)) {
	t.Helper()
	all, err := list(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, x := range items(all) {
		do(&x)
	}
}

// current checks that a Cluster detects that its watches have not delivered everything.
func (s *site) current(t *testing.T) {
	r := read(t, s.kubeconfig)
	r.untilWell(t)
	s.Apply(t, webService)
	r.until(t, "the new object", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
		_, ok := o.EgressServices.Get(web)
		return ok
	})
	require.NoError(t, r.Current(t.Context()))
	known := func(change func(all *cluster.Draft[cluster.Key, cluster.EgressService])) {
		r.mu.Lock()
		defer r.mu.Unlock()
		change(&r.egressServices.objects)
	}
	var as cluster.EgressService
	known(func(all *cluster.Draft[cluster.Key, cluster.EgressService]) {
		as = all.At(web)
		older := as
		older.Version--
		all.Set(web, older)
	})
	require.ErrorIs(t, r.Current(t.Context()), errBehind, "an older version")
	known(func(all *cluster.Draft[cluster.Key, cluster.EgressService]) { all.Delete(web) })
	require.ErrorIs(t, r.Current(t.Context()), errBehind, "one less")
	known(func(all *cluster.Draft[cluster.Key, cluster.EgressService]) {
		all.Set(web, as)
		all.Set(cluster.Key{Namespace: "default", Name: "gone"}, as)
	})
	require.ErrorIs(t, r.Current(t.Context()), errBehind, "one more")
	known(func(all *cluster.Draft[cluster.Key, cluster.EgressService]) {
		all.Delete(cluster.Key{Namespace: "default", Name: "gone"})
	})
	require.NoError(t, r.Current(t.Context()))
}
