package plan

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/sorted"
)

// service is one EgressService on its way through Build.
type service struct {
	key       cluster.Key
	spec      cluster.EgressService
	service   cluster.Service
	network   *network // nil: none that it may use
	choice    election.Choice
	ingress   []netip.Addr // usable ingress IPs, in order
	endpoints []endpoint   // selected pods, sorted
}

type endpoint struct {
	addr netip.Addr
	node string // empty: unknown
}

// source is the address of the family of addr that egress leaves with on the host: the first ingress IP.
func (s *service) source(addr netip.Addr) netip.Addr {
	for _, a := range s.ingress {
		if a.Is4() == addr.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func (s *service) networkName() string {
	if s.network != nil {
		return s.network.name
	}
	if s.spec.Network != "" {
		return s.spec.Network
	}
	return config.DefaultNetwork
}

// readServices reads the EgressServices in the order in which they win over one another: the older first.
func (b *builder) readServices() []*service {
	services := make([]*service, 0, len(b.Objects.EgressServices))
	for key, spec := range b.Objects.EgressServices {
		services = append(services, &service{key: key, spec: spec, choice: b.Hosts[key]})
	}
	slices.SortFunc(services, func(x, y *service) int {
		if c := x.spec.Created.Compare(y.spec.Created); c != 0 {
			return c
		}
		return x.key.Compare(y.key)
	})
	for _, s := range services {
		s.network = b.networkOf(s.key, s.spec.Network)
		s.service = b.Objects.Services[s.key]
		start := len(b.problems)
		b.readIngress(s)
		badIngress := len(b.problems) > start
		start = len(b.problems)
		b.readEndpoints(s)
		badEndpoints := len(b.problems) > start
		if p := s.choice.Problem; p != nil {
			told := p.Reason == cluster.ReasonNoIngressIP && badIngress || p.Reason == cluster.ReasonNoEndpoints && badEndpoints
			if !told { // that there is none follows from why each of them is bad
				b.problems = append(b.problems, *p)
			}
		}
	}
	return services
}

// readIngress keeps the ingress IPs that can be served. An IP belongs to the network of the oldest object that wants it.
func (b *builder) readIngress(s *service) {
	if !s.service.LoadBalancer {
		return
	}
	const field = "status.loadBalancer.ingress"
	refuse := func(value string, reason cluster.Reason, format string, args ...any) {
		b.problem("EgressService", s.key.String(), field, value, reason, format, args...)
	}
	for _, in := range s.service.Ingress {
		if in.IP == "" {
			continue // a host name: the election tells where no IP stands beside it
		}
		a, err := netip.ParseAddr(in.IP)
		switch why := cluster.Unfit(a); {
		case err != nil:
			refuse(in.IP, ReasonInvalidAddress, "not an IP address")
			continue
		case why != "":
			refuse(in.IP, ReasonInvalidAddress, "%s cannot be announced nor be a source address", why)
			continue
		case b.nodeIPs[a] != "":
			refuse(in.IP, ReasonInvalidAddress, "is an address of node %s: an ingress IP must belong to no node", b.nodeIPs[a])
			continue
		case slices.Contains(s.ingress, a):
			continue
		}
		if owner, ok := b.clusterIPs[a]; ok {
			refuse(in.IP, ReasonInvalidAddress, "is the ClusterIP of Service %s", owner)
			continue
		}
		if owner, ok := b.owner[a]; ok {
			refuse(in.IP, ReasonInvalidAddress, "is an endpoint of EgressService %s, which is older", owner)
			continue
		}
		if within(b.inside, a) {
			refuse(in.IP, ReasonInvalidAddress, "is inside the cluster's range of pod or Service addresses")
			continue
		}
		name := s.networkName()
		if old, taken := b.ingress[a]; taken && old.network != name {
			refuse(in.IP, ReasonIngressConflict, "is served by EgressService %s in network %s; one ingress IP belongs to one network", old.key, old.network)
			continue
		} else if !taken && s.network != nil {
			b.ingress[a] = ingressOwner{s.key, name}
		}
		s.ingress = append(s.ingress, a)
	}
}

// readEndpoints keeps the addresses that are pods' and no older object's.
func (b *builder) readEndpoints(s *service) {
	seen := map[netip.Addr]int{} // its place among the endpoints
	refuse := func(value string, reason cluster.Reason, format string, args ...any) {
		b.problem("EgressService", s.key.String(), "endpoints", value, reason, format, args...)
	}
	for _, e := range b.Objects.Endpoints[s.key] {
		a, err := netip.ParseAddr(e.Address)
		why := cluster.Unfit(a)
		switch {
		case err != nil:
			refuse(e.Address, ReasonInvalidAddress, "not an IP address")
			continue
		case why != "":
			refuse(e.Address, ReasonInvalidAddress, "%s is no pod's address", why)
			continue
		case b.nodeIPs[a] != "" && (b.nodeIPs[a] == e.Node || e.Node == ""):
			continue // a hostNetwork pod: its packets are the node's own
		case b.nodeIPs[a] != "":
			refuse(e.Address, ReasonInvalidAddress, "is an address of node %s, not of a pod on node %s", b.nodeIPs[a], e.Node)
			continue
		}
		if owner, ok := b.clusterIPs[a]; ok {
			refuse(e.Address, ReasonInvalidAddress, "is the ClusterIP of Service %s, not a pod's address", owner)
			continue
		}
		if owner, ok := b.ingress[a]; ok {
			refuse(e.Address, ReasonInvalidAddress, "is an ingress IP of EgressService %s, not a pod's address", owner.key)
			continue
		}
		if network, ok := b.peers[a]; ok {
			refuse(e.Address, ReasonInvalidAddress, "is a BGP peer in network %s, not a pod", network)
			continue
		}
		if i, ok := seen[a]; ok {
			if s.endpoints[i].node != e.Node {
				s.endpoints[i].node = "" // on one of several: any may be right
			}
			continue
		}
		if owner, ok := b.owner[a]; ok {
			refuse(e.Address, ReasonEndpointConflict, "is selected by EgressService %s, which is older and keeps it", owner)
			continue
		}
		seen[a] = len(s.endpoints)
		b.owner[a] = s.key
		s.endpoints = append(s.endpoints, endpoint{a, e.Node})
	}
	slices.SortFunc(s.endpoints, func(x, y endpoint) int { return x.addr.Compare(y.addr) })
	if s.spec.SourceIPBy == cluster.SourceIPByNetwork || s.choice.Host == "" || len(s.ingress) == 0 {
		return
	}
	for _, family := range []struct {
		name string
		is   func(endpoint) bool
	}{
		{"IPv4", func(e endpoint) bool { return e.addr.Is4() }},
		{"IPv6", func(e endpoint) bool { return e.addr.Is6() }},
	} {
		if i := slices.IndexFunc(s.endpoints, family.is); i >= 0 && !s.source(s.endpoints[i].addr).IsValid() {
			b.problem("EgressService", s.key.String(), "", "", cluster.ReasonNoIngressIP,
				"its Service has %[1]s endpoints but no %[1]s ingress IP: their %[1]s packets have no source address", family.name)
		}
	}
}

// on says whether the endpoint is, or may be, on node.
func (e endpoint) on(node string) bool { return e.node == node || e.node == "" }

// selectEndpoints decides the path and the source of every selected pod. A pod of another node whose packets should
// not pass here has path 0: should one arrive, by a stale route elsewhere, it is dropped.
func (b *builder) selectEndpoints(services []*service) {
	var all []Endpoint
	for _, s := range services {
		for _, e := range s.endpoints {
			path, source := b.pathOf(s, e)
			if path == 0 && e.on(b.Node) && b.noPath(s.network) == config.NoPathAllow {
				continue // as if it was not selected
			}
			all = append(all, Endpoint{
				Addr: e.addr, Path: path, Source: source, Node: e.node, Kept: b.kept(s, e),
			})
		}
	}
	b.plan.DataPlane.Endpoints = sorted.Of(all...)
}

// pathOf is the path of one endpoint on this node and the address it leaves with.
func (b *builder) pathOf(s *service, e endpoint) (PathID, netip.Addr) {
	none := netip.Addr{}
	if s.network == nil || s.choice.Host == "" {
		return 0, none
	}
	local, out := e.on(b.Node), b.paths[PathKey{PathNetwork, s.network.name}]
	if s.spec.SourceIPBy == cluster.SourceIPByNetwork {
		if !local || !b.reachable(s.network, e.addr) {
			return 0, none
		}
		return out, none
	}
	source := s.source(e.addr)
	switch {
	case !source.IsValid(): // no ingress IP of this family: the host would drop it
		return 0, none
	case s.choice.Host == b.Node && b.reachable(s.network, e.addr):
		return out, source
	case s.choice.Standby == b.Node && !local && b.reachable(s.network, e.addr):
		return out, source // whoever has heard of a move before us steers here already
	case s.choice.Host == b.Node || !local || b.hosts[s.choice.Host] == nil:
		return 0, none
	}
	return b.paths[PathKey{PathSteer, s.choice.Host}], e.addr
}

// kept is the way by the standby of an endpoint of this node.
func (b *builder) kept(s *service, e endpoint) Way {
	source := s.source(e.addr)
	switch {
	case s.network == nil || s.spec.SourceIPBy == cluster.SourceIPByNetwork || !e.on(b.Node) || !source.IsValid() || s.choice.Standby == "":
	case s.choice.Standby == b.Node && b.reachable(s.network, e.addr):
		return Way{b.paths[PathKey{PathNetwork, s.network.name}], source}
	case s.choice.Standby != b.Node:
		if id := b.way(s.choice.Standby, e.addr); id != 0 {
			return Way{id, e.addr}
		}
	}
	return Way{}
}

// needRoutes tells of networks that selected pods are sent out by here, but that have no route of a family.
func (b *builder) needRoutes() {
	need := map[PathID]Families{}
	for e := range b.plan.DataPlane.Endpoints.All() {
		f := need[e.Path]
		f.IPv4, f.IPv6 = f.IPv4 || e.Addr.Is4(), f.IPv6 || e.Addr.Is6()
		need[e.Path] = f
	}
	for _, n := range b.networks {
		f, routed := need[b.paths[PathKey{PathNetwork, n.name}]], b.Facts.Routed[n.table]
		for _, family := range []struct {
			name    string
			missing bool
		}{{"IPv4", f.IPv4 && !routed.IPv4}, {"IPv6", f.IPv6 && !routed.IPv6}} {
			if family.missing {
				b.problem("Network", n.name, "table", strconv.Itoa(int(n.table)), ReasonNoRoute,
					"has no %s route on node %s: selected pods' packets are dropped until a peer tells one, or one is added", family.name, b.Node)
			}
		}
	}
}

// reachable says whether the network can carry packets of addr's family. Where packets without a route are dropped, the
// routing rules see to it packet by packet; where they are allowed out, the pods must not be selected in the first place.
func (b *builder) reachable(n *network, addr netip.Addr) bool {
	if !n.usable {
		return false
	}
	if b.noPath(n) != config.NoPathAllow {
		return true
	}
	routed := b.Facts.Routed[n.table]
	if addr.Is4() {
		return routed.IPv4
	}
	return routed.IPv6
}
