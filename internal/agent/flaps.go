package agent

import (
	"fmt"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
)

// reasonBFDFlaps means that a BFD session was lost repeatedly, and is slower than configured.
const reasonBFDFlaps cluster.Reason = "BFDFlaps"

// flaps returns a problem for each BFD session with a node or router that is slower than configured.
func flaps(node string, nodes []bfd.Session, sessions []bgp.Session) (problems []cluster.Problem) {
	const why = "the session was lost several times within minutes: its intervals are %d times the configured ones, and get shorter after 5 minutes without a loss; "
	for _, s := range nodes {
		if s.Slowed > 0 {
			problems = append(problems, cluster.Problem{
				Kind: "Node", Object: node, Field: "failover.bfd", Value: s.Node, Reason: reasonBFDFlaps,
				Message: fmt.Sprintf(why+"the death of that node is noticed here that much later than configured, or by its Lease; "+
					"find out which of the two nodes stands still or loses packets, or set longer failover.bfd intervals on all nodes", s.Slowed),
			})
		}
	}
	for _, s := range sessions {
		if s.BFDSlowed > 0 {
			problems = append(problems, cluster.Problem{
				Kind: "Network", Object: s.Network, Field: "peers.bfdProfile", Value: s.Peer, Reason: reasonBFDFlaps,
				Message: fmt.Sprintf(why+"a failure of that router is noticed that much later, or after the hold time of BGP; "+
					"find out whether node %s or the router stands still or loses packets, or set longer intervals at both ends", s.BFDSlowed, node),
			})
		}
	}
	return problems
}
