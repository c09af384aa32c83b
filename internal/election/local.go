package election

import (
	"maps"
	"slices"
	"time"
)

// Local holds the host and standby of each seat, as one node sees them: as elected, except for nodes that it sees
// dead, and for moves that it makes gradual.
type Local struct {
	sight Sight
	now   map[Seat]Choice
	hosts map[Seat]string // elected ones, where every node elects for itself
	moves map[Seat]move
	left  map[Seat]departure // the last one from each seat, for a moment
	kept  map[Seat]time.Time // since when the former host, this node or another, stands by for the other; zero: since before this start
	// obeyed holds the hosts that a leader elected while they were silent for this node, their standby.
	obeyed map[Seat]string
	// replaced holds the hosts that this node, their standby, does not hear and acts instead of, until the leader elects it.
	replaced map[Seat]string
}

// Sight holds everything that a node knows besides the elected choices.
type Sight struct {
	Node string    // this node
	Now  time.Time // when it looks
	Dead map[string]bool
	// Silent holds the nodes that BFD does not hear any more, dead or not: this node may be cut off.
	Silent map[string]bool
	// Heard holds the nodes known to run a daemon; nil: all hosts and standbys do, since a leader elects for all nodes.
	Heard map[string]bool
	// Ready reports whether a node is Ready by the manifests. It is used along with Heard only.
	Ready func(node string) bool
	// Keep is for how long a former host is the standby after a move, where every node elects for itself.
	Keep time.Duration
	// Resumed reports whether a seat's connections may go on at another node, by what an earlier run left in the kernel; nil: they do not.
	// A standby's always may. It is used by the first Update only, since the kernel has no more from an earlier run than that saw.
	Resumed func(Seat) bool
}

// Choices returns the choices, which the next Update modifies; nil before the first one.
func (c *Local) Choices() map[Seat]Choice { return c.now }

// Update applies the elected choices, of which changed lists those that changed or are gone since the last call. It
// returns the seats of the resulting choices that changed or are gone.
func (c *Local) Update(elected map[Seat]Choice, changed []Seat, sight Sight) (differ []Seat) {
	all := c.now == nil || !maps.Equal(sight.Dead, c.sight.Dead) || !maps.Equal(sight.Heard, c.sight.Heard) ||
		!maps.Equal(sight.Silent, c.sight.Silent)
	if c.now == nil {
		c.now, c.hosts, c.moves = make(map[Seat]Choice, len(elected)), map[Seat]string{}, map[Seat]move{}
		c.obeyed, c.left, c.replaced = map[Seat]string{}, map[Seat]departure{}, map[Seat]string{}
		c.kept = map[Seat]time.Time{}
	} else {
		sight.Resumed = nil
	}
	if c.sight = sight; all {
		changed = c.everySeat(elected)
	} else {
		changed = c.withDue(changed)
	}
	for _, s := range changed {
		if c.set(s, elected) {
			differ = append(differ, s)
		}
	}
	c.sight.Ready = nil // it may hold all objects
	return differ
}

// everySeat lists the seats with an elected choice, then the others that had one.
func (c *Local) everySeat(elected map[Seat]Choice) []Seat {
	all := slices.AppendSeq(make([]Seat, 0, len(elected)), maps.Keys(elected))
	for s := range c.now {
		if _, exists := elected[s]; !exists {
			all = append(all, s)
		}
	}
	return all
}

// set applies the elected choice of one seat, and reports whether the resulting choice changed or is gone.
func (c *Local) set(s Seat, elected map[Seat]Choice) bool {
	choice, exists := elected[s]
	if exists {
		return c.apply(s, choice)
	}
	_, had := c.now[s]
	delete(c.now, s)
	delete(c.hosts, s)
	delete(c.moves, s)
	delete(c.obeyed, s)
	delete(c.left, s)
	delete(c.kept, s)
	delete(c.replaced, s)
	return had
}

// apply applies a choice of one seat, and reports whether the resulting choice changed.
func (c *Local) apply(s Seat, choice Choice) bool {
	was, had := c.now[s]
	next := c.here(c.gradually(s, was, choice))
	if c.obeys(s, was, had, choice, next) {
		next = choice
	}
	if next.Host == c.sight.Node && choice.Host != c.sight.Node {
		c.replaced[s] = choice.Host
	} else {
		delete(c.replaced, s)
	}
	next = c.lingers(s, was, next.Resume(was))
	// A standby that never was the host counts as a former one, too: it has no connections that it could hand over.
	if c.sight.Resumed != nil && next.seats(c.sight.Node) && next.Standby != "" {
		next.Former = c.sight.Resumed(s)
	}
	c.keeps(s, next)
	if had && next.Same(was) {
		return false
	}
	c.now[s] = next
	return true
}

