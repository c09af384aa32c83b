package flows

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/netns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func at(s string) netip.AddrPort   { return netip.MustParseAddrPort(s) }
func marks() plan.Marks            { return plan.Marks{Mask: 0x3f00, Priority: 700} }
func steering(id plan.PathID) bool { return id == 3 }

func tcpFlow(src, dst, as string) conntrack.Flow {
	return conntrack.Flow{
		Proto: unix.IPPROTO_TCP, Src: at(src), Dst: at(dst), SNAT: at(as), Path: 2,
		State: conntrack.TCPEstablished, Answered: true, Assured: true, Timeout: 1000,
	}
}

// someView returns the roles and data plane of the standby of 192.0.2.10 and host of 192.0.2.20.
func someView() (roles []Role, d plan.DataPlane) {
	local, peer := addr("127.0.0.1"), addr("127.0.0.2")
	roles = []Role{
		{addr("192.0.2.10"), local, peer, "b", false, false, 2},
		{addr("192.0.2.20"), local, peer, "b", true, false, 2},
	}
	standby := plan.Way{Path: 2, Source: addr("192.0.2.10")}
	return roles, plan.DataPlane{
		Marks: marks(),
		Paths: []plan.Path{
			{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}},
			{ID: 3, Key: plan.PathKey{Kind: plan.PathSteer, Name: "b"}},
		},
		Endpoints: sorted.Of([]plan.Endpoint{
			{Addr: addr("10.244.1.11"), Path: 3, Source: addr("10.244.1.11"), Kept: standby, Node: "a"},
			{Addr: addr("10.244.2.11"), Path: 2, Source: addr("192.0.2.10")},
			{Addr: addr("10.244.2.12"), Path: 2, Source: addr("192.0.2.20"), Node: "c"},
			{Addr: addr("10.244.2.15"), Path: 2, Source: addr("192.0.2.20"), Node: "b"},
			{Addr: addr("10.244.2.13")},
			{Addr: addr("10.244.2.14"), Path: 2, Source: addr("192.0.2.30")},
			{Addr: addr("10.244.3.11"), Path: 2, Source: addr("192.0.2.20"), Node: "a"},
		}...),
	}
}

func TestJudge(t *testing.T) {
	c := New(slog.New(slog.DiscardHandler), "a", marks())
	roles, d := someView()
	c.Set(4785, listOf(roles...), d)
	v := c.now()
	const remote = "198.51.100.10:443"
	for _, test := range []struct {
		what, peer, src, as string
		here, ok            bool
	}{
		{"of another node's pod, which we would serve", "127.0.0.2", "10.244.2.11:1000", "192.0.2.10:1000", true, true},
		{"of a pod that we serve", "127.0.0.2", "10.244.2.12:1000", "192.0.2.20:1000", true, true},
		{"of our pod", "127.0.0.2", "10.244.1.11:1000", "192.0.2.10:1000", false, true},
		{"from somebody else", "127.0.0.3", "10.244.2.11:1000", "192.0.2.10:1000", false, false},
		{"with the source of another Service", "127.0.0.2", "10.244.2.11:1000", "192.0.2.20:1000", false, false},
		{"with a source that we have no part in", "127.0.0.2", "10.244.2.14:1000", "192.0.2.30:1000", false, false},
		{"of a pod without a path", "127.0.0.2", "10.244.2.13:1000", "192.0.2.10:1000", false, false},
		{"of what is not selected", "127.0.0.2", "10.244.2.99:1000", "192.0.2.10:1000", false, false},
		{"of our pod, with the source of another Service", "127.0.0.2", "10.244.1.11:1000", "192.0.2.20:1000", false, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			f := tcpFlow(test.src, remote, test.as)
			f.Path = 9
			_, here, ok := v.judge(addr(test.peer), &f)
			require.Equal(t, []bool{test.here, test.ok}, []bool{here, ok})
			if ok {
				require.EqualValues(t, 2, f.Path)
			}
		})
	}
}

