package agent

import (
	"fmt"
	"strconv"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// reasonNotListening means that the speaker does not accept connections of a peer, although bgp.listenPort is set.
const reasonNotListening cluster.Reason = "NotListening"

// unheard returns a problem for each peer whose connections the speaker does not accept.
func unheard(c *config.Config, sessions []bgp.Session) (problems []cluster.Problem) {
	for _, s := range sessions {
		if s.Unheard != "" {
			problems = append(problems, cluster.Problem{
				Kind: "Network", Object: s.Network, Field: "bgp.listenPort", Value: strconv.Itoa(c.BGP.ListenPort),
				Reason: reasonNotListening,
				Message: fmt.Sprintf("node %s does not accept connections of peer %s, but goes on dialling it: %s",
					c.Node, s.Peer, s.Unheard),
			})
		}
	}
	return problems
}
