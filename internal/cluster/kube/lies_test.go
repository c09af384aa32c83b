package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/egressway/egressway/internal/cluster"
)

// proxy stands between a Cluster and the server, and falsifies answers.
type proxy struct {
	kubeconfig string

	mu      sync.Mutex
	ahead   time.Duration // of its clock
	unknown string        // resource with answer 404
	denied  []string      // resources with answer 403
	blind   string        // resource with an empty answer
	refused int           // how often it answered so
	silent  string        // resource without an answer
	without map[string][]string
	times   int // number of lists to come without the objects of without
	lists   int // number of lists so far
	watches map[string][]context.CancelFunc
}

func newProxy(t *testing.T, s *site) *proxy {
	t.Helper()
	p := &proxy{watches: map[string][]context.CancelFunc{}, without: map[string][]string{}}
	server, err := url.Parse(s.Config().Host)
	require.NoError(t, err)
	transport, err := rest.TransportFor(s.Config())
	require.NoError(t, err)
	pass := &httputil.ReverseProxy{
		Transport:      transport,
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(server) },
		ModifyResponse: p.modify,
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { p.serve(w, q, pass) }))
	t.Cleanup(func() {
		p.mu.Lock()
		for resource := range p.watches {
			p.cut(resource)
		}
		p.mu.Unlock()
		front.CloseClientConnections()
		front.Close()
	})
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"x": {Server: front.URL}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"x": {}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "x", AuthInfo: "x"}},
		CurrentContext: "x",
	})
	require.NoError(t, err)
	p.kubeconfig = fileOf(t, text)
	return p
}

// resource returns the resource in the path of a list or watch.
func resourceOf(path string) string { return path[strings.LastIndex(path, "/")+1:] }

func (p *proxy) serve(w http.ResponseWriter, q *http.Request, pass http.Handler) {
	resource, watches := resourceOf(q.URL.Path), q.URL.Query().Get("watch") != ""
	p.mu.Lock()
	answer := 0
	silent := resource == p.silent
	switch {
	case silent:
	case resource == p.unknown:
		answer = http.StatusNotFound
	case slices.Contains(p.denied, resource):
		answer = http.StatusForbidden
	case resource == p.blind:
		answer = http.StatusServiceUnavailable
		p.refused++
	case q.URL.Query().Get("sendInitialEvents") != "":
		answer = http.StatusUnprocessableEntity // lists are plain lists here, not watches
	}
	if answer == 0 && (watches || silent) {
		ctx, cancel := context.WithCancel(q.Context())
		q = q.WithContext(ctx)
		p.watches[resource] = append(p.watches[resource], cancel)
	}
	p.mu.Unlock()
	if answer != 0 {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(answer)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(answer),
			Reason: map[int]metav1.StatusReason{
				http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusUnprocessableEntity: metav1.StatusReasonInvalid,
				http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable, http.StatusForbidden: metav1.StatusReasonForbidden,
			}[answer],
		})
		return
	}
	if !watches {
		q.Header.Set("Accept", "application/json") // JSON is easily edited
		q.Header.Del("Accept-Encoding")
	}
	if silent {
		<-q.Context().Done()
		return
	}
	pass.ServeHTTP(w, q)
}

func (p *proxy) modify(r *http.Response) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ahead != 0 {
		r.Header.Set("Date", time.Now().Add(p.ahead).UTC().Format(http.TimeFormat))
	}
	names, lies := p.without[resourceOf(r.Request.URL.Path)]
	if r.Request.URL.Query().Get("watch") != "" || r.StatusCode != http.StatusOK || !lies {
		return nil
	}
	p.lists++
	if p.times <= 0 {
		return nil
	}
	p.times--
	var list struct {
		metav1.TypeMeta
		Metadata json.RawMessage  `json:"metadata"`
		Items    []map[string]any `json:"items"`
	}
	if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
		return fmt.Errorf("decode list: %w", err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(o map[string]any) bool {
		name, _ := o["metadata"].(map[string]any)["name"].(string)
		return slices.Contains(names, name)
	})
	text, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encode list: %w", err)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	r.Header.Set("Content-Length", fmt.Sprint(len(text)))
	return nil
}

// cut ends all watches of a resource. The caller holds the mutex.
func (p *proxy) cut(resource string) {
	for _, cancel := range p.watches[resource] {
		cancel()
	}
	p.watches[resource] = nil
}

// relist makes the resource be listed again, and so many lists miss some objects. Meanwhile no watch works.
func (p *proxy) relist(t *testing.T, resource string, times int, without []string, meanwhile ...func()) {
	t.Helper()
	p.set(func() {
		p.blind, p.refused = resource, 0
		p.cut(resource)
	})
	require.True(t, waitFor(t, func() (refused bool) {
		p.set(func() { refused = p.refused > 0 })
		return refused
	}))
	for _, f := range meanwhile {
		f()
	}
	p.set(func() { p.blind, p.without[resource], p.times = "", without, times })
}

func (p *proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *proxy) told() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lists
}

