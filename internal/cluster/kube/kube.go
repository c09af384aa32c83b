// Package kube is the cluster as a Kubernetes API server tells it, and what is told to it: who leads, what each node
// reports, and what became of each EgressService.
package kube

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/egressway/egressway/internal/pause"
)

// Options say which API server is asked, and as what.
type Options struct {
	Kubeconfig string // path; empty: the service account inside a cluster
	Namespace  string // of the Leases
	Node       string
	LabelHosts bool   // keep the label by which MetalLB users select the host's node
	Pods       bool   // follow the Pods of the node from the start, see FollowPods
	Version    string // for the user agent
}

// Cluster follows a cluster's objects, and takes part in its coordination.
type Cluster struct {
	log     *slog.Logger
	options Options
	wake    func()
	pauses  pauses
	clients atomic.Pointer[clients] // in use
	source
	coordination

	reaching sync.Mutex
	reached  []netip.Addr // of the API server, sorted; replaced, never changed
}

// pauses are how long to wait for what.
type pauses struct {
	access   time.Duration // between looks at the kubeconfig
	answer   time.Duration // for a watch to begin; longer than it may take
	doubt    time.Duration // from a list that is doubted to the second one; longer each time
	doubtMax time.Duration
	deletion time.Duration // from the deletion of an EgressService to the look at its CRD, which may be on its way out
	unserved time.Duration // between looks for a kind that old servers do not serve
}

var usualPauses = pauses{
	access: time.Second, answer: 30 * time.Second, doubt: 2 * time.Second, doubtMax: 30 * time.Second,
	deletion: 100 * time.Millisecond, unserved: 5 * time.Minute,
}

// What client-go logs is told here, in the words of this package.
func init() { klog.SetLogger(klog.Logger{}) }

// New gives a Cluster that does nothing before Run. wake is called whenever Objects may give something else.
func New(log *slog.Logger, o Options, wake func()) *Cluster {
	c := &Cluster{log: log, options: o, wake: wake, pauses: usualPauses}
	c.source.init(c)
	return c
}

// Run follows the cluster until ctx ends. Whatever fails is told as a Problem and tried again.
func (c *Cluster) Run(ctx context.Context) {
	retry := backoff()
	for ctx.Err() == nil {
		k, err := c.connect()
		c.complain(aboutAccess, explainAccess(c.options.Kubeconfig, err))
		if err != nil {
			pause.For(ctx, retry.Step())
			continue
		}
		retry = backoff()
		c.serve(ctx, k)
	}
}

// connect makes clients that tell of the server's clock.
func (c *Cluster) connect() (k clients, err error) {
	k, err = newClients(c.options, func(ahead time.Duration) {
		p := explainSkew(k.server, ahead)
		if p != nil || ahead.Abs() < skewMost/2 { // between, whole seconds and slow answers would tell now this, now that
			c.complain(aboutClock, p)
		}
	}, c.noteReached)
	return k, err
}

// reachedMost bounds the addresses of the API server that are remembered.
const reachedMost = 16

// noteReached remembers an address at which the API server answers.
func (c *Cluster) noteReached(a netip.Addr) {
	c.reaching.Lock()
	i, known := slices.BinarySearchFunc(c.reached, a, netip.Addr.Compare)
	known = known || len(c.reached) >= reachedMost
	if !known {
		c.reached = slices.Insert(slices.Clone(c.reached), i, a)
	}
	c.reaching.Unlock()
	if !known {
		c.wake()
	}
}

// Reached returns the addresses at which the API server has answered, sorted.
func (c *Cluster) Reached() []netip.Addr {
	c.reaching.Lock()
	defer c.reaching.Unlock()
	return c.reached
}

// serve does everything by one set of clients, until ctx ends or the kubeconfig tells of others.
func (c *Cluster) serve(ctx context.Context, k clients) {
	ctx, cancel := context.WithCancel(ctx)
	defer k.close()
	defer cancel()
	c.clients.Store(&k)
	defer c.clients.Store(nil)
	var g sync.WaitGroup
	g.Go(func() {
		defer cancel()
		c.watchAccess(ctx, k)
	})
	g.Go(func() { c.coordinate(ctx, k) })
	for _, kind := range c.kinds {
		g.Go(func() { kind.follow(ctx, k) })
	}
	g.Wait()
}

// retryMost is the longest pause after what failed.
const retryMost = time.Second

// backoff is the pause after what failed: an API server that is back is noticed at once, by not all daemons at once.
func backoff() *wait.Backoff {
	const first = 100 * time.Millisecond
	return &wait.Backoff{Duration: first + rand.N(first/2), Factor: 2, Jitter: 0.2, Steps: 10, Cap: retryMost}
}