// departure is the end of a node's part in a seat: this node's, or that of the former host that was its standby.
type departure struct {
	node string
	at   time.Time
	kept bool // it was the former host, and stood by to the end
}

// forgotten returns when all nodes know of a departure.
func (d departure) forgotten() time.Time { return d.at.Add(handOver) }

// lingers returns the choice with the note that this node left the seat a moment ago, or that its former host did. Nodes learn of a change
// one after another: those that learn later still send their packets to the node that left, and that node itself sends its own pods'
// packets out. It serves until all know. was is the choice before.
func (c *Local) lingers(s Seat, was, next Choice) Choice {
	node := c.sight.Node
	if d, departs := c.departs(s, was, next); departs {
		c.left[s] = d
	}
	left, late := c.left[s]
	switch {
	case !late || !isNode(next.Host) || next.seats(left.node) || !c.sight.Now.Before(left.forgotten()):
		delete(c.left, s)
	case left.node == node:
		next.Left = true
		if left.kept {
			next.Parted = next.Host
		}
	case next.Host == node && !c.sight.Dead[left.node]:
		next.Parted = left.node
	default:
		delete(c.left, s)
	}
	return next
}

// departs returns the departure by which a choice follows another one, if there is one.
func (c *Local) departs(s Seat, was, next Choice) (d departure, departs bool) {
	node, kept := c.sight.Node, was.Former && c.keptToTheEnd(s)
	switch {
	case was.seats(node) && !next.seats(node):
		return departure{node, c.sight.Now, kept && was.Standby == node}, true
	case was.Host == node && kept && was.Standby != next.Standby:
		return departure{was.Standby, c.sight.Now, true}, true
	}
	return d, false
}

// keeps remembers since when the former host of a seat stands by, if it or the host is this node.
func (c *Local) keeps(s Seat, now Choice) {
	switch _, had := c.kept[s]; {
	case !now.seats(c.sight.Node) || !now.Former:
		delete(c.kept, s)
	case !had && c.sight.Resumed != nil:
		c.kept[s] = time.Time{}
	case !had:
		c.kept[s] = c.sight.Now
	}
}

// keptToTheEnd reports whether the former host of a seat stood by for all the time that its flows have. It has not where another move
// begins before: the next host replaces it as standby, and strays soon belong to that one's connections.
func (c *Local) keptToTheEnd(s Seat) bool {
	// Nodes learn of begin and end a little later than the leader, which decides on both.
	return !c.sight.Now.Before(c.kept[s].Add(c.sight.Keep - c.sight.Keep/10))
}

// seats reports whether a node is the host or the standby.
func (c Choice) seats(node string) bool { return c.Host == node || c.Host != "" && c.Standby == node }

// here returns one choice as this node sees it. With manifests, every node elects for itself. A host that the manifests
// name without a term gets one, so that a standby that takes over can announce a later term. A standby without a daemon
// does not take over: it would forward the packets by its default route.
func (c *Local) here(choice Choice) Choice {
	heard := c.sight.Heard
	if heard != nil && isNode(choice.Host) && choice.Term == 0 {
		choice.Term = 1
	}
	after, _ := choice.Failover(c.sight.Dead)
	if heard != nil && after.Host != choice.Host && after.Host != c.sight.Node && !heard[after.Host] {
		return choice
	}
	return after
}

// Obeyed returns the hosts to which this node, their standby, leaves a seat although it does not hear them. A host that it has replaced at
// another seat is not among them: the leader has to know of that, or two nodes stay host of that seat.
func (c *Local) Obeyed() map[string]bool {
	hosts := map[string]bool{}
	for _, host := range c.obeyed {
		hosts[host] = true
	}
	for _, host := range c.replaced {
		delete(hosts, host)
	}
	return hosts
}

// obeys reports whether this node, the standby, leaves a seat to its host although it does not hear the host: a leader elected that host,
// or gave it this standby, meanwhile, and so has heard it. This node was cut off, and has heard others again, but not yet the host. before
// is the seat's former choice, if it had one, and after the choice in which the standby takes over, if the host is dead.
func (c *Local) obeys(s Seat, before Choice, had bool, choice, after Choice) bool {
	hears := !c.sight.Silent[choice.Host] && !c.sight.Dead[choice.Host] // a node that answers again stays dead for a moment
	if c.sight.Heard != nil || hears || choice.Standby != c.sight.Node {
		delete(c.obeyed, s)
		return false
	}
	appointed := had && (before.Host != choice.Host || before.Standby != c.sight.Node)
	if appointed && before.Term != after.Term { // else this node has taken over
		c.obeyed[s] = choice.Host
	}
	return c.obeyed[s] == choice.Host
}
