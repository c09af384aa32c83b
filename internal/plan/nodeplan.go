// Package plan turns a snapshot of everything known into the one desired state of this node. It is pure: no clock, no
// I/O, no log, no global. The same snapshot gives the same plan, in any order of its parts.
package plan

import (
	"cmp"
	"math/bits"
	"net"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/qos"
	"github.com/egressway/egressway/internal/sorted"
)

// Snapshot holds all inputs of a plan.
type Snapshot struct {
	Node    string
	Config  *config.Config
	Objects cluster.Objects
	Hosts   map[election.Seat]election.Choice
	Facts   Facts
	Learned []NetworkRoutes // from peers, sorted by network
	// Unsettled names networks whose peers have not announced all their routes yet since the daemon started.
	Unsettled []string
	// Unmade names VRF devices and VLAN sub-interfaces that the kernel did not make, or not as planned, when the last plan was
	// applied, sorted.
	Unmade   []string
	Draining bool // this node hands its services over to others
	Leaving  bool // this node has handed its services over: it announces nothing
	// HeldDown names networks in which this node announces nothing until its role there is confirmed.
	HeldDown []string
	// Unsure names devices on which this node answers for no address until its role is confirmed, sorted.
	Unsure []string
	// APIServer holds the addresses at which the API server has answered, sorted: by whatever name the kubeconfig calls it.
	APIServer []netip.Addr
	// InternalIPv4 is that of this node as last known: while its Node is missing, its router ID stays.
	InternalIPv4 netip.Addr
	// Heard holds the nodes known to run a daemon, as far as the plan needs that; nil: every host and standby runs one.
	Heard map[string]bool
	// Answering holds the nodes to which packets may be steered, because their packet filters are in force. nil: no detector
	// watches nodes, and packets may be steered to all of them.
	Answering map[string]bool
}

// answers reports whether packets may be steered to a node.
func (s *Snapshot) answers(node string) bool { return s.Answering == nil || s.Answering[node] }

// Facts is the kernel state of this node that a plan depends on.
type Facts struct {
	Links []Link
	// Paths holds the path ids in force, so that marks in live packets and connections keep their meaning.
	Paths map[PathKey]PathID
	// Routed holds the networks' tables that contain a usable unicast route, per family.
	Routed map[uint32]Families
	// Gateways are those of routes that no routing daemon learned: static routes, and those of DHCP and router
	// advertisements. Sorted.
	Gateways []netip.Addr
	// EgressHook reports that the kernel has nftables' egress hook of devices, which PathShared needs.
	EgressHook bool
	// ARP reports that the kernel has nftables' family arp, without which a node does not answer for addresses on its links.
	ARP bool
}

// Families is a set of address families.
type Families struct {
	IPv4, IPv6 bool
}

// Link is a network interface of this node.
type Link struct {
	Name     string
	Index    int
	Up       bool   // administratively up with carrier
	Master   string // VRF or bridge it is enslaved to
	VRFTable uint32 // table, if this is a VRF device
	Parent   string // of a VLAN sub-interface
	VLAN     uint16 // its ID; 0: it is no VLAN sub-interface
	Ours     bool   // the daemon made it
	MTU      int
	OnLink   bool           // this node answers there for addresses of EgressIPs, which are not among Addrs
	Addrs    []netip.Prefix // with the interface's prefix length
}

// NetworkRoutes are the routes learned from the peers of one network.
type NetworkRoutes struct {
	Network string
	Routes  sorted.List[Route] // Table is 0
}

