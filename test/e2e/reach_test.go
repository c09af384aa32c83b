package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// ipFamily is what the topology holds of one address family.
type ipFamily struct {
	name         string // as the routers and ip(8) write it
	icmp         lab.Protocol
	outside      netip.AddrPort
	web, batch   netip.Addr     // ingress IPs
	webCluster   netip.AddrPort // ClusterIPs
	batchCluster netip.AddrPort
	lan          string // of nodes, by number
	red, blue    string
	pods         string // by number of the node and of the pod
	clientRed    netip.Addr
	clientMain   netip.Addr
}

var ipFamilies = []ipFamily{
	{
		name: "ipv4", icmp: lab.ICMP, outside: stage.Outside4,
		web: netip.MustParseAddr("192.0.2.10"), batch: netip.MustParseAddr("192.0.2.20"),
		webCluster: netip.MustParseAddrPort("10.96.0.10:80"), batchCluster: netip.MustParseAddrPort("10.96.0.20:80"),
		lan: "10.0.0.%d", red: "10.1.0.%d", blue: "10.2.0.%d", pods: "10.244.%d.%d",
		clientRed: netip.MustParseAddr("203.0.113.1"), clientMain: netip.MustParseAddr("203.0.113.3"),
	},
	{
		name: "ipv6", icmp: lab.ICMPv6, outside: stage.Outside6,
		web: netip.MustParseAddr("2001:db8:2::10"), batch: netip.MustParseAddr("2001:db8:2::20"),
		webCluster: netip.MustParseAddrPort("[fd96::10]:80"), batchCluster: netip.MustParseAddrPort("[fd96::20]:80"),
		lan: "fd00::%d", red: "fd01::%d", blue: "fd02::%d", pods: "fd44:%d::%d",
		clientRed: netip.MustParseAddr("2001:db8:113::1"), clientMain: netip.MustParseAddr("2001:db8:113::3"),
	},
}

// of is a node's address in one of the links that format stands for.
func (f ipFamily) of(format, node string) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, 11+int(node[0]-'a')))
}

// pod is the address of a pod, named like b-p1.
func (f ipFamily) pod(name string) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(f.pods, 1+int(name[0]-'a'), 10+int(name[3]-'0')))
}

// bridge is the address that a node has towards its pods.
func (f ipFamily) bridge(node string) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(f.pods, 1+int(node[0]-'a'), 1))
}

func host(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// asWritten are the sources that the topology's objects give to what leaves for the outside, by network.
func asWritten() map[string][]string {
	allowed := map[string][]string{}
	for _, f := range ipFamilies {
		allowed["red"] = append(allowed["red"], f.web.String())
		allowed["blue"] = append(allowed["blue"], f.of(f.blue, "a").String(), f.of(f.blue, "b").String())
		allowed["default"] = append(allowed["default"], f.of(f.lan, "c").String())
	}
	return allowed
}

// await waits until every pod of web and batch leaves as the topology's objects say, and forgets what was before.
func await(t *testing.T, s *stage.Stage) {
	t.Helper()
	ctx := t.Context()
	for _, f := range ipFamilies {
		for _, r := range []string{"red1", "red2"} {
			require.NoError(t, s.AwaitRoute(ctx, r, host(f.web), f.of(f.red, "a").String()))
		}
		for _, r := range []string{"blue1", "blue2"} {
			require.NoError(t, s.AwaitRoute(ctx, r, host(f.batch), f.of(f.blue, "a").String(), f.of(f.blue, "b").String()))
		}
		for _, node := range []string{"a", "b"} {
			require.NoError(t, s.Await(ctx, node+"-p1", f.outside, "ext-red", f.web.String()))
			require.NoError(t, s.Await(ctx, node+"-p2", f.outside, "ext-blue", f.of(f.blue, node).String()))
		}
	}
	awaitWays(t, s, identities{"a-p1": web})
	s.Witness.Reset()
}

// answered requires an answer by name, which saw source.
func answered(t *testing.T, a lab.Answer, err error, name string, source netip.Addr) {
	t.Helper()
	require.NoError(t, err)
	require.NoError(t, stage.Check(a, name, source.String()))
}

// outsideAnswers asks the outside by TCP, UDP, fragmented UDP and ICMP. Who answers a ping shows at the routers.
func outsideAnswers(t *testing.T, s *stage.Stage, f ipFamily, pod, name string, source netip.Addr) {
	t.Helper()
	ctx, n := t.Context(), s.Node(pod)
	a, err := n.AskTCP(ctx, f.outside)
	answered(t, a, err, name, source)
	for _, size := range []int{1, 4000} {
		a, err = n.AskUDP(ctx, f.outside, size)
		answered(t, a, err, name, source)
	}
	pings := func() int {
		return s.Witness.Find(func(p lab.Packet) bool {
			return p.Protocol == f.icmp && p.Dst == f.outside.Addr() && p.Src == source && !p.Out
		}).Total()
	}
	before := pings()
	require.NoError(t, n.Ping(ctx, f.outside.Addr(), 56))
	require.Equal(t, before+1, pings(), "a router sees the ping with source %s", source)
}

const megabyte = 1 << 20

// transfers moves a megabyte both ways.
func transfers(t *testing.T, s *stage.Stage, f ipFamily, pod, name string, source netip.Addr) {
	t.Helper()
	a, err := s.Node(pod).Transfer(t.Context(), f.outside, megabyte, 0)
	answered(t, a, err, name, source)
	a, err = s.Node(pod).Transfer(t.Context(), f.outside, 0, megabyte)
	answered(t, a, err, name, source)
}

// run runs command lines on a node.
func run(t *testing.T, s *stage.Stage, node string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		_, err := s.Node(node).Run(t.Context(), strings.Fields(l)...)
		require.NoError(t, err)
	}
}

