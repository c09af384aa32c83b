package agent

import (
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel"
)

// filling is what is told of the table of connections.
type filling struct {
	kernel.Connections      // as told
	is                 bool // filling
}

// take takes in how full the table is and says whether another thing must be told. While it fills, that is the case with each
// twentieth of it: a number that is never the same would be a new problem every time.
func (f *filling) take(now kernel.Connections) (changed bool) {
	is := now.Filling(f.is)
	moved := max(now.Entries, f.Entries) - min(now.Entries, f.Entries)
	if is == f.is && (!is || now.Limit == f.Limit && moved < now.Limit/20) {
		return false
	}
	f.Connections, f.is = now, is
	return true
}

// look looks at what no event tells of, and says whether what is told of this node must change.
func (a *Agent) look(now time.Time) (changed bool) {
	_, changed = a.last.restored.problems("", now)
	connections, err := a.kernel.Connections()
	if err != nil {
		a.log.Debug("it is not known how full the table of connections is", "error", err)
		return changed
	}
	a.status.SetConnections(connections.Entries, connections.Limit)
	return a.last.filling.take(connections) || changed
}

// troubles tells what is wrong with this node itself, as it was when that was looked at last.
func (a *Agent) troubles(node string, now time.Time) []cluster.Problem {
	problems, _ := a.last.restored.problems(node, now)
	if a.last.filling.is {
		problems = append(problems, a.last.filling.Problem(node))
	}
	return problems
}
