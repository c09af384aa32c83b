package v1_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	kjson "sigs.k8s.io/json"

	v1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/lab/kubetest"
)

const (
	group     = "/apis/k8s.ovn.org/v1"
	anywhere  = group + "/egressservices"
	elsewhere = group + "/namespaces/elsewhere/egressservices"

	mergePatch = "application/merge-patch+json"
	jsonPatch  = "application/json-patch+json"
	applyPatch = "application/apply-patch+yaml"
)

// TestREST asks an API server that has our CRD for all that the API reference of EgressService names. Each part has a
// namespace of its own. The last one replaces the CRD.
func TestREST(t *testing.T) {
	server := kubetest.Start(t, kubetest.Options{})
	server.Apply(t, read(t, crdFile))
	client, err := rest.HTTPClientFor(server.Config())
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)

	for _, part := range []struct {
		name string
		test func(*testing.T, *api)
	}{
		{"discovery", testDiscovery},
		{"openapi", testOpenAPI},
		{"unauthorized", testUnauthorized},
		{"create", testCreate},
		{"get", testGet},
		{"list", testList},
		{"columns", testColumns},
		{"merge-patch", testMergePatch},
		{"json-patch", testJSONPatch},
		{"apply-patch", testApplyPatch},
		{"put", testPut},
		{"delete", testDelete},
		{"delete-collection", testDeleteCollection},
		{"get-status", testGetStatus},
		{"patch-status", testPatchStatus},
		{"put-status", testPutStatus},
		{"watch", testWatch},
		{"field-validation", testFieldValidation},
		{"values", testValues},
		{"other-crd", testOtherCRD},
	} {
		t.Run(part.name, func(t *testing.T) {
			server.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+part.name+"}}")
			part.test(t, &api{server: server, client: client, namespace: part.name})
		})
	}
}

// api is the collection of EgressServices in a namespace.
type api struct {
	server    *kubetest.Server
	client    *http.Client
	namespace string
}

// call is a request and what is expected of its answer.
type call struct {
	do    string // the method, and what follows the path of the namespace's collection, or a whole path
	as    string // the body's content type, JSON if empty
	body  string
	code  int
	has   string // JSON that the answer contains: the fields it names, and none of those that it has null
	says  string // part of the message of a refusal
	warns string // part of the warning; nothing else comes with one
}

// run makes calls one after the other.
func (a *api) run(t *testing.T, calls ...call) {
	t.Helper()
	for _, c := range calls {
		a.call(t, c)
	}
}

// call makes one call, and gives the answer's body.
func (a *api) call(t *testing.T, c call) []byte {
	t.Helper()
	r := a.send(t, c.do, c.as, c.body)
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	about := fmt.Sprintf("%s %s\n%s", c.do, c.body, body)
	require.Equal(t, c.code, r.StatusCode, about)

	var got map[string]any
	require.NoError(t, json.Unmarshal(body, &got), about)
	switch got["kind"] {
	case "EgressService":
		decode(t, body)
	case "EgressServiceList":
		items(t, body)
	case "Status":
		if c.code >= http.StatusBadRequest {
			require.Contains(t, got["message"], c.says, about)
		}
	}
	if c.has != "" {
		var want any
		require.NoError(t, json.Unmarshal([]byte(c.has), &want), c.has)
		contains(t, want, got, about)
	}
	warnings := strings.Join(r.Header.Values("Warning"), "\n")
	require.Contains(t, warnings, c.warns, about)
	require.Equal(t, c.warns != "", warnings != "", "%s\n%s", warnings, about)
	return body
}

// send makes a request. What it returns is to be closed.
func (a *api) send(t *testing.T, do, contentType, body string) *http.Response {
	t.Helper()
	method, path, _ := strings.Cut(do, " ")
	if !strings.HasPrefix(path, "/apis/") && !strings.HasPrefix(path, "/openapi/") {
		path = group + "/namespaces/" + a.namespace + "/egressservices" + path
	}
	q, err := http.NewRequestWithContext(t.Context(), method, a.server.Config().Host+path, strings.NewReader(body))
	require.NoError(t, err)
	if contentType == "" {
		contentType = "application/json"
	}
	q.Header.Set("Content-Type", contentType)
	q.Header.Set("Accept", "application/json")
	q.Header.Set("User-Agent", "test") // the manager of fields, where a request names none
	r, err := a.client.Do(q)
	require.NoError(t, err)
	return r
}

