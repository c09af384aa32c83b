package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/stories"
)

// TestTunnelMTU plans the tunnel of a node whose InternalIP is an address of a link, or of the loopback device, as where it announces that
// address to its routers.
func TestTunnelMTU(t *testing.T) {
	s, err := stories.Read("testdata/vxlan-off-link", "a")
	require.NoError(t, err)
	mtu := func(links ...plan.Link) int {
		t.Helper()
		next := s.Snapshot
		next.Facts.Links = links
		p, _ := plan.Build(next)
		require.NotNil(t, p.Tunnel)
		return p.Tunnel.MTU
	}
	link := func(name string, mtu int, addrs ...string) plan.Link {
		return plan.Link{Name: name, Up: true, MTU: mtu, Addrs: prefixes(addrs...)}
	}
	require.Equal(t, 8950, mtu(link("eth1", 9000, "10.0.0.11/24"), link("eth9", 1400, "10.9.0.11/24")))
	lo := link("lo", 65536, "127.0.0.1/8", "10.0.0.11/32")
	require.Equal(t, 1450, mtu(lo, link("eth1", 1500, "10.7.0.11/31"), link("eth3", 9000, "10.7.0.13/31")), "any of them may lead to the others")
	require.Equal(t, 1450, mtu(lo, link("eth1", 1500, "10.7.0.11/31"), link("dummy0", 1280, "10.8.0.1/32")), "no subnet")
}

// TestSteersByTheSmallestSubnet steers to a node by the link whose subnet is the smallest that holds its address, as the kernel does.
func TestSteersByTheSmallestSubnet(t *testing.T) {
	s, err := stories.Read("testdata/one-service", "a")
	require.NoError(t, err)
	next := s.Snapshot
	next.Facts.Links = append([]plan.Link{{Name: "bond0", Up: true, MTU: 1500, Addrs: prefixes("10.1.2.3/7")}}, next.Facts.Links...)
	p, _ := plan.Build(next)
	require.Contains(t, p.DataPlane.Between, "lan")
	require.NotContains(t, p.DataPlane.Between, "bond0")
}

// TestKeepsNoFlowsWithIPVS plans a way by the former host for flows that began there, but not where a node delivers packets to ingress
// IPs to itself: the next host would not hand on what comes for such flows.
func TestKeepsNoFlowsWithIPVS(t *testing.T) {
	s, err := stories.Read("testdata/ingress-of-machines", "a")
	require.NoError(t, err)
	keeps := func() (kept bool) {
		p, _ := plan.Build(s.Snapshot)
		for e := range p.DataPlane.Endpoints.All() {
			kept = kept || e.Kept != plan.Way{}
		}
		return kept
	}
	require.True(t, keeps())
	s.Snapshot.Facts.Links = append(s.Snapshot.Facts.Links, plan.Link{Name: "kube-ipvs0"})
	require.False(t, keeps())
}

// TestStraysOfFormerHost has a host hand strays to the node that it followed, which it watches, and not to the standby.
func TestStraysOfFormerHost(t *testing.T) {
	s, err := stories.Read("testdata/vxlan-off-link", "a")
	require.NoError(t, err)
	seat := election.ServiceSeat(cluster.Key{Namespace: "shop", Name: "web"})
	straysTo := func(c election.Choice) (node string) {
		s.Snapshot.Hosts[seat] = c
		p, _ := plan.Build(s.Snapshot)
		in, ok := p.DataPlane.Ingress.Get(plan.IngressIP{Addr: addr("203.0.113.10")})
		require.True(t, ok)
		for _, path := range p.DataPlane.Paths {
			if path.ID == in.Stray {
				node = path.Key.Name
			}
		}
		require.Contains(t, p.Watched, node)
		return node
	}
	require.Equal(t, "b", straysTo(election.Choice{Host: "a", Standby: "b"}))
	require.Equal(t, "c", straysTo(election.Choice{Host: "a", Standby: "b", Parted: "c"}))
	require.Equal(t, "c", straysTo(election.Choice{Host: "a", Parted: "c"}), "no other node can stand by")
	require.Equal(t, "b", straysTo(election.Choice{Host: "b", Standby: "a"}))
}
