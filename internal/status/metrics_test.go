package status

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

func scrape(tb testing.TB, s *Status) string {
	tb.Helper()
	w := httptest.NewRecorder()
	s.publicMux(config.MetricsTLS{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	require.Equal(tb, http.StatusOK, w.Code)
	return w.Body.String()
}

// TestFlaps: a session is lost once, however long it stays down, and also where it came back before anybody looked.
func TestFlaps(t *testing.T) {
	s := New("", "a")
	up := func(since time.Duration) []bgp.Session {
		return []bgp.Session{{Network: "red", Peer: "10.1.0.1", Up: true, Since: noon.Add(since)}}
	}
	down := []bgp.Session{{Network: "red", Peer: "10.1.0.1", Since: noon}}
	for _, step := range []struct {
		sessions []bgp.Session
		lost     int
	}{{down, 0}, {up(1), 0}, {up(1), 0}, {down, 1}, {down, 1}, {up(2), 1}, {up(3), 2}} {
		s.TakeSessions(step.sessions)
		require.Contains(t, scrape(t, s), fmt.Sprintf("egressway_bgp_session_flaps_total{network=\"red\",peer=\"10.1.0.1\"} %d\n", step.lost))
	}
	s.TakeSessions(nil)
	require.NotContains(t, scrape(t, s), "flaps_total{", "a peer that is not configured any more")
}

// TestMetricsEscape has labels carry what a terminal would obey.
func TestMetricsEscape(t *testing.T) {
	const hostile = "a\x1b[2J\u009b\u202e\x7f\x9b\nb"
	s := New(hostile, "a")
	s.OnScrape(true, traffic)
	addrs := []netip.Addr{netip.MustParseAddr("203.0.113.10")}
	publish(s, Report{
		Node: "a", Applied: noon,
		Services:         []Service{{Namespace: hostile, Name: hostile, Network: hostile, Host: "a", SourceIPBy: cluster.SourceIPByLoadBalancer, IngressIPs: addrs}},
		Networks:         []Network{{Name: hostile}},
		Sessions:         []Session{{Network: hostile, Peer: hostile, BFD: "up"}},
		ProblemsByReason: map[cluster.Reason]int{hostile: 1},
	})
	s.TakeSessions([]bgp.Session{{Network: hostile, Peer: hostile}})
	out := scrape(t, s)
	require.NotRegexp(t, `[^\n\x20-\x7e]`, out)
	for _, name := range []string{"egressservice_info", "egressservice_sent_packets_total", "network_usable", "bgp_session_up", "bgp_session_flaps_total", "problems", "build_info"} {
		require.Regexp(t, `(?m)^egressway_`+name+`\{.*"[^"]*a\\\\x1b\[2J\\\\u009b\\\\u202e\\\\x7f\\\\x9b\\\\nb[^"]*".*\}`, out, name)
	}
}

// TestNetworksOfOtherNodesAreNotUnusable: a node has no network_usable for a network that the configuration gives to other nodes. The value 0
// would raise an alert that never ends.
func TestNetworksOfOtherNodesAreNotUnusable(t *testing.T) {
	s := New("", "a")
	publish(s, Report{Node: "a", Applied: noon, Networks: []Network{{Name: "red"}, {Name: "blue", Elsewhere: true}}})
	text := scrape(t, s)
	require.Contains(t, text, `egressway_network_usable{network="red"} 0`)
	require.NotContains(t, text, `egressway_network_usable{network="blue"}`)
}

// TestNoServicesInMetrics: without perService nothing names one.
func TestNoServicesInMetrics(t *testing.T) {
	s := withPass(t)
	s.OnScrape(false, traffic)
	text := scrape(t, s)
	require.NotContains(t, text, "shop/")
	require.NotContains(t, text, "203.0.113")
	require.Contains(t, text, "egressway_snat_ports_used 800\n")
}

// TestCountersUnreadable: what cannot be read is missing, and that is told.
func TestCountersUnreadable(t *testing.T) {
	s := withPass(t)
	s.OnScrape(true, func() Traffic { return Traffic{Err: http.ErrServerClosed} })
	text := scrape(t, s)
	require.Contains(t, text, "egressway_kernel_counters_ok 0\n")
	require.NotContains(t, text, "egressway_snat_")
}

// BenchmarkScrape is a scrape of a node that is the host of very many services, but for what the kernel does.
func BenchmarkScrape(b *testing.B) {
	for _, n := range []int{100, 2_500, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var services []plan.Service
			t := Traffic{Sent: map[netip.Addr]Sent{}, Ports: map[netip.Addr]InUse{}}
			for i := range n {
				a := netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})
				services = append(services, plan.Service{
					Key: cluster.Key{Namespace: "shop", Name: fmt.Sprint("web-", i)}, Network: "red", Host: "a", IngressIPs: []netip.Addr{a}, Announced: []netip.Addr{a},
				})
				t.Sent[a], t.Ports[a] = Sent{1000, 100_000}, InUse{50, 10}
			}
			s := New("", "a")
			s.OnScrape(true, func() Traffic { return t })
			p := &plan.NodePlan{Services: sorted.Of(services...)}
			b.ReportAllocs()
			used := func() (nanoseconds int64) {
				var u unix.Rusage
				require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
				return u.Utime.Nano() + u.Stime.Nano()
			}
			before := used()
			defer func() { b.ReportMetric(float64(used()-before)/float64(b.N)/1e6, "cpu-ms/op") }()
			for b.Loop() {
				done := Pass{Ended: time.Now()}
				s.Publish(done, func() Report { return From(p, nil, nil, done) }) // a report is made once for each pass
				b.ReportMetric(float64(strings.Count(scrape(b, s), "\n")), "lines")
			}
		})
	}
}
