package election

import (
	"cmp"
	"fmt"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// Obey takes hosts and standbys from the objects' status, where one daemon elects for all.
func Obey(objects cluster.Objects) map[cluster.Key]Choice {
	e := newElector(objects, nil)
	choices := make(map[cluster.Key]Choice, len(objects.EgressServices))
	for key, spec := range objects.EgressServices {
		_, all, problem := e.contender(key)
		s := spec.Status
		_, exists := objects.Nodes[s.Host]
		switch {
		case all: // needs no election
			choices[key] = Choice{Host: cluster.AllHosts, Term: s.Term}
		case exists:
			choices[key] = Choice{Host: s.Host, Standby: s.Standby, Term: s.Term, Problem: problem}
		case problem != nil:
			choices[key] = Choice{Problem: problem, Term: s.Term}
		default:
			choices[key] = Choice{Term: s.Term, Problem: noHost(key, "status.host", s.Host, ReasonNoHost, "%s", unelected(s.Host))}
		}
	}
	return choices
}

func unelected(host string) string {
	if host == "" || host == cluster.AllHosts {
		return "no host is elected yet: its condition HostAssigned says why"
	}
	return fmt.Sprintf("there is no node %s: another host will be elected", host)
}

func networkOf(e cluster.EgressService) string { return cmp.Or(e.Network, config.DefaultNetwork) }
