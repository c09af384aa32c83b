package plan_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// TestWhereNextHopsMayBe plans peers of every kind in one network with two links.
func TestWhereNextHopsMayBe(t *testing.T) {
	s, _ := story(t, "testdata/one-service", "a")
	prefixes := func(all ...string) (list []netip.Prefix) {
		for _, p := range all {
			list = append(list, netip.MustParsePrefix(p))
		}
		return list
	}
	link := func(name, master string, addrs ...string) plan.Link {
		return plan.Link{Name: name, Up: true, Master: master, Addrs: prefixes(addrs...)}
	}
	vrf := link("vrf-red", "", "10.255.0.11/32")
	vrf.VRFTable = 1001
	s.Facts.Links = []plan.Link{
		link("eth1", "", "10.0.0.11/24"), link("eth2", "vrf-red", "10.1.0.11/24", "2001:db8:1::11/64"), link("eth3", "vrf-red", "10.2.0.11/24", "10.2.0.12/32"),
		link("lo", "", "127.0.0.1/8"), vrf,
	}
	first, both := prefixes("10.1.0.11/24", "2001:db8:1::11/64"), prefixes("10.1.0.11/24", "2001:db8:1::11/64", "10.2.0.11/24")
	at := func(address string, change func(*config.Peer)) config.Peer {
		p := config.Peer{Address: netip.MustParseAddr(address), ASN: 64601}
		change(&p)
		return p
	}
	for name, c := range map[string]struct {
		peer config.Peer
		want []netip.Prefix
	}{
		"external":            {at("10.1.0.1", func(*config.Peer) {}), first},
		"external by any AS":  {at("10.1.0.1", func(p *config.Peer) { p.ASN, p.DynamicASN = 0, config.DynamicExternal }), first},
		"unnumbered":          {config.Peer{Interface: "eth2", ASN: 64601}, first},
		"internal":            {at("10.1.0.1", func(p *config.Peer) { p.ASN = 64512 }), both},
		"internal by our AS":  {at("10.1.0.1", func(p *config.Peer) { p.ASN, p.DynamicASN = 0, config.DynamicInternal }), both},
		"distant":             {at("10.9.9.9", func(p *config.Peer) { p.EBGPMultiHop = 3 }), both},
		"not known to be far": {at("10.9.9.9", func(*config.Peer) {}), both},
		"on this node":        {at("10.255.0.11", func(p *config.Peer) { p.ASN = 64512 }), both},
	} {
		t.Run(name, func(t *testing.T) {
			configured := *s.Config
			configured.Networks = []config.Network{s.Config.Networks[0]}
			configured.Networks[0].Peers = []config.Peer{c.peer}
			s.Config = &configured
			desired, _ := plan.Build(s)
			require.Len(t, desired.Speakers, 1)
			require.Equal(t, c.want, desired.Speakers[0].Peers[0].OnLink)
		})
	}
}

