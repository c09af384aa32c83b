package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// metric is a series of a node's, written as Prometheus shows it; false: there is none.
func metric(t *testing.T, s *stage.Stage, node, series string) (float64, bool) {
	t.Helper()
	for line := range strings.Lines(metrics(t, s, node)) {
		if text, ok := strings.CutPrefix(line, series+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			require.NoError(t, err, line)
			return value, true
		}
	}
	return 0, false
}

// awaitMetric waits until a series of a node's is as it should be.
func awaitMetric(t *testing.T, s *stage.Stage, node, series string, wanted func(float64) bool) (value float64) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		now, there := metric(t, s, node, series)
		if !there || !wanted(now) {
			return fmt.Errorf("node %s tells %s %v (there: %t)", node, series, now, there)
		}
		value = now
		return nil
	}))
	return value
}

func atLeast(least float64) func(float64) bool { return func(v float64) bool { return v >= least } }
func exactly(want float64) func(float64) bool  { return func(v float64) bool { return v == want } }

// TestMetrics: what Prometheus is told follows packets, peers and nodes.
func TestMetrics(t *testing.T) {
	s := play(t, stage.Options{
		Nodes: []string{"a", "b", "c"}, BFD: true, BFDInterval: 1000, Manifests: oneFile(t),
		Config: func(c string) string { return c + "status: {serviceCounters: true}\n" },
	})
	ctx := t.Context()
	all := asDeployed()
	awaitServed(t, s, all)
	const host, standby = "a", "c"
	awaitWatched(t, s, host, standby, "b")
	const web = `{egressservice="shop/web",network="red",role=`
	awaitMetric(t, s, host, `egressway_egressservice_info`+web+`"host"}`, exactly(1))
	awaitMetric(t, s, standby, `egressway_egressservice_info`+web+`"standby"}`, exactly(1))

	t.Run("sent", func(t *testing.T) {
		for _, to := range outside {
			ingressIP, header := "192.0.2.10", 28
			if to.Addr().Is6() {
				ingressIP, header = "2001:db8:2::10", 48
			}
			labels := fmt.Sprintf(`{egressservice="shop/web",ingress_ip=%q}`, ingressIP)
			packets, bytes := "egressway_egressservice_sent_packets_total"+labels, "egressway_egressservice_sent_bytes_total"+labels
			before := awaitMetric(t, s, host, packets, atLeast(0))
			sizes := awaitMetric(t, s, host, bytes, atLeast(0))
			const questions, size = 200, 1000
			for range questions / 2 {
				for _, pod := range []string{"a-p1", "b-p1"} { // one of the host's, one that is steered to it
					_, err := s.Node(pod).AskUDP(ctx, to, size)
					require.NoError(t, err)
				}
			}
			rise := awaitMetric(t, s, host, packets, atLeast(before+questions)) - before
			require.LessOrEqual(t, rise, questions+40.0, "the rest of what was asked before")
			rise = awaitMetric(t, s, host, bytes, atLeast(sizes+float64(questions*(size+header)))) - sizes
			require.LessOrEqual(t, rise, float64(questions*(size+header)+40*100))
			_, counted := metric(t, s, standby, packets)
			require.True(t, counted, "the standby counts too")
		}
		awaitMetric(t, s, host, `egressway_egressservice_snat_ports_used{egressservice="shop/web",ingress_ip="192.0.2.10"}`, atLeast(1))
		awaitMetric(t, s, host, "egressway_kernel_counters_ok", exactly(1))
	})

	t.Run("dropped", func(t *testing.T) {
		const noPath = `egressway_dropped_packets_total{reason="no-path"}`
		before := awaitMetric(t, s, host, noPath, atLeast(0))
		const nowhere = "network: red\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: nowhere}}\n"
		require.NoError(t, s.Edit(ctx, "shop.yaml", "network: red\n", nowhere))
		awaitDropped(t, s, "a-p1")
		awaitMetric(t, s, host, noPath, atLeast(before+1))
		awaitMetric(t, s, host, `egressway_egressservices_by_state{state="nohost"}`, exactly(1))
		require.NoError(t, s.Edit(ctx, "shop.yaml", nowhere, "network: red\n"))
		awaitAll(t, s, all)
		awaitMetric(t, s, host, `egressway_egressservices_by_state{state="nohost"}`, exactly(0))
	})

	t.Run("session", func(t *testing.T) {
		const peer = `{network="red",peer="10.1.0.1"}`
		awaitMetric(t, s, host, "egressway_bgp_session_up"+peer, exactly(1))
		awaitMetric(t, s, host, "egressway_bfd_session_up"+peer, exactly(1))
		before := awaitMetric(t, s, host, "egressway_bgp_session_flaps_total"+peer, atLeast(0))
		require.NoError(t, lab.KillFRR(ctx, s.Node("red1")))
		awaitMetric(t, s, host, "egressway_bgp_session_up"+peer, exactly(0))
		awaitMetric(t, s, host, "egressway_bgp_session_flaps_total"+peer, exactly(before+1))
		awaitMetric(t, s, host, `egressway_bgp_session_up{network="red",peer="10.1.0.2"}`, exactly(1))
	})

	t.Run("drift", func(t *testing.T) {
		const rules = `egressway_drift_repaired_total{kind="rule"}`
		before := awaitMetric(t, s, "b", rules, atLeast(0))
		_, err := s.Node("b").Run(ctx, "ip", "rule", "del", "priority", "799")
		require.NoError(t, err)
		awaitMetric(t, s, "b", rules, atLeast(before+1))
	})

	t.Run("failover", func(t *testing.T) {
		before := awaitMetric(t, s, standby, "egressway_failovers_total", atLeast(0))
		awaitMetric(t, s, standby, "egressway_watched_nodes_silent", exactly(0))
		require.NoError(t, s.Freeze(host))
		awaitMetric(t, s, standby, "egressway_failovers_total", atLeast(before+1))
		awaitMetric(t, s, standby, "egressway_watched_nodes_silent", exactly(1))
		for _, stage := range []string{"detect", "steer", "announce"} {
			awaitMetric(t, s, standby, fmt.Sprintf(`egressway_failover_duration_seconds_count{stage=%q}`, stage), atLeast(1))
		}
		awaitMetric(t, s, standby, `egressway_egressservice_info`+web+`"host"}`, exactly(1))
		require.NoError(t, s.Thaw(host))
	})
}
