package election

import (
	"cmp"
	"fmt"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// obey takes host and standby from one object's status.
func (e *elector) obey(key cluster.Key, s cluster.Status) Choice {
	_, all, problem := e.contender(key)
	_, exists := e.objects.Nodes.Get(s.Host)
	switch {
	case all: // needs no election
		return Choice{Host: cluster.AllHosts, Term: s.Term}
	case exists:
		return Choice{Host: s.Host, Standby: s.Standby, Term: s.Term, Problem: problem}
	case problem != nil:
		return Choice{Problem: problem, Term: s.Term}
	}
	return Choice{Term: s.Term, Problem: noHost(key, "status.host", s.Host, ReasonNoHost, "%s", unelected(s.Host))}
}

func unelected(host string) string {
	if host == "" || host == cluster.AllHosts {
		return "no host is elected yet: its condition HostAssigned says why"
	}
	return fmt.Sprintf("there is no node %s: another host will be elected", host)
}

func networkOf(e cluster.EgressService) string { return cmp.Or(e.Network, config.DefaultNetwork) }
