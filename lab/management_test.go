package lab

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/egressway/egressway/lab/kubetest"
)

// ready asks the API server from a node.
func ready(ctx context.Context, n *Node, config *rest.Config) error {
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return err
	}
	from := &http.Transport{TLSClientConfig: tls, DisableKeepAlives: true}
	from.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return n.dial(ctx, network, addr, nil)
	}
	ctx, cancel := limited(ctx)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	r, err := from.RoundTrip(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz: %s", r.Status)
	}
	return nil
}

func TestNodesReachTheAPIServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "two.clab.yml")
	require.NoError(t, os.WriteFile(path, []byte(`
name: two
topology:
  defaults: {kind: linux, network-mode: none, sysctls: {net.ipv6.conf.default.disable_ipv6: 0}}
  nodes:
    a: {}
    b: {}
    pod: {}
  links:
    - {endpoints: ["b:pod1", "pod:eth0"]}
`), 0o644))
	l := deploy(t, path, Options{Management: true})
	require.Equal(t, "10.98.0.10", l.Node("a").Management.String())
	require.Equal(t, "10.98.0.11", l.Node("b").Management.String())
	require.False(t, l.Node("pod").Management.IsValid(), "it has an eth0 of its own")
	// The kernel may take a second to see that a bridge's port has carrier (link_watch.c), and drops what comes by it until then.
	for _, to := range []netip.Addr{l.Node("b").Management, addrs("fd98::11")[0]} {
		require.NoError(t, Wait(t.Context(), Patience, func() error { return l.Node("a").Ping(t.Context(), to, 1400) }))
	}

	started := time.Now()
	s := kubetest.Start(t, kubetest.Options{})
	t.Logf("ready after %s", time.Since(started).Round(time.Millisecond))
	answers := func(n *Node) error {
		ctx, cancel := context.WithTimeout(t.Context(), Patience)
		defer cancel()
		return ready(ctx, n, s.Config())
	}
	for _, n := range []*Node{l.Node("a"), l.Node("b")} {
		require.NoError(t, answers(n))
	}
	// A node that loses its wire is alone with that.
	_, err := l.Node("a").Run(t.Context(), "ip", "link", "set", "eth0", "down")
	require.NoError(t, err)
	require.Error(t, ready(t.Context(), l.Node("a"), s.Config()))
	require.NoError(t, answers(l.Node("b")))

	s.Kill(t)
	require.ErrorContains(t, ready(t.Context(), l.Node("b"), s.Config()), "connection refused")
	s.Up(t)
	require.NoError(t, answers(l.Node("b")))
}
