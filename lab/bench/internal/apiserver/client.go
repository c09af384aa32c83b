// Package apiserver runs the API server of benchmarks, a real one, and asks it in plain HTTP: a client library would take more of
// the processor, which the daemon shares.
package apiserver

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

// Client sends requests to the API server, and notes the events of its watches.
type Client struct {
	base, token string
	client      *http.Client

	mu     sync.Mutex
	events map[string][]time.Time // by the event's version, or by the deleted object
}

func newClient(kubeconfig []byte, dial func(ctx context.Context, kind, address string) (net.Conn, error)) (*Client, error) {
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
	return &Client{
		base: k.Clusters[0].Cluster.Server, token: k.Users[0].User.Token, events: map[string][]time.Time{},
		client: &http.Client{Transport: &http.Transport{
			DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		}},
	}, nil
}

// Request is one to the API server.
type Request struct {
	Path string

	method, kind string
	body         []byte
}

// Get returns a request to read a path.
func Get(path string) Request { return Request{Path: path, method: http.MethodGet} }

// Delete deletes it.
func Delete(path string) Request { return Request{Path: path, method: http.MethodDelete} }

// Post makes an object, of JSON.
func Post(path string, body []byte) Request { return post(path, "application/json", body) }

// Merge changes one as a merge patch says (RFC 7386).
func Merge(path string, body []byte) Request {
	return Request{path, http.MethodPatch, "application/merge-patch+json", body}
}

// Patch changes one as a JSON patch says (RFC 6902).
func Patch(path string, body []byte) Request {
	return Request{path, http.MethodPatch, "application/json-patch+json", body}
}

func post(path, kind string, body []byte) Request {
	return Request{path, http.MethodPost, kind, body}
}

func (c *Client) send(ctx context.Context, r Request) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, r.method, c.base+r.Path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Authorization", "Bearer "+c.token)
	if r.kind != "" {
		q.Header.Set("Content-Type", r.kind)
	}
	answer, err := c.client.Do(q)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= http.StatusBadRequest {
		defer answer.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(answer.Body, 8<<10))
		return nil, fmt.Errorf("%s %s: %s: %s", r.method, r.Path, answer.Status, b)
	}
	return answer, nil
}

// Ask returns the version of the object that the server answers with.
func (c *Client) Ask(ctx context.Context, r Request) (version string, err error) {
	answer, err := c.send(ctx, r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var o object
	if err := json.NewDecoder(answer.Body).Decode(&o); err != nil {
		return "", fmt.Errorf("%s %s: decode the answer: %w", r.method, r.Path, err)
	}
	_, _ = io.Copy(io.Discard, answer.Body) // so that the connection can be used again
	return o.Metadata.ResourceVersion, nil
}

// Read returns the whole answer.
func (c *Client) Read(ctx context.Context, path string) ([]byte, error) {
	answer, err := c.send(ctx, Get(path))
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return io.ReadAll(answer.Body)
}

type object struct {
	Metadata struct {
		Namespace       string `json:"namespace"`
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
}

// Watch notes when a watch of a kind in all namespaces receives each change, until ctx ends: the time that the server
// itself needs. It returns when the watch has begun.
func (c *Client) Watch(ctx context.Context, path string) error {
	version, err := c.Ask(ctx, Get(path+"?limit=1"))
	if err != nil {
		return err
	}
	from := func() (*http.Response, error) {
		return c.send(ctx, Get(path+"?watch=1&resourceVersion="+version))
	}
	answer, err := from()
	if err != nil {
		return err
	}
	go func() {
		for ctx.Err() == nil { // the server ends a watch that is slow, or old
			if last := c.follow(answer.Body); last != "" {
				version = last
			}
			answer.Body.Close()
			if answer, err = from(); err != nil && ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "bench: the watch beside the daemon's ends:", err)
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
func (c *Client) follow(in io.Reader) (version string) {
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
		c.mu.Lock()
		c.events[key] = append(c.events[key], at)
		c.mu.Unlock()
	}
}

// Told returns when the watches first received, after a time, a version or the deletion of namespace/name; zero: they
// did not.
func (c *Client) Told(key string, after time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.events[key] {
		if !at.Before(after) {
			return at
		}
	}
	return time.Time{}
}

// Namespace is the daemon's.
const Namespace = "egressway-system"

// Paths of the objects that are changed and watched.
const (
	AllSlices         = "/apis/discovery.k8s.io/v1/endpointslices"
	AllServices       = "/api/v1/services"
	AllEgressServices = "/apis/k8s.ovn.org/v1/egressservices"
	AllPods           = "/api/v1/pods"
)

// Slices is the path of a namespace's EndpointSlices.
func Slices(namespace string) string {
	return "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices"
}

// Services is that of its Services.
func Services(namespace string) string { return "/api/v1/namespaces/" + namespace + "/services" }

// EgressServices is that of its EgressServices.
func EgressServices(namespace string) string {
	return "/apis/k8s.ovn.org/v1/namespaces/" + namespace + "/egressservices"
}

// StatusOf is that of the status of one of them, to be written as the leader does: daemons obey no other writer.
func StatusOf(namespace, name string) string {
	return EgressServices(namespace) + "/" + name + "/status?fieldManager=egressway"
}

// Pods is that of its Pods.
func Pods(namespace string) string { return "/api/v1/namespaces/" + namespace + "/pods" }
