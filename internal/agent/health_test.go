package agent

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

func TestNetworkStates(t *testing.T) {
	c := &config.Config{Networks: []config.Network{
		{Name: "red", Peers: []config.Peer{{}, {}}}, {Name: "green", Peers: []config.Peer{{}}}, {Name: "blue"},
	}}
	path := func(id plan.PathID, name string, table uint32) plan.Path {
		return plan.Path{ID: id, Key: plan.PathKey{Kind: plan.PathNetwork, Name: name}, Table: table}
	}
	p := &plan.NodePlan{Absent: []plan.Absence{{Network: "away", Why: "VRF device vrf-away does not exist"}}, DataPlane: plan.DataPlane{Paths: []plan.Path{
		path(1, "red", 101), path(2, "green", 102), path(3, "blue", 103), path(4, "gone", 0), path(6, "away", 106),
		{ID: 5, Key: plan.PathKey{Kind: plan.PathSteer, Name: "red"}, Table: 105},
	}}}
	routed := map[uint32]plan.Families{101: {IPv4: true}, 103: {IPv4: true, IPv6: true}}
	for _, test := range []struct {
		up         []bool // sessions of red, in the order of its peers
		red        cluster.NetworkState
		incomplete bool
	}{
		{nil, cluster.NetworkState{Usable: true, IPv4: true, Sessions: 2}, true}, // its speaker did not start
		{[]bool{true, false}, cluster.NetworkState{Usable: true, IPv4: true, Sessions: 2, Up: 1}, true},
		{[]bool{true, true}, cluster.NetworkState{Usable: true, IPv4: true, Sessions: 2, Up: 2}, false},
	} {
		sessions := []bgp.Session{{Network: "green", Up: true}, {Network: "removed", Up: true}}
		for _, up := range test.up {
			sessions = append(sessions, bgp.Session{Network: "red", Up: up})
		}
		states, incomplete := networkStates(c, p, routed, sessions)
		require.Equal(t, map[string]cluster.NetworkState{
			"red":   test.red,
			"green": {Usable: true, Sessions: 1, Up: 1},
			"blue":  {Usable: true, IPv4: true, IPv6: true},
			"gone":  {},
			"away":  {}, // not eligible, although it has no peers
		}, states)
		require.False(t, states["away"].Fit())
		require.Equal(t, test.incomplete, incomplete)
		require.Equal(t, test.red.Up > 0, states["red"].Fit())
	}
}

func TestEveryPeer(t *testing.T) {
	c := &config.Config{Networks: []config.Network{
		{Name: "red", Peers: []config.Peer{{Address: netip.MustParseAddr("10.1.0.1"), ASN: 1}, {Interface: "eth2"}}},
		{Name: "blue", Peers: []config.Peer{{Address: netip.MustParseAddr("10.2.0.1"), ASN: 2}}},
	}}
	p := &plan.NodePlan{Absent: []plan.Absence{{Network: "blue", Why: "it is down"}}}
	known := []bgp.Session{{Network: "red", Peer: "10.1.0.1", Up: true}}
	require.Equal(t, []bgp.Session{
		{Network: "blue", Peer: "10.2.0.1", Address: netip.MustParseAddr("10.2.0.1"), ASN: 2, State: bgp.StateWaiting, LastError: "it is down"},
		known[0],
		{Network: "red", Peer: "eth2", State: bgp.StateWaiting},
	}, everyPeer(c, p, known))
	require.Len(t, everyPeer(c, nil, nil), 3, "before there is a plan too")
}
