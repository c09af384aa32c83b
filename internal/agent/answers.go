package agent

import (
	"maps"
	"time"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// presumeFor is how long a node that this daemon has found steered to, or had heard by another speaker, may take to be heard by
// the present one.
const presumeFor = 10 * time.Second

// answers are the nodes that packets may be handed to. A node answers BFD once its packet filter is in force, so one that has
// restarted, or has no daemon, is not among them. The zero value knows of no node.
type answers struct {
	now      map[string]bool      // replaced, never changed: plans have it
	presumed map[string]time.Time // those of now that the present speaker has not heard yet, and until when they may be
}

// presume notes the nodes that the packet filter of an earlier run steers to: pods do not notice that a daemon starts.
func (a *answers) presume(paths map[plan.PathKey]plan.PathID, now time.Time) {
	a.now = maps.Clone(a.now)
	if a.now == nil {
		a.now = map[string]bool{}
	}
	for p := range paths {
		if p.Kind == plan.PathSteer {
			a.now[p.Name] = true
		}
	}
	a.doubt(now)
}

// doubt wants all nodes to be heard again: there is another speaker.
func (a *answers) doubt(now time.Time) {
	a.presumed = map[string]time.Time{}
	for node := range a.now {
		a.presumed[node] = now.Add(presumeFor)
	}
}

// see notes the BFD sessions as they are now. Nodes that went silent answer until it is sure that not this node was cut off for a moment. wait
// is the time until there may be another answer although no session changes; 0: there is none.
func (a *answers) see(sessions []bfd.Session, unsure bool, now time.Time) (wait time.Duration) {
	next := maps.Clone(a.now)
	if next == nil {
		next = map[string]bool{}
	}
	for _, s := range sessions {
		switch {
		case s.State == bfd.Up:
			next[s.Node] = true
			delete(a.presumed, s.Node)
		case s.Failed && !unsure:
			delete(next, s.Node)
			delete(a.presumed, s.Node)
		}
	}
	for node, until := range a.presumed {
		switch left := until.Sub(now); {
		case left <= 0:
			delete(next, node)
			delete(a.presumed, node)
		case wait == 0 || left < wait:
			wait = left
		}
	}
	if a.now == nil || !maps.Equal(next, a.now) {
		a.now = next
	}
	return wait
}

// answering are the nodes that packets may be handed to; nil: to any, for nodes do not watch each other.
func (a *Agent) answering(c *config.Config) map[string]bool {
	if !c.Failover.BFD.Enabled {
		return nil
	}
	return a.last.answers.now
}
