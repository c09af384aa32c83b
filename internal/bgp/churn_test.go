package bgp

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// untilSettled waits until what is learned by events is what all of GoBGP's tables make.
func (s *site) untilSettled(network string) {
	s.t.Helper()
	s.until(func() error {
		sp := s.speakers.byNetwork[network]
		now := sp.learnedRoutes()
		sp.reading.Lock()
		defer sp.reading.Unlock()
		sp.mu.Lock()
		r := sp.rules()
		sp.mu.Unlock()
		tables, err := tablesOf(sp, r.peers)
		if err != nil {
			return err
		}
		all := (&reader{rib: tables}).read(r, outdated{all: true}, learned{})
		if a, b := now.Slice(), all.routes.Slice(); !slices.EqualFunc(a, b, plan.Route.Equal) {
			return fmt.Errorf("learned in %s: %v, in the table is %v", network, a, b)
		}
		sp.mu.Lock()
		defer sp.mu.Unlock()
		if !maps.Equal(all.counts, sp.learned.counts) || !all.advertised.Same(sp.learned.advertised) {
			return fmt.Errorf("told in %s: %v, in the table is %v", network, sp.learned.advertised.Slice(), all.advertised.Slice())
		}
		return nil
	})
}

// tablesOf reads what the peers announce from GoBGP's tables.
func tablesOf(sp *speaker, peers map[netip.Addr]*learnedFrom) (*rib, error) {
	var tables rib
	var err error
	for addr, peer := range peers {
		for _, family := range []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC} {
			request := apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_ADJ_IN, Name: addr.String(), Family: family}
			err = errors.Join(err, sp.server.ListPath(request, func(nlri bgp.NLRI, paths []*apiutil.Path) {
				prefix, p := nlri.(*bgp.IPAddrPrefix).Prefix, paths[0]
				tables.set(addr, prefix, newCandidate(p, peer.LocalASN(sp.identity.asn)))
				if p.Stale {
					tables.byPeer[addr][prefix] = entry{tables.byPeer[addr][prefix].candidate, true}
				}
			}))
		}
	}
	return &tables, err
}

func (s *site) untilDown(network, peer string) {
	s.t.Helper()
	s.until(func() error {
		if e := s.session(network, peer); e.Up {
			return fmt.Errorf("session %+v", e)
		}
		return nil
	})
}

func (s *site) untilLearns(network, route string) {
	s.t.Helper()
	s.until(func() error {
		if have := s.learned(network); !slices.Contains(have, route) {
			return fmt.Errorf("%s is not among %q", route, have)
		}
		return nil
	})
}

