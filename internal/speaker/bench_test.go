package speaker

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// scene is a speaker with a peer, and the agent that drives it.
type scene struct {
	*Client
	*process
	peer  *wirePeer
	woken chan struct{}
}

func newScene(b *testing.B) *scene {
	b.Helper()
	s := &scene{peer: newWirePeer(b), woken: make(chan struct{}, 1)}
	path := filepath.Join(b.TempDir(), "s.sock")
	s.process = serve(b, path)
	s.Client, _ = drive(b, ClientOptions{Socket: path, Version: "v1", Wake: func() { signal(s.woken) }})
	ready(b, s.Client)
	return s
}

// benchLimit is for what takes long on a machine that does other things, too.
const benchLimit = 10 * limit

// learns waits until the agent has so many routes.
func (s *scene) learns(b *testing.B, n int) {
	b.Helper()
	deadline := time.After(benchLimit)
	for {
		have := 0
		for _, network := range s.Learned() {
			have += network.Routes.Len()
		}
		if have == n {
			return
		}
		select {
		case <-s.woken:
		case <-deadline:
			require.Fail(b, "not all is learned", "%d of %d", have, n)
		}
	}
}

// memory is the resident memory of the speaker, in MiB.
func (s *scene) memory(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	require.NoError(b, err)
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(b, err)
	return float64(kib) / 1024
}

// manyAnnouncements makes a speaker announce n ingress IPs, and refuse to learn them.
func manyAnnouncements(s plan.Speaker, n int) plan.Speaker {
	var announce []plan.Announcement
	var refuse []plan.Prefix
	for i := range n {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
		announce, refuse = append(announce, plan.Announcement{Prefix: p}), append(refuse, plan.Prefix{Prefix: p})
	}
	s.Announce, s.Refuse = sorted.Of(announce...), sorted.Of(refuse...)
	return s
}

// BenchmarkChange takes one announcement of many back, or makes it again, as an agent does, until its UPDATE has arrived at
// the peer. The latter tells routes as well.
func BenchmarkChange(b *testing.B) {
	for _, size := range []struct{ announced, learned int }{{1, 0}, {10000, 0}, {10000, 100000}} {
		b.Run(fmt.Sprintf("%d announced, %d learned", size.announced, size.learned), func(b *testing.B) {
			s := newScene(b)
			all := manyAnnouncements(s.peer.speaker(), size.announced)
			require.NoError(b, s.Apply(b.Context(), []plan.Speaker{all}))
			s.peer.established()
			for told := 0; told < size.announced; {
				told += s.peer.hears().told
			}
			s.peer.tell(manyPrefixes(size.learned), nil, 500, 0)
			s.learns(b, size.learned)

			less := all
			less.Announce = all.Announce.With(nil, []plan.Announcement{all.Announce.Slice()[size.announced/2]})
			wanted := []plan.Speaker{less}
			cpu := s.processorTime(b)
			for b.Loop() {
				require.NoError(b, s.Withdraw(b.Context(), wanted))
				require.NoError(b, s.Apply(b.Context(), wanted))
				u := s.peer.hears()
				require.Equal(b, 1, u.told+u.withdrawn)
				if wanted[0].Announce.Len() == size.announced {
					wanted = []plan.Speaker{less}
				} else {
					wanted = []plan.Speaker{all}
				}
			}
			b.ReportMetric(float64((s.processorTime(b)-cpu).Microseconds())/float64(b.N), "µs-speaker/op")
		})
	}
}

// BenchmarkAnnounced has a peer get 10,000 ingress IPs by a session that is there.
func BenchmarkAnnounced(b *testing.B) {
	s := newScene(b)
	none := s.peer.speaker()
	all := manyAnnouncements(none, 10000)
	require.NoError(b, s.Apply(b.Context(), []plan.Speaker{none}))
	s.peer.established()
	for b.Loop() {
		require.NoError(b, s.Apply(b.Context(), []plan.Speaker{all}))
		for told := 0; told < 10000; {
			told += s.peer.hears().told
		}
		b.StopTimer()
		require.NoError(b, s.Withdraw(b.Context(), []plan.Speaker{none}))
		for gone := 0; gone < 10000; {
			gone += s.peer.hears().withdrawn
		}
		b.StartTimer()
	}
}

// BenchmarkLearned has a peer tell 100,000 routes, from the first byte until the agent has all, and then go, from the end
// of the session until the agent has none.
func BenchmarkLearned(b *testing.B) {
	for _, inMessage := range []int{500, 1} {
		b.Run(fmt.Sprintf("%d a message", inMessage), func(b *testing.B) {
			s := newScene(b)
			require.NoError(b, s.Apply(b.Context(), []plan.Speaker{s.peer.speaker()}))
			routes := manyPrefixes(100000)
			var told, gone, toldCPU, goneCPU time.Duration
			for b.Loop() {
				s.peer.established()
				began, cpu := time.Now(), s.processorTime(b)
				s.peer.tell(routes, nil, inMessage, 0)
				s.learns(b, len(routes))
				told, toldCPU = told+time.Since(began), toldCPU+s.processorTime(b)-cpu
				b.ReportMetric(s.memory(b), "MiB-RSS")
				began, cpu = time.Now(), s.processorTime(b)
				s.peer.hangUp()
				s.learns(b, 0)
				gone, goneCPU = gone+time.Since(began), goneCPU+s.processorTime(b)-cpu
			}
			b.ReportMetric(toldCPU.Seconds()/float64(b.N), "s-speaker/told")
			b.ReportMetric(goneCPU.Seconds()/float64(b.N), "s-speaker/gone")
			b.ReportMetric(told.Seconds()/float64(b.N), "s/told")
			b.ReportMetric(gone.Seconds()/float64(b.N), "s/gone")
		})
	}
}

// BenchmarkChurn has a peer tell 1,000 of its 100,000 routes anew, one a message, until the agent has the last.
func BenchmarkChurn(b *testing.B) {
	s := newScene(b)
	require.NoError(b, s.Apply(b.Context(), []plan.Speaker{s.peer.speaker()}))
	s.peer.established()
	routes := manyPrefixes(100000)
	s.peer.tell(routes, nil, 500, 0)
	s.learns(b, len(routes))
	cpu := s.processorTime(b)
	for b.Loop() {
		s.peer.tell(nil, routes[:1000], 1, 0)
		s.learns(b, len(routes)-1000)
		s.peer.tell(routes[:1000], nil, 1, 0)
		s.learns(b, len(routes))
	}
	b.ReportMetric((s.processorTime(b)-cpu).Seconds()*1000/float64(b.N), "ms-speaker/op")
	b.ReportMetric(s.memory(b), "MiB-RSS")
}

// processorTime is what the speaker has used.
func (s *scene) processorTime(b *testing.B) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	require.NoError(b, err)
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	var ticks int
	for _, f := range fields[11:13] { // user and system, in hundredths of a second
		n, err := strconv.Atoi(f)
		require.NoError(b, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
