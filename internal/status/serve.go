package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/egressway/egressway/internal/config"
)

const (
	writeTimeout    = 10 * time.Second // for a client to take an answer
	shutdownTimeout = time.Second      // for answers under way when the daemon stops
)

// Serve answers on the socket, and on the metrics address if there is one, until ctx ends.
func (s *Status) Serve(ctx context.Context, c config.Status) error {
	socket, err := listenSocket(ctx, c.Socket)
	if err != nil {
		return fmt.Errorf("status.socket: %w", err)
	}
	defer socket.Close()
	var metrics net.Listener
	if c.MetricsAddress != "" {
		var lc net.ListenConfig
		if metrics, err = lc.Listen(ctx, "tcp", c.MetricsAddress); err != nil {
			return fmt.Errorf("status.metricsAddress: %w", err)
		}
		defer metrics.Close()
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// Watching clients are answered for as long as they stay: they have a deadline for each report instead.
	servers := []*server{newServer(ctx, "status.socket", socket, s.socketMux(), 0)}
	if metrics != nil {
		servers = append(servers, newServer(ctx, "status.metricsAddress", metrics, s.publicMux(), writeTimeout))
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
		_ = s.Close() // a client that does not take its answer
	}
}

// listenSocket makes the socket, accessible to its owner only, and its folder. It replaces a socket on which nobody
// answers: a daemon that was killed left it.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the socket's folder: %w", err)
	}
	// Two daemons that start at once must not both find the socket abandoned and remove each other's.
	lock, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock the socket's folder: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock the socket's folder %s: %w", dir, err)
	}
	// Linux gives the file the mode that the socket has when it is bound: there is no moment at which others may connect.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var chmod error
		err := c.Control(func(fd uintptr) { chmod = syscall.Fchmod(int(fd), 0o600) })
		return errors.Join(err, chmod)
	}}
	l, err := lc.Listen(ctx, "unix", path)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if err := removeAbandoned(ctx, path); err != nil {
		return nil, err
	}
	return lc.Listen(ctx, "unix", path)
}

func removeAbandoned(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s is there already and is no socket", path)
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("another daemon answers on %s", path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("another daemon may use %s: %w", path, err)
	}
	return os.Remove(path)
}

// publicMux serves what anybody may know.
func (s *Status) publicMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.unhealthy()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.unready()) })
	return mux
}

// socketMux serves that and the report.
func (s *Status) socketMux() *http.ServeMux {
	mux := s.publicMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "1" {
			s.stream(w, r)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.Report()) // the client is gone
	})
	return mux
}

// stream sends a report a line: the current one and, whenever it says something else, the then current one.
func (s *Status) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	conn := http.NewResponseController(w)
	var sent []byte
	for {
		p := s.current.Load()
		if said, err := json.Marshal(p.timeless()); err == nil && !bytes.Equal(said, sent) {
			sent = said
			_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
			if json.NewEncoder(w).Encode(p.Report) != nil || conn.Flush() != nil {
				return // the client is gone
			}
		}
		select {
		case <-p.superseded:
		case <-r.Context().Done():
			return
		}
	}
}

// timeless is the report without what every pass changes.
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
	switch r := s.Report(); {
	case r.Ready:
		return ""
	case r.Applied.IsZero():
		return "the first pass is not complete"
	default:
		return "the kernel is not as planned"
	}
}
