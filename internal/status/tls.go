package status

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/text"
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

// certified reports whether a client has a certificate, which was verified when it connected.
func certified(r *http.Request) bool { return r.TLS != nil && len(r.TLS.VerifiedChains) > 0 }

// guarded serves only clients with a certificate or a token, as the configuration asks.
func (s *Status) guarded(h http.Handler, c config.MetricsTLS) http.Handler {
	if c.ClientCAFile == "" && !c.TokenReview {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch token, has := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); {
		case certified(r):
			h.ServeHTTP(w, r)
		case !c.TokenReview:
			http.Error(w, "a client certificate by an authority of status.metricsTLS.clientCAFile is needed", http.StatusForbidden)
		case !has || token == "":
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a bearer token is needed, of a user who may get the path "+r.URL.Path, http.StatusUnauthorized)
		default:
			s.review(w, r, token, h)
		}
	})
}

// review serves a client whose token belongs to a user who may get the path.
func (s *Status) review(w http.ResponseWriter, r *http.Request, token string, h http.Handler) {
	if s.mayGet == nil {
		http.Error(w, "no API server judges tokens", http.StatusServiceUnavailable)
		return
	}
	switch user, allowed, err := s.mayGet(r.Context(), token, r.URL.Path); {
	case err != nil:
		http.Error(w, "the API server does not judge the token: "+text.Line(err.Error()), http.StatusServiceUnavailable)
	case user == "":
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		http.Error(w, "the API server does not accept the token", http.StatusUnauthorized)
	case !allowed:
		why := fmt.Sprintf("user %s may not get the path %s: a ClusterRole with nonResourceURLs allows it", text.Line(user), r.URL.Path)
		http.Error(w, why, http.StatusForbidden)
	default:
		h.ServeHTTP(w, r)
	}
}
