package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// flowSession is a connection of a pod from a port that its host had to change, since another pod had taken it.
type flowSession struct {
	conversation
	seen  netip.AddrPort // its source, to the remote
	moved atomic.Int64   // bytes that it has poured
}

// shifted opens a connection from a pod to every outside address whose source port is not the pod's. Without knowledge of
// it a host would keep the port, which nobody has any more.
func shifted(t *testing.T, s *stage.Stage, pod, other string, port uint16) (all []*flowSession) {
	t.Helper()
	ctx := t.Context()
	from := func(pod string, f int) lab.SocketOption {
		return lab.FromAddr(netip.MustParseAddr(podAddrs[pod][f]), port)
	}
	for f, to := range outside {
		taken, err := s.Node(other).Open(ctx, to, from(other, f))
		require.NoError(t, err)
		session, err := s.Node(pod).Open(ctx, to, from(pod, f))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, session.Close()) })
		require.NoError(t, taken.Close())
		a, err := session.Ask(ctx)
		require.NoError(t, err)
		require.NoError(t, stage.Check(a, web.host, web.source(to)))
		require.NotEqual(t, port, a.Peer.Port(), "the host changed the port")
		all = append(all, &flowSession{conversation: conversation{pod, to, session}, seen: a.Peer})
	}
	return all
}

// podAddrs are the addresses of pods of web.
var podAddrs = map[string][2]string{"a-p1": {"10.244.1.11", "fd44:1::11"}, "b-p1": {"10.244.2.11", "fd44:2::11"}}

// knows waits until a node has an entry for a flow.
func knows(t *testing.T, s *stage.Stage, node string, seen netip.AddrPort) {
	t.Helper()
	want := fmt.Sprintf("dst=%s sport=%d dport=%d ", expanded(seen.Addr()), lab.ResponderPort, seen.Port())
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		table, err := s.Node(node).Run(t.Context(), "cat", "/proc/net/nf_conntrack")
		if err == nil && !strings.Contains(table, want) {
			err = fmt.Errorf("node %s has no flow with %q:\n%s", node, want, table)
		}
		return err
	}))
}

// expanded is an address as /proc/net/nf_conntrack writes it.
func expanded(a netip.Addr) string {
	if a.Is4() {
		return a.String()
	}
	return a.StringExpanded()
}

// knownTo waits until the standby knows all of these connections. Those of its own pods it keeps in mind until it takes
// over: they come before those of others in the same channel.
func knownTo(t *testing.T, s *stage.Stage, standby string, all []*flowSession) {
	t.Helper()
	for _, f := range all {
		if f.pod[:1] != standby {
			knows(t, s, standby, f.seen)
		}
	}
}

// requireAlive fails unless every connection is the one that it was.
func requireAlive(t *testing.T, all []*flowSession) {
	t.Helper()
	for _, f := range all {
		a, err := f.session.Transfer(t.Context(), 100<<10, 100<<10)
		require.NoError(t, err, "pod %s, seen as %s", f.pod, f.seen)
		require.Equal(t, f.seen, a.Peer)
	}
}

// allMove waits until every connection that pours has moved more bytes.
func allMove(t *testing.T, all []*flowSession) {
	t.Helper()
	for _, f := range all {
		before := f.moved.Load()
		require.NoError(t, lab.Wait(t.Context(), patience, func() error {
			if f.moved.Load() == before {
				return fmt.Errorf("pod %s, seen as %s: no bytes moved after %d", f.pod, f.seen, before)
			}
			return nil
		}))
	}
}

// pour moves bytes by all connections without a pause, up or down, until end is called, which returns why some stopped before.
func pour(t *testing.T, all []*flowSession, up []bool) (end func() error) {
	t.Helper()
	enough := make(chan struct{})
	done := make(chan error, len(all))
	for i, f := range all {
		go func() {
			err := f.session.Pour(t.Context(), up[i], enough, &f.moved)
			if err != nil {
				err = fmt.Errorf("%s, up: %t, seen as %s, after %d bytes: %w", f.pod, up[i], f.seen, f.moved.Load(), err)
			}
			done <- err
		}()
	}
	return func() (err error) {
		close(enough)
		for range all {
			err = errors.Join(err, <-done)
		}
		return err
	}
}