// NodePlan is the desired state of one node. Its slices and lists are sorted, lists by their unique keys: addresses,
// prefixes, object keys. Of its parts, only Services and Waiting name objects of the API. Lists are for what may be many and
// changes row by row; slices are replaced as a whole. sorted.Share and sorted.Same compare plans.
type NodePlan struct {
	Node      string               `json:"node"`
	VRFs      []VRF                `json:"vrfs,omitempty"`
	VLANs     []VLAN               `json:"vlans,omitempty"`
	Tunnel    *Tunnel              `json:"tunnel,omitempty"` // nil: no VXLAN steering
	Rules     []Rule               `json:"rules,omitempty"`
	Routes    sorted.List[Route]   `json:"routes,omitzero"` // all routes that we own, in all tables
	DataPlane DataPlane            `json:"dataPlane"`
	Speakers  []Speaker            `json:"speakers,omitempty"`
	Leaving   bool                 `json:"leaving,omitempty"`  // the speakers announce nothing: other nodes have this node's services
	HeldDown  []string             `json:"heldDown,omitempty"` // networks that wait: this node's role there is not confirmed
	Services  sorted.List[Service] `json:"services,omitzero"`  // for display: each EgressService as it is on this node
	Watched   []string             `json:"watched,omitempty"`  // nodes whose death must be detected: hosts and standbys of pods, partners
	Absent    []Absence            `json:"absent,omitempty"`   // networks that the kernel does not have, or not yet
	Held      []uint32             `json:"held,omitempty"`     // tables in which unplanned routes of ours stay for now
	Waiting   sorted.List[Waiting] `json:"waiting,omitzero"`   // for display: pods of this node that an entry of hold selects
	// EgressQoSes are for display: as they are on this node.
	EgressQoSes sorted.List[qos.Object] `json:"egressQoSes,omitzero"`
	// QoSPods are for explanations: the addresses of pods that rules of EgressQoSes select.
	QoSPods sorted.List[qos.Pod] `json:"-"`
	// EgressFirewalls are for display: as they are on this node.
	EgressFirewalls sorted.List[firewall.Object] `json:"egressFirewalls,omitzero"`
}

// Absence explains why the kernel does not have a network.
type Absence struct {
	Network   string `json:"network"`
	Why       string `json:"why"`
	Elsewhere bool   `json:"elsewhere,omitempty"` // the configuration gives it to other nodes
}

// AbsenceOf returns why the kernel does not have a network; empty: its devices exist.
func (p *NodePlan) AbsenceOf(network string) string {
	for _, a := range p.Absent {
		if a.Network == network {
			return a.Why
		}
	}
	return ""
}

// IsElsewhere reports whether the configuration gives a network to other nodes.
func (p *NodePlan) IsElsewhere(network string) bool {
	return slices.ContainsFunc(p.Absent, func(a Absence) bool { return a.Network == network && a.Elsewhere })
}

// DeviceOf returns the interface by which a peer of a network is on-link; empty: it is reached by routing, or is not planned.
func (p *NodePlan) DeviceOf(network, peer string) string {
	for i := range p.Speakers {
		if p.Speakers[i].Network != network {
			continue
		}
		for _, q := range p.Speakers[i].Peers {
			if q.PeerName() == peer {
				return q.Device
			}
		}
	}
	return ""
}

// VRF is a VRF device with the interfaces enslaved to it. An existing device is adopted as it is.
type VRF struct {
	Name       string   `json:"name"`
	Table      uint32   `json:"table"`
	Create     bool     `json:"create,omitempty"`     // if it does not exist
	Interfaces []string `json:"interfaces,omitempty"` // to enslave; others stay as they are
}

// Tunnel is our VXLAN device and the hosts reached through it.
type Tunnel struct {
	Device string       `json:"device"`
	VNI    uint32       `json:"vni"`
	Port   uint16       `json:"port"`
	MTU    int          `json:"mtu"`
	Local  netip.Addr   `json:"local,omitzero"` // underlay address of this node
	MAC    MAC          `json:"mac"`            // of our device, derived from Local
	Hosts  []TunnelHost `json:"hosts,omitempty"`
	// Spare reports that no packets of this node go by the device, and others' may come only if path ids run out there: all
	// else may be in force without it.
	Spare bool `json:"spare,omitempty"`
}

// Host returns the host with a MAC; false: there is none.
func (t *Tunnel) Host(m MAC) (h TunnelHost, ok bool) {
	if t == nil || m == (MAC{}) {
		return h, false
	}
	i := slices.IndexFunc(t.Hosts, func(h TunnelHost) bool { return h.MAC == m })
	if i < 0 {
		return h, false
	}
	return t.Hosts[i], true
}

// MAC is an Ethernet address.
type MAC [6]byte

// Nowhere is the MAC of the next hop of PathShared. No node has it: the tunnel drops a packet whose destination MAC was not
// replaced by a host's.
var Nowhere = MAC{0x02}

// MarshalText writes the address as six colon-separated bytes.
func (m MAC) MarshalText() ([]byte, error) { return []byte(net.HardwareAddr(m[:]).String()), nil }

// TunnelHost is a host that packets are steered to. Its next hops are addresses by which this node alone finds its MAC. The host of
// Nowhere has no node and no underlay address.
type TunnelHost struct {
	Node     string     `json:"node,omitempty"`
	Remote   netip.Addr `json:"remote,omitzero"` // underlay address
	MAC      MAC        `json:"mac"`
	NextHop4 netip.Addr `json:"nextHop4,omitzero"` // 169.254.0.0/16 address made of the path's id; invalid: the host is on PathShared
	NextHop6 netip.Addr `json:"nextHop6,omitzero"` // fe80::/64 address made of MAC
}

