package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/lab/kubetest"
)

// reviewRights are a daemon's account that may have tokens reviewed, and two accounts of scrapers, one of which may read metrics.
const reviewRights = `
{apiVersion: v1, kind: Namespace, metadata: {name: sys}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: daemon, namespace: sys}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: prometheus, namespace: sys}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: stranger, namespace: sys}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: reviewer}, rules: [
  {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]},
  {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: reviewer}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reviewer},
  subjects: [{kind: ServiceAccount, name: daemon, namespace: sys}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: reader}, rules: [{nonResourceURLs: [/metrics], verbs: [get]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: reader}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader},
  subjects: [{kind: ServiceAccount, name: prometheus, namespace: sys}]}`

// TestMetricsByToken scrapes a daemon's metrics by TLS with tokens of an API server: only the account that may get the path reads them,
// health needs no token, and scrapes ask the API server once.
func TestMetricsByToken(t *testing.T) {
	server := kubetest.Start(t, kubetest.Options{Args: []string{"-endpointslice=false", "-run-pods=false"}})
	server.Apply(t, reviewRights)
	token := func(name string) string {
		c, _ := server.ServiceAccountConfig(t, "sys", name)
		return c.BearerToken
	}
	dir := t.TempDir()
	_, kubeconfig := server.ServiceAccountConfig(t, "sys", "daemon")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kubeconfig"), kubeconfig, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cluster := New(slog.New(slog.DiscardHandler), Options{Kubeconfig: filepath.Join(dir, "kubeconfig"), Namespace: "sys", Node: "a"}, func() {})
	served := status.New("v1", "a")
	served.OnToken(cluster.MayGet)
	c := config.Status{Socket: filepath.Join(dir, "s"), MetricsAddress: freeAddress(t), MetricsTLS: config.MetricsTLS{
		CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"), TokenReview: true,
	}}
	pool := selfSigned(t, c.MetricsTLS.CertFile, c.MetricsTLS.KeyFile)
	ended := make(chan error, 2)
	go func() { cluster.Run(ctx); ended <- nil }()
	go func() { ended <- served.Serve(ctx, c) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	}()

	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}}}
	get := func(path, token string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+c.MetricsAddress+path, http.NoBody)
		require.NoError(t, err)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		a, err := client.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer a.Body.Close()
		body, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		return a.StatusCode, string(body)
	}
	may, mayNot := token("prometheus"), token("stranger")
	require.Eventually(t, func() bool { code, _ := get("/metrics", may); return code == http.StatusOK }, soon, step)
	for range 5 {
		code, body := get("/metrics", may)
		require.Equal(t, http.StatusOK, code)
		require.Contains(t, body, "egressway_build_info")
	}
	code, body := get("/metrics", mayNot)
	require.Equal(t, http.StatusForbidden, code)
	require.Contains(t, body, "user system:serviceaccount:sys:stranger may not get the path /metrics")
	code, body = get("/metrics", "forged"+may)
	require.Equal(t, http.StatusUnauthorized, code, body)
	code, body = get("/metrics", "")
	require.Equal(t, http.StatusUnauthorized, code)
	require.Contains(t, body, "a bearer token is needed")
	code, _ = get("/healthz", "")
	require.Equal(t, http.StatusOK, code, "the kubelet has no token")

	reviews := 0
	for _, e := range server.Audit(t) {
		if e.User == "system:serviceaccount:sys:daemon" && (e.Resource == "tokenreviews" || e.Resource == "subjectaccessreviews") {
			require.Equal(t, http.StatusCreated, e.Code)
			reviews++
		}
	}
	require.Equal(t, 5, reviews, "two for each account, one for the forged token")
	refused := 0
	for range 30 { // guesses
		if code, _ := get("/metrics", rand.Text()); code == http.StatusServiceUnavailable {
			refused++
		}
	}
	require.Positive(t, refused, "each random token is reviewed")
	code, _ = get("/metrics", may)
	require.Equal(t, http.StatusOK, code, "guesses do not keep a known scraper away")
}

// freeAddress returns an address of the loopback interface with a free port.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// selfSigned writes a certificate for 127.0.0.1 and its key, and returns its authority.
func selfSigned(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	require.NoError(t, os.WriteFile(certFile, certificate, 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(certificate))
	return pool
}
