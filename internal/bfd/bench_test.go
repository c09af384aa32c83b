package bfd

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// watcherAddress is the i-th of those that watch a host.
func watcherAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 85, byte(i >> 8), byte(i)})
}

// watchFromMany runs in a process of its own: so many nodes that watch a host, until standard input ends.
func watchFromMany(count int, host string) error {
	engines := make([]*Engine, count)
	for i := range engines {
		e, err := Listen(Options{Port: testPortOfParent(), Bind: watcherAddress(i + 1), Profile: fast})
		if err != nil {
			return err
		}
		engines[i] = e
		e.Set([]Peer{{Node: "host", Address: netip.MustParseAddr(host), Active: true}})
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// BenchmarkWatchers is a host that so many nodes watch, in seconds of its life: what it costs the host.
//
//	go test -run ^$ -bench Watchers -benchtime 10x ./internal/bfd
func BenchmarkWatchers(b *testing.B) {
	for _, count := range []int{1, 100, 1000} {
		b.Run(strconv.Itoa(count), func(b *testing.B) {
			host, err := Listen(Options{Port: testPort, Bind: loopback(2), Profile: fast})
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, host.Close()) })
			var peers []Peer
			for i := range count {
				peers = append(peers, Peer{Node: fmt.Sprint(i), Address: watcherAddress(i + 1)})
			}
			host.Set(peers)
			cmd := exec.CommandContext(b.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "BFD_WATCHERS="+strconv.Itoa(count), "BFD_WATCH_TO="+loopback(2).String())
			cmd.Stderr = os.Stderr
			in, err := cmd.StdinPipe()
			require.NoError(b, err)
			require.NoError(b, cmd.Start())
			up := func() (n int) {
				for _, s := range host.Sessions() {
					if s.State == Up {
						n++
					}
				}
				return n
			}
			require.Eventually(b, func() bool { return up() == count }, time.Minute, 100*time.Millisecond)
			settled := time.Now().Add(3 * time.Second)
			require.Eventually(b, func() bool { return time.Now().After(settled) }, time.Minute, 100*time.Millisecond)

			before, used, began := host.Counters(), processTime(b), time.Now()
			second := time.NewTicker(time.Second)
			for b.Loop() {
				<-second.C
			}
			second.Stop()
			after, took := host.Counters(), time.Since(began).Seconds()
			b.ReportMetric((processTime(b)-used).Seconds()/took*100, "%cpu")
			b.ReportMetric(float64(after.Received-before.Received)/took, "in/s")
			b.ReportMetric(float64(after.Sent-before.Sent)/took, "out/s")
			b.ReportMetric(float64(count-up()), "lost")
			b.ReportMetric(float64(after.Pauses-before.Pauses), "pauses")
			b.ReportMetric(host.Sessions()[0].Detection.Seconds()*1000, "detection-ms")
			require.NoError(b, in.Close())
			require.NoError(b, cmd.Wait())
		})
	}
}

// processTime is what this process has used of processors so far.
func processTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkReceive is a packet of one of a thousand sessions, without what the kernel does for it.
func BenchmarkReceive(b *testing.B) {
	table := newTable(fast)
	var peers []Peer
	for i := range 1000 {
		peers = append(peers, Peer{Address: address(i)})
	}
	table.set(peers, time.Hour)
	var from []netip.Addr
	var packets [][]byte
	for a, s := range table.sessions {
		p := packet{state: Init, mult: 3, mine: 7, yours: s.local, desiredTx: 200 * time.Millisecond, requiredRx: 200 * time.Millisecond}
		table.receive(a, p.encode(nil), time.Hour)
		p.state = Up
		from, packets = append(from, a), append(packets, p.encode(nil))
		table.receive(a, p.encode(nil), time.Hour)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		table.receive(from[i%1000], packets[i%1000], time.Hour+time.Duration(i)*time.Microsecond)
		i++
	}
}