// Rule is a routing policy rule, made for IPv4 and IPv6 alike.
type Rule struct {
	Priority    int    `json:"priority"`
	Mark        uint32 `json:"mark"`
	Mask        uint32 `json:"mask"`
	Table       uint32 `json:"table,omitempty"` // 0 with Unreachable
	Unreachable bool   `json:"unreachable,omitempty"`
}

// Route is a route that we own. Exactly one of NextHops and Unreachable is set.
type Route struct {
	Table       uint32       `json:"table,omitempty"`
	Dst         netip.Prefix `json:"dst"`
	Metric      uint32       `json:"metric,omitempty"` // 0: the kernel's default of the family
	NextHops    []NextHop    `json:"nextHops,omitempty"`
	Unreachable bool         `json:"unreachable,omitempty"`
}

// NextHop is one of the next hops of a route, all of equal weight.
type NextHop struct {
	Gateway netip.Addr `json:"gateway,omitzero"` // may be IPv6 for an IPv4 route, RFC 8950
	Device  string     `json:"device"`
	OnLink  bool       `json:"onLink,omitempty"`
}

// PathID numbers a path within the mark. 0 is no path.
type PathID uint32

// PathKey identifies a path, across restarts too.
type PathKey struct {
	Kind PathKind `json:"kind"`
	Name string   `json:"name"` // of the network or node
}

// PathKind is the kind of target that a path leads to.
type PathKind string

// The kinds of path.
const (
	PathNetwork PathKind = "network" // out of this node by a network
	PathSteer   PathKind = "steer"   // to another node that is a host
	PathShared  PathKind = "shared"  // to the hosts for which no path id is left, each by its MAC on the tunnel device
)

// Steers reports whether the path leads to other nodes.
func (k PathKey) Steers() bool { return k.Kind == PathSteer || k.Kind == PathShared }

// sharedPath is the path to all hosts for which no path id is left.
var sharedPath = PathKey{PathShared, "tunnel"}

// DataPlane holds the packet rules: a packet's source decides its path and the source address it leaves with.
type DataPlane struct {
	Marks   Marks    `json:"marks"`
	Paths   []Path   `json:"paths,omitempty"`
	Uplinks []Uplink `json:"uplinks,omitempty"`
	// Endpoints are the selected pods' addresses.
	Endpoints sorted.List[Endpoint] `json:"endpoints,omitzero"`
	// Cluster holds destinations that are never steered: pods, Services, nodes.
	Cluster []netip.Prefix `json:"cluster,omitempty"`
	// Pods holds sources that must not leave by an uplink without SNAT, nor be reached from one.
	Pods []netip.Prefix `json:"pods,omitempty"`
	// Guests holds pods of other nodes. Their packets out of the cluster arrive by a device of Between only if their node
	// steers them. Those of pods that are not selected here, not yet or no longer, are dropped.
	Guests  []netip.Prefix `json:"guests,omitempty"`
	Between []string       `json:"between,omitempty"` // devices that lead to other nodes
	// Ingress holds the ingress IPs that have a network, each with its network's path.
	Ingress sorted.List[IngressIP] `json:"ingress,omitzero"`
	// OnLink holds the addresses of EgressIPs for which this node answers ARP and neighbour solicitations.
	OnLink sorted.List[OnLink] `json:"onLink,omitzero"`
	// ClampMSS4 and ClampMSS6 bound the TCP segments on tunnelled paths, in bytes; 0: not clamped.
	ClampMSS4 uint16 `json:"clampMSS4,omitempty"`
	ClampMSS6 uint16 `json:"clampMSS6,omitempty"`
	// CountSent makes the kernel count packets that leave with an ingress IP.
	CountSent bool `json:"countSent,omitempty"`
	// IPVS: the kernel translates addresses of Services after routing, as kube-proxy's IPVS mode does, and sends such packets as its own.
	IPVS bool `json:"ipvs,omitempty"`
	// Hold drops new flows to the outside from Pods while their source is neither an endpoint nor in Let.
	Hold bool `json:"hold,omitempty"`
	// Let holds the addresses of this node's pods that need not be endpoints; empty without Hold.
	Let sorted.List[Address] `json:"let,omitzero"`
	// QoS holds the classes of Marked, sorted by ID.
	QoS []qos.Class `json:"qos,omitempty"`
	// Marked holds the addresses of this node's pods whose packets get DSCP values.
	Marked sorted.List[qos.Marked] `json:"marked,omitzero"`
	// Policies holds the policies of Firewalled, sorted by ID.
	Policies []firewall.Policy `json:"policies,omitempty"`
	// Firewalled holds the addresses of this node's pods that begin only connections which their policy allows.
	Firewalled sorted.List[firewall.Firewalled] `json:"firewalled,omitzero"`
	// Inside holds the destinations that no policy denies: pods, Services, and what never leaves a link; empty without Policies.
	Inside []netip.Prefix `json:"inside,omitempty"`
	// Resolvers holds the servers whose answers say which addresses DNS names have, sorted; empty unless a policy has names.
	Resolvers []netip.Addr `json:"resolvers,omitempty"`
	// Asked holds those of Resolvers that the daemon itself asks for names.
	Asked []netip.Addr `json:"asked,omitempty"`
}

