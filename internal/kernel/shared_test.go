package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
)

// sharedLab is a node with two pods, each of a service with a host of its own, for which no path ids are left.
type sharedLab struct {
	node, pods *netns.Machine
	client     *netns.Machine          // behind the uplink of network n0
	hosts      map[string]*net.UDPConn // by node, where it receives packets to the outside
	kernel     *keptNode
	snapshot   plan.Snapshot
}

const (
	sharedPort    = 9
	sharedOutside = "198.51.100.10:9"
	sharedIngress = "203.0.113.10:9" // of the service of host b
)

func newSharedLab(t *testing.T) *sharedLab {
	t.Helper()
	f := netns.Families[0]
	l := &sharedLab{node: netns.New(t), pods: netns.New(t), client: netns.New(t), hosts: map[string]*net.UDPConn{}}
	netns.Wire(f, l.node, "pods", l.pods, "eth0", f.Pod1)
	netns.Wire(f, l.node, "uplink", l.client, "eth0", "192.0.2.")
	l.client.Run("ip route add default via 192.0.2.1")
	l.node.Run("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0", "ip route add 10.244.1.0/24 via "+f.Pod1+"2")
	l.pods.Run("ip addr add 10.244.1.11/32 dev lo", "ip addr add 10.244.1.12/32 dev lo", "ip route add default via "+f.Pod1+"1")
	for i, name := range []string{"b", "c"} {
		m := netns.New(t)
		start := []string{f.Out1, f.Out2}[i]
		netns.Wire(f, l.node, "lan"+name, m, "eth0", start)
		m.Run("ip route add default via "+start+"1", "sysctl -qw net.ipv4.conf.all.rp_filter=0",
			"ip addr add 198.51.100.10/32 dev lo", "ip addr add 203.0.113.10/32 dev lo")
		require.NoError(t, m.Do(func() error {
			// The host's own tunnel, by the plan of that node.
			k, err := openKept()
			if err != nil {
				return err
			}
			t.Cleanup(k.Close)
			s := l.world(name, start+"2/24")
			p, _ := plan.Build(s)
			if _, err := k.Apply(t.Context(), p); err != nil {
				return err
			}
			l.hosts[name], err = net.ListenUDP("udp4", &net.UDPAddr{Port: sharedPort})
			return err
		}))
		m.Run("nft delete table inet egressway 2>/dev/null || true")
		t.Cleanup(func() { l.hosts[name].Close() })
	}
	l.snapshot = l.world("a", f.Out1+"1/24", f.Out2+"1/24")
	require.NoError(t, l.node.Do(func() (err error) {
		l.kernel, err = openKept()
		return err
	}))
	t.Cleanup(l.kernel.Close)
	return l
}

// world returns the snapshot of a node with the given addresses. Node a steers to the hosts b and c by the tunnel.
func (*sharedLab) world(node string, addrs ...string) plan.Snapshot {
	c := config.Defaults()
	c.Marks.Mask, c.Steering.Mode = 0xf00, config.SteeringVXLAN
	for i := range 4 {
		c.Networks = append(c.Networks, config.Network{Name: fmt.Sprint("n", i), Table: uint32(1000 + i)})
	}
	c.Networks[1].Interfaces = []config.Interface{{Name: "uplink"}} // of n0
	o := cluster.Objects{}
	for name, a := range map[string]string{"a": "10.1.1.1", "b": "10.1.1.2", "c": "10.1.2.2"} {
		ip := []netip.Addr{netip.MustParseAddr(a)}
		o.Nodes = o.Nodes.With(name, cluster.Node{
			Ready: true, Addresses: ip, Internal: ip,
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix(map[string]string{"a": "10.244.1.0/24", "b": "10.244.2.0/24", "c": "10.244.3.0/24"}[name])},
		})
	}
	hosts := map[election.Seat]election.Choice{}
	for i, host := range []string{"b", "c"} {
		key := cluster.Key{Namespace: "shop", Name: host}
		o.EgressServices = o.EgressServices.With(key, cluster.EgressService{Network: "n0", SourceIPBy: cluster.SourceIPByLoadBalancer})
		o.Services = o.Services.With(key, cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: fmt.Sprint("203.0.113.", 10+i)}}})
		o.Endpoints = o.Endpoints.With(key, []cluster.Endpoint{{Address: fmt.Sprint("10.244.1.", 11+i), Node: "a"}})
		hosts[election.ServiceSeat(key)] = election.Choice{Host: host}
	}
	s := plan.Snapshot{Node: node, Config: c, Objects: o, Hosts: hosts, Facts: plan.Assume(c, o, node)}
	s.Facts.Links[0].Addrs = nil
	for _, a := range addrs {
		s.Facts.Links[0].Addrs = append(s.Facts.Links[0].Addrs, netip.MustParsePrefix(a))
	}
	return s
}

