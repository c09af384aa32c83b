package kernel

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
)

// uplinkLab is node a with a pod, whose Service leaves by network green, and what is behind its devices: eth4 in green, eth5 in blue,
// eth1 in network default, lan to node b. The networks are tables.
type uplinkLab struct {
	t                                   *testing.T
	node, pods, green, blue, outside, b *netns.Machine
	kernel                              *keptNode
	s                                   plan.Snapshot
}

var uplinkWeb = cluster.Key{Namespace: "shop", Name: "web"}

func newUplinkLab(t *testing.T) *uplinkLab {
	t.Helper()
	f := netns.Families[0]
	l := &uplinkLab{
		t: t, node: netns.New(t), pods: netns.New(t), green: netns.New(t), blue: netns.New(t), outside: netns.New(t), b: netns.New(t),
	}
	for _, w := range []struct {
		device, subnet string
		to             *netns.Machine
	}{{"pods", "10.0.1.", l.pods}, {"eth4", "10.4.0.", l.green}, {"eth5", "10.5.0.", l.blue}, {"eth1", "10.9.0.", l.outside}, {"lan", "10.8.0.", l.b}} {
		netns.Wire(f, l.node, w.device, w.to, "eth0", w.subnet)
		w.to.Run("ip route add default via " + w.subnet + "1")
	}
	for _, m := range []*netns.Machine{l.node, l.pods, l.green, l.blue, l.outside, l.b} {
		m.Run("sysctl -qw net.ipv4.ip_forward=1", "for d in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $d; done")
	}
	l.pods.Run("ip addr add 10.244.1.11/32 dev lo", "ip addr add 10.244.1.12/32 dev lo")
	l.green.Run("ip addr add 198.51.100.10/32 dev lo")
	l.blue.Run("ip addr add 10.244.1.11/32 dev lo")
	l.node.Run("ip route add 10.244.1.0/24 via 10.0.1.2", "ip route add default via 10.9.0.2", "ip route add default via 10.4.0.2 table 100",
		"ip route add default via 10.5.0.2 table 101",
		"nft 'table ip cni { chain post { type nat hook postrouting priority 100; ip saddr 10.244.1.0/24 ip daddr != 10.244.0.0/16 masquerade; }; }'",
		"nft 'table ip proxy { chain pre { type nat hook prerouting priority dstnat; ip daddr 203.0.113.10 tcp dport 80 dnat to 10.244.1.12:80; }; }'")

	c := config.Defaults()
	c.Networks = append(c.Networks, config.Network{Name: "green", Table: 100, Interfaces: []config.Interface{{Name: "eth4"}}},
		config.Network{Name: "blue", Table: 101, Interfaces: []config.Interface{{Name: "eth5"}}})
	o := cluster.Objects{PodsKnown: true}
	for i, name := range []string{"a", "b"} {
		ip := []netip.Addr{netip.AddrFrom4([4]byte{10, 8, 0, byte(i + 1)})}
		o.Nodes = o.Nodes.With(name, cluster.Node{
			Ready: true, Addresses: ip, Internal: ip, PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 0}), 24)},
		})
	}
	o.EgressServices = o.EgressServices.With(uplinkWeb, cluster.EgressService{Network: "green", SourceIPBy: cluster.SourceIPByLoadBalancer})
	o.Services = o.Services.With(uplinkWeb, cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: "203.0.113.10"}}})
	o.Endpoints = o.Endpoints.With(uplinkWeb, []cluster.Endpoint{{Address: "10.244.1.11", Node: "a"}})
	l.s = plan.Snapshot{Node: "a", Config: c, Objects: o, Hosts: map[election.Seat]election.Choice{}, Facts: plan.Assume(c, o, "a")}
	l.s.Facts.Links[0].Name, l.s.Facts.Links[0].Addrs = "lan", []netip.Prefix{netip.MustParsePrefix("10.8.0.1/24")}
	require.NoError(t, l.node.Do(func() (err error) {
		l.kernel, err = openKept()
		return err
	}))
	t.Cleanup(func() { l.kernel.Close() })
	return l
}

