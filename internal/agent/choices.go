package agent

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
)

// choices says who is host and standby of what, as this node has it: as elected, but for nodes that it sees dead.
type choices struct {
	dead  map[string]bool
	heard map[string]bool // nodes known to run a daemon; nil: whichever is host or standby does
	now   map[cluster.Key]election.Choice
	// resumed names the objects whose standby was the host before, by what a former run of the daemon left.
	resumed func(cluster.Key) bool
}

// update takes in what was elected, of which changed is not as it was the last time or gone, and names the choices that are
// others now, or gone.
func (c *choices) update(node string, elected map[cluster.Key]election.Choice, changed []cluster.Key, dead, heard map[string]bool) (differ []cluster.Key) {
	first := c.now == nil
	all := first || !maps.Equal(dead, c.dead) || !maps.Equal(heard, c.heard)
	c.dead, c.heard = dead, heard
	if c.now == nil {
		c.now = make(map[cluster.Key]election.Choice, len(elected))
	}
	set := func(key cluster.Key) {
		was, had := c.now[key]
		choice, exists := elected[key]
		if !exists {
			if delete(c.now, key); had {
				differ = append(differ, key)
			}
			return
		}
		next := c.here(node, choice).Resume(was)
		if first && next.Host == node && next.Standby != "" && c.resumed != nil {
			next.Former = c.resumed(key)
		}
		if !had || !next.Same(was) {
			c.now[key] = next
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

// here is what this node makes of one choice. With manifests, every node elects for itself: hosts that were written down
// without a term get one, for a standby that takes over must be able to announce a later one; and the standby may be a node without
// a daemon, which would send on by its default route what it gets.
func (c *choices) here(node string, choice election.Choice) election.Choice {
	if c.heard != nil && choice.Host != "" && choice.Host != cluster.AllHosts && choice.Term == 0 {
		choice.Term = 1
	}
	after, _ := choice.Failover(c.dead)
	if c.heard != nil && after.Host != choice.Host && after.Host != node && !c.heard[after.Host] {
		return choice
	}
	return after
}

// resumed tells, at the first pass, which services had a former host whose connections go on there: a daemon that starts
// does not know it from anybody else, and those connections would end.
func (a *Agent) resumed(objects cluster.Objects) (func(cluster.Key) bool, error) {
	if a.last.choices.now != nil {
		return nil, nil
	}
	addrs, err := a.kernel.Resumed()
	if err != nil {
		return nil, err
	}
	return func(key cluster.Key) bool {
		return slices.ContainsFunc(objects.Services.At(key).Ingress, func(in cluster.Ingress) bool {
			addr, err := netip.ParseAddr(in.IP)
			return err == nil && addrs[addr]
		})
	}, nil
}
