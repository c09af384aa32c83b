package bgp

import (
	"cmp"
	"net/netip"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// TestSentFamilies reports the families that a peer gets, and why it lacks one. IPv4 depends on its offer of extended next hops (RFC 8950)
// where the interface has no IPv4 address.
func TestSentFamilies(t *testing.T) {
	const lacks4, lacks6 = "IPv4 is not announced to it: interface red1 has no IPv4 address",
		"IPv6 is not announced to it: interface red1 has no global IPv6 address"
	const plain = "IPv4 is not announced to it: it has not offered extended next hops (RFC 8950), and interface red1 has no IPv4 address"
	const beyond = "IPv4 is not announced to it: it has not offered extended next hops (RFC 8950), and the interface whose addresses are " +
		"announced to it has no IPv4 address"
	both, announcements := []config.Family{config.IPv4Unicast, config.IPv6Unicast}, perFamily{2, 3}
	unnumbered := func(p *plan.Peer) { p.Interface, p.NextHop4, p.NextHop6 = "red1", netip.Addr{}, netip.Addr{} }
	no4, no6 := func(p *plan.Peer) { p.NextHop4 = netip.Addr{} }, func(p *plan.Peer) { p.NextHop6 = netip.Addr{} }
	neither := func(p *plan.Peer) { p.NextHop4, p.NextHop6 = netip.Addr{}, netip.Addr{} }
	for name, c := range map[string]struct {
		router          string
		change          func(*plan.Peer)
		extended        bool
		silent, waiting bool
		spoken          []config.Family
		announcements   perFamily
		sent            []config.Family
		announced       int
		lastError       string
	}{
		"extended":          {change: unnumbered, extended: true, spoken: both, sent: both, announced: 5},
		"plain":             {change: unnumbered, spoken: both, sent: both[1:], announced: 3, lastError: plain},
		"plain, an address": {change: func(p *plan.Peer) { p.Interface = "red1" }, spoken: both, sent: both, announced: 5},
		"plain, IPv4 alone": {change: unnumbered, spoken: both[:1], lastError: plain},
		"silent":            {change: unnumbered, extended: true, silent: true, spoken: both},
		"not established":   {change: unnumbered, extended: true, waiting: true, spoken: both},

		"by IPv6":                    {router: "fd00:1::1", spoken: both, sent: both, announced: 5},
		"by IPv6, extended":          {router: "fd00:1::1", change: no4, extended: true, spoken: both, sent: both, announced: 5},
		"by IPv6, plain":             {router: "fd00:1::1", change: no4, spoken: both, sent: both[1:], announced: 3, lastError: plain},
		"by IPv6, plain, all IPv6":   {router: "fd00:1::1", change: no4, spoken: both, announcements: perFamily{0, 3}, sent: both[1:], announced: 3},
		"by IPv6, IPv6 alone":        {router: "fd00:1::1", change: no4, spoken: both[1:], sent: both[1:], announced: 3},
		"by IPv6, not established":   {router: "fd00:1::1", change: no4, waiting: true, spoken: both},
		"by IPv6, beyond a router":   {router: "fd00:1::1", change: func(p *plan.Peer) { no4(p); p.Device = "" }, spoken: both, sent: both[1:], announced: 3, lastError: beyond},
		"by IPv6, no address at all": {router: "fd00:1::1", change: neither, extended: true, spoken: both, lastError: lacks4 + "; " + lacks6},
		"by IPv4":                    {router: "10.0.1.1", change: no6, spoken: both, sent: both[:1], announced: 2, lastError: lacks6},
		"by IPv4, all IPv4":          {router: "10.0.1.1", change: no6, spoken: both, announcements: perFamily{2, 0}, sent: both[:1], announced: 2},
		"by IPv4, IPv4 alone":        {router: "10.0.1.1", change: no6, spoken: both[:1], sent: both[:1], announced: 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := peer(cmp.Or(c.router, "fe80::1%lo"), "red1", func(p *plan.Peer) { p.ASN = 65001 })
			if c.change != nil {
				c.change(&p)
			}
			st := &sessionState{state: bgp.BGP_FSM_ESTABLISHED, families: c.spoken, extended: c.extended, plain: !c.extended}
			if c.waiting {
				st.state = bgp.BGP_FSM_ACTIVE
			}
			s := &speaker{states: map[netip.Addr]*sessionState{p.Address: st}, announcements: cmp.Or(c.announcements, announcements)}
			x, err := s.exchange(red(p), p, p.Address)
			require.NoError(t, err)
			if p.Interface != "" {
				x.Export.completeNextHops(netip.MustParseAddr("fe80::2%red1"), c.extended) // there is no such interface
			}
			x.Silent = c.silent
			s.sends = map[netip.Addr]sends{p.Address: x.sends()}
			e := Session{Address: p.Address}
			s.describe(&e, p, st)
			require.Equal(t, c.sent, e.Sent)
			require.Equal(t, c.announced, e.Announced)
			require.Equal(t, c.lastError, e.LastError)
		})
	}
}

// TestNextHopWaitsForOffer expects no IPv6 next hop of IPv4 for a numbered router that has not offered extended next hops, not even in the
// first table: the router might end the session. An IPv4 address of the interface comes first in any case.
func TestNextHopWaitsForOffer(t *testing.T) {
	for _, own := range []string{"", "10.0.1.2"} {
		p := peer("fd00:1::1", "red1", func(p *plan.Peer) { p.NextHop4, _ = netip.ParseAddr(own) })
		s := &speaker{states: map[netip.Addr]*sessionState{}}
		for _, c := range []struct {
			st   *sessionState
			hop4 string
		}{
			{nil, own},
			{&sessionState{}, own},
			{&sessionState{plain: true}, own},
			{&sessionState{extended: true}, cmp.Or(own, "fd00:1::2")},
		} {
			s.states[p.Address] = c.st
			want, _ := netip.ParseAddr(c.hop4)
			x, err := s.exchange(red(p), p, p.Address)
			require.NoError(t, err)
			require.Equal(t, want, x.Export.NextHop4, "%+v", c.st)
			require.Equal(t, p.NextHop6, x.Export.NextHop6)
		}
	}
}
