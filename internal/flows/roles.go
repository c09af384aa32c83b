package flows

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// Role states that this node and a peer are host and standby of an ingress IP, or the other way round.
type Role struct {
	Ingress netip.Addr  // source of its flows
	Local   netip.Addr  // InternalIP of this node
	Peer    netip.Addr  // InternalIP of the other node, of the same family
	Node    string      // the other node
	Host    bool        // this node is the host; otherwise Peer is
	Parted  bool        // the other one of the two was the standby until a moment ago: it hands over flows of its own pods, no more
	Path    plan.PathID // path of the network on this node
}

// Compare orders roles by their ingress IPs first.
func (r Role) Compare(o Role) int {
	return cmp.Or(
		r.Ingress.Compare(o.Ingress), r.Peer.Compare(o.Peer), r.Local.Compare(o.Local), cmp.Compare(r.Node, o.Node),
		one(r.Host)-one(o.Host), one(r.Parted)-one(o.Parted), cmp.Compare(r.Path, o.Path),
	)
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Equal reports whether two roles are the same.
func (r Role) Equal(o Role) bool { return r == o }

// Roles holds a node's roles in a plan. The zero Roles is that of no plan.
type Roles struct {
	all    sorted.List[Role]
	shared map[Role]int // number of further services with the same role: they may share an ingress IP
}

// Find returns the roles in a plan p. former is the plan of the last call: only the services that changed since are
// compared, so nodes and paths of networks must be unchanged. Without it, all are.
func (f *Roles) Find(former, p *plan.NodePlan, nodes cluster.Map[string, cluster.Node]) sorted.List[Role] {
	var services sorted.List[plan.Service]
	if former == nil {
		*f = Roles{shared: map[Role]int{}}
	} else {
		services = former.Services
	}
	var had, has []Role
	for was, is := range services.Changes(p.Services) {
		if was != nil && is != nil && sameRoles(was, is) {
			continue
		}
		had, has = appendRoles(had, was, former, nodes), appendRoles(has, is, p, nodes)
	}
	gone := f.unshare(had)
	set := f.share(has, gone)
	f.all = f.all.With(slices.Collect(maps.Keys(set)), slices.Collect(maps.Keys(gone)))
	return f.all
}

// unshare removes roles of services, and returns those that no other service has.
func (f *Roles) unshare(had []Role) (gone map[Role]bool) {
	gone = map[Role]bool{}
	for _, r := range had {
		if f.shared[r] == 0 {
			gone[r] = true
		} else if f.shared[r]--; f.shared[r] == 0 {
			delete(f.shared, r)
		}
	}
	return gone
}

// share adds roles of services, and returns those that are new. It removes from gone those that stay.
func (f *Roles) share(has []Role, gone map[Role]bool) (set map[Role]bool) {
	set = map[Role]bool{}
	for _, r := range has {
		_, there := f.all.Get(r)
		switch {
		case gone[r]:
			delete(gone, r)
		case there || set[r]:
			f.shared[r]++
		default:
			set[r] = true
		}
	}
	return set
}

// sameRoles reports whether two versions of a service have the same roles.
func sameRoles(a, b *plan.Service) bool {
	return a.Host == b.Host && a.Standby == b.Standby && a.Parted == b.Parted && a.Network == b.Network &&
		slices.Equal(a.IngressIPs, b.IngressIPs)
}

// appendRoles appends the roles that a service, which may be nil, has in a plan.
func appendRoles(roles []Role, s *plan.Service, p *plan.NodePlan, nodes cluster.Map[string, cluster.Node]) []Role {
	if s == nil {
		return roles
	}
	for _, parted := range []bool{false, true} {
		other := s.Parted
		if !parted {
			other = partner(s, p.Node)
		}
		role, ok := roleBeside(other, s, p, nodes)
		if !ok {
			continue
		}
		for i, a := range s.IngressIPs {
			if !slices.Contains(s.IngressIPs[:i], a) {
				role.Ingress, role.Parted = a, parted
				roles = append(roles, role)
			}
		}
	}
	return roles
}

// roleBeside returns the role that a service has in a plan beside another node, which may be none, for each of its ingress IPs.
func roleBeside(other string, s *plan.Service, p *plan.NodePlan, nodes cluster.Map[string, cluster.Node]) (role Role, ok bool) {
	if other == "" {
		return role, false
	}
	path := networkPath(p, s.Network)
	local, peer := internalIPs(nodes.At(p.Node), nodes.At(other))
	return Role{Local: local, Peer: peer, Node: other, Host: s.Host == p.Node, Path: path}, path != 0 && peer.IsValid()
}

// partner returns the standby of a service whose host is node, or the host if node is its standby; empty: there is none.
func partner(s *plan.Service, node string) string {
	other := ""
	switch node {
	case s.Host:
		other = s.Standby
	case s.Standby:
		other = s.Host
	}
	if other == node || other == cluster.AllHosts {
		return ""
	}
	return other
}

func networkPath(p *plan.NodePlan, network string) plan.PathID {
	for _, path := range p.DataPlane.Paths {
		if path.Key == (plan.PathKey{Kind: plan.PathNetwork, Name: network}) {
			return path.ID
		}
	}
	return 0
}

// internalIPs returns the first InternalIPs of two nodes that have a family in common, IPv4 before IPv6.
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
