// Package access reads the kubeconfig, and connects to the API server so that a silent one is noticed.
package access

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// deadAfter is how long the server may be silent before its connection is closed. TCP alone would notice a partition
	// much later.
	deadAfter = 6 * time.Second
	// dialWithin bounds the time to connect: TCP doubles its pause after each SYN without an answer.
	dialWithin = 3 * time.Second
)

// Read reads the kubeconfig, or the pod's service account if kubeconfig is empty, with all certificates that it
// names. The digest changes with any of them, but not with tokens in files: client-go re-reads those itself.
func Read(kubeconfig string) (config *rest.Config, digest []byte, err error) {
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

// Dial connects with keepalives and timeouts by which a partition is noticed.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
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

// ReadClock makes a client's requests call read with how far the server's clock is ahead of this node's, by each answer.
func ReadClock(config *rest.Config, read func(ahead time.Duration)) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &clockReader{next, read} })
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