// narrow makes the links between red's routers and its external host carry less than that host tells its peers.
func narrow(t *testing.T, s *stage.Stage) {
	t.Helper()
	for _, r := range []string{"red1", "red2"} {
		run(t, s, r, "ip link set eth2 mtu 1400")
	}
	run(t, s, "ext-red", "ip link set eth1 mtu 1400", "ip link set eth2 mtu 1400",
		"ip route replace default src 203.0.113.1 advmss 1460 nexthop via 172.31.11.1 nexthop via 172.31.12.1",
		"ip -6 route replace default src 2001:db8:113::1 advmss 1440 nexthop via fd31:11::1 nexthop via fd31:12::1")
}

// overlay makes the ways from a to the pods of web narrow, as an overlay's are.
func overlay(t *testing.T, s *stage.Stage) {
	t.Helper()
	run(t, s, "a", "ip route replace 10.244.1.11 dev cni0 mtu 1300", "ip -6 route replace fd44:1::11 dev cni0 mtu 1300",
		"ip route replace 10.244.2.0/24 via 10.0.0.12 mtu 1300", "ip -6 route replace fd44:2::/64 via fd00::12 mtu 1300")
}

func TestReach(t *testing.T) {
	s := play(t, stage.Options{})
	await(t, s)
	reach := func(t *testing.T) {
		for _, f := range ipFamilies {
			for _, node := range []string{"a", "b"} {
				outsideAnswers(t, s, f, node+"-p1", "ext-red", f.web)
				outsideAnswers(t, s, f, node+"-p2", "ext-blue", f.of(f.blue, node))
				transfers(t, s, f, node+"-p1", "ext-red", f.web)
			}
			outsideAnswers(t, s, f, "c-p1", "ext-default", f.of(f.lan, "c"))
		}
		require.Empty(t, s.Wrong(asWritten()))
	}
	t.Run("by the network and with the source that is written", reach)

	t.Run("by both routers", func(t *testing.T) {
		for _, f := range ipFamilies {
			require.NoError(t, lab.Wait(t.Context(), patience, func() error {
				for _, pod := range []string{"a-p1", "b-p1"} {
					a, err := s.Node(pod).AskTCP(t.Context(), f.outside)
					answered(t, a, err, "ext-red", f.web)
				}
				for _, r := range []string{"red1", "red2"} {
					if s.Witness.Find(func(p lab.Packet) bool { return p.Node == r && !p.Out && p.Src == f.web && p.Protocol == lab.TCP }).Total() == 0 {
						return fmt.Errorf("%s has not seen %s yet", r, f.web)
					}
				}
				return nil
			}))
		}
	})

	t.Run("while somebody else writes the packet mark", func(t *testing.T) {
		for _, node := range []string{"a", "b"} {
			run(t, s, node, "nft -f /etc/cni/scribble.nft")
			defer run(t, s, node, "nft delete table inet scribble")
		}
		reach(t)
	})

	t.Run("over a narrow link behind the router", func(t *testing.T) {
		narrow(t, s)
		for _, f := range ipFamilies {
			for _, pod := range []string{"a-p1", "b-p1"} {
				s.Witness.Reset()
				transfers(t, s, f, pod, "ext-red", f.web)
				tooBig := s.Witness.Find(func(p lab.Packet) bool { return p.Out && p.Dst == f.web && p.Protocol == f.icmp })
				require.NotEmpty(t, tooBig, "a router told %s that its packets are too big", pod)
				a, err := s.Node(pod).AskUDP(t.Context(), f.outside, 4000)
				answered(t, a, err, "ext-red", f.web)
				require.Empty(t, s.Wrong(asWritten()))
			}
		}
	})

	t.Run("over a narrow link before the pod", func(t *testing.T) {
		// Now the host itself has to tell the external host, by the network that the packet came from.
		overlay(t, s)
		for _, f := range ipFamilies {
			for _, pod := range []string{"a-p1", "b-p1"} {
				s.Witness.Reset()
				// Until it is asked without having learned the size from an earlier connection.
				require.NoError(t, lab.Wait(t.Context(), patience, func() error {
					run(t, s, "ext-red", "ip route flush cache", "ip -6 route flush cache")
					transfers(t, s, f, pod, "ext-red", f.web)
					tooBig := s.Witness.Find(func(p lab.Packet) bool {
						return !p.Out && p.Dst == f.outside.Addr() && p.Protocol == f.icmp
					})
					if len(tooBig) == 0 {
						return fmt.Errorf("the host has not told the external host that packets to %s are too big", pod)
					}
					return nil
				}))
				require.Empty(t, s.Wrong(asWritten()))
			}
		}
	})
	t.Run("over a narrower link from the pod's node to the pod", func(t *testing.T) {
		// The node of a steered pod sends its error to the host, which gives it the source that the external host knows.
		run(t, s, "b", "ip route replace 10.244.2.11 dev cni0 mtu 1280", "ip -6 route replace fd44:2::11 dev cni0 mtu 1280")
		for _, f := range ipFamilies {
			s.Witness.Reset()
			run(t, s, "ext-red", "ip route flush cache", "ip -6 route flush cache")
			transfers(t, s, f, "b-p1", "ext-red", f.web)
			require.Empty(t, s.Wrong(asWritten()))
		}
	})
}
