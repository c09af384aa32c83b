package election

import (
	"cmp"
	"fmt"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// obey takes host and standby from one object's status. A host whose Node is gone is followed by its standby, as a dead one is,
// before the one that elects confirms it.
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

// gone says why a node that there is none of is no host.
func gone(node string) string { return fmt.Sprintf("there is no node %s any more", node) }

func unelected(host string) string {
	if host == "" || host == cluster.AllHosts {
		return "no host is elected yet: its condition HostAssigned says why"
	}
	return fmt.Sprintf("there is no node %s: another host will be elected", host)
}

func networkOf(e cluster.EgressService) string { return cmp.Or(e.Network, config.DefaultNetwork) }
