package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/ipv6"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab"
)

func TestUnnumbered(t *testing.T) {
	s := newSite(t)
	s.profile("r1")
	s.configure("r1", "router bgp 65001 vrf red", "neighbor red1 interface v6only remote-as 64512", "neighbor red1 timers connect 1", "neighbor red1 bfd profile fast",
		"address-family ipv4 unicast", "neighbor red1 activate", "neighbor red1 default-originate", "exit-address-family",
		"address-family ipv6 unicast", "neighbor red1 activate", "neighbor red1 default-originate")
	r1 := peer("10.0.1.1", "red1", receive(pattern("0.0.0.0/0"), pattern("::/0")), withBFD)
	r1.Address, r1.Interface = netip.Addr{}, "red1"
	r1.NextHop4, r1.NextHop6 = netip.Addr{}, netip.Addr{}
	sp := red(r1)
	sp.Announce = announcing(vip4, vip6)
	s.apply(sp)
	require.Equal(t, StateWaiting, s.session("red", "red1").State)
	s.established()
	own := linkLocal("red1").String()
	for a := range sp.Announce.All() {
		s.untilRoute("r1", "red", a.Prefix.String(), own, func(r route) error {
			if !r.Valid || len(r.NextHops) == 0 || r.NextHops[0].IP != own {
				return fmt.Errorf("%+v", r)
			}
			return nil
		})
	}
	s.untilBFD("red", "red1", "up")
	gateway := s.session("red", "red1").Address.WithZone("")
	s.untilLearned("red", fmt.Sprintf("0.0.0.0/0 via %s dev red1", gateway), fmt.Sprintf("::/0 via %s dev red1", gateway))

	// FRR offers IPv6 next hops for IPv4 on an unnumbered link, whatever it is told. From one that does not, its IPv4 routes
	// are not learned, and it is sent none.
	network := s.speakers.byNetwork["red"]
	address := s.session("red", "red1").Address
	network.mu.Lock()
	st := network.states[address]
	st.extended, st.plain = false, true
	network.changed((*outdated).addAll)
	network.mu.Unlock()
	s.apply(sp)
	s.untilLearned("red", fmt.Sprintf("::/0 via %s dev red1", gateway))
	s.untilNoRoute("r1", "red", vip4)
	s.untilRoute("r1", "red", vip6, own, func(route) error { return nil })
	e := s.session("red", "red1")
	require.True(t, e.Up)
	require.Equal(t, 1, e.Announced)
	require.Equal(t, []config.Family{config.IPv6Unicast}, e.Sent)
	require.Contains(t, e.LastError, "has not offered extended next hops (RFC 8950), and interface red1 has no IPv4 address")
}

// TestRoutersOfOneAddress has two routers tell the same link-local address, each on a link of its own. GoBGP cannot tell them
// apart: who has a session keeps it, the other has none until its address is another one.
func TestRoutersOfOneAddress(t *testing.T) {
	woken := make(chan struct{}, 1)
	speakers := New(slog.New(slog.NewTextHandler(t.Output(), nil)), Hints{Apply: func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	}, Routes: func() {}})
	var peers []plan.Peer
	for _, device := range []string{"twin1", "twin2"} {
		run(t, "ip", "link", "add", device, "type", "veth", "peer", "name", device+"r")
		t.Cleanup(func() { run(t, "ip", "link", "del", device) })
		run(t, "ip", "link", "set", device, "up")
		run(t, "ip", "link", "set", device+"r", "addrgenmode", "none", "up")
		p := peer("10.0.1.1", "red1")
		p.Address, p.Interface, p.Device = netip.Addr{}, device, device
		peers = append(peers, p)
	}
	t.Cleanup(func() { require.NoError(t, speakers.Close(context.WithoutCancel(t.Context()), false)) })
	network := red(peers...)
	network.Device = ""
	// until has the daemon apply what it is woken for, while routers advertise themselves, until the sessions are as wanted.
	until := func(routers []string, want ...string) (err error) {
		t.Helper()
		require.NoError(t, lab.Wait(t.Context(), limit, func() error {
			for _, router := range routers {
				if err := advertiseOnce(t, router); err != nil {
					return err
				}
			}
			select {
			case <-woken:
				err = speakers.Apply(t.Context(), []plan.Speaker{network})
			default:
			}
			var have []string
			for _, e := range speakers.Sessions() {
				have = append(have, fmt.Sprint(e.Address, " ", e.LastError))
			}
			if !slices.Equal(have, want) {
				return fmt.Errorf("%q", have)
			}
			return nil
		}))
		return err
	}
	const taken = "invalid IP peer twin1: peer twin2 of the network already has its address, fe80::1: each needs its own"
	run(t, "ip", "addr", "add", "fe80::1/64", "dev", "twin1r", "nodad")
	run(t, "ip", "addr", "add", "fe80::1/64", "dev", "twin2r", "nodad")
	require.NoError(t, speakers.Apply(t.Context(), []plan.Speaker{network}))
	require.NoError(t, until([]string{"twin2r"}, "invalid IP ", "fe80::1%twin2 "))
	require.ErrorContains(t, until([]string{"twin1r", "twin2r"}, taken, "fe80::1%twin2 "), "peer twin1: peer twin2 of the network already has its address")
	run(t, "ip", "addr", "del", "fe80::1/64", "dev", "twin1r")
	run(t, "ip", "addr", "add", "fe80::2/64", "dev", "twin1r", "nodad")
	require.NoError(t, until([]string{"twin1r", "twin2r"}, "fe80::2%twin1 ", "fe80::1%twin2 "))
}

// advertiseOnce sends a router's advertisement by an interface.
func advertiseOnce(t *testing.T, device string) error {
	t.Helper()
	ifi, err := net.InterfaceByName(device)
	require.NoError(t, err)
	conn, err := listenICMP(t.Context(), device)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	return send(conn, ifi, ipv6.ICMPTypeRouterAdvertisement, "ff02::1", advertisement(ifi))
}
