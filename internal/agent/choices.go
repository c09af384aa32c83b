package agent

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
)

// choices holds the host and standby of each object, as this node sees them: as elected, except for nodes that it sees
// dead.
type choices struct {
	dead  map[string]bool
	heard map[string]bool // nodes known to run a daemon; nil: all hosts and standbys do
	now   map[cluster.Key]election.Choice
	// resumed reports whether an object's connections may go on at another node, by what an earlier run left in the kernel.
	resumed func(cluster.Key) bool
}

// update applies the elected choices, of which changed lists those that changed or are gone since the last call. It
// returns the keys of the resulting choices that changed or are gone.
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

// here returns one choice as this node sees it. With manifests, every node elects for itself. A host that the manifests
// name without a term gets one, so that a standby that takes over can announce a later term. A standby without a daemon
// does not take over: it would forward the packets by its default route.
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

// resumed returns, in the first pass, which services have connections that may go on at another node: a daemon that starts
// has no other source for that, and those connections would end.
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
