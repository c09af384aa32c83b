package v1_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "github.com/egressway/egressway/api/v1"
)

func testMergePatch(t *testing.T, a *api) {
	patch := func(query, body, has string) call {
		return call{do: "PATCH /web" + query, as: mergePatch, body: body, code: 200, has: has}
	}
	a.run(t,
		call{do: "POST", body: object("web", `"spec":{"network":"red","nodeSelector":{"matchLabels":{"rack":"1","row":"2"}}}`), code: 201},
		patch("?dryRun=All", `{"spec":{"network":"blue"}}`, `{"metadata":{"generation":2},"spec":{"network":"blue"}}`),
		call{do: "GET /web", code: 200, has: `{"metadata":{"generation":1},"spec":{"network":"red"}}`},
		patch("", `{"spec":{"network":"blue"}}`, `{"metadata":{"generation":2},"spec":{"network":"blue","nodeSelector":{"matchLabels":{"rack":"1","row":"2"}}}}`),
		patch("", `{"spec":{"network":"blue"}}`, `{"metadata":{"generation":2}}`),
		patch("", `{"spec":{"nodeSelector":{"matchLabels":{"row":null}}}}`, `{"metadata":{"generation":3},"spec":{"nodeSelector":{"matchLabels":{"rack":"1","row":null}}}}`),
		patch("", `{"metadata":{"labels":{"l":"1"},"annotations":{"n":"2"}}}`, `{"metadata":{"generation":3,"labels":{"l":"1"},"annotations":{"n":"2"}}}`),
		patch("", `{"status":{"host":"a"}}`, `{"metadata":{"generation":3},"status":null}`),
		patch("?pretty=true", `{"spec":null}`, `{"metadata":{"generation":4},"spec":null}`),
		call{do: "PATCH /web", as: mergePatch, body: `{"metadata":{"resourceVersion":"1"}}`, code: 409, says: "the object has been modified"},
		call{do: "PATCH /web", as: mergePatch, body: `{"metadata":{"name":"other"}}`, code: 400, says: "name"},
		call{do: "PATCH /web", as: mergePatch, body: `{`, code: 400},
		call{do: "PATCH /web?dryRun=Some", as: mergePatch, body: `{}`, code: 422, says: "dryRun"},
		call{do: "PATCH /web", as: "application/strategic-merge-patch+json", body: `{}`, code: 415, says: mergePatch},
		call{do: "PATCH /nothing", as: mergePatch, body: `{}`, code: 404},
	)
}

func testJSONPatch(t *testing.T, a *api) {
	a.run(t,
		call{do: "POST", body: object("web", `"spec":{"network":"red"}`), code: 201},
		call{
			do: "PATCH /web", as: jsonPatch, code: 200, has: `{"metadata":{"generation":2},"spec":{"sourceIPBy":"Network","network":"blue"}}`,
			body: `[{"op":"test","path":"/spec/network","value":"red"},
				{"op":"replace","path":"/spec/network","value":"blue"},
				{"op":"add","path":"/spec/sourceIPBy","value":"Network"}]`,
		},
		call{do: "PATCH /web?dryRun=All", as: jsonPatch, body: `[{"op":"remove","path":"/spec/network"}]`, code: 200, has: `{"spec":{"network":null}}`},
		call{
			do: "PATCH /web", as: jsonPatch, code: 422,
			body: `[{"op":"test","path":"/spec/network","value":"red"},{"op":"remove","path":"/spec/network"}]`,
		},
		call{do: "PATCH /web", as: jsonPatch, body: `[{"op":"remove","path":"/spec/nodeSelector"}]`, code: 422},
		call{do: "PATCH /web", as: jsonPatch, body: `{}`, code: 400},
		call{do: "GET /web", code: 200, has: `{"metadata":{"generation":2},"spec":{"network":"blue"}}`},
	)
}

