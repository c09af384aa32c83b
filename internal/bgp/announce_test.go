package bgp

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

func TestMED(t *testing.T) {
	for _, c := range []struct {
		term int64
		want uint32
	}{{0, 0}, {1, 65534}, {2, 65533}, {65535, 0}, {65536, 65535}, {65537, 65534}, {math.MaxInt64, 0}, {-1, 0}} {
		require.Equal(t, c.want, med(plan.Announcement{Term: c.term}), "%+v", c)
	}
}

// asHost and asStandby make the announcements of both families.
func asHost(term int64) sorted.List[plan.Announcement] {
	return changed(announcing(vip4, vip6), func(a *plan.Announcement) { a.Term = term })
}

func asStandby(term int64) sorted.List[plan.Announcement] {
	return changed(asHost(term), func(a *plan.Announcement) { a.Standby = true })
}

func changed(l sorted.List[plan.Announcement], change func(*plan.Announcement)) sorted.List[plan.Announcement] {
	all := l.Slice()
	for i := range all {
		change(&all[i])
	}
	return sorted.Of(all...)
}

const (
	once   = "64512"
	longer = "64512 64512 64512 64512 64512 64512"
)

// TestHostAndStandby moves ingress IPs between two nodes and looks at what a router of both makes of it.
func TestHostAndStandby(t *testing.T) {
	s := newSite(t)
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.3.2 peer-group node")
	first, second := red(peer("10.0.1.1", "red1")), blue(peer("10.0.3.1", "red3"))
	second.RouterID = netip.MustParseAddr("10.255.1.2")
	const firstAddr, secondAddr = "10.0.1.2", "10.0.3.2"
	first.Announce, second.Announce = asHost(1), asStandby(1)
	s.apply(first, second)
	s.established()
	// expect waits until the path of one is the best, and looks at it and at the other's.
	expect := func(best string, med int, asPath, origin string, other, otherASPath string) {
		t.Helper()
		for _, prefix := range []string{vip4, vip6} {
			s.until(func() error {
				b, others := s.untilBest("r1", "red", prefix, best)
				if b.Metric != med || b.ASPath.String != asPath || b.Origin != origin || b.Community.String+b.LargeCommunity.String != "" {
					return fmt.Errorf("the best path to %s is %+v", prefix, b)
				}
				if other == "" && len(others) == 0 {
					return nil
				}
				if len(others) != 1 || others[0].Peer.ID != other || others[0].ASPath.String != otherASPath || !others[0].Valid {
					return fmt.Errorf("the other paths to %s are %+v", prefix, others)
				}
				return nil
			})
		}
	}
	expect(firstAddr, 65534, once, "IGP", secondAddr, longer)
	for _, prefix := range []string{vip4, vip6} {
		_, others := s.untilBest("r1", "red", prefix, firstAddr)
		require.Equal(t, "incomplete", others[0].Origin)
		require.Equal(t, 65534, others[0].Metric)
	}

	// told runs a change, waits for it, and expects one UPDATE a prefix in the sessions that were there all along.
	told := func(speaker string, change, done func()) {
		t.Helper()
		before, since := s.updates("r1", "red", speaker), s.speakers.Sessions()
		change()
		done()
		require.Equal(t, before+2, s.updates("r1", "red", speaker), "one UPDATE a prefix, no withdrawal before it")
		for i, e := range s.speakers.Sessions() {
			require.Equal(t, since[i].Since, e.Since, "the session of %s was reset", e.Network)
		}
	}

	second.Announce = asHost(2)
	told(secondAddr, func() { s.apply(first, second) }, func() {
		expect(secondAddr, 65533, once, "IGP", firstAddr, once)
	})
	// The former host hears of it. Its path gets neither better nor worse before the last phase of the change.
	before := s.updates("r1", "red", firstAddr)
	first.Announce = asStandby(2)
	require.NoError(t, s.speakers.Withdraw(t.Context(), []plan.Speaker{first, second}))
	expect(secondAddr, 65533, once, "IGP", firstAddr, once)
	require.Equal(t, before, s.updates("r1", "red", firstAddr))
	told(firstAddr, func() { s.apply(first, second) }, func() {
		expect(secondAddr, 65533, once, "IGP", firstAddr, longer)
	})

	// Back again: where the former host hears of it first, its path stays the best, although it is a standby's.
	second.Announce = asStandby(3)
	told(secondAddr, func() { s.apply(first, second) }, func() {
		expect(secondAddr, 65532, longer, "incomplete", firstAddr, longer)
	})
	first.Announce = asHost(3)
	told(firstAddr, func() { s.apply(first, second) }, func() {
		expect(firstAddr, 65532, once, "IGP", secondAddr, longer)
	})

	// The host ends: its standby is what is left, and becomes the host.
	first.Announce = announcing()
	told(firstAddr, func() { s.apply(first, second) }, func() {
		expect(secondAddr, 65532, longer, "incomplete", "", "")
	})
	second.Announce = asHost(4)
	told(secondAddr, func() { s.apply(first, second) }, func() {
		expect(secondAddr, 65531, once, "IGP", "", "")
	})
	require.Len(t, s.speakers.Sessions(), 2)
}

