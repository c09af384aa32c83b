package election

import (
	"cmp"
	"fmt"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// obey returns the choice of one object's status. If the Node of the host is gone, the standby is the host before the leader
// confirms it, as for a dead host.
func (e *elector) obey(key cluster.Key, s cluster.Status) Choice {
	_, all, problem := e.contender(key)
	switch {
	case all: // needs no election
		return Choice{Host: cluster.AllHosts, Term: s.Term}
	case e.exists(s.Host):
		return Choice{Host: s.Host, Standby: s.Standby, Term: s.Term, Problem: problem}
	case e.exists(s.Standby):
		c, _ := Choice{Host: s.Host, Standby: s.Standby, Term: s.Term, Problem: problem}.Failover(map[string]bool{s.Host: true})
		c.Why = gone(s.Host)
		return c
	case problem != nil:
		return Choice{Problem: problem, Term: s.Term}
	}
	return Choice{Term: s.Term, Problem: noHost(key, "status.host", s.Host, ReasonNoHost, "%s", unelected(s.Host))}
}

func (e *elector) exists(node string) bool {
	_, exists := e.objects.Nodes.Get(node)
	return exists
}

// gone explains why a node that does not exist is no host.
func gone(node string) string { return fmt.Sprintf("there is no node %s any more", node) }

func unelected(host string) string {
	if host == "" || host == cluster.AllHosts {
		return "no host is elected yet: its condition HostAssigned says why"
	}
	return fmt.Sprintf("there is no node %s: another host will be elected", host)
}

func networkOf(e cluster.EgressService) string { return cmp.Or(e.Network, config.DefaultNetwork) }
