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
	// deadAfter is how long the server may be silent before its connection is closed. TCP alone would notice a partition
	// much later.
	deadAfter = 6 * time.Second
	// dialWithin bounds the time to connect: TCP doubles its pause after each SYN without an answer.
	dialWithin = 3 * time.Second
	// skewMost is the difference between the server's clock and this node's above which ClockSkew is reported.
	skewMost = time.Minute
)

// clients holds the clients of one API server. None has a rate limit: reads are paced by the pauses after failures,
// writes by the number of writers, and the server protects itself.
type clients struct {
	core   kubernetes.Interface
	egress rest.Interface
	raw    rest.Interface // EgressServices as rawEgressService
	server string         // the server's URL
	access []byte         // digest of the kubeconfig and certificates in use
	http   *http.Client
}

// newClients makes clients without connecting. skew is called with each answer and gets how far the server's clock is
// ahead of this node's. reached gets the server's address of each new connection.
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

// watchAccess returns when the kubeconfig or a certificate has changed, or ctx ends. A file that cannot be read is
// reported, and the clients stay in use.
func (c *Cluster) watchAccess(ctx context.Context, k clients) {
	for pause.For(ctx, c.pauses.access) {
		_, digest, err := access(c.options.Kubeconfig)
		c.complain(aboutAccess, explainAccess(c.options.Kubeconfig, err))
		if err == nil && !bytes.Equal(digest, k.access) {
			c.log.Info("access to the API server has changed, reconnecting", "kubeconfig", c.options.Kubeconfig)
			return
		}
	}
}

// access reads the kubeconfig, or the pod's service account if kubeconfig is empty, with all certificates that it
// names. The digest changes with any of them, but not with tokens in files: client-go re-reads those itself.
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

// RoundTrip sends a request, and reads the server's clock from the answer's Date header.
func (r *clockReader) RoundTrip(q *http.Request) (*http.Response, error) {
	const tooSlow = 5 * time.Second // a slower answer's Date is too old
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

// WrappedRoundTripper returns the transport whose idle connections client-go closes.
func (r *clockReader) WrappedRoundTripper() http.RoundTripper { return r.next }