// TestFarHost has a router choose between a standby next to it and a host at the other end of a fabric: r1's path to the
// host comes to r2 as by spine, super-spine and spine.
func TestFarHost(t *testing.T) {
	s := newSite(t)
	run(t, "sysctl", "-qw", "net.ipv4.ip_forward=1") // the two reach each other through the node
	for _, c := range []struct{ router, to, via string }{{"r1", "10.0.2.0/24", "10.0.1.2"}, {"r2", "10.0.1.0/24", "10.0.2.2"}} {
		_, err := s.Node(c.router).Run(t.Context(), "ip", "route", "add", c.to, "via", c.via, "vrf", "red")
		require.NoError(t, err)
	}
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.3.2 peer-group node",
		"neighbor 10.0.2.1 remote-as 65002", "neighbor 10.0.2.1 ebgp-multihop 3", "neighbor 10.0.2.1 timers connect 1",
		"address-family ipv4 unicast", "neighbor 10.0.2.1 activate", "neighbor 10.0.2.1 route-map fabric out", "neighbor 10.0.2.1 route-map near in")
	s.configure("r1", "route-map fabric permit 10", "set as-path prepend 65101 65102 65103")
	// A next hop on the link: FRR is slow, at times, to see that a kernel's route leads to one farther off.
	s.configure("r1", "route-map near permit 10", "set ip next-hop 10.0.1.2")
	s.configure("r2", "route-map near permit 10", "set ip next-hop 10.0.2.2")
	s.configure("r2", "router bgp 65002 vrf red",
		"neighbor 10.0.1.1 remote-as 65001", "neighbor 10.0.1.1 ebgp-multihop 3", "neighbor 10.0.1.1 timers connect 1",
		"address-family ipv4 unicast", "neighbor 10.0.1.1 activate", "neighbor 10.0.1.1 route-map near in")
	near, far := red(peer("10.0.2.1", "red2")), blue(peer("10.0.3.1", "red3"))
	far.RouterID = netip.MustParseAddr("10.255.1.2")
	near.Announce, far.Announce = asStandby(1), asHost(1)
	s.apply(near, far)
	s.established()
	s.until(func() error {
		best, others := s.untilBest("r2", "red", vip4, "10.0.1.1")
		if best.ASPath.String != "65001 65101 65102 65103 64512" || len(others) != 1 || others[0].ASPath.String != longer {
			return fmt.Errorf("r2 has %+v and %+v", best, others)
		}
		return nil
	})
	far.Announce = announcing()
	s.apply(near, far)
	s.untilBest("r2", "red", vip4, "10.0.2.2")
	best, _ := s.untilBest("r1", "red", vip4, "10.0.2.1")
	require.Equal(t, "65002 "+longer, best.ASPath.String)
}

