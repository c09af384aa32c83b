package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

const vrfEgress = "../containerlab/vrf-egress.clab.yml"

// web is a Service with one pod on a and one on b, as source of its egress and target of its ingress.
func web(local bool) *cluster.Objects {
	key := cluster.Key{Namespace: "shop", Name: "web"}
	o := &cluster.Objects{
		Services: cluster.MapOf(map[cluster.Key]cluster.Service{key: {
			LoadBalancer: true, LocalTraffic: local,
			ClusterIPs: addrs("10.96.0.10", "fd96::10"),
			Ingress:    []cluster.Ingress{{IP: "192.0.2.10"}, {IP: "2001:db8:2::10"}},
			Ports:      []cluster.Port{{Protocol: "TCP", Port: 80, TargetPort: 8080}, {Protocol: "UDP", Port: 80, TargetPort: 8080}},
		}}),
		Endpoints: cluster.MapOf(map[cluster.Key][]cluster.Endpoint{key: {
			{Address: "10.244.1.11", Node: "a"},
			{Address: "fd44:1::11", Node: "a"},
			{Address: "10.244.2.11", Node: "b"},
			{Address: "fd44:2::11", Node: "b"},
		}}),
	}
	for i, n := range []string{"a", "b", "c"} {
		o.Nodes = o.Nodes.With(n, cluster.Node{PodCIDRs: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i+1)), netip.MustParsePrefix(fmt.Sprintf("fd44:%d::/64", i+1)),
		}})
	}
	return o
}

