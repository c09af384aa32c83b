// Package kube follows the objects of a cluster in a Kubernetes API server, and writes to it: it elects the leader,
// reports each node's state in a Lease, and writes statuses, labels and Events for the leader.
package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/access"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
	"github.com/egressway/egressway/internal/cluster/kube/nodestate"
	"github.com/egressway/egressway/internal/cluster/kube/review"
	"github.com/egressway/egressway/internal/pause"
)

// skewMost is the difference between the server's clock and this node's above which ClockSkew is reported.
const skewMost = time.Minute

// Options name the API server, and hold this node's settings.
type Options struct {
	Kubeconfig string // path; empty: the service account inside a cluster
	Namespace  string // of the Leases
	Node       string
	LabelHosts bool            // keep the label by which MetalLB users select the host's node
	Pods       bool            // follow the Pods of the node from the start, see FollowPods
	Off        cluster.KindSet // do not follow these from the start, see TurnOff
	Version    string          // for the user agent
}

// Cluster follows a cluster's objects, and takes part in the coordination of the daemons.
type Cluster struct {
	log     *slog.Logger
	options Options
	wake    func()
	pauses  pauses
	clients atomic.Pointer[clients] // in use
	source
	coordination

	reviews *review.Reviewer

	reaching sync.Mutex
	reached  []netip.Addr // of the API server, sorted; replaced, never changed
}

// pauses holds the durations that tests shorten.
type pauses struct {
	access   time.Duration // between checks of the kubeconfig
	answer   time.Duration // for a watch to begin, and after its end was due
	doubt    time.Duration // from a doubtful list to the second one; doubles each time
	doubtMax time.Duration
	deletion time.Duration // between two looks whether the CRD of deleted objects stays
	unserved time.Duration // between checks for a kind that the server does not have, if it does not say when it has it

	roster     time.Duration // between looks at the roster of Nodes, if nothing changes
	leaderless time.Duration // without a leader that keeps the roster, until all Nodes are watched
	apart      time.Duration // in which the Nodes differ from the roster, until all are watched

	addresses time.Duration // between two writes of a node's addresses, at least: every daemon gets each of them
}

var usualPauses = pauses{
	access: time.Second, answer: 30 * time.Second, doubt: 2 * time.Second, doubtMax: 30 * time.Second,
	deletion: 100 * time.Millisecond, unserved: 5 * time.Minute,
	roster: time.Second, leaderless: time.Minute, apart: 10 * time.Second, addresses: 5 * time.Second,
}

// init silences client-go's log: this package reports the same errors as Problems.
func init() { klog.SetLogger(klog.Logger{}) }

// New returns a Cluster that does nothing before Run. It calls wake whenever Objects may return something else.
func New(log *slog.Logger, o Options, wake func()) *Cluster {
	c := &Cluster{log: log, options: o, wake: wake, pauses: usualPauses}
	c.source.init(c)
	c.able = make(chan struct{})
	c.reviews = review.New()
	c.states = nodestate.New(o.Node, c.countNodes, c.owners)
	return c
}

// Run follows the cluster until ctx ends. It reports failures as Problems, and tries again.
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

// connect makes clients that report the difference between the server's clock and this node's.
func (c *Cluster) connect() (k clients, err error) {
	k, err = newClients(c.options, func(ahead time.Duration) {
		p := explainSkew(k.server, ahead)
		if p != nil || ahead.Abs() < skewMost/2 { // between the two, rounding and slow answers would make the Problem flap
			c.complain(aboutClock, p)
		}
	}, c.noteReached)
	return k, err
}

// reachedMost bounds the known addresses of the API server.
const reachedMost = 16

// noteReached adds an address at which the API server has answered.
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

// MayGet has the API server say whose token a client has, and whether that user may get a path of this daemon.
func (c *Cluster) MayGet(ctx context.Context, token, path string) (user string, allowed bool, err error) {
	k := c.clients.Load()
	if k == nil {
		return "", false, errors.New("no API server: its kubeconfig or certificate is missing")
	}
	v, err := c.reviews.MayGet(ctx, k.core, token, path)
	return v.User, v.Allowed, err
}

