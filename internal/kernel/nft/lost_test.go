package nft

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

const (
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// lostLab is a node with pods, a client that reaches it by the default network (eth1) and by an uplink (eth2), and a
// machine beyond its default route (eth3), which has the addresses of the ingress IP and of the remote: it sees the
// packets that the node does not drop.
type lostLab struct {
	netns.Family
	node, pod, client, beyond *netns.Machine
	seen                      *net.IPConn
	counts                    Counts
}

func newLostLab(t *testing.T, f netns.Family) *lostLab {
	t.Helper()
	l := &lostLab{Family: f, node: netns.New(t), pod: netns.New(t), client: netns.New(t), beyond: netns.New(t)}
	l.node.Run("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	netns.Wire(f, l.pod, "eth0", l.node, "cni0", f.Pod1)
	netns.Wire(f, l.client, "eth1", l.node, "eth1", f.Out1)
	netns.Wire(f, l.client, "eth2", l.node, "eth2", f.Out2)
	netns.Wire(f, l.beyond, "eth3", l.node, "eth3", f.Pod2)
	for _, p := range f.Pods {
		l.pod.Run("ip addr add " + p + f.Local + " dev lo")
		l.node.Run(fmt.Sprintf("%s route add %s via %s1", f.IP, p, f.Pod1))
	}
	l.pod.Run(fmt.Sprintf("%s route add default via %s2", f.IP, f.Pod1))
	l.node.Run(fmt.Sprintf("%s route add default via %s1", f.IP, f.Pod2))
	for _, a := range []string{f.Ingress, f.Remote} {
		l.beyond.Run("ip addr add " + a + f.Local + " dev lo")
	}
	l.seen = l.listen(t, l.beyond)
	return l
}

// listen receives all TCP segments to a machine's own addresses.
func (l *lostLab) listen(t *testing.T, n *netns.Machine) (c *net.IPConn) {
	t.Helper()
	require.NoError(t, n.Do(func() (err error) {
		c, err = net.ListenIP(l.protocol(), nil)
		return err
	}))
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func (l *lostLab) protocol() string {
	if l.Name == "IPv6" {
		return "ip6:tcp"
	}
	return "ip4:tcp"
}

// send sends one TCP segment from a machine, with one of its addresses.
func (l *lostLab) send(t *testing.T, n *netns.Machine, from, to string, port uint16, flags byte) {
	t.Helper()
	const header = 20
	segment := make([]byte, header)
	binary.BigEndian.PutUint16(segment, 40000)
	binary.BigEndian.PutUint16(segment[2:], port)
	segment[12], segment[13] = header/4<<4, flags
	source, destination := netip.MustParseAddr(from), netip.MustParseAddr(to)
	sum := uint32(unix.IPPROTO_TCP + header)
	for _, part := range [][]byte{source.AsSlice(), destination.AsSlice(), segment} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(segment[16:], ^uint16(sum))
	require.NoError(t, n.Do(func() error {
		c, err := net.ListenIP(l.protocol(), &net.IPAddr{IP: source.AsSlice()})
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = c.WriteTo(segment, &net.IPAddr{IP: destination.AsSlice()})
		return err
	}))
}

// next returns the source and destination port of the next segment received.
func next(t *testing.T, c *net.IPConn) string {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(netns.Patience)))
	b := make([]byte, 1500)
	n, from, err := c.ReadFromIP(b)
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, 20)
	return fmt.Sprintf("%s %d", from.IP, binary.BigEndian.Uint16(b[2:]))
}

func (l *lostLab) dropped(t *testing.T, why ruleset.Drop) (n uint64) {
	t.Helper()
	require.NoError(t, l.node.Do(func() error {
		all, err := l.counts.Dropped()
		n = all[why].Packets
		return err
	}))
	return n
}

// TestPacketsOfNoConnection sends packets of no connection, and first packets that no Service handles.
func TestPacketsOfNoConnection(t *testing.T) {
	for _, f := range netns.Families {
		t.Run(f.Name, func(t *testing.T) {
			l := newLostLab(t, f)
			// Two pods: one was selected a moment ago, the other never was.
			former, other := f.Pods[0], f.Pods[1]
			d := stories.DataPlane()
			d.Ingress = sorted.Of(plan.IngressIP{Addr: netip.MustParseAddr(f.Ingress), Path: 2})
			var n keptTable
			t.Cleanup(n.Close)
			apply := func(endpoints ...plan.Endpoint) {
				t.Helper()
				d.Endpoints = sorted.Of(endpoints...)
				require.NoError(t, l.node.Do(func() error {
					_, err := n.Apply(context.Background(), d)
					return err
				}))
			}
			apply(plan.Endpoint{Addr: netip.MustParseAddr(former), Path: 2, Source: netip.MustParseAddr(f.Ingress)})
			apply()
			l.node.Run("nft 'table inet other { chain c { type filter hook prerouting priority -300; tcp dport 7 notrack; tcp dport 8 meta mark set 0x2000; }; }'")
			// goesOn checks that the packets sent before were dropped: the next segment received is the one sent here.
			port := uint16(1000)
			goesOn := func() {
				t.Helper()
				port++
				l.send(t, l.pod, other, f.Remote, port, flagRST)
				require.Equal(t, fmt.Sprintf("%s %d", other, port), next(t, l.seen))
			}
			goesOn()

			l.send(t, l.pod, former, f.Remote, 80, flagRST)
			goesOn()
			require.Equal(t, uint64(1), l.dropped(t, ruleset.DropFormer), "the rest of a connection that ended with its pod's selection")

			asked := uint64(0)
			for _, from := range []struct{ device, net string }{{"eth1", f.Out1}, {"eth2", f.Out2}} {
				l.client.Run(fmt.Sprintf("%s route replace %s via %s2", f.IP, f.Ingress, from.net))
				for _, s := range []struct {
					what  string
					port  uint16
					flags byte
				}{{"new", 80, flagSYN}, {"invalid", 80, flagRST}, {"untracked", 7, flagSYN}, {"new, with a mark of another program", 8, flagSYN}} {
					l.send(t, l.client, from.net+"1", f.Ingress, s.port, s.flags)
					goesOn()
					asked++
					require.Equal(t, asked, l.dropped(t, ruleset.DropUnclaimed), "%s, by %s", s.what, from.device)
				}
			}

			// The node itself accepts the packets, as with IPVS.
			l.node.Run("ip addr add " + f.Ingress + f.Local + " dev lo")
			taken := l.listen(t, l.node)
			for i, from := range []string{f.Out1, f.Out2} {
				l.client.Run(fmt.Sprintf("%s route replace %s via %s2", f.IP, f.Ingress, from))
				for _, flags := range []byte{flagSYN, flagRST} {
					port := uint16(100+2*i) + uint16(flags)
					l.send(t, l.client, from+"1", f.Ingress, port, flags)
					require.Equal(t, fmt.Sprintf("%s1 %d", from, port), next(t, taken))
				}
			}
			require.Equal(t, asked, l.dropped(t, ruleset.DropUnclaimed))

			d.Hold = true
			apply()
			l.send(t, l.pod, other, f.Remote, 80, flagRST)
			d.Let = sorted.Of(plan.Address{Addr: netip.MustParseAddr(other)})
			apply()
			goesOn()
			require.Equal(t, uint64(1), l.dropped(t, ruleset.DropHeld), "what is held is not let go where it is of no connection")
		})
	}
}