// apply puts the plan for a choice of the Service's host into force, and ends connections that contradict it.
func (l *uplinkLab) apply(choice election.Choice) (ended uint) {
	l.t.Helper()
	l.s.Hosts[election.ServiceSeat(uplinkWeb)] = choice
	p, _ := plan.Build(l.s)
	require.NoError(l.t, l.node.Do(func() error {
		if _, err := l.kernel.Apply(l.t.Context(), p); err != nil {
			return err
		}
		var err error
		ended, err = l.kernel.EndContradictions(l.t.Context(), p.DataPlane)
		return err
	}))
	return ended
}

// restart ends the daemon and begins a new one.
func (l *uplinkLab) restart(between ...string) {
	l.t.Helper()
	l.kernel.Close()
	l.node.Run(between...)
	require.NoError(l.t, l.node.Do(func() (err error) {
		l.kernel, err = openKept()
		return err
	}))
}

// droppedOutside returns the count of the packets that the node has dropped for the reason "outside".
func (l *uplinkLab) droppedOutside() (n int) {
	l.t.Helper()
	require.NoError(l.t, l.node.Do(func() error {
		out, err := netns.NFT(l.t, "list counter inet egressway drop-outside")
		if err != nil {
			return err
		}
		_, counted, _ := strings.Cut(out, "packets ")
		_, err = fmt.Sscan(counted, &n)
		return err
	}))
	return n
}

// listen returns the contents and sources of datagrams that come to an address, each of which is answered.
func (l *uplinkLab) listen(m *netns.Machine, at string) <-chan string {
	l.t.Helper()
	heard := make(chan string, 16)
	require.NoError(l.t, m.Do(func() error {
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		if err != nil {
			return err
		}
		l.t.Cleanup(func() { c.Close() })
		go func() {
			for buf := make([]byte, 16); ; {
				n, from, err := c.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				heard <- string(buf[:n]) + " from " + from.Addr().String()
				_, _ = c.WriteToUDPAddrPort(buf[:n], from)
			}
		}()
		return nil
	}))
	return heard
}

// next returns the next text; empty: none comes.
func next(texts <-chan string) string {
	select {
	case text := <-texts:
		return text
	case <-time.After(10 * time.Second):
		return ""
	}
}

// TestForgedSource sends from network blue with the address of a pod that leaves by green. The packet gets neither the pod's way nor its
// source: the server behind green receives the pod's own packet, which follows, first.
func TestForgedSource(t *testing.T) {
	l := newUplinkLab(t)
	heard := l.listen(l.green, "198.51.100.10:9")
	l.apply(election.Choice{Host: "a"})
	send := func(from *netns.Machine, text string) {
		_, err := dial(t, from, "10.244.1.11", "198.51.100.10:9").Write([]byte(text))
		require.NoError(t, err)
	}
	send(l.blue, "forged")
	send(l.pods, "own")
	require.Equal(t, "own from 203.0.113.10", next(heard))
	netns.Eventually(t, func() bool { return l.droppedOutside() == 1 }, "the forged packet is dropped")
	require.Empty(t, heard)
}

// TestAnswersToFormerPod has a pod that is selected no more ask a server in the subnet of an uplink: the answer comes by the uplink, but
// is no rest of a connection that ended.
func TestAnswersToFormerPod(t *testing.T) {
	l := newUplinkLab(t)
	heard := l.listen(l.green, "10.4.0.2:9")
	l.apply(election.Choice{Host: "a"})
	l.s.Objects.EgressServices = l.s.Objects.EgressServices.Without(uplinkWeb)
	l.apply(election.Choice{})
	c := dial(t, l.pods, "10.244.1.11", "10.4.0.2:9")
	_, err := c.Write([]byte("x"))
	require.NoError(t, err)
	require.Equal(t, "x from 10.4.0.1", next(heard))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = c.Read(make([]byte, 1))
	require.NoError(t, err)
}

