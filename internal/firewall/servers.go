package firewall

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
)

// APIServers returns the addresses and ports to which the Service of the API server translates its own, and that rules may deny:
// endpoints in ranges of pods and Services, in clusterCIDRs and on the link always pass. podCIDRs are those beside the Nodes'. A port that
// is not known is 0.
func APIServers(o *cluster.Objects, podCIDRs, clusterCIDRs []netip.Prefix) (all []netip.AddrPort) {
	endpoints := o.Endpoints.At(cluster.APIService)
	if len(endpoints) == 0 {
		return nil
	}
	exempt, port := exemptionsOf(o, podCIDRs, clusterCIDRs), tcpTarget(o.Services.At(cluster.APIService).Ports)
	for _, e := range endpoints {
		if a, err := cluster.ParseAddr(e.Address); err == nil && !exempt.has(a) {
			all = append(all, netip.AddrPortFrom(a, port))
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// tcpTarget returns the port to which a Service translates its first one of TCP; 0: it is not known.
func tcpTarget(ports []cluster.Port) uint16 {
	for _, p := range ports {
		if p.Protocol == "TCP" || p.Protocol == "" {
			return p.TargetPort
		}
	}
	return 0
}

// exemptions hold the destinations that rules cannot deny.
type exemptions struct {
	ranges  []netip.Prefix // of pods and Services
	cluster []netip.Prefix // clusterCIDRs: all but the nodes in them
	nodes   map[netip.Addr]bool
}

func exemptionsOf(o *cluster.Objects, podCIDRs, clusterCIDRs []netip.Prefix) exemptions {
	e := exemptions{ranges: slices.Concat(o.ServiceCIDRs, podCIDRs), cluster: clusterCIDRs, nodes: map[netip.Addr]bool{}}
	for _, n := range o.Nodes.All() {
		e.ranges = append(e.ranges, n.PodCIDRs...)
		for _, a := range n.Addresses {
			e.nodes[a] = true
		}
	}
	return e
}

func (e *exemptions) has(a netip.Addr) bool {
	in := func(ranges []netip.Prefix) bool {
		return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	return a.IsLoopback() || a.IsLinkLocalUnicast() || in(e.ranges) || in(e.cluster) && !e.nodes[a]
}

// DeniesAPIServer says which rule of an EgressFirewall denies which API server; empty: none does.
func DeniesAPIServer(e *cluster.EgressFirewall, servers []netip.AddrPort, nodes cluster.Map[string, cluster.Node]) string {
	for _, s := range servers {
		i := slices.IndexFunc(e.Rules, func(r cluster.FirewallRule) bool { return concerns(&r, s, nodes) })
		if i < 0 || !e.Rules[i].Deny {
			continue
		}
		at := s.String()
		if s.Port() == 0 {
			at = s.Addr().String()
		}
		return fmt.Sprintf("denies the API server at %s, by rule %d (%s): pods that need it need an Allow before this rule",
			at, e.Rules[i].Number, e.Rules[i].Text)
	}
	return ""
}

// concerns reports whether a rule matches TCP to an address and port, as far as that is known without DNS.
func concerns(r *cluster.FirewallRule, to netip.AddrPort, nodes cluster.Map[string, cluster.Node]) bool {
	if len(r.Ports) > 0 && !slices.Contains(r.Ports, cluster.FirewallPort{Protocol: unix.IPPROTO_TCP, Number: to.Port()}) {
		return false
	}
	switch {
	case r.Nodes != nil:
		for _, n := range nodes.All() {
			if slices.Contains(n.Addresses, to.Addr()) {
				return r.Nodes.Matches(labels.Set(n.Labels))
			}
		}
		return false
	case r.To.IsValid():
		return r.To.Contains(to.Addr())
	default:
		return r.Name == ""
	}
}
