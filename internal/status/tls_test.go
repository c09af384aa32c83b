package status

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
)

// certificate writes one for 127.0.0.1 and its key, signed by itself.
func certificate(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
}

func TestMetricsByTLS(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	certificate(t, file("tls.crt"), file("tls.key"), 1)
	certificate(t, file("client.crt"), file("client.key"), 7)
	client, err := tls.LoadX509KeyPair(file("client.crt"), file("client.key"))
	require.NoError(t, err)
	c := config.Status{Socket: socketIn(t), MetricsAddress: freePort(t), MetricsTLS: config.MetricsTLS{CertFile: file("tls.crt"), KeyFile: file("tls.key")}}
	get := func(path string, certificates ...tls.Certificate) (code int, serial int64) {
		t.Helper()
		authority, err := os.ReadFile(file("tls.crt"))
		require.NoError(t, err)
		known := x509.NewCertPool()
		require.True(t, known.AppendCertsFromPEM(authority))
		asker := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: known, Certificates: certificates},
		}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+c.MetricsAddress+path, http.NoBody)
		require.NoError(t, err)
		resp, err := asker.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		return resp.StatusCode, resp.TLS.PeerCertificates[0].SerialNumber.Int64()
	}

	stop := serve(t, withPass(t), c)
	code, serial := get("/metrics")
	require.Equal(t, http.StatusOK, code)
	require.EqualValues(t, 1, serial)
	code, body := ask(t, c.Socket, c.MetricsAddress, "/metrics")
	require.Equal(t, http.StatusBadRequest, code, "not in the clear: %s", body)
	certificate(t, file("tls.crt"), file("tls.key"), 2)
	_, serial = get("/metrics")
	require.EqualValues(t, 2, serial, "a renewed certificate is taken at once")
	stop()

	c.MetricsTLS.ClientCAFile = file("client.crt")
	stop = serve(t, withPass(t), c)
	for path, want := range map[string]int{"/metrics": http.StatusForbidden, "/healthz": http.StatusOK, "/readyz": http.StatusOK} {
		code, _ = get(path)
		require.Equal(t, want, code, path)
	}
	code, _ = get("/metrics", client)
	require.Equal(t, http.StatusOK, code)
	stop()

	for key, broken := range map[string]func(*config.MetricsTLS){
		"status.metricsTLS: certFile":      func(m *config.MetricsTLS) { m.CertFile = file("none") },
		"status.metricsTLS: clientCAFile:": func(m *config.MetricsTLS) { m.ClientCAFile = file("client.key") },
	} {
		bad := c
		broken(&bad.MetricsTLS)
		require.ErrorContains(t, New("v0.1.0", "a").Serve(t.Context(), bad), key)
	}
}
