package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCount(t *testing.T) {
	const log = `{"stage":"ResponseStarted","verb":"watch","requestURI":"/api/v1/nodes?sendInitialEvents=true&watch=true","user":{"username":"node-1"},"objectRef":{"resource":"nodes"},"requestReceivedTimestamp":"2026-01-01T00:00:10.000000Z"}
{"stage":"ResponseComplete","verb":"watch","requestURI":"/api/v1/nodes?watch=true","user":{"username":"node-1"},"objectRef":{"resource":"nodes"},"requestReceivedTimestamp":"2026-01-01T00:00:10.000000Z"}
{"stage":"ResponseComplete","verb":"patch","requestURI":"/apis/x","user":{"username":"node-0"},"objectRef":{"resource":"egressservices","subresource":"status"},"requestReceivedTimestamp":"2026-01-01T00:00:11.000000Z"}
{"stage":"ResponseComplete","verb":"get","requestURI":"/apis/k8s.ovn.org/v1?timeout=32s","user":{"username":"node-0"},"requestReceivedTimestamp":"2026-01-01T00:00:12.000000Z"}
{"stage":"ResponseComplete","verb":"get","requestURI":"/metrics","user":{"username":"admin"},"requestReceivedTimestamp":"2026-01-01T00:00:12.000000Z"}
{"stage":"ResponseComplete","verb":"patch","requestURI":"/apis/x","user":{"username":"node-0"},"objectRef":{"resource":"leases"},"requestReceivedTimestamp":"2026-01-01T00:00:20.000000Z"}
`
	at := func(second int) time.Time { return time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC) }
	w := &window{from: at(10), to: at(20), leader: 0}
	count([]byte(log), 2, []*window{w})
	require.Equal(t, []counts{
		{"patch egressservices/status": 1, "get /apis/k8s.ovn.org/v1": 1},
		{"list and watch nodes": 1},
	}, w.requests)
	leader, others := w.roles("list and watch nodes")
	require.Equal(t, []float64{0, 1}, []float64{leader, others})
}

func TestSeries(t *testing.T) {
	const text = `# HELP apiserver_watch_events_total events
apiserver_watch_events_total{group="",resource="nodes",version="v1"} 12
apiserver_watch_events_total{group="x",resource="leases",version="v1"} 1.5e+03
apiserver_watch_events_total{group="y",resource="leases",version="v1beta1"} 1
apiserver_watch_events_total_more{resource="nodes"} 7
`
	require.Equal(t, counts{"nodes": 12, "leases": 1501}, series(text, "apiserver_watch_events_total"))
}
