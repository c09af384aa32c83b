package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// benchFlows returns flows such as a busy host has.
func benchFlows(n int) []Flow {
	flows := make([]Flow, n)
	for i := range flows {
		flows[i] = Flow{
			Proto: unix.IPPROTO_TCP, Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 22), byte(i >> 14)}), uint16(1024+i&0x3fff)),
			Dst: netip.MustParseAddrPort("198.51.100.10:443"), Path: 2,
			SNAT:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i >> 15)}), uint16(1024+i&0x7fff)),
			State: TCPEstablished, Answered: true, Assured: true, Timeout: 3600,
		}
	}
	return flows
}

// BenchmarkFlows measures the cost of injecting, listing, refreshing and removing one flow.
func BenchmarkFlows(b *testing.B) {
	const n = 20000
	flows := benchFlows(n)
	marks := plan.Marks{Mask: 0x3f00}
	o := Injection{Marks: marks, Steering: func(plan.PathID) bool { return false }, Replace: true}
	machine := func(b *testing.B, work func() error) {
		b.Helper()
		require.NoError(b, netns.OnThread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			return work()
		}))
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/flow")
		b.ReportMetric(0, "ns/op")
	}
	b.Run("inject", func(b *testing.B) {
		machine(b, func() error {
			for b.Loop() {
				if r, err := InjectFlows(o, flows); err != nil || r.Created != n {
					return fmt.Errorf("%+v: %w", r, err)
				}
				b.StopTimer()
				if err := RemoveFlows(flows); err != nil {
					return err
				}
				b.StartTimer()
			}
			return nil
		})
	})
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"refresh", func() error { _, err := InjectFlows(o, flows); return err }},
		{"list", func() error { return ListFlows(b.Context(), marks, func(Flow) bool { return true }) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			machine(b, func() error {
				if _, err := InjectFlows(o, flows); err != nil {
					return err
				}
				for b.Loop() {
					if err := c.do(); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	b.Run("remove", func(b *testing.B) {
		machine(b, func() error {
			for b.Loop() {
				b.StopTimer()
				if _, err := InjectFlows(o, flows); err != nil {
					return err
				}
				b.StartTimer()
				if err := RemoveFlows(flows); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// BenchmarkNewFlow measures a node's cost of routing a new flow of one packet: without a listener for its events, with
// events that are filtered out, and with events that are reported.
func BenchmarkNewFlow(b *testing.B) {
	for _, c := range []struct {
		name          string
		watch, egress bool
	}{{"nobody listens", false, true}, {"filtered out", true, false}, {"told", true, true}} {
		b.Run(c.name, func(b *testing.B) {
			marks := plan.Marks{Mask: 0x3f00}
			mark := uint32(0)
			if c.egress {
				mark = marks.Egress(2)
			}
			router := netns.FlowRouter(b, mark)
			var told, cpu atomic.Int64
			ctx, cancel := context.WithCancel(b.Context())
			done, ready := make(chan error, 1), make(chan struct{}, 1<<16)
			go func() {
				done <- router.Do(func() error {
					if !c.watch {
						return nil
					}
					err := WatchFlows(ctx, marks, func(e FlowEvent) {
						if e.Kind == FlowsLost {
							ready <- struct{}{}
							return
						}
						told.Add(1)
					})
					var use unix.Rusage
					if err := unix.Getrusage(unix.RUSAGE_THREAD, &use); err != nil {
						return err
					}
					cpu.Store(use.Utime.Nano() + use.Stime.Nano())
					return err
				})
			}()
			if c.watch {
				<-ready // the socket exists
			}
			require.NoError(b, router.Do(func() error { return sendFlows(b) }))
			b.ReportMetric(float64(told.Load())/float64(b.N), "told/op")
			b.ReportMetric(float64(len(ready)), "lost")
			cancel()
			require.NoError(b, <-done)
			b.ReportMetric(float64(cpu.Load())/float64(b.N), "reader-ns/op")
		})
	}
}

// sendFlows sends one UDP packet of a new flow per iteration, as if from the pod.
func sendFlows(b *testing.B) error {
	b.Helper()
	sender, err := netns.NewFlowSender()
	if err != nil {
		return err
	}
	defer sender.Close()
	for b.Loop() {
		if err := sender.Send(); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkContradictions measures the cost of finding the connections of some endpoints, and of all, among 100,000.
func BenchmarkContradictions(b *testing.B) {
	machine := netns.New(b)
	d := stories.DataPlane()
	d.Endpoints = sorted.Of(stories.ManyEndpoints(100_000, 2)...)
	all := d.Endpoints.Slice()
	flows := make([]Flow, len(all))
	for i, e := range all {
		flows[i] = Flow{
			Proto: unix.IPPROTO_TCP, Src: netip.AddrPortFrom(e.Addr, 1000), Dst: netip.MustParseAddrPort("198.51.100.10:443"),
			SNAT: netip.AddrPortFrom(e.Source, uint16(1000+i/10_000)), Path: 2, State: TCPEstablished, Answered: true, Assured: true, Timeout: 1000,
		}
	}
	require.NoError(b, machine.Do(func() error {
		r, err := InjectFlows(Injection{Marks: d.Marks}, flows)
		if err == nil && r.Created != len(flows) {
			err = fmt.Errorf("%+v", r)
		}
		return err
	}))
	for _, count := range []int{1, 10, 10_000, len(all)} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			of := doubt{all: count == len(all), endpoints: map[netip.Addr]bool{}}
			for _, e := range all[:count] {
				of.endpoints[e.Addr] = true
			}
			require.NoError(b, machine.Do(func() error {
				defer netns.ProcessorTime(b)()
				var n Audit
				for b.Loop() {
					if _, err := n.end(b.Context(), d, noNames, of); err != nil {
						return err
					}
				}
				return nil
			}))
		})
	}
}
