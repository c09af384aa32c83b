package plan

import (
	"cmp"
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
)

// egressIPs makes sources of EgressIPs: one for each address, whose members are the selected pods that leave with it, and one
// without an address for the pods that no address serves, which drops their packets.
type egressIPs struct{}

// assignable selects the nodes that may be the host of an EgressIP's address.
var assignable = cluster.Assignable()

func (egressIPs) sources(o *cluster.Objects) iter.Seq[cluster.ID] {
	return func(yield func(cluster.ID) bool) {
		for key, spec := range o.EgressIPs.All() {
			for _, id := range slotsOf(key, spec) {
				if !yield(id) {
					return
				}
			}
		}
	}
}

// slotsOf lists the sources of an EgressIP.
func slotsOf(key cluster.Key, spec cluster.EgressIP) []cluster.ID {
	all := []cluster.ID{cluster.KindEgressIP.ID(key)}
	for _, a := range spec.Addresses {
		all = append(all, cluster.ID{Kind: cluster.KindEgressIP, Key: key, Slot: a})
	}
	return all
}

func (egressIPs) size(o *cluster.Objects) (sources, addresses int) {
	return 2 * o.EgressIPs.Len(), 4 * o.EgressIPs.Len()
}

func (egressIPs) changed(r *pass, c cluster.Changed) iter.Seq[cluster.ID] {
	return func(yield func(cluster.ID) bool) {
		for key := range r.selection.touched(r, c) {
			spec, exists := r.Objects.EgressIPs.Get(key)
			for _, id := range r.selection.slots[key] { // those of before
				if !yield(id) {
					return
				}
			}
			if !exists {
				delete(r.selection.slots, key)
				continue
			}
			had, has := r.selection.slots[key], slotsOf(key, spec)
			r.selection.slots[key] = has
			for _, id := range has {
				if !slices.Contains(had, id) && !yield(id) {
					return
				}
			}
		}
	}
}

func (egressIPs) exists(o *cluster.Objects, id cluster.ID) bool {
	spec, exists := o.EgressIPs.Get(id.Key)
	return exists && (!id.Slot.IsValid() || slices.Contains(spec.Addresses, id.Slot))
}

// strange returns nothing: the members are addresses of Pods.
func (egressIPs) strange(*homes, cluster.Key, netip.Addr) stranger { return stranger{} }

func (egressIPs) words() words {
	return words{
		seats: "spec.egressIPs", members: "spec.podSelector", network: "spec.egressIPs", seat: "egress IP",
		seatInvalid: cluster.ReasonEgressIPConflict, seatTaken: cluster.ReasonAddressConflict, memberTaken: ReasonPodConflict,
	}
}

func (k egressIPs) read(r *redone, p *pass) {
	s, slot := r.source, r.id.Slot
	spec, exists := p.Objects.EgressIPs.At(r.id.Key), k.exists(&p.Objects, r.id)
	var choice election.Choice
	if exists {
		choice = p.Hosts[election.Seat{ID: r.id}]
	}
	r.election = s.seat(choice)
	s.created, s.since, s.nodeSelector = spec.Created, spec.Created, assignable
	if s.selects = false; !exists {
		return
	}
	r.raw = p.assigned(r.id.Key, spec)[slot]
	if s.selects = slot.IsValid() || len(r.raw) > 0; !slot.IsValid() {
		return
	}
	r.addresses = []cluster.Ingress{{IP: slot.String()}}
	s.network = p.ground.networkFor(slot)
	s.wanted = s.network.name
	s.standAside(p.ground)
	p.reportBarred(r, spec)
}