func (l *sharedLab) apply(t *testing.T) *plan.NodePlan {
	t.Helper()
	p, problems := plan.Build(l.snapshot)
	for _, problem := range problems {
		require.NotEqual(t, plan.ReasonPathsExhausted, problem.Reason, problem)
	}
	require.NoError(t, l.node.Do(func() error {
		r, err := l.kernel.Apply(t.Context(), p)
		if err == nil && !r.InForce {
			err = errors.New("not in force")
		}
		return err
	}))
	l.snapshot.Facts.Paths = map[plan.PathKey]plan.PathID{}
	for _, path := range p.DataPlane.Paths {
		l.snapshot.Facts.Paths[path.Key] = path.ID
	}
	return p
}

// again replaces the process that owns the tables.
func (l *sharedLab) again(t *testing.T) {
	t.Helper()
	require.NoError(t, l.node.Do(func() (err error) {
		l.kernel.Close()
		l.kernel, err = openKept()
		return err
	}))
	t.Cleanup(l.kernel.Close)
}

// hosted sets the host of the service of this name, with an optional standby.
func (l *sharedLab) hosted(service, host, standby string) {
	l.snapshot.Hosts[election.ServiceSeat(cluster.Key{Namespace: "shop", Name: service})] = election.Choice{Host: host, Standby: standby}
}

