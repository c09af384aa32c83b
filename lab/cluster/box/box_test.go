package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHierarchies reads /proc/self/cgroup of machines with cgroups of version 1, of both, and of version 2.
func TestHierarchies(t *testing.T) {
	require.Equal(t, []hierarchy{{"cpu,cpuacct", "/"}, {"memory", "/a:b"}},
		hierarchies("5:cpu,cpuacct:/\n4:memory:/a:b\n1:name=systemd:/\n0::/\n"))
	require.Empty(t, hierarchies("0::/user.slice\n"))
}

// TestForwardedAnswer asks a server through a forwarder, which hands on the ends of connections too.
func TestForwardedAnswer(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(mirror))
	defer s.Close()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- relayAll(l, s.Listener.Addr().String()) }()
	name, err := os.Hostname()
	require.NoError(t, err)

	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+"/", http.NoBody)
	require.NoError(t, err)
	r.Close = true
	answered, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answered.Body.Close()
	text, err := io.ReadAll(answered.Body)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1 "+name+"\n", string(text))
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
}