func testApplyPatch(t *testing.T, a *api) {
	apply := func(query, fields string, code int, has string) call {
		return call{do: "PATCH /web" + query, as: applyPatch, body: object("web", fields), code: code, has: has}
	}
	conflict := func(query, fields, says string) call {
		c := apply(query, fields, 409, `{"reason":"Conflict"}`)
		c.says = says
		return c
	}
	a.run(t,
		call{do: "PATCH /web", as: applyPatch, body: object("web", `"spec":{}`), code: 422, says: "fieldManager: Required value"},
		apply("?fieldManager=x&dryRun=All", `"spec":{"network":"red"}`, 201, `{"spec":{"network":"red"}}`),
		call{do: "GET /web", code: 404},
		apply("?fieldManager=x", `"spec":{"network":"red"},"status":{"host":"a"}`, 201, `{"metadata":{"generation":1},"spec":{"network":"red"},"status":null}`),
		apply("?fieldManager=x", `"spec":{"network":"red"}`, 200, `{"metadata":{"generation":1}}`),
		conflict("?fieldManager=y", `"spec":{"network":"blue"}`, `conflict with "x": .spec.network`),
		apply("?fieldManager=y&force=true", `"spec":{"network":"blue"}`, 200, `{"metadata":{"generation":2},"spec":{"network":"blue"}}`),
		apply("?fieldManager=y", `"spec":{"sourceIPBy":"LoadBalancerIP"}`, 200, `{"spec":{"sourceIPBy":"LoadBalancerIP","network":null}}`),

		// A selector has one owner: it is never mixed from two.
		apply("?fieldManager=x", `"spec":{"nodeSelector":{"matchLabels":{"rack":"1"}}}`, 200, `{"spec":{"nodeSelector":{"matchLabels":{"rack":"1"}}}}`),
		conflict("?fieldManager=y", `"spec":{"nodeSelector":{"matchLabels":{"row":"2"}}}`, ".spec.nodeSelector"),
		apply("?fieldManager=y&force=true", `"spec":{"nodeSelector":{"matchLabels":{"row":"2"}}}`, 200, `{"spec":{"nodeSelector":{"matchLabels":{"rack":null,"row":"2"}}}}`),
		call{do: "PATCH /web?fieldManager=x", as: applyPatch, body: object("other", `"spec":{}`), code: 400, says: "name"},
	)
}

func testPut(t *testing.T, a *api) {
	a.run(t,
		call{do: "POST", body: object("web", `"spec":{"network":"red"}`), code: 201},
		call{do: "PATCH /web/status", as: mergePatch, body: `{"status":{"host":"a"}}`, code: 200},
	)
	stale := a.changed(t, "web", func(e *v1.EgressService) { e.Spec.Network = "green" })
	version := a.get(t, "web").ResourceVersion
	change := func(do string, f func(*v1.EgressService), has string) {
		t.Helper()
		a.call(t, call{do: do, body: a.changed(t, "web", f), code: 200, has: has})
	}
	const blue = `{"metadata":{"generation":2},"spec":{"network":"blue","nodeSelector":{}},"status":{"host":"a"}}`
	toBlue := func(e *v1.EgressService) { e.Spec.Network = "blue" }
	change("PUT /web?dryRun=All", toBlue, blue)
	require.Equal(t, version, a.get(t, "web").ResourceVersion)
	change("PUT /web?fieldValidation=Strict", toBlue, blue)
	require.NotEqual(t, version, a.get(t, "web").ResourceVersion)

	// Nothing changed, something that is not in the spec, the status only.
	version = a.get(t, "web").ResourceVersion
	change("PUT /web", toBlue, `{"metadata":{"generation":2,"resourceVersion":"`+version+`"}}`)
	change("PUT /web", func(e *v1.EgressService) { e.Labels = map[string]string{"l": "1"} }, `{"metadata":{"generation":2,"labels":{"l":"1"}}}`)
	change("PUT /web", func(e *v1.EgressService) { e.Status = v1.EgressServiceStatus{} }, `{"metadata":{"generation":2},"status":{"host":"a"}}`)
	change("PUT /web", func(e *v1.EgressService) { e.Status.Host = "b" }, `{"metadata":{"generation":2},"status":{"host":"a"}}`)

	const spec = `"spec":{"network":"green"}`
	a.run(t,
		call{do: "PUT /web", body: stale, code: 409, says: "the object has been modified", has: `{"reason":"Conflict"}`},
		call{do: "PUT /web", body: object("web", spec), code: 422, says: "metadata.resourceVersion: Invalid value"},
		call{do: "PUT /web", body: object("other", spec), code: 400, says: "does not match the name on the URL"},
		call{do: "PUT /web", body: meta(`"name":"web","uid":"x","resourceVersion":"1"`, spec), code: 409},
		call{do: "PUT /nothing", body: object("nothing", spec), code: 404}, // custom resources are not made by PUT
		call{do: "GET /web", code: 200, has: `{"metadata":{"generation":2},"spec":{"network":"blue"}}`},
	)
}