// TestStrayAfterTakeover sends a segment of a client's TCP connection to the standby of a dead host, and another one when the standby is
// the host. The client has to learn that its connection is gone, and its segments must not leave by network default.
func TestStrayAfterTakeover(t *testing.T) {
	l := newUplinkLab(t)
	l.outside.Run("nft 'table ip seen { chain in { type filter hook prerouting priority -400; ip daddr 203.0.113.10 counter drop; }; }'")
	l.b.Run("nft 'table ip dead { chain in { type filter hook prerouting priority -400; counter drop; }; }'")
	vip, client := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("198.51.100.10")
	var c *net.IPConn
	require.NoError(t, l.green.Do(func() (err error) {
		c, err = net.DialIP("ip4:tcp", &net.IPAddr{IP: client.AsSlice()}, &net.IPAddr{IP: vip.AsSlice()})
		return err
	}))
	defer c.Close()
	send := func() {
		_, err := c.Write(tcpSegment(client, vip, 5001, 80, flagACK))
		require.NoError(t, err)
	}
	counted := func(m *netns.Machine, table string) (seen bool) {
		require.NoError(t, m.Do(func() error {
			out, err := netns.NFT(t, "list table ip "+table)
			seen = !strings.Contains(out, "packets 0 ")
			return err
		}))
		return seen
	}
	l.apply(election.Choice{Host: "b", Standby: "a"})
	send()
	netns.Eventually(t, func() bool { return counted(l.b, "dead") }, "the stray goes to the host")
	l.apply(election.Choice{Host: "a"})
	send()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	answer := make([]byte, 100)
	n, err := c.Read(answer)
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, 20)
	require.NotZero(t, answer[n-20+13]&flagRST, "%x", answer[:n])
	require.False(t, counted(l.outside, "seen"), "the router of network default has the client's segment")
}

// TestPathIDsLost has another program delete the table while no daemon runs. The path ids are gone with it, so the network by which a
// connection came in is not known any more: it ends. A daemon that finds the table ends no connection.
func TestPathIDsLost(t *testing.T) {
	l := newUplinkLab(t)
	choice := election.Choice{Host: "a"}
	l.apply(choice)
	require.NoError(t, l.pods.Do(func() error {
		server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "10.244.1.12:80")
		if err == nil {
			t.Cleanup(func() { require.NoError(t, server.Close()) })
		}
		return err
	}))
	require.NoError(t, l.green.Do(func() error {
		d := net.Dialer{Timeout: netns.Patience, LocalAddr: &net.TCPAddr{IP: net.IPv4(198, 51, 100, 10)}}
		c, err := d.DialContext(t.Context(), "tcp", "203.0.113.10:80")
		if err == nil {
			t.Cleanup(func() { require.NoError(t, c.Close()) })
		}
		return err
	}))
	l.restart()
	require.Zero(t, l.apply(choice), "the table has the ids")
	l.restart("nft delete table inet egressway")
	require.EqualValues(t, 1, l.apply(choice))
	require.Zero(t, l.apply(choice))
}

