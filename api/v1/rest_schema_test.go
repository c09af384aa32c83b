package v1_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	v1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/lab"
)

// originalCRD has EgressService as clusters have it that come from OVN-Kubernetes.
const originalCRD = "../../internal/cluster/kube/testdata/upstream-crd.yaml"

const (
	soon = lab.Patience
	step = 20 * time.Millisecond
)

// operation is one of the API reference's tables: what is sent, and what may come back, by HTTP code.
type operation struct {
	method, path string
	parameters   []string
	answers      map[string]string
}

const (
	collection = "/namespaces/{namespace}/egressservices"
	item       = collection + "/{name}"
	status     = item + "/status"
)

var operations = []operation{
	{"get", "/egressservices", nil, map[string]string{"200": "EgressServiceList", "401": ""}},
	{"delete", collection, nil, map[string]string{"200": "Status", "401": ""}},
	{"get", collection, nil, map[string]string{"200": "EgressServiceList", "401": ""}},
	{"post", collection, []string{"dryRun", "fieldValidation"}, map[string]string{"200": "EgressService", "201": "EgressService", "202": "EgressService", "401": ""}},
	{"delete", item, []string{"dryRun"}, map[string]string{"200": "Status", "202": "Status", "401": ""}},
	{"get", item, nil, map[string]string{"200": "EgressService", "401": ""}},
	{"patch", item, []string{"dryRun", "fieldValidation"}, map[string]string{"200": "EgressService", "401": ""}},
	{"put", item, []string{"dryRun", "fieldValidation"}, map[string]string{"200": "EgressService", "201": "EgressService", "401": ""}},
	{"get", status, nil, map[string]string{"200": "EgressService", "401": ""}},
	{"patch", status, []string{"dryRun", "fieldValidation"}, map[string]string{"200": "EgressService", "401": ""}},
	{"put", status, []string{"dryRun", "fieldValidation"}, map[string]string{"200": "EgressService", "201": "EgressService", "401": ""}},
}

// What the server publishes about itself is what the API reference was made from: the operations are the same.
func testOpenAPI(t *testing.T, a *api) {
	type endpoint struct {
		Parameters []struct{ Name string }
		Responses  map[string]struct {
			Content map[string]struct {
				Schema struct {
					Ref string `json:"$ref"`
				}
			}
		}
	}
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	// It comes a moment after the CRD is served.
	require.Eventually(t, func() bool {
		r := a.send(t, "GET /openapi/v3"+group, "", "")
		defer r.Body.Close()
		return r.StatusCode == http.StatusOK && json.NewDecoder(r.Body).Decode(&document) == nil
	}, soon, step)

	left := map[string]bool{}
	for path, methods := range document.Paths {
		for method := range methods {
			if method != "parameters" {
				left[method+" "+path] = true
			}
		}
	}
	for _, o := range operations {
		name := o.method + " " + group + o.path
		require.Contains(t, left, name)
		delete(left, name)
		var e endpoint
		require.NoError(t, json.Unmarshal(document.Paths[group+o.path][o.method], &e))
		var parameters []string
		for _, p := range e.Parameters {
			parameters = append(parameters, p.Name)
		}
		require.Subset(t, parameters, o.parameters, name)
		answers := map[string]string{}
		for code, r := range e.Responses {
			ref := r.Content["application/json"].Schema.Ref
			answers[code] = ref[strings.LastIndex(ref, ".")+1:]
		}
		require.Equal(t, o.answers, answers, name)
	}
	require.Empty(t, slices.Collect(maps.Keys(left)))
}

func testDiscovery(t *testing.T, a *api) {
	var l metav1.APIResourceList
	require.NoError(t, json.Unmarshal(a.call(t, call{do: "GET " + group, code: 200}), &l))
	require.Equal(t, "k8s.ovn.org/v1", l.GroupVersion)
	for i := range l.APIResources {
		slices.Sort(l.APIResources[i].Verbs)
		l.APIResources[i].StorageVersionHash = ""
	}
	require.Equal(t, []metav1.APIResource{
		{
			Name: "egressservices", SingularName: "egressservice", ShortNames: []string{"egsvc"}, Namespaced: true, Kind: "EgressService",
			Verbs: metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
		},
		{Name: "egressservices/status", Namespaced: true, Kind: "EgressService", Verbs: metav1.Verbs{"get", "patch", "update"}},
	}, l.APIResources)
	a.call(t, call{do: "GET /apis/k8s.ovn.org", code: 200, has: `{"kind":"APIGroup","preferredVersion":{"groupVersion":"k8s.ovn.org/v1","version":"v1"}}`})
}

