package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/egressway/egressway/lab/bench/internal/apiserver"
)

// label is the label by which the configuration may select pods.
const label = "egress-bench"

// pod is a new pod, with the times at which its objects were written.
type pod struct {
	number  int
	addr    netip.Addr
	service *service // nil: it is no endpoint
	begun   time.Time
	address write // of its address
	slice   write // of its place in the EndpointSlice
}

// write is one to the API server.
type write struct {
	sent, answered time.Time
	version        string
}

// service is one of those whose host is the node, with its endpoints beside the new ones.
type service struct {
	namespace, name string
	ingress         netip.Addr

	mu        sync.Mutex
	endpoints []map[string]any
}

// ours are the Services that the node is the host of, as kubelab seeds them.
func (b *bed) ours() (all []*service) {
	for i := 0; i < b.services; i += b.hosts {
		s := &service{namespace: "default", name: fmt.Sprintf("seed-%d", i), ingress: nth(netip.MustParseAddr("198.18.0.0"), i)}
		if b.namespaces > 0 {
			s.namespace = fmt.Sprintf("team-%d", i%b.namespaces)
		}
		for e := range b.endpoints {
			k := i*b.endpoints + e
			s.endpoints = append(s.endpoints, endpoint(s.namespace, fmt.Sprintf("%s-%d", s.name, e),
				nth(netip.MustParseAddr("10.128.0.0"), k), fmt.Sprintf("node-%d", k%b.nodes)))
		}
		all = append(all, s)
	}
	return all
}

func endpoint(namespace, name string, addr netip.Addr, node string) map[string]any {
	return map[string]any{
		"addresses": []string{addr.String()}, "nodeName": node,
		"conditions": map[string]any{"ready": true, "serving": true, "terminating": false},
		"targetRef":  map[string]any{"kind": "Pod", "namespace": namespace, "name": name},
	}
}

// pods has pods come at the rate, and waits until the last one has ended.
func (b *bed) pods(ctx context.Context) ([]*pod, error) {
	var (
		all     []*pod
		ours    = b.ours()
		living  sync.WaitGroup
		mu      sync.Mutex
		failed  error
		began   = time.Now()
		between = time.Duration(float64(time.Second) / b.rate)
	)
	if most := int(b.rate * b.lasting.Seconds()); most >= 1<<16-2 {
		return nil, fmt.Errorf("%d pods: at most %d have an address", most, 1<<16-2)
	}
	for n := 0; time.Since(began) < b.lasting && ctx.Err() == nil; n++ {
		p := &pod{number: n, addr: nth(netip.MustParseAddr("10.160.0.1"), n)}
		if !b.unselected || n%2 == 0 {
			p.service = ours[n%len(ours)]
		}
		all = append(all, p)
		living.Go(func() {
			if err := b.live(ctx, p); err != nil {
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
		if !sleep(ctx, time.Until(began.Add(time.Duration(n+1)*between))) {
			break
		}
	}
	living.Wait()
	return all, errors.Join(failed, ctx.Err())
}

// live is a pod's life, in the order that a cluster has: it is bound to the node, runs, is known by its address, is an
// endpoint, and goes.
func (b *bed) live(ctx context.Context, p *pod) error {
	namespace, name := "default", fmt.Sprintf("new-%d", p.number)
	labels := map[string]any{"app": "other"}
	if p.service != nil {
		namespace, labels = p.service.namespace, map[string]any{"app": p.service.name, label: "held"}
	}
	_, err := b.api.Ask(ctx, apiserver.Post(apiserver.Pods(namespace), encode(map[string]any{
		"metadata": map[string]any{"name": name, "labels": labels},
		"spec":     map[string]any{"nodeName": ownNode, "containers": []any{map[string]any{"name": "c", "image": "example.org/c"}}},
	})))
	if err != nil {
		return err
	}
	p.begun = time.Now()
	b.sender.add(p)
	defer b.sender.remove(p)
	at := p.begun.Add(b.addressAfter)
	sleep(ctx, time.Until(at))
	addresses := map[string]any{"status": map[string]any{
		"phase": "Running", "podIP": p.addr.String(),
		"podIPs": []any{map[string]any{"ip": p.addr.String()}},
	}}
	if err := b.write(ctx, &p.address, apiserver.Merge(apiserver.Pods(namespace)+"/"+name+"/status", encode(addresses))); err != nil {
		return err
	}
	if p.service != nil {
		sleep(ctx, time.Until(at.Add(b.sliceAfter)))
		own := endpoint(namespace, name, p.addr, ownNode)
		if err := b.place(ctx, p.service, &p.slice, func(all []map[string]any) []map[string]any { return append(all, own) }); err != nil {
			return err
		}
	}
	sleep(ctx, b.stay)
	b.sender.remove(p)
	if p.service != nil {
		err = b.place(ctx, p.service, new(write), func(all []map[string]any) []map[string]any {
			return slices.DeleteFunc(all, func(e map[string]any) bool { return e["addresses"].([]string)[0] == p.addr.String() })
		})
	}
	_, gone := b.api.Ask(ctx, apiserver.Delete(apiserver.Pods(namespace)+"/"+name+"?gracePeriodSeconds=0"))
	return errors.Join(err, gone)
}

// place changes the endpoints of a Service.
func (b *bed) place(ctx context.Context, s *service, w *write, change func([]map[string]any) []map[string]any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoints = change(s.endpoints)
	return b.write(ctx, w, apiserver.Merge(apiserver.Slices(s.namespace)+"/"+s.name, encode(map[string]any{"endpoints": s.endpoints})))
}

func (b *bed) write(ctx context.Context, w *write, r apiserver.Request) (err error) {
	w.sent = time.Now()
	w.version, err = b.api.Ask(ctx, r)
	w.answered = time.Now()
	return err
}

// sleep reports whether the time has passed before the end of ctx.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// encode returns JSON. Its argument must be a value that can be encoded.
func encode(o any) []byte {
	b, _ := json.Marshal(o)
	return b
}
