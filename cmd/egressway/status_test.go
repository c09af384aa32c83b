package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/lab"
)

// statusDaemon serves a report with one EgressService on a socket until the test ends or stop is called.
func statusDaemon(t *testing.T) (s *status.Status, socket string, stop func()) {
	t.Helper()
	s, socket = status.New("v0.1.0", "a"), filepath.Join(t.TempDir(), "e.sock")
	publish(s, status.From(&plan.NodePlan{Services: sorted.Of(plan.Service{
		Key: cluster.Key{Namespace: "shop", Name: "web"}, Network: "red", Host: "a", Endpoints: 2,
	})}, nil, nil, status.Pass{Ended: time.Now(), Began: time.Now(), InForce: true}))
	return s, socket, serveStatus(t, s, socket)
}

// publish publishes a report.
func publish(s *status.Status, r status.Report) {
	s.Publish(status.Pass{Began: r.Applied.Add(-r.Duration), Ended: r.Applied}, func() status.Report { return r })
}

// serveStatus serves s on a socket until the test ends or stop is called.
func serveStatus(t *testing.T, s *status.Status, socket string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, config.Status{Socket: socket}) }()
	var ended bool
	stop = func() {
		if !ended {
			ended = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(stop)
	require.Eventually(t, func() bool { _, err := status.Read(t.Context(), socket); return err == nil }, lab.Patience, 5*time.Millisecond)
	return stop
}

func TestStatus(t *testing.T) {
	_, socket, stop := statusDaemon(t)
	require.True(t, running(socket))
	defer func() {
		stop()
		require.False(t, running(socket))
	}()
	run := func(args ...string) string {
		var out, errs bytes.Buffer
		require.Equal(t, 0, execute(append([]string{"status", "--socket", socket}, args...), &out, &errs), errs.String())
		return out.String()
	}
	require.Regexp(t, `(?m)^shop/web +red +a +- +- +2 +- +no +-$`, run())
	require.Regexp(t, `(?m)^shop/web +LoadBalancerIP +red `, run("-o", "wide"))
	var r status.Report
	require.NoError(t, json.Unmarshal([]byte(run("-o", "json")), &r))
	require.Equal(t, "web", r.Services[0].Name)
	r = status.Report{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(run("-o", "yaml")), &r))
	require.Equal(t, "web", r.Services[0].Name)
}

func TestStatusDraws(t *testing.T) {
	_, socket, _ := statusDaemon(t)
	for format, begin := range map[string]string{"dot": "digraph egressway {\n", "svg": "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg "} {
		var out, errs bytes.Buffer
		require.Equal(t, 0, execute([]string{"status", "--socket", socket, "-o", format}, &out, &errs), errs.String())
		require.True(t, strings.HasPrefix(out.String(), begin), out.String())
		require.Contains(t, out.String(), "shop/web")
	}
	var out, errs bytes.Buffer
	require.Equal(t, 1, execute([]string{"status", "--socket", socket, "-o", "svg", "--watch"}, &out, &errs))
	require.Equal(t, "egressway: -o svg: a file has one picture: leave --watch out, or open /picture of the daemon's socket in a browser\n", errs.String())
}

func TestStatusWatch(t *testing.T) {
	for format, change := range map[string]string{"json": `"configStale":true`, "yaml": "configStale: true", "table": "the last good configuration is in force"} {
		t.Run(format, func(t *testing.T) {
			s, socket, stop := statusDaemon(t)
			out, in := io.Pipe()
			code, errs := make(chan int, 1), bytes.Buffer{}
			go func() {
				code <- execute([]string{"status", "--socket", socket, "--watch", "-o", format}, in, &errs)
				in.Close()
			}()
			first := make([]byte, 1) // of the first report
			_, err := out.Read(first)
			require.NoError(t, err)
			r := s.Report()
			r.ConfigStale = true
			publish(s, r)
			var seen strings.Builder
			for b := make([]byte, 4096); !strings.Contains(seen.String(), change); {
				n, err := out.Read(b)
				require.NoError(t, err, seen.String())
				seen.Write(b[:n])
			}
			rest := make(chan struct{})
			go func() { defer close(rest); _, _ = io.Copy(io.Discard, out) }()
			stop()
			require.Equal(t, 1, <-code)
			<-rest
			require.Equal(t, "egressway: the daemon on socket "+socket+" ended\n", errs.String())
		})
	}
}

func TestStatusWithoutDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "e.sock")
	for _, args := range [][]string{{}, {"--watch"}} {
		var out, errs bytes.Buffer
		require.Equal(t, 1, execute(append([]string{"status", "--socket", socket}, args...), &out, &errs))
		require.Empty(t, out.String())
		require.True(t, strings.HasPrefix(errs.String(), "egressway: no daemon answers on socket "+socket+": is it running? See "), errs.String())
		require.Contains(t, errs.String(), "--socket")
	}
	var out, errs bytes.Buffer
	require.Equal(t, 1, execute([]string{"status", "-o", "xml"}, &out, &errs))
	require.Equal(t, "egressway: -o \"xml\": one of table, wide, json, yaml, dot, svg\n", errs.String())
}
