package bgp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
)

// TestRefusedPort wants the remedy in each error of listening.
func TestRefusedPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, err = net.Listen("tcp", l.Addr().String())
	require.ErrorContains(t, refusedPort("", err), l.Addr().String()+": bind: address already in use: another program on this node listens there")
	require.ErrorContains(t, refusedPort("gold", err), "network gold listens there")
	denied := &net.OpError{Op: "listen", Err: syscall.EACCES}
	require.EqualError(t, refusedPort("", denied), "listen: permission denied: a port below 1024 needs CAP_NET_BIND_SERVICE: give the speaker that, or set another port, or -1")
	require.Equal(t, net.ErrClosed, refusedPort("", net.ErrClosed))
}

// TestCalledAt prefers the link's address to that of a route, which leads elsewhere while the link is down.
func TestCalledAt(t *testing.T) {
	p := peer("127.1.2.3", "main4")
	of := func(device string) netip.Addr {
		a, err := calledAt(plan.Speaker{Device: device}, p)
		require.NoError(t, err)
		return a
	}
	require.Equal(t, netip.MustParseAddr("127.0.0.1"), of(""))
	p.OnLink = append(p.OnLink, netip.MustParsePrefix("127.1.2.1/24"))
	require.Equal(t, netip.MustParseAddr("127.1.2.1"), of(""))
	p.OnLink = append(p.OnLink, netip.MustParsePrefix("127.0.0.1/8"))
	require.Equal(t, netip.MustParseAddr("127.0.0.1"), of(""))
	require.Equal(t, netip.IPv4Unspecified(), of("red"))
	p.Address = netip.MustParseAddr("fe80::1%eth0")
	require.Equal(t, netip.IPv6Unspecified(), of(""))
}

// called plugs two networks, neither with a VRF, to their routers by main4 and main5. Only the routers connect.
func (s *site) called() (one, two plan.Speaker) {
	s.t.Helper()
	s.plug("r1", "red", "", "main4", 4)
	s.plug("r2", "red", "", "main5", 5)
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.4.2 peer-group node")
	s.configure("r2", "router bgp 65002 vrf red", "neighbor 10.0.5.2 peer-group node")
	undialled := func(p *plan.Peer) { p.Port = 1 }
	one, two = red(peer("10.0.4.1", "main4", undialled)), red(peer("10.0.5.1", "main5", undialled))
	one.Network, one.Device, one.ListenPort = "one", "", 179
	two.Network, two.Device, two.ListenPort = "two", "", 179
	return one, two
}

func (s *site) untilUp(network, peer string) {
	s.t.Helper()
	s.until(func() error {
		if e := s.session(network, peer); !e.Up || e.Unheard != "" {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
}

func (s *site) untilUnheard(network, peer, why string) {
	s.t.Helper()
	s.until(func() error {
		e := s.session(network, peer)
		if why == "" && e.Unheard != "" {
			return fmt.Errorf("%+v", e)
		}
		require.Contains(s.t, e.Unheard, why)
		return nil
	})
}

// TestListenWithoutVRF has the routers of two networks connect at once. Another network costs no session, and neither does a peer on
// another link: the speaker listens there when it has no session to lose.
func TestListenWithoutVRF(t *testing.T) {
	s := newSite(t)
	one, two := s.called()
	s.apply(one)
	s.untilUp("one", "10.0.4.1")
	s.apply(one, two)
	s.untilUp("two", "10.0.5.1")
	require.Equal(t, 1, s.establishments("r1", "red", "10.0.4.2"))

	s.apply(one)
	one.Peers = append(one.Peers, two.Peers...)
	s.apply(one)
	s.untilUnheard("one", "10.0.5.1", "the speaker has not listened at 10.0.5.2 since its start")
	s.untilUnheard("one", "10.0.4.1", "")
	require.True(t, s.session("one", "10.0.4.1").Up)
	require.Equal(t, 1, s.establishments("r1", "red", "10.0.4.2"))
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.4.2 shutdown")
	s.untilUp("one", "10.0.5.1")
	s.configure("r1", "router bgp 65001 vrf red", "no neighbor 10.0.4.2 shutdown")
	s.untilUp("one", "10.0.4.1")
	s.untilUp("one", "10.0.5.1")
}

// TestListenRefused has another program listen at the node's address, and then another network: the session is dialled, and its state
// says which of them listens.
func TestListenRefused(t *testing.T) {
	s := newSite(t)
	one, two := s.called()
	one.Peers[0].Port, two.Peers[0].Port = 179, 179
	var c net.ListenConfig
	other, err := c.Listen(context.Background(), "tcp4", "0.0.0.0:179")
	require.NoError(t, err)
	defer other.Close()
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.4.2 passive")
	s.configure("r2", "router bgp 65002 vrf red", "neighbor 10.0.5.2 passive")
	s.apply(one, two)
	s.established()
	for network, peer := range map[string]string{"one": "10.0.4.1", "two": "10.0.5.1"} {
		require.Contains(t, s.session(network, peer).Unheard, "address already in use: another program on this node listens there")
	}

	require.NoError(t, other.Close())
	s.apply(one, two)
	require.Contains(t, s.session("one", "10.0.4.1").Unheard, "has not listened at 10.0.4.2")
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.4.2 shutdown")
	s.untilUnheard("one", "10.0.4.1", "")

	two.Peers = append(two.Peers, peer("10.0.4.3", "main4"))
	s.apply(one, two)
	require.Contains(t, s.session("two", "10.0.4.3").Unheard, "listen tcp4 10.0.4.2:179: bind: address already in use: network one listens there")
	require.True(t, s.session("two", "10.0.5.1").Up)
}
