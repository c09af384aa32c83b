package election

import (
	"fmt"

	"github.com/egressway/egressway/internal/cluster"
)

// obey returns the choice of one object's status. If the Node of the host is gone, the standby is the host before the leader
// confirms it, as for a dead host.
func (e *elector) obey(s Seat, had tenure) Choice {
	_, all, problem := kinds[s.Kind].contender(e, s)
	if problem != nil && problem.Reason == cluster.ReasonNoEligibleNode {
		problem = nil // only the leader knows which Nodes are Ready, and which daemons report
	}
	switch {
	case all: // needs no election
		return Choice{Host: cluster.AllHosts, Term: had.term}
	case e.exists(had.host):
		return Choice{Host: had.host, Standby: had.standby, Term: had.term, Problem: problem}
	case e.exists(had.standby):
		c, _ := Choice{Host: had.host, Standby: had.standby, Term: had.term, Problem: problem}.Failover(map[string]bool{had.host: true})
		c.Why = gone(had.host)
		return c
	case problem != nil:
		return Choice{Problem: problem, Term: had.term}
	}
	if s.Slot.IsValid() {
		return Choice{Term: had.term, Problem: noHost(s.ID, "status.items", s.Slot.String(), ReasonNoHost, "%s", unseated(had.host))}
	}
	return Choice{Term: had.term, Problem: noHost(s.ID, "status.host", had.host, ReasonNoHost, "%s", unelected(had.host))}
}

func (e *elector) exists(node string) bool {
	_, exists := e.objects.Nodes.Get(node)
	return exists
}

// gone explains why a node that does not exist is no host.
func gone(node string) string { return fmt.Sprintf("there is no node %s any more", node) }

// unseated explains why an address of an EgressIP has no host, by the one in its status.
func unseated(host string) string {
	if host == "" {
		return "has no host yet: the leader elects one"
	}
	return fmt.Sprintf("there is no node %s: another host will be elected", host)
}

func unelected(host string) string {
	if host == "" || host == cluster.AllHosts {
		return "no host is elected yet: its condition HostAssigned says why"
	}
	return fmt.Sprintf("there is no node %s: another host will be elected", host)
}
