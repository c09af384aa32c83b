package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	asJSON  = "application/json"
	asMerge = "application/merge-patch+json"
)

// api is the API server, asked in plain HTTP: a client library would take more of the processor.
type api struct {
	base, token string
	client      *http.Client

	mu     sync.Mutex
	events map[string][]time.Time // by the version that an event told of, or what was deleted
}

func newAPI(kubeconfig []byte, dial func(ctx context.Context, kind, address string) (net.Conn, error)) (*api, error) {
	var k struct {
		Clusters []struct {
			Cluster struct {
				Server string `yaml:"server"`
				CA     string `yaml:"certificate-authority-data"`
			} `yaml:"cluster"`
		} `yaml:"clusters"`
		Users []struct {
			User struct {
				Token string `yaml:"token"`
			} `yaml:"user"`
		} `yaml:"users"`
	}
	if err := yaml.Unmarshal(kubeconfig, &k); err != nil || len(k.Clusters) == 0 || len(k.Users) == 0 {
		return nil, fmt.Errorf("read kubelab's kubeconfig: %w", errors.Join(err, errors.New("no cluster or no user in it")))
	}
	ca, err := base64.StdEncoding.DecodeString(k.Clusters[0].Cluster.CA)
	if err != nil {
		return nil, fmt.Errorf("read kubelab's kubeconfig: certificate-authority-data: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &api{
		base: k.Clusters[0].Cluster.Server, token: k.Users[0].User.Token, events: map[string][]time.Time{},
		client: &http.Client{Transport: &http.Transport{
			DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		}},
	}, nil
}

// request is one to the API server.
type request struct {
	method, path, kind string
	body               []byte
}

func (a *api) send(ctx context.Context, r request) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, r.method, a.base+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Authorization", "Bearer "+a.token)
	q.Header.Set("Content-Type", r.kind)
	answer, err := a.client.Do(q)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= http.StatusBadRequest {
		defer answer.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(answer.Body, 8<<10))
		return nil, fmt.Errorf("%s %s: %s: %s", r.method, r.path, answer.Status, b)
	}
	return answer, nil
}

// ask returns the version of the object that the server answers with.
func (a *api) ask(ctx context.Context, r request) (version string, err error) {
	answer, err := a.send(ctx, r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var o object
	if err := json.NewDecoder(answer.Body).Decode(&o); err != nil {
		return "", fmt.Errorf("%s %s: decode the answer: %w", r.method, r.path, err)
	}
	_, _ = io.Copy(io.Discard, answer.Body) // so that the connection can be used again
	return o.Metadata.ResourceVersion, nil
}

type object struct {
	Metadata struct {
		Namespace       string `json:"namespace"`
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
}

// watch notes when a watch of a kind in all namespaces is told of each change, until ctx ends: it is what the server itself
// takes. It returns when the watch has begun.
func (a *api) watch(ctx context.Context, path string) error {
	version, err := a.ask(ctx, request{http.MethodGet, path + "?limit=1", asJSON, nil})
	if err != nil {
		return err
	}
	from := func() (*http.Response, error) {
		return a.send(ctx, request{http.MethodGet, path + "?watch=1&resourceVersion=" + version, asJSON, nil})
	}
	answer, err := from()
	if err != nil {
		return err
	}
	go func() {
		for ctx.Err() == nil { // the server ends a watch that is slow, or old
			if last := a.follow(answer.Body); last != "" {
				version = last
			}
			answer.Body.Close()
			if answer, err = from(); err != nil && ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "changes: the watch beside the daemon's ends:", err)
			}
			if err != nil {
				return
			}
		}
		answer.Body.Close()
	}()
	return nil
}

// follow reads the events of a watch until it ends, and returns the version of the last.
func (a *api) follow(in io.Reader) (version string) {
	for lines := bufio.NewReaderSize(in, 1<<20); ; {
		line, err := lines.ReadBytes('\n')
		at := time.Now()
		if err != nil {
			return version
		}
		var e struct {
			Type   string `json:"type"`
			Object object `json:"object"`
		}
		if json.Unmarshal(line, &e) != nil || e.Object.Metadata.ResourceVersion == "" {
			continue
		}
		version = e.Object.Metadata.ResourceVersion
		key := version
		if e.Type == "DELETED" {
			key = e.Object.Metadata.Namespace + "/" + e.Object.Metadata.Name
		}
		a.mu.Lock()
		a.events[key] = append(a.events[key], at)
		a.mu.Unlock()
	}
}

// told is when the watches were first told, after a time, of a version or of the deletion of namespace/name; zero: they were not.
func (a *api) told(key string, after time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.events[key] {
		if !at.Before(after) {
			return at
		}
	}
	return time.Time{}
}

// Paths of what is changed.
const (
	allSlices         = "/apis/discovery.k8s.io/v1/endpointslices"
	allServices       = "/api/v1/services"
	allEgressServices = "/apis/k8s.ovn.org/v1/egressservices"
)

func (*api) slices(namespace string) string {
	return "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices"
}

func (*api) services(namespace string) string { return "/api/v1/namespaces/" + namespace + "/services" }

func (*api) egressServices(namespace string) string {
	return "/apis/k8s.ovn.org/v1/namespaces/" + namespace + "/egressservices"
}