// TestFlowsOnTheLinkAreTakenOver holds flows of a pod here whose address its host has on the link, until this node is the host.
func TestFlowsOnTheLinkAreTakenOver(t *testing.T) {
	ours, flow := addr("10.244.1.11"), tcpFlow("10.244.1.11:1", "198.51.100.10:443", "192.0.2.10:1")
	steered := plan.Endpoint{Addr: ours, Path: 3, Source: ours, Node: "a"}
	for name, c := range map[string]struct {
		next       plan.Endpoint
		taken, has int
	}{
		"this node is the host":      {next: plan.Endpoint{Addr: ours, Path: 2, Source: addr("192.0.2.10")}, taken: 1},
		"with another address":       {next: plan.Endpoint{Addr: ours, Path: 2, Source: addr("192.0.2.20")}},
		"the host is silent":         {next: plan.Endpoint{Addr: ours}, has: 1},
		"another pod has changed":    {next: steered, has: 1},
		"steered to another host":    {next: plan.Endpoint{Addr: ours, Path: 4, Source: ours}},
		"another address is kept":    {next: plan.Endpoint{Addr: ours, Path: 3, Source: ours, Kept: plan.Way{Path: 2, Source: addr("192.0.2.20")}}},
		"the pod is no longer there": {next: plan.Endpoint{Addr: addr("10.244.1.12")}},
	} {
		t.Run(name, func(t *testing.T) {
			carrier := New(slog.New(slog.DiscardHandler), "a", marks())
			roles, d := someView()
			d.Endpoints = sorted.Of(steered)
			carrier.Set(4785, listOf(roles...), d)
			role, here, ok := carrier.now().judge(addr("127.0.0.2"), &flow)
			require.Equal(t, []bool{false, false, true}, []bool{role.Host, here, ok})
			carrier.hold(held{flow, steered.Path, time.Now().Add(time.Minute)})
			taken := carrier.takeHeld(&view{paths: d.Paths, endpoints: sorted.Of(c.next)}, time.Now())
			require.Len(t, taken, c.taken)
			require.Len(t, carrier.held, c.has)
		})
	}
}

func TestPending(t *testing.T) {
	p, start := newPending(), time.Unix(1000, 0)
	young := tcpFlow("10.244.1.11:1", "198.51.100.10:443", "192.0.2.10:1")
	question, short := young, young
	question.Proto, short.Src = unix.IPPROTO_UDP, at("10.244.1.11:2")
	require.True(t, p.add(young, start))
	require.True(t, p.add(short, start))
	require.True(t, p.add(question, start.Add(tellAfter/2)))
	require.Empty(t, p.ripe(start.Add(tellAfter-1)))
	require.True(t, p.forget(short))
	require.False(t, p.forget(short))
	young.Timeout = 77
	require.True(t, p.add(young, start.Add(tellAfter-1)), "a change does not make it wait longer")
	require.Equal(t, []conntrack.Flow{young}, p.ripe(start.Add(tellAfter)))
	require.False(t, p.forget(young))
	require.Equal(t, []conntrack.Flow{question}, p.ripe(start.Add(time.Hour)))
	require.Empty(t, p.flows)
	for i := range mostPending {
		f := young
		f.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 16), byte(i >> 8)}), uint16(i&0xff))
		require.True(t, p.add(f, start))
	}
	require.False(t, p.add(short, start))
	require.Len(t, p.ripe(start.Add(tellAfter)), mostPending)
}