// reportBarred reports the namespaces that may not use the network of an EgressIP's address.
func (r *pass) reportBarred(one *redone, spec cluster.EgressIP) {
	n := one.network
	if n.Namespaces == nil {
		return
	}
	namespaces := r.selection.namespaces(r, spec)
	for _, m := range r.others(one.id.Key, spec) {
		namespaces = append(namespaces, m.Namespace)
	}
	slices.Sort(namespaces)
	for _, namespace := range slices.Compact(namespaces) {
		if !r.ground.allows(n, namespace) {
			one.findings.sample(one.id, "spec.egressIPs", one.id.Slot.String(), ReasonNetworkNotAllowed,
				"namespace %s may not use network %s, and its pods do not leave with this address: its labels do not match the network's "+
					"namespaces selector %q", namespace, n.name, metav1.FormatLabelSelector(n.Namespaces))
		}
	}
}

// networkFor returns the network of an egress IP. It depends on the configuration only, which all nodes have alike.
func (g *ground) networkFor(a netip.Addr) *network {
	return cmp.Or(g.byName[election.NetworkFor(g.config.Networks, a)], g.byName[config.DefaultNetwork])
}

// selection holds the Pods of each namespace, and the sources of each EgressIP. It is empty while there is no EgressIP.
type selection struct {
	pods  map[string]map[string]bool // names by namespace
	slots map[cluster.Key][]cluster.ID
}

// follow updates the Pods, in which those in changed differ.
func (x *selection) follow(r *pass, changed map[cluster.Key]bool) {
	switch {
	case r.Objects.EgressIPs.Len() == 0 && len(x.slots) == 0:
		*x = selection{}
	case x.pods == nil || r.fromScratch:
		x.restart(r)
	default:
		for key := range changed {
			x.note(r, key)
		}
	}
}

// restart reads all Pods. If not all sources are read from scratch, no EgressIP had a source before.
func (x *selection) restart(r *pass) {
	*x = selection{pods: map[string]map[string]bool{}, slots: map[cluster.Key][]cluster.ID{}}
	for key := range r.Objects.Pods.Keys() {
		x.note(r, key)
	}
	if r.fromScratch {
		for key, spec := range r.Objects.EgressIPs.All() {
			x.slots[key] = slotsOf(key, spec)
		}
	}
}

// note records whether a Pod exists.
func (x *selection) note(r *pass, key cluster.Key) {
	names := x.pods[key.Namespace]
	if _, exists := r.Objects.Pods.Get(key); !exists {
		delete(names, key.Name)
		return
	}
	if names == nil {
		names = map[string]bool{}
		x.pods[key.Namespace] = names
	}
	names[key.Name] = true
}

// touched returns the EgressIPs that changed, those that may select a Pod that changed, and those with an address whose claims
// of other kinds changed.
func (x *selection) touched(r *pass, c cluster.Changed) map[cluster.Key]bool {
	all := map[cluster.Key]bool{}
	for key := range c.Of[cluster.KindEgressIP] {
		all[key] = true
	}
	for a := range r.claims.before {
		for _, o := range r.claims.on(a) {
			if o.by.id.Kind == cluster.KindEgressIP && o.by.id.Slot == a {
				all[o.by.id.Key] = true
			}
		}
	}
	namespaces := map[string]bool{}
	for pod := range c.Pods {
		namespaces[pod.Namespace] = true
	}
	if len(namespaces) == 0 {
		return all
	}
	for key, spec := range r.Objects.EgressIPs.All() {
		for namespace := range namespaces {
			if spec.Selects(r.labelsOf(namespace)) {
				all[key] = true
			}
		}
	}
	return all
}

// labelsOf returns the labels of a namespace.
func (r *pass) labelsOf(namespace string) labels.Set {
	return r.Objects.Namespaces.At(namespace).Labels
}

// namespaces lists the namespaces with Pods that an EgressIP selects, sorted.
func (x *selection) namespaces(r *pass, spec cluster.EgressIP) (all []string) {
	for namespace, pods := range x.pods {
		if len(pods) > 0 && spec.Selects(r.labelsOf(namespace)) {
			all = append(all, namespace)
		}
	}
	slices.Sort(all)
	return all
}

