package election

import "fmt"

// Failover is what a node makes of a choice when it sees nodes dead, before the one that elects confirms it: the standby is
// the host, in the term that follows, as the one that elects will write it (Next), so that nothing changes then. A dead
// standby is none. A host without a living standby stays: there is nobody else. changed says that the choice is another.
func (c Choice) Failover(dead map[string]bool) (after Choice, changed bool) {
	switch {
	case c.Host == "" || c.Standby == "":
		return c, false
	case dead[c.Standby]:
		c.Standby = ""
	case dead[c.Host]:
		c.Why = silent(c.Host)
		c.Host, c.Standby = c.Standby, ""
		if c.Term > 0 {
			c.Term++
		}
	default:
		return c, false
	}
	return c, true
}

// silent says why a dead node is no host.
func silent(node string) string {
	return fmt.Sprintf("node %s does not answer the nodes that watch it", node)
}
