package kubetest

import (
	"testing"

	"k8s.io/client-go/rest"
)

// Server is an API for tests: an error ends the test.
type Server struct{ API *API }

// Start gives the test a fresh API server, until its end.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	a, err := New(tb.Context(), o)
	must(tb, err)
	tb.Cleanup(func() {
		if err := a.Close(); err != nil {
			tb.Error(err)
		}
	})
	return &Server{API: a}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Kubeconfig is the administrator's.
func (s *Server) Kubeconfig() []byte { return s.API.Kubeconfig() }

// Config is the administrator's, without a limit of requests.
func (s *Server) Config() *rest.Config { return s.API.Config() }

// Up starts the server again, on the data, certificates, tokens and port that it had.
func (s *Server) Up(tb testing.TB) {
	tb.Helper()
	must(tb, s.API.Up(tb.Context()))
}

// Kill ends the server as a crash would.
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	must(tb, s.API.Kill(tb.Context()))
}

// Freeze stops the server such that connections can be opened and nothing is answered, until Thaw.
func (s *Server) Freeze(tb testing.TB) {
	tb.Helper()
	must(tb, s.API.Freeze(tb.Context()))
}

// Thaw ends Freeze.
func (s *Server) Thaw(tb testing.TB) {
	tb.Helper()
	must(tb, s.API.Thaw(tb.Context()))
}

// Apply makes objects as YAML documents say, with their status where they have one.
func (s *Server) Apply(tb testing.TB, documents ...string) {
	tb.Helper()
	must(tb, s.API.Apply(tb.Context(), documents...))
}

// Delete deletes the objects that YAML documents name.
func (s *Server) Delete(tb testing.TB, documents ...string) {
	tb.Helper()
	must(tb, s.API.Delete(tb.Context(), documents...))
}

// AwaitCRD waits until a CRD's objects can be asked for.
func (s *Server) AwaitCRD(tb testing.TB, name string) {
	tb.Helper()
	must(tb, s.API.AwaitCRD(tb.Context(), name))
}

// ServiceAccountConfig lets the test be a ServiceAccount that exists.
func (s *Server) ServiceAccountConfig(tb testing.TB, namespace, name string) (config *rest.Config, kubeconfig []byte) {
	tb.Helper()
	config, kubeconfig, err := s.API.ServiceAccountConfig(tb.Context(), namespace, name)
	must(tb, err)
	return config, kubeconfig
}

// Audit returns all requests since the start.
func (s *Server) Audit(tb testing.TB) []Event {
	tb.Helper()
	events, err := s.API.Audit(tb.Context())
	must(tb, err)
	return events
}
