package bgp

import (
	"net/netip"
	"strconv"
	"testing"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
)

// TestGoBGPAcceptsCommunities gives GoBGP each community that the configuration accepts, in all of its spellings. GoBGP has names of
// its own for well-known ones, and one that it refuses keeps the whole network from being announced.
func TestGoBGPAcceptsCommunities(t *testing.T) {
	s := server.NewBgpServer()
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.Serve()
	}()
	defer func() {
		s.Stop()
		<-served
	}()
	require.NoError(t, s.StartBgp(t.Context(), &api.StartBgpRequest{Global: &api.Global{Asn: 64512, RouterId: "10.0.0.1", ListenPort: -1}}))
	for _, text := range append(config.WellKnownCommunities(), gracefulShutdown, "0:0", "64512:7", "00064512:00007", "65535:65535") {
		want, err := config.ParseCommunity(text)
		require.NoError(t, err)
		require.NoError(t, s.SetPolicies(t.Context(), policies(map[netip.Addr]exchange{netip.MustParseAddr("10.0.1.1"): {Export: export{
			Advertise: config.Advertise{Communities: []string{text}}, NextHop4: netip.MustParseAddr("10.0.1.2"),
		}}})), text)
		written := strconv.Itoa(int(want>>16)) + ":" + strconv.Itoa(int(want&0xffff))
		found := map[string][]string{}
		require.NoError(t, s.ListPolicy(t.Context(), &api.ListPolicyRequest{Name: exportPolicy}, func(p *api.Policy) {
			for _, one := range p.Statements {
				found[one.Name] = one.GetActions().GetCommunity().GetCommunities()
			}
		}))
		require.Equal(t, map[string][]string{
			"out-AFI_IP-10.0.1.1": {written}, "out-standby-AFI_IP-10.0.1.1": {written}, "out-shutdown-AFI_IP-10.0.1.1": {written, gracefulShutdown},
		}, found, text)
	}
}

// TestPrependedASesFit checks that a standby's prepended ASes fit into GoBGP's 8 bits for every configuration that is valid.
func TestPrependedASesFit(t *testing.T) {
	const most = 250
	_, err := config.Parse("f.yaml", []byte("bgp: {asn: 64512}\nnetworks: [{name: default, peers: [{address: 10.1.0.1, asn: 64601, advertise: {asPathPrepend: "+
		strconv.Itoa(most+1)+"}}]}]\n"))
	require.ErrorContains(t, err, `asPathPrepend: "251": 0 to 250`)
	e := export{Advertise: config.Advertise{ASPathPrepend: most}}
	require.Equal(t, uint32(255), e.actions(netip.MustParseAddr("10.0.1.2"), standbyPath).GetAsPrepend().GetRepeat())
}
