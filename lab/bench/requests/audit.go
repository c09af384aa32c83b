package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
)

// entry is one of the audit log (audit.k8s.io/v1): of a watch, there is one when it has begun.
type entry struct {
	Stage      string    `json:"stage"`
	Verb       string    `json:"verb"`
	RequestURI string    `json:"requestURI"`
	Received   time.Time `json:"requestReceivedTimestamp"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef *struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
}

// request returns the verb and the resource of an entry.
func (e *entry) request() string {
	if e.ObjectRef == nil {
		path, _, _ := strings.Cut(e.RequestURI, "?")
		return e.Verb + " " + path
	}
	resource := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	if strings.Contains(e.RequestURI, "sendInitialEvents=true") {
		return "list and watch " + resource
	}
	return e.Verb + " " + resource
}

// count counts requests in the windows of a result.
func (b *bed) count(r *result) error { return b.countIn(r.windows()) }

func (b *bed) countIn(windows []*window) error {
	log, err := b.api.File("audit.log")
	if err != nil {
		return err
	}
	count(log, len(b.nodes), windows)
	return nil
}

func (r *result) windows() []*window {
	return append([]*window{r.rest, r.endpoints, r.nodes, r.labels}, r.restarts...)
}

func count(log []byte, nodes int, windows []*window) {
	number := map[string]int{}
	for i := range nodes {
		number[nodeName(i)] = i
	}
	for _, w := range windows {
		w.requests = make([]counts, nodes)
		for i := range w.requests {
			w.requests[i] = counts{}
		}
	}
	for line := range bytes.Lines(log) {
		var e entry
		if json.Unmarshal(line, &e) != nil || (e.Verb == "watch") != (e.Stage == "ResponseStarted") {
			continue
		}
		if i, ours := number[e.User.Username]; ours {
			e.countIn(windows, i)
		}
	}
}

// countIn counts the request of a daemon in the windows in which it was received.
func (e *entry) countIn(windows []*window, daemon int) {
	for _, w := range windows {
		if !e.Received.Before(w.from) && e.Received.Before(w.to) {
			w.requests[daemon][e.request()]++
		}
	}
}