// TestGuestsOfNoConnection sends packets of another node's pod that belong to no connection here, by a device between nodes. The pod is
// selected at its own node, and not known here yet.
func TestGuestsOfNoConnection(t *testing.T) {
	for _, f := range netns.Families {
		t.Run(f.Name, func(t *testing.T) {
			l := newLostLab(t, f)
			guest, other := netip.MustParseAddr(f.Pods[0]), netip.MustParseAddr(f.Pods[1])
			d := stories.DataPlane()
			d.Endpoints = sorted.Of[plan.Endpoint]()
			d.Between, d.Guests = []string{"eth1"}, []netip.Prefix{netip.PrefixFrom(guest, guest.BitLen())}
			var n keptTable
			t.Cleanup(n.Close)
			require.NoError(t, l.node.Do(func() error {
				_, err := n.Apply(t.Context(), d)
				return err
			}))
			l.client.Run(fmt.Sprintf("ip addr add %s%s dev lo", guest, f.Local), fmt.Sprintf("%s route add %s via %s2", f.IP, f.Remote, f.Out1))
			l.node.Run("nft 'table inet other { chain c { type filter hook prerouting priority -300; tcp dport 7 notrack; }; }'")
			for i, s := range []struct {
				what  string
				port  uint16
				flags byte
			}{{"new", 80, flagSYN}, {"invalid", 80, flagRST}, {"invalid SYN-ACK", 81, flagSYN | flagACK}, {"untracked", 7, flagSYN}} {
				l.send(t, l.client, guest.String(), f.Remote, s.port, s.flags)
				netns.Eventually(t, func() bool { return l.dropped(t, ruleset.DropGuest) == uint64(i+1) }, s.what)
				port := uint16(1000 + i)
				l.send(t, l.pod, other.String(), f.Remote, port, flagRST)
				require.Equal(t, fmt.Sprintf("%s %d", other, port), next(t, l.seen), "only the pod of this node leaves: %s", s.what)
			}
		})
	}
}

// TestLateAnswers sends replies to selected pods, of connections that this node no longer knows but a host may. If a
// reply began a connection, the pod would answer with its own address by the default route.
func TestLateAnswers(t *testing.T) {
	for _, f := range netns.Families {
		pod, other := netip.MustParseAddr(f.Pods[0]), netip.MustParseAddr(f.Pods[1])
		for what, e := range map[string]plan.Endpoint{
			"steered":     {Path: 3, Source: pod},
			"at its host": {Path: 2, Source: netip.MustParseAddr(f.Ingress)},
			"masqueraded": {Path: 2},
			"dropped":     {},
		} {
			t.Run(f.Name+" "+what, func(t *testing.T) {
				l := newLostLab(t, f)
				l.beyond.Run(fmt.Sprintf("%s route add default via %s2", f.IP, f.Pod2))
				heard := l.listen(t, l.pod)
				var n keptTable
				t.Cleanup(n.Close)
				d := stories.DataPlane()
				e.Addr = pod
				d.Endpoints = sorted.Of(e)
				require.NoError(t, l.node.Do(func() error {
					_, err := n.Apply(context.Background(), d)
					return err
				}))
				for _, to := range []netip.Addr{pod, other} {
					l.send(t, l.beyond, f.Remote, to.String(), 80, flagACK)
					require.NoError(t, l.beyond.Do(func() error {
						c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(f.Remote)}, &net.UDPAddr{IP: to.AsSlice(), Port: 53})
						if err != nil {
							return err
						}
						defer func() { _ = c.Close() }()
						_, err = c.Write([]byte("late"))
						return err
					}))
					if to == other {
						require.Equal(t, f.Remote+" 80", next(t, heard), "it is not selected")
					}
					l.send(t, l.beyond, f.Remote, to.String(), 81, flagSYN)
					require.Equal(t, f.Remote+" 81", next(t, heard), "this is a connection's first")
					require.Equal(t, uint64(2), l.dropped(t, ruleset.DropFormer))
				}
			})
		}
	}
}
