package agent

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/plan"
)

func TestFilling(t *testing.T) {
	var f filling
	told := 0
	for _, entries := range []uint32{100, 799, 800, 801, 810, 849, 850, 880, 801, 800, 790, 710, 700, 699, 750, 799} {
		if f.take(kernel.Connections{Entries: entries, Limit: 1000}) {
			told++
			require.Equal(t, entries, f.Entries)
		}
	}
	require.Equal(t, 5, told, "at 800, 850, 800, 750 or less, and when it is over")
	require.False(t, f.is)
	require.True(t, f.take(kernel.Connections{Entries: 799, Limit: 900}))
	require.True(t, f.take(kernel.Connections{Entries: 799, Limit: 950}), "the operator raises it, not enough")
	require.True(t, f.is)
}

func TestRefusedProblems(t *testing.T) {
	p := &plan.NodePlan{Node: "a", DataPlane: plan.DataPlane{Paths: []plan.Path{
		{ID: 1, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "blue"}, Table: 1002},
		{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}, Table: 1001},
		{ID: 3, Key: plan.PathKey{Kind: plan.PathSteer, Name: "b"}, Table: 794603},
	}}}
	require.Empty(t, refusedProblems(p, nil))
	problems := refusedProblems(p, map[uint32]kernel.Refused{1001: {
		Table: 1001, Dst: netip.MustParsePrefix("198.51.100.0/24"), NextHops: []plan.NextHop{{Gateway: netip.MustParseAddr("10.9.9.9")}}, Err: errors.New("network is unreachable"),
	}})
	require.Len(t, problems, 1)
	require.Equal(t, reasonNextHopRefused, problems[0].Reason)
	require.Equal(t, "red", problems[0].Object)
	require.Equal(t, "198.51.100.0/24 via 10.9.9.9", problems[0].Value)
	require.Contains(t, problems[0].Message, "network is unreachable")
}
