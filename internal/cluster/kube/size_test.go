package kube

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab/kubetest"
)

// BenchmarkSync follows a cluster of 10,000 Services with an EgressService each, 100,000 endpoints and 1,000 Nodes until all are
// // known, and reports the memory in use then.
//
//	KUBELAB=$(lab/kubelab/build.sh) go test ./internal/cluster/kube -run - -bench Sync -benchtime 5x
func BenchmarkSync(b *testing.B) {
	crd, err := os.ReadFile(ourCRD)
	require.NoError(b, err)
	s := kubetest.Start(b, kubetest.Options{Args: []string{"-endpointslice=false", "-run-pods=false", "-seed-services=10000", "-seed-nodes=1000"}})
	s.Apply(b, string(crd))
	path := filepath.Join(b.TempDir(), "kubeconfig")
	require.NoError(b, os.WriteFile(path, s.Kubeconfig(), 0o600))
	held := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := held()
	var bytes uint64
	var spent time.Duration
	for b.Loop() {
		began := processorTime(b)
		woken := make(chan struct{}, 1)
		c := New(slog.New(slog.DiscardHandler), Options{Kubeconfig: path, Namespace: "default", Node: "node-0"}, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Run(ctx)
		}()
		for ok := false; !ok; {
			select {
			case <-woken:
			case <-ctx.Done():
				b.Fatal("not synced within a minute")
			}
			var endpoints int
			objects, _, _, synced := c.Objects()
			for _, e := range objects.Endpoints.All() {
				endpoints += len(e)
			}
			ok = synced && objects.EgressServices.Len() == 10_000 && objects.Services.Len() >= 10_000 && endpoints >= 100_000 && objects.Nodes.Len() == 1_000
		}
		b.StopTimer()
		spent += processorTime(b) - began
		bytes = held() - before
		cancel()
		<-done
		b.StartTimer()
	}
	b.ReportMetric(float64(bytes)/(1<<20), "MiB-held")
	b.ReportMetric(float64(spent.Milliseconds())/float64(b.N), "cpu-ms/op")
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(b, err)
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); f[0] == "VmHWM:" {
			kib, err := strconv.Atoi(f[1])
			require.NoError(b, err)
			b.ReportMetric(float64(kib)/(1<<10), "MiB-RSS-peak")
		}
	}
}

// processorTime returns this process's CPU time: the API server, on the same processors, uses most of the time.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
