package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/bench/internal/apiserver"
	"github.com/egressway/egressway/lab/bench/internal/figures"
)

const (
	bigNamespace = "default"
	bigName      = "big"
	bigSlice     = 1000 // endpoints, as many as the API server takes
)

var bigIngress = netip.MustParseAddr("198.19.255.250")

// move measures how long it takes until all endpoints of a large Service have another path: its host moves to the node, and
// away from it.
func (b *bed) move(ctx context.Context, out io.Writer) error {
	if b.big == 0 {
		return nil
	}
	pods := make([]netip.Addr, b.big)
	for i := range pods {
		pods[i] = nth("10.224.0.0", i)
	}
	if err := b.makeBig(ctx, pods); err != nil {
		return err
	}
	var toNode, fromNode, toTold, fromTold figures.Spans
	for i := range b.moves + 1 { // the first is its election
		host, standby, update := 0, 1, announced
		if i%2 == 0 { // the node is not the standby: it has no path for these endpoints yet
			host, standby, update = 1, 2, withdrawn
		}
		sent := time.Now()
		status := fmt.Appendf(nil, `{"status": {"host": %q, "standby": %q, "term": %d}}`, nodeName(host), nodeName(standby), i+1)
		if _, err := b.api.Ask(ctx, apiserver.Merge(apiserver.StatusOf(bigNamespace, bigName), status)); err != nil {
			return err
		}
		if i == 0 { // packets of its pods go on being dropped here: nothing is to be seen
			if err := wait(ctx, apart); err != nil {
				return err
			}
			continue
		}
		committed, told, err := b.moved(ctx, pods, sent, sight{update, bigIngress})
		if err != nil {
			return err
		}
		if host == 0 {
			toNode.Add(sent, committed)
			toTold.Add(sent, told)
		} else {
			fromNode.Add(sent, committed)
			fromTold.Add(sent, told)
		}
		if err := wait(ctx, apart); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "### A Service of %d endpoints moves host\n\nFrom the request that changes `status.host`.\n\n", b.big)
	t := figures.NewTable("host moves", "to", "n", "p50", "p90", "p99", "most")
	for _, r := range []struct {
		from, to string
		times    figures.Spans
	}{
		{"to the node", "nft commit of its last endpoint", toNode},
		{"to the node", "BGP UPDATE", toTold},
		{"to another node", "nft commit of its last endpoint", fromNode},
		{"to another node", "BGP UPDATE", fromTold},
	} {
		if len(r.times) > 0 {
			t.Add(append([]string{r.from, r.to}, r.times.Columns()...)...)
		}
	}
	t.Print(out)
	return nil
}

// moved waits until every endpoint has another path, and the peer has the announcement, and returns both moments.
func (b *bed) moved(ctx context.Context, pods []netip.Addr, sent time.Time, update sight) (committed, told time.Time, err error) {
	err = lab.Wait(ctx, startWithin, func() error {
		for _, pod := range pods {
			at := b.seen.first(sight{added, pod}, sent)
			if at.IsZero() {
				return fmt.Errorf("endpoint %s of %s/%s has no other path", pod, bigNamespace, bigName)
			}
			if at.After(committed) {
				committed = at
			}
		}
		if told = b.seen.first(update, sent); told.IsZero() {
			return errors.New("the peer is not told")
		}
		return nil
	})
	return committed, told, err
}

// makeBig makes the Service, its EndpointSlices and its EgressService, which has no host yet.
func (b *bed) makeBig(ctx context.Context, pods []netip.Addr) error {
	s := &service{namespace: bigNamespace, name: bigName, number: b.services + 1000, ingress: bigIngress}
	requests := []apiserver.Request{
		apiserver.Post(apiserver.Services(bigNamespace), encode(s.core())),
		apiserver.Merge(apiserver.Services(bigNamespace)+"/"+bigName+"/status", encode(map[string]any{"status": s.serviceStatus()})),
		apiserver.Post(apiserver.EgressServices(bigNamespace), encode(s.egressService())),
	}
	for i := 0; i < len(pods); i += bigSlice {
		part := *s
		for k := i; k < min(i+bigSlice, len(pods)); k++ {
			part.endpoints = append(part.endpoints, endpoint{pods[k], k % b.nodes})
		}
		slice := part.slice()
		part.name = fmt.Sprintf("%s-%d", bigName, i/bigSlice)
		slice["metadata"].(map[string]any)["name"] = part.name
		requests = append(requests, apiserver.Post(apiserver.Slices(bigNamespace), encode(slice)))
	}
	began := time.Now()
	for _, r := range requests {
		if _, err := b.api.Ask(ctx, r); err != nil {
			return err
		}
	}
	return lab.Wait(ctx, startWithin, func() error {
		for _, pod := range pods {
			if b.seen.first(sight{added, pod}, began).IsZero() {
				return fmt.Errorf("endpoint %s of %s/%s is not selected", pod, bigNamespace, bigName)
			}
		}
		return nil
	})
}
