package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
)

// linkLab is a node with an uplink in the main table, one in a VRF, one of a routing table without a VRF, and a neighbour on each.
type linkLab struct {
	node       *netns.Machine
	neighbours map[string]*netns.Machine // by network
	kernel     *keptNode
	heard      chan string // by sockets of the node
}

// linkOf has the device of each network, and the subnets there.
var linkOf = map[string]struct {
	device string
	start  [2]string // of the subnet, by family
}{
	config.DefaultNetwork: {"eth1", [2]string{"203.0.113.", "2001:db8:203::"}},
	"red":                 {"eth2", [2]string{"198.51.100.", "2001:db8:100::"}},
	"green":               {"eth3", [2]string{"192.0.2.", "2001:db8:2::"}},
}

func newLinkLab(t *testing.T) *linkLab {
	t.Helper()
	l := &linkLab{node: netns.New(t), neighbours: map[string]*netns.Machine{}, heard: make(chan string, 64)}
	l.node.Run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0",
		"ip link set lo up", "ip addr add 192.168.0.1/32 dev lo") // the tunnel to the other node needs it
	for network, of := range linkOf {
		m := netns.New(t)
		l.neighbours[network] = m
		for i, f := range netns.Families {
			start := of.start[i]
			if i == 0 {
				netns.Wire(f, l.node, of.device, m, "eth0", start)
				continue
			}
			l.node.Run("ip addr add " + start + "1/64 dev " + of.device + " nodad")
			m.Run("ip addr add " + start + "2/64 dev eth0 nodad")
		}
	}
	for network, m := range l.neighbours { // each is in the others' subnets as well, as on a wrong link
		for other, of := range linkOf {
			if other != network {
				m.Run("ip addr add "+of.start[0]+"3/24 dev eth0", "ip addr add "+of.start[1]+"3/64 dev eth0 nodad")
			}
		}
	}
	require.NoError(t, l.node.Do(func() (err error) {
		if l.kernel, err = openKept(); err == nil {
			err = errors.Join(l.listen(t, "udp4"), l.listen(t, "udp6"))
		}
		return err
	}))
	t.Cleanup(l.kernel.Close)
	return l
}

// listen receives packets by a socket of the node.
func (l *linkLab) listen(t *testing.T, network string) error {
	c, err := net.ListenPacket(network, ":7")
	if err != nil {
		return err
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 100)
		for {
			n, _, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			l.heard <- string(b[:n])
		}
	}()
	return nil
}

// shown returns what a command prints on a machine.
func shown(t *testing.T, m *netns.Machine, args ...string) (text string) {
	t.Helper()
	require.NoError(t, m.Do(func() error {
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		text = string(out)
		return err
	}), text)
	return text
}

// snapshot has an EgressIP with an address of each family in one network, and a pod.
func (l *linkLab) snapshot(t *testing.T, network string, choice election.Choice) plan.Snapshot {
	t.Helper()
	c := config.Defaults()
	c.Node, c.ClusterCIDRs = "a", []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd44::/32")}
	c.Networks = []config.Network{
		{Name: "red", VRF: "vrf-red", Table: 1001, Interfaces: []config.Interface{{Name: "eth2"}}},
		{Name: "green", Table: 1003, Interfaces: []config.Interface{{Name: "eth3"}}},
	}
	for i, n := range c.Networks {
		if n.Name == network {
			c.Networks[i].EgressIPs = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		}
	}
	key := cluster.Key{Name: "team"}
	o := cluster.Objects{}
	for i, name := range []string{"a", "b"} {
		ip := []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.168.0.%d", i+1))}
		o.Nodes = o.Nodes.With(name, cluster.Node{Ready: true, Addresses: ip, Internal: ip})
	}
	o.Namespaces = o.Namespaces.With("shop", cluster.Namespace{})
	o.Pods = o.Pods.With(cluster.Key{Namespace: "shop", Name: "p"}, cluster.Pod{
		Node: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.11"), netip.MustParseAddr("fd44:1::11")},
	})
	spec := cluster.EgressIP{
		Addresses: l.addresses(network), IPv4: true, IPv6: true, Namespaces: labels.Everything(), Pods: labels.Everything(),
	}
	o.EgressIPs = o.EgressIPs.With(key, spec)
	s := plan.Snapshot{Node: "a", Config: c, Objects: o, Hosts: map[election.Seat]election.Choice{}}
	for _, a := range spec.Addresses {
		s.Hosts[election.EgressIPSeat("team", a)] = choice
	}
	return s
}

func (*linkLab) addresses(network string) (all []netip.Addr) {
	for _, start := range linkOf[network].start {
		all = append(all, netip.MustParseAddr(start+"33"))
	}
	return all
}