func TestStandbyAttributes(t *testing.T) {
	s := newSite(t)
	// r2 is an internal peer.
	s.configure("r2", "no router bgp 65002 vrf red", "router bgp 64512 vrf red", "no bgp default ipv4-unicast",
		"bgp router-id 10.255.0.2",
		"neighbor 10.0.2.2 remote-as 64512", "neighbor 10.0.2.2 timers connect 1",
		"address-family ipv4 unicast", "neighbor 10.0.2.2 activate")
	r1 := peer("10.0.1.1", "red1", func(p *plan.Peer) {
		p.Advertise = config.Advertise{Communities: []string{"64512:7"}, MED: 50, ASPathPrepend: 2}
	})
	r2 := peer("10.0.2.1", "red2", func(p *plan.Peer) { p.ASN, p.Advertise.MED = 64512, math.MaxUint32 })
	sp := red(r1, r2)
	expect := func(router, peer string, want string) {
		t.Helper()
		s.untilRoute(router, "red", vip4, peer, func(r route) error {
			have := fmt.Sprintf("%s %s, MED %d, LOCAL_PREF %d, %s", r.ASPath.String, r.Origin, uint32(r.Metric), r.LocalPref, r.Community.String)
			if have != want {
				return fmt.Errorf("%s has %q, want %q", router, have, want)
			}
			return nil
		})
	}
	prepended := strings.Repeat("64512 ", 3)
	sp.Announce = asHost(3)
	s.apply(sp)
	s.established()
	expect("r1", "10.0.1.2", prepended+"IGP, MED 65582, LOCAL_PREF 0, 64512:7")
	expect("r2", "10.0.2.2", "Local IGP, MED 4294967292, LOCAL_PREF 100, ")
	sp.Announce = asStandby(3)
	s.apply(sp)
	expect("r1", "10.0.1.2", strings.Repeat("64512 ", 8)+"incomplete, MED 65582, LOCAL_PREF 0, 64512:7")
	expect("r2", "10.0.2.2", "Local incomplete, MED 4294967292, LOCAL_PREF 50, ")
	for configured, half := range map[uint32]int{150: 75, 3: 1, 1: 1} {
		sp.Peers[1].Advertise.LocalPref = configured
		s.apply(sp)
		expect("r2", "10.0.2.2", fmt.Sprintf("Local incomplete, MED 4294967292, LOCAL_PREF %d, ", half))
	}
	sp.Announce = changed(sp.Announce, func(a *plan.Announcement) { a.Shutdown = true })
	s.apply(sp)
	expect("r1", "10.0.1.2", strings.Repeat("64512 ", 8)+"incomplete, MED 65582, LOCAL_PREF 0, 64512:7 graceful-shutdown")
	expect("r2", "10.0.2.2", "Local incomplete, MED 4294967292, LOCAL_PREF 1, graceful-shutdown")
	require.Equal(t, 1, s.establishments("r1", "red", "10.0.1.2"))
	require.Equal(t, 1, s.establishments("r2", "red", "10.0.2.2"))
}

// TestManyAnnouncements fills messages up: of thousands of prefixes none is missing at the router, of hosts' and of standbys'.
func TestManyAnnouncements(t *testing.T) {
	s := newSite(t)
	// Without capabilities, messages are as short as they were before RFC 8654.
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.1.2 dont-capability-negotiate")
	many := func(standby bool) sorted.List[plan.Announcement] {
		var all []plan.Announcement
		for i := range 3000 {
			a := netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})
			all = append(all, plan.Announcement{Prefix: netip.PrefixFrom(a, 32), Standby: standby, Term: 1})
		}
		return sorted.Of(all...)
	}
	sp := red(peer("10.0.1.1", "red1", func(p *plan.Peer) { p.Advertise.ASPathPrepend = 10 }))
	// has waits until the router has so many prefixes of each neighbour that tells any.
	has := func(family string, want int) {
		t.Helper()
		s.until(func() error {
			out, err := s.Node("r1").Run(t.Context(), "vtysh", "-c", "show bgp vrf red "+family+" unicast summary json")
			if err != nil {
				return err
			}
			var summary struct {
				Peers map[string]struct{ PfxRcd int }
			}
			if err := json.Unmarshal([]byte(out), &summary); err != nil {
				return err
			}
			told := 0
			for neighbor, p := range summary.Peers {
				if told += p.PfxRcd; p.PfxRcd != 0 && p.PfxRcd != want {
					return fmt.Errorf("%s tells %d prefixes of %s", neighbor, p.PfxRcd, family)
				}
			}
			if (told > 0) != (want > 0) {
				return fmt.Errorf("%d prefixes of %s", told, family)
			}
			return nil
		})
	}
	for _, standby := range []bool{true, false} {
		sp.Announce = many(standby)
		s.apply(sp)
		s.established()
		has("ipv4", 3000)
		sp.Announce = announcing()
		s.apply(sp)
		has("ipv4", 0)
	}
}
