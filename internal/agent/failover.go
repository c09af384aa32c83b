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
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/internal/status"
)

// trustAfter is how long a node that was dead must answer before it counts as alive. By then the leader has usually
// confirmed another host; trusting it earlier would cause two moves for one pause.
const trustAfter = 3 * time.Second

// deaths holds the nodes that failed, and since when each answers again; zero: it does not.
type deaths map[string]time.Time

// see updates deaths from the BFD sessions. wait is the time until a node may be trusted again; 0: there is none.
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
		case s.State != bfd.Up: // neither failed nor up: a new speaker may have started
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

// together is the time within which several failures mean that this node was cut off, not that all are dead; longer if
// BFD is slowed.
const together = time.Second

// doubt is the possibility that this node itself is cut off.
type doubt struct {
	since time.Time // since when a node is silent while it is unknown whether others are; zero: no doubt
}

// judge returns which of the silent nodes are dead, as far as this node can know. If another node was heard recently,
// this node is not cut off, and all silent ones are dead. If other nodes became silent at the same time, this node is
// cut off, and none is dead. If others may be about to become silent, wait is the time until that shows. If there are
// no others, the silent node is dead.
func (d *doubt) judge(silent map[string]bool, sessions []bfd.Session, now time.Time) (dead map[string]bool, wait time.Duration) {
	heard, lost, unsure := false, len(silent) > 1, time.Duration(0)
	for _, s := range sessions {
		switch {
		case silent[s.Node]:
		case s.State == bfd.Up && s.Heard:
			heard = true
		case s.State == bfd.Up:
			unsure = max(unsure, s.Detection*2/3)
		case s.Failed && slices.ContainsFunc(sessions, func(o bfd.Session) bool {
			return silent[o.Node] && o.Failed && s.Since.Sub(o.Since).Abs() < together*time.Duration(max(s.Slowed, o.Slowed, 1))
		}):
			lost = true
		}
	}
	switch {
	case len(silent) == 0:
		d.since = time.Time{}
		return nil, 0
	case heard:
		return silent, 0
	case unsure > 0:
		if d.since.IsZero() {
			d.since = now
		}
		if wait = unsure - now.Sub(d.since); wait <= 0 {
			return silent, 0 // it would have shown by now
		}
		return nil, wait
	case lost:
		return nil, 0
	}
	return silent, 0
}

// silent returns the nodes that this node sees as dead: here their standbys are the hosts, until the leader decides.
func (a *Agent) silent(elected map[cluster.Key]election.Choice) map[string]bool {
	sessions := a.speakers.Nodes()
	a.last.watched = alive(sessions)
	for node := range a.last.watched {
		if !a.last.heard[node] {
			a.last.heard = maps.Clone(a.last.heard) // plans hold the previous map
			a.last.heard[node] = true
		}
	}
	now := time.Now()
	dead, wait := a.last.deaths.see(sessions, now)
	if wait > 0 {
		time.AfterFunc(wait, a.wake)
	}
	if dead, wait = a.last.doubt.judge(dead, sessions, now); wait > 0 {
		time.AfterFunc(wait, a.wake)
	}
	unsure := wait > 0
	if wait = a.last.answers.see(sessions, unsure, now); wait > 0 {
		time.AfterFunc(wait, a.wake)
	}
	for node := range dead {
		if a.last.dead[node] {
			continue
		}
		a.log.Warn("node went silent: its standbys are the hosts", "node", node)
		a.status.NodeLost()
		a.status.Stage(status.StageDetect, silence(a.last.config, sessions, node, now))
		a.last.failover.noticed = now
		a.last.sweep.ended = time.Time{}
	}
	for node := range a.last.dead {
		if !dead[node] {
			a.log.Info("node is no longer silent", "node", node)
		}
	}
	a.last.failing = !maps.Equal(dead, a.last.dead)
	a.last.dead, a.last.named = dead, named(elected, dead)
	return dead
}

// named returns the dead nodes that the choices still name. They stay watched, to see whether they come back.
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

// failedOver records that the failover from a silent node is in force.
func (a *Agent) failedOver(began time.Time) {
	if a.last.failing {
		a.log.Info("failover is in force", "silent", slices.Sorted(maps.Keys(a.last.dead)), "took", time.Since(began).Round(time.Millisecond))
	}
	a.last.failing = false
	if f := &a.last.failover; !f.noticed.IsZero() {
		f.steered = time.Now()
		a.status.Stage(status.StageSteer, f.steered.Sub(f.noticed))
		f.noticed = time.Time{}
	}
}

// failover is the progress of this node's failover from a dead one.
type failover struct {
	noticed   time.Time // zero: the failover is in force
	steered   time.Time // zero: the failover is announced
	announced []plan.Speaker
}

// announcedInstead records that the speaker has the announcements that follow from a node's death.
func (a *Agent) announcedInstead(speakers []plan.Speaker, err error) {
	f := &a.last.failover
	if err != nil {
		return
	}
	if !f.steered.IsZero() && !sorted.OneSlice(f.announced, speakers) {
		a.status.Stage(status.StageAnnounce, time.Since(f.steered))
	}
	f.announced, f.steered = speakers, time.Time{}
}

// silence returns how long a dead node has not been heard: the detection time, and the time since it failed.
func silence(c *config.Config, sessions []bfd.Session, node string, now time.Time) (longest time.Duration) {
	for _, s := range sessions {
		if s.Node != node || !s.Failed {
			continue
		}
		longest = max(longest, now.Sub(s.Since))
		if c != nil {
			p := c.Failover.BFD
			detection := time.Duration(p.DetectMultiplier) * time.Duration(max(p.TransmitInterval, p.ReceiveInterval)) * time.Millisecond * time.Duration(max(s.Slowed, 1))
			longest = max(longest, detection+now.Sub(s.Since))
		}
	}
	return longest
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

// heard returns the nodes known to run a daemon, because they have answered once. With an API server it returns nil:
// only nodes that report become host or standby.
func (a *Agent) heard() map[string]bool {
	if _, ok := a.source.(following); ok {
		return nil
	}
	return a.last.heard
}

// nodeBFD returns the options for BFD with other nodes.
func nodeBFD(c *config.Config) bfd.Options {
	return bfd.Options{Port: c.Failover.BFD.Port, Profile: c.Failover.BFD.Profile()}
}

// peers returns the nodes to run BFD with: the watched ones, and all that may watch this one.
func peers(c *config.Config, objects cluster.Objects, watched []string) (all []bfd.Peer) {
	if !c.Failover.BFD.Enabled {
		return nil
	}
	own := objects.Nodes.At(c.Node)
	for name, n := range objects.Nodes.All() {
		if name == c.Node {
			continue
		}
		// Both ends arrive at the same family.
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
