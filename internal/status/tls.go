package status

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/egressway/egressway/internal/config"
)

// secured has a listener speak TLS. Files are read for each connection, and once now: what is wrong with them is told before
// anybody connects.
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
	certificate, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("status.metricsTLS: certFile %s and keyFile %s: %w", c.CertFile, c.KeyFile, err)
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
	if c.ClientCAFile == "" {
		return t, nil
	}
	authorities, err := os.ReadFile(c.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("status.metricsTLS.clientCAFile: %w", err)
	}
	t.ClientCAs, t.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven // probes of the kubelet have none
	if !t.ClientCAs.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("status.metricsTLS.clientCAFile: %s: no certificate in PEM form", c.ClientCAFile)
	}
	return t, nil
}

// certified answers clients that have shown a certificate. It was verified when they connected.
func certified(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			http.Error(w, "a client certificate by an authority of status.metricsTLS.clientCAFile is needed", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}
