package liveness

import (
	"maps"
	"time"

	"github.com/egressway/egressway/internal/bfd"
)

// presumeFor is how long the present speaker may take to hear a node that an earlier run steered to or an earlier
// speaker heard.
const presumeFor = 10 * time.Second

// enableWithin is how long nodes may take to answer once the configuration has them watch each other: it reaches them within a
// minute or so of each other.
const enableWithin = 2 * time.Minute

// answering holds the nodes that packets may be handed to. A node answers BFD once its packet filter is in force, so a
// node that has restarted, or has no daemon, is not among them. The zero value holds no node.
type answering struct {
	now      map[string]bool      // replaced, never modified: plans hold it
	presumed map[string]time.Time // nodes of now that the present speaker has not heard yet, and their deadlines
}

// presume adds nodes that this node steers to although the present speaker has not heard them. They have to answer within a time.
func (a *answering) presume(nodes []string, within time.Duration, now time.Time) {
	a.now = cloned(a.now)
	for _, node := range nodes {
		a.now[node] = true
	}
	a.doubt(within, now)
}

// doubt requires that the present speaker hears all nodes within a time, or by the deadline that they have already if that is later.
func (a *answering) doubt(within time.Duration, now time.Time) {
	presumed := make(map[string]time.Time, len(a.now))
	for node := range a.now {
		presumed[node] = now.Add(within)
		if until := a.presumed[node]; until.After(presumed[node]) {
			presumed[node] = until
		}
	}
	a.presumed = presumed
}

// forget removes the nodes that do not exist.
func (a *answering) forget(exists func(node string) bool) {
	a.now = existing(a.now, exists)
	maps.DeleteFunc(a.presumed, func(node string, _ time.Time) bool { return !exists(node) })
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