// get reads an EgressService.
func (a *api) get(t *testing.T, name string) *v1.EgressService {
	t.Helper()
	return decode(t, a.call(t, call{do: "GET /" + name, code: 200}))
}

// changed gives an EgressService as a client in Go sends it that has read it and changed it.
func (a *api) changed(t *testing.T, name string, change func(*v1.EgressService)) string {
	t.Helper()
	e := a.get(t, name)
	change(e)
	b, err := json.Marshal(e)
	require.NoError(t, err)
	require.Contains(t, string(b), `"nodeSelector":{`)
	require.Contains(t, string(b), `"status":{"host":`)
	return string(b)
}

// object is the JSON of an EgressService: fields are those beside metadata.
func object(name, fields string) string {
	return meta(fmt.Sprintf(`"name":%q`, name), fields)
}

// meta is the JSON of an EgressService with more metadata than a name.
func meta(metadata, fields string) string {
	return fmt.Sprintf(`{"apiVersion":"k8s.ovn.org/v1","kind":"EgressService","metadata":{%s},%s}`, metadata, fields)
}

// items reads a list strictly, and tells the names in it.
func items(t *testing.T, body []byte) (names []string) {
	t.Helper()
	var l v1.EgressServiceList
	strict, err := kjson.UnmarshalStrict(body, &l)
	require.NoError(t, err)
	require.Empty(t, strict)
	for _, e := range l.Items {
		names = append(names, e.Name)
	}
	return names
}

