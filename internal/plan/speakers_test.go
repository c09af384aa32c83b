package plan_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// TestWhereNextHopsMayBe has peers of every kind in one network of two links.
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
