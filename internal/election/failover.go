package election

import (
	"fmt"
	"maps"

	"github.com/egressway/egressway/internal/cluster"
)

// Failover is what a node makes of the choices when it sees nodes dead, before the one that elects confirms it: the standby is
// the host, in the term that follows, as the one that elects will write it (Next), so that nothing changes then. A dead
// standby is none. A host without a living standby stays: there is nobody else. Choices that nothing is wrong with are as
// they were; where that holds for all, the result is the same map.
func Failover(choices map[cluster.Key]Choice, dead map[string]bool) map[cluster.Key]Choice {
	if len(dead) == 0 {
		return choices
	}
	after, changed := choices, false
	for key, c := range choices {
		switch {
		case c.Host == "" || c.Standby == "":
			continue
		case dead[c.Standby]:
			c.Standby = ""
		case dead[c.Host]:
			c.Why = silent(c.Host)
			c.Host, c.Standby = c.Standby, ""
			if c.Term > 0 {
				c.Term++
			}
		default:
			continue
		}
		if !changed {
			after, changed = maps.Clone(choices), true
		}
		after[key] = c
	}
	return after
}

// silent says why a dead node is no host.
func silent(node string) string {
	return fmt.Sprintf("node %s does not answer the nodes that watch it", node)
}
