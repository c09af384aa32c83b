package plan

import (
	"maps"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/sorted"
)

// speakers plans a BGP speaker for every network with peers, and what becomes of each service.
func (b *builder) speakers(services []*service) {
	rows := make([]Service, 0, len(services))
	announce := map[*network]map[netip.Prefix]Announcement{}
	for _, s := range services {
		addrs := b.announced(s)
		for _, a := range addrs {
			if announce[s.network] == nil {
				announce[s.network] = map[netip.Prefix]Announcement{}
			}
			p := netip.PrefixFrom(a, a.BitLen())
			own := b.announcement(s, p)
			if other, shared := announce[s.network][p]; !shared || other.worseThan(own) {
				announce[s.network][p] = own
			}
		}
		rows = append(rows, Service{
			Key: s.key, SourceIPBy: s.spec.SourceIPBy, Network: s.networkName(), Host: s.choice.Host, Standby: s.choice.Standby,
			IngressIPs: s.ingress, Endpoints: len(s.endpoints), Local: count(s.endpoints, func(e endpoint) bool { return e.node == b.Node }),
			Announced: addrs,
		})
	}
	b.plan.Services = sorted.Of(rows...)

	refuse := slices.Clone(b.plan.DataPlane.Cluster)
	for in := range b.plan.DataPlane.Ingress.All() {
		refuse = append(refuse, netip.PrefixFrom(in.Addr, in.Addr.BitLen()))
	}
	refused := make([]Prefix, 0, len(refuse))
	for _, p := range minimal(refuse) {
		refused = append(refused, Prefix{p})
	}
	for _, n := range b.networks {
		if !n.usable || len(n.Peers) == 0 {
			continue
		}
		device := slices.IndexFunc(b.Facts.Links, func(l Link) bool { return l.Name == n.VRF })
		if n.VRF != "" && device < 0 {
			continue // there is nothing to bind to before this plan has made it
		}
		s := Speaker{
			Network: n.name, Device: n.VRF, ASN: b.Config.BGP.ASN, RouterID: b.Config.BGP.RouterID, ListenPort: b.Config.BGP.ListenPort,
			GracefulRestart: b.Config.BGP.GracefulRestart, Announce: sorted.Of(slices.Collect(maps.Values(announce[n]))...), Refuse: sorted.Of(refused...),
		}
		if n.VRF != "" {
			s.DeviceIndex = b.Facts.Links[device].Index
		}
		if !s.RouterID.IsValid() {
			s.RouterID = b.internalIP(b.Node, true)
		}
		if !s.RouterID.IsValid() {
			b.problem("Config", "bgp.routerID", "", "", ReasonNoRouterID,
				"node %s has no IPv4 InternalIP to take the router ID from: set bgp.routerID", b.Node)
			continue
		}
		for _, p := range n.Peers {
			s.Peers = append(s.Peers, b.peer(n, p))
		}
		b.plan.Speakers = append(b.plan.Speakers, s)
	}
}

// announcement is how this node announces an ingress IP of the service. A standby that could not be elected is a former
// host, which serves until its flows have ended.
func (b *builder) announcement(s *service, p netip.Prefix) Announcement {
	standby := s.choice.Standby == b.Node && s.choice.Host != b.Node
	return Announcement{Prefix: p, Standby: standby, Term: s.choice.Term, Shutdown: standby && !b.electable(s)}
}

// electable says whether this node may become the host of a service, as far as it knows itself.
func (b *builder) electable(s *service) bool {
	n := b.Objects.Nodes[b.Node]
	if b.Draining || n.Cordoned {
		return false
	}
	if s.spec.NodeSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(s.spec.NodeSelector)
	return err == nil && selector.Matches(labels.Set(n.Labels))
}

// worseThan says that o is preferred, of two announcements of one ingress IP that Services share.
func (a Announcement) worseThan(o Announcement) bool {
	switch {
	case a.Standby != o.Standby:
		return a.Standby
	case a.Shutdown != o.Shutdown:
		return a.Shutdown
	}
	return o.Term > a.Term
}

func count[T any](s []T, is func(T) bool) (n int) {
	for _, x := range s {
		if is(x) {
			n++
		}
	}
	return n
}

// peer adds to a peer's configuration the interface that leads to it and our addresses there: the next hops to announce.
func (b *builder) peer(n *network, c config.Peer) Peer {
	p := Peer{Peer: c}
	for i := range b.Config.BGP.BFDProfiles {
		if f := b.Config.BGP.BFDProfiles[i]; c.BFDProfile != "" && f.Name == c.BFDProfile {
			p.BFD = &f
		}
	}
	belongs := func(l Link) bool {
		if len(n.devices) == 0 {
			return !b.isUplink(l.Name) && l.Name != b.Config.Steering.Device
		}
		return slices.Contains(n.devices, l.Name)
	}
	fallback := -1
	for i, l := range b.Facts.Links {
		if !belongs(l) {
			continue
		}
		if c.Interface == l.Name || slices.ContainsFunc(l.Addrs, func(a netip.Prefix) bool { return c.Address.IsValid() && a.Contains(c.Address) }) {
			p.Device = l.Name
			p.NextHop4, p.NextHop6 = nextHops(l)
			return p
		}
		if four, six := nextHops(l); fallback < 0 && (four.IsValid() || six.IsValid()) && l.Name != "lo" {
			fallback = i
		}
	}
	if c.Interface != "" {
		p.Device = c.Interface
	} else if fallback >= 0 { // beyond a router: any address of ours in that network
		p.NextHop4, p.NextHop6 = nextHops(b.Facts.Links[fallback])
	}
	return p
}

// nextHops picks the first global address of each family of a link.
func nextHops(l Link) (four, six netip.Addr) {
	for _, p := range l.Addrs {
		a := p.Addr()
		switch {
		case a.Is4() && !four.IsValid() && !a.IsLoopback():
			four = a
		case a.Is6() && !six.IsValid() && !a.IsLinkLocalUnicast() && !a.IsLoopback():
			six = a
		}
	}
	return four, six
}
