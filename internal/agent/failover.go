package agent

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
)

// trustAfter is how long a node that was dead must answer before it is taken for alive. By then the one that elects has most
// often confirmed that another is the host; before, there would be two moves for one pause.
const trustAfter = 3 * time.Second

// deaths is what this node holds of nodes that went silent: since when each answers again; zero: it does not.
type deaths map[string]time.Time

// see takes in what BFD says now. wait is the time until a node may be trusted again; 0: there is none.
func (d deaths) see(sessions []bfd.Session, now time.Time) (dead map[string]bool, wait time.Duration) {
	watched := map[string]bool{}
	for _, s := range sessions {
		if !s.Active {
			continue
		}
		watched[s.Node] = true
		back, known := d[s.Node]
		switch {
		case s.Failed:
			d[s.Node] = time.Time{}
		case known && back.IsZero():
			d[s.Node] = now
		case known && now.Sub(back) >= trustAfter:
			delete(d, s.Node)
		}
	}
	dead = map[string]bool{}
	for node, back := range d {
		switch {
		case !watched[node]:
			delete(d, node)
			continue
		case !back.IsZero() && (wait == 0 || trustAfter-now.Sub(back) < wait):
			wait = trustAfter - now.Sub(back)
		}
		dead[node] = true
	}
	return dead, wait
}

// failover makes the standby of a host that is dead the host, on this node, until the one that elects says who is.
func (a *Agent) failover(node string, choices map[cluster.Key]election.Choice) map[cluster.Key]election.Choice {
	sessions := a.speakers.Nodes()
	a.last.watched = alive(sessions)
	for node := range a.last.watched {
		a.last.heard[node] = true
	}
	dead, wait := a.last.deaths.see(sessions, time.Now())
	if wait > 0 {
		time.AfterFunc(wait, a.wake)
	}
	seen := map[string]bool{}
	for node := range a.last.watched {
		seen[node] = !dead[node]
	}
	dead = election.Silent(seen)
	for node := range dead {
		if !a.last.dead[node] {
			a.log.Warn("node went silent: its standbys are the hosts", "node", node)
		}
	}
	for node := range a.last.dead {
		if !dead[node] {
			a.log.Info("node is not silent any more", "node", node)
		}
	}
	a.last.failing = !maps.Equal(dead, a.last.dead)
	a.last.dead, a.last.named = dead, named(choices, dead)
	after, heard := election.Failover(choices, dead), a.heard()
	for key, c := range after {
		// With manifests, the standby may be a node without a daemon: it would send on by its default route what it gets.
		if heard != nil && c.Host != choices[key].Host && c.Host != node && !heard[c.Host] {
			after[key] = choices[key]
		}
	}
	return after
}

// named are the dead that the choices name still. They are watched as before, to see whether they come back.
func named(choices map[cluster.Key]election.Choice, dead map[string]bool) (nodes []string) {
	if len(dead) == 0 {
		return nil
	}
	for _, c := range choices {
		for _, node := range []string{c.Host, c.Standby} {
			if dead[node] && !slices.Contains(nodes, node) {
				nodes = append(nodes, node)
			}
		}
	}
	return nodes
}

// failedOver tells when what a node's silence led to is in force.
func (a *Agent) failedOver(began time.Time) {
	if a.last.failing {
		a.log.Info("failover is in force", "silent", slices.Sorted(maps.Keys(a.last.dead)), "took", time.Since(began).Round(time.Millisecond))
	}
	a.last.failing = false
}

// alive says of every watched node that was ever heard whether it is alive.
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

// heard are the nodes known to run a daemon, since they have answered once. With an API server, only one that reports is host or standby.
func (a *Agent) heard() map[string]bool {
	if _, ok := a.source.(apiServer); ok {
		return nil
	}
	return a.last.heard
}

// nodeBFD is how BFD runs with other nodes.
func nodeBFD(c *config.Config) bfd.Options {
	return bfd.Options{Port: c.Failover.BFD.Port, Profile: c.Failover.BFD.Profile()}
}

// peers are the nodes that BFD runs with: those watched, and all that may watch this one.
func peers(c *config.Config, objects cluster.Objects, watched []string) (all []bfd.Peer) {
	if !c.Failover.BFD.Enabled {
		return nil
	}
	own := objects.Nodes[c.Node]
	for name, n := range objects.Nodes {
		if name == c.Node {
			continue
		}
		// Both ends come to the same family.
		for _, ipv4 := range []bool{true, false} {
			local, remote := first(own.Internal, ipv4), first(n.Internal, ipv4)
			if local.IsValid() && remote.IsValid() {
				all = append(all, bfd.Peer{Node: name, Address: remote, Local: local, Active: slices.Contains(watched, name)})
				break
			}
		}
	}
	slices.SortFunc(all, func(x, y bfd.Peer) int { return cmp.Compare(x.Node, y.Node) })
	return all
}

func first(addrs []netip.Addr, ipv4 bool) netip.Addr {
	for _, a := range addrs {
		if a.Is4() == ipv4 {
			return a
		}
	}
	return netip.Addr{}
}