// Reached returns the addresses at which the API server has answered, sorted.
func (c *Cluster) Reached() []netip.Addr {
	c.reaching.Lock()
	defer c.reaching.Unlock()
	return c.reached
}

// serve follows and coordinates with one set of clients, until ctx ends or the kubeconfig changes.
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

// retryMost is the longest pause after a failure.
const retryMost = time.Second

// backoff returns the pauses after failures. They are short, so that an API server that is back is noticed at once, and
// random, so that not all daemons ask at once.
func backoff() *wait.Backoff {
	const first = 100 * time.Millisecond
	return &wait.Backoff{Duration: first + rand.N(first/2), Factor: 2, Jitter: 0.2, Steps: 10, Cap: retryMost}
}

// clients holds the clients of one API server. None has a rate limit: reads are paced by the pauses after failures,
// writes by the number of writers, and the server protects itself.
type clients struct {
	core   kubernetes.Interface
	egress rest.Interface
	raw    rest.Interface // the same kinds, as custom.Object
	server string         // the server's URL
	access []byte         // digest of the kubeconfig and certificates in use
	http   *http.Client

	// granted means that the server has answered a list or watch of EgressServices, and so has read the rights of these clients.
	granted *atomic.Bool
}

// newClients makes clients without connecting. skew is called with each answer and gets how far the server's clock is
// ahead of this node's. reached gets the server's address of each new connection.
func newClients(o Options, skew func(ahead time.Duration), reached func(netip.Addr)) (clients, error) {
	config, digest, err := access.Read(o.Kubeconfig)
	if err != nil {
		return clients{}, err
	}
	config.UserAgent = "egressway/" + o.Version
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := access.Dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
			reached(a.AddrPort().Addr().Unmap())
		}
		return conn, nil
	}
	access.ReadClock(config, skew)
	k := clients{server: config.Host, access: digest, granted: new(atomic.Bool)}
	if k.http, err = rest.HTTPClientFor(config); err != nil {
		return clients{}, fmt.Errorf("make HTTP client: %w", err)
	}
	core := rest.CopyConfig(config)
	core.ContentType = runtime.ContentTypeProtobuf
	core.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if k.core, err = kubernetes.NewForConfigAndClient(core, k.http); err != nil {
		return clients{}, fmt.Errorf("make client: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := egressv1.AddToScheme(scheme); err != nil {
		return clients{}, fmt.Errorf("register types: %w", err)
	}
	for client, scheme := range map[*rest.Interface]*runtime.Scheme{&k.egress: scheme, &k.raw: custom.Scheme()} {
		egress := rest.CopyConfig(config)
		egress.APIPath, egress.GroupVersion = "/apis", &egressv1.GroupVersion
		egress.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		if *client, err = rest.RESTClientForConfigAndClient(egress, k.http); err != nil {
			return clients{}, fmt.Errorf("make client of custom resources: %w", err)
		}
	}
	return k, nil
}

// discovery returns a client without a group: for discovery, and for CRDs.
func (k clients) discovery() rest.Interface { return k.core.Discovery().RESTClient() }

func (k clients) close() { utilnet.CloseIdleConnectionsFor(k.http.Transport) }

// watchAccess returns when the kubeconfig or a certificate has changed, or ctx ends. A file that cannot be read is
// reported, and the clients stay in use.
func (c *Cluster) watchAccess(ctx context.Context, k clients) {
	for pause.For(ctx, c.pauses.access) {
		_, digest, err := access.Read(c.options.Kubeconfig)
		c.complain(aboutAccess, explainAccess(c.options.Kubeconfig, err))
		if err == nil && !bytes.Equal(digest, k.access) {
			c.log.Info("access to the API server has changed, reconnecting", "kubeconfig", c.options.Kubeconfig)
			return
		}
	}
}
