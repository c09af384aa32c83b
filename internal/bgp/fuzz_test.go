package bgp

import (
	"net/netip"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// FuzzUpdate reads anything as a message, as GoBGP does when a peer sends it, and makes a route of what it tells.
func FuzzUpdate(f *testing.F) {
	origin := []byte{0x40, 1, 1, 0}
	path := []byte{0x40, 2, 6, 2, 1, 0, 0, 252, 89}
	hop := []byte{0x40, 3, 4, 192, 0, 2, 9}
	reach := append(append([]byte{0x80, 14, 28, 0, 2, 1, 16}, netip.MustParseAddr("2001:db8::9").AsSlice()...), 0, 48, 0x20, 1, 0xd, 0xb8, 0, 1)
	update := func(attributes ...[]byte) []byte {
		var all []byte
		for _, a := range attributes {
			all = append(all, a...)
		}
		return append(append([]byte{0, 0, 0, byte(len(all))}, all...), 24, 198, 51, 100)
	}
	for _, body := range [][]byte{
		nil,
		{0},
		{0, 0, 0, 0},
		update(origin, path, hop), update(origin, path, reach), update(origin, path, hop, []byte{0xc0, 8, 4, 1, 2, 3, 4}),
		update(origin, path, hop, []byte{0xc0, 40, 8, 5, 0, 5, 0, 1, 0, 1, 0}), update(origin, path, []byte{0x80, 14, 3, 0, 2, 1}), update([]byte{0x80, 15, 3, 0, 2, 1}),
	} {
		f.Add(uint8(bgp.BGP_MSG_UPDATE), body, false, false)
	}
	f.Add(uint8(bgp.BGP_MSG_OPEN), []byte{4, 252, 89, 0, 90, 192, 0, 2, 1, 16, 2, 14, 1, 4, 0, 1, 0, 1, 65, 4, 0, 0, 252, 89, 2, 0}, false, false)
	f.Add(uint8(bgp.BGP_MSG_NOTIFICATION), []byte{6, 2, 1, 'a'}, true, true)
	f.Add(uint8(bgp.BGP_MSG_ROUTE_REFRESH), []byte{0, 1, 0, 1}, false, false)
	f.Add(uint8(9), []byte{1}, false, false)
	families := map[bgp.Family]bgp.BGPAddPathMode{bgp.RF_IPv4_UC: bgp.BGP_ADD_PATH_NONE, bgp.RF_IPv6_UC: bgp.BGP_ADD_PATH_NONE}
	everything := plan.Peer{Peer: config.Peer{Address: netip.MustParseAddr("192.0.2.9")}, Device: "eth2"}
	f.Fuzz(func(t *testing.T, kind uint8, body []byte, twoBytes, internal bool) {
		if len(body) > bgp.BGP_MAX_MESSAGE_LENGTH-bgp.BGP_HEADER_LENGTH {
			return
		}
		header := &bgp.BGPHeader{Type: kind, Len: uint16(bgp.BGP_HEADER_LENGTH + len(body))}
		m, err := bgp.ParseBGPBody(header, body, &bgp.MarshallingOption{AddPath: families, Use2ByteAS: twoBytes})
		if err != nil {
			_ = err.Error()
		}
		if m == nil {
			return
		}
		u, ok := m.Body.(*bgp.BGPUpdate)
		if !ok {
			return
		}
		if err == nil {
			_, _ = bgp.ValidateUpdateMsg(u, families, !internal, false, false)
		}
		var as uint32 = 64601
		if internal {
			as = 64512
		}
		told := map[netip.Prefix]bgp.Family{}
		for _, n := range u.NLRI {
			if p, ok := n.NLRI.(*bgp.IPAddrPrefix); ok {
				told[p.Prefix] = bgp.RF_IPv4_UC
			}
		}
		for _, a := range u.PathAttributes {
			if r, ok := a.(*bgp.PathAttributeMpReachNLRI); ok {
				for _, n := range r.Value {
					if p, ok := n.NLRI.(*bgp.IPAddrPrefix); ok {
						told[p.Prefix] = bgp.NewFamily(r.AFI, r.SAFI)
					}
				}
			}
		}
		refused := newRefusal(refusing("10.244.0.0/16", "fd44::/16"))
		for p, family := range told {
			covered := refused.covers(p)
			for _, n := range neverLearned {
				require.False(t, !covered && p.Bits() > 0 && n.Bits() <= p.Bits() && n.Contains(p.Addr()), "%s", p)
			}
			c := newCandidate(&apiutil.Path{Family: family, Attrs: u.PathAttributes, PeerASN: as}, 64512)
			if !c.resolve(everything.Address, &everything) {
				continue
			}
			gateway := c.nextHop.Gateway
			require.True(t, usableGateway(gateway), "%s", gateway)
			require.False(t, gateway.IsLoopback() || gateway.IsMulticast() || gateway.IsUnspecified(), "%s", gateway)
			require.Empty(t, gateway.Zone())
			require.Len(t, bestNextHops([]candidate{c, c}), 1)
		}
	})
}