// TestNextHopIsInThePeersSubnet announces an address that the peer reaches: neither one of another subnet nor a virtual one that moves.
func TestNextHopIsInThePeersSubnet(t *testing.T) {
	s, _ := story(t, "testdata/one-service", "a")
	s.Facts.Links = []plan.Link{
		{Name: "eth1", Up: true, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.11/24"), netip.MustParsePrefix("fd00::11/64")}},
		{Name: "eth2", Up: true, Master: "vrf-red", Addrs: []netip.Prefix{
			netip.MustParsePrefix("10.0.7.5/24"), netip.MustParsePrefix("10.1.0.5/32"), netip.MustParsePrefix("10.1.0.11/24"),
			netip.MustParsePrefix("10.1.0.12/24"), netip.MustParsePrefix("2001:db8::5/128"), netip.MustParsePrefix("2001:db8:1::11/64"),
			netip.MustParsePrefix("fe80::2/64"),
		}},
		{Name: "vrf-red", Up: true, VRFTable: 1001},
	}
	configured := *s.Config
	configured.Networks = []config.Network{{Name: "red", VRF: "vrf-red", Peers: []config.Peer{
		{Address: netip.MustParseAddr("10.1.0.1"), ASN: 64601}, {Interface: "eth2", ASN: 64601},
	}}}
	s.Config = &configured
	desired, _ := plan.Build(s)
	require.Len(t, desired.Speakers, 1)
	for i, want := range [][2]string{{"10.1.0.11", "2001:db8:1::11"}, {"10.0.7.5", "2001:db8:1::11"}} {
		p := desired.Speakers[0].Peers[i]
		require.Equal(t, want, [2]string{p.NextHop4.String(), p.NextHop6.String()}, "peer %s", p.PeerName())
	}
}

// TestWhatLearnedRoutesMustNotLeadAway plans a network of each kind: each guards the addresses reached by its own table.
func TestWhatLearnedRoutesMustNotLeadAway(t *testing.T) {
	s, _ := story(t, "testdata/one-service", "a")
	prefixes := func(all ...string) (list []netip.Prefix) {
		for _, p := range all {
			list = append(list, netip.MustParsePrefix(p))
		}
		return list
	}
	addresses := func(all ...string) (list []netip.Addr) {
		for _, a := range all {
			list = append(list, netip.MustParseAddr(a))
		}
		return list
	}
	s.Facts.Links = []plan.Link{
		{Name: "eth1", Up: true, Addrs: prefixes("10.0.0.11/24", "fd00::11/64", "fe80::1/64")},
		{Name: "eth2", Up: true, Master: "vrf-red", Addrs: prefixes("10.1.0.11/24", "10.1.0.12/25", "2001:db8:1::11/64", "fe80::2/64")},
		{Name: "eth4", Up: true, Addrs: prefixes("10.4.0.11/24")},
		{Name: "kube-ipvs0", Up: true, Addrs: prefixes("10.96.0.1/16")},
		{Name: "lo", Up: true, Addrs: prefixes("127.0.0.1/8", "10.255.0.11/32")},
		{Name: "vrf-red", Up: true, VRFTable: 1001, Addrs: prefixes("10.255.1.11/32")},
	}
	peer := func(address string) config.Peer {
		return config.Peer{Address: netip.MustParseAddr(address), ASN: 64601}
	}
	configured := *s.Config
	configured.Networks = []config.Network{
		{Name: config.DefaultNetwork, Peers: []config.Peer{peer("10.0.0.1"), peer("10.9.0.1"), peer("127.0.0.1"), peer("10.255.0.11")}},
		{Name: "red", VRF: "vrf-red", Peers: []config.Peer{peer("10.1.0.1"), peer("10.9.0.2"), {Interface: "eth2", ASN: 64601}}},
		{Name: "bare", Table: 77, Interfaces: []config.Interface{{Name: "eth4"}}, Peers: []config.Peer{peer("10.4.0.1"), peer("10.9.0.4")}},
	}
	s.Config = &configured
	s.APIServer = addresses("10.0.0.250", "192.0.2.250")
	far := s.Objects.Nodes.At("b")
	far.Internal = addresses("10.50.0.12", "fd50::12")
	s.Objects.Nodes = s.Objects.Nodes.With("b", far)
	desired, _ := plan.Build(s)
	require.Len(t, desired.Speakers, 3)
	for i, want := range []plan.Speaker{
		{Network: "bare", Subnets: prefixes("10.4.0.0/24")},
		{
			Network: "default", Subnets: prefixes("10.0.0.0/24", "10.4.0.0/24", "fd00::/64"),
			Guarded: addresses("10.9.0.1", "10.9.0.4", "10.50.0.12", "192.0.2.250", "fd50::12"),
		},
		{Network: "red", Subnets: prefixes("10.1.0.0/24", "2001:db8:1::/64"), Guarded: addresses("10.9.0.2")},
	} {
		have := desired.Speakers[i]
		require.Equal(t, want.Network, have.Network)
		require.Equal(t, want.Subnets, have.Subnets, want.Network)
		require.Equal(t, want.Guarded, have.Guarded, want.Network)
	}
}

// TestAPIServerIsNoIngressIP refuses an ingress IP at which the API server has answered.
func TestAPIServerIsNoIngressIP(t *testing.T) {
	s, _ := story(t, "testdata/one-service", "b")
	s.APIServer = []netip.Addr{netip.MustParseAddr("203.0.113.10")}
	desired, problems := plan.Build(s)
	require.Len(t, problems, 2, "the other one is of pods without a source")
	require.Equal(t, plan.ReasonInvalidAddress, problems[1].Reason)
	require.Equal(t, "203.0.113.10", problems[1].Value)
	require.Equal(t, 1, desired.Speakers[0].Announce.Len(), "the IPv6 one")
}

// sourcesByPod returns the sources that the plan for a node names.
func sourcesByPod(s plan.Snapshot) map[string]string {
	desired, _ := plan.Build(s)
	all := map[string]string{}
	for e := range desired.DataPlane.Endpoints.All() {
		if e.Source.IsValid() {
			all[e.Addr.String()] = e.Source.String()
		}
	}
	return all
}

// TestSourceOfTheVRFDevice: pods that leave with their network's source get the address of the VRF device, or without a VRF that of the loopback
// device, where no interface has one of the family, and are masqueraded otherwise.
func TestSourceOfTheVRFDevice(t *testing.T) {
	none := map[string]string{}
	for name, c := range map[string]struct {
		uplink, device []string
		want           map[string]string // the source by pod, unless it is masqueraded
	}{
		"unnumbered":       {[]string{"fe80::11/64"}, []string{"127.0.0.1/8", "10.255.0.11/32", "fd0a::11/128"}, map[string]string{"10.244.1.5": "10.255.0.11", "fd44:1::5": "fd0a::11"}},
		"with one family":  {[]string{"10.1.0.11/24"}, []string{"10.255.0.11/32", "fd0a::11/128"}, map[string]string{"fd44:1::5": "fd0a::11"}},
		"with both":        {[]string{"10.1.0.11/24", "fd01::11/64"}, []string{"10.255.0.11/32"}, none},
		"without any":      {nil, nil, none},
		"loopback address": {nil, []string{"127.0.0.1/8"}, none},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := story(t, "testdata/network-mode", "a")
			prefixes := func(all []string) (list []netip.Prefix) {
				for _, p := range all {
					list = append(list, netip.MustParsePrefix(p))
				}
				return list
			}
			links := []plan.Link{
				{Name: "eth1", Up: true, Addrs: prefixes([]string{"10.0.0.11/24", "fd00::11/64"})},
				{Name: "eth2", Up: true, Master: "vrf-red", Addrs: prefixes(c.uplink)},
				{Name: "vrf-red", Up: true, VRFTable: 1001, Addrs: prefixes(c.device)},
			}
			s.Facts.Links = links
			require.Equal(t, c.want, sourcesByPod(s))

			bare := *s.Config
			bare.Networks = slices.Clone(bare.Networks)
			bare.Networks[slices.IndexFunc(bare.Networks, func(n config.Network) bool { return n.Name == "red" })].VRF = ""
			s.Config = &bare
			links[1].Master = ""
			links[2] = plan.Link{Name: "lo", Up: true, Addrs: links[2].Addrs}
			require.Equal(t, c.want, sourcesByPod(s), "without a VRF")
			s.Facts.Links = slices.Delete(links, 1, 2)
			require.Empty(t, sourcesByPod(s), "without the uplink")
		})
	}
}

