package kube

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// leaseName is the Lease whose holder leads.
	leaseName = "egressway"

	// What is asked for, as kubectl names it.
	leaseResource = "leases.coordination.k8s.io"
	eventResource = "events"
	nodeResource  = "nodes"

	// requestWithin bounds a request, so that a server that is silent is noticed.
	requestWithin = 10 * time.Second
)

// coordination is what a Cluster needs to agree with the daemons of the other nodes: what this one tells of itself, and
// which of them leads.
type coordination struct {
	timing timing
	report report
	lease  sighting
	term   atomic.Pointer[term] // while this daemon leads
	pruned atomic.Bool
}

// timing is how long things may take. The durations of Leases are whole seconds.
type timing struct {
	lease time.Duration // how long the leader's Lease lasts
	renew time.Duration // how long the leader tries to renew it before it gives up
	retry time.Duration // how often it does

	life time.Duration // how long a node's Lease lasts
	beat time.Duration // how often it is renewed
}

var usualTiming = timing{
	lease: 15 * time.Second, renew: 10 * time.Second, retry: 2 * time.Second,
	life: 60 * time.Second, beat: 20 * time.Second,
}

// coordinate takes this node's part in agreeing until ctx ends. A leader gives the Lease back then.
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

// outcome tells how a request about a resource went that is repeated until it succeeds.
func (c *Cluster) outcome(k clients, request, resource string, err error) {
	if err == nil {
		c.complain(request, nil)
		return
	}
	c.complain(request, explain(k.server, resource, err))
}
