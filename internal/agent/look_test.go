package agent

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/plan"
)

func TestFilling(t *testing.T) {
	var f filling
	told := 0
	for _, entries := range []uint32{100, 799, 800, 801, 810, 849, 850, 880, 801, 800, 790, 710, 700, 699, 750, 799} {
		if f.take(conntrack.Connections{Entries: entries, Limit: 1000}) {
			told++
			require.Equal(t, entries, f.Entries)
		}
	}
	require.Equal(t, 5, told, "at 800, 850, 800, 750 or less, and when it is over")
	require.False(t, f.is)
	require.True(t, f.take(conntrack.Connections{Entries: 799, Limit: 900}))
	require.True(t, f.take(conntrack.Connections{Entries: 799, Limit: 950}), "the operator raises it, not enough")
	require.True(t, f.is)
}

func TestRefusedProblems(t *testing.T) {
	p := &plan.NodePlan{Node: "a", DataPlane: plan.DataPlane{Paths: []plan.Path{
		{ID: 1, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "blue"}, Table: 1002},
		{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}, Table: 1001},
		{ID: 3, Key: plan.PathKey{Kind: plan.PathSteer, Name: "b"}, Table: 794603},
	}}}
	require.Empty(t, refusedProblems(p, nil))
	dst, via := netip.MustParsePrefix("198.51.100.0/24"), []plan.NextHop{{Gateway: netip.MustParseAddr("10.9.9.9"), Device: "eth2"}}
	problems := refusedProblems(p, []kernel.Refused{
		{Table: 1001, Dst: dst, NextHops: via, Learned: true, Reason: kernel.ReasonNextHopRefused, Err: errors.New("network is unreachable")},
		{Table: 1001, Dst: dst, NextHops: via, Learned: true, Reason: kernel.ReasonRouteCollides, Err: errors.New("file exists")},
		{Table: 794603, Dst: dst, NextHops: via, Reason: kernel.ReasonDeviceDown, Err: errors.New("device eth2: network is down")},
		{Table: 7, Dst: dst, Reason: kernel.ReasonDeviceDown, Err: errors.New("of no path")},
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
	}, problems)
}
