package status

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/lab"
)

// serve serves s until the test ends, or the returned function is called, and waits for its socket.
func serve(t *testing.T, s *Status, c config.Status) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, c) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		require.NoError(t, <-done)
		require.NoFileExists(t, c.Socket)
	}
	t.Cleanup(stop)
	require.Eventually(t, func() bool { _, err := Read(t.Context(), c.Socket); return err == nil }, lab.Patience, 5*time.Millisecond)
	return stop
}

func socketIn(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "run", "e.sock")
}

func withPass(t *testing.T) *Status {
	t.Helper()
	s := New("v0.1.0", "a")
	publish(s, From(pass()))
	return s
}

// ask gets a path from the socket or, where address is given, from there.
func ask(t *testing.T, socket, address, path string) (int, string) {
	t.Helper()
	var d net.Dialer
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if address == "" {
		address = "egressway"
		client.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func TestServe(t *testing.T) {
	s, c := withPass(t), config.Status{Socket: socketIn(t), MetricsAddress: freePort(t)}
	serve(t, s, c)
	info, err := os.Stat(c.Socket)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	info, err = os.Stat(filepath.Dir(c.Socket))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode().Perm())

	r, err := Read(t.Context(), c.Socket)
	require.NoError(t, err)
	require.Equal(t, "a", r.Node)
	require.Len(t, r.Services, 5)
	for _, address := range []string{"", c.MetricsAddress} {
		for _, path := range []string{"/healthz", "/readyz"} {
			code, body := ask(t, c.Socket, address, path)
			require.Equal(t, http.StatusOK, code, path)
			require.Equal(t, "ok\n", body)
		}
		code, body := ask(t, c.Socket, address, "/metrics")
		require.Equal(t, http.StatusOK, code, body)
		require.Contains(t, body, `egressway_bgp_session_up{network="red",peer="10.1.0.1"} 1`)
		require.Contains(t, body, "go_goroutines")
	}
	for _, path := range []string{"/status", "/picture"} {
		code, _ := ask(t, c.Socket, c.MetricsAddress, path)
		require.Equal(t, http.StatusNotFound, code, "the report is the owner's business: %s", path)
	}
}

func TestServePicture(t *testing.T) {
	c := config.Status{Socket: socketIn(t)}
	s := withPass(t)
	s.OnPicture(func(w io.Writer, r Report) error {
		_, err := io.WriteString(w, "<html>"+r.Node)
		return err
	})
	serve(t, s, c)
	code, body := ask(t, c.Socket, "", "/picture")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "<html>a", body)

	without := config.Status{Socket: socketIn(t)}
	serve(t, New("", "a"), without)
	code, _ = ask(t, without.Socket, "", "/picture")
	require.Equal(t, http.StatusNotImplemented, code)
}

// TestServeForeignHost: a web page whose owner has its name lead to a forwarded socket learns nothing there, by no path.
func TestServeForeignHost(t *testing.T) {
	c := config.Status{Socket: socketIn(t)}
	s := withPass(t)
	s.OnPicture(func(io.Writer, Report) error { return nil })
	s.OnDrain(func(bool) error { t.Error("drained"); return nil })
	serve(t, s, c)
	var d net.Dialer
	send := func(method, host, path string) int {
		t.Helper()
		conn, err := d.DialContext(t.Context(), "unix", c.Socket)
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, method+" "+path+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		defer resp.Body.Close()
		return resp.StatusCode
	}
	for _, host := range []string{"localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080", "10.0.0.11:80", "a", "A:8080", "egressway", ""} {
		require.Equal(t, http.StatusOK, send(http.MethodGet, host, "/status"), host)
	}
	for _, host := range []string{"evil.example", "evil.example:8080", "localhost.evil.example", "a.evil.example", "127.0.0.1.evil.example", "x"} {
		for _, path := range []string{"/status", "/status?watch=1", "/picture", "/address?is=10.0.0.1", "/goroutines", "/metrics", "/healthz", "/readyz"} {
			require.Equal(t, http.StatusMisdirectedRequest, send(http.MethodGet, host, path), host+path)
		}
		require.Equal(t, http.StatusMisdirectedRequest, send(http.MethodPost, host, "/drain"), host)
	}
}

func TestServeReplacesAnAbandonedSocket(t *testing.T) {
	c := config.Status{Socket: socketIn(t)}
	require.NoError(t, os.MkdirAll(filepath.Dir(c.Socket), 0o755))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Socket})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	require.FileExists(t, c.Socket)
	serve(t, New("", "a"), c)
}

func TestServeTwice(t *testing.T) {
	c := config.Status{Socket: socketIn(t), MetricsAddress: freePort(t)}
	serve(t, New("", "a"), c)
	err := New("", "a").Serve(t.Context(), c)
	require.EqualError(t, err, "status.socket: another daemon answers on "+c.Socket)
	_, err = Read(t.Context(), c.Socket)
	require.NoError(t, err, "the first one is not disturbed")

	other := config.Status{Socket: socketIn(t), MetricsAddress: c.MetricsAddress}
	err = New("", "a").Serve(t.Context(), other)
	require.ErrorContains(t, err, "status.metricsAddress: listen tcp "+c.MetricsAddress)
	require.ErrorContains(t, err, "address already in use")
	require.NoFileExists(t, other.Socket)
}

func TestServeRefusesForeignFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))
	err := New("", "a").Serve(t.Context(), config.Status{Socket: file})
	require.EqualError(t, err, "status.socket: "+file+" exists and is not a socket")
	require.FileExists(t, file)
	err = New("", "a").Serve(t.Context(), config.Status{Socket: filepath.Join(file, "e.sock")})
	require.ErrorContains(t, err, "status.socket: create the socket's folder")
}

