package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab"
)

const (
	vip4 = "203.0.113.7/32"
	vip6 = "2001:db8:7::7/128"
)

func TestAnnounce(t *testing.T) {
	s := newSite(t)
	// r1 is reached over IPv4, r2 over IPv6; both take both families.
	sp := red(peer("10.0.1.1", "red1"), peer("fd00:2::1", "red2"))
	sp.Announce = announcing(vip4, vip6)
	s.apply(sp)
	s.established()
	for _, c := range []struct{ router, peer, prefix, nextHop string }{
		{"r1", "10.0.1.2", vip4, "10.0.1.2"},
		{"r1", "10.0.1.2", vip6, "fd00:1::2"},
		{"r2", "fd00:2::2", vip4, "10.0.2.2"},
		{"r2", "fd00:2::2", vip6, "fd00:2::2"},
	} {
		s.untilRoute(c.router, "red", c.prefix, c.peer, func(r route) error {
			if !r.Valid || len(r.NextHops) == 0 || r.NextHops[0].IP != c.nextHop || r.ASPath.String != "64512" || r.Metric != 0 {
				return fmt.Errorf("%s at %s: %+v", c.prefix, c.router, r)
			}
			return nil
		})
	}
	require.Equal(t, 2, s.session("red", "10.0.1.1").Announced)

	sp.Announce = announcing(vip6)
	require.NoError(t, s.speakers.Withdraw(t.Context(), []plan.Speaker{sp}))
	s.untilNoRoute("r1", "red", vip4)
	s.untilNoRoute("r2", "red", vip4)
	s.apply(sp)
	s.apply()
	s.untilNoRoute("r1", "red", vip6)
}

// TestAnnounceIPv4ByIPv6 has a numbered IPv6 session on a link where the node has no IPv4 address: the router gets IPv4 by our IPv6 address
// once it offers that (RFC 8950), and before that an error names the reason.
func TestAnnounceIPv4ByIPv6(t *testing.T) {
	s := newSite(t)
	sp := red(peer("fd00:2::1", "red2", func(p *plan.Peer) { p.NextHop4 = netip.Addr{} }))
	sp.Announce = announcing(vip4, vip6)
	untilBy := func(prefix, nextHop string) {
		t.Helper()
		s.untilRoute("r2", "red", prefix, "fd00:2::2", func(r route) error {
			if !r.Valid || len(r.NextHops) == 0 || r.NextHops[0].IP != nextHop {
				return fmt.Errorf("%s: %+v", prefix, r)
			}
			return nil
		})
	}
	s.apply(sp)
	s.established()
	untilBy(vip6, "fd00:2::2")
	plain := s.session("red", "fd00:2::1")
	require.True(t, plain.Up)
	require.Equal(t, []config.Family{config.IPv6Unicast}, plain.Sent)
	require.Contains(t, plain.LastError, "has not offered extended next hops (RFC 8950), and interface red2 has no IPv4 address")
	s.untilNoRoute("r2", "red", vip4)
	require.Equal(t, 1, s.establishments("r2", "red", "fd00:2::2"))

	s.configure("r2", "router bgp 65002 vrf red", "neighbor fd00:2::2 capability extended-nexthop") // resets the session
	untilBy(vip4, "fd00:2::2")
	untilBy(vip6, "fd00:2::2")
	extended := s.session("red", "fd00:2::1")
	require.Equal(t, sp.Peers[0].AddressFamilies, extended.Sent)
	require.Equal(t, 2, extended.Announced)
	require.Empty(t, extended.LastError)

	// With an IPv4 address on the link, that is the next hop, without a new session.
	sp.Peers[0].NextHop4 = netip.MustParseAddr("10.0.2.2")
	s.apply(sp)
	untilBy(vip4, "10.0.2.2")
	require.Equal(t, extended.Since, s.session("red", "fd00:2::1").Since)
}

