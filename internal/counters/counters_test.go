package counters

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/flowlog"
	"github.com/egressway/egressway/internal/flows"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/names"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/lab"
)

// TestMetricsAreDocumented: docs/metrics.md has the metrics that the daemon serves, and no others.
func TestMetricsAreDocumented(t *testing.T) {
	served := status.New("v", "a")
	Flows(served, flows.New(slog.New(slog.DiscardHandler), "a", plan.Marks{Mask: 0x3f00}).Counters)
	FlowLog(served, flowlog.New(slog.New(slog.DiscardHandler), "a", plan.Marks{Mask: 0x3f00}, func() {}).Counters)
	Expect(served)
	served.OnAnswers(func() names.Counts { return names.Counts{} })
	ip := netip.MustParseAddr("203.0.113.10")
	served.OnScrape(true, func() status.Traffic {
		t := status.Traffic{
			Dropped: map[string]uint64{}, PortsKnown: true, Ports: map[netip.Addr]status.InUse{ip: {Connections: 1, Ports: 1}},
			Sent: map[netip.Addr]status.Sent{ip: {Packets: 1, Bytes: 1}},
		}
		t.Dropped[string(ruleset.DropNoPath)] = 1
		return t
	})
	served.OnLead(func() bool { return true })
	served.SetConnections(1, 2)
	Applied(served, kernel.Result{Steps: []kernel.Step{{Applier: kernel.ApplyRules, Err: errors.New("x")}}, Drift: map[kernel.Drift]int{kernel.DriftRule: 1}})
	sessions := []bgp.Session{{Network: "red", Peer: "10.1.0.1", Up: true, Since: time.Now(), BFD: "up"}}
	served.TakeSessions(sessions)
	served.Publish(status.Pass{Ended: time.Now()}, func() status.Report {
		return status.Report{
			Applied: time.Now(), Sessions: []status.Session{status.Session(sessions[0])}, Networks: []status.Network{{Name: "red"}},
			Services: []status.Service{{Namespace: "shop", Name: "web", SourceIPBy: cluster.SourceIPByLoadBalancer, Network: "red", Host: "a", IngressIPs: []netip.Addr{ip}}},
			Problems: []status.Problem{{Reason: "X"}}, ProblemsByReason: map[cluster.Reason]int{"X": 1},
		}
	})

	c := config.Status{Socket: filepath.Join(t.TempDir(), "e.sock")}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- served.Serve(ctx, c) }()
	var text []byte
	require.Eventually(t, func() (answered bool) {
		var err error
		text, err = status.Text(t.Context(), c.Socket, "/metrics", 1<<20)
		return err == nil
	}, lab.Patience, 5*time.Millisecond)
	cancel()
	require.NoError(t, <-done)

	metrics := func(text []byte, pattern string) (all []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			all = append(all, string(m[1]))
		}
		slices.Sort(all)
		require.Equal(t, slices.Compact(slices.Clone(all)), all, "twice")
		return all
	}
	doc, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	require.Equal(t, metrics(text, `(?m)^# TYPE (egressway_\S+)`), metrics(doc, "(?m)^\\| `(egressway_[a-z0-9_]+)` \\|"))
	require.ElementsMatch(t, kernel.Drifts(), listed[kernel.Drift](t, doc, "egressway_drift_repaired_total", "kind"))
	appliers := append(kernel.Appliers(), ApplyBGP, ApplyConnections)
	require.ElementsMatch(t, appliers, listed[kernel.Applier](t, doc, "egressway_apply_duration_seconds", "applier"))
	for _, why := range ruleset.Drops() {
		require.Contains(t, string(doc), "| `"+string(why)+"` |")
	}
}

// listed returns the values of a label that docs/metrics.md lists for a metric, without what is said of them in parentheses.
func listed[V ~string](t *testing.T, doc []byte, metric, label string) (all []V) {
	t.Helper()
	row := regexp.MustCompile("(?m)^\\| `" + metric + "` \\|[^|]*\\| `" + label + "`: ([^|]*) \\|").FindSubmatch(doc)
	require.NotNil(t, row, "the row of %s", metric)
	for value := range strings.SplitSeq(regexp.MustCompile(` \([^)]*\)`).ReplaceAllString(string(row[1]), ""), ", ") {
		all = append(all, V(value))
	}
	return all
}

// TestCountersThatFail: why the kernel's counters cannot be read stands in the log, the metrics have no room for it.
func TestCountersThatFail(t *testing.T) {
	var said bytes.Buffer
	c := NewReader(slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug})), plan.Marks{}, false)
	c.failure(nil)
	require.Empty(t, said.String())
	c.failure(errors.New("list counters: operation not permitted"))
	require.Contains(t, said.String(), `level=DEBUG msg="the kernel's counters cannot be read" error="list counters: operation not permitted"`)
}
