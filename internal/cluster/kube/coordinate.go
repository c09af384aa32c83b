package kube

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// leaseName is the name of the Lease whose holder leads.
	leaseName = "egressway"

	// Resources in requests of the coordination, as kubectl names them.
	leaseResource = "leases.coordination.k8s.io"
	eventResource = "events"
	nodeResource  = "nodes"

	// requestWithin bounds a request, so that a server that does not answer is noticed.
	requestWithin = 10 * time.Second
)

// coordination holds a Cluster's part in coordinating the daemons of all nodes: this node's report, and the leader's
// election.
type coordination struct {
	timing timing
	report report
	lease  sighting
	term   atomic.Pointer[term] // while this daemon leads
	pruned atomic.Bool
}

// timing holds the durations of the coordination. Those of Leases are whole seconds.
type timing struct {
	lease time.Duration // how long the leader's Lease lasts
	renew time.Duration // how long the leader tries to renew it before it stops leading
	retry time.Duration // how often the leader tries

	life time.Duration // how long a node's Lease lasts
	beat time.Duration // how often a node renews its Lease
}

var usualTiming = timing{
	lease: 15 * time.Second, renew: 10 * time.Second, retry: 2 * time.Second,
	life: 60 * time.Second, beat: 20 * time.Second,
}

// coordinate reports this node, watches the leader's Lease and stands for election until ctx ends. A leader then
// releases its Lease.
func (c *Cluster) coordinate(ctx context.Context, k clients) {
	if c.timing == (timing{}) {
		c.timing = usualTiming
	}
	var g sync.WaitGroup
	g.Go(func() { c.tellReports(ctx, k) })
	g.Go(func() { c.watchLease(ctx, k) })
	g.Go(func() { c.contend(ctx, k) })
	g.Wait()
}

// outcome reports the error of a request that is repeated until it succeeds, as a Problem; nil withdraws the Problem.
func (c *Cluster) outcome(k clients, request, resource string, err error) {
	if err == nil {
		c.complain(request, nil)
		return
	}
	c.complain(request, explain(k.server, resource, err))
}
