package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// Load reads the files that a MetricsTLS names.
func (t MetricsTLS) Load() (*tls.Config, error) {
	certificate, err := readAtMost(t.CertFile, maxSize)
	if err != nil {
		return nil, fmt.Errorf("certFile: %w", err)
	}
	key, err := readAtMost(t.KeyFile, maxSize)
	if err != nil {
		return nil, fmt.Errorf("keyFile: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("certFile %s and keyFile %s: %w", t.CertFile, t.KeyFile, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if t.ClientCAFile == "" {
		return c, nil
	}
	authorities, err := readAtMost(t.ClientCAFile, maxSize)
	if err != nil {
		return nil, fmt.Errorf("clientCAFile: %w", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven // probes of the kubelet have none
	if !c.ClientCAs.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("clientCAFile: %s: no certificate in PEM form", t.ClientCAFile)
	}
	return c, nil
}