func testGetStatus(t *testing.T, a *api) {
	a.run(t,
		call{do: "POST", body: object("web", `"spec":{"network":"red"}`), code: 201},
		call{do: "GET /web/status", code: 200, has: `{"kind":"EgressService","spec":{"network":"red"},"status":null}`},
		call{do: "PATCH /web/status", as: mergePatch, body: `{"status":{"host":"a"}}`, code: 200},
		call{do: "GET /web/status?pretty=true", code: 200, has: `{"metadata":{"name":"web"},"spec":{"network":"red"},"status":{"host":"a"}}`},
		call{do: "GET /web", code: 200, has: `{"status":{"host":"a"}}`},
		call{do: "GET /nothing/status", code: 404},
		call{do: "POST /web/status", body: object("web", `"status":{"host":"a"}`), code: 405},
		call{do: "DELETE /web/status", code: 405},
	)
}

func testPatchStatus(t *testing.T, a *api) {
	patch := func(query, body, has string) call {
		return call{do: "PATCH /web/status" + query, as: mergePatch, body: body, code: 200, has: has}
	}
	condition := func(kind, status string) string {
		return `{"type":"` + kind + `","status":"` + status + `","reason":"Because","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}`
	}
	apply := func(manager, status, has string) call {
		return call{do: "PATCH /web/status?force=true&fieldManager=" + manager, as: applyPatch, body: object("web", `"status":`+status), code: 200, has: has}
	}
	a.run(t,
		call{do: "POST", body: object("web", `"spec":{"network":"red"}`), code: 201},
		patch("?dryRun=All", `{"status":{"host":"a"}}`, `{"status":{"host":"a"}}`),
		call{do: "GET /web", code: 200, has: `{"status":null}`},
		patch("", `{"metadata":{"labels":{"l":"1"}},"spec":{"network":"blue"},"status":{"host":""}}`,
			`{"metadata":{"generation":1,"labels":null},"spec":{"network":"red"},"status":{"host":""}}`),
		patch("?fieldValidation=Strict", `{"status":{"host":"a","standby":"b","term":3}}`, `{"metadata":{"generation":1},"status":{"host":"a","standby":"b","term":3}}`),
		patch("", `{"status":{"standby":null}}`, `{"status":{"host":"a","standby":null,"term":3}}`),
		call{do: "PATCH /web/status", as: jsonPatch, body: `[{"op":"replace","path":"/status/host","value":"ALL"}]`, code: 200, has: `{"status":{"host":"ALL"}}`},

		// A client of the original writes the host alone; who writes conditions of different types is not in another's way.
		apply("original", `{"host":"c"}`, `{"metadata":{"generation":1},"spec":{"network":"red"},"status":{"host":"c","term":3}}`),
		apply("x", `{"conditions":[`+condition("Elected", "True")+`]}`, `{"status":{"conditions":[`+condition("Elected", "True")+`]}}`),
		apply("y", `{"conditions":[`+condition("Programmed", "False")+`]}`,
			`{"status":{"host":"c","conditions":[`+condition("Elected", "True")+`,`+condition("Programmed", "False")+`]}}`),

		call{do: "PATCH /web/status", as: mergePatch, body: `{"metadata":{"resourceVersion":"1"},"status":{"host":"a"}}`, code: 409},
		call{do: "PATCH /web/status", as: mergePatch, body: `{"status":{"host":null}}`, code: 422, says: "status.host: Required value"},
		call{do: "PATCH /nothing/status", as: mergePatch, body: `{"status":{"host":"a"}}`, code: 404},
		patch("", `{"status":null}`, `{"metadata":{"generation":1},"spec":{"network":"red"},"status":null}`),
	)
}

