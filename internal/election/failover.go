package election

import "fmt"

// Failover returns the choice that a node applies when it sees nodes dead, before the leader confirms it: the standby is the
// host, in the following term, which is the choice that the leader will write (Next), so that nothing changes then. A dead
// standby is removed. A host without a living standby stays, because no other node could take over. changed reports that
// the choice differs.
func (c Choice) Failover(dead map[string]bool) (after Choice, changed bool) {
	switch {
	case c.Host == "" || c.Standby == "":
		return c, false
	case dead[c.Standby]:
		c.Standby = ""
	case dead[c.Host]:
		c.Why = silent(c.Host)
		c.Host, c.Standby, c.Term = c.Standby, "", following(c.Term)
	default:
		return c, false
	}
	return c, true
}

// following returns the term after another one; 0: not known.
func following(term int64) int64 {
	if term > 0 {
		term++
	}
	return term
}

// silent explains why a dead node is no host.
func silent(node string) string {
	return fmt.Sprintf("node %s does not answer the nodes that watch it", node)
}

// Resume marks the standby of a choice as the former host if it was the host in the choice before, or was marked there. Such
// a standby has connections that continue.
func (c Choice) Resume(before Choice) Choice {
	followed := before.Host == c.Standby && before.Host != c.Host
	noted := before.Former && before.Host == c.Host && before.Standby == c.Standby
	c.Former = c.Former || c.Standby != "" && (followed || noted)
	return c
}
