package kernel

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
)

// portmap holds the rules of the CNI plugin portmap (containernetworking/plugins, portmap_iptables.go) for hostPort 8080 of
// a pod, as iptables-nft writes them. They mark a connection that they must masquerade with the plugin's default bit, 13,
// which is our egress bit. The last chain counts packets that leave with that bit.
const portmap = `table %[1]s nat {
	chain PREROUTING { type nat hook prerouting priority -100; fib daddr type local jump CNI-HOSTPORT-DNAT; }
	chain OUTPUT { type nat hook output priority -100; fib daddr type local jump CNI-HOSTPORT-DNAT; }
	chain POSTROUTING { type nat hook postrouting priority 100; meta mark & 0x2000 == 0x2000 masquerade; }
	chain CNI-HOSTPORT-DNAT { tcp dport 8080 jump CNI-DN; }
	chain CNI-DN {
		%[1]s saddr %[2]s jump CNI-HOSTPORT-SETMARK
		%[3]s
		tcp dport 8080 dnat to %[4]s
	}
	chain CNI-HOSTPORT-SETMARK { meta mark set meta mark | 0x2000; }
}
table inet last {
	counter marked { }
	chain postrouting { type filter hook postrouting priority 301; meta mark & 0x2000 != 0 counter name marked; }
}`

// TestHostPort connects a pod, and the node itself, to a hostPort of the pod on its own node, which the CNI plugin portmap
// serves. A packet mark with the egress bit and no path id is not ours: our rules neither drop nor change the packet.
func TestHostPort(t *testing.T) {
	for _, f := range netns.Families {
		pod := netip.MustParseAddr(f.Pods[0])
		for what, endpoints := range map[string][]plan.Endpoint{
			"not selected": nil,
			"selected":     {{Addr: pod, Path: 2, Source: netip.MustParseAddr(f.Ingress)}},
			"steered":      {{Addr: pod, Path: 3, Source: pod}},
			"dropped":      {{Addr: pod}},
		} {
			t.Run(f.Name+" "+what, func(t *testing.T) {
				l := newHostPortLab(t, f)
				n, err := openKept()
				require.NoError(t, err)
				t.Cleanup(n.Close)
				s := readFrozen(t, 0)
				makeLinks(t, s)
				p, _ := plan.Build(s.Snapshot)
				p.DataPlane.Endpoints = sorted.Of(endpoints...)
				r, err := n.Apply(t.Context(), p)
				require.NoError(t, err)
				require.True(t, r.Whole(), "%+v", r)

				require.Equal(t, l.asNode, l.connect(t, l.pod, net.JoinHostPort(l.asNode, "8080")))
				marked, err := netns.NFT(t, "list counter inet last marked")
				require.NoError(t, err)
				require.NotContains(t, marked, "packets 0 ", "another program's mark was cleared")
				if pod.Is4() {
					require.Equal(t, l.asNode, l.connect(t, l.node, "127.0.0.1:8080"))
				}
			})
		}
	}
}

// hostPortLab is a node, which is the test's own namespace, with a pod that listens on port 80.
type hostPortLab struct {
	node, pod *netns.Machine
	asNode    string // the node's address towards the pod
	server    net.Listener
}

func newHostPortLab(t *testing.T, f netns.Family) *hostPortLab {
	t.Helper()
	netns.Enter(t)
	here, err := os.Open("/proc/thread-self/ns/net")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, here.Close()) })
	l := &hostPortLab{node: &netns.Machine{TB: t, File: here}, pod: netns.New(t), asNode: f.Pod1 + "2"}
	l.node.Run("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.route_localnet=1 " +
		"net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	netns.Wire(f, l.pod, "eth0", l.node, "cni0", f.Pod1)
	l.pod.Run("ip addr add "+f.Pods[0]+f.Local+" dev lo", f.IP+" route add default via "+l.asNode)
	l.node.Run(fmt.Sprintf("%s route add %s via %s1", f.IP, f.Pods[0], f.Pod1))

	to, fromHere := net.JoinHostPort(f.Pods[0], "80"), ""
	if f.NFT == "ip" {
		fromHere = "ip saddr 127.0.0.1 jump CNI-HOSTPORT-SETMARK"
	}
	l.node.Run("nft -f - <<'END'\n" + fmt.Sprintf(portmap, f.NFT, f.Pods[0], fromHere, to) + "\nEND")
	require.NoError(t, l.pod.Do(func() (err error) {
		l.server, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", to)
		return err
	}))
	t.Cleanup(func() { require.NoError(t, l.server.Close()) })
	return l
}

// connect connects a machine to the pod by the node and returns the source that the pod sees. Connections of the pod come
// from the pod's own address.
func (l *hostPortLab) connect(t *testing.T, from *netns.Machine, to string) string {
	t.Helper()
	d := net.Dialer{Timeout: netns.Patience}
	if from == l.pod {
		d.LocalAddr = &net.TCPAddr{IP: l.server.Addr().(*net.TCPAddr).IP}
	}
	require.NoError(t, from.Do(func() error {
		c, err := d.DialContext(t.Context(), "tcp", to)
		if err != nil {
			return err
		}
		return c.Close()
	}))
	c, err := l.server.Accept()
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	return c.RemoteAddr().(*net.TCPAddr).IP.String()
}
