package conntrack

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab/netns"
)

// ends returns the records that WatchEnds reports in a namespace, and the counts of lost ones, once the subscription is complete.
func (l *flowLab) ends(n *netns.Machine, buffer int) (ended <-chan Record, lost <-chan uint32) {
	t := l.pod.TB
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	records, losses, begun, done := make(chan Record, 1<<12), make(chan uint32, 1<<12), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- n.Do(func() error {
			return WatchEnds(ctx, l.marks, Ends{
				Buffer: buffer, Begun: func() { close(begun) }, Ended: func(r Record) { records <- r }, Lost: func(n uint32) { losses <- n },
			})
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	<-begun
	return records, losses
}

// expired waits for the next end. It lists the connections meanwhile: the kernel removes expired ones when it meets them, and
// otherwise within a minute or two.
func (l *flowLab) expired(ended <-chan Record) Record {
	for {
		l.list(l.r1)
		select {
		case r := <-ended:
			return r
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// ping sends an ICMP echo request from a pod.
func (l *flowLab) ping(pod int) {
	t := l.pod.TB
	t.Helper()
	network, request := "ip4:icmp", []byte{8, 0, 0xf7, 0xfe, 0, 1, 0, 0}
	if l.Name == "IPv6" {
		network, request = "ip6:ipv6-icmp", []byte{128, 0, 0, 0, 0, 1, 0, 0} // the kernel computes the checksum
	}
	require.NoError(t, l.pod.Do(func() error {
		c, err := net.DialIP(network, &net.IPAddr{IP: net.ParseIP(l.Pods[pod])}, &net.IPAddr{IP: net.ParseIP(l.Remote)})
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(request)
		return err
	}))
}

// TestEndsOfConnections reads what conntrack knows of connections that ended: by their own, and removed by a program.
func TestEndsOfConnections(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *flowLab) {
		l.r1.Run("sysctl -qw net.netfilter.nf_conntrack_acct=1 net.netfilter.nf_conntrack_timestamp=1 " +
			"net.netfilter.nf_conntrack_tcp_timeout_time_wait=1 net.netfilter.nf_conntrack_udp_timeout=1")
		seen := l.serve()
		ended, _ := l.ends(l.r1, 0)
		header := uint64(20)
		if l.Name == "IPv6" {
			header = 40
		}

		began := time.Now()
		c := l.dial("tcp", 0, 0)
		as := <-seen
		require.NoError(t, echo(c, 100_000, netns.Patience))
		var open []Record
		require.NoError(t, l.r1.Do(func() error {
			return ListConnections(t.Context(), l.marks, func(r Record) bool { open = append(open, r); return true })
		}))
		require.Len(t, open, 1)
		require.Equal(t, as, open[0].SNAT)
		require.Zero(t, open[0].End)
		require.NoError(t, c.Close())
		r := l.expired(ended)
		require.Equal(t, Flow{
			Proto: unix.IPPROTO_TCP, Src: c.LocalAddr().(*net.TCPAddr).AddrPort(), Dst: l.to(), SNAT: as, Path: 2,
			State: r.State, Answered: true, Assured: true,
		}, r.Flow)
		require.True(t, r.Counted)
		require.GreaterOrEqual(t, r.Sent.Bytes, 100_000+r.Sent.Packets*(header+20))
		require.GreaterOrEqual(t, r.Received.Bytes, 100_000+r.Received.Packets*(header+20))
		require.Equal(t, open[0].Start, r.Start)
		require.WithinRange(t, r.Start, began.Add(-time.Second), r.End)
		require.WithinRange(t, r.End, r.Start, time.Now().Add(time.Second))

		question := l.dial("udp", 1, 0)
		require.NoError(t, echo(question, 100, netns.Patience))
		as = <-seen
		r = l.expired(ended)
		require.Equal(t, as, r.SNAT)
		require.EqualValues(t, unix.IPPROTO_UDP, r.Proto)
		require.Equal(t, Traffic{1, 100 + 8 + header}, r.Sent)
		require.Equal(t, Traffic{1, 100 + 8 + header}, r.Received)

		// A connection that a program ends was used, too. Without counters and timestamps these are not known.
		l.r1.Run("sysctl -qw net.netfilter.nf_conntrack_acct=0 net.netfilter.nf_conntrack_timestamp=0")
		l.dial("tcp", 0, 0)
		as = <-seen
		require.NoError(t, l.r1.Do(func() error { return RemoveFlows(l.list(l.r1)) }))
		r = <-ended
		require.Equal(t, as, r.SNAT)
		require.False(t, r.Counted)
		require.Zero(t, r.Start)
		require.Zero(t, r.End)

		// Neither connections without the mark nor those that keep their source are reported; other protocols are.
		l.r1.Run("nft flush chain inet t begin")
		l.outside.Run(fmt.Sprintf("%s route add %s via %s2", l.IP, l.Pods[0], l.Out1))
		require.NoError(t, echo(l.dial("udp", 0, 0), 100, netns.Patience))
		<-seen
		l.r1.Run(fmt.Sprintf("nft add rule inet t begin iifname pods ct state new ct mark set %#x", l.marks.Egress(2)),
			"sysctl -qw net.netfilter.nf_conntrack_icmp_timeout=1 net.netfilter.nf_conntrack_icmpv6_timeout=1")
		l.ping(1)
		r = l.expired(ended)
		require.Equal(t, addr(l.Pods[1]), r.Src.Addr())
		require.Contains(t, []uint8{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6}, r.Proto)
		require.Equal(t, addr(l.Ingress), r.SNAT.Addr())
	})
}

// TestLostEndsAreCounted ends more connections than the socket holds: each is reported, or counted as lost.
func TestLostEndsAreCounted(t *testing.T) {
	l := newFlowLab(t, netns.Families[0])
	flows := benchFlows(2000)
	ended, lost := l.ends(l.r1, 4096)
	require.NoError(t, l.r1.Do(func() error {
		if _, err := InjectFlows(Injection{Marks: l.marks}, flows); err != nil {
			return err
		}
		return RemoveFlows(flows)
	}))
	reported, missing := 0, 0
	for reported+missing < len(flows) {
		select {
		case <-ended:
			reported++
		case n := <-lost:
			missing += int(n)
		}
	}
	require.Equal(t, len(flows), reported+missing)
	require.Positive(t, missing)
	require.Positive(t, reported)
}