func testPutStatus(t *testing.T, a *api) {
	a.call(t, call{do: "POST", body: object("web", `"spec":{"network":"red"}`), code: 201})
	host := func(e *v1.EgressService) {
		e.Labels = map[string]string{"l": "1"}
		e.Spec.Network = "blue"
		e.Status.Host = "a"
	}
	stale := a.changed(t, "web", host)
	const kept = `"metadata":{"generation":1,"labels":null},"spec":{"network":"red"}`
	a.run(t,
		call{do: "PUT /web/status?dryRun=All", body: stale, code: 200, has: `{` + kept + `,"status":{"host":"a"}}`},
		call{do: "GET /web", code: 200, has: `{` + kept + `,"status":null}`},
		call{do: "PUT /web/status?fieldValidation=Strict", body: stale, code: 200, has: `{` + kept + `,"status":{"host":"a"}}`},
		call{do: "GET /web", code: 200, has: `{` + kept + `,"status":{"host":"a"}}`},
		call{do: "PUT /web/status", body: stale, code: 409, says: "the object has been modified"},
		call{do: "PUT /web/status", body: object("web", `"status":{"host":"b"}`), code: 422, says: "metadata.resourceVersion"},
		call{do: "PUT /web/status", body: object("other", `"status":{"host":"b"}`), code: 400},
		call{do: "PUT /nothing/status", body: object("nothing", `"status":{"host":"b"}`), code: 404},
	)
	empty := a.changed(t, "web", func(e *v1.EgressService) { e.Status = v1.EgressServiceStatus{} })
	a.call(t, call{do: "PUT /web/status", body: empty, code: 200, has: `{` + kept + `,"status":{"host":""}}`})
}

func testWatch(t *testing.T, a *api) {
	type event struct {
		kind, name, network, host string
	}
	watch := func(query string) func() event {
		t.Helper()
		r := a.send(t, "GET "+query, "", "")
		t.Cleanup(func() { _ = r.Body.Close() }) // which ends the watch
		require.Equal(t, 200, r.StatusCode)
		in := json.NewDecoder(r.Body)
		return func() event {
			t.Helper()
			var e struct {
				Type   string
				Object json.RawMessage
			}
			require.NoError(t, in.Decode(&e))
			o := decode(t, e.Object)
			return event{e.Type, o.Name, o.Spec.Network, o.Status.Host}
		}
	}
	// A watch that hears nothing ends by itself, as a failure.
	const limit = "&timeoutSeconds=30"
	a.call(t, call{do: "POST", body: object("before", `"spec":{}`), code: 201})
	var list v1.EgressServiceList
	require.NoError(t, json.Unmarshal(a.call(t, call{do: "GET", code: 200}), &list))
	since := watch("?watch=true&resourceVersion=" + list.ResourceVersion + limit)
	all := watch(anywhere + "?watch=true&fieldSelector=metadata.namespace=watch" + limit)
	one := watch("?watch=true&fieldSelector=metadata.name=web" + limit)
	require.Equal(t, event{kind: "ADDED", name: "before"}, all())
	a.run(t,
		call{do: "POST", body: object("web", `"spec":{"network":"red"}`), code: 201},
		call{do: "PATCH /web", as: mergePatch, body: `{"spec":{"network":"blue"}}`, code: 200},
		call{do: "PATCH /web/status", as: mergePatch, body: `{"status":{"host":"a"}}`, code: 200},
		call{do: "DELETE /web", code: 200},
	)
	for _, want := range []event{
		{"ADDED", "web", "red", ""},
		{"MODIFIED", "web", "blue", ""},
		{"MODIFIED", "web", "blue", "a"},
		{"DELETED", "web", "blue", "a"},
	} {
		require.Equal(t, want, since())
		require.Equal(t, want, all())
		require.Equal(t, want, one())
	}

	// Labels that come and go are objects that do, for who selects by them.
	labelled := watch("?watch=true&labelSelector=l=1" + limit)
	label := func(value string) {
		t.Helper()
		a.call(t, call{do: "PATCH /before", as: mergePatch, body: `{"metadata":{"labels":{"l":` + value + `}}}`, code: 200})
	}
	label(`"1"`)
	require.Equal(t, event{kind: "ADDED", name: "before"}, labelled())
	label("null")
	require.Equal(t, event{kind: "DELETED", name: "before"}, labelled())

	started := time.Now()
	r := a.send(t, "GET ?watch=true&timeoutSeconds=1&fieldSelector=metadata.name=nothing", "", "")
	var none any
	require.Error(t, json.NewDecoder(r.Body).Decode(&none))
	require.NoError(t, r.Body.Close())
	require.GreaterOrEqual(t, time.Since(started), time.Second)
}