func TestWhatIsTold(t *testing.T) {
	tcp := tcpFlow("10.244.1.11:1", "198.51.100.10:443", "192.0.2.10:1")
	udp := tcp
	udp.Proto, udp.State, udp.Timeout = unix.IPPROTO_UDP, 0, 120
	with := func(f conntrack.Flow, change func(*conntrack.Flow)) conntrack.Flow { change(&f); return f }
	for _, c := range []struct {
		what    string
		flow    conntrack.Flow
		worth   bool
		timeout uint32
	}{
		{"TCP", tcp, true, 1000},
		{"TCP with the kernel's timeout", with(tcp, func(f *conntrack.Flow) { f.Timeout = 432000 }), true, 10800},
		{"TCP half closed", with(tcp, func(f *conntrack.Flow) { f.State = 5; f.Timeout = 60 }), true, 1800},
		{"TCP closed", with(tcp, func(f *conntrack.Flow) { f.State = conntrack.TCPTimeWait }), false, 0},
		{"TCP begins", with(tcp, func(f *conntrack.Flow) { f.State = 2; f.Assured = false }), false, 0},
		{"UDP", udp, true, 180},
		{"UDP question", with(udp, func(f *conntrack.Flow) { f.Answered, f.Assured, f.Timeout = false, false, 30 }), true, 90},
		{"UDP question, answered", with(udp, func(f *conntrack.Flow) { f.Assured = false }), false, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			require.Equal(t, c.worth, worth(c.flow))
			if c.worth {
				require.Equal(t, c.timeout, alive(c.flow).Timeout)
			}
		})
	}
}

func TestWhoIsTold(t *testing.T) {
	c, ch := oneChannel()
	asStandby := tcpFlow("10.244.2.11:1", "198.51.100.10:443", "192.0.2.10:1")
	asHost := tcpFlow("10.244.2.12:1", "198.51.100.10:443", "192.0.2.20:1")
	neither := tcpFlow("10.244.2.14:1", "198.51.100.10:443", "192.0.2.30:1")
	own := tcpFlow("10.244.3.11:1", "198.51.100.10:443", "192.0.2.20:2")
	told := func() (all []record) {
		require.NoError(t, decodeRecords(ch.take(), func(r record) { all = append(all, r) }))
		return all
	}
	for _, f := range []conntrack.Flow{asStandby, asHost, neither, own} {
		c.happened(conntrack.FlowEvent{Kind: conntrack.FlowChanged, Flow: f})
	}
	c.tellRipe(time.Now())
	require.Empty(t, told())
	c.tellRipe(time.Now().Add(tellAfter))
	got := told()
	require.Len(t, got, 1)
	require.Equal(t, asHost.SNAT, got[0].SNAT)

	for _, state := range []uint8{conntrack.TCPEstablished, conntrack.TCPTimeWait} { // expired; closed
		for _, f := range []conntrack.Flow{asStandby, asHost, neither, own} {
			f.State = state
			c.happened(conntrack.FlowEvent{Kind: conntrack.FlowEnded, Flow: f})
		}
	}
	got = told()
	require.Len(t, got, 3)
	for i, f := range []conntrack.Flow{asHost, asStandby, asHost} {
		require.True(t, got[i].ended)
		require.Equal(t, f.SNAT, got[i].SNAT)
	}
	require.Zero(t, c.Counters().Dropped)

	// More than a channel holds: new flows have less room than ended ones.
	standby := standbyOf(ch)
	for i := 0; len(ch.queue) < mostQueued/4*3; i++ {
		f := asHost
		f.Src = netip.AddrPortFrom(f.Src.Addr(), uint16(i))
		c.enqueue(standby, alive(f))
	}
	c.enqueue(standby, alive(asHost))
	require.EqualValues(t, 1, c.Counters().Dropped)
	require.True(t, ch.lost, "all is listed later")
	c.enqueue(standby, record{asHost, true})
	require.EqualValues(t, 1, c.Counters().Dropped)
}

// TestASlowPeerDelaysNoList sends a list to a channel without room: each of its flows would wait in turn, and with them all other lists.
func TestASlowPeerDelaysNoList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ch := oneChannel()
		ch.queue = make([]byte, maxFrame)
		l := c.dueLists(true, 0)
		f, began := tcpFlow("10.244.2.12:1", "198.51.100.10:443", "192.0.2.20:1"), time.Now()
		for range 3 {
			c.sendListed(t.Context(), l, f)
		}
		require.Equal(t, roomWithin, time.Since(began))
		require.Len(t, ch.queue, maxFrame)
		full, up := ch.takeDue()
		require.False(t, full, "the next full list waits")
		require.True(t, up)
		ch.lastListed = ch.lastListed.Add(-listAgainAfter)
		full, _ = ch.takeDue()
		require.True(t, full)
	})
}