// assigned returns the members of each address of an EgressIP, and with the zero address those that no address serves. It
// assigns every pod's address to one address of its family, by hashes only: all nodes assign alike, and only the pods of an
// address that comes or goes are assigned to another.
func (r *pass) assigned(key cluster.Key, spec cluster.EgressIP) map[netip.Addr][]cluster.Endpoint {
	if members, known := r.shares[key]; known {
		return members
	}
	members, free := map[netip.Addr][]cluster.Endpoint{}, slices.DeleteFunc(slices.Clone(spec.Addresses), r.taken)
	r.assignOthers(members, key, spec, free)
	for _, namespace := range r.selection.namespaces(r, spec) {
		usable := r.usable(key, free, namespace)
		for name := range r.selection.pods[namespace] {
			pod := r.Objects.Pods.At(cluster.Key{Namespace: namespace, Name: name})
			if !pod.HoldsAddresses() || !spec.Pods.Matches(labels.Set(pod.Labels)) {
				continue
			}
			for _, a := range pod.Addresses {
				if spec.Wants(a) {
					slot := assign(a, usable)
					members[slot] = append(members[slot], cluster.Endpoint{Address: a.String(), Node: pod.Node, Target: cluster.TargetPod})
				}
			}
		}
	}
	if r.shares == nil {
		r.shares = map[cluster.Key]map[netip.Addr][]cluster.Endpoint{}
	}
	r.shares[key] = members
	return members
}

// assignOthers adds the members on other nodes, of which this node does not follow the Pods.
func (r *pass) assignOthers(members map[netip.Addr][]cluster.Endpoint, key cluster.Key, spec cluster.EgressIP, free []netip.Addr) {
	usable := map[string][]netip.Addr{}
	for _, m := range r.others(key, spec) {
		if !spec.Wants(m.Addr) {
			continue
		}
		among, known := usable[m.Namespace]
		if !known {
			among = r.usable(key, free, m.Namespace)
			usable[m.Namespace] = among
		}
		slot := assign(m.Addr, among)
		members[slot] = append(members[slot], cluster.Endpoint{Address: m.Addr.String(), Node: m.Node, Target: cluster.TargetPod})
	}
}

// others lists the members of an EgressIP on other nodes. One with an invalid selector has none.
func (r *pass) others(key cluster.Key, spec cluster.EgressIP) (all []cluster.Member) {
	if spec.Namespaces == nil || spec.Pods == nil {
		return nil
	}
	for _, m := range r.Objects.Members.At(key) {
		if m.Node != r.Node {
			all = append(all, m)
		}
	}
	return all
}

// taken reports whether no EgressIP can have an address: it is inside the cluster, a peer's, the API server's, or has an owner of another
// kind. Addresses of which only some nodes know do not count, since all nodes have to assign pods alike. The claims of these kinds are
// up to date, because they are read first.
func (r *pass) taken(a netip.Addr) bool {
	if cluster.Within(r.ground.inside, a) || r.ground.peers[a] != "" || r.ground.apiEndpoints[a] {
		return true
	}
	v := r.claims.judge(a)
	before := func(o rank) bool { return o.is && o.id.Kind < cluster.KindEgressIP }
	return v.clusterIP || v.plain.is || before(v.seat) || before(v.owner)
}

// usable lists those of some addresses of an EgressIP with which pods of a namespace may leave: those that have a host, or all of
// a family if none has. They depend on parts of the snapshot that all nodes have alike.
func (r *pass) usable(key cluster.Key, addresses []netip.Addr, namespace string) (all []netip.Addr) {
	var idle []netip.Addr
	var served Families
	for _, a := range addresses {
		if !r.ground.allows(r.ground.networkFor(a), namespace) {
			continue
		}
		if r.Hosts[election.Seat{ID: cluster.ID{Kind: cluster.KindEgressIP, Key: key, Slot: a}}].Host == "" {
			idle = append(idle, a)
			continue
		}
		all, served = append(all, a), served.and(only(familyOf(a)))
	}
	for _, a := range idle {
		if !served.has(a.Is4()) {
			all = append(all, a)
		}
	}
	return all
}