// Path is a way out of this node.
type Path struct {
	ID    PathID  `json:"id"`
	Key   PathKey `json:"key"`
	Table uint32  `json:"table,omitempty"`
	// Devices are those by which its packets leave; empty for the default network: all that are no other network's uplinks.
	Devices  []string `json:"devices,omitempty"`
	Tunneled bool     `json:"tunneled,omitempty"`
	// Via holds the next hops, one for each family, of a path to another node on the LAN: other paths may use its device.
	Via []netip.Addr `json:"via,omitempty"`
}

// Default reports whether the path leads into the network without a VRF.
func (p *Path) Default() bool {
	return p.Key.Kind == PathNetwork && p.Key.Name == config.DefaultNetwork
}

// Uplink is an interface that belongs to a network: a VRF device, an interface enslaved to it, or one of a bare table.
type Uplink struct {
	Device string `json:"device"`
	Path   PathID `json:"path"`
	Nodes  bool   `json:"nodes,omitempty"` // other nodes are in its subnets, and may steer pods here by it
}

// Endpoint is a selected pod's address.
type Endpoint struct {
	Addr netip.Addr `json:"addr,omitzero"`
	Path PathID     `json:"path"` // 0: dropped
	// Source is the source address after SNAT: the ingress IP on the host, Addr itself where packets are steered on.
	// Invalid: the outgoing interface's address.
	Source netip.Addr `json:"source,omitzero"`
	Node   string     `json:"node,omitempty"` // the pod's; empty: not known
	// Kept is the way by the standby. Flows that used it when the standby was the host may stay on it.
	Kept Way `json:"kept,omitzero"`
	// Via is the MAC of the host to which the shared path leads, if that is one of the paths above.
	Via MAC `json:"via,omitzero"`
}

// Way is a path and the source that packets have on it.
type Way struct {
	Path   PathID     `json:"path"`
	Source netip.Addr `json:"source,omitzero"`
}

// IngressIP is an address that clients use.
type IngressIP struct {
	Addr netip.Addr `json:"addr,omitzero"`
	Path PathID     `json:"path"` // of its network; 0: the network has no path here
	// Stray leads from the host to the standby, and from the standby to the host: packets of connections unknown here
	// belong there. 0: they are not passed on.
	Stray PathID `json:"stray,omitempty"`
	// Via is the MAC of that node, if Stray is the shared path.
	Via MAC `json:"via,omitzero"`
	// Resumed reports that the node at the end of Stray is the host, or was the host before: TCP connections that began there
	// continue there.
	Resumed bool `json:"resumed,omitempty"`
	// Handed reports that packets go on by Stray whichever device they come by: the address is in network default, which has no
	// uplinks.
	Handed bool `json:"handed,omitempty"`
	// Counted makes this node, as host or standby, count packets that leave with this address.
	Counted bool `json:"counted,omitempty"`
}

// OnLink is an address for which this node answers on one of its devices, and on no other.
type OnLink struct {
	Addr   netip.Addr `json:"addr,omitzero"`
	Device string     `json:"device"`
}

// Waiting is an address of a pod of this node whose packets leave only once it is an endpoint.
type Waiting struct {
	Addr  netip.Addr  `json:"addr,omitzero"`
	Pod   cluster.Key `json:"pod"`
	Entry int         `json:"entry"` // index of the entry of hold that selects it
}