func TestProblemsNameTheSysctl(t *testing.T) {
	netns.Enter(t)
	c := New(slog.New(slog.DiscardHandler), "a", marks())
	set := func(value string) {
		require.NoError(t, os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_events", []byte(value), 0))
	}
	set("0")
	require.Empty(t, c.Problems(), "no other node is to know flows of this one")
	roles, d := someView()
	c.Set(4785, listOf(roles...), d)
	require.Len(t, c.Problems(), 1)
	require.ErrorContains(t, c.Problems()[0], `Node a: net.netfilter.nf_conntrack_events: "0"`)
	set("2")
	require.Empty(t, c.Problems())
}

// oneChannel returns a node's Carrier with some view, and its only channel, which is up.
func oneChannel() (c *Carrier, ch *channel) {
	c = New(slog.New(slog.DiscardHandler), "a", marks())
	roles, d := someView()
	c.Set(4785, listOf(roles...), d)
	for _, ch = range c.view.channels {
		ch.begin()
	}
	return c, ch
}

// standbyOf returns the standby at the other end of a channel.
func standbyOf(ch *channel) receiver { return receiver{ch, true} }

func TestTheLastRecordOfAFlowCounts(t *testing.T) {
	a, b := tcpFlow("10.244.1.11:1", "198.51.100.10:443", "192.0.2.10:1"), tcpFlow("10.244.1.11:2", "198.51.100.10:443", "192.0.2.10:1")
	require.Equal(t, []record{{b, false}, {a, true}}, lasts([]record{{a, false}, {b, true}, {b, false}, {a, true}}))
}

// TestCarriers replicates flows between two nodes on one kernel, so the receiver always has the entries of the sender.
func TestCarriers(t *testing.T) {
	flows := []conntrack.Flow{
		tcpFlow("10.244.2.11:1", "198.51.100.10:443", "192.0.2.10:1"),
		tcpFlow("10.244.2.11:2", "198.51.100.10:443", "192.0.2.10:2"),
		tcpFlow("10.244.1.11:1", "198.51.100.10:443", "192.0.2.10:3"), // of a pod on the standby
		tcpFlow("10.244.2.99:1", "198.51.100.10:443", "192.0.2.10:4"), // not selected on the standby
	}
	// A flow of a pod on the host itself: the other node must have no entry for it.
	ofOwn := tcpFlow("10.244.3.11:1", "198.51.100.10:443", "192.0.2.20:1")
	inject := conntrack.Injection{Marks: marks(), Steering: steering, Replace: true}
	_, err := conntrack.InjectFlows(inject, append(flows, ofOwn))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conntrack.RemoveFlows(flows)) })

	roles, d := someView()
	other := make([]Role, 0, len(roles))
	for _, r := range roles {
		other = append(other, Role{r.Ingress, r.Peer, r.Local, "a", !r.Host, false, 2})
	}
	standby := New(slog.New(slog.NewTextHandler(t.Output(), nil)), "a", marks())
	host := New(slog.New(slog.NewTextHandler(t.Output(), nil)), "b", marks())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	for _, c := range []*Carrier{standby, host} {
		go func() { c.Run(ctx); done <- struct{}{} }()
	}
	defer func() { cancel(); <-done; <-done }()
	standby.Set(4785, listOf(roles...), d)
	host.Set(4785, listOf(other...), d)
	is := func(what string, holds func() bool) {
		t.Helper()
		require.Eventually(t, holds, lab.Patience, 10*time.Millisecond, "%s: host %+v, standby %+v", what, host.Counters(), standby.Counters())
	}
	is("all are told once the channel is up", func() bool { return standby.Counters().Received == 4 })
	is("the other channel is up", func() bool {
		host.mu.Lock()
		defer host.mu.Unlock()
		return len(host.senders) == 1
	})
	is("a flow of an own pod that leaves here is told to be over", func() bool { return host.Counters().Removed == 1 })
	got := standby.Counters()
	got.Lost, got.Sent, got.Bytes = 0, 0, 0
	require.Equal(t, Counters{Received: 4, Refreshed: 2, Held: 1, Refused: 1}, got)
	require.GreaterOrEqual(t, host.Counters().Bytes, uint64(4*(1+size4)))

	// A new role makes the host send all flows again.
	host.Set(4785, listOf(slices.Concat(other, []Role{{addr("192.0.2.40"), other[0].Local, other[0].Peer, "a", true, false, 2}})...), d)
	is("another role", func() bool { return standby.Counters().Received == 8 })

	// New flows wait for their turn; ended flows do not.
	changed := flows[1]
	host.happened(conntrack.FlowEvent{Kind: conntrack.FlowChanged, Flow: changed})
	host.happened(conntrack.FlowEvent{Kind: conntrack.FlowEnded, Flow: changed})
	host.happened(conntrack.FlowEvent{Kind: conntrack.FlowEnded, Flow: flows[0]})
	host.happened(conntrack.FlowEvent{Kind: conntrack.FlowChanged, Flow: flows[2]})
	is("an end and a change", func() bool { c := standby.Counters(); return c.Removed == 1 && c.Held == 3 })
	var left []string
	require.NoError(t, conntrack.ListFlows(t.Context(), marks(), func(f conntrack.Flow) bool { left = append(left, f.SNAT.String()); return true }))
	require.ElementsMatch(t, []string{"192.0.2.10:2", "192.0.2.10:3", "192.0.2.10:4"}, left)
	require.EqualValues(t, 10, standby.Counters().Received)

	// A flow that expired at the standby may live at the host; a closed one is over for both.
	ranOut := flows[1]
	standby.happened(conntrack.FlowEvent{Kind: conntrack.FlowEnded, Flow: ranOut})
	ranOut.State = conntrack.TCPClosed
	standby.happened(conntrack.FlowEvent{Kind: conntrack.FlowEnded, Flow: ranOut})
	is("the standby tells of what was closed", func() bool { return host.Counters().Removed == 2 })
	require.Zero(t, host.Counters().Refreshed, "what the host knows is not told back")

	// The standby takes over, and the former host stays as the standby: the flow of the new host's own pod may stay on
	// it.
	require.NoError(t, conntrack.RemoveFlows(flows))
	ours, kept := addr("10.244.1.11"), plan.Way{Path: 3, Source: addr("10.244.1.11")}
	d.Endpoints = d.Endpoints.With([]plan.Endpoint{{Addr: ours, Path: 2, Source: addr("192.0.2.10"), Kept: kept}}, nil)
	roles[0].Host = true
	standby.Set(4785, listOf(roles...), d)
	require.Zero(t, standby.Counters().Injected)
	// The former host goes: now the flow gets its entry here.
	d.Endpoints = d.Endpoints.With([]plan.Endpoint{{Addr: ours, Path: 2, Source: addr("192.0.2.10")}}, nil)
	standby.Set(4785, listOf(roles...), d)
	require.EqualValues(t, 1, standby.Counters().Injected)

	// Without a role the node does not listen.
	standby.Set(4785, listOf(), d)
	is("no listener", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:4785")
		if err == nil {
			c.Close()
		}
		return err != nil
	})
}

