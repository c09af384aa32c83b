package election

import (
	"maps"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
)

// Local holds the host and standby of each seat, as one node sees them: as elected, except for nodes that it sees
// dead.
type Local struct {
	dead  map[string]bool
	heard map[string]bool // nodes known to run a daemon; nil: all hosts and standbys do
	now   map[Seat]Choice
}

// Choices returns the choices, which the next Update modifies; nil before the first one.
func (c *Local) Choices() map[Seat]Choice { return c.now }

// Update applies the elected choices, of which changed lists those that changed or are gone since the last call. It
// returns the seats of the resulting choices that changed or are gone. The first call asks resumed whether a seat's
// connections may go on at another node, by what an earlier run left in the kernel; nil: they do not.
func (c *Local) Update(
	node string, elected map[Seat]Choice, changed []Seat, dead, heard map[string]bool, resumed func(Seat) bool,
) (differ []Seat) {
	all := c.now == nil || !maps.Equal(dead, c.dead) || !maps.Equal(heard, c.heard)
	c.dead, c.heard = dead, heard
	if c.now == nil {
		c.now = make(map[Seat]Choice, len(elected))
	} else {
		resumed = nil // the kernel has no more from an earlier run than the first call saw
	}
	if all {
		changed = c.everySeat(elected)
	}
	for _, s := range changed {
		if c.set(node, s, elected, resumed) {
			differ = append(differ, s)
		}
	}
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
func (c *Local) set(node string, s Seat, elected map[Seat]Choice, resumed func(Seat) bool) bool {
	choice, exists := elected[s]
	if exists {
		return c.apply(node, s, choice, resumed)
	}
	_, had := c.now[s]
	delete(c.now, s)
	return had
}

// apply applies a choice of one seat, and reports whether the resulting choice changed.
func (c *Local) apply(node string, s Seat, choice Choice, resumed func(Seat) bool) bool {
	was, had := c.now[s]
	next := c.here(node, choice).Resume(was)
	if resumed != nil && next.Host == node && next.Standby != "" {
		next.Former = resumed(s)
	}
	if had && next.Same(was) {
		return false
	}
	c.now[s] = next
	return true
}

// here returns one choice as this node sees it. With manifests, every node elects for itself. A host that the manifests
// name without a term gets one, so that a standby that takes over can announce a later term. A standby without a daemon
// does not take over: it would forward the packets by its default route.
func (c *Local) here(node string, choice Choice) Choice {
	if c.heard != nil && choice.Host != "" && choice.Host != cluster.AllHosts && choice.Term == 0 {
		choice.Term = 1
	}
	after, _ := choice.Failover(c.dead)
	if c.heard != nil && after.Host != choice.Host && after.Host != node && !c.heard[after.Host] {
		return choice
	}
	return after
}