func TestFollow(t *testing.T) {
	s, c := withPass(t), config.Status{Socket: socketIn(t)}
	stop := serve(t, s, c)
	reports, ended := make(chan Report), make(chan error, 1)
	go func() {
		ended <- Follow(t.Context(), c.Socket, func(r Report) error { reports <- r; return nil })
	}()
	require.False(t, (<-reports).ConfigStale)

	p, problems, sessions, done := pass()
	done.Ended = noon.Add(time.Second)
	publish(s, From(p, problems, sessions, done)) // says nothing else
	done.Ended, done.ConfigStale = noon.Add(2*time.Second), true
	publish(s, From(p, problems, sessions, done))
	r := <-reports
	require.True(t, r.ConfigStale)
	require.Equal(t, noon.Add(2*time.Second), r.Applied)

	enough := errors.New("enough")
	require.ErrorIs(t, Follow(t.Context(), c.Socket, func(Report) error { return enough }), enough)
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, Follow(ctx, c.Socket, func(Report) error { cancel(); return nil }))

	stop()
	require.EqualError(t, <-ended, "the daemon on socket "+c.Socket+" ended")
}

// A client that takes nothing must not keep the daemon from stopping.
func TestStopWithAStuckClient(t *testing.T) {
	s, c := withPass(t), config.Status{Socket: socketIn(t)}
	stop := serve(t, s, c)
	conn, err := net.Dial("unix", c.Socket)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /status?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	publish(s, Report{Errors: []string{strings.Repeat("more than a socket holds ", 1<<18)}})
	_, err = io.ReadFull(conn, make([]byte, 1<<16)) // it is being sent
	require.NoError(t, err)
	stop()
}

func TestNoDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "e.sock")
	_, err := Read(t.Context(), socket)
	require.ErrorIs(t, err, ErrNoDaemon)
	require.EqualError(t, err, "no daemon answers on socket "+socket)
	require.ErrorIs(t, Follow(t.Context(), socket, nil), ErrNoDaemon)
}

func TestHealthAndReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New("", "a")
		mux := s.publicMux(config.MetricsTLS{})
		get := func(path string) (int, string) {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
			return w.Code, w.Body.String()
		}
		require.Equal(t, "", s.unhealthy())
		code, body := get("/readyz")
		require.Equal(t, http.StatusServiceUnavailable, code)
		require.Equal(t, "the first pass is not complete\n", body)
		unknowing := Pass{Began: time.Now(), Ended: time.Now(), Unknowing: true}
		s.Publish(unknowing, func() Report { return From(nil, nil, nil, unknowing) })
		_, body = get("/readyz")
		require.Equal(t, "not all objects are known yet\n", body)
		publish(s, From(nil, nil, nil, Pass{Began: time.Now(), Ended: time.Now()}))
		_, body = get("/readyz")
		require.Equal(t, "the kernel is not as planned\n", body)

		time.Sleep(beatLimit) //nolint:forbidigo // passes at once under synctest
		require.Equal(t, "", s.unhealthy())
		time.Sleep(time.Second) //nolint:forbidigo // passes at once under synctest
		code, body = get("/healthz")
		require.Equal(t, http.StatusServiceUnavailable, code)
		require.Equal(t, "the loop has been silent for 1m1s\n", body)
		s.Beat()
		code, _ = get("/healthz")
		require.Equal(t, http.StatusOK, code)
	})
}

// traffic is what the kernel may have counted on the node of pass.
func traffic() Traffic {
	return Traffic{
		Dropped: map[string]uint64{"no-path": 5, "guard": 0},
		Sent:    map[netip.Addr]Sent{ip("203.0.113.10"): {Packets: 10, Bytes: 840}, ip("2001:db8::10"): {}},
		Ports: map[netip.Addr]InUse{
			ip("203.0.113.10"): {Connections: 700, Ports: 400}, ip("203.0.113.13"): {Connections: 1, Ports: 1}, ip("10.1.0.2"): {Connections: 900, Ports: 800},
		},
		PortsKnown: true, PortsLimit: 64512,
	}
}

func TestMetrics(t *testing.T) {
	s := withPass(t)
	s.OnScrape(true, traffic)
	s.OnLead(func() bool { return true })
	s.Expect([]string{"rules", "bgp"}, []string{"rule", "vrf"})
	s.Applied("rules", 3*time.Millisecond, nil)
	s.Applied("bgp", time.Millisecond, errors.New("no speaker"))
	s.Repaired("rule", 2)
	s.NodeLost()
	s.Stage(StageDetect, 300*time.Millisecond)
	s.Stage(StageSteer, -time.Millisecond) // the clock was set
	s.Reloaded(nil)
	s.Reloaded(errors.New("bad"))
	s.SetConnections(80, 100)
	publish(s, s.Report()) // no pass
	publish(s, From(nil, nil, nil, Pass{Began: noon, Ended: noon.Add(time.Second), Err: errors.New("failed")}))
	p, problems, sessions, done := pass()
	done.Ended = noon.Add(2 * time.Second)
	publish(s, From(p, problems, sessions, done))

	w := httptest.NewRecorder()
	s.publicMux(config.MetricsTLS{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	text := w.Body.String()
	var stable strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "egressway_") && !strings.HasPrefix(line, "egressway_config_last_reload") && !strings.Contains(line, "_bucket{") {
			stable.WriteString(strings.ReplaceAll(line, runtime.Version(), "go"))
		}
	}
	golden(t, "metrics.txt", stable.String())
	complaints, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	for _, c := range complaints {
		require.NotContains(t, c.Metric, "egressway_", c.Text)
	}
}
