package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/bench/internal/apiserver"
)

// result holds the measurements with some number of daemons.
type result struct {
	daemons   int
	rest      *window
	restarts  []*window
	endpoints *window
	nodes     *window
	labels    *window
}

// window is a time in which a test did something, with the requests that followed.
type window struct {
	from, to time.Time
	leader   int           // node whose daemon leads
	node     int           // node whose daemon is restarted
	ready    time.Duration // from the daemon's start
	changes  int           // of objects

	requests []counts // of each node
	events   counts   // sent to all watches, by resource
	sizes    counts   // bytes of them
	received counts   // bytes by each node's device, by node
	sent     counts
}

type counts map[string]float64

// during notes the counts of the server and of the devices while f runs.
func (b *bed) during(ctx context.Context, f func(w *window) error) (*window, error) {
	w := &window{}
	var err error
	if w.leader, err = b.leader(ctx); err != nil {
		return nil, err
	}
	before, err := b.read(ctx)
	if err != nil {
		return nil, err
	}
	w.from = time.Now()
	if err := f(w); err != nil {
		return nil, err
	}
	w.to = time.Now()
	after, err := b.read(ctx)
	if err != nil {
		return nil, err
	}
	w.events, w.sizes = after.events.less(before.events), after.sizes.less(before.sizes)
	w.received, w.sent = after.received.less(before.received), after.sent.less(before.sent)
	return w, nil
}

func (c counts) less(d counts) counts {
	c = maps.Clone(c)
	for key, n := range d {
		c[key] -= n
	}
	return c
}

// read reads all counters.
func (b *bed) read(ctx context.Context) (w window, err error) {
	text, err := b.api.Read(ctx, "/metrics")
	if err != nil {
		return w, err
	}
	w.events, w.sizes = series(string(text), "apiserver_watch_events_total"), series(string(text), "apiserver_watch_events_sizes_sum")
	w.received, w.sent = counts{}, counts{}
	for i, n := range b.nodes {
		err := n.Do(func() error {
			for direction, c := range map[string]counts{"rx": w.received, "tx": w.sent} {
				text, err := os.ReadFile("/sys/class/net/eth0/statistics/" + direction + "_bytes")
				if err != nil {
					return err
				}
				if c[nodeName(i)], err = strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return w, fmt.Errorf("%s: read counters of eth0: %w", nodeName(i), err)
		}
	}
	return w, nil
}

// series gives a metric of Prometheus's text format by its label resource.
func series(text, name string) counts {
	c := counts{}
	for line := range strings.Lines(text) {
		labels, ok := strings.CutPrefix(line, name+"{")
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(labels, "} ")
		_, resource, _ := strings.Cut(labels, `resource="`)
		resource, _, _ = strings.Cut(resource, `"`)
		if n, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
			c[resource] += n
		}
	}
	return c
}

// atRest measures daemons to which nothing happens.
func (b *bed) atRest(ctx context.Context, r *result) (err error) {
	if err := b.agreed(ctx); err != nil {
		return err
	}
	r.rest, err = b.during(ctx, func(*window) error { return sleep(ctx, b.rest) })
	return err
}

// agreed waits until the daemons write nothing but their Leases' times: hosts are elected, and all daemons have the
// result in force.
func (b *bed) agreed(ctx context.Context) error {
	return lab.Wait(ctx, agreeWithin, func() error {
		w := &window{from: time.Now(), to: time.Now().Add(quiet)}
		if err := sleep(ctx, quiet); err != nil {
			return err
		}
		log, err := b.api.File("audit.log")
		if err != nil {
			return err
		}
		count(log, len(b.nodes), []*window{w})
		for i, c := range w.requests {
			for kind, n := range c {
				if kind != "update leases" && (kind != renewal || n > 1) {
					return fmt.Errorf("%s still asks: %s", nodeName(i), kind)
				}
			}
		}
		return nil
	})
}

// restart restarts daemons one after the other, as a rolling update does.
func (b *bed) restart(ctx context.Context, r *result) error {
	for i := range min(b.restarts, len(b.nodes)) {
		w, err := b.during(ctx, func(w *window) error {
			w.node = i
			if err := b.daemons[i].Stop(ctx); err != nil {
				return err
			}
			began := time.Now()
			if err := b.start(ctx, i); err != nil {
				return err
			}
			w.ready = time.Since(began)
			return sleep(ctx, 2*time.Second) // it goes on to report the objects that it has made
		})
		if err != nil {
			return err
		}
		r.restarts = append(r.restarts, w)
	}
	return nil
}

// endpointsChange has EndpointSlices change, as a rolling update of a workload does: each time an endpoint is replaced.
func (b *bed) endpointsChange(ctx context.Context, r *result) (err error) {
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	r.endpoints, err = b.during(ctx, func(w *window) error {
		return b.paced(ctx, w, int(b.rate*b.churn.Seconds()), func(n int) apiserver.Request {
			service := n % b.services
			slice := apiserver.Slices(fmt.Sprintf("team-%d", service%50)) + fmt.Sprintf("/seed-%d", service)
			fresh := netip.AddrFrom4([4]byte{10, 160, byte(n >> 8), byte(n)})
			return apiserver.Patch(slice, fmt.Appendf(nil, `[{"op": "replace", "path": "/endpoints/0/addresses/0", "value": %q}]`, fresh))
		})
	})
	return err
}

// nodesReport has every Node's status change, as kubelets write it every five minutes.
func (b *bed) nodesReport(ctx context.Context, r *result) (err error) {
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	r.nodes, err = b.during(ctx, func(w *window) error {
		return b.paced(ctx, w, len(b.nodes), heartbeat)
	})
	return err
}

// nodesChange has a label of every Node change, which the daemons of all other nodes get to know.
func (b *bed) nodesChange(ctx context.Context, r *result) (err error) {
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	r.labels, err = b.during(ctx, func(w *window) error {
		return b.paced(ctx, w, len(b.nodes), func(n int) apiserver.Request {
			return apiserver.Merge("/api/v1/nodes/"+nodeName(n), []byte(`{"metadata": {"labels": {"bench": "new"}}}`))
		})
	})
	return err
}

// paced changes objects at the rate, and waits until their effects are over.
func (b *bed) paced(ctx context.Context, w *window, number int, change func(n int) apiserver.Request) error {
	tick := time.NewTicker(time.Duration(float64(time.Second) / b.rate))
	defer tick.Stop()
	for n := range number {
		if _, err := b.api.Ask(ctx, change(n)); err != nil {
			return err
		}
		w.changes++
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return sleep(ctx, 2*time.Second)
}