// TestRouterID: the InternalIP of a Node that is missing for the moment stays the router ID. A Node without an IPv4 address has a
// hash of its name.
func TestRouterID(t *testing.T) {
	last, hash := netip.MustParseAddr("10.0.0.99"), config.RouterIDOf("a")
	s, _ := story(t, "testdata/one-service", "a")
	var p plan.Planner
	changed := cluster.Everything()
	is := func(want netip.Addr) {
		t.Helper()
		full, _ := plan.Build(s)
		desired, _ := p.Plan(s, changed)
		require.Equal(t, full.Speakers, desired.Speakers)
		require.NotEmpty(t, desired.Speakers)
		for _, speaker := range desired.Speakers {
			require.Equal(t, want.String(), speaker.RouterID.String())
		}
	}
	own := s.Objects.Nodes.At("a")
	s.InternalIPv4 = last
	is(own.Internal[0])
	s.Objects.Nodes = s.Objects.Nodes.Without("a")
	is(last)
	changed, s.InternalIPv4 = cluster.Changed{}, own.Internal[0]
	is(own.Internal[0])
	changed = cluster.Everything()
	own.Internal = []netip.Addr{netip.MustParseAddr("fd00::11")}
	s.Objects.Nodes = s.Objects.Nodes.With("a", own)
	is(hash)
	s.Objects.Nodes, s.InternalIPv4 = s.Objects.Nodes.Without("a"), netip.Addr{}
	is(hash)
	configured := *s.Config
	configured.BGP.RouterID = netip.MustParseAddr("192.0.2.1")
	s.Config, s.InternalIPv4 = &configured, last
	is(configured.BGP.RouterID)
}
