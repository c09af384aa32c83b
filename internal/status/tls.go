package status

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"

	"github.com/egressway/egressway/internal/config"
)

// secured makes a listener use TLS. The files are read for each connection, and once now, so that their errors are
// found before any client connects.
func secured(l net.Listener, c config.MetricsTLS) (net.Listener, error) {
	if _, err := tlsConfig(c); err != nil {
		return nil, err
	}
	return tls.NewListener(l, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return tlsConfig(c) },
	}), nil
}

func tlsConfig(c config.MetricsTLS) (*tls.Config, error) {
	t, err := c.Load()
	if err != nil {
		return nil, fmt.Errorf("status.metricsTLS: %w", err)
	}
	return t, nil
}

// certified serves only clients with a certificate, which was verified when they connected.
func certified(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			http.Error(w, "a client certificate by an authority of status.metricsTLS.clientCAFile is needed", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}
