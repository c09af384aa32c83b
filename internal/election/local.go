package election

import (
	"maps"

	"github.com/egressway/egressway/internal/cluster"
)

// Local holds the host and standby of each object, as one node sees them: as elected, except for nodes that it sees
// dead.
type Local struct {
	dead  map[string]bool
	heard map[string]bool // nodes known to run a daemon; nil: all hosts and standbys do
	now   map[cluster.Key]Choice
}

// Choices returns the choices, which the next Update modifies; nil before the first one.
func (c *Local) Choices() map[cluster.Key]Choice { return c.now }

// Update applies the elected choices, of which changed lists those that changed or are gone since the last call. It
// returns the keys of the resulting choices that changed or are gone. The first call asks resumed whether an object's
// connections may go on at another node, by what an earlier run left in the kernel; nil: they do not.
func (c *Local) Update(
	node string, elected map[cluster.Key]Choice, changed []cluster.Key, dead, heard map[string]bool, resumed func(cluster.Key) bool,
) (differ []cluster.Key) {
	all := c.now == nil || !maps.Equal(dead, c.dead) || !maps.Equal(heard, c.heard)
	c.dead, c.heard = dead, heard
	if c.now == nil {
		c.now = make(map[cluster.Key]Choice, len(elected))
	} else {
		resumed = nil // the kernel has no more from an earlier run than the first call saw
	}
	set := func(key cluster.Key) {
		if c.set(node, key, elected, resumed) {
			differ = append(differ, key)
		}
	}
	if !all {
		for _, key := range changed {
			set(key)
		}
		return differ
	}
	for key := range elected {
		set(key)
	}
	for key := range c.now {
		if _, exists := elected[key]; !exists {
			set(key)
		}
	}
	return differ
}

// set applies the elected choice of one object, and reports whether the resulting choice changed or is gone.
func (c *Local) set(node string, key cluster.Key, elected map[cluster.Key]Choice, resumed func(cluster.Key) bool) bool {
	was, had := c.now[key]
	choice, exists := elected[key]
	if !exists {
		delete(c.now, key)
		return had
	}
	next := c.here(node, choice).Resume(was)
	if resumed != nil && next.Host == node && next.Standby != "" {
		next.Former = resumed(key)
	}
	if had && next.Same(was) {
		return false
	}
	c.now[key] = next
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
