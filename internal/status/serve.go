package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/socket"
	"github.com/egressway/egressway/internal/text"
)

const (
	writeTimeout    = 10 * time.Second // for a client to read an answer
	shutdownTimeout = time.Second      // for running requests when the daemon stops
)

// Serve answers on the socket, and on the metrics address if there is one, until ctx ends.
func (s *Status) Serve(ctx context.Context, c config.Status) error {
	local, err := socket.Listen(ctx, c.Socket)
	if err != nil {
		return fmt.Errorf("status.socket: %w", err)
	}
	defer local.Close()
	var metrics net.Listener
	if c.MetricsAddress != "" {
		if metrics, err = listenMetrics(ctx, c); err != nil {
			return err
		}
		defer metrics.Close()
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// Watching clients are served as long as they stay: each report has a deadline instead.
	servers := []*server{newServer(ctx, "status.socket", local, s.addressed(s.socketMux()), 0)}
	if metrics != nil {
		mux := s.publicMux(c.MetricsTLS)
		servers = append(servers, newServer(ctx, "status.metricsAddress", metrics, mux, writeTimeout))
	}
	var running sync.WaitGroup
	for _, srv := range servers {
		running.Go(func() {
			defer stop()
			srv.serve()
		})
	}
	<-ctx.Done()
	var errs []error
	for _, srv := range servers {
		srv.shutdown()
	}
	running.Wait()
	for _, srv := range servers {
		errs = append(errs, srv.err)
	}
	return errors.Join(errs...)
}

// listenMetrics opens the metrics address, with TLS if the configuration has a certificate.
func listenMetrics(ctx context.Context, c config.Status) (net.Listener, error) {
	var lc net.ListenConfig
	plain, err := lc.Listen(ctx, "tcp", c.MetricsAddress)
	if err != nil {
		return nil, fmt.Errorf("status.metricsAddress: %w", err)
	}
	if c.MetricsTLS.CertFile == "" {
		return plain, nil
	}
	l, err := secured(plain, c.MetricsTLS)
	if err != nil {
		plain.Close()
		return nil, err
	}
	return l, nil
}

// server is an HTTP server on one listener.
type server struct {
	http.Server
	key      string // of the configuration
	listener net.Listener
	err      error // set when serve has returned
}

func newServer(ctx context.Context, key string, l net.Listener, h http.Handler, write time.Duration) *server {
	return &server{key: key, listener: l, Server: http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      write,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}}
}

func (s *server) serve() {
	if err := s.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		s.err = fmt.Errorf("%s: serve on %s: %w", s.key, s.listener.Addr(), err)
	}
}

func (s *server) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if s.Shutdown(ctx) != nil {
		_ = s.Close() // a client that does not read its answer
	}
}

// publicMux serves the public endpoints, and metrics only to the clients that the configuration of TLS admits.
func (s *Status) publicMux(c config.MetricsTLS) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.guarded(s.metrics(), c))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.unhealthy()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.unready()) })
	return mux
}

// socketMux serves the public endpoints and the report, and takes orders: only the daemon's own user can connect to the
// socket.
func (s *Status) socketMux() *http.ServeMux {
	mux := s.publicMux(config.MetricsTLS{})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "1" {
			s.stream(w, r)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.Report()) // the client is gone
	})
	mux.HandleFunc("GET /picture", s.picture)
	mux.HandleFunc("GET /address", s.address)
	mux.HandleFunc("GET /goroutines", goroutines)
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, r *http.Request) { s.order(w, r, true) })
	mux.HandleFunc("DELETE /drain", func(w http.ResponseWriter, r *http.Request) { s.order(w, r, false) })
	return mux
}

// addressed accepts requests whose Host header names this daemon: by an address, localhost, the node's name, or the
// name that the commands use. The owner of another name could point it here after a browser has resolved it (DNS
// rebinding), and the browser would then let that owner's pages read the answers.
func (s *Status) addressed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
		_, err := netip.ParseAddr(host)
		known := []string{"", "localhost", clientHost, s.node}
		if err == nil || slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(host, k) }) {
			h.ServeHTTP(w, r)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
		refusal := fmt.Sprintf("Host %s: ask by an IP address, localhost or the node's name", text.Quote(r.Host))
		http.Error(w, refusal, http.StatusMisdirectedRequest)
	})
}

// picture serves a page for a browser, to which a user forwards the socket.
func (s *Status) picture(w http.ResponseWriter, _ *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	if s.page == nil {
		http.Error(w, "this daemon cannot draw a picture", http.StatusNotImplemented)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = s.page(w, s.Report()) // the client is gone
}

// order passes on the order to drain, or to stop draining. It refuses orders from web pages: a browser would send them
// for any page once the socket is forwarded to its machine.
func (s *Status) order(w http.ResponseWriter, r *http.Request, drain bool) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		http.Error(w, "orders from web pages are refused", http.StatusForbidden)
		return
	}
	if s.drain == nil {
		http.Error(w, "the daemon cannot drain", http.StatusNotImplemented)
		return
	}
	if err := s.drain(drain); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// streamEvery is the shortest time between two reports of a stream.
const streamEvery = 50 * time.Millisecond

// stream sends the current report, and then each later one that differs, one per line.
func (s *Status) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	conn := http.NewResponseController(w)
	var sent []byte
	for {
		p := s.current.Load()
		report := p.report()
		report.Names = s.known()
		if said, err := json.Marshal(report.timeless()); err == nil && !bytes.Equal(said, sent) {
			sent = said
			if !send(w, conn, report) {
				return // the client is gone
			}
		}
		select {
		case <-p.superseded:
		case <-r.Context().Done():
			return
		}
		if !pause.For(r.Context(), streamEvery) { // a report of ten thousand services costs more than most passes
			return
		}
	}
}

// send writes one report of a stream, and reports whether it was sent.
func send(w http.ResponseWriter, conn *http.ResponseController, report Report) bool {
	_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	return json.NewEncoder(w).Encode(report) == nil && conn.Flush() == nil
}

// timeless returns the report without the fields that every pass changes.
func (r Report) timeless() Report {
	r.Applied, r.Duration = time.Time{}, 0
	return r
}

func answer(w http.ResponseWriter, wrong string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if wrong != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, wrong)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (s *Status) unhealthy() string {
	if silent := time.Since(*s.beat.Load()); silent > beatLimit {
		return fmt.Sprintf("the loop has been silent for %s", silent.Round(time.Second))
	}
	return ""
}

func (s *Status) unready() string {
	p := s.current.Load()
	switch r := p.report(); {
	case r.Ready:
		return ""
	case r.Applied.IsZero():
		return "the first pass is not complete"
	case p.unknowing:
		return "not all objects are known yet"
	case r.unserved() != "":
		return "this node is elected host or standby in a network that it does not have: " + r.unserved()
	default:
		return "the kernel is not as planned"
	}
}