// contains requires of what came all that is wanted.
func contains(t *testing.T, want, got any, about string) {
	t.Helper()
	fields, ok := want.(map[string]any)
	if !ok {
		require.Equal(t, want, got, about)
		return
	}
	had, ok := got.(map[string]any)
	require.True(t, ok, about)
	for name, w := range fields {
		if w == nil {
			require.NotContains(t, had, name, about)
			continue
		}
		contains(t, w, had[name], about)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}

func testCreate(t *testing.T, a *api) {
	const spec = `"spec":{"sourceIPBy":"LoadBalancerIP","network":"red",
		"nodeSelector":{"matchLabels":{"rack":"1"},"matchExpressions":[{"key":"gpu","operator":"DoesNotExist"}]}}`
	a.run(t,
		call{do: "POST ?dryRun=All", body: object("web", spec), code: 201, has: `{"metadata":{"generation":1,"resourceVersion":null},` + spec + `}`},
		call{do: "GET /web", code: 404},
		call{
			do: "POST", body: object("web", spec+`,"status":{"host":"a"}`), code: 201,
			has: `{"metadata":{"name":"web","namespace":"create","generation":1},` + spec + `,"status":null}`,
		},
		call{do: "GET /web", code: 200, has: `{` + spec + `,"status":null}`},
		call{do: "POST", body: object("web", spec), code: 409, says: `"web" already exists`, has: `{"reason":"AlreadyExists"}`},
		call{do: "POST ?pretty=true&fieldManager=someone", body: object("managed", `"spec":{}`), code: 201, has: `{"spec":{}}`},
		call{do: "POST", body: meta(`"generateName":"web-"`, `"spec":{}`), code: 201, has: `{"metadata":{"generateName":"web-"}}`},
		call{
			do: "POST", as: "application/yaml", code: 201, has: `{"spec":{"network":"red"}}`,
			body: "{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {name: yaml}, spec: {network: red}}",
		},

		// What clients send that were built from the original types, and what else is as good as nothing.
		call{do: "POST", body: object("empty", `"spec":{"nodeSelector":{}},"status":{"host":""}`), code: 201, has: `{"spec":{"nodeSelector":{}},"status":null}`},
		call{do: "POST", body: object("null", `"spec":{"nodeSelector":null},"status":null`), code: 201, has: `{"spec":{"nodeSelector":null},"status":null}`},
		call{do: "POST", body: object("no-host", `"status":{}`), code: 201, has: `{"spec":null,"status":null}`},

		call{do: "POST ?dryRun=Some", body: object("x", spec), code: 422, says: "dryRun: Unsupported value"},
		call{do: "POST ?fieldValidation=Some", body: object("x", spec), code: 422, says: "fieldValidation: Unsupported value"},
		call{do: "POST", body: object("Web_1", spec), code: 422, says: "metadata.name"},
		call{do: "POST", body: meta(`"name":"x","namespace":"elsewhere"`, spec), code: 400, says: "namespace"},
		call{do: "POST ?fieldValidation=Ignore", body: strings.Replace(object("x", spec), "/v1", "/v2", 1), code: 400, says: "k8s.ovn.org/v2"},
		call{do: "POST", body: `{`, code: 400},
		call{do: "POST " + elsewhere, body: object("x", spec), code: 404, says: `namespaces "elsewhere" not found`},
	)
}

func testGet(t *testing.T, a *api) {
	a.run(t,
		call{do: "POST", body: object("web", `"spec":{"network":"red"}`), code: 201},
		call{do: "GET /web", code: 200, has: `{"apiVersion":"k8s.ovn.org/v1","kind":"EgressService","metadata":{"name":"web","namespace":"get"},"spec":{"network":"red"}}`},
		call{do: "GET /nothing", code: 404, says: `egressservices.k8s.ovn.org "nothing" not found`, has: `{"reason":"NotFound"}`},
		call{do: "GET " + elsewhere + "/web", code: 404},
	)
	version := a.get(t, "web").ResourceVersion
	a.call(t, call{do: "GET /web?resourceVersion=" + version, code: 200, has: `{"metadata":{"resourceVersion":"` + version + `"}}`})
	require.NotContains(t, string(a.call(t, call{do: "GET /web", code: 200})), "\n  ")
	require.Contains(t, string(a.call(t, call{do: "GET /web?pretty=true", code: 200})), "{\n  \"apiVersion\"")
}

func testList(t *testing.T, a *api) {
	a.server.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: list-more}}")
	for _, name := range []string{"a", "b", "c"} {
		a.call(t, call{do: "POST", body: meta(fmt.Sprintf(`"name":%q,"labels":{"part":"list","letter":%q}`, name, name), `"spec":{}`), code: 201})
	}
	const more = group + "/namespaces/list-more/egressservices"
	d := decode(t, a.call(t, call{do: "POST " + more, body: meta(`"name":"d","labels":{"part":"list"}`, `"spec":{}`), code: 201}))

	for _, c := range []struct {
		path  string
		names []string
	}{
		{"", []string{"a", "b", "c"}},
		{"?resourceVersionMatch=NotOlderThan&resourceVersion=" + d.ResourceVersion, []string{"a", "b", "c"}},
		{"?labelSelector=letter=b", []string{"b"}},
		{"?labelSelector=letter%20notin%20(a,b)", []string{"c"}},
		{"?labelSelector=letter=z", nil},
		{"?fieldSelector=metadata.name=c", []string{"c"}},
		{more, []string{"d"}},
		{elsewhere, nil},
		{anywhere + "?labelSelector=part=list", []string{"d", "a", "b", "c"}}, // list-more comes first, by its slash
		{anywhere + "?labelSelector=part=list,!letter", []string{"d"}},
		{anywhere + "?fieldSelector=metadata.namespace=list", []string{"a", "b", "c"}},
	} {
		body := a.call(t, call{do: "GET " + c.path, code: 200, has: `{"apiVersion":"k8s.ovn.org/v1","kind":"EgressServiceList"}`})
		require.Equal(t, c.names, items(t, body), c.path)
	}

	for _, collection := range []string{"?limit=3", anywhere + "?labelSelector=part=list&limit=3"} {
		var names []string
		var token string
		for pages := 0; pages == 0 || token != ""; pages++ {
			require.Less(t, pages, 3)
			var l v1.EgressServiceList
			body := a.call(t, call{do: "GET " + collection + "&continue=" + token, code: 200})
			require.NoError(t, json.Unmarshal(body, &l))
			require.LessOrEqual(t, len(l.Items), 3)
			names, token = append(names, items(t, body)...), l.Continue
		}
		require.Subset(t, names, []string{"a", "b", "c"})
	}
	a.run(t,
		call{do: "GET ?limit=2", code: 200, has: `{"metadata":{"remainingItemCount":1}}`},
		call{do: "GET ?continue=x", code: 400, says: "continue"},
		call{do: "GET ?labelSelector=a,,", code: 400, says: "identifier"},
		call{do: "GET ?fieldSelector=spec.network=red", code: 400, says: "field label not supported"},
	)
}