// TestStrangers rejects channels of nodes without a role, and packets from behind a router.
func TestStrangers(t *testing.T) {
	c := New(slog.New(slog.NewTextHandler(t.Output(), nil)), "a", marks())
	roles, d := someView()
	c.Set(4786, listOf(roles...), d)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	dial := func(from string, hops int) (net.Conn, error) {
		t.Helper()
		var conn net.Conn
		require.Eventually(t, func() bool {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: addr(from).AsSlice()}}
			var err error
			conn, err = d.Dial("tcp", "127.0.0.1:4786")
			return err == nil
		}, lab.Patience, 10*time.Millisecond)
		t.Cleanup(func() { conn.Close() })
		raw, err := conn.(*net.TCPConn).SyscallConn()
		require.NoError(t, err)
		require.NoError(t, control(raw, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, hops) }))
		hello := make([]byte, helloSize)
		require.NoError(t, conn.SetDeadline(time.Now().Add(lab.Patience)))
		if _, err := conn.Read(hello); err != nil {
			return conn, err
		}
		_, err = conn.Write(hello)
		return conn, err
	}
	flow := appendRecord(nil, record{Flow: tcpFlow("10.244.2.99:1", "198.51.100.10:443", "192.0.2.10:1")})
	frame := append([]byte{0, byte(len(flow))}, flow...)
	hungUp := func(conn net.Conn) {
		t.Helper()
		_, err := conn.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	}

	_, err := dial("127.0.0.3", 255)
	require.Error(t, err, "not a node with a role")

	conn, err := dial("127.0.0.2", 254)
	require.NoError(t, err)
	_, _ = conn.Write(frame)
	hungUp(conn) // it came from behind a router: no data arrived in time
	require.Zero(t, c.Counters().Received)

	conn, err = dial("127.0.0.2", 255)
	require.NoError(t, err)
	_, err = conn.Write(frame)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return c.Counters().Received == 1 }, lab.Patience, 10*time.Millisecond)
	next, err := dial("127.0.0.2", 255)
	require.NoError(t, err)
	_, err = next.Write(frame)
	require.NoError(t, err)
	hungUp(conn) // replaced
	_, err = next.Write([]byte{0xff, 0xff})
	require.NoError(t, err)
	hungUp(next)
	require.EqualValues(t, 2, c.Counters().Received)
}

