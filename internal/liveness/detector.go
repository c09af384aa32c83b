// Package liveness is the failure detector of a node. From BFD sessions it decides which other nodes are dead, and which
// answer; from BGP sessions it decides in which networks this node must hold its announcements down. It reads neither
// sockets nor the clock: the caller passes sessions and the time.
//
// Words: a suspected node went silent, or has answered again for less than TrustAfter. This node is isolated where all
// other nodes went silent at once. A dead node is suspected while this node is not isolated.
package liveness

import (
	"maps"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/bfd"
)

// TrustAfter is how long a node that was dead must answer before it counts as alive. By then the leader has usually
// confirmed another host; trusting it earlier would cause two moves for one pause, and a node that was cut off learns of that host only
// by then.
const TrustAfter = 3 * time.Second

// together is the time within which several failures mean that this node is isolated, not that all others are dead;
// longer if BFD is slowed.
const together = time.Second

// Detector follows the nodes that this node watches. The zero value knows no node.
type Detector struct {
	suspects  suspects
	isolation isolation
	answering answering
	heard     map[string]bool
	dead      map[string]bool // as of the last call of See
}

// View is the state of the other nodes. Its maps are never modified: plans and reports hold them.
type View struct {
	Watched   map[string]bool // watched nodes that were ever heard, and whether they are alive
	Heard     map[string]bool // nodes that were ever alive, unless they were forgotten; never nil
	Dead      map[string]bool // nodes whose standbys are the hosts, as this node sees it
	Answering map[string]bool // nodes that packets may be handed to
	Isolated  bool            // all other nodes went silent at once

	Failed   []Failure     // nodes that are dead since the last call
	Returned []string      // nodes that are not dead any more since the last call, sorted
	Wait     time.Duration // until the view may change without a change of a session; 0: never
}

// Changed reports whether the dead nodes differ from those of the last call.
func (v View) Changed() bool { return len(v.Failed) > 0 || len(v.Returned) > 0 }

// Silent returns the watched nodes that are not alive.
func (v View) Silent() map[string]bool {
	silent := map[string]bool{}
	for node, alive := range v.Watched {
		if !alive {
			silent[node] = true
		}
	}
	return silent
}

// Failure is a node's death.
type Failure struct {
	Node   string
	Silent time.Duration // time since the node was last heard
}

// Presume adds nodes that an earlier run handed packets to: pods must not notice that a daemon starts.
func (d *Detector) Presume(nodes []string, now time.Time) {
	d.answering.presume(nodes, presumeFor, now)
}

// Enable adds nodes that this node handed packets to while nodes did not watch each other: they may not have the configuration yet by
// which they answer.
func (d *Detector) Enable(nodes []string, now time.Time) {
	d.answering.presume(nodes, enableWithin, now)
}

// Restart requires that all nodes are heard again, by a new speaker. It watches none before Watching is called: dead nodes stay dead.
func (d *Detector) Restart(now time.Time) {
	d.answering.doubt(presumeFor, now)
	d.suspects.unasked = true
}

// Watching has nodes without a session count as not watched: the present speaker knows which nodes to watch.
func (d *Detector) Watching() { d.suspects.unasked = false }

// Forget has nodes that no longer exist count as never heard: one of that name may come back without a daemon.
func (d *Detector) Forget(exists func(node string) bool) {
	d.heard = existing(d.heard, exists)
	d.answering.forget(exists)
}

// existing returns the nodes that exist: the same map if all do.
func existing(nodes map[string]bool, exists func(node string) bool) map[string]bool {
	left := map[string]bool{}
	for node := range nodes {
		if exists(node) {
			left[node] = true
		}
	}
	if len(left) == len(nodes) {
		return nodes
	}
	return left
}

// See updates the detector from the BFD sessions with other nodes. detection is the configured detection time; 0: unknown.
func (d *Detector) See(sessions []bfd.Session, detection time.Duration, now time.Time) View {
	v := View{Watched: alive(sessions)}
	d.hear(v.Watched)
	suspected, trust := d.suspects.see(sessions, now)
	judged := d.isolation.judge(suspected, sessions, now)
	dead := judged.dead
	answer := d.answering.see(sessions, judged.doubtful, now)
	v.Wait = soonest(trust, judged.wait, answer)
	v.Heard, v.Dead, v.Answering, v.Isolated = d.heard, dead, d.answering.now, judged.isolated
	for _, node := range slices.Sorted(maps.Keys(dead)) {
		if !d.dead[node] {
			v.Failed = append(v.Failed, Failure{Node: node, Silent: silence(sessions, node, detection, now)})
		}
	}
	for _, node := range slices.Sorted(maps.Keys(d.dead)) {
		if !dead[node] {
			v.Returned = append(v.Returned, node)
		}
	}
	d.dead = dead
	return v
}

// hear adds nodes to those that were ever heard.
func (d *Detector) hear(watched map[string]bool) {
	heard := cloned(d.heard)
	for node := range watched {
		heard[node] = true
	}
	if d.heard == nil || len(heard) > len(d.heard) {
		d.heard = heard
	}
}

// soonest returns the shortest of the waits that are not 0.
func soonest(waits ...time.Duration) (least time.Duration) {
	for _, wait := range waits {
		if wait > 0 && (least == 0 || wait < least) {
			least = wait
		}
	}
	return least
}

// alive returns for every watched node that was ever heard whether it is alive.
func alive(sessions []bfd.Session) map[string]bool {
	nodes := map[string]bool{}
	for _, s := range sessions {
		switch {
		case !s.Active:
		case s.Failed:
			nodes[s.Node] = false
		case s.State == bfd.Up:
			nodes[s.Node] = true
		}
	}
	return nodes
}

// silence returns how long a failed node has not been heard: the detection time, and the time since it failed.
func silence(sessions []bfd.Session, node string, detection time.Duration, now time.Time) (longest time.Duration) {
	for _, s := range sessions {
		if s.Node == node && s.Failed {
			longest = max(longest, detection*time.Duration(max(s.Slowed, 1))+now.Sub(s.Since))
		}
	}
	return longest
}
