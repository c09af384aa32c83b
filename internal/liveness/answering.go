package liveness

import (
	"maps"
	"time"

	"github.com/egressway/egressway/internal/bfd"
)

// presumeFor is how long the present speaker may take to hear a node that an earlier run steered to or an earlier
// speaker heard.
const presumeFor = 10 * time.Second

// answering holds the nodes that packets may be handed to. A node answers BFD once its packet filter is in force, so a
// node that has restarted, or has no daemon, is not among them. The zero value holds no node.
type answering struct {
	now      map[string]bool      // replaced, never modified: plans hold it
	presumed map[string]time.Time // nodes of now that the present speaker has not heard yet, and their deadlines
}

// presume adds nodes that this node's packet filter steers to since an earlier run.
func (a *answering) presume(nodes []string, now time.Time) {
	a.now = cloned(a.now)
	for _, node := range nodes {
		a.now[node] = true
	}
	a.doubt(now)
}

// doubt requires that all nodes are heard again, by a new speaker.
func (a *answering) doubt(now time.Time) {
	a.presumed = map[string]time.Time{}
	for node := range a.now {
		a.presumed[node] = now.Add(presumeFor)
	}
}

// see updates the nodes from the BFD sessions. With unsure, silent nodes stay: this node may have been cut off for a
// moment. wait is the time until the answer may change without a change of a session; 0: never.
func (a *answering) see(sessions []bfd.Session, unsure bool, now time.Time) (wait time.Duration) {
	next := cloned(a.now)
	for _, s := range sessions {
		a.follow(next, s, unsure)
	}
	wait = a.expire(next, now)
	if a.now == nil || !maps.Equal(next, a.now) {
		a.now = next
	}
	return wait
}

// follow updates next, and the presumed nodes, from one session.
func (a *answering) follow(next map[string]bool, s bfd.Session, unsure bool) {
	switch {
	case s.State == bfd.Up:
		next[s.Node] = true
		delete(a.presumed, s.Node)
	case s.Failed && !unsure:
		delete(next, s.Node)
		delete(a.presumed, s.Node)
	}
}

// cloned returns a copy that is never nil.
func cloned(nodes map[string]bool) map[string]bool {
	if nodes == nil {
		return map[string]bool{}
	}
	return maps.Clone(nodes)
}

// expire removes the presumed nodes from next that were not heard in time. wait is the time until the next deadline; 0: none.
func (a *answering) expire(next map[string]bool, now time.Time) (wait time.Duration) {
	for node, until := range a.presumed {
		left := until.Sub(now)
		if left <= 0 {
			delete(next, node)
			delete(a.presumed, node)
		}
		wait = soonest(wait, left)
	}
	return wait
}