// Announcement is an ingress IP that a speaker announces.
type Announcement struct {
	Prefix netip.Prefix `json:"prefix"`
	// Standby marks the path for when the host's is gone: every router, at any distance, prefers the host's.
	Standby bool `json:"standby,omitempty"`
	// Term decides between two nodes that both announce as the host for a moment: routers prefer the higher one. 0: not known.
	Term int64 `json:"term,omitempty"`
	// Shutdown asks routers to look for another path while this one still works (RFC 8326).
	Shutdown bool `json:"shutdown,omitempty"`
}

// Speaker is the BGP speaker of one network.
type Speaker struct {
	Network         string                    `json:"network"`
	Device          string                    `json:"device,omitempty"` // VRF device to bind to; empty: none
	DeviceIndex     int                       `json:"-"`                // of Device: a recreated device needs new sockets
	ASN             uint32                    `json:"asn"`
	RouterID        netip.Addr                `json:"routerID,omitzero"`
	ListenPort      int                       `json:"listenPort"`
	GracefulRestart config.GracefulRestart    `json:"gracefulRestart"`
	Peers           []Peer                    `json:"peers,omitempty"`
	Announce        sorted.List[Announcement] `json:"announce,omitzero"` // exactly these
	Refuse          sorted.List[Prefix]       `json:"refuse,omitzero"`   // never learned, nor anything inside
	// Subnets are those of this node's links in the table of learned routes: they are never learned, nor anything inside.
	Subnets []netip.Prefix `json:"subnets,omitempty"`
	// Guarded holds further addresses: a route around one is learned only if receive lists that route.
	Guarded []netip.Addr `json:"guarded,omitempty"`
}

// Peer is a session's configuration with this node's addresses and interfaces for it.
type Peer struct {
	config.Peer
	BFD      *config.BFDProfile `json:"bfd,omitempty"`
	NextHop4 netip.Addr         `json:"nextHop4,omitzero"` // our address towards it, next hop of announcements; invalid: none
	NextHop6 netip.Addr         `json:"nextHop6,omitzero"`
	Device   string             `json:"device,omitempty"` // interface of an on-link peer; empty: reached by routing
	OnLink   []netip.Prefix     `json:"onLink,omitempty"` // our addresses in the subnets of its next hops; empty: not known
}

// Service describes one EgressService, or one address of an object of another kind, as it is on this node.
type Service struct {
	Key        cluster.Key        `json:"key"`
	SourceIPBy cluster.SourceIPBy `json:"sourceIPBy"`
	Network    string             `json:"network"`
	Host       string             `json:"host"`
	Standby    string             `json:"standby,omitempty"`
	Parted     string             `json:"parted,omitempty"` // node that was host or standby beside this one until a moment ago
	IngressIPs []netip.Addr       `json:"ingressIPs,omitempty"`
	Endpoints  int                `json:"endpoints"`           // selected addresses in the cluster
	Local      int                `json:"local"`               // endpoints on this node
	Announced  []netip.Addr       `json:"announced,omitempty"` // from this node
	OnLink     string             `json:"onLink,omitempty"`    // device on which this node answers for the address; empty: none
	Aside      bool               `json:"aside,omitempty"`     // this node is elected, but lacks the network and has no role
	Kind       cluster.Kind       `json:"kind,omitzero"`
	Slot       netip.Addr         `json:"slot,omitzero"` // the address; invalid: the row describes the object as a whole
}

// Masquerade reports whether egress leaves the pod's own node with the outgoing interface's address.
func (s Service) Masquerade() bool { return s.SourceIPBy == cluster.SourceIPByNetwork }

// Marks defines our bits of the packet mark and of the conntrack mark: the top bit of the mask means "egress", the
// others hold a path id. In a packet mark, all path bits without the egress bit mean "cluster": the main table.
// In a conntrack mark, egress and N is an egress flow on path N; N alone is a connection that came in by network N.
type Marks struct {
	Mask     uint32 `json:"mask"`
	Priority int    `json:"priority"` // of the first rule
}

func (m Marks) shift() int { return bits.TrailingZeros32(m.Mask) }

// EgressBit is the bit that marks egress.
func (m Marks) EgressBit() uint32 { return 1 << (31 - bits.LeadingZeros32(m.Mask)) }

// Egress is the mark of an egress packet on path id.
func (m Marks) Egress(id PathID) uint32 { return m.Ingress(id) | m.EgressBit() }

