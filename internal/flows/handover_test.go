package flows

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/lab"
)

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
	unknown := tcpFlow("10.244.2.11:1", "198.51.100.10:443", "192.0.2.10:4") // the host would not know that it is a pod's of this node
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
	result := handed(t.Context(), ours, asHost, unknown, closed)
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
	f := tcpFlow("10.244.2.15:1000", "198.51.100.10:443", "192.0.2.20:1000")
	role, here, ok := c.now().judge(addr("127.0.0.2"), &f)
	require.Equal(t, []bool{true, true, true}, []bool{role.Host, here, ok})

	standby := roles[1]
	standby.Peer, standby.Node, standby.Parted = addr("127.0.0.3"), "c", false
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

	roles[1].Parted = false
	c.Set(4785, listOf(append(roles, standby)...), d)
	c.passOn(addr("127.0.0.2"), []conntrack.Flow{tcpFlow("10.244.2.12:1000", "198.51.100.10:443", "192.0.2.20:1000")})
	require.Empty(t, to.take(), "of a pod of a third node: the other node believes that it is the host")
	require.Empty(t, from.take())
}

// TestRefusedIsNotConfirmed hands flows over to the host, which has another connection with the source of one of them.
func TestRefusedIsNotConfirmed(t *testing.T) {
	of := func(pod, port string) conntrack.Flow {
		return tcpFlow(pod+":1", "198.51.100.10:443", "192.0.2.20:"+port)
	}
	there, refused, free := of("10.244.2.12", "1"), of("10.244.2.15", "1"), of("10.244.2.15", "2")
	free.Src = at("10.244.2.15:2")
	_, err := conntrack.InjectFlows(conntrack.Injection{Marks: marks(), Steering: steering}, []conntrack.Flow{there})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conntrack.RemoveFlows([]conntrack.Flow{there, free})) })
	c, ch := oneChannel()
	c.received(addr("127.0.0.2"), []record{alive(refused), alive(free)})
	var back []record
	require.NoError(t, decodeRecords(ch.take(), func(r record) { back = append(back, r) }))
	require.Len(t, back, 1)
	require.Equal(t, free.SNAT, back[0].SNAT)
	require.EqualValues(t, 1, c.Counters().Refused)
}

// TestTwoHosts: two nodes that both believe they are the host send each other's flows back only where they may have been handed over.
func TestTwoHosts(t *testing.T) {
	ofThird := tcpFlow("10.244.2.12:1", "198.51.100.10:443", "192.0.2.20:1")
	ofThird.Proto, ofThird.State, ofThird.Timeout = unix.IPPROTO_UDP, 0, 120
	_, err := conntrack.InjectFlows(conntrack.Injection{Marks: marks(), Steering: steering}, []conntrack.Flow{ofThird})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conntrack.RemoveFlows([]conntrack.Flow{ofThird})) })
	roles, d := someView()
	role := roles[1]
	of := map[string]Role{"a": role, "b": {role.Ingress, role.Peer, role.Local, "a", true, false, 2}}
	ctx, cancel := context.WithCancel(t.Context())
	done, carriers := make(chan struct{}), map[string]*Carrier{}
	for node, role := range of {
		c := New(slog.New(slog.NewTextHandler(t.Output(), nil)), node, marks())
		carriers[node] = c
		c.Set(4787, listOf(role), d)
		go func() { c.Run(ctx); done <- struct{}{} }()
	}
	defer func() { cancel(); <-done; <-done }()
	is := func(received uint64, c *Carrier) {
		t.Helper()
		require.Eventually(t, func() bool { return c.Counters().Received >= received }, lab.Patience, 10*time.Millisecond, "%+v", c.Counters())
	}
	a, b := carriers["a"], carriers["b"]
	is(1, a) // both send all flows once the channel is up
	is(1, b)
	for i, c := range []*Carrier{a, b} { // whatever a node sends back is before the end that it sends now
		other := []*Carrier{b, a}[i]
		over := tcpFlow("10.244.2.12:2", "198.51.100.10:443", "192.0.2.20:2")
		c.happened(conntrack.FlowEvent{Kind: conntrack.FlowEnded, Flow: over})
		require.Eventually(t, func() bool { return other.Counters().Removed == 1 }, lab.Patience, 10*time.Millisecond)
	}
	for _, c := range carriers {
		require.EqualValues(t, 2, c.Counters().Received)
	}
	left := uint32(0)
	require.NoError(t, conntrack.ListFlows(t.Context(), marks(), func(f conntrack.Flow) bool { left = f.Timeout; return true }))
	require.LessOrEqual(t, left, ofThird.Timeout+2*uint32(tellEvery/time.Second))
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
