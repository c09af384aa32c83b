package liveness

import (
	"maps"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/bfd"
)

// suspects holds the nodes that went silent, and since when each answers again; zero: it does not. The zero value holds
// no node.
type suspects struct {
	back    map[string]time.Time
	unasked bool // the present speaker was not asked yet to watch nodes: no session does not mean that none is watched
}

// see updates the suspects from the BFD sessions. wait is the time until a node may be trusted again; 0: there is none.
func (s *suspects) see(sessions []bfd.Session, now time.Time) (suspected map[string]bool, wait time.Duration) {
	if s.back == nil {
		s.back = map[string]time.Time{}
	}
	watched := map[string]bool{}
	for _, session := range sessions {
		if session.Active {
			watched[session.Node] = true
			s.follow(session, now)
		}
	}
	if !s.unasked || len(sessions) > 0 {
		maps.DeleteFunc(s.back, func(node string, _ time.Time) bool { return !watched[node] })
	}
	suspected = map[string]bool{}
	for node, back := range s.back {
		suspected[node] = true
		if !back.IsZero() {
			wait = soonest(wait, TrustAfter-now.Sub(back))
		}
	}
	return suspected, wait
}

// follow updates the suspects from the session with a watched node.
func (s *suspects) follow(session bfd.Session, now time.Time) {
	back, known := s.back[session.Node]
	switch {
	case session.Failed:
		s.back[session.Node] = time.Time{}
	case session.State != bfd.Up: // neither failed nor up: a new speaker may have started
	case known && back.IsZero():
		s.back[session.Node] = now
	case known && now.Sub(back) >= TrustAfter:
		delete(s.back, session.Node)
	}
}

// backWithin is how long nodes that fell silent together with this node's isolation have to answer, from the first one that does. The
// sessions come back one after another.
const backWithin = 2 * time.Second

// isolation is the possibility that this node itself is cut off from all others.
type isolation struct {
	since time.Time       // since when a node is suspected while it is unknown whether others are; zero: no doubt
	cut   map[string]bool // suspected nodes that this node did not hear because it was isolated itself
	back  time.Time       // when one of the others was heard again after that; zero: none was
	dead  map[string]bool // as of the last call of judge
}

// verdict says which nodes are dead, as far as this node can know.
type verdict struct {
	dead     map[string]bool
	wait     time.Duration // until the verdict may change without a change of a session; 0: never
	doubtful bool          // within wait it shows whether this node is isolated
	isolated bool
}

// judge judges the suspected nodes. If another node was heard recently, this node is not isolated, and all suspected ones are dead. If
// other nodes became silent at the same time, this node is isolated, and a node is dead only if it was so before. If others may be about to
// become silent, it waits until that shows: meanwhile no other node becomes dead. If there are no others, the suspected node is dead.
func (i *isolation) judge(suspected map[string]bool, sessions []bfd.Session, now time.Time) (v verdict) {
	o := othersThan(suspected, sessions)
	switch {
	case len(suspected) == 0:
		*i = isolation{}
		return v
	case !o.heard && o.unsure > 0:
		v = i.doubt(suspected, sessions, o.unsure, now)
	case !o.heard && o.lost:
		i.since = time.Time{}
		v = verdict{dead: i.cutOff(suspected, sessions), isolated: true}
	default:
		i.since = time.Time{}
		v = i.known(suspected, sessions, now)
	}
	i.dead = v.dead
	return v
}

// cutOff notes the suspected nodes that this node does not hear because it is isolated, and returns those that were dead before.
func (i *isolation) cutOff(suspected map[string]bool, sessions []bfd.Session) (dead map[string]bool) {
	i.cut, i.back = map[string]bool{}, time.Time{}
	for node := range suspected {
		if i.dead[node] && !failedWithAnother(node, sessions) {
			dead = with(dead, node)
		} else {
			i.cut[node] = true
		}
	}
	return dead
}

// known judges where this node is not isolated. Nodes that it did not hear in an isolation are not dead as soon as they answer; the others
// have a moment to do so.
func (i *isolation) known(suspected map[string]bool, sessions []bfd.Session, now time.Time) (v verdict) {
	maps.DeleteFunc(i.cut, func(node string, _ bool) bool { return !suspected[node] })
	if len(i.cut) == 0 {
		return verdict{dead: suspected}
	}
	if i.back.IsZero() {
		i.back = now
	}
	left := backWithin - now.Sub(i.back)
	for node := range suspected {
		switch {
		case !i.cut[node], left <= 0 && silentNow(node, sessions):
			delete(i.cut, node)
			v.dead = with(v.dead, node)
		case silentNow(node, sessions):
			v.wait = left
		}
	}
	return v
}

// doubt is judge where it shows within a time whether others are silent too.
func (i *isolation) doubt(suspected map[string]bool, sessions []bfd.Session, within time.Duration, now time.Time) verdict {
	if i.since.IsZero() {
		i.since = now
	}
	wait := within - now.Sub(i.since)
	if wait <= 0 {
		return i.known(suspected, sessions, now) // it would have shown by now
	}
	v := verdict{wait: wait, doubtful: true}
	for node := range suspected {
		if i.dead[node] {
			v.dead = with(v.dead, node)
		}
	}
	return v
}

// with returns a set with one node more. A nil set is empty.
func with(nodes map[string]bool, node string) map[string]bool {
	if nodes == nil {
		nodes = map[string]bool{}
	}
	nodes[node] = true
	return nodes
}

// silentNow reports whether a session with a node has failed, and is not up again.
func silentNow(node string, sessions []bfd.Session) bool {
	return slices.ContainsFunc(sessions, func(s bfd.Session) bool { return s.Node == node && s.Failed })
}

// others is the state of the nodes other than a suspected one.
type others struct {
	heard  bool          // one that is not suspected was heard recently
	unsure time.Duration // the time until another one may become silent, if none was heard
	lost   bool          // another one became silent at the same time
}

func othersThan(suspected map[string]bool, sessions []bfd.Session) (o others) {
	for _, s := range sessions {
		switch {
		case suspected[s.Node]:
			o.lost = o.lost || failedWithAnother(s.Node, sessions)
		case s.State == bfd.Up:
			o.heard, o.unsure = o.heard || s.Heard, max(o.unsure, s.Detection*2/3)
		}
	}
	return o
}

// failedWithAnother reports whether the session with a node failed at about the time at which that with another one did.
func failedWithAnother(node string, sessions []bfd.Session) bool {
	for _, s := range sessions {
		if s.Node == node && slices.ContainsFunc(sessions, func(o bfd.Session) bool { return o.Node != node && failedTogether(s, o) }) {
			return true
		}
	}
	return false
}

// failedTogether reports whether two sessions failed at about the same time.
func failedTogether(s, o bfd.Session) bool {
	return s.Failed && o.Failed && s.Since.Sub(o.Since).Abs() < together*time.Duration(max(s.Slowed, o.Slowed, 1))
}