// apply brings the plan of a snapshot into force, as passes do: the second one knows the VRF's uplink.
func (l *linkLab) apply(t *testing.T, s plan.Snapshot) (p *plan.NodePlan) {
	t.Helper()
	require.NoError(t, l.node.Do(func() error {
		for range 2 {
			facts, err := l.kernel.Facts(t.Context(), 1001, 1003)
			if err != nil {
				return err
			}
			s.Facts = facts
			p, _ = plan.Build(s)
			if _, err := l.kernel.Apply(t.Context(), p); err != nil {
				return err
			}
		}
		return nil
	}))
	return p
}

// answered asks a neighbour for the MAC of an address, and reports whether the node answered.
func (l *linkLab) answered(t *testing.T, m *netns.Machine, a netip.Addr) bool {
	t.Helper()
	m.Run("ip neigh flush all 2>/dev/null; ip -6 neigh flush all 2>/dev/null; true")
	l.send(t, m, a, "question")
	state := ""
	netns.Eventually(t, func() bool {
		state = shown(t, m, "ip", "neigh", "show", a.String(), "dev", "eth0")
		return strings.Contains(state, "lladdr") || strings.Contains(state, "FAILED")
	}, "the kernel gives up asking, or has an answer")
	return strings.Contains(state, "lladdr")
}

// send sends a packet to port 7 of an address.
func (*linkLab) send(t *testing.T, m *netns.Machine, to netip.Addr, text string) {
	t.Helper()
	require.NoError(t, m.Do(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(to, 7).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(text))
		return err
	}))
}

// TestOnLink has the kernel answer ARP and neighbour solicitations for egress IPs on the uplink of their network alone, also those
// of a neighbour that knows the address already. The node itself is not reachable by them, with or without a standby, to which a node hands
// strays on.
func TestOnLink(t *testing.T) {
	for network := range linkOf {
		t.Run(network, func(t *testing.T) {
			l := newLinkLab(t)
			l.apply(t, l.snapshot(t, network, election.Choice{Host: "b"}))
			for _, a := range l.addresses(network) {
				require.False(t, l.answered(t, l.neighbours[network], a), "another node is the host of %s", a)
			}
			p := l.apply(t, l.snapshot(t, network, election.Choice{Host: "a"}))
			require.Equal(t, 2, p.DataPlane.OnLink.Len())
			for _, a := range l.addresses(network) {
				for other, m := range l.neighbours {
					require.Equal(t, other == network, l.answered(t, m, a), "%s in network %s", a, other)
				}
				m := l.neighbours[network]
				m.Run("ip neigh change " + a.String() + " dev eth0 nud probe") // by unicast
				netns.Eventually(t, func() bool {
					state := shown(t, m, "ip", "neigh", "show", a.String(), "dev", "eth0")
					require.NotContains(t, state, "FAILED")
					return strings.Contains(state, "REACHABLE")
				}, "the node answers a question that was sent to itself")
			}
			l.isHidden(t, network)
			p = l.apply(t, l.snapshot(t, network, election.Choice{Host: "a", Standby: "b"}))
			require.Len(t, p.Tunnel.Hosts, 1, "strays can go to b")
			l.isHidden(t, network)
			l.apply(t, l.snapshot(t, network, election.Choice{Host: "b"}))
			for _, a := range l.addresses(network) {
				require.False(t, l.answered(t, l.neighbours[network], a), "this node is no longer the host of %s", a)
			}
			l.node.Run("! nft list table arp egressway 2>/dev/null", "! ip addr show | grep -q metric")
		})
	}
}

// isHidden requires that neither the node's kernel nor its sockets answer packets to the addresses.
func (l *linkLab) isHidden(t *testing.T, network string) {
	t.Helper()
	m := l.neighbours[network]
	for i, a := range l.addresses(network) {
		l.send(t, m, a, "to an egress IP")
		l.send(t, m, netip.MustParseAddr(linkOf[network].start[i]+"1"), "to the node")
		require.Equal(t, "to the node", l.next(t, network))
		m.Run("! ping -c 1 -W 1 " + a.String())
	}
	l.hides(t, network)
}

// next returns what a socket of the node receives next. In a VRF no socket of this test receives anything.
func (l *linkLab) next(t *testing.T, network string) string {
	t.Helper()
	if network == "red" {
		require.Empty(t, l.heard)
		return "to the node"
	}
	select {
	case text := <-l.heard:
		return text
	case <-time.After(netns.Patience):
		require.Fail(t, "nothing arrived")
		return ""
	}
}

// hides requires that the addresses are not read as the node's own.
func (l *linkLab) hides(t *testing.T, network string) {
	t.Helper()
	var links []plan.Link
	require.NoError(t, l.node.Do(func() (err error) {
		links, err = link.ReadLinks(l.kernel.links)
		return err
	}))
	for _, k := range links {
		for _, p := range k.Addrs {
			require.NotContains(t, l.addresses(network), p.Addr())
		}
	}
}
