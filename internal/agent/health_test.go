package agent

import (
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
	p := &plan.NodePlan{DataPlane: plan.DataPlane{Paths: []plan.Path{
		path(1, "red", 101), path(2, "green", 102), path(3, "blue", 103), path(4, "gone", 0),
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
		}, states)
		require.Equal(t, test.incomplete, incomplete)
		require.Equal(t, test.red.Up > 0, states["red"].Fit())
	}
}
