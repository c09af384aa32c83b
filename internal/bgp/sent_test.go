package bgp

import (
	"net/netip"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// TestSentFamilies reports the families that an unnumbered peer gets, which depend on its offer of extended next hops (RFC 8950).
func TestSentFamilies(t *testing.T) {
	both := []config.Family{config.IPv4Unicast, config.IPv6Unicast}
	for name, c := range map[string]struct {
		own             string // IPv4 address of the interface
		extended        bool
		silent, waiting bool
		spoken, sent    []config.Family
		announced       int
	}{
		"extended":          {extended: true, spoken: both, sent: both, announced: 5},
		"plain":             {spoken: both, sent: both[1:], announced: 3},
		"plain, an address": {own: "10.1.0.2", spoken: both, sent: both, announced: 5},
		"plain, IPv4 alone": {spoken: both[:1]},
		"silent":            {extended: true, silent: true, spoken: both},
		"not established":   {extended: true, waiting: true, spoken: both},
	} {
		t.Run(name, func(t *testing.T) {
			router := netip.MustParseAddr("fe80::1%red1")
			x := exchange{Silent: c.silent}
			if c.own != "" {
				x.Export.NextHop4 = netip.MustParseAddr(c.own)
			}
			x.Export.completeNextHops(netip.MustParseAddr("fe80::2%red1"), c.extended)
			s := &speaker{sends: map[netip.Addr]sends{router: x.sends()}, announcements: perFamily{2, 3}}
			st := &sessionState{state: bgp.BGP_FSM_ESTABLISHED, families: c.spoken, extended: c.extended, plain: !c.extended}
			if c.waiting {
				st.state = bgp.BGP_FSM_ACTIVE
			}
			e := Session{Address: router}
			s.describe(&e, plan.Peer{Peer: config.Peer{Interface: "red1"}}, st)
			require.Equal(t, c.sent, e.Sent)
			require.Equal(t, c.announced, e.Announced)
		})
	}
}
