package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
)

func TestFlaps(t *testing.T) {
	problems := flaps("a",
		[]bfd.Session{{Node: "b", State: bfd.Up, Losses: 2}, {Node: "c", State: bfd.Up, Losses: 5, Slowed: 4}},
		[]bgp.Session{{Network: "red", Peer: "10.1.0.1", BFD: "up"}, {Network: "red", Peer: "10.1.0.2", BFD: "up", BFDSlowed: 16}, {Network: "blue", Peer: "eth3"}},
	)
	var told []cluster.Problem
	for _, p := range problems {
		require.Contains(t, p.Message, map[string]string{"c": "4 times the configured", "10.1.0.2": "16 times the configured"}[p.Value])
		p.Message = ""
		told = append(told, p)
	}
	require.Equal(t, []cluster.Problem{
		{Kind: "Node", Object: "a", Field: "failover.bfd", Value: "c", Reason: reasonBFDFlaps},
		{Kind: "Network", Object: "red", Field: "peers.bfdProfile", Value: "10.1.0.2", Reason: reasonBFDFlaps},
	}, told)
}
