package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
)

// reasonBFDFlaps means that a BFD session was lost repeatedly, and is slower than configured.
const reasonBFDFlaps cluster.Reason = "BFDFlaps"

// flaps returns a problem for each BFD session with a node or router that is slower than configured.
func flaps(node string, nodes []bfd.Session, sessions []bgp.Session) (problems []cluster.Problem) {
	const why = "the session was lost several times within minutes: its intervals are %d times the configured ones, " +
		"and get shorter after 5 minutes without a loss; "
	for _, s := range nodes {
		if s.Slowed > 0 {
			problems = append(problems, cluster.Problem{
				Kind: "Node", Object: node, Field: "failover.bfd", Value: s.Node, Reason: reasonBFDFlaps,
				Message: fmt.Sprintf(why+"the death of that node is noticed here that much later than configured, or by its Lease; "+
					"find out which of the two nodes stands still or loses packets, or set longer failover.bfd intervals on all nodes",
					s.Slowed),
			})
		}
	}
	for _, s := range sessions {
		if s.BFDSlowed > 0 {
			problems = append(problems, cluster.Problem{
				Kind: "Network", Object: s.Network, Field: "peers.bfdProfile", Value: s.Peer, Reason: reasonBFDFlaps,
				Message: fmt.Sprintf(why+"a failure of that router is noticed that much later, or after the hold time of BGP; "+
					"find out whether node %s or the router stands still or loses packets, or set longer intervals at both ends",
					s.BFDSlowed, node),
			})
		}
	}
	return problems
}

// refusedProblems returns problems of the networks and hosts whose routes are left out.
func refusedProblems(p *plan.NodePlan, refused []route.Refused) (problems []cluster.Problem) {
	for _, r := range refused {
		i := slices.IndexFunc(p.DataPlane.Paths, func(path plan.Path) bool { return path.Table == r.Table })
		if i < 0 {
			continue
		}
		found := cluster.Problem{
			Kind: "Network", Object: p.DataPlane.Paths[i].Key.Name, Field: "routes", Value: r.Dst.String(), Reason: r.Reason,
		}
		if p.DataPlane.Paths[i].Key.Steers() {
			found.Kind = "Node"
		} else if r.Learned {
			found.Field = "peers"
		}
		for _, hop := range r.NextHops {
			if hop.Gateway.IsValid() {
				found.Value += " via " + hop.Gateway.String()
			}
			if hop.Device != "" {
				found.Value += " dev " + hop.Device
			}
		}
		found.Message = fmt.Sprintf("node %s leaves this route out: %s; %s", p.Node, r.Err, remedyOf(&r, p.DataPlane.Paths[i].Tunneled))
		problems = append(problems, found)
	}
	return problems
}

// remedyOf says how the kernel would accept a route.
func remedyOf(r *route.Refused, tunneled bool) string {
	switch {
	case r.Reason == route.ReasonRouteCollides:
		return fmt.Sprintf("another program's route in table %d has this prefix and metric, and stays: "+
			"remove it, or give it another metric", r.Table)
	case r.Reason == route.ReasonDeviceDown:
		return "set the device up"
	case tunneled && r.Dst.Addr().Is6():
		return fmt.Sprintf("IPv6 packets need IPv6 on the tunnel's device: "+
			"set net.ipv6.conf.%s.disable_ipv6 to 0, or steering.mode to direct", r.NextHops[0].Device)
	case tunneled:
		return "no interface of the node may have the address of this next hop"
	}
	return "the router should announce a next hop on the link, or a route without a gateway must lead to this one"
}

// unmadeProblems returns a problem for each VRF device and each VLAN sub-interface that could not be made.
func unmadeProblems(node string, c *config.Config, unmade map[string]error) (problems []cluster.Problem) {
	for _, n := range c.Networks {
		add := func(field, device string, reason cluster.Reason) {
			if err := unmade[device]; err != nil {
				problems = append(problems, cluster.Problem{
					Kind: "Network", Object: n.Name, Field: field, Value: device, Reason: reason,
					Message: fmt.Sprintf("node %s cannot make it: %s", node, strings.ReplaceAll(err.Error(), "\n", "; ")),
				})
			}
		}
		add("vrf", n.VRF, reasonVRFNotMade)
		for _, i := range n.Interfaces {
			add("interfaces", i.Name, reasonVLANNotMade)
		}
	}
	return problems
}

// reasonVLANNotMade means that the kernel did not make a VLAN sub-interface, or not as configured.
const reasonVLANNotMade cluster.Reason = "VLANNotMade"

// reasonVRFNotMade means that the kernel did not make a network's VRF device, or did not put an interface into it.
const reasonVRFNotMade cluster.Reason = "VRFNotMade"

// configProblems turns the errors of a refused configuration into problems.
func configProblems(file string, err error) []cluster.Problem {
	var all config.Errors
	if !errors.As(err, &all) {
		return []cluster.Problem{{Kind: "Config", Object: file, Reason: reasonConfigRefused, Message: err.Error()}}
	}
	problems := make([]cluster.Problem, 0, len(all))
	for _, e := range all {
		problems = append(problems, cluster.Problem{Kind: "Config", Object: file, Reason: reasonConfigRefused, Message: fmt.Sprint(e)})
	}
	return problems
}

const (
	reasonConfigRefused cluster.Reason = "ConfigRefused"
	reasonNoSpeaker     cluster.Reason = "NoSpeaker"
	reasonNotWatched    cluster.Reason = "NodesNotWatched"
	reasonEndlessPasses cluster.Reason = "EndlessPasses"
)
