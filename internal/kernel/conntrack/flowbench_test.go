package conntrack

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
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
			router := netns.New(b)
			outside := netns.New(b)
			router.Run("sysctl -qw net.ipv4.ip_forward=1 net.netfilter.nf_conntrack_udp_timeout=1",
				"ip link add pods address 02:00:00:00:00:02 type veth peer name pod",
				fmt.Sprintf("ip link add out type veth peer name in netns /proc/%d/fd/%d", os.Getpid(), outside.File.Fd()),
				"ip link set pods up", "ip link set pod up", "ip link set out up",
				"ip addr add 10.244.1.1/24 dev pods", "ip addr add 10.1.0.1/24 dev out", "ip route add 198.51.100.0/24 dev out",
				"ip neigh add 10.1.0.9 lladdr 02:00:00:00:00:09 dev out", "ip route replace 198.51.100.0/24 via 10.1.0.9")
			outside.Run("ip link set in up")
			mark := uint32(0)
			if c.egress {
				mark = marks.Egress(2)
			}
			router.Run(fmt.Sprintf(`nft '
				table inet t {
					chain begin { type filter hook prerouting priority -90; iifname pods ct state new ct mark set %#x; }
					chain source { type nat hook postrouting priority 50; oifname out snat ip to 203.0.113.10; }
				}'`, mark))
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
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	device, err := net.InterfaceByName("pod")
	if err != nil {
		return err
	}
	packet := make([]byte, 14+20+8+10)
	copy(packet, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0})
	copy(packet[14:], []byte{0x45, 0, 0, 38, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, 10, 244, 1, 11, 198, 51, 100, 10})
	udp := packet[34:]
	binary.BigEndian.PutUint16(udp[2:], 53)
	binary.BigEndian.PutUint16(udp[4:], 18)
	to := &unix.SockaddrLinklayer{Ifindex: device.Index, Protocol: 0x0008}
	n := uint32(0)
	for b.Loop() {
		n++
		copy(packet[30:], []byte{198, 51, 100, byte(n >> 16)})
		binary.BigEndian.PutUint16(udp, uint16(n))
		binary.BigEndian.PutUint16(packet[24:], 0)
		binary.BigEndian.PutUint16(packet[24:], headerChecksum(packet[14:34]))
		if err := unix.Sendto(fd, packet, 0, to); err != nil {
			return err
		}
	}
	return nil
}

func headerChecksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
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
					if _, err := n.end(b.Context(), d, of); err != nil {
						return err
					}
				}
				return nil
			}))
		})
	}
}
