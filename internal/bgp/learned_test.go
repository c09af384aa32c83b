package bgp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern config.PrefixPattern
		prefix  string
		want    bool
	}{
		{pattern("0.0.0.0/0"), "0.0.0.0/0", true},
		{pattern("0.0.0.0/0"), "10.0.0.0/8", false},
		{pattern("0.0.0.0/0"), "::/0", false},
		{pattern("::/0"), "::/0", true},
		{pattern("::/0", 0, 128), "2001:db8::/32", true},
		{pattern("198.51.100.0/24"), "198.51.100.0/24", true},
		{pattern("198.51.100.0/24"), "198.51.100.0/25", false},
		{pattern("198.51.100.0/24"), "198.51.0.0/16", false},
		{pattern("198.51.100.0/24", 25, 0), "198.51.100.0/24", false},
		{pattern("198.51.100.0/24", 25, 0), "198.51.100.7/32", true},
		{pattern("198.51.100.0/24", 0, 28), "198.51.100.0/24", true},
		{pattern("198.51.100.0/24", 0, 28), "198.51.100.16/28", true},
		{pattern("198.51.100.0/24", 0, 28), "198.51.100.16/29", false},
		{pattern("198.51.100.0/24", 26, 28), "198.51.100.0/25", false},
		{pattern("198.51.100.0/24", 26, 28), "198.51.101.0/26", false},
	} {
		require.Equal(t, c.want, matches([]config.PrefixPattern{c.pattern}, netip.MustParsePrefix(c.prefix)), "%+v and %s", c.pattern, c.prefix)
	}
	require.False(t, matches(nil, netip.MustParsePrefix("0.0.0.0/0")))
}

func TestRefused(t *testing.T) {
	ranges := newRefusal(refusing("203.0.113.7/32", "10.244.3.0/24", "10.244.0.0/16", "10.244.9.0/24", "fd44::/16"))
	for prefix, want := range map[string]bool{
		"0.0.0.0/0": false, "::/0": false,
		"10.244.0.0/16": true, "10.244.7.0/24": true, "10.244.200.0/24": true, "10.0.0.0/8": false, "10.243.0.0/16": false,
		"203.0.113.7/32": true, "203.0.113.0/24": false, "203.0.113.8/32": false,
		"fd44:1::/32": true, "fd00::/8": false, "2001:db8::/32": false,
		"127.0.0.1/32": true, "169.254.1.0/24": true, "224.0.0.0/4": true, "240.0.0.0/8": true, "0.0.0.0/8": true, "64.0.0.0/2": false,
		"::1/128": true, "fe80::/64": true, "ff02::/16": true, "::ffff:10.0.0.0/104": true, "2000::/3": false,
	} {
		p := netip.MustParsePrefix(prefix)
		require.Equal(t, want, ranges.covers(p), prefix)
	}
}

func TestBestNextHops(t *testing.T) {
	via := func(i int) plan.NextHop {
		return plan.NextHop{Gateway: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Device: "eth1"}
	}
	base := candidate{localPref: 100, asLen: 2, firstAS: 65001, med: 10}
	with := func(i int, change func(*candidate)) candidate {
		c := base
		c.nextHop = via(i)
		if change != nil {
			change(&c)
		}
		return c
	}
	for name, c := range map[string]struct {
		paths []candidate
		want  []int
	}{
		"none":                    {nil, nil},
		"tie":                     {[]candidate{with(2, nil), with(1, nil)}, []int{1, 2}},
		"same next hop twice":     {[]candidate{with(1, nil), with(1, nil)}, []int{1}},
		"other AS, same length":   {[]candidate{with(1, nil), with(2, func(c *candidate) { c.firstAS = 65002 })}, []int{1, 2}},
		"local preference":        {[]candidate{with(1, nil), with(2, func(c *candidate) { c.localPref, c.asLen = 200, 9 })}, []int{2}},
		"shorter AS path":         {[]candidate{with(1, nil), with(2, func(c *candidate) { c.asLen = 1 })}, []int{2}},
		"lower origin":            {[]candidate{with(1, func(c *candidate) { c.origin = 2 }), with(2, nil)}, []int{2}},
		"lower MED":               {[]candidate{with(1, nil), with(2, func(c *candidate) { c.med = 5 })}, []int{2}},
		"MED of another AS":       {[]candidate{with(1, nil), with(2, func(c *candidate) { c.med, c.firstAS = 5, 65002 })}, []int{1, 2}},
		"external over internal":  {[]candidate{with(1, nil), with(2, func(c *candidate) { c.internal = true })}, []int{1}},
		"restarting peer's last":  {[]candidate{with(1, func(c *candidate) { c.stale, c.localPref = true, 300 }), with(2, nil)}, []int{2}},
		"only a restarting peer":  {[]candidate{with(1, func(c *candidate) { c.stale = true })}, []int{1}},
		"internal when it is all": {[]candidate{with(1, func(c *candidate) { c.internal = true })}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			var want []plan.NextHop
			for _, i := range c.want {
				want = append(want, via(i))
			}
			for range 5 {
				rand.Shuffle(len(c.paths), func(i, j int) { c.paths[i], c.paths[j] = c.paths[j], c.paths[i] })
				require.Equal(t, want, bestNextHops(c.paths))
			}
		})
	}
	var many []candidate
	for i := range 40 {
		many = append(many, with(i, nil))
	}
	require.Len(t, bestNextHops(many), maxNextHops)
}

