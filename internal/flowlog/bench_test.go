package flowlog

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
)

// BenchmarkFlowLog measures the cost of the flow log for a node with 10,000 new flows a second, each of one UDP packet and with a line.
// Rounds without and with the log follow each other, a second each:
//
//	go test ./internal/flowlog -run - -bench FlowLog -benchtime 10x
//
// The router's time is that of the thread in which the kernel forwards the packets and removes the flows; the log's is that of
// all other threads of this process.
func BenchmarkFlowLog(b *testing.B) {
	const flows, bursts = 10_000, 100
	marks := plan.Marks{Mask: 0x3f00}
	router := netns.FlowRouter(b, marks.Egress(2))
	router.Run("sysctl -qw net.netfilter.nf_conntrack_acct=1 net.netfilter.nf_conntrack_timestamp=1")
	l := New(slog.New(slog.DiscardHandler), "a", marks, func() {})
	objects, p := world()
	settings := config.FlowLog{File: filepath.Join(b.TempDir(), "flows"), EventBuffer: config.Defaults().FlowLog.EventBuffer}
	l.Set(settings, objects, cluster.Everything(), nil, p)
	var routed, logged [2]time.Duration // without and with the log
	round := func(with int) {
		before := used(b, unix.RUSAGE_SELF)
		var own time.Duration
		require.NoError(b, router.Do(func() error {
			start := used(b, unix.RUSAGE_THREAD)
			sender, err := netns.NewFlowSender()
			if err != nil {
				return err
			}
			defer sender.Close()
			tick := time.NewTicker(time.Second / bursts)
			defer tick.Stop()
			for range bursts {
				for range flows / bursts {
					if err := sender.Send(); err != nil {
						return err
					}
				}
				if err := netns.FlushConnections(); err != nil {
					return err
				}
				<-tick.C
			}
			own = used(b, unix.RUSAGE_THREAD) - start
			return nil
		}))
		routed[with] += own
		logged[with] += used(b, unix.RUSAGE_SELF) - before - own
	}
	rounds := 0
	for b.Loop() {
		rounds++
		round(0)
		ctx, cancel := context.WithCancel(b.Context())
		done, lines := make(chan error, 1), l.Counters().Lines
		go func() { done <- router.Do(func() error { l.Run(ctx); return nil }) }()
		netns.Eventually(b, func() bool { return l.Counters().Lines > lines }, "the log begins")
		round(1)
		cancel()
		require.NoError(b, <-done)
	}
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(rounds*flows) }
	c := l.Counters()
	require.EqualValues(b, rounds*(flows+2), c.Lines+c.EventsLost+c.LinesLost) // and two lines of the log itself
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(each(routed[0]), "router-ns/flow")
	b.ReportMetric(each(routed[1])/each(routed[0]), "router-with/without")
	b.ReportMetric(each(logged[1]-logged[0]), "log-ns/flow")
	b.ReportMetric(float64(c.EventsLost+c.LinesLost), "lost")
}

// used returns the processor time of this process, or of the calling thread.
func used(b *testing.B, who int) time.Duration {
	b.Helper()
	var use unix.Rusage
	require.NoError(b, unix.Getrusage(who, &use))
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