// dial opens a socket of a machine with a source address; empty: any.
func dial(t *testing.T, m *netns.Machine, from, to string) (c *net.UDPConn) {
	t.Helper()
	require.NoError(t, m.Do(func() (err error) {
		c, err = net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(from)}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

// arrives sends a packet of a pod and returns the host that receives it; empty: none does, which takes a while to see.
func (l *sharedLab) arrives(t *testing.T, pod string) string {
	t.Helper()
	return l.sends(t, dial(t, l.pods, pod, sharedOutside))
}

// sends is arrives for the next packet of a socket, whose source must stay as it is.
func (l *sharedLab) sends(t *testing.T, from *net.UDPConn) string {
	t.Helper()
	_, err := from.Write([]byte(from.LocalAddr().String()))
	require.NoError(t, err)
	for _, wait := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond} {
		for host, c := range l.hosts {
			buf := make([]byte, 100)
			require.NoError(t, c.SetReadDeadline(time.Now().Add(wait)))
			n, source, err := c.ReadFromUDPAddrPort(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				continue
			}
			require.NoError(t, err)
			require.Equal(t, from.LocalAddr().String(), string(buf[:n]))
			require.Equal(t, from.LocalAddr().String(), source.String(), "steered packets keep their source")
			return host
		}
	}
	return ""
}

// TestSharedPath checks that the packets of pods whose hosts have no path id arrive at the right hosts, that a change of the
// host changes one element, and that nothing leaves while a part of the table is missing.
func TestSharedPath(t *testing.T) {
	l := newSharedLab(t)
	// Host b has the last id, until it shares the path with c: the same id then. Its flows go on.
	l.hosted("c", "", "")
	l.apply(t)
	require.NotZero(t, l.snapshot.Facts.Paths[plan.PathKey{Kind: plan.PathSteer, Name: "b"}])
	flow := dial(t, l.pods, "10.244.1.11", sharedOutside)
	require.Equal(t, "b", l.sends(t, flow))
	l.hosted("c", "c", "")
	p := l.apply(t)
	require.Len(t, p.DataPlane.Paths, 6)
	require.NotZero(t, l.snapshot.Facts.Paths[plan.PathKey{Kind: plan.PathShared, Name: "tunnel"}])
	require.Equal(t, "b", l.sends(t, flow))
	require.Equal(t, "b", l.arrives(t, "10.244.1.11"))
	require.Equal(t, "c", l.arrives(t, "10.244.1.12"))
	l.hosted("b", "c", "")
	l.apply(t)
	require.Equal(t, "c", l.sends(t, flow))
	require.Equal(t, "c", l.arrives(t, "10.244.1.11"))
	require.Equal(t, "c", l.arrives(t, "10.244.1.12"))

	// The tunnel is made again, with another device index.
	l.node.Run("ip link del egressway")
	l.kernel.record = Record{}
	l.apply(t)
	require.Equal(t, "c", l.arrives(t, "10.244.1.11"))

	// Other runs adopt the tables.
	for range 3 {
		l.again(t)
		require.Equal(t, "c", l.arrives(t, "10.244.1.11"), "no socket owns the tables")
		l.apply(t)
		require.Equal(t, "c", l.arrives(t, "10.244.1.11"))
		require.Equal(t, "c", l.sends(t, flow))
		l.node.Run("nft flush ruleset")
		require.Equal(t, "c", l.arrives(t, "10.244.1.11"))
	}
	l.again(t)
	// Parts of the table are removed while it has no owner: no packet leaves by another way.
	l.node.Run("nft flush map netdev egressway hosts4")
	require.Empty(t, l.arrives(t, "10.244.1.11"))
	l.apply(t)
	require.Equal(t, "c", l.arrives(t, "10.244.1.11"))

	// With more path ids, the hosts get their own, once no shared path is in force.
	l.snapshot.Config.Marks.Mask, l.snapshot.Facts.Paths = 0x3f00, nil
	p = l.apply(t)
	require.Len(t, p.DataPlane.Paths, 6)
	require.Equal(t, "c", l.arrives(t, "10.244.1.11"))
	l.node.Run("! nft list table netdev egressway 2>/dev/null")
}

// TestSteeringWithoutIPv6 steers IPv4 packets by the tunnel on a node whose interfaces have no IPv6, to hosts with path ids of
// their own and to hosts that share one.
func TestSteeringWithoutIPv6(t *testing.T) {
	for mask, steers := range map[uint32]plan.PathKind{0x3f00: plan.PathSteer, 0xf00: plan.PathShared} {
		t.Run(string(steers), func(t *testing.T) {
			l := newSharedLab(t)
			l.node.Run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
			l.snapshot.Config.Marks.Mask = mask
			p := l.apply(t)
			require.NoError(t, l.node.Do(func() error {
				r, err := l.kernel.Apply(t.Context(), p)
				require.True(t, r.Whole(), "%+v", r)
				return err
			}))
			for _, path := range p.DataPlane.Paths {
				if path.Key.Kind == steers {
					require.Contains(t, shown(t, l.node, "ip", "route", "show", "table", fmt.Sprint(path.Table)),
						fmt.Sprintf("default via 169.254.144.%d dev egressway", path.ID))
				}
			}
			require.Equal(t, "b", l.arrives(t, "10.244.1.11"))
			require.Equal(t, "c", l.arrives(t, "10.244.1.12"))
		})
	}
}

// TestSharedPathOfStrays sends a packet to an ingress IP whose host is another node, of no connection of this node, which is
// the standby. The shared path leads it to the host.
func TestSharedPathOfStrays(t *testing.T) {
	l := newSharedLab(t)
	l.hosted("b", "b", "a")
	p := l.apply(t)
	in, ok := p.DataPlane.Ingress.Get(plan.IngressIP{Addr: netip.MustParseAddr("203.0.113.10")})
	require.True(t, ok)
	require.NotZero(t, in.Via)
	stray := dial(t, l.client, "192.0.2.2", sharedIngress)
	require.Equal(t, "b", l.sends(t, stray))
	l.hosted("b", "c", "a")
	l.apply(t)
	l.node.Run("nft list map netdev egressway partners4 | grep -q 203.0.113.10")

	l.again(t) // a daemon's table stays
	require.NoError(t, l.node.Do(func() error { return l.kernel.Cleanup(t.Context(), p.DataPlane.Marks) }))
	l.node.Run("! nft list tables | grep egressway", "! ip link show egressway 2>/dev/null")
}