// hosted are manifests in which a node is the host of web.
func hosted(t *testing.T, status string) map[string]string {
	t.Helper()
	return map[string]string{
		"cluster.yaml": manifest(t, "cluster.yaml"), "batch.yaml": manifest(t, "batch.yaml"),
		"web.yaml": strings.Replace(manifest(t, "web.yaml"), "network: red\n", "network: red\n"+status, 1),
	}
}

// TestFlowsOutliveTheirHost kills the host without a word under transfers and idle connections, of pods on the standby and
// on a third node. All of them go on by the standby, with the same source address and port.
func TestFlowsOutliveTheirHost(t *testing.T) {
	s := play(t, stage.Options{Nodes: []string{"a", "b", "c"}, BFD: true, BFDInterval: 1000, Manifests: hosted(t, "status: {host: c, standby: a, term: 1}\n")})
	ctx := t.Context()
	ledBy(t, s, "c")
	require.NoError(t, s.AwaitStandby(ctx, "red1", "192.0.2.10/32", inRedOf("a")[0]))
	all := asDeployed()
	awaitServed(t, s, all)
	awaitWatched(t, s, "c", "a", "b")

	var idle, busy []*flowSession
	var up []bool
	port := uint16(40000)
	for _, pods := range [][2]string{{"a-p1", "b-p1"}, {"b-p1", "a-p1"}} {
		idle = append(idle, shifted(t, s, pods[0], pods[1], port)...)
		for _, sends := range []bool{true, false} {
			port++
			for _, f := range shifted(t, s, pods[0], pods[1], port) {
				busy, up = append(busy, f), append(up, sends)
			}
		}
		port++
	}
	knownTo(t, s, "a", idle)
	knownTo(t, s, "a", busy)

	s.Witness.Reset()
	poured := pour(t, busy, up)
	allMove(t, busy)
	require.NoError(t, s.Freeze("c"))
	ledBy(t, s, "a")
	allMove(t, busy)
	require.NoError(t, poured())
	requireAlive(t, idle)
	requireAlive(t, busy)
	wrong := s.Wrong(allowed(all))
	maps.DeleteFunc(wrong, func(p lab.Packet, _ int) bool { return p.Interface == "(lost)" && p.Node != "gw" }) // more than the witness can count
	require.Empty(t, wrong)
}

// TestFlowsFollowTheirHost moves the host on purpose, and then takes the former one away: connections go on, of pods of the
// next host and of a third node.
func TestFlowsFollowTheirHost(t *testing.T) {
	was := "status: {host: c, standby: a, term: 1}\n"
	s := play(t, stage.Options{Nodes: []string{"a", "b", "c"}, Manifests: hosted(t, was)})
	ctx := t.Context()
	ledBy(t, s, "c")
	all := asDeployed()
	awaitServed(t, s, all)
	idle := slices.Concat(shifted(t, s, "a-p1", "b-p1", 40000), shifted(t, s, "b-p1", "a-p1", 40001))
	knownTo(t, s, "a", idle)
	s.Witness.Reset()
	for i, next := range []struct{ host, standby string }{
		{"a", "c"}, // the standby takes over, flows may stay by the former host
		{"a", "b"}, // which then goes
	} {
		now := fmt.Sprintf("status: {host: %s, standby: %s, term: %d}\n", next.host, next.standby, 2+i)
		require.NoError(t, s.Edit(ctx, "web.yaml", was, now))
		was = now
		ledBy(t, s, next.host)
		for _, router := range []string{"red1", "red2"} {
			require.NoError(t, s.AwaitStandby(ctx, router, "192.0.2.10/32", inRedOf(next.standby)[0]))
		}
		requireAlive(t, idle)
	}
	requireInnocent(t, s, all)
}

// ledBy waits until both routers of red use the path by one node alone.
func ledBy(t *testing.T, s *stage.Stage, node string) {
	t.Helper()
	for _, router := range []string{"red1", "red2"} {
		require.NoError(t, s.AwaitRoute(t.Context(), router, "192.0.2.10/32", inRedOf(node)[0]))
		require.NoError(t, s.AwaitRoute(t.Context(), router, "2001:db8:2::10/128", inRedOf(node)[1]))
	}
}