// assign returns the one of some addresses, of the pod's family, that a rendezvous hash prefers for a pod's address; the zero
// address: there is none.
func assign(pod netip.Addr, among []netip.Addr) (best netip.Addr) {
	var most uint64
	for _, a := range among {
		if a.Is4() != pod.Is4() {
			continue
		}
		if score := mix(hashOf(a) ^ mix(hashOf(pod))); !best.IsValid() || score > most {
			best, most = a, score
		}
	}
	return best
}

// hashOf folds an address into a number.
func hashOf(a netip.Addr) uint64 {
	b := a.As16()
	return mix(binary.BigEndian.Uint64(b[:8])) ^ binary.BigEndian.Uint64(b[8:])
}

// mix spreads every bit over the whole number (Stafford's variant 13, as in SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// linkSubnet is a subnet of a device that is up.
type linkSubnet struct {
	netip.Prefix
	device string
}

// linkSubnets finds the subnets of each network's uplinks, the longest first.
func (g *ground) linkSubnets() map[string][]linkSubnet {
	all := map[string][]linkSubnet{}
	for _, n := range g.networks {
		if n.OnLink == config.OnLinkOff {
			continue
		}
		for _, l := range g.links {
			if l.Up && g.isUplinkOf(l, n) {
				all[n.name] = l.appendSubnets(all[n.name])
			}
		}
		slices.SortStableFunc(all[n.name], func(x, y linkSubnet) int { return y.Bits() - x.Bits() })
	}
	return all
}

// isUplinkOf reports whether neighbours of a network are on a link: it belongs to the network, and is no VRF device.
func (g *ground) isUplinkOf(l Link, n *network) bool {
	return g.belongs(l, n) && l.VRFTable == 0 && l.Name != ipvsDevice && (n.table != mainTable || !g.inVRF(l))
}

// appendSubnets appends the subnets of a link.
func (l *Link) appendSubnets(all []linkSubnet) []linkSubnet {
	for _, p := range l.Addrs {
		if a := p.Addr(); !p.IsSingleIP() && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			all = append(all, linkSubnet{p.Masked(), l.Name})
		}
	}
	return all
}

// holds reports whether a neighbour on the link may have an address: the first of a subnet, and the last of an IPv4 one, stand for
// several machines (RFC 919, RFC 4291).
func (s linkSubnet) holds(a netip.Addr) bool {
	if !s.Contains(a) || a.BitLen()-s.Bits() == 1 {
		return s.Contains(a)
	}
	return a != s.Addr() && (a.Is6() || a != cluster.LastAddr(s.Prefix))
}

// answersOn returns the device on which this node answers ARP and neighbour solicitations for a source's address; empty: on none. The
// host alone answers. Ingress IPs are left to the program that assigns them: it may answer for them itself.
func (f *frame) answersOn(s *source) string {
	n := s.network
	if s.id.Kind != cluster.KindEgressIP || len(s.seats) == 0 || len(s.members) == 0 || s.host != f.node || n == nil ||
		!f.usable(n) || n.lacks != "" || f.left {
		return ""
	}
	for _, subnet := range f.neighbours[n.name] {
		if subnet.holds(s.id.Slot) && !slices.Contains(f.unsure, subnet.device) {
			return subnet.device
		}
	}
	return ""
}

// answeredOnLink reports whether the host of a source answers for its address on a link, as far as this node can judge: the address is in
// the subnet of an uplink of this node, or its network has no peers on any node, so that only the hosts' uplinks are left.
func (f *frame) answeredOnLink(s *source) bool {
	n := s.network
	alone := len(n.Peers) == 0 && !n.PeersElsewhere && n.OnLink != config.OnLinkOff
	return s.id.Kind == cluster.KindEgressIP && (alone || holdAddress(f.neighbours[n.name], s.id.Slot))
}

// holdAddress reports whether a neighbour in one of the subnets may have an address.
func holdAddress(all []linkSubnet, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(l linkSubnet) bool { return l.holds(a) })
}
