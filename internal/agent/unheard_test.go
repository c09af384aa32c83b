package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

func TestUnheard(t *testing.T) {
	c := &config.Config{Node: "a", BGP: config.BGP{ListenPort: 179}}
	require.Equal(t, []cluster.Problem{{
		Kind: "Network", Object: "red", Field: "bgp.listenPort", Value: "179", Reason: reasonNotListening,
		Message: "node a does not accept connections of peer 10.1.0.2, but goes on dialling it: the port is in use",
	}}, unheard(c, []bgp.Session{{Network: "red", Peer: "10.1.0.1"}, {Network: "red", Peer: "10.1.0.2", Unheard: "the port is in use"}}))
}