func TestAttributes(t *testing.T) {
	s := newSite(t)
	r1 := peer("10.0.1.1", "red1", func(p *plan.Peer) {
		p.Advertise = config.Advertise{
			Communities: []string{"64512:7", "no-export"}, LargeCommunities: []string{"64512:1:2"}, MED: 50, ASPathPrepend: 2, LocalPref: 300,
		}
	})
	// r2 is an internal peer in this test, and gets the other next hops.
	s.configure("r2", "no router bgp 65002 vrf red", "router bgp 64512 vrf red", "no bgp default ipv4-unicast",
		"bgp router-id 10.255.0.2",
		"neighbor 10.0.2.2 remote-as 64512", "neighbor 10.0.2.2 timers connect 1",
		"address-family ipv4 unicast", "neighbor 10.0.2.2 activate")
	r2 := peer("10.0.2.1", "red2", func(p *plan.Peer) {
		p.ASN, p.DynamicASN = 0, config.DynamicInternal
		p.NextHop4 = netip.MustParseAddr("fd00:2::2")             // RFC 8950
		p.Advertise.LocalPref, p.Advertise.ASPathPrepend = 150, 2 // an internal peer would refuse a path with its own AS
	})
	sp := red(r1, r2)
	sp.Announce = announcing(vip4, vip6)
	s.apply(sp)
	s.established()
	for a := range sp.Announce.All() {
		s.untilRoute("r1", "red", a.Prefix.String(), "10.0.1.2", func(r route) error {
			if r.ASPath.String != "64512 64512 64512" || r.Metric != 50 || r.Community.String != "64512:7 no-export" || r.LargeCommunity.String != "64512:1:2" {
				return fmt.Errorf("%+v", r)
			}
			return nil
		})
	}
	s.untilRoute("r2", "red", vip4, "10.0.2.2", func(r route) error {
		if r.LocalPref != 150 || len(r.NextHops) == 0 || r.NextHops[0].IP != "fd00:2::2" || r.ASPath.String != "Local" {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})

	// New attributes and prefixes go out without a new session.
	before := s.establishments("r1", "red", "10.0.1.2")
	since := s.session("red", "10.0.1.1").Since
	sp.Peers[0].Advertise = config.Advertise{Communities: []string{"64512:8"}, MED: 10}
	s.apply(sp)
	s.untilRoute("r1", "red", vip4, "10.0.1.2", func(r route) error {
		if r.ASPath.String != "64512" || r.Metric != 10 || r.Community.String != "64512:8" || r.LargeCommunity.String != "" {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	require.Equal(t, before, s.establishments("r1", "red", "10.0.1.2"))
	require.Equal(t, since, s.session("red", "10.0.1.1").Since)

	// A session's own parameter resets that session and no other.
	others := s.establishments("r2", "red", "10.0.2.2")
	sp.Peers[0].HoldTime = config.Duration(30 * time.Second)
	s.apply(sp)
	s.until(func() error {
		if n := s.establishments("r1", "red", "10.0.1.2"); n != before+1 {
			return fmt.Errorf("r1 has seen %d sessions", n)
		}
		return nil
	})
	require.Equal(t, others, s.establishments("r2", "red", "10.0.2.2"))
}

func TestLearn(t *testing.T) {
	s := newSite(t)
	for _, r := range []string{"1", "2"} {
		lines := []string{"router bgp 6500" + r + " vrf red", "address-family ipv4 unicast", "neighbor node default-originate"}
		for _, p := range []string{"10.244.0.0/16", "10.244.1.0/24", "10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", vip4, "198.51.100.0/24", "198.51.100.128/25", "192.0.2.0/24"} {
			lines = append(lines, "network "+p)
		}
		lines = append(lines, "exit-address-family", "address-family ipv6 unicast", "neighbor node default-originate")
		for _, p := range []string{"fd44::/16", "2001:db8:100::/48", "ff0e::/16", vip6} {
			lines = append(lines, "network "+p)
		}
		s.configure("r"+r, lines...)
	}
	everything := receive(pattern("0.0.0.0/0", 0, 32), pattern("::/0", 0, 128))
	listed := receive(pattern("0.0.0.0/0"), pattern("::/0"), pattern("198.51.100.0/24", 25, 32))
	sp := red(peer("10.0.1.1", "red1", listed), peer("fd00:2::1", "red2", listed))
	sp.Announce = announcing(vip4, vip6)
	sp.Refuse = refusing("10.244.0.0/16", "fd44::/16")
	s.apply(sp)
	s.untilLearned("red",
		"0.0.0.0/0 via 10.0.1.1 dev red1 via 10.0.2.1 dev red2",
		"198.51.100.128/25 via 10.0.1.1 dev red1 via 10.0.2.1 dev red2",
		"::/0 via fd00:1::1 dev red1 via fd00:2::1 dev red2")
	require.Equal(t, 3, s.session("red", "10.0.1.1").Accepted)

	// With everything listed, the refused, the reserved and our own stay out, and nothing is told on.
	since := s.session("red", "10.0.1.1").Since
	sp.Peers[0] = peer("10.0.1.1", "red1", everything)
	sp.Peers[1] = peer("fd00:2::1", "red2", everything)
	s.apply(sp)
	s.untilLearned("red",
		"0.0.0.0/0 via 10.0.1.1 dev red1 via 10.0.2.1 dev red2",
		"10.0.0.0/8 via 10.0.1.1 dev red1 via 10.0.2.1 dev red2",
		"192.0.2.0/24 via 10.0.1.1 dev red1 via 10.0.2.1 dev red2",
		"198.51.100.0/24 via 10.0.1.1 dev red1 via 10.0.2.1 dev red2",
		"198.51.100.128/25 via 10.0.1.1 dev red1 via 10.0.2.1 dev red2",
		"::/0 via fd00:1::1 dev red1 via fd00:2::1 dev red2",
		"2001:db8:100::/48 via fd00:1::1 dev red1 via fd00:2::1 dev red2")
	require.Equal(t, since, s.session("red", "10.0.1.1").Since, "no reset")
	for _, e := range s.speakers.Sessions() {
		require.Equal(t, 2, e.Announced, "%+v", e)
	}
	for _, prefix := range []string{"192.0.2.0/24", "2001:db8:100::/48"} {
		for _, r := range []string{"r1", "r2"} {
			paths, err := s.routes(r, "red", prefix)
			require.NoError(t, err)
			require.Len(t, paths, 1, "only its own")
		}
	}

	// A router that goes takes its next hops along; one that takes a route back too.
	s.configure("r2", "router bgp 65002 vrf red", "address-family ipv4 unicast", "no neighbor node default-originate")
	s.until(func() error {
		if have := s.learned("red"); len(have) == 0 || have[0] != "0.0.0.0/0 via 10.0.1.1 dev red1" {
			return fmt.Errorf("%q", have)
		}
		return nil
	})
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.1.2 shutdown")
	s.untilLearned("red",
		"10.0.0.0/8 via 10.0.2.1 dev red2",
		"192.0.2.0/24 via 10.0.2.1 dev red2",
		"198.51.100.0/24 via 10.0.2.1 dev red2",
		"198.51.100.128/25 via 10.0.2.1 dev red2",
		"::/0 via fd00:2::1 dev red2",
		"2001:db8:100::/48 via fd00:2::1 dev red2")
	sp.Peers = sp.Peers[1:]
	sp.Peers[0].Receive = nil
	s.apply(sp)
	s.untilLearned("red")
}

// TestNextHopOffLink has routers tell next hops that are on no link of the node: such routes are not learned, however good they
// are, and another router's to the same prefix are.
func TestNextHopOffLink(t *testing.T) {
	s := newSite(t)
	s.configure("r2", "router bgp 65002 vrf red", "address-family ipv4 unicast", "network 192.0.2.0/24", "neighbor node route-map LONGER out",
		"route-map LONGER permit 10", "set as-path prepend 65002")
	nextHop := func(gateway string) {
		s.configure("r1", "bgp route-map delay-timer 1", "route-map THIRD permit 10", "set ip next-hop "+gateway)
	}
	nextHop("10.9.9.9")
	s.configure("r1", "router bgp 65001 vrf red", "address-family ipv4 unicast", "network 192.0.2.0/24", "network 198.51.100.0/24", "neighbor node route-map THIRD out")
	all := receive(pattern("0.0.0.0/0", 0, 32))
	s.apply(red(peer("10.0.1.1", "red1", all), peer("10.0.2.1", "red2", all)))
	told := func(received, accepted int, fault string) {
		t.Helper()
		s.until(func() error {
			s.learned("red")
			if e := s.session("red", "10.0.1.1"); !e.Up || e.Received != received || e.Accepted != accepted || e.LastError != fault {
				return fmt.Errorf("%+v", e)
			}
			return nil
		})
	}
	const off = ": its next hop 10.9.9.9 is on no link of this node; the router should announce itself as next hop"
	s.untilLearned("red", "192.0.2.0/24 via 10.0.2.1 dev red2")
	told(2, 0, "routes are not learned, for example 192.0.2.0/24"+off)
	require.Empty(t, s.session("red", "10.0.2.1").LastError)
	s.configure("r1", "router bgp 65001 vrf red", "address-family ipv4 unicast", "no network 192.0.2.0/24")
	s.untilLearned("red", "192.0.2.0/24 via 10.0.2.1 dev red2")
	told(1, 0, "routes are not learned, for example 198.51.100.0/24"+off)

	// Another router on the link is as good as the peer itself.
	nextHop("10.0.1.9")
	s.untilLearned("red", "192.0.2.0/24 via 10.0.2.1 dev red2", "198.51.100.0/24 via 10.0.1.9 dev red1")
	told(1, 1, "")
	nextHop("10.0.2.9")
	s.untilLearned("red", "192.0.2.0/24 via 10.0.2.1 dev red2")

	// An address in its subnet makes the next hop one of the link's.
	s.desired[0].Peers[0].OnLink = prefixes("10.0.1.2/24", "10.0.2.3/24")
	s.apply(s.desired...)
	s.untilLearned("red", "192.0.2.0/24 via 10.0.2.1 dev red2", "198.51.100.0/24 via 10.0.2.9 dev red1")
	told(1, 1, "")
}

func TestSecuredSessions(t *testing.T) {
	s := newSite(t)
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("canary-1\n"), 0o600))
	for _, n := range []string{"10.0.1.2", "fd00:1::2"} {
		s.configure("r1", "router bgp 65001 vrf red", "neighbor "+n+" password canary-1", "neighbor "+n+" ttl-security hops 1")
	}
	secured := func(p *plan.Peer) { p.PasswordFile, p.TTLSecurity = file, 1 }
	sp := red(peer("10.0.1.1", "red1", secured), peer("fd00:1::1", "red1", secured), peer("10.0.2.1", "red2"))
	sp.Announce = announcing(vip4)
	s.apply(sp)
	s.established()

	// A new password resets the sessions that use it.
	others := s.establishments("r2", "red", "10.0.2.2")
	for _, n := range []string{"10.0.1.2", "fd00:1::2"} {
		s.configure("r1", "router bgp 65001 vrf red", "neighbor "+n+" password canary-2")
	}
	require.NoError(t, os.WriteFile(file, []byte("canary-2\n"), 0o600))
	s.apply(sp)
	s.until(func() error {
		for n, peer := range map[string]string{"10.0.1.2": "10.0.1.1", "fd00:1::2": "fd00:1::1"} {
			// FRR may close one more connection while its own end still changes.
			if c, e := s.establishments("r1", "red", n), s.session("red", peer); c < 2 || !e.Up {
				return fmt.Errorf("%s: %d sessions, %+v", n, c, e)
			}
		}
		return nil
	})
	require.Equal(t, others, s.establishments("r2", "red", "10.0.2.2"))

	// A password that cannot be read leaves the session alone and is told.
	require.NoError(t, os.Remove(file))
	err := s.speakers.Apply(t.Context(), []plan.Speaker{sp})
	require.ErrorContains(t, err, "network red: read the password of peer 10.0.1.1")
	require.True(t, s.session("red", "10.0.1.1").Up)
	require.Contains(t, s.session("red", "10.0.1.1").LastError, "password")

	require.NoError(t, s.speakers.Close(t.Context(), false))
	require.NotContains(t, s.detail.String(), "canary")
	require.Contains(t, s.detail.String(), "Add a peer configuration", "GoBGP's log is in it")
}

func TestSamePeerAddressInTwoNetworks(t *testing.T) {
	s := newSite(t)
	s.configure("r1", "router bgp 65001 vrf red", "address-family ipv4 unicast", "neighbor node default-originate")
	r, b := red(peer("10.0.1.1", "red1", receive(pattern("0.0.0.0/0")))), blue(peer("10.0.1.1", "blue1", receive(pattern("0.0.0.0/0"))))
	r.Announce, b.Announce = announcing(vip4), announcing("203.0.113.8/32")
	s.apply(r, b)
	s.established()
	s.untilLearned("red", "0.0.0.0/0 via 10.0.1.1 dev red1")
	s.untilLearned("blue", "0.0.0.0/0 via 10.0.1.1 dev blue1")
	fromUs := func(route) error { return nil }
	s.untilRoute("r1", "red", vip4, "10.0.1.2", fromUs)
	s.untilRoute("r1", "blue", "203.0.113.8/32", "10.0.1.2", fromUs)
	s.untilNoRoute("r1", "blue", vip4)
	s.untilNoRoute("r1", "red", "203.0.113.8/32")

	// Applying the same again changes nothing; a new router ID restarts that speaker alone.
	since := s.session("red", "10.0.1.1").Since
	s.apply(r, b)
	require.Equal(t, since, s.session("red", "10.0.1.1").Since)
	untouched := s.session("blue", "10.0.1.1").Since
	r.RouterID = netip.MustParseAddr("10.255.1.9")
	s.apply(r, b)
	require.False(t, s.session("red", "10.0.1.1").Up)
	s.established()
	s.untilLearned("red", "0.0.0.0/0 via 10.0.1.1 dev red1")
	require.Equal(t, untouched, s.session("blue", "10.0.1.1").Since)

	// A network that fails or goes does not touch the other.
	since = s.session("red", "10.0.1.1").Since
	b.RouterID = netip.Addr{}
	require.ErrorContains(t, s.speakers.Apply(t.Context(), []plan.Speaker{b, r}), "network blue: start BGP speaker: router ID")
	s.desired = []plan.Speaker{r}
	s.untilNoRoute("r1", "blue", "203.0.113.8/32")
	require.Equal(t, since, s.session("red", "10.0.1.1").Since)
	require.Empty(t, s.learned("blue"))
}

func TestMaxPrefixes(t *testing.T) {
	s := newSite(t)
	for _, r := range []string{"1", "2"} {
		s.configure("r"+r, "router bgp 6500"+r+" vrf red", "address-family ipv4 unicast", "network 192.0.2.0/24")
	}
	few := func(p *plan.Peer) { p.MaxPrefixes = 10 }
	all := receive(pattern("0.0.0.0/0", 0, 32))
	sp := red(peer("10.0.1.1", "red1", few, all), peer("10.0.2.1", "red2", few, all))
	sp.GracefulRestart = config.GracefulRestart{Enabled: true, RestartTime: config.Duration(time.Minute)}
	s.apply(sp)
	s.untilLearned("red", "192.0.2.0/24 via 10.0.1.1 dev red1 via 10.0.2.1 dev red2")
	since := s.session("red", "10.0.2.1").Since
	lines := []string{"router bgp 65001 vrf red", "address-family ipv4 unicast"}
	for i := range 20 {
		lines = append(lines, fmt.Sprintf("network 192.0.%d.0/24", 100+i))
	}
	s.configure("r1", lines...)
	s.untilLearned("red", "192.0.2.0/24 via 10.0.2.1 dev red2")
	s.until(func() error {
		if e := s.session("red", "10.0.1.1"); e.Up || !e.Ended || !strings.Contains(e.LastError, "maxPrefixes") { // no timer opens it again
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	require.Equal(t, since, s.session("red", "10.0.2.1").Since)
	require.False(t, s.session("red", "10.0.2.1").Ended)

	// A higher limit opens it again.
	sp.Peers[0].MaxPrefixes = 100
	s.apply(sp)
	s.established()
	s.until(func() error {
		if n := len(s.learned("red")); n != 21 {
			return fmt.Errorf("%d routes", n)
		}
		return nil
	})
}

// TestRoutesSentBack has a router send back what it was told, which FRR does where a peer group has several members: with many
// ingress IPs that is more than maxPrefixes, and no reason to end the session.
func TestRoutesSentBack(t *testing.T) {
	s := newSite(t)
	some := func(p *plan.Peer) { p.MaxPrefixes = 100 }
	all := receive(pattern("0.0.0.0/0", 0, 32))
	sp := red(peer("10.0.1.1", "red1", some, all), peer("fd00:1::1", "red1", some, all))
	var announced []string
	for i := range 500 {
		announced = append(announced, fmt.Sprintf("203.0.%d.%d/32", i>>8, i&255))
	}
	sp.Announce = announcing(announced...)
	s.apply(sp)
	back := func() error {
		for _, p := range []string{"10.0.1.1", "fd00:1::1"} {
			if e := s.session("red", p); !e.Up || e.Received < 500 || e.Announced != 500 {
				return fmt.Errorf("%+v", e)
			}
		}
		return nil
	}
	s.until(back)
	require.Empty(t, s.learned("red"))

	// Others are counted apart from them.
	s.configure("r1", "router bgp 65001 vrf red", "address-family ipv4 unicast", "network 192.0.2.0/24")
	s.untilLearned("red", "192.0.2.0/24 via 10.0.1.1 dev red1")
	s.until(back)
	networks := func(verb string) {
		lines := []string{"router bgp 65001 vrf red", "address-family ipv4 unicast"}
		for i := range 100 {
			lines = append(lines, fmt.Sprintf("%s 198.51.100.%d/32", verb, i))
		}
		s.configure("r1", lines...)
	}
	ended := func(p string) {
		t.Helper()
		s.until(func() error {
			if e := s.session("red", p); !e.Ended || e.LastError != tooManyPrefixes {
				return fmt.Errorf("%+v", e)
			}
			return nil
		})
	}
	networks("network")
	ended("10.0.1.1")
	ended("fd00:1::1")

	// They have a limit too.
	networks("no network")
	s.untilNoRoute("r1", "red", "198.51.100.99/32")
	sp.Peers[0].MaxPrefixes, sp.Peers[1].MaxPrefixes = 500/loopsPerRoute, 500/loopsPerRoute-1
	s.apply(sp)
	ended("fd00:1::1")
	s.until(func() error {
		if e := s.session("red", "10.0.1.1"); !e.Up || e.Received < 500 {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
}

func TestDynamicExternal(t *testing.T) {
	s := newSite(t)
	s.configure("r2", "no router bgp 65002 vrf red", "router bgp 64512 vrf red", "bgp router-id 10.255.0.2", "no bgp network import-check",
		"neighbor 10.0.2.2 remote-as 64512", "neighbor 10.0.2.2 timers connect 1",
		"address-family ipv4 unicast", "network 198.51.100.0/24")
	s.configure("r1", "router bgp 65001 vrf red", "address-family ipv4 unicast", "network 198.51.100.0/24")
	external := func(p *plan.Peer) {
		p.ASN, p.DynamicASN, p.Receive = 0, config.DynamicExternal, []config.PrefixPattern{pattern("0.0.0.0/0", 0, 32)}
	}
	sp := red(peer("10.0.1.1", "red1", external), peer("10.0.2.1", "red2", external))
	sp.Announce = announcing(vip4)
	s.desired = []plan.Speaker{sp}
	require.NoError(t, s.speakers.Apply(t.Context(), s.desired))
	s.until(func() error {
		if err := s.speakers.Apply(t.Context(), s.desired); err == nil {
			return errors.New("the internal peer is not refused")
		}
		if !s.session("red", "10.0.1.1").Up {
			return errors.New("the external peer has no session")
		}
		return nil
	})
	require.ErrorContains(t, s.speakers.Apply(t.Context(), s.desired), "peer 10.0.2.1 is not external: its AS is 64512")
	require.False(t, s.session("red", "10.0.2.1").Up)
	require.EqualValues(t, 65001, s.session("red", "10.0.1.1").ASN)
	require.NoError(t, lab.Wait(t.Context(), limit, func() error {
		paths, err := s.routes("r1", "red", vip4)
		if err == nil && len(paths) == 0 {
			err = errors.New("nothing announced to the external peer")
		}
		return err
	}))
	paths, err := s.routes("r2", "red", vip4)
	require.NoError(t, err)
	require.Empty(t, paths)
	s.until(func() error {
		if r := s.session("red", "10.0.2.1"); r.Received != 1 {
			return fmt.Errorf("session with the internal peer: %+v", r)
		}
		return nil
	})
	s.untilLearned("red", "198.51.100.0/24 via 10.0.1.1 dev red1")
}

func TestListen(t *testing.T) {
	s := newSite(t)
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("s3cret"), 0o600))
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.1.2 password s3cret")
	// The routers dial: with this port, the node's own calls reach nobody.
	called := func(p *plan.Peer) { p.Port = 1790 }
	r := red(peer("10.0.1.1", "red1", called, func(p *plan.Peer) { p.PasswordFile = file }), peer("fd00:2::1", "red2", called))
	b := blue(peer("10.0.1.1", "blue1", called))
	r.ListenPort, b.ListenPort = 179, 179
	r.Announce = announcing(vip4)
	s.apply(r, b)
	s.established()
	s.untilRoute("r1", "red", vip4, "10.0.1.2", func(route) error { return nil })

	// GoBGP's sockets keep a removed password. They are opened once more when the network has no session to lose.
	s.configure("r1", "router bgp 65001 vrf red", "no neighbor 10.0.1.2 password s3cret")
	r.Peers[0].PasswordFile = ""
	s.apply(r, b)
	s.untilUnheard("red", "10.0.1.1", "requires the password")
	require.True(t, s.session("red", "fd00:2::1").Up)
	s.configure("r2", "router bgp 65002 vrf red", "neighbor node shutdown")
	s.untilUp("red", "10.0.1.1")
}

func TestBFD(t *testing.T) {
	s := newSite(t)
	_, err := s.Node("r1").VTY("bfdd", "configure terminal", "bfd", "profile fast", "receive-interval 1000", "transmit-interval 1000")
	require.NoError(t, err)
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.1.2 bfd profile fast", "neighbor 10.0.1.2 timers 60 180", "address-family ipv4 unicast", "neighbor node default-originate")
	sp := red(peer("10.0.1.1", "red1", receive(pattern("0.0.0.0/0")), func(p *plan.Peer) {
		p.BFD = &config.BFDProfile{Name: "fast", TransmitInterval: 1000, ReceiveInterval: 1000, DetectMultiplier: 3}
		p.HoldTime, p.KeepaliveTime = config.Duration(180*time.Second), config.Duration(60*time.Second)
	}))
	s.apply(sp)
	s.untilLearned("red", "0.0.0.0/0 via 10.0.1.1 dev red1")
	s.until(func() error {
		if e := s.session("red", "10.0.1.1"); e.BFD != "up" || !e.Up || e.Accepted != 1 {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	require.Equal(t, 1, s.establishments("r1", "red", "10.0.1.2"), "BFD did not cost a session")
	// The path breaks without a link going down. BFD ends the session; its hold time is longer than anybody waits here.
	_, err = s.Node("r1").Run(t.Context(), "tc", "qdisc", "add", "dev", "red1", "root", "netem", "loss", "100%")
	require.NoError(t, err)
	s.untilLearned("red")
	_, err = s.Node("r1").Run(t.Context(), "tc", "qdisc", "del", "dev", "red1", "root")
	require.NoError(t, err)
	s.untilLearned("red", "0.0.0.0/0 via 10.0.1.1 dev red1")
	s.until(func() error {
		if e := s.session("red", "10.0.1.1"); e.BFD != "up" {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
}

// TestMultihop speaks with an address of the router that is on no common subnet.
func TestMultihop(t *testing.T) {
	s := newSite(t)
	_, err := s.Node("r1").Run(t.Context(), "ip", "addr", "add", "10.255.0.1/32", "dev", "red")
	require.NoError(t, err)
	run(t, "ip", "route", "add", "10.255.0.1/32", "via", "10.0.1.1", "vrf", "red")
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.1.2 ebgp-multihop 3", "neighbor 10.0.1.2 update-source 10.255.0.1",
		"address-family ipv4 unicast", "neighbor node default-originate")

	sp := red(peer("10.0.1.1", "red1", receive(pattern("0.0.0.0/0")), func(p *plan.Peer) {
		p.Address, p.Device, p.EBGPMultiHop = netip.MustParseAddr("10.255.0.1"), "", 3
	}))
	sp.Announce = announcing(vip4)
	s.apply(sp)
	s.established()
	s.until(func() error {
		paths, err := s.routes("r1", "red", vip4)
		if err == nil && len(paths) != 1 {
			err = fmt.Errorf("%d paths", len(paths))
		}
		return err
	})
	s.until(func() error {
		if learned := s.learned("red"); len(learned) != 1 || !strings.Contains(learned[0], "via 10.255.0.1") {
			return fmt.Errorf("%q", learned)
		}
		return nil
	})
}

// TestOwnEnd has an AS number and a source address of our own towards one peer: the router accepts no other.
func TestOwnEnd(t *testing.T) {
	s := newSite(t)
	run(t, "ip", "addr", "add", "10.0.1.77/24", "dev", "red1")
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.1.77 remote-as 64700", "neighbor 10.0.1.77 timers 3 9",
		"address-family ipv4 unicast", "neighbor 10.0.1.77 activate", "neighbor 10.0.1.77 default-originate")
	source := netip.MustParseAddr("10.0.1.77")
	sp := red(peer("10.0.1.1", "red1", receive(pattern("0.0.0.0/0")), func(p *plan.Peer) {
		p.MyASN, p.SourceAddress, p.NextHop4 = 64700, source, source
	}))
	sp.Announce = announcing(vip4)
	s.apply(sp)
	s.established()
	s.until(func() error {
		paths, err := s.routes("r1", "red", vip4)
		if err == nil && (len(paths) != 1 || paths[0].ASPath.String != "64700" ||
			paths[0].Peer.ID != "10.0.1.77" || paths[0].NextHops[0].IP != "10.0.1.77") {
			err = fmt.Errorf("%+v", paths)
		}
		return err
	})
	s.untilLearned("red", "0.0.0.0/0 via 10.0.1.1 dev red1")
}
