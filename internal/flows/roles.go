package flows

import (
	"net/netip"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
)

// Roles finds the ingress IPs of which a node is host or standby, and who is the other.
func Roles(p *plan.NodePlan, nodes map[string]cluster.Node) (roles []Role) {
	seen := map[Role]bool{}
	for s := range p.Services.All() {
		other := ""
		switch p.Node {
		case s.Host:
			other = s.Standby
		case s.Standby:
			other = s.Host
		}
		path := networkPath(p, s.Network)
		local, peer := internalIPs(nodes[p.Node], nodes[other])
		if other == "" || other == p.Node || other == cluster.AllHosts || path == 0 || !peer.IsValid() {
			continue
		}
		for _, a := range s.IngressIPs {
			r := Role{Ingress: a, Local: local, Peer: peer, Host: s.Host == p.Node, Path: path}
			if !seen[r] { // services may share an ingress IP
				seen[r] = true
				roles = append(roles, r)
			}
		}
	}
	return roles
}

func networkPath(p *plan.NodePlan, network string) plan.PathID {
	for _, path := range p.DataPlane.Paths {
		if path.Key == (plan.PathKey{Kind: plan.PathNetwork, Name: network}) {
			return path.ID
		}
	}
	return 0
}

// internalIPs are the first InternalIPs of two nodes that are of one family, IPv4 before IPv6.
func internalIPs(a, b cluster.Node) (ofA, ofB netip.Addr) {
	for _, ipv4 := range []bool{true, false} {
		x, y := first(a, ipv4), first(b, ipv4)
		if x.IsValid() && y.IsValid() {
			return x, y
		}
	}
	return netip.Addr{}, netip.Addr{}
}

func first(n cluster.Node, ipv4 bool) netip.Addr {
	for _, a := range n.Internal {
		if a.Is4() == ipv4 {
			return a
		}
	}
	return netip.Addr{}
}