func testDelete(t *testing.T, a *api) {
	add := func(name, metadata string) call {
		return call{do: "POST", body: meta(fmt.Sprintf(`"name":%q%s`, name, metadata), `"spec":{}`), code: 201}
	}
	const deleted = `{"kind":"Status","status":"Success","details":{"name":"web","group":"k8s.ovn.org","kind":"egressservices"}}`
	gone := call{do: "GET /web", code: 404}
	release := call{do: "PATCH /web", as: mergePatch, body: `{"metadata":{"finalizers":null}}`, code: 200}
	a.run(t,
		add("web", ""), add("other", ""),
		call{do: "DELETE /web?dryRun=All", code: 200, has: deleted},
		call{do: "DELETE /web?dryRun=Some", code: 422, says: "dryRun"},
		call{do: "DELETE /web?propagationPolicy=Some", code: 422, says: "propagationPolicy"},
		call{do: "DELETE /web", body: `{"preconditions":{"uid":"x"}}`, code: 409, says: "UID in the precondition"},
		call{do: "DELETE /web", body: `{"preconditions":{"resourceVersion":"1"}}`, code: 409, says: "ResourceVersion in the precondition"},
		call{do: "GET /web", code: 200, has: `{"metadata":{"deletionTimestamp":null}}`},
		call{do: "DELETE /web", code: 200, has: deleted},
		gone,
		call{do: "DELETE /web", code: 404},
		add("web", ""),
		call{do: "DELETE /web?propagationPolicy=Background&gracePeriodSeconds=0", code: 200, has: deleted},
		gone,
	)
	a.call(t, add("web", ""))
	web := a.get(t, "web")
	a.run(t,
		call{do: "DELETE /web", code: 200, body: fmt.Sprintf(`{"preconditions":{"uid":%q,"resourceVersion":%q}}`, web.UID, web.ResourceVersion), has: deleted},
		gone,

		// It stays while somebody has work to do first.
		add("web", ""),
		call{do: "DELETE /web?propagationPolicy=Foreground", code: 200, has: `{"kind":"EgressService","metadata":{"finalizers":["foregroundDeletion"]}}`},
		release, gone,
		add("web", ""),
		call{do: "DELETE /web?propagationPolicy=Orphan", code: 200, has: `{"kind":"EgressService","metadata":{"finalizers":["orphan"]}}`},
		release, gone,
		add("web", `,"finalizers":["example.org/wait"]`),
		call{do: "DELETE /web", body: `{"orphanDependents":false}`, code: 202, has: `{"kind":"EgressService","metadata":{"finalizers":["example.org/wait"]}}`},
		call{do: "DELETE /web", code: 200, has: `{"kind":"EgressService"}`},
		release, gone,
		call{do: "GET /other", code: 200},
	)
}

func testDeleteCollection(t *testing.T, a *api) {
	for _, name := range []string{"a", "b", "c", "d"} {
		a.call(t, call{do: "POST", body: meta(fmt.Sprintf(`"name":%q,"labels":{"letter":%q}`, name, name), `"spec":{}`), code: 201})
	}
	a.server.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: kept}}")
	const kept = group + "/namespaces/kept/egressservices"
	a.call(t, call{do: "POST " + kept, body: object("web", `"spec":{}`), code: 201})
	for _, c := range []struct {
		query string
		names []string // that remain
	}{
		{"?dryRun=All", []string{"a", "b", "c", "d"}},
		{"?labelSelector=letter=a", []string{"b", "c", "d"}},
		{"?fieldSelector=metadata.name=b&propagationPolicy=Background", []string{"c", "d"}},
		{"", nil},
		{"", nil},
	} {
		// The server answers with what it deleted, where the reference has a Status.
		a.call(t, call{do: "DELETE " + c.query, code: 200, has: `{"kind":"EgressServiceList"}`})
		require.Equal(t, c.names, items(t, a.call(t, call{do: "GET", code: 200})), c.query)
	}
	a.call(t, call{do: "GET " + kept + "/web", code: 200})
}