// The reference has an empty body with 401. The server sends a Status.
func testUnauthorized(t *testing.T, a *api) {
	config := rest.AnonymousClientConfig(a.server.Config())
	config.BearerToken = "wrong"
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	stranger := &api{server: a.server, client: client, namespace: a.namespace}
	for _, o := range operations {
		path := strings.NewReplacer("{namespace}", a.namespace, "{name}", "web").Replace(group + o.path)
		stranger.call(t, call{do: strings.ToUpper(o.method) + " " + path, code: 401, has: `{"kind":"Status","reason":"Unauthorized"}`})
	}
}

func testColumns(t *testing.T, a *api) {
	a.run(t,
		call{do: "POST", body: object("web", `"spec":{"network":"red"}`), code: 201},
		call{do: "PATCH /web/status", as: mergePatch, code: 200, body: `{"status":{"host":"a","standby":"b","conditions":[
			{"type":"Elected","status":"False","reason":"Because","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"},
			{"type":"Ready","status":"False","reason":"NoRoute","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"},
			{"type":"Programmed","status":"True","reason":"Because","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}],
			"ingressIPs":["192.0.2.1","2001:db8::1"]}}`},
		call{do: "POST", body: object("bare", `"spec":{}`), code: 201},
	)
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.server.Config().Host+group+"/namespaces/columns/egressservices", http.NoBody)
	require.NoError(t, err)
	q.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	r, err := a.client.Do(q)
	require.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	var table metav1.Table
	require.NoError(t, json.Unmarshal(body, &table), string(body))

	// The original has the first two. What has a priority is seen with -o wide.
	var columns []string
	for _, c := range table.ColumnDefinitions {
		columns = append(columns, fmt.Sprintf("%s %d", c.Name, c.Priority))
	}
	require.Equal(t, []string{
		"Name 0", "Assigned Host 0", "Network 0", "Ingress 0", "Ready 0", "Reason 0", "Age 0", "Standby 1", "Programmed 1",
	}, columns)
	require.Len(t, table.Rows, 2)
	for i, age := 0, 6; i < len(table.Rows); i++ {
		require.NotEmpty(t, table.Rows[i].Cells[age])
		table.Rows[i].Cells = slices.Delete(table.Rows[i].Cells, age, age+1)
	}
	require.Equal(t, []any{"bare", nil, nil, nil, nil, nil, nil, nil}, table.Rows[0].Cells)
	require.Equal(t, []any{"web", "a", "red", `["192.0.2.1","2001:db8::1"]`, "False", "NoRoute", "b", "True"}, table.Rows[1].Cells)
}

