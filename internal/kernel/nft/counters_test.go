package nft

import (
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

func TestTally(t *testing.T) {
	var s tally
	for _, c := range []struct{ shown, sum Count }{
		{Count{3, 300}, Count{3, 300}},
		{Count{5, 400}, Count{5, 400}},
		{Count{1, 60}, Count{6, 460}}, // recreated
		{Count{0, 0}, Count{6, 460}},
		{Count{2, 90}, Count{8, 550}},
	} {
		s.take(c.shown)
		require.Equal(t, c.sum, s.sum)
	}
}

func TestDropsAreCounted(t *testing.T) {
	netns.Enter(t)
	out, err := exec.Command("sh", "-ec", `ip link set lo up
		ip link add eth2 type dummy
		ip link set eth2 up
		ip addr add 10.244.1.99/24 dev eth2
		ip route add default dev eth2`).CombinedOutput()
	require.NoError(t, err, string(out))
	var counts Counts
	none, err := counts.Dropped()
	require.NoError(t, err, "without a table")
	require.Len(t, none, len(ruleset.Drops()))

	var n keptTable
	d := stories.DataPlane()
	_, err = n.Apply(t.Context(), d)
	require.NoError(t, err)
	send := func() {
		t.Helper()
		c, err := net.Dial("udp", "198.51.100.1:9")
		require.NoError(t, err)
		defer c.Close()
		_, _ = c.Write([]byte("ten bytes.")) // EPERM, since it is dropped
	}
	dropped := func() Count {
		t.Helper()
		all, err := counts.Dropped()
		require.NoError(t, err)
		for why, c := range all {
			if why != ruleset.DropPodSource {
				require.Zero(t, c, why)
			}
		}
		return all[ruleset.DropPodSource]
	}
	require.Zero(t, dropped())
	send()
	send()
	require.Equal(t, Count{2, 76}, dropped())

	// Counters survive when rules are rewritten, and sums survive when the table is recreated.
	d.Paths = d.Paths[:2]
	d.Endpoints = sorted.Of(d.Endpoints.Slice()[0])
	_, err = n.Apply(t.Context(), d)
	require.NoError(t, err)
	send()
	require.Equal(t, Count{3, 114}, dropped())
	require.NoError(t, n.Cleanup())
	require.Equal(t, Count{3, 114}, dropped())
	n.Close()
	_, err = n.Apply(t.Context(), d)
	require.NoError(t, err)
	send()
	require.Equal(t, Count{4, 152}, dropped())

	// Another daemon starts with the kernel's counters.
	var next Counts
	all, err := next.Dropped()
	require.NoError(t, err)
	require.Equal(t, Count{1, 38}, all[ruleset.DropPodSource])
}

func TestSentIsCountedPerIngressIP(t *testing.T) {
	netns.Enter(t)
	var n keptTable
	var counts Counts
	d := stories.DataPlane()
	apply := func() {
		t.Helper()
		_, err := n.Apply(t.Context(), d)
		require.NoError(t, err)
	}
	sent := func() map[netip.Addr]Count {
		t.Helper()
		all, err := counts.Sent()
		require.NoError(t, err)
		return all
	}
	apply()
	require.NotContains(t, netns.Ruleset(t), ruleset.SetCounted)
	require.Empty(t, sent(), "it is not counted")

	d.CountSent = true
	counted := func(addr string) plan.IngressIP {
		return plan.IngressIP{Addr: netip.MustParseAddr(addr), Path: 2, Counted: true}
	}
	d.Ingress = sorted.Of(counted("203.0.113.10"), counted("2001:db8:203::10"), plan.IngressIP{Addr: netip.MustParseAddr("203.0.113.11"), Path: 2})
	apply()
	require.Equal(t, map[netip.Addr]Count{netip.MustParseAddr("203.0.113.10"): {}, netip.MustParseAddr("2001:db8:203::10"): {}}, sent())
	first := netns.Ruleset(t)
	apply()
	require.Equal(t, first, netns.Ruleset(t))

	// A new daemon adopts the existing table.
	n.Close()
	n = keptTable{}
	apply()
	require.Equal(t, first, netns.Ruleset(t))
	d.Ingress = sorted.Of(counted("203.0.113.11"))
	apply()
	require.Equal(t, map[netip.Addr]Count{netip.MustParseAddr("203.0.113.11"): {}}, sent())
	d.CountSent, d.Ingress = false, sorted.Of(plan.IngressIP{Addr: netip.MustParseAddr("203.0.113.11"), Path: 2})
	apply()
	require.NotContains(t, netns.Ruleset(t), ruleset.SetCounted)
	require.Empty(t, sent())
}

// BenchmarkReadCounters measures the kernel's cost of a scrape on a node that is the host of very many services.
func BenchmarkReadCounters(b *testing.B) {
	netns.New(b)
	var n keptTable
	d := stories.DataPlane()
	d.CountSent = true
	var ingress []plan.IngressIP
	for i := range 10_000 {
		ingress = append(ingress, plan.IngressIP{Addr: netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), Path: 2, Counted: true})
	}
	d.Ingress = sorted.Of(ingress...)
	_, err := n.Apply(b.Context(), d)
	require.NoError(b, err)
	var counts Counts
	for _, what := range []struct {
		name string
		read func() (int, error)
	}{
		{"sent", func() (int, error) { all, err := counts.Sent(); return len(all), err }},
		{"dropped", func() (int, error) { all, err := counts.Dropped(); return len(all), err }},
	} {
		b.Run(what.name, func(b *testing.B) {
			end := netns.ProcessorTime(b)
			for b.Loop() {
				read, err := what.read()
				require.NoError(b, err)
				require.NotZero(b, read)
			}
			end()
		})
	}
}