func addrs(s ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range s {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func at(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}

func deploy(t *testing.T, path string, o Options) *Lab {
	t.Helper()
	started := time.Now()
	l, err := Deploy(t.Context(), path, o)
	require.NoError(t, err)
	t.Logf("deployed %d nodes in %s", len(l.Nodes), time.Since(started).Round(time.Millisecond))
	t.Cleanup(func() { require.NoError(t, l.Destroy()) })
	return l
}

func TestVRFEgress(t *testing.T) {
	l := deploy(t, vrfEgress, Options{Exec: map[string][]string{"gw": {
		"ip route add 192.0.2.10/32 via 10.0.0.12", "ip route add 2001:db8:2::10/128 via fd00::12",
	}}})
	ctx := t.Context()
	require.NoError(t, l.RespondOn(ctx, "a-p1", "b-p1", "b", "ext-red", "ext-blue", "ext-default"))
	pod := l.Node("a-p1")

	t.Run("pods reach pods with their own address", func(t *testing.T) {
		for _, c := range []struct{ from, to string }{{"10.244.1.11", "10.244.2.11"}, {"fd44:1::11", "fd44:2::11"}} {
			a, err := pod.AskTCP(ctx, at(c.to, ResponderPort))
			require.NoError(t, err)
			require.Equal(t, "b-p1 "+c.from, a.Name+" "+a.Peer.Addr().String())
			a, err = pod.AskUDP(ctx, at(c.to, ResponderPort), 4000)
			require.NoError(t, err)
			require.Equal(t, "b-p1 "+c.from, a.Name+" "+a.Peer.Addr().String())
			require.NoError(t, pod.Ping(ctx, netip.MustParseAddr(c.to), 56))
		}
	})

	t.Run("pods leave by the default network with their node's address", func(t *testing.T) {
		w, err := l.Witness("gw", "red1", "red2", "blue1", "blue2")
		require.NoError(t, err)
		defer w.Close()
		for _, c := range []struct{ to, source string }{{"198.51.100.10", "10.0.0.11"}, {"2001:db8:100::10", "fd00::11"}} {
			w.Reset()
			a, err := pod.AskTCP(ctx, at(c.to, ResponderPort))
			require.NoError(t, err)
			require.Equal(t, "ext-default "+c.source, a.Name+" "+a.Peer.Addr().String())
			require.NoError(t, pod.Ping(ctx, netip.MustParseAddr(c.to), 1000))
			a, err = pod.AskUDP(ctx, at(c.to, ResponderPort), 4000)
			require.NoError(t, err)
			require.Equal(t, "ext-default", a.Name)

			source, dst := netip.MustParseAddr(c.source), netip.MustParseAddr(c.to)
			icmp := map[bool]Protocol{true: ICMP, false: ICMPv6}[source.Is4()]
			counts := w.Counts()
			require.Equal(t, 1, counts[Packet{"gw", "eth1", false, source, dst, icmp, false, 0}])
			require.Equal(t, 1, counts[Packet{"gw", "eth2", true, source, dst, icmp, false, 0}])
			require.Equal(t, 1, counts[Packet{"gw", "eth2", false, dst, source, icmp, true, 0}])
			require.Equal(t, 3, counts[Packet{"gw", "eth1", false, source, dst, UDP, false, 0}], "fragments")
			require.Equal(t, 1, counts[Packet{"gw", "eth2", true, source, dst, UDP, false, 0}], "fragments sent: the first")
			require.Empty(t, w.Find(func(p Packet) bool { return p.Node != "gw" && (p.Src == dst || p.Dst == dst) }))
			require.Empty(t, w.Find(Sources(netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd44::/16"))))
		}
	})

	t.Run("a transfer and a stream", func(t *testing.T) {
		_, err := pod.Transfer(ctx, at("198.51.100.10", ResponderPort), 1<<20, 1<<20)
		require.NoError(t, err)
		s := l.Stream(ctx, pod, at("198.51.100.10", ResponderPort), 5*time.Millisecond)
		dead := l.Stream(ctx, pod, at("10.244.1.77", ResponderPort), 5*time.Millisecond)
		require.NoError(t, Wait(ctx, Patience, func() error {
			if n := s.Tally().OK; n < 100 {
				return fmt.Errorf("%d answers", n)
			}
			return nil
		}))
		tally := s.Stop()
		require.Zero(t, tally.Failed, tally.Lost)
		source := netip.MustParseAddr("10.0.0.11")
		require.Equal(t, tally.OK, tally.Seen[Seen{TCP, "ext-default", source}]+tally.Seen[Seen{UDP, "ext-default", source}])
		require.Zero(t, dead.Stop().OK)
	})

	t.Run("a stream names each question that is lost", func(t *testing.T) {
		external := l.Node("ext-default")
		_, err := external.Input(ctx, `table inet lossy {
			counter dropped_udp { }
			counter dropped_tcp { }
			chain drops {
				type filter hook input priority 0
				udp dport 8080 numgen inc mod 5 == 0 counter name dropped_udp drop
				tcp dport 8080 tcp flags & (syn | ack) == syn numgen inc mod 5 == 0 counter name dropped_tcp drop
			}
		}`, "nft", "-f", "-")
		require.NoError(t, err)
		s := l.Stream(ctx, pod, at("198.51.100.10", ResponderPort), 10*time.Millisecond)
		answers := func(n int) {
			t.Helper()
			before := s.Tally().OK
			require.NoError(t, Wait(ctx, Patience, func() error {
				if got := s.Tally().OK - before; got < n {
					return fmt.Errorf("%d more answers", got)
				}
				return nil
			}))
		}
		answers(50)
		_, err = external.Run(ctx, "nft", "flush chain inet lossy drops")
		require.NoError(t, err)
		answers(250) // the first packet of each by TCP was sent again
		tally := s.Stop()
		dropped := func(protocol string) (n int) {
			t.Helper()
			out, err := external.Run(ctx, "nft", "list counter inet lossy dropped_"+protocol)
			require.NoError(t, err)
			_, counted, found := strings.Cut(out, "packets")
			require.True(t, found, out)
			_, err = fmt.Sscanf(counted, " %d", &n)
			require.NoError(t, err)
			return n
		}
		require.NotZero(t, dropped("udp"))
		require.Equal(t, dropped("udp"), tally.Errors[errOvertaken.Error()], tally.Lost)
		require.NotZero(t, tally.Failed-dropped("udp"), tally.Lost)
		require.LessOrEqual(t, tally.Failed-dropped("udp"), dropped("tcp"), "a first packet may have been dropped twice")
	})

	t.Run("a connection pours", func(t *testing.T) {
		c, err := pod.Open(ctx, at("2001:db8:100::10", ResponderPort))
		require.NoError(t, err)
		defer c.Close()
		for _, up := range []bool{true, false, true} {
			enough, done, moved := make(chan struct{}), make(chan error, 1), atomic.Int64{}
			go func() { done <- c.Pour(ctx, up, enough, &moved) }()
			require.NoError(t, Wait(ctx, Patience, func() error {
				if n := moved.Load(); n < 8*piece {
					return fmt.Errorf("%d bytes moved", n)
				}
				return nil
			}))
			require.Empty(t, done)
			close(enough)
			require.NoError(t, <-done)
			_, err := c.Ask(ctx)
			require.NoError(t, err, "the connection is as good as before")
		}
		stopped, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- c.Pour(stopped, true, nil, new(atomic.Int64)) }()
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})

	t.Run("a question waits as long as its process runs", func(t *testing.T) {
		_, err := pod.AskTCP(ctx, at("10.244.1.77", ResponderPort)) // no such pod: its bridge asks for it in vain
		require.Error(t, err)
		_, err = pod.AskUDP(ctx, at("198.51.100.10", ResponderPort+1), 1)
		require.Error(t, err)
		within, cancel := Within(ctx, time.Millisecond)
		defer cancel()
		<-within.Done()
		require.ErrorIs(t, context.Cause(within), os.ErrDeadlineExceeded)
		require.NoError(t, ctx.Err())
	})

	t.Run("services", func(t *testing.T) {
		external, other := l.Node("ext-default"), l.Node("c-p1")
		for _, c := range []struct{ cluster, ingress, client, podSource, node string }{
			{"10.96.0.10", "192.0.2.10", "203.0.113.3", "10.244.3.11", "10.0.0.12"},
			{"fd96::10", "2001:db8:2::10", "2001:db8:113::3", "fd44:3::11", "fd00::12"},
		} {
			ask := func(n *Node, dst string) string {
				t.Helper()
				a, err := n.AskTCP(ctx, at(dst, 80))
				require.NoError(t, err)
				_, err = n.AskUDP(ctx, at(dst, 80), 10)
				require.NoError(t, err)
				return a.Name + " " + a.Peer.Addr().String()
			}
			nodes := []string{"a", "b", "c"}
			require.NoError(t, l.ProxyServices(ctx, web(false), nodes...))
			require.Contains(t, ask(other, c.cluster), c.podSource, "a pod keeps its address")
			require.NotContains(t, ask(external, c.ingress), c.client, "who comes from outside is masqueraded")

			require.NoError(t, l.ProxyServices(ctx, web(true), nodes...))
			require.Equal(t, "b-p1 "+c.client, ask(external, c.ingress), "local endpoints only, source kept")
			require.Contains(t, ask(other, c.ingress), c.podSource, "pods may use every endpoint")

			none := web(true)
			none.Endpoints = cluster.Map[cluster.Key, []cluster.Endpoint]{}
			require.NoError(t, l.ProxyServices(ctx, none, nodes...))
			_, err := other.AskUDP(ctx, at(c.cluster, 80), 1)
			require.ErrorContains(t, err, "connection refused")
		}
	})

	t.Run("FRR answers", func(t *testing.T) {
		for _, r := range []string{"gw", "red1", "red2", "blue1", "blue2"} {
			var summary map[string]struct {
				RouterID string         `json:"routerId"`
				Peers    map[string]any `json:"peers"`
			}
			require.NoError(t, l.Node(r).VTYJSON(&summary, "bgpd", "show bgp summary json"))
			require.Contains(t, summary["ipv4Unicast"].Peers, summary["ipv4Unicast"].RouterID[:7]+"11", r)
			require.NotEmpty(t, summary["ipv6Unicast"].Peers)
		}
		red1 := l.Node("red1")
		_, err := red1.VTY("bgpd", "show nonsense")
		require.ErrorContains(t, err, "Unknown command")

		require.NoError(t, KillFRR(ctx, red1))
		_, err = red1.VTY("bgpd", "show bgp summary")
		require.Error(t, err)
		require.NoError(t, FRR.Start(ctx, red1))
		_, err = red1.VTY("bgpd", "configure terminal", "router bgp 64601", "neighbor 10.1.0.11 shutdown")
		require.NoError(t, err)
		config, err := red1.VTY("bgpd", "show running-config")
		require.NoError(t, err)
		require.Contains(t, config, "neighbor 10.1.0.11 shutdown")
	})

	t.Run("programs run in the node", func(t *testing.T) {
		out, err := l.Node("b").Run(ctx, "hostname")
		require.NoError(t, err)
		require.Equal(t, "b\n", out)
		b, err := l.Node("b").Command(ctx, "ip", "-br", "link", "show", "type", "vrf").Output()
		require.NoError(t, err)
		require.Equal(t, 2, strings.Count(string(b), "vrf-"))
		_, err = l.Node("b").Run(ctx, "sh", "-c", "echo why >&2; exit 3")
		require.ErrorContains(t, err, "exit status 3: why")

		d, err := l.Start(l.Node("b"), "sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do read x; done <&-; sleep 100 & wait")
		require.NoError(t, err)
		require.NoError(t, Wait(ctx, Patience, func() error {
			if d.Log() == "" {
				return fmt.Errorf("it has not started")
			}
			return nil
		}))
		d.Kill()
		require.Error(t, d.Err())
	})

	t.Run("a responder in a VRF", func(t *testing.T) {
		_, err := l.Respond(ctx, l.Node("b"), OnDevice("vrf-red"), OnPort(9000))
		require.NoError(t, err)
		for _, dst := range []string{"10.1.0.12", "fd01::12"} {
			a, err := l.Node("red1").AskTCP(ctx, at(dst, 9000))
			require.NoError(t, err)
			require.Equal(t, "b", a.Name)
			_, err = l.Node("red1").AskUDP(ctx, at(dst, 9000), 1)
			require.NoError(t, err)
		}
		_, err = l.Node("red1").AskTCP(ctx, at("10.1.0.12", ResponderPort))
		require.Error(t, err, "the other responder is outside")
		_, err = l.Node("b").AskTCP(ctx, at("10.1.0.12", 9000), OnDevice("vrf-red"))
		require.NoError(t, err)
	})

	t.Run("the mark scribbler loads", func(t *testing.T) {
		_, err := l.Node("a").Run(ctx, "nft", "-f", "/etc/cni/scribble.nft")
		require.NoError(t, err)
		_, err = pod.AskTCP(ctx, at("198.51.100.10", ResponderPort))
		require.NoError(t, err)
	})
}

func TestTwin(t *testing.T) {
	l := deploy(t, "../containerlab/twin.clab.yml", Options{})
	ctx := t.Context()
	require.NoError(t, l.RespondOn(ctx, "t1", "t2"))
	n := l.Node("node")
	for device, router := range map[string]string{"vrf-red": "t1", "vrf-blue": "t2"} {
		for _, dst := range []string{"10.9.0.1", "fd09::1"} {
			a, err := n.AskTCP(ctx, at(dst, ResponderPort), OnDevice(device))
			require.NoError(t, err)
			require.Equal(t, router, a.Name)
			a, err = n.AskUDP(ctx, at(dst, ResponderPort), 1, OnDevice(device))
			require.NoError(t, err)
			require.Equal(t, router, a.Name)
			require.NoError(t, n.Ping(ctx, netip.MustParseAddr(dst), 8, OnDevice(device)))
		}
	}
	// A session outlives many questions, and everything ends with the lab.
	s, err := n.Open(ctx, at("10.9.0.1", ResponderPort), OnDevice("vrf-red"), FromAddr(netip.MustParseAddr("10.9.0.2"), 4000))
	require.NoError(t, err)
	for range 3 {
		a, err := s.Ask(ctx)
		require.NoError(t, err)
		require.Equal(t, at("10.9.0.2", 4000), a.Peer)
	}
	require.NoError(t, l.Destroy())
	_, err = s.Ask(ctx)
	require.Error(t, err)
	require.NoError(t, s.Close())
	require.ErrorIs(t, n.Do(func() error { return nil }), errGone)
}

func TestFailedDeployNamesTheLine(t *testing.T) {
	_, err := Deploy(t.Context(), "../containerlab/twin.clab.yml", Options{Exec: map[string][]string{"node": {"ip link set nothing up"}}})
	require.ErrorContains(t, err, "node node: exec:")
	require.ErrorContains(t, err, "ip link set nothing up")
	_, err = Deploy(t.Context(), "../containerlab/twin.clab.yml", Options{Exec: map[string][]string{"x": nil}})
	require.ErrorContains(t, err, `no node "x"`)
}