// Floors returns the egress bit with one bit of the path id each. Every egress mark has both bits of at least one of them. The
// egress bit without a path id is never ours: the CNI plugin portmap sets bit 13 in packet marks.
func (m Marks) Floors() (marks []uint32) {
	for bit := uint32(1) << m.shift(); bit < m.EgressBit(); bit <<= 1 {
		marks = append(marks, m.EgressBit()|bit)
	}
	return marks
}

// Ingress is the conntrack mark of a connection that came in by the network of path id.
func (m Marks) Ingress(id PathID) uint32 { return uint32(id) << m.shift() }

// Cluster is the packet mark that means the main table.
func (m Marks) Cluster() uint32 { return m.Mask &^ m.EgressBit() }

// MaxPath is the largest path id that fits, also among the routing tables for steering.
func (m Marks) MaxPath() PathID {
	return PathID(config.Marks{Mask: m.Mask}.Paths())
}

// Path returns the path id in a mark of either kind.
func (m Marks) Path(mark uint32) PathID { return PathID((mark & m.Cluster()) >> m.shift()) }

// Way returns the path and the source of new connections of the endpoint.
func (e *Endpoint) Way() Way { return Way{Path: e.Path, Source: e.Source} }

// Compare orders endpoints by their addresses.
func (e Endpoint) Compare(o Endpoint) int { return e.Addr.Compare(o.Addr) }

// Equal reports whether two endpoints are the same.
func (e Endpoint) Equal(o Endpoint) bool { return e == o }

// Compare orders ingress IPs by their addresses.
func (i IngressIP) Compare(o IngressIP) int { return i.Addr.Compare(o.Addr) }

// Equal reports whether two ingress IPs are the same.
func (i IngressIP) Equal(o IngressIP) bool { return i == o }

// Compare orders addresses for which this node answers.
func (l OnLink) Compare(o OnLink) int { return l.Addr.Compare(o.Addr) }

// Equal reports whether two addresses are answered alike.
func (l OnLink) Equal(o OnLink) bool { return l == o }

// Compare orders announcements by their prefixes.
func (a Announcement) Compare(o Announcement) int { return comparePrefix(a.Prefix, o.Prefix) }

// Equal reports whether two announcements are the same.
func (a Announcement) Equal(o Announcement) bool { return a == o }

// ID returns the identity of the object.
func (s Service) ID() cluster.ID { return cluster.ID{Kind: s.Kind, Key: s.Key, Slot: s.Slot} }

// Compare orders services by their identities.
func (s Service) Compare(o Service) int { return s.ID().Compare(o.ID()) }

// Equal reports whether two services are the same.
func (s Service) Equal(o Service) bool {
	return s.ID() == o.ID() && s.SourceIPBy == o.SourceIPBy && s.Network == o.Network && s.Host == o.Host && s.Standby == o.Standby &&
		s.Parted == o.Parted &&
		s.Endpoints == o.Endpoints && s.Local == o.Local && s.Aside == o.Aside && s.OnLink == o.OnLink &&
		slices.Equal(s.IngressIPs, o.IngressIPs) && slices.Equal(s.Announced, o.Announced)
}

// Compare orders waiting addresses.
func (w Waiting) Compare(o Waiting) int { return w.Addr.Compare(o.Addr) }

// Equal reports whether an address waits for the same reason.
func (w Waiting) Equal(o Waiting) bool { return w == o }

// Address is an address as an element of a list.
type Address struct{ netip.Addr }

// Compare orders addresses.
func (a Address) Compare(o Address) int { return a.Addr.Compare(o.Addr) }

// Equal reports whether two addresses are the same.
func (a Address) Equal(o Address) bool { return a == o }

// Prefix is a prefix as an element of a list.
type Prefix struct{ netip.Prefix }

// Compare orders prefixes by their addresses, then by their lengths.
func (p Prefix) Compare(o Prefix) int { return comparePrefix(p.Prefix, o.Prefix) }

// Equal reports whether two prefixes are the same.
func (p Prefix) Equal(o Prefix) bool { return p == o }

// Compare orders routes by their tables, then by their destinations and metrics.
func (r Route) Compare(o Route) int {
	if c := cmp.Compare(r.Table, o.Table); c != 0 {
		return c
	}
	if c := comparePrefix(r.Dst, o.Dst); c != 0 {
		return c
	}
	return cmp.Compare(r.Metric, o.Metric)
}

// Equal reports whether two routes are the same.
func (r Route) Equal(o Route) bool {
	return r.Dst == o.Dst && r.Table == o.Table && r.Metric == o.Metric && r.Unreachable == o.Unreachable &&
		sorted.SameSlice(r.NextHops, o.NextHops)
}
