package plan

import (
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// way is the path of those endpoints of a source that share a family and whether they are on this node.
type way struct {
	path   PathID
	source netip.Addr
	own    bool // packets keep their source
	open   bool // the endpoints are treated as if they were not selected
	kept   Way
	ownToo bool // packets keep their source on the kept way
	via    MAC  // of the host to which the shared path leads
}

type ways [2][2]way

// endpoint returns the plan's row for an endpoint; false: it is treated as if it were not selected.
func (w *ways) endpoint(e endpoint, node string) (Endpoint, bool) {
	v := &w[familyOf(e.addr)][e.place(node)]
	row := Endpoint{Addr: e.addr, Path: v.path, Source: v.source, Node: e.node, Kept: v.kept, Via: v.via}
	if v.own {
		row.Source = e.addr
	}
	if v.ownToo {
		row.Kept.Source = e.addr
	}
	return row, !v.open
}

// waysOf decides the path and the source of the pods of a source. A pod of another node whose packets should not pass
// here has path 0, which drops packets that a stale route elsewhere brings here.
func (f *frame) waysOf(s *source) (w ways) {
	if !s.selects {
		return w
	}
	allow := f.noPath(s.network) == config.NoPathAllow
	for family := range w {
		there, v := &w[family][elsewhere], &w[family][here]
		there.path, there.source, there.own = f.pathOf(s, family, false)
		v.path, v.source, v.own = f.pathOf(s, family, true)
		v.open = v.path == 0 && allow
		v.kept, v.ownToo = f.keptOf(s, family)
		f.shareWay(v, s)
	}
	return w
}

// shareWay sets the host to which the shared path leads. A pod has one host there: if host and standby share the path, flows
// go to the host.
func (f *frame) shareWay(v *way, s *source) {
	if len(f.sharers) == 0 {
		return
	}
	shared := f.paths[sharedPath]
	switch {
	case v.path == shared:
		v.via = f.viaOf(s.host)
		if v.kept.Path == shared {
			v.kept, v.ownToo = Way{}, false
		}
	case v.kept.Path == shared:
		v.via = f.viaOf(s.standby)
	}
}

// pathOf returns the path of endpoints of a family, on this node if local, and the source address that they leave with.
func (f *frame) pathOf(s *source, family int, local bool) (id PathID, source netip.Addr, own bool) {
	switch {
	case s.network == nil || s.host == "":
	case s.sourceIPBy != cluster.SourceIPByNetwork:
		return f.pathByHost(s, family, local)
	case local && f.reachable(s.network, family == ipv4):
		return f.out(s.network), s.network.sources[family], false
	}
	return 0, source, false
}

// pathByHost is pathOf for a source whose endpoints leave by its host, with an ingress IP.
func (f *frame) pathByHost(s *source, family int, local bool) (id PathID, source netip.Addr, own bool) {
	ingress := s.sourceIP(family)
	switch {
	case !ingress.IsValid(): // the host would drop the packets
		return 0, source, false
	case f.sendsOut(s, local) && f.reachable(s.network, family == ipv4):
		return f.out(s.network), ingress, false
	case s.host == f.node || !local || f.hosts[s.host] == nil:
		return 0, source, false
	}
	if id = f.way(s.host, family == ipv4); id == 0 { // nothing leads there in this family
		return 0, source, false
	}
	return id, source, true
}

// sendsOut reports whether endpoints, on this node if local, leave here: this node is the host, or the standby, to which a node that
// learned of a move before this one steers already, or was one of them a moment ago, so that a node that has not learned of it does still.
func (f *frame) sendsOut(s *source, local bool) bool {
	return s.host == f.node || (s.standby == f.node || s.left) && !local
}

// keptOf returns the way by the standby for endpoints of this node. Where a host has the address itself, no flows stay at a former one:
// their answers come to the host, which hands on no strays.
func (f *frame) keptOf(s *source, family int) (kept Way, own bool) {
	source := s.sourceIP(family)
	switch {
	case s.network == nil || s.sourceIPBy == cluster.SourceIPByNetwork || !source.IsValid() || s.standby == "":
	case f.answeredOnLink(s) || f.delivers(s):
	case s.standby == f.node && f.reachable(s.network, family == ipv4):
		return Way{f.out(s.network), source}, false
	case s.standby != f.node:
		if id := f.way(s.standby, family == ipv4); id != 0 {
			return Way{Path: id}, true
		}
	}
	return Way{}, false
}

// goesOtherwise reports whether the way of some endpoint of the source differs. Ways without endpoints do not count: most
// sources have no endpoint on this node, and those ways differ whenever there is another node to steer to.
func (s *source) goesOtherwise(x, y ways) bool {
	for family := range x {
		for place := range x[family] {
			if s.has[family][place] && x[family][place] != y[family][place] {
				return true
			}
		}
	}
	return false
}

// sends holds the families of a source's packets on this node.
type sends struct {
	out     Families // leave by its network
	dropped Families
}

func (f *frame) sendsOf(s *source, w *ways) (n sends) {
	for family := range w {
		for place, v := range w[family] {
			if s.has[family][place] && !v.open {
				f.addSent(&n, s, v.path, only(family))
			}
		}
	}
	return n
}

// addSent adds the packets of a source on a path.
func (f *frame) addSent(n *sends, s *source, path PathID, of Families) {
	switch {
	case path == 0:
		n.dropped = n.dropped.and(of)
	case path == f.out(s.network):
		n.out = n.out.and(of)
	}
}

// only returns the set of one family.
func only(family int) Families { return Families{IPv4: family == ipv4, IPv6: family == ipv6} }

func (f Families) and(o Families) Families { return Families{f.IPv4 || o.IPv4, f.IPv6 || o.IPv6} }

// without returns the families that another set lacks.
func (f Families) without(o Families) Families { return Families{f.IPv4 && !o.IPv4, f.IPv6 && !o.IPv6} }

// has reports whether the set holds IPv4, or else IPv6.
func (f Families) has(ipv4 bool) bool { return ipv4 && f.IPv4 || !ipv4 && f.IPv6 }

// face describes how clients outside reach a source.
type face struct {
	network   string
	created   time.Time
	path      PathID    // of its network
	strays    [2]PathID // to the partner, by family
	via       MAC       // of the partner, if the shared path leads there
	resumed   bool
	handed    bool // strays come by any device
	counted   bool
	announced bool
	as        Announcement // without a prefix
	onLink    string       // device on which this node answers for the seat
}

func (f *frame) faceOf(s *source) (c face) {
	if s.network == nil || len(s.seats) == 0 {
		return c
	}
	c.network, c.created, c.path = s.network.name, s.created, f.out(s.network)
	c.strays, c.resumed = f.straysOf(s)
	if c.strays != [2]PathID{} {
		c.via = f.viaOf(s.partner(f.node))
		c.handed = s.network.name == config.DefaultNetwork
	}
	c.counted, c.onLink = f.countSent() && s.seatedAt(f.node), f.answersOn(s)
	if c.announced = f.announced(s); c.announced {
		// A standby that could not be elected is a former host, which serves until its flows end.
		standby := s.standsBy(f.node)
		c.as = Announcement{Standby: standby, Term: s.term, Shutdown: standby && !f.electable(s)}
	}
	return c
}

// straysOf returns the paths to the partner, and whether connections that began there continue there.
func (f *frame) straysOf(s *source) (strays [2]PathID, resumed bool) {
	partner := s.partner(f.node)
	if !runsDaemon(f.heard, partner) { // it would pass strays on
		return strays, false
	}
	if f.delivers(s) {
		return strays, false
	}
	// A router may go back and forth between two hosts, or two routers may disagree.
	resumed = s.standsBy(f.node) || s.left || s.host == f.node && s.former
	return [2]PathID{f.way(partner, true), f.way(partner, false)}, resumed
}

// delivers reports whether this node delivers packets to a source's addresses to itself, so that they do not leave it: as kube-proxy's IPVS
// mode requires, and where the address is one of an uplink outside of VRFs, since the kernel looks in table local before any of our rules.
func (f *frame) delivers(s *source) bool {
	if s.id.Kind == cluster.KindEgressService {
		return f.ipvs()
	}
	return s.network != nil && s.network.VRF == "" && f.answersOn(s) != ""
}

// countSent reports whether packets that leave with an ingress IP are counted. Only metrics per service show the counts.
func (f *frame) countSent() bool {
	return f.config.Status.PerService && f.config.Status.ServiceCounters
}

// announced reports whether this node announces the ingress IPs of a source.
func (f *frame) announced(s *source) bool {
	if s.network == nil || !f.usable(s.network) || s.network.lacks != "" || len(s.network.Peers) == 0 ||
		len(s.members) == 0 || len(s.seats) == 0 {
		return false
	}
	if s.host == cluster.AllHosts {
		return f.nodes.At(f.node).Ready && (!s.localTraffic || s.local > 0)
	}
	return s.seatedAt(f.node)
}

// electable reports whether this node may become the host of a source, as far as it can judge itself.
func (f *frame) electable(s *source) bool {
	n := f.nodes.At(f.node)
	if f.leaving || n.Cordoned {
		return false
	}
	if s.nodeSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(s.nodeSelector)
	return err == nil && selector.Matches(labels.Set(n.Labels))
}
