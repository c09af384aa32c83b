package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

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

// TestRecord follows a stream whose datagrams get lost, change their source, come late, and begin again.
func TestRecord(t *testing.T) {
	r := &recorder{streams: map[string]*record{}}
	now := time.Now()
	heard := func(source string, datagrams ...datagram) {
		for _, d := range datagrams {
			now = now.Add(pulse)
			r.heard(d, source, now)
		}
	}
	heard("192.0.2.1", datagram{"pod/4/kept", 7, 2}, datagram{"pod/4/kept", 8, 2}, datagram{"pod/4/kept", 11, 3})
	heard("192.0.2.2", datagram{"pod/4/kept", 10, 2}) // late
	all := r.take(now)
	require.Len(t, all, 1)
	require.Equal(t, map[string]int{"192.0.2.1": 3, "192.0.2.2": 1}, all[0].Sources)
	require.Equal(t, map[string]first{"192.0.2.1": {now.Add(-3 * pulse), 7}, "192.0.2.2": {now, 10}}, all[0].First)
	require.Equal(t, []int{1, 1, 100}, []int{all[0].Lost, all[0].Missing, all[0].SilentMS})

	heard("192.0.2.1", datagram{"pod/4/kept", 14, 3}) // the gap is in this record
	all = r.take(now.Add(time.Second))
	require.Equal(t, []int{2, 0, 1000}, []int{all[0].Lost, all[0].Missing, all[0].SilentMS})
	for n := range 20 {
		heard("192.0.2.1", datagram{"pod/4/kept", 15 + n, 3})
	}
	heard("192.0.2.1", datagram{"pod/4/kept", 1, 0}) // the process has begun again
	all = r.take(now)
	require.Equal(t, map[string]int{"192.0.2.1": 1}, all[0].Sources)
	require.Equal(t, []int{0, 0}, []int{all[0].Lost, all[0].Missing})
}

// TestStreamsAreRecorded sends both kinds of streams to a recorder that answers each datagram.
func TestStreamsAreRecorded(t *testing.T) {
	l, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	r := &recorder{streams: map[string]*record{}}
	go func() { _ = r.serve(l) }()
	go stream("pod/4/kept", l.LocalAddr().String(), pulse, true)
	go stream("pod/4/new", l.LocalAddr().String(), pulse, false)
	heard := map[string]int{}
	require.Eventually(t, func() bool {
		for _, s := range r.take(time.Now()) {
			heard[s.Stream] += s.Sources["127.0.0.1"]
			require.Zero(t, s.Lost+s.Missing)
		}
		return heard["pod/4/kept"] > 30 && heard["pod/4/new"] > 30 // longer than the patience
	}, time.Minute, pulse)
}