// TestOutsiderOfNoConnection sends packets of no connection from the router of green to pods' own addresses. The pods hear node b, which
// sends afterwards, first.
func TestOutsiderOfNoConnection(t *testing.T) {
	l := newUplinkLab(t)
	l.node.Run("nft 'table ip other { chain c { type filter hook prerouting priority -300; tcp dport 7 notrack; }; }'")
	l.apply(election.Choice{Host: "a"})
	var heard *net.IPConn
	require.NoError(t, l.pods.Do(func() (err error) {
		heard, err = net.ListenIP("ip4:tcp", nil)
		return err
	}))
	defer heard.Close()
	send := func(m *netns.Machine, from, to string, port uint16, flags byte) {
		t.Helper()
		source, pod := netip.MustParseAddr(from), netip.MustParseAddr(to)
		require.NoError(t, m.Do(func() error {
			c, err := net.DialIP("ip4:tcp", &net.IPAddr{IP: source.AsSlice()}, &net.IPAddr{IP: pod.AsSlice()})
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(tcpSegment(source, pod, 5001, port, flags))
			return err
		}))
	}
	dropped := 0
	for _, pod := range []string{"10.244.1.11", "10.244.1.12"} {
		for _, s := range []struct {
			port  uint16
			flags byte
		}{{80, flagSYN}, {80, flagRST}, {80, flagFIN}, {80, flagSYN | flagACK}, {7, flagSYN}} {
			send(l.green, "198.51.100.10", pod, s.port, s.flags)
			dropped++
			what := fmt.Sprintf("flags %#x to port %d of %s", s.flags, s.port, pod)
			netns.Eventually(t, func() bool { return l.droppedOutside() == dropped }, what)
		}
		send(l.b, "10.8.0.2", pod, 80, flagRST)
		require.NoError(t, heard.SetReadDeadline(time.Now().Add(netns.Patience)))
		_, from, err := heard.ReadFromIP(make([]byte, 100))
		require.NoError(t, err)
		require.Equal(t, "10.8.0.2", from.IP.String())
	}
}

// TestUplinkGetsAnAddress gives the uplink of a VRF an address, while a pod leaves with that of the VRF device. The guard passes the pod's
// packets with the uplink's address only, so its connection has to end.
func TestUplinkGetsAnAddress(t *testing.T) {
	l := newUplinkLab(t)
	l.node.Run("ip link add vrf-green type vrf table 1001", "ip link set vrf-green up", "ip addr add 192.0.2.1/32 dev vrf-green",
		"ip addr flush dev eth4", "ip link set eth4 master vrf-green", "ip route add default dev eth4 table 1001",
		"for d in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $d; done")
	l.green.Run("ip route add 192.0.2.1/32 dev eth0")
	l.s.Config.Networks[1] = config.Network{Name: "green", VRF: "vrf-green"}
	masqueraded := cluster.EgressService{Network: "green", SourceIPBy: cluster.SourceIPByNetwork}
	l.s.Objects.EgressServices = l.s.Objects.EgressServices.With(uplinkWeb, masqueraded)
	apply := func() (ended uint) {
		require.NoError(t, l.node.Do(func() (err error) {
			l.s.Facts, err = l.kernel.Facts(t.Context(), 1001)
			return err
		}))
		return l.apply(election.Choice{Host: cluster.AllHosts})
	}
	heard := l.listen(l.green, "198.51.100.10:9")
	pod := dial(t, l.pods, "10.244.1.11", "198.51.100.10:9")
	says := func(text string) {
		_, err := pod.Write([]byte(text))
		require.NoError(t, err)
	}
	apply()
	says("one")
	require.Equal(t, "one from 192.0.2.1", next(heard))
	l.node.Run("ip addr add 10.4.0.1/24 dev eth4")
	require.EqualValues(t, 1, apply())
	says("two")
	require.Equal(t, "two from 10.4.0.1", next(heard))
	require.Zero(t, apply())
}

const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// tcpSegment is a TCP header with these flags.
func tcpSegment(src, dst netip.Addr, from, to uint16, flags byte) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	binary.BigEndian.PutUint32(b[4:], 1000)
	binary.BigEndian.PutUint32(b[8:], 2000)
	b[12], b[13] = 5<<4, flags
	binary.BigEndian.PutUint16(b[14:], 1000)
	sum := uint32(6 + len(b)) // of the pseudo-header: protocol and length
	for _, part := range [][]byte{src.AsSlice(), dst.AsSlice(), b} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}
