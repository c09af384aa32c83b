package flows

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

	"github.com/egressway/egressway/internal/cluster"
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

func TestRoles(t *testing.T) {
	nodes := cluster.MapOf(map[string]cluster.Node{
		"a":   {Internal: []netip.Addr{addr("fd00::11"), addr("10.0.0.11")}},
		"b":   {Internal: []netip.Addr{addr("10.0.0.12"), addr("fd00::12")}},
		"c":   {Internal: []netip.Addr{addr("10.0.0.13")}},
		"six": {Internal: []netip.Addr{addr("fd00::13")}},
		"bad": {},
	})
	web4, web6, shop := addr("192.0.2.10"), addr("2001:db8:2::10"), addr("192.0.2.20")
	service := func(network, host, standby string, ips ...netip.Addr) plan.Service {
		return plan.Service{Network: network, Host: host, Standby: standby, IngressIPs: ips}
	}
	p := &plan.NodePlan{Node: "a", DataPlane: plan.DataPlane{Paths: []plan.Path{
		{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}},
		{ID: 3, Key: plan.PathKey{Kind: plan.PathSteer, Name: "blue"}},
	}}}
	four := func(a netip.Addr, host bool) Role {
		return Role{a, addr("10.0.0.11"), addr("10.0.0.12"), host, false, 2}
	}
	parted := func(host, standby, from string) plan.Service {
		return plan.Service{Network: "red", Host: host, Standby: standby, Parted: from, IngressIPs: []netip.Addr{web4}}
	}
	ofC := func(host bool) Role { return Role{web4, addr("10.0.0.11"), addr("10.0.0.13"), host, true, 2} }
	for _, c := range []struct {
		what     string
		services []plan.Service
		want     []Role
	}{
		{"host", []plan.Service{service("red", "a", "b", web4, web6)}, []Role{four(web4, true), four(web6, true)}},
		{"standby", []plan.Service{service("red", "b", "a", web4)}, []Role{four(web4, false)}},
		{
			"two services with one ingress IP",
			[]plan.Service{service("red", "a", "b", web4), service("red", "a", "b", web4, shop)},
			[]Role{four(web4, true), four(shop, true)},
		},
		{
			"the other has IPv6 only",
			[]plan.Service{service("red", "a", "six", web4)},
			[]Role{{web4, addr("fd00::11"), addr("fd00::13"), true, false, 2}},
		},
		{"host beside a standby and the former one", []plan.Service{parted("a", "b", "c")}, []Role{four(web4, true), ofC(true)}},
		{"former standby", []plan.Service{parted("c", "b", "c")}, []Role{ofC(false)}},
		{"neither", []plan.Service{service("red", "b", "six", web4)}, nil},
		{"no standby", []plan.Service{service("red", "a", "", web4)}, nil},
		{"on all nodes", []plan.Service{service("red", "ALL", "", web4)}, nil},
		{"a network without a path here", []plan.Service{service("blue", "a", "b", web4)}, nil},
		{"the other has no address", []plan.Service{service("red", "a", "bad", web4)}, nil},
		{"the other is not known", []plan.Service{service("red", "a", "gone", web4)}, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			for i := range c.services {
				c.services[i].Key.Name = fmt.Sprint(i)
			}
			p.Services = sorted.Of(c.services...)
			require.Equal(t, listOf(c.want...), new(Roles).Find(nil, p, nodes))
		})
	}
}

// listOf returns a list of roles and leaves the slice unchanged.
func listOf(roles ...Role) sorted.List[Role] { return sorted.Of(slices.Clone(roles)...) }

// TestRolesOfPlansInTurn finds the same roles step by step, in successive plans, as in the last plan alone.
func TestRolesOfPlansInTurn(t *testing.T) {
	var nodes cluster.Map[string, cluster.Node]
	for i, name := range []string{"a", "b", "c", "none"} {
		nodes = nodes.With(name, cluster.Node{Internal: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}})
	}
	nodes = nodes.With("none", cluster.Node{})
	paths := []plan.Path{
		{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}},
		{ID: 3, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "blue"}},
	}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		one := func(of ...string) string { return of[r.IntN(len(of))] }
		var services sorted.List[plan.Service]
		var found Roles
		var former *plan.NodePlan
		for step := range 50 {
			var set, gone []plan.Service
			for range r.IntN(5) {
				s := plan.Service{
					Key: cluster.Key{Name: fmt.Sprint(r.IntN(20))}, Network: one("red", "blue", "green"), Host: one("a", "b", "c", "ALL", ""), Standby: one("a", "b", "c", "none", ""),
					Parted: one("", "", "b", "c"),
				}
				for range r.IntN(3) {
					s.IngressIPs = append(s.IngressIPs, netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(8))}))
				}
				if r.IntN(4) == 0 {
					gone = append(gone, s)
				} else {
					set = append(set, s)
				}
			}
			services = services.With(set, gone)
			p := &plan.NodePlan{Node: "a", Services: services, DataPlane: plan.DataPlane{Paths: paths}}
			require.Equal(t, new(Roles).Find(nil, p, nodes).Slice(), found.Find(former, p, nodes).Slice(), "seed %d, step %d", seed, step)
			if former = p; r.IntN(10) == 0 {
				former = nil // the next step begins from scratch
			}
		}
	}
}