func TestNewCandidate(t *testing.T) {
	mp := func(family bgp.Family, hops ...string) bgp.PathAttributeInterface {
		var addrs []netip.Addr
		for _, h := range hops {
			addrs = append(addrs, netip.MustParseAddr(h))
		}
		prefix := netip.MustParsePrefix("0.0.0.0/0")
		if family == bgp.RF_IPv6_UC {
			prefix = netip.MustParsePrefix("::/0")
		}
		nlri, err := bgp.NewIPAddrPrefix(prefix)
		require.NoError(t, err)
		a, err := bgp.NewPathAttributeMpReachNLRI(family, []bgp.PathNLRI{{NLRI: nlri}}, addrs...)
		require.NoError(t, err)
		return a
	}
	v4 := func(hop string) bgp.PathAttributeInterface {
		a, err := bgp.NewPathAttributeNextHop(netip.MustParseAddr(hop))
		require.NoError(t, err)
		return a
	}
	near := peer("10.0.1.1", "red1")
	far := peer("10.9.9.9", "red1", func(p *plan.Peer) { p.EBGPMultiHop, p.Device = 3, "" })
	internal := peer("10.0.1.1", "red1", func(p *plan.Peer) { p.ASN = 64512 })
	for name, c := range map[string]struct {
		peer   plan.Peer
		family bgp.Family
		attr   bgp.PathAttributeInterface
		want   string // gateway and device; empty: no use
	}{
		"IPv4":                         {near, bgp.RF_IPv4_UC, v4("10.0.1.1"), "10.0.1.1 red1"},
		"third party":                  {near, bgp.RF_IPv4_UC, v4("10.0.1.9"), "10.0.1.9 red1"},
		"third party of internal peer": {internal, bgp.RF_IPv4_UC, v4("10.0.7.9"), "10.0.7.9 "},
		"distant":                      {far, bgp.RF_IPv4_UC, v4("10.9.9.9"), "10.9.9.9 "},
		"IPv6 of an IPv4 session":      {near, bgp.RF_IPv6_UC, mp(bgp.RF_IPv6_UC, "fd00:1::1", "fe80::1"), "fd00:1::1 red1"},
		"link-local only":              {near, bgp.RF_IPv6_UC, mp(bgp.RF_IPv6_UC, "fe80::1"), "fe80::1 red1"},
		"IPv4 via IPv6":                {near, bgp.RF_IPv4_UC, mp(bgp.RF_IPv4_UC, "fd00:1::1"), "fd00:1::1 red1"},
		"mapped":                       {near, bgp.RF_IPv6_UC, mp(bgp.RF_IPv6_UC, "::ffff:10.0.1.1"), ""},
		"IPv6 of a distant session":    {far, bgp.RF_IPv6_UC, mp(bgp.RF_IPv6_UC, "2001:db8::1"), "2001:db8::1 "},
		"global beside link-local":     {peer("fe80::1%red1", "red1"), bgp.RF_IPv4_UC, mp(bgp.RF_IPv4_UC, "2001:db8::1"), "fe80::1 red1"},
		"link-local from afar":         {far, bgp.RF_IPv6_UC, mp(bgp.RF_IPv6_UC, "fe80::1"), ""},
		"unspecified":                  {near, bgp.RF_IPv4_UC, v4("0.0.0.0"), ""},
		"loopback":                     {near, bgp.RF_IPv4_UC, v4("127.0.0.1"), ""},
		"multicast":                    {near, bgp.RF_IPv4_UC, v4("224.0.0.1"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := newCandidate(&apiutil.Path{Family: c.family, PeerASN: c.peer.ASN, Attrs: []bgp.PathAttributeInterface{c.attr}}, 64512)
			ok := got.resolve(c.peer.Address, &c.peer)
			require.Equal(t, c.want != "", ok)
			if ok {
				require.Equal(t, c.want, fmt.Sprintf("%s %s", got.nextHop.Gateway, got.nextHop.Device))
			}
		})
	}
}

