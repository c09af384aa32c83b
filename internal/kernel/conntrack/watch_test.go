package conntrack

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab/netns"
)

// watching returns the events that WatchFlows reports in a namespace.
func (l *flowLab) watching(n *netns.Machine, buffer int) <-chan FlowEvent {
	t := l.pod.TB
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	events, done := make(chan FlowEvent, 1024), make(chan error, 1)
	go func() {
		done <- n.Do(func() error {
			return watchFlows(ctx, l.marks, buffer, func(e FlowEvent) { events <- e })
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	require.Equal(t, FlowEvent{Kind: FlowsLost}, <-events)
	return events
}

func TestFlowEvents(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *flowLab) {
		seen := l.serve()
		events := l.watching(l.r1, eventBuffer)
		c := l.dial("tcp", 0, 0)
		as := <-seen
		e := <-events
		require.Equal(t, FlowChanged, e.Kind)
		require.Equal(t, Flow{
			Proto: unix.IPPROTO_TCP, Src: c.LocalAddr().(*net.TCPAddr).AddrPort(), Dst: l.to(), SNAT: as, Path: 2,
			State: TCPEstablished, Answered: true, Assured: true, Timeout: e.Flow.Timeout,
		}, e.Flow)
		require.NoError(t, echo(c, 1000, netns.Patience))
		require.NoError(t, c.Close())
		e = <-events
		require.Equal(t, FlowEnded, e.Kind)
		require.Equal(t, as, e.Flow.SNAT)
		require.Equal(t, TCPTimeWait, e.Flow.State)

		question := l.dial("udp", 1, 0)
		require.NoError(t, echo(question, 100, netns.Patience))
		as = <-seen
		for _, answered := range []bool{false, true} {
			e = <-events
			require.Equal(t, FlowEvent{FlowChanged, Flow{
				Proto: unix.IPPROTO_UDP, Src: question.LocalAddr().(*net.UDPAddr).AddrPort(), Dst: l.to(), SNAT: as, Path: 2,
				Answered: answered, Timeout: e.Flow.Timeout,
			}}, e)
		}

		// Changes by programs are not reported, nor are connections that are not egress flows.
		flows := l.list(l.r1)
		require.NoError(t, l.r1.Do(func() error { return RemoveFlows(slices.Concat(flows, flows)) }))
		require.Empty(t, l.list(l.r1))
		_, err := l.inject(l.r1, Injection{}, flows...)
		require.NoError(t, err)
		l.r1.Run("nft flush chain inet t begin")
		l.outside.Run(fmt.Sprintf("%s route add %s via %s2", l.IP, l.Pods[0], l.Out1))
		l.dial("tcp", 0, 0)
		<-seen
		l.r1.Run(fmt.Sprintf("nft add rule inet t begin iifname pods ct state new ct mark set %#x", l.marks.Egress(2)))
		c = l.dial("tcp", 1, 0)
		<-seen
		e = <-events
		require.Equal(t, c.LocalAddr().(*net.TCPAddr).AddrPort(), e.Flow.Src)
		// A reset ends a flow at once.
		require.NoError(t, c.(*net.TCPConn).SetLinger(0))
		require.NoError(t, c.Close())
		e = <-events
		require.Equal(t, FlowEnded, e.Kind)
		require.Equal(t, TCPClosed, e.Flow.State)
	})
}

// TestLostFlowEvents causes more events than the socket holds.
func TestLostFlowEvents(t *testing.T) {
	l := newFlowLab(t, netns.Families[0])
	l.serve()
	begun, lost := make(chan struct{}), make(chan struct{}, 1024)
	happened := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- l.r1.Do(func() error {
			return watchFlows(ctx, l.marks, 1, func(e FlowEvent) {
				if e.Kind != FlowsLost {
					return
				}
				select {
				case <-happened:
					lost <- struct{}{}
				default: // the first call: the socket's buffer fills up meanwhile
					close(begun)
					<-happened
				}
			})
		})
	}()
	<-begun
	for range 100 {
		_, err := l.dial("udp", 1, 0).Write([]byte("keep"))
		require.NoError(t, err)
	}
	close(happened)
	<-lost
	cancel()
	require.NoError(t, <-done)
}