// someView returns the roles and data plane of the standby of 192.0.2.10 and host of 192.0.2.20.
func someView() (roles []Role, d plan.DataPlane) {
	local, peer := addr("127.0.0.1"), addr("127.0.0.2")
	roles = []Role{
		{addr("192.0.2.10"), local, peer, false, false, 2},
		{addr("192.0.2.20"), local, peer, true, false, 2},
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
			{Addr: addr("10.244.2.12"), Path: 2, Source: addr("192.0.2.20")},
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
		other = append(other, Role{r.Ingress, r.Peer, r.Local, !r.Host, false, 2})
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
	host.Set(4785, listOf(slices.Concat(other, []Role{{addr("192.0.2.40"), other[0].Local, other[0].Peer, true, false, 2}})...), d)
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

func TestRecords(t *testing.T) {
	udp6 := conntrack.Flow{
		Proto: unix.IPPROTO_UDP, Src: at("[fd44:1::11]:5353"), Dst: at("[2001:db8:100::10]:53"), SNAT: at("[2001:db8:2::10]:1024"), Timeout: 90,
	}
	all := []record{{Flow: tcpFlow("10.244.1.11:40000", "198.51.100.10:443", "192.0.2.10:1024")}, {Flow: udp6}, {Flow: udp6, ended: true}}
	var b []byte
	for i := range all {
		all[i].Path = 0
		b = appendRecord(b, all[i])
	}
	b = append(b, 3, 99, 1, 2) // a record of a future kind
	var got []record
	require.NoError(t, decodeRecords(b, func(r record) { got = append(got, r) }))
	require.Equal(t, all, got)

	var parts int
	many := bytes.Repeat(b, 1000)
	var joined []byte
	require.NoError(t, frames(many, func(part []byte) error {
		parts++
		joined = append(joined, part...)
		require.LessOrEqual(t, len(part), maxFrame)
		return decodeRecords(part, func(record) {})
	}))
	require.Equal(t, many, joined)
	require.Equal(t, (len(many)+maxFrame-1)/maxFrame, parts)

	for what, bad := range map[string][]byte{
		"cut":           b[:20],
		"short":         {4, kindAlive, 6, 0, 0},
		"other size":    append([]byte{size4 + 1}, append(bytes.Clone(b[1:1+size4]), 0)...),
		"protocol":      append([]byte{size4, kindAlive, 1}, b[3:1+size4]...),
		"IPv4 as IPv6":  appendRecord(nil, record{Flow: conntrack.Flow{Proto: 6, Src: at("[::ffff:1.2.3.4]:1"), Dst: at("[fd00::1]:1"), SNAT: at("[fd00::2]:1")}}),
		"wrong version": {size6, kindEnded, 17, 0, 0, 0, 0},
	} {
		require.ErrorIs(t, decodeRecords(bad, func(record) {}), errFormat, what)
	}
}

// FuzzRecords feeds the decoder arbitrary input and checks the records that it accepts.
func FuzzRecords(f *testing.F) {
	f.Add(appendRecord(nil, record{Flow: tcpFlow("10.244.1.11:40000", "198.51.100.10:443", "192.0.2.10:1024")}))
	f.Add(appendRecord(nil, record{Flow: tcpFlow("[fd44:1::11]:1", "[2001:db8:100::10]:53", "[2001:db8:2::10]:1024"), ended: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := decodeRecords(b, func(r record) {
			require.Contains(t, []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}, r.Proto)
			require.Equal(t, r.Src.Addr().Is4(), r.Dst.Addr().Is4())
			require.Equal(t, r.Src.Addr().Is4(), r.SNAT.Addr().Is4())
			again := r
			require.NoError(t, decodeRecords(appendRecord(nil, r), func(r record) { again = r }))
			require.Equal(t, r, again)
		})
		if err != nil {
			return
		}
		require.NoError(t, frames(b, func(part []byte) error {
			require.NotEmpty(t, part)
			return decodeRecords(part, func(record) {})
		}))
	})
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

// TestHandOver sends flows of local pods to the host that this node stood by for until a moment ago, and to no other. It returns those that
// the host sends back.
func TestHandOver(t *testing.T) {
	c := New(slog.New(slog.DiscardHandler), "a", marks())
	roles, d := someView()
	roles[0].Parted = true
	c.Set(4785, listOf(roles...), d)
	ch := c.now().channels[c.now().of(roles[0])]
	ours := tcpFlow("10.244.1.11:1", "198.51.100.10:443", "192.0.2.10:1")
	refused := tcpFlow("10.244.1.11:3", "198.51.100.10:443", "192.0.2.10:3")
	asHost := tcpFlow("10.244.3.11:1", "198.51.100.10:443", "192.0.2.20:1")
	closed := tcpFlow("10.244.1.11:2", "198.51.100.10:443", "192.0.2.10:2")
	closed.State = conntrack.TCPTimeWait
	require.Empty(t, c.HandOver(t.Context(), []conntrack.Flow{ours, asHost, closed}), "the channel is down")
	ch.begin()
	handed := func(ctx context.Context, flows ...conntrack.Flow) <-chan []conntrack.Flow {
		result := make(chan []conntrack.Flow)
		go func() { result <- c.HandOver(ctx, flows) }()
		<-ch.filled
		return result
	}
	back := addr("127.0.0.2")
	result := handed(t.Context(), ours, asHost, closed)
	var got []record
	require.NoError(t, decodeRecords(ch.take(), func(r record) { got = append(got, r) }))
	require.Len(t, got, 1)
	require.Equal(t, keyOf(ours), keyOf(got[0].Flow))
	c.received(back, got)
	require.Equal(t, []conntrack.Flow{ours}, <-result)
	require.Empty(t, c.held)
	require.Zero(t, c.Counters().Refused)
	c.received(back, got)
	require.EqualValues(t, 1, c.Counters().Refused, "nothing is handed over now")

	ctx, end := context.WithCancel(t.Context())
	result = handed(ctx, ours, refused)
	c.received(back, got)
	end()
	require.Equal(t, []conntrack.Flow{ours}, <-result, "the host does not confirm the other one")

	ch.take()
	c.happened(conntrack.FlowEvent{Kind: conntrack.FlowChanged, Flow: tcpFlow("10.244.2.11:1", "198.51.100.10:443", "192.0.2.10:1")})
	c.tellRipe(time.Now().Add(tellAfter))
	require.Empty(t, ch.take(), "the two are not host and standby any more")
}

// TestHandedOver: the host believes the flows of pods of the node that stood by for it until a moment ago.
func TestHandedOver(t *testing.T) {
	c := New(slog.New(slog.DiscardHandler), "a", marks())
	roles, d := someView()
	roles[1].Parted = true
	c.Set(4785, listOf(roles...), d)
	f := tcpFlow("10.244.2.12:1000", "198.51.100.10:443", "192.0.2.20:1000")
	role, here, ok := c.now().judge(addr("127.0.0.2"), &f)
	require.Equal(t, []bool{true, true, true}, []bool{role.Host, here, ok})

	standby := roles[1]
	standby.Peer, standby.Parted = addr("127.0.0.3"), false
	c.Set(4785, listOf(append(roles, standby)...), d)
	to, from := c.now().channels[c.now().of(standby)], c.now().channels[c.now().of(roles[1])]
	to.begin()
	from.begin()
	c.passOn(addr("127.0.0.2"), []conntrack.Flow{f})
	var got []record
	require.NoError(t, decodeRecords(to.take(), func(r record) { got = append(got, r) }))
	require.Len(t, got, 1, "the standby knows it, too")
	require.NoError(t, decodeRecords(from.take(), func(r record) { got = append(got, r) }))
	require.Len(t, got, 2, "and the former host learns that it is here")
}

// TestStandbyAgain has a former standby become the standby again: it gets a full list, since it was sent no flows meanwhile.
func TestStandbyAgain(t *testing.T) {
	c := New(slog.New(slog.DiscardHandler), "a", marks())
	roles, d := someView()
	host := roles[1]
	parted := host
	parted.Parted = true
	set := func(r Role) (due bool) {
		c.Set(4785, listOf(r), d)
		due, _ = c.now().channels[c.now().of(r)].takeDue()
		return due
	}
	c.Set(4785, listOf(host), d)
	c.now().channels[c.now().of(host)].begin()
	require.True(t, set(host))
	require.False(t, set(parted))
	require.True(t, set(host))
}