// BenchmarkTell measures the sender's cost of one flow without the kernel's part: from the event to the queue, and out
// of it. BenchmarkHear measures the receiver's cost up to the kernel.
func BenchmarkTell(b *testing.B) {
	c := New(slog.New(slog.DiscardHandler), "a", marks())
	roles, d := someView()
	c.Set(4785, listOf(roles...), d)
	for _, ch := range c.view.channels {
		ch.begin()
	}
	f := tcpFlow("10.244.2.11:1", "198.51.100.10:443", "192.0.2.20:1")
	b.ReportAllocs()
	i, size := 0, 0
	for b.Loop() {
		i++
		f.Src = netip.AddrPortFrom(f.Src.Addr(), uint16(i))
		f.Dst = netip.AddrPortFrom(f.Dst.Addr(), uint16(i>>16))
		c.happened(conntrack.FlowEvent{Kind: conntrack.FlowChanged, Flow: f})
		if i%200 != 0 {
			continue
		}
		c.tellRipe(time.Now().Add(tellAfter))
		for _, ch := range c.view.channels {
			size += len(ch.take())
		}
	}
	b.ReportMetric(float64(size)/float64(b.N), "bytes/op")
}

func BenchmarkHear(b *testing.B) {
	c := New(slog.New(slog.DiscardHandler), "a", marks())
	roles, d := someView()
	c.Set(4785, listOf(roles...), d)
	v := c.now()
	var frame []byte
	f, n := tcpFlow("10.244.2.11:1", "198.51.100.10:443", "192.0.2.10:1"), 0
	for ; len(frame) < maxFrame-size4; n++ {
		f.Src = netip.AddrPortFrom(f.Src.Addr(), uint16(n))
		frame = appendRecord(frame, record{Flow: f})
	}
	b.ReportAllocs()
	for b.Loop() {
		var records []record
		require.NoError(b, decodeRecords(frame, func(r record) { records = append(records, r) }))
		for _, r := range lasts(records) {
			if _, here, _ := v.judge(addr("127.0.0.2"), &r.Flow); !here {
				b.Fatal("refused")
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/flow")
}