func TestOnLink(t *testing.T) {
	near := peer("10.0.1.1", "red1")
	near.OnLink = []netip.Prefix{
		netip.MustParsePrefix("10.0.1.2/24"), netip.MustParsePrefix("10.0.3.0/31"), netip.MustParsePrefix("fd00:1::2/64"), netip.MustParsePrefix("fe80::2/64"),
	}
	for gateway, want := range map[string]bool{
		"10.0.1.1": true, "10.0.1.9": true, "10.0.2.1": false, "10.9.9.9": false, "fd00:1::9": true, "fd00:2::1": false, "fe80::1": true,
		"10.0.1.2": false, "fd00:1::2": false, "10.0.1.0": false, "10.0.1.255": false, "10.0.3.1": true, "10.0.3.0": false,
	} {
		require.Equal(t, want, onLink(&near, netip.MustParseAddr(gateway)), gateway)
	}
	far := near
	far.Address = netip.MustParseAddr("10.255.0.1")
	require.True(t, onLink(&far, far.Address), "a static route may lead to it")
	far.OnLink = nil
	require.True(t, onLink(&far, netip.MustParseAddr("10.9.9.9")), "it is not known what is")
}

func TestPoliciesDenyByDefault(t *testing.T) {
	addr := netip.MustParseAddr("10.0.1.1")
	request := policies(map[netip.Addr]exchange{
		addr:                            {Export: export{NextHop4: netip.MustParseAddr("10.0.1.2")}},
		netip.MustParseAddr("10.0.2.1"): {Silent: true, Export: export{NextHop4: addr}},
	})
	var names []string
	for _, p := range request.Policies {
		for _, s := range p.Statements {
			names = append(names, s.Name)
		}
	}
	// No family without a next hop, nothing for a silent peer, and no peer's route comes in.
	require.Equal(t, []string{"in-own", "out-AFI_IP-10.0.1.1", "out-standby-AFI_IP-10.0.1.1", "out-shutdown-AFI_IP-10.0.1.1"}, names)
}

func TestSecretsDoNotShow(t *testing.T) {
	s := session{password: "canary"}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		require.NotContains(t, fmt.Sprintf(format, s), "canary")
	}
}

// TestNeighbourhood has peers tell prefixes around, inside and beside what a node reaches without them.
func TestNeighbourhood(t *testing.T) {
	prefix := netip.MustParsePrefix
	n := neighbourhood{
		subnets: []netip.Prefix{prefix("10.1.0.0/24"), prefix("172.31.0.0/24"), prefix("fd31::/64")},
		beyond:  []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("172.31.7.9"), netip.MustParseAddr("fd32::1")},
	}
	all := []config.PrefixPattern{pattern("0.0.0.0/0", 0, 32), pattern("::/0", 0, 128)}
	inside := func(p string) flaw { return flaw{inside: prefix(p)} }
	around := func(a string) flaw { return flaw{around: netip.MustParseAddr(a)} }
	for told, want := range map[string]flaw{
		"0.0.0.0/0": {}, "::/0": {}, "10.0.0.0/13": {}, "10.1.0.0/23": {}, "172.31.0.0/22": {}, "fd31::/48": {}, "192.0.2.0/24": {}, "10.1.1.0/24": {},
		"10.1.0.0/24": inside("10.1.0.0/24"), "10.1.0.128/25": inside("10.1.0.0/24"), "172.31.0.12/31": inside("172.31.0.0/24"),
		"172.31.0.0/28": inside("172.31.0.0/24"), "172.31.0.255/32": inside("172.31.0.0/24"), "fd31::12/127": inside("fd31::/64"),
		"10.9.0.1/32": around("10.9.0.1"), "10.8.0.0/15": around("10.9.0.1"), "0.0.0.0/1": around("10.9.0.1"), "128.0.0.0/1": around("172.31.7.9"),
		"172.31.7.8/31": around("172.31.7.9"), "172.31.7.0/29": {}, "fd32::/127": around("fd32::1"), "fd32::2/127": {}, "8000::/1": around("fd32::1"),
	} {
		require.Equal(t, want, n.flaw(prefix(told), all), told)
	}
	// A prefix around an address beyond the links is learned where the operator names it, one inside of a subnet never.
	for told, patterns := range map[string][]config.PrefixPattern{
		"10.8.0.0/15":    {pattern("10.8.0.0/15")},
		"10.9.0.1/32":    {pattern("0.0.0.0/0", 0, 32), pattern("10.9.0.1/32")},
		"172.31.7.8/31":  {pattern("172.31.7.8/31", 31, 31)},
		"172.31.0.12/31": {pattern("172.31.0.12/31")},
		"128.0.0.0/1":    {pattern("128.0.0.0/1", 0, 32)},
	} {
		want := flaw{}
		switch told {
		case "172.31.0.12/31":
			want = inside("172.31.0.0/24")
		case "128.0.0.0/1":
			want = around("172.31.7.9")
		}
		require.Equal(t, want, n.flaw(prefix(told), patterns), told)
	}
	require.Equal(t, flaw{}, neighbourhood{}.flaw(prefix("10.1.0.0/24"), all))
}
