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
	back map[string]time.Time
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
	maps.DeleteFunc(s.back, func(node string, _ time.Time) bool { return !watched[node] })
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

// isolation is the possibility that this node itself is cut off from all others.
type isolation struct {
	since time.Time // since when a node is suspected while it is unknown whether others are; zero: no doubt
}

// judge returns which of the suspected nodes are dead, as far as this node can know. If another node was heard recently,
// this node is not isolated, and all suspected ones are dead. If other nodes became silent at the same time, this node is
// isolated, and none is dead. If others may be about to become silent, wait is the time until that shows. If there are
// no others, the suspected node is dead.
func (i *isolation) judge(suspected map[string]bool, sessions []bfd.Session, now time.Time) (dead map[string]bool, wait time.Duration) {
	o := othersThan(suspected, sessions)
	switch {
	case len(suspected) == 0:
		i.since = time.Time{}
		return nil, 0
	case o.heard:
		return suspected, 0
	case o.unsure > 0:
		return i.doubt(suspected, o.unsure, now)
	case o.lost:
		return nil, 0
	}
	return suspected, 0
}

// doubt is judge where it shows within a time whether others are silent too.
func (i *isolation) doubt(suspected map[string]bool, within time.Duration, now time.Time) (dead map[string]bool, wait time.Duration) {
	if i.since.IsZero() {
		i.since = now
	}
	if wait = within - now.Sub(i.since); wait <= 0 {
		return suspected, 0 // it would have shown by now
	}
	return nil, wait
}

// others is the state of the nodes other than a suspected one.
type others struct {
	heard  bool          // one that is not suspected was heard recently
	unsure time.Duration // the time until another one may become silent, if none was heard
	lost   bool          // another one is suspected, or became silent at the same time
}

func othersThan(suspected map[string]bool, sessions []bfd.Session) others {
	o := others{lost: len(suspected) > 1}
	for _, s := range sessions {
		switch {
		case suspected[s.Node]:
		case s.State == bfd.Up:
			o.heard, o.unsure = o.heard || s.Heard, max(o.unsure, s.Detection*2/3)
		case failedWithSuspect(s, suspected, sessions):
			o.lost = true
		}
	}
	return o
}

// failedWithSuspect reports whether a session failed at about the time at which that with a suspected node did.
func failedWithSuspect(s bfd.Session, suspected map[string]bool, sessions []bfd.Session) bool {
	return s.Failed && slices.ContainsFunc(sessions, func(o bfd.Session) bool { return suspected[o.Node] && failedTogether(s, o) })
}

// failedTogether reports whether a session failed at about the time at which the other one did.
func failedTogether(s, o bfd.Session) bool {
	return o.Failed && s.Since.Sub(o.Since).Abs() < together*time.Duration(max(s.Slowed, o.Slowed, 1))
}
