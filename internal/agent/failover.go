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
	"github.com/egressway/egressway/internal/liveness"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/internal/status"
)

// observe updates the failure detector. In this node's view the standbys of dead nodes are the hosts, until the leader decides.
func (a *Agent) observe(c *config.Config) liveness.View {
	now, sessions := time.Now(), a.speakers.Nodes()
	if a.last.settling.isNew(a.speakers.Started()) { // another speaker answers meanwhile, and watches no node yet
		a.last.others.detector.Restart(now)
	}
	v := a.last.others.detector.See(sessions, detectionTime(c), now)
	if v.Wait > 0 {
		time.AfterFunc(v.Wait, a.wake)
	}
	for _, f := range v.Failed {
		a.log.Warn("node went silent: its standbys are the hosts", "node", f.Node)
		a.status.NodeLost()
		a.status.Stage(status.StageDetect, f.Silent)
		a.last.others.failover.noticed = now
		a.last.sweep = sweep{}
	}
	for _, node := range v.Returned {
		a.log.Info("node is no longer silent", "node", node)
	}
	return v
}

// forget makes the failure detector forget the nodes without a Node object: one that comes back may have no daemon yet, or one whose packet
// filter is not in force. While this node's own Node is missing, so may be others that are there still: see docs/decisions/0017.
func (a *Agent) forget(c *config.Config, objects cluster.Objects) {
	exists := func(node string) bool {
		_, there := objects.Nodes.Get(node)
		return there
	}
	if exists(c.Node) {
		a.last.others.detector.Forget(exists)
	}
}

// trust gives the nodes of the last plan time to answer once a configuration has nodes watch each other: packets were steered to them
// without that.
func (a *Agent) trust(c *config.Config) {
	before := a.last.config
	if before != nil && a.last.plan != nil && c.Failover.BFD.Enabled && !before.Failover.BFD.Enabled {
		a.last.others.detector.Enable(a.last.plan.Watched, time.Now())
	}
}

// detectionTime returns after which time of silence a node has failed; 0 without a configuration.
func detectionTime(c *config.Config) time.Duration {
	if c == nil {
		return 0
	}
	p := c.Failover.BFD
	return time.Duration(p.DetectMultiplier) * time.Duration(max(p.TransmitInterval, p.ReceiveInterval)) * time.Millisecond
}

// failedOver records that the failover from a silent node is in force.
func (a *Agent) failedOver(began time.Time) {
	if a.last.others.failing {
		a.log.Info("failover is in force",
			"silent", slices.Sorted(maps.Keys(a.last.others.nodes.Dead)), "took", time.Since(began).Round(time.Millisecond))
	}
	a.last.others.failing = false
	if f := &a.last.others.failover; !f.noticed.IsZero() {
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
	f := &a.last.others.failover
	if err != nil {
		return
	}
	if !f.steered.IsZero() && !sorted.OneSlice(f.announced, speakers) {
		a.status.Stage(status.StageAnnounce, time.Since(f.steered))
	}
	f.announced, f.steered = speakers, time.Time{}
}

// sight returns what this node knows besides the elected choices. resumed is election.Sight.Resumed.
func (a *Agent) sight(c *config.Config, objects cluster.Objects, resumed func(election.Seat) bool) election.Sight {
	return election.Sight{
		Node: c.Node, Now: time.Now(), Dead: a.last.others.nodes.Dead, Silent: a.last.others.nodes.Silent(), Heard: a.heard(),
		Ready: func(node string) bool { return objects.Nodes.At(node).Ready },
		Keep:  time.Duration(c.Moves.KeepFlows), Resumed: resumed,
	}
}

// heard returns the nodes known to run a daemon, because they have answered once. With an API server it returns nil:
// only nodes that report become host or standby.
func (a *Agent) heard() map[string]bool {
	if a.server != nil {
		return nil
	}
	return a.last.others.nodes.Heard
}

// answering returns the nodes that packets may be handed to; nil: all, since nodes do not watch each other.
func (a *Agent) answering(c *config.Config) map[string]bool {
	if !c.Failover.BFD.Enabled {
		return nil
	}
	return a.last.others.nodes.Answering
}

// steeredTo returns the nodes that the packet filter steers to: by a path of their own, or by these MACs of tunnel devices.
func steeredTo(paths map[plan.PathKey]plan.PathID, shared map[plan.MAC]bool, all cluster.Map[string, cluster.Node]) (nodes []string) {
	for p := range paths {
		if p.Kind == plan.PathSteer {
			nodes = append(nodes, p.Name)
		}
	}
	if len(shared) == 0 {
		return nodes
	}
	for name, n := range all.All() {
		if slices.ContainsFunc(n.Internal, func(a netip.Addr) bool { return shared[plan.TunnelMAC(a)] }) {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

// resumed returns, in the first pass, which seats have connections that may go on at another node: a daemon that starts
// has no other source for that, and those connections would end.
func (a *Agent) resumed(objects cluster.Objects) (func(election.Seat) bool, error) {
	if a.last.choices.Choices() != nil {
		return nil, nil
	}
	addrs, err := a.kernel.Resumed()
	if err != nil {
		return nil, err
	}
	return func(seat election.Seat) bool {
		return slices.ContainsFunc(election.Addresses(objects, seat), func(a netip.Addr) bool { return addrs[a] })
	}, nil
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
