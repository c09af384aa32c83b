package agent

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
)

func TestFlaps(t *testing.T) {
	problems := flaps("a",
		[]bfd.Session{{Node: "b", State: bfd.Up, Losses: 2}, {Node: "c", State: bfd.Up, Losses: 5, Slowed: 4}},
		[]bgp.Session{{Network: "red", Peer: "10.1.0.1", BFD: "up"}, {Network: "red", Peer: "10.1.0.2", BFD: "up", BFDSlowed: 16}, {Network: "blue", Peer: "eth3"}},
	)
	var found []cluster.Problem
	for _, p := range problems {
		require.Contains(t, p.Message, map[string]string{"c": "4 times the configured", "10.1.0.2": "16 times the configured"}[p.Value])
		p.Message = ""
		found = append(found, p)
	}
	require.Equal(t, []cluster.Problem{
		{Kind: "Node", Object: "a", Field: "failover.bfd", Value: "c", Reason: reasonBFDFlaps},
		{Kind: "Network", Object: "red", Field: "peers.bfdProfile", Value: "10.1.0.2", Reason: reasonBFDFlaps},
	}, found)
}

func TestRefusedProblems(t *testing.T) {
	p := &plan.NodePlan{Node: "a", DataPlane: plan.DataPlane{Paths: []plan.Path{
		{ID: 1, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "blue"}, Table: 1002},
		{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}, Table: 1001},
		{ID: 3, Key: plan.PathKey{Kind: plan.PathSteer, Name: "b"}, Table: 794603},
		{ID: 4, Key: plan.PathKey{Kind: plan.PathSteer, Name: "c"}, Table: 794604, Tunneled: true},
	}}}
	require.Empty(t, refusedProblems(p, nil))
	dst, via := netip.MustParsePrefix("198.51.100.0/24"), []plan.NextHop{{Gateway: netip.MustParseAddr("10.9.9.9"), Device: "eth2"}}
	problems := refusedProblems(p, []route.Refused{
		{Table: 1001, Dst: dst, NextHops: via, Learned: true, Reason: route.ReasonNextHopRefused, Err: errors.New("network is unreachable")},
		{Table: 1001, Dst: dst, NextHops: via, Learned: true, Reason: route.ReasonRouteCollides, Err: errors.New("file exists")},
		{Table: 794603, Dst: dst, NextHops: via, Reason: route.ReasonDeviceDown, Err: errors.New("device eth2: network is down")},
		{
			Table: 794604, Dst: netip.MustParsePrefix("::/0"), NextHops: []plan.NextHop{{Gateway: netip.MustParseAddr("fe80::2"), Device: "egressway"}},
			Reason: route.ReasonNextHopRefused, Err: errors.New("permission denied"),
		},
		{Table: 7, Dst: dst, Reason: route.ReasonDeviceDown, Err: errors.New("of no path")},
	})
	const value = "198.51.100.0/24 via 10.9.9.9 dev eth2"
	require.Equal(t, []cluster.Problem{
		{
			Kind: "Network", Object: "red", Field: "peers", Value: value, Reason: "NextHopRefused",
			Message: "node a leaves this route out: network is unreachable; the router should announce a next hop on the link, or a route without a gateway must lead to this one",
		},
		{
			Kind: "Network", Object: "red", Field: "peers", Value: value, Reason: "RouteCollides",
			Message: "node a leaves this route out: file exists; another program's route in table 1001 has this prefix and metric, and stays: remove it, or give it another metric",
		},
		{
			Kind: "Node", Object: "b", Field: "routes", Value: value, Reason: "DeviceDown",
			Message: "node a leaves this route out: device eth2: network is down; set the device up",
		},
		{
			Kind: "Node", Object: "c", Field: "routes", Value: "::/0 via fe80::2 dev egressway", Reason: "NextHopRefused",
			Message: "node a leaves this route out: permission denied; IPv6 packets need IPv6 on the tunnel's device: " +
				"set net.ipv6.conf.egressway.disable_ipv6 to 0, or steering.mode to direct",
		},
	}, problems)
}