// TestLearnedByEvents has two routers change their minds at random, and the node what it takes: what is learned step by
// step is what a look at everything finds.
func TestLearnedByEvents(t *testing.T) {
	s := newSite(t)
	const size = 60
	for _, r := range []string{"1", "2"} {
		s.configure("r"+r, "route-map low permit 10", "set metric 10")
		s.configure("r"+r, "route-map high permit 10", "set metric 20")
		s.configure("r"+r, "route-map long permit 10", "set as-path prepend 65100")
		s.configure("r"+r, "router bgp 6500"+r+" vrf red", "bgp graceful-restart")
	}
	all := receive(pattern("0.0.0.0/0", 0, 32), pattern("::/0", 0, 128))
	sp := red(peer("10.0.1.1", "red1", all), peer("fd00:2::1", "red2", all))
	sp.GracefulRestart = config.GracefulRestart{Enabled: true, RestartTime: config.Duration(time.Minute)}
	s.apply(sp)
	s.established()

	random := rand.New(rand.NewPCG(1, 2))
	had := map[string]map[int]bool{"r1": {}, "r2": {}}
	most := 0
	for round := range 20 {
		for router, has := range had {
			four := []string{"router bgp 6500" + router[1:] + " vrf red", "address-family ipv4 unicast", fmt.Sprintf("network 192.0.2.%d/32", round)}
			six := []string{"router bgp 6500" + router[1:] + " vrf red", "address-family ipv6 unicast"}
			for range random.IntN(size / 2) {
				i := random.IntN(size)
				lines, prefix := &four, fmt.Sprintf("198.51.100.%d/32", i)
				if i%3 == 0 {
					lines, prefix = &six, fmt.Sprintf("2001:db8:%x::/48", i)
				}
				if has[i] && random.IntN(3) == 0 {
					*lines = append(*lines, "no network "+prefix)
					delete(has, i)
					continue
				}
				how := []string{"", " route-map low", " route-map high", " route-map long"}[random.IntN(4)]
				*lines = append(*lines, "network "+prefix+how)
				has[i] = true
			}
			s.configure(router, four...)
			s.configure(router, six...)
		}
		switch random.IntN(5) {
		case 0: // the plan changes: what is refused, our own, taken
			sp.Refuse = refusing(fmt.Sprintf("198.51.100.%d/32", random.IntN(size)), fmt.Sprintf("2001:db8:%x::/48", 3*random.IntN(size/3)))
			s.apply(sp)
		case 1:
			sp.Announce = announcing(fmt.Sprintf("198.51.100.%d/32", random.IntN(size)))
			s.apply(sp)
		case 2:
			sp.Peers = slices.Clone(sp.Peers)
			sp.Peers[0] = peer("10.0.1.1", "red1", all)
			if random.IntN(2) == 0 {
				sp.Peers[0] = peer("10.0.1.1", "red1", receive(pattern("198.51.100.0/27", 32, 32), pattern("192.0.2.0/24", 32, 32)))
			}
			s.apply(sp)
		case 3: // a session ends
			s.configure("r2", "router bgp 65002 vrf red", "neighbor node shutdown")
			s.untilDown("red", "fd00:2::1")
			s.untilSettled("red")
			s.configure("r2", "router bgp 65002 vrf red", "no neighbor node shutdown")
			s.established()
		}
		s.untilLearns("red", fmt.Sprintf("192.0.2.%d/32 via 10.0.1.1 dev red1 via 10.0.2.1 dev red2", round)) // both have told the rest, too
		s.untilSettled("red")
		most = max(most, len(s.learned("red")))
	}
	s.until(func() error { // on a busy machine, the routers may tell what they have after all that
		if most = max(most, len(s.learned("red"))); most <= size/4 {
			return fmt.Errorf("no more than %d routes were ever learned", most)
		}
		return nil
	})

	// A router that restarts gracefully: its routes are of less worth, and those that do not come back go.
	sp = red(peer("10.0.1.1", "red1", all), peer("fd00:2::1", "red2", all))
	sp.GracefulRestart = config.GracefulRestart{Enabled: true, RestartTime: config.Duration(time.Minute)}
	for _, router := range []string{"r1", "r2"} {
		s.configure(router, "router bgp 6500"+router[1:]+" vrf red", "address-family ipv4 unicast", "network 198.51.100.201/32")
	}
	s.configure("r2", "router bgp 65002 vrf red", "address-family ipv4 unicast", "network 198.51.100.202/32")
	s.apply(sp)
	s.established()
	s.untilLearns("red", "198.51.100.201/32 via 10.0.1.1 dev red1 via 10.0.2.1 dev red2")
	s.untilLearns("red", "198.51.100.202/32 via 10.0.2.1 dev red2")
	s.untilSettled("red")
	_, err := s.Node("r2").Run(t.Context(), "sh", "-ec", "kill -9 $(cat /run/frr/bgpd.pid)")
	require.NoError(t, err)
	s.untilDown("red", "fd00:2::1")
	s.untilLearns("red", "198.51.100.201/32 via 10.0.1.1 dev red1")
	s.untilLearns("red", "198.51.100.202/32 via 10.0.2.1 dev red2")
	s.untilSettled("red")
	t.Logf("%d routes while r2 is away", len(s.learned("red")))
	_, err = s.Node("r2").Run(t.Context(), "/usr/lib/frr/bgpd", "-d", "-F", "traditional", "-A", "127.0.0.1")
	require.NoError(t, err)
	s.configure("r2", "router bgp 65002 vrf red", "bgp graceful-restart", "address-family ipv4 unicast", "network 198.51.100.200/32")
	s.established()
	s.untilLearns("red", "198.51.100.200/32 via 10.0.2.1 dev red2")
	s.until(func() error {
		if strings.Contains(fmt.Sprint(s.learned("red")), "198.51.100.202/32") {
			return fmt.Errorf("what r2 tells no more is still there: %q", s.learned("red"))
		}
		return nil
	})
	s.untilSettled("red")
	for _, r := range s.speakers.Sessions() {
		if r.Peer == "fd00:2::1" {
			require.Equal(t, 1, r.Accepted)
		}
	}
}