func testFieldValidation(t *testing.T, a *api) {
	const (
		fields = `"spec":{"network":"red","network":"blue","colour":1},"status":{"host":"a","port":2}`
		kept   = `{"spec":{"network":"blue","colour":null},"status":null}`
		hint   = `duplicate field \"spec.network\"`
	)
	a.call(t, call{do: "POST", body: object("web", `"spec":{}`), code: 201})
	web := a.get(t, "web")
	replace := meta(fmt.Sprintf(`"name":"web","resourceVersion":%q`, web.ResourceVersion), fields)
	for _, c := range []struct {
		call
		refusal int
	}{
		{call{do: "POST ", body: object("new", fields), code: 201, has: kept, warns: hint}, 400},
		{call{do: "PUT /web", body: replace, code: 200, has: kept, warns: hint}, 400},
		{call{do: "PATCH /web", as: mergePatch, body: `{` + fields + `}`, code: 200, has: kept, warns: hint}, 422},
		{call{do: "PATCH /web", as: jsonPatch, body: `[{"op":"add","path":"/spec/colour","value":1}]`, code: 200, has: `{"spec":{"colour":null}}`, warns: `unknown field \"spec.colour\"`}, 422},
		{call{do: "PUT /web/status", body: replace, code: 200, has: `{"status":{"host":"a","port":null}}`, warns: `unknown field \"status.port\"`}, 400},
		{call{do: "PATCH /web/status", as: mergePatch, body: `{"status":{"host":"a","port":2}}`, code: 200, has: `{"status":{"host":"a","port":null}}`, warns: `unknown field \"status.port\"`}, 422},
	} {
		for _, way := range []string{"", "&fieldValidation=Warn", "&fieldValidation=Ignore", "&fieldValidation=Strict"} {
			now := c.call
			now.do += "?dryRun=All" + way
			switch {
			case strings.HasSuffix(way, "Ignore"):
				now.warns = ""
			case strings.HasSuffix(way, "Strict"):
				now.code, now.has, now.warns = c.refusal, "", ""
				now.says = strings.ReplaceAll(c.warns, `\`, "")
			}
			a.call(t, now)
		}
	}
	// Who applies owns what is sent, which cannot be of something that does not exist.
	for _, way := range []string{"Warn", "Ignore", "Strict"} {
		a.call(t, call{
			do: "PATCH /web?fieldManager=x&fieldValidation=" + way, as: applyPatch, body: object("web", `"spec":{"colour":1}`),
			code: 500, says: ".spec.colour: field not declared in schema",
		})
	}
	require.Equal(t, web, a.get(t, "web"))
}

// What does not fit is refused by the field's name, by whichever way it comes.
func testValues(t *testing.T, a *api) {
	a.run(t,
		call{do: "POST", body: object("web", `"spec":{}`), code: 201},
		call{do: "PATCH /web/status", as: mergePatch, body: `{"status":{"host":"a"}}`, code: 200},
	)
	web := a.get(t, "web")
	for _, c := range []struct{ field, fields string }{
		{`spec.sourceIPBy: Unsupported value: "Pod": supported values: "LoadBalancerIP", "Network"`, `"spec":{"sourceIPBy":"Pod"}`},
		{`spec.sourceIPBy: Unsupported value: "network"`, `"spec":{"sourceIPBy":"network"}`},
		{"spec.sourceIPBy: Unsupported value", `"spec":{"sourceIPBy":""}`},
		{"spec.sourceIPBy: Invalid value", `"spec":{"sourceIPBy":1}`},
		{"spec.network: Invalid value", `"spec":{"network":100}`},
		{"spec.network: Invalid value", `"spec":{"network":["red"]}`},
		{"spec.network: Invalid value", `"spec":{"network":"red\u001b[2J"}`},
		{"spec.network: Invalid value", `"spec":{"network":"red\u202e"}`},
		{"spec.network: Too long", `"spec":{"network":"` + strings.Repeat("r", 64) + `"}`},
		{"spec.nodeSelector: Invalid value", `"spec":{"nodeSelector":"rack=1"}`},
		{"spec.nodeSelector.matchLabels.rack: Invalid value", `"spec":{"nodeSelector":{"matchLabels":{"rack":1}}}`},
		{"spec.nodeSelector.matchExpressions: Invalid value", `"spec":{"nodeSelector":{"matchExpressions":{}}}`},
		{"spec.nodeSelector.matchExpressions[0].key: Required value", `"spec":{"nodeSelector":{"matchExpressions":[{"operator":"Exists"}]}}`},
		{"spec.nodeSelector.matchExpressions[0].operator: Required value", `"spec":{"nodeSelector":{"matchExpressions":[{"key":"rack"}]}}`},
		{"spec: Invalid value", `"spec":"red"`},
		{"status.host: Required value", `"status":{}`},
		{"status.host: Invalid value", `"status":{"host":1}`},
		{"status.term: Invalid value", `"status":{"host":"a","term":"1"}`},
		{"status.conditions[0].reason: Required value", `"status":{"host":"a","conditions":[{"type":"T","status":"True","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]}`},
	} {
		part := ""
		if strings.HasPrefix(c.field, "status") {
			part = "/status"
		} else {
			a.call(t, call{do: "POST", body: object("new", c.fields), code: 422, says: c.field, has: `{"reason":"Invalid"}`})
		}
		body := meta(fmt.Sprintf(`"name":"web","resourceVersion":%q`, web.ResourceVersion), c.fields)
		a.call(t, call{do: "PUT /web" + part, body: body, code: 422, says: c.field, has: `{"reason":"Invalid"}`})
	}
	a.call(t, call{do: "PATCH /web", as: mergePatch, body: `{"spec":{"sourceIPBy":"Pod"}}`, code: 422, says: "spec.sourceIPBy"})
	require.Equal(t, web, a.get(t, "web"))

	// Selectors that no cluster could obey are taken, as the original takes them; the daemon says what is wrong with them.
	for i, selector := range []string{
		`{"matchLabels":{"not a label!":""}}`,
		`{"matchExpressions":[{"key":"rack","operator":"Near"}]}`,
		`{"matchExpressions":[{"key":"rack","operator":"In"}]}`,
		`{"matchExpressions":[{"key":"rack","operator":"In","values":["1","2"]},{"key":"gpu","operator":"Exists"}]}`,
	} {
		spec := `"spec":{"nodeSelector":` + selector + `}`
		a.call(t, call{do: "POST", body: object(fmt.Sprintf("selector-%d", i), spec), code: 201, has: `{` + spec + `}`})
	}
}

// A cluster's CRD may be replaced either way, with objects in it.
func testOtherCRD(t *testing.T, a *api) {
	const spec = `"spec":{"sourceIPBy":"LoadBalancerIP","network":"red","nodeSelector":{"matchLabels":{"rack":"1"},"matchExpressions":[{"key":"gpu","operator":"Exists"}]}}`
	const condition = `[{"type":"Programmed","status":"True","reason":"Because","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]`
	const (
		ours   = `{` + spec + `,"status":{"host":"a","standby":"b","term":3,"conditions":` + condition + `}}`
		theirs = `{` + spec + `,"status":{"host":"a","standby":null,"term":null,"conditions":null}}`
	)
	add := func(name, has string) {
		t.Helper()
		a.run(t,
			call{do: "POST", body: object(name, spec), code: 201, has: `{` + spec + `}`},
			call{do: "PATCH /" + name + "/status?fieldValidation=Ignore", as: mergePatch, body: ours, code: 200, has: has},
		)
	}
	// use has the server serve another CRD: a strict dry run tells which one it is.
	use := func(file string, code int) {
		t.Helper()
		a.server.Apply(t, read(t, file))
		require.Eventually(t, func() bool {
			r := a.send(t, "PATCH /kept/status?dryRun=All&fieldValidation=Strict", mergePatch, `{"status":{"host":"a","term":1}}`)
			return r.Body.Close() == nil && r.StatusCode == code
		}, soon, step)
	}
	add("kept", ours)
	add("written", ours)

	use(originalCRD, http.StatusUnprocessableEntity)
	add("theirs", theirs)
	a.call(t, call{do: "POST", body: object("odd", `"spec":{"network":"red\u009b"}`), code: 201})
	a.run(t,
		call{do: "GET /kept", code: 200, has: theirs},
		call{do: "GET /written", code: 200, has: theirs},
		call{do: "PATCH /written", as: mergePatch, body: `{"spec":{"network":"blue"}}`, code: 200, has: `{"metadata":{"generation":2},"spec":{"network":"blue"}}`},
		call{do: "PATCH /written/status", as: mergePatch, body: `{"status":{"host":"c"}}`, code: 200, has: `{"status":{"host":"c","standby":null}}`},
		call{do: "PATCH /written?fieldManager=x&force=true", as: applyPatch, body: object("written", `"spec":{"network":"green"}`), code: 200, has: `{"spec":{"network":"green"}}`},
		call{
			do: "PUT /theirs", code: 200, has: `{"spec":{"network":"blue"},"status":{"host":"a"}}`,
			body: a.changed(t, "theirs", func(e *v1.EgressService) { e.Spec.Network = "blue" }),
		},
	)
	require.ElementsMatch(t, []string{"kept", "odd", "theirs", "written"}, items(t, a.call(t, call{do: "GET", code: 200})))

	// What was written meanwhile has lost what the original does not have, and the rest comes back.
	use(crdFile, http.StatusOK)
	a.run(t, // an object that ours would not take stays, and what else is in it can be written
		call{do: "PATCH /odd/status", as: mergePatch, body: ours, code: 200, has: `{"spec":{"network":"red\u009b"},"status":{"host":"a"}}`},
		call{do: "PATCH /odd", as: mergePatch, body: `{"metadata":{"labels":{"a":"b"}}}`, code: 200, has: `{"spec":{"network":"red\u009b"}}`},
	)
	a.run(t,
		call{do: "GET /kept", code: 200, has: ours},
		call{do: "GET /written", code: 200, has: `{"spec":{"network":"green"},"status":{"host":"c","standby":null,"term":null,"conditions":null}}`},
		call{do: "GET /theirs", code: 200, has: `{"spec":{"network":"blue"},"status":{"host":"a","standby":null}}`},
		call{do: "PATCH /theirs/status", as: mergePatch, body: ours, code: 200, has: `{"spec":{"network":"blue"},"status":{"host":"a","standby":"b","term":3,"conditions":` + condition + `}}`},
		call{do: "PATCH /kept?fieldManager=x&force=true", as: applyPatch, body: object("kept", `"spec":{"network":"blue"}`), code: 200, has: `{"spec":{"network":"blue"},"status":{"term":3}}`},
	)
}
