package status

import (
	"bufio"
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
)

// FuzzRequest has the socket, and the metrics address, answer anything that is HTTP.
func FuzzRequest(f *testing.F) {
	for _, line := range []string{"GET /status", "GET /status?watch=1", "GET /metrics", "GET /healthz", "GET /readyz", "POST /drain", "DELETE /drain", "GET //../status", "OPTIONS *", "CONNECT x:1"} {
		f.Add([]byte(line + " HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"))
	}
	f.Add([]byte("GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text;q=x,*/*\r\n\r\n"))
	s := New("v0.1.0", "a")
	drained := 0
	s.drain = func(bool) error { drained++; return nil }
	local, public := s.socketMux(), s.publicMux(config.MetricsTLS{})
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, mux := range []*http.ServeMux{local, public} {
			r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(data)))
			if err != nil {
				return
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // a stream would not end
			before := drained
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r.WithContext(ctx))
			require.GreaterOrEqual(t, w.Code, 200)
			require.Less(t, w.Code, 600)
			if mux == public {
				require.Equal(t, before, drained, "nobody but root gives orders")
				require.False(t, r.Method != http.MethodGet && r.Method != http.MethodHead && w.Code == http.StatusOK, "%s %s", r.Method, r.URL)
			}
		}
	})
}
