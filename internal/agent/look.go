package agent

import (
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/conntrack"
)

// conntrackUsage is the published state of the connection table.
type conntrackUsage struct {
	conntrack.Connections      // as published
	full                  bool // filling up
}

// update records how full the table is, and reports whether that must be published. While the table fills, it must be
// after every twentieth: a number that always changes would be a new problem every time.
func (u *conntrackUsage) update(now conntrack.Connections) (changed bool) {
	full := now.Filling(u.full)
	moved := max(now.Entries, u.Entries) - min(now.Entries, u.Entries)
	if full == u.full && (!full || now.Limit == u.Limit && moved < now.Limit/20) {
		return false
	}
	u.Connections, u.full = now, full
	return true
}

// look checks conditions without events, and reports whether this node's problems change.
func (a *Agent) look(now time.Time) (changed bool) {
	_, changed = a.last.losses.Problems("", now)
	connections, err := a.kernel.Connections()
	if err != nil {
		a.log.Debug("cannot read how full the connection table is", "error", err)
		return changed
	}
	a.status.SetConnections(connections.Entries, connections.Limit)
	return a.last.usage.update(connections) || changed
}

// troubles returns the problems of this node itself, as of the last look.
func (a *Agent) troubles(node string, now time.Time) []cluster.Problem {
	problems, _ := a.last.losses.Problems(node, now)
	if a.last.usage.full {
		problems = append(problems, a.last.usage.Problem(node))
	}
	return append(problems, refusedProblems(a.last.plan, a.last.refused)...)
}
