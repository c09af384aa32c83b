package election

import (
	"slices"
	"time"
)

// handOver is for how long the next host of a seat is its standby first, where every node elects for itself, and for how long a node that
// left a seat serves packets that others still send to it. It is longer than the time in which all nodes have learned of a change and have
// applied it.
const handOver = 2 * time.Second

// move is a move of a seat's host while both hosts can serve, where every node elects for itself. Nodes notice it at
// different times. So the next host is the standby at first, which serves as a host does, and the former host is the standby
// afterwards. A leader does the same by the nodes' reports, see Next.
type move struct {
	from, to string
	began    time.Time
	handed   bool // to is the host
}

// gradually returns the choice of a seat in the present phase of a move, which begins when another host is elected. was is the
// node's choice before.
func (c *Local) gradually(s Seat, was, choice Choice) Choice {
	if c.sight.Heard == nil {
		return choice
	}
	former, known := c.hosts[s]
	c.hosts[s] = choice.Host
	m, moving := c.moves[s]
	if known && former != choice.Host {
		m = move{from: was.Host, to: choice.Host, began: c.sight.Now}
		moving = isNode(m.from) && isNode(m.to) && m.from != m.to && c.answers(m.from)
	}
	if !moving || c.sight.Dead[m.from] || !c.sight.Now.Before(m.ends(c.sight.Keep)) {
		delete(c.moves, s)
		return choice
	}
	if m.handed = !c.sight.Now.Before(m.handedOver()); m.handed {
		choice.Standby = m.from
	} else {
		choice.Host, choice.Standby = m.from, m.to
	}
	c.moves[s] = m
	return choice
}

// answers reports whether a node can serve, by all that is known without its report.
func (c *Local) answers(node string) bool {
	return !c.sight.Dead[node] && (node == c.sight.Node || c.sight.Heard[node] || c.sight.Ready(node))
}

// handedOver returns when the next host becomes the host.
func (m move) handedOver() time.Time { return m.began.Add(handOver) }

// ends returns when the former host ceases to be the standby. keep is how long flows keep their former host.
func (m move) ends(keep time.Duration) time.Time { return m.handedOver().Add(keep) }

// Due returns when the next phase of a move begins, or this node has left a seat for good. ok is false if no host moves.
func (c *Local) Due() (at time.Time, ok bool) {
	for _, m := range c.moves {
		if next := m.nextPhase(c.sight.Keep); !ok || next.Before(at) {
			at, ok = next, true
		}
	}
	for _, left := range c.left {
		if next := left.forgotten(); !ok || next.Before(at) {
			at, ok = next, true
		}
	}
	return at, ok
}

// nextPhase returns when the present phase of a move ends, also where another node serves meanwhile, since the next host is dead.
func (m move) nextPhase(keep time.Duration) time.Time {
	if m.handed {
		return m.ends(keep)
	}
	return m.handedOver()
}

// withDue adds the seats for which the next phase of a move has begun, or that this node has left for good.
func (c *Local) withDue(seats []Seat) []Seat {
	seats = slices.Clip(seats)
	for s, m := range c.moves {
		if !c.sight.Now.Before(m.nextPhase(c.sight.Keep)) {
			seats = append(seats, s)
		}
	}
	for s, left := range c.left {
		if !c.sight.Now.Before(left.forgotten()) {
			seats = append(seats, s)
		}
	}
	return seats
}
