package kube

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/pause"
)

const (
	// A connection whose other end is silent for deadAfter is given up: one that a partition has broken would otherwise be
	// noticed when TCP likes.
	deadAfter = 6 * time.Second
	// dialWithin bounds the time to connect: SYNs are repeated ever more seldom.
	dialWithin = 3 * time.Second
	// skewMost is how much the server's clock may differ from this node's.
	skewMost = time.Minute
)

// clients are the ways to ask one API server. Nothing bounds the rate at which they ask: reads are paced by their pauses
// after failures, writes by the number of writers, and the server by its own means.
type clients struct {
	core   kubernetes.Interface
	egress rest.Interface
	raw    rest.Interface // of EgressServices in their raw form
	server string         // its URL
	access []byte         // digest of what it was made of
	http   *http.Client
}

// newClients makes clients that send nothing yet. Whenever they hear from the server, skew is told how much its clock is
// ahead of this node's; reached gets the server's address of each connection.
func newClients(o Options, skew func(ahead time.Duration), reached func(netip.Addr)) (clients, error) {
	config, digest, err := access(o.Kubeconfig)
	if err != nil {
		return clients{}, err
	}
	config.UserAgent = "egressway/" + o.Version
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
			reached(a.AddrPort().Addr().Unmap())
		}
		return conn, nil
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &clockReader{next, skew} })
	k := clients{server: config.Host, access: digest}
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
	for client, scheme := range map[*rest.Interface]*runtime.Scheme{&k.egress: scheme, &k.raw: rawScheme()} {
		egress := rest.CopyConfig(config)
		egress.APIPath, egress.GroupVersion = "/apis", &egressv1.GroupVersion
		egress.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		if *client, err = rest.RESTClientForConfigAndClient(egress, k.http); err != nil {
			return clients{}, fmt.Errorf("make client of EgressServices: %w", err)
		}
	}
	return k, nil
}

func (k clients) close() { utilnet.CloseIdleConnectionsFor(k.http.Transport) }

// watchAccess returns when what the clients were made of has changed, or ctx ends. What cannot be read changes nothing.
func (c *Cluster) watchAccess(ctx context.Context, k clients) {
	for pause.For(ctx, c.pauses.access) {
		_, digest, err := access(c.options.Kubeconfig)
		c.complain(aboutAccess, explainAccess(c.options.Kubeconfig, err))
		if err == nil && !bytes.Equal(digest, k.access) {
			c.log.Info("the way to the API server has changed, connecting anew", "kubeconfig", c.options.Kubeconfig)
			return
		}
	}
}

// access reads a kubeconfig, or without one the service account of a pod, with all certificates they name. The digest
// tells whether it is the same as before, but for tokens in files, which are read again by themselves.
func access(kubeconfig string) (config *rest.Config, digest []byte, err error) {
	var text []byte
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		text, config, err = readKubeconfig(kubeconfig)
	}
	if err != nil {
		return nil, nil, err
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, nil, err
	}
	t := &config.TLSClientConfig
	t.CAFile, t.CertFile, t.KeyFile = "", "", ""
	h := sha256.New()
	for _, part := range [][]byte{text, []byte(config.Host), t.CAData, t.CertData, t.KeyData} {
		fmt.Fprintf(h, "%d %s", len(part), part)
	}
	return config, h.Sum(nil), nil
}

func readKubeconfig(path string) (text []byte, _ *rest.Config, err error) {
	if text, err = os.ReadFile(path); err != nil {
		return nil, nil, err
	}
	parsed, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, nil, err
	}
	if err := clientcmd.ResolveLocalPaths(parsed); err != nil {
		return nil, nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*parsed, &clientcmd.ConfigOverrides{}).ClientConfig()
	return text, config, err
}

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		Timeout:         dialWithin,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: deadAfter / 2, Interval: deadAfter / 6, Count: 3},
		Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			if e := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadAfter.Milliseconds()))
			}); e != nil {
				return e
			}
			return err
		},
	}
	return d.DialContext(ctx, network, address)
}

// clockReader compares the server's clock with this node's.
type clockReader struct {
	next http.RoundTripper
	read func(ahead time.Duration)
}

// RoundTrip passes a request on.
func (r *clockReader) RoundTrip(q *http.Request) (*http.Response, error) {
	const tooSlow = 5 * time.Second // to tell the time
	began := time.Now()
	answer, err := r.next.RoundTrip(q)
	if err != nil || time.Since(began) > tooSlow {
		return answer, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		r.read(time.Until(date))
	}
	return answer, nil
}

// WrappedRoundTripper is what client-go closes idle connections by.
func (r *clockReader) WrappedRoundTripper() http.RoundTripper { return r.next }