func service(name string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: default}, spec: {ports: [{port: 80}]}}`, name)
}

func (s *site) lies(t *testing.T) {
	p := newProxy(t, s)
	r := read(t, p.kubeconfig)
	names := []string{"lie-1", "lie-2", "lie-3", "lie-4"}
	for _, name := range names {
		s.Apply(t, service(name))
	}
	s.Apply(t, webService)
	count := func(o cluster.Objects) (n int) {
		for _, name := range names {
			if _, there := o.Services.Get(cluster.Key{Namespace: "default", Name: name}); there {
				n++
			}
		}
		return n
	}
	doubted := func(problems []cluster.Problem, resource string) bool {
		return slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Object == resource && p.Reason == ReasonListDoubted })
	}
	r.until(t, "all", func(o cluster.Objects, _ []cluster.Problem, synced bool) bool {
		return synced && count(o) == len(names)
	})
	r.untilWell(t)

	// One list misses some objects; the next one has them.
	p.relist(t, "services", 1, names[:3])
	r.until(t, "doubt", func(o cluster.Objects, problems []cluster.Problem, _ bool) bool {
		require.Equal(t, len(names), count(o))
		return doubted(problems, "services")
	})
	r.until(t, "no doubt", func(o cluster.Objects, problems []cluster.Problem, _ bool) bool {
		require.Equal(t, len(names), count(o))
		return !doubted(problems, "services")
	})
	r.untilWell(t)

	// They are really gone, without an event of a watch.
	p.relist(t, "services", 0, nil, func() {
		for _, name := range names[:3] {
			s.Delete(t, service(name))
		}
		require.Equal(t, len(names), count(r.objects(t)))
	})
	r.until(t, "doubt", func(_ cluster.Objects, problems []cluster.Problem, _ bool) bool { return doubted(problems, "services") })
	r.until(t, "gone", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool { return count(o) == 1 })
	r.untilWell(t)

	// A whole kind is missing.
	p.relist(t, "egressservices", 1, []string{"web"})
	r.until(t, "doubt", func(o cluster.Objects, problems []cluster.Problem, _ bool) bool {
		require.Contains(t, maps.Collect(o.EgressServices.All()), web)
		return doubted(problems, egressResource)
	})
	r.until(t, "no doubt", func(o cluster.Objects, problems []cluster.Problem, _ bool) bool {
		require.Contains(t, maps.Collect(o.EgressServices.All()), web)
		return !doubted(problems, egressResource)
	})

	// A watch's event ends the doubt that a list raised: of an update as of a deletion.
	p.relist(t, "services", 1, names[3:])
	r.until(t, "doubt", func(_ cluster.Objects, problems []cluster.Problem, _ bool) bool { return doubted(problems, "services") })
	s.Delete(t, service(names[3]))
	r.until(t, "gone", func(o cluster.Objects, problems []cluster.Problem, _ bool) bool {
		return count(o) == 0 && !doubted(problems, "services")
	})
	s.Delete(t, webService)
	r.untilWell(t)
}

// ownNode checks that lists without this node are not believed, however often they come.
func (s *site) ownNode(t *testing.T) {
	s.Apply(t, `{apiVersion: v1, kind: Node, metadata: {name: other}}`, service("kept"))
	p := newProxy(t, s)
	r := read(t, p.kubeconfig)
	r.untilWell(t)
	p.relist(t, "nodes", 1000, []string{"own", "other"})
	begin := p.told()
	r.until(t, "told often", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
		require.Contains(t, maps.Collect(o.Nodes.All()), "own")
		require.Contains(t, maps.Collect(o.Nodes.All()), "other")
		return p.told() >= begin+3
	})
	require.Contains(t, r.untilProblem(t, "nodes", ReasonListDoubted), "this very node")
	kept := cluster.Key{Namespace: "default", Name: "kept"}
	require.Contains(t, maps.Collect(r.objects(t).Services.All()), kept)
	p.relist(t, "services", 1000, []string{"kept"})
	r.untilProblem(t, "services", ReasonListDoubted)
	begin = p.told()
	r.until(t, "told often", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
		require.Contains(t, maps.Collect(o.Services.All()), kept)
		return p.told() >= begin+6
	})
	p.set(func() { p.without = map[string][]string{"nodes": {"other"}} })
	r.until(t, "one gone", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
		_, there := o.Nodes.Get("other")
		return !there
	})
	require.Contains(t, maps.Collect(r.objects(t).Nodes.All()), "own")
	r.untilWell(t)
	s.Delete(t, `{apiVersion: v1, kind: Node, metadata: {name: other}}`, service("kept"))
}

// silent checks that a kind without any answer is noticed.
func (s *site) silent(t *testing.T) {
	p := newProxy(t, s)
	p.set(func() { p.silent = "services" })
	r := read(t, p.kubeconfig)
	require.Contains(t, r.untilProblem(t, "server http://", ReasonUnreachable), "no answer in time")
	_, synced := r.latest()
	require.False(t, synced)
	_, leads := r.Leading()
	require.False(t, leads, "it would elect nothing")
	p.set(func() {
		p.silent = ""
		p.cut("services")
	})
	r.untilWell(t)
}

// oldServer checks that a server without ServiceCIDRs works, and may be upgraded.
func (s *site) oldServer(t *testing.T) {
	p := newProxy(t, s)
	p.set(func() { p.unknown = "servicecidrs" })
	r := read(t, p.kubeconfig)
	r.untilWell(t)
	require.Empty(t, r.objects(t).ServiceCIDRs)
	require.Zero(t, r.log.count("level=WARN"), r.log)
	p.set(func() { p.unknown = "" })
	r.until(t, "upgraded", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool { return len(o.ServiceCIDRs) > 0 })
}

func (s *site) clock(t *testing.T) {
	p := newProxy(t, s)
	p.set(func() { p.ahead = time.Hour })
	r := read(t, p.kubeconfig)
	require.Contains(t, r.untilProblem(t, "server http://", ReasonClockSkew), "ahead of this node's")
	r.until(t, "synced all the same", func(_ cluster.Objects, _ []cluster.Problem, synced bool) bool { return synced })
	p.set(func() {
		p.ahead = 0
		p.cut("services")
	})
	r.untilWell(t)
	p.set(func() {
		p.ahead = -2 * time.Minute
		p.cut("services")
	})
	require.Contains(t, r.untilProblem(t, "server http://", ReasonClockSkew), "behind this node's")
}
