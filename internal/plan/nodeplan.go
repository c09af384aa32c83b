// Package plan turns a snapshot of everything known into the one desired state of this node. It is pure: no clock, no
// I/O, no log, no global; the same snapshot gives the same plan, whatever the order of its parts.
package plan

import (
	"net"
	"net/netip"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/sorted"
)

// Snapshot is all that a plan depends on.
type Snapshot struct {
	Node    string
	Config  *config.Config
	Objects cluster.Objects
	Hosts   map[cluster.Key]election.Choice
	Facts   Facts
	Learned []NetworkRoutes // by peers, sorted by network
	// Unsettled names networks whose peers have not told all they know since the daemon started.
	Unsettled []string
	// Unmade names VRF devices that the kernel did not make, or not as planned, when the last plan was applied, sorted.
	Unmade   []string
	Draining bool // this node is about to go
	// APIServer holds the addresses at which the API server has answered, sorted.
	APIServer []netip.Addr
	// Heard are the nodes that are known to run a daemon, as far as that matters; nil: whichever is host or standby does.
	Heard map[string]bool
	// Answering are the nodes that packets may be handed to: their packet filters are in force. nil: that is not watched, and
	// packets are handed to any.
	Answering map[string]bool
}

// answers reports whether packets may be handed to a node.
func (s *Snapshot) answers(node string) bool { return s.Answering == nil || s.Answering[node] }

// Facts is what the kernel of this node says, as far as a plan depends on it.
type Facts struct {
	Links []Link
	// Paths holds the path ids in force, so that marks in live packets and connections keep their meaning.
	Paths map[PathKey]PathID
	// Routed holds the tables of networks in which a usable unicast route stands, per family.
	Routed map[uint32]Families
	// Gateways are those of routes that nobody learned: static ones, and those of DHCP and router advertisements. Sorted.
	Gateways []netip.Addr
}

// Families says which address families hold.
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
	MTU      int
	Addrs    []netip.Prefix // with the interface's prefix length
}

// NetworkRoutes is what the peers of one network tell.
type NetworkRoutes struct {
	Network string
	Routes  []Route // Table is 0
}

// NodePlan is the desired state of one node. Its slices and lists are sorted, lists by what is told apart: addresses, prefixes, keys; nothing in it names a custom resource but Services.
type NodePlan struct {
	Node      string               `json:"node"`
	VRFs      []VRF                `json:"vrfs,omitempty"`
	Tunnel    *Tunnel              `json:"tunnel,omitempty"` // nil: no VXLAN steering
	Rules     []Rule               `json:"rules,omitempty"`
	Routes    []Route              `json:"routes,omitempty"` // every route of ours, in every table
	DataPlane DataPlane            `json:"dataPlane"`
	Speakers  []Speaker            `json:"speakers,omitempty"`
	Services  sorted.List[Service] `json:"services,omitzero"` // for people: what becomes of each EgressService here
	Watched   []string             `json:"watched,omitempty"` // nodes whose death this one must notice: hosts and standbys of its pods, and its partners
	Absent    []Absence            `json:"absent,omitempty"`  // networks that the kernel does not have, or not yet
	Held      []uint32             `json:"held,omitempty"`    // tables in which routes of ours stay although they are not planned, yet
	Waiting   sorted.List[Waiting] `json:"waiting,omitzero"`  // for people: pods of this node that an entry of hold selects
}

// Absence is why the kernel does not have a network.
type Absence struct {
	Network string `json:"network"`
	Why     string `json:"why"`
}

// AbsenceOf finds why the kernel does not have a network; empty: it has, as far as devices go.
func (p *NodePlan) AbsenceOf(network string) string {
	for _, a := range p.Absent {
		if a.Network == network {
			return a.Why
		}
	}
	return ""
}

// VRF is a VRF device with the interfaces enslaved to it. An existing device is adopted as it is.
type VRF struct {
	Name       string   `json:"name"`
	Table      uint32   `json:"table"`
	Create     bool     `json:"create,omitempty"`     // when it does not exist
	Interfaces []string `json:"interfaces,omitempty"` // enslave these, others stay as they are
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
}

// MAC is an Ethernet address.
type MAC [6]byte

// MarshalText writes the address as six colon-separated bytes.
func (m MAC) MarshalText() ([]byte, error) { return []byte(net.HardwareAddr(m[:]).String()), nil }

// TunnelHost is a host steered to. The next hop is its device's link-local address, for both families.
type TunnelHost struct {
	Node    string     `json:"node"`
	Remote  netip.Addr `json:"remote,omitzero"` // underlay address
	MAC     MAC        `json:"mac"`
	NextHop netip.Addr `json:"nextHop,omitzero"` // fe80::/64 address made of MAC
}

// Rule is a routing policy rule, made for IPv4 and IPv6 alike.
type Rule struct {
	Priority    int    `json:"priority"`
	Mark        uint32 `json:"mark"`
	Mask        uint32 `json:"mask"`
	Table       uint32 `json:"table,omitempty"` // 0 with Unreachable
	Unreachable bool   `json:"unreachable,omitempty"`
}

// Route is a route of ours. Exactly one of NextHops and Unreachable is set.
type Route struct {
	Table       uint32       `json:"table,omitempty"`
	Dst         netip.Prefix `json:"dst"`
	Metric      uint32       `json:"metric,omitempty"` // 0: the kernel's default of the family
	NextHops    []NextHop    `json:"nextHops,omitempty"`
	Unreachable bool         `json:"unreachable,omitempty"`
}

// NextHop is one leg of a route, of equal weight.
type NextHop struct {
	Gateway netip.Addr `json:"gateway,omitzero"` // may be IPv6 for an IPv4 route, RFC 8950
	Device  string     `json:"device"`
	OnLink  bool       `json:"onLink,omitempty"`
}

// PathID numbers a path within the mark. 0 is no path.
type PathID uint32

// PathKey names what a path id stands for, across restarts.
type PathKey struct {
	Kind PathKind `json:"kind"`
	Name string   `json:"name"` // of the network or node
}

// PathKind is what a path leads to.
type PathKind string

// The kinds of path.
const (
	PathNetwork PathKind = "network" // out by a network of this node
	PathSteer   PathKind = "steer"   // to another node that is a host
)

// DataPlane is what packets meet: how their source decides their path and their source address.
type DataPlane struct {
	Marks   Marks    `json:"marks"`
	Paths   []Path   `json:"paths,omitempty"`
	Uplinks []Uplink `json:"uplinks,omitempty"`
	// Endpoints are the selected pods' addresses.
	Endpoints sorted.List[Endpoint] `json:"endpoints,omitzero"`
	// Cluster holds destinations that are never steered: pods, Services, nodes.
	Cluster []netip.Prefix `json:"cluster,omitempty"`
	// Pods holds sources that must not leave by an uplink as they are, nor be reached from one.
	Pods []netip.Prefix `json:"pods,omitempty"`
	// Guests holds pods of other nodes. What they send out of the cluster comes here by one of Between only where their
	// node steers it: what is not selected here, not yet or no more, is dropped.
	Guests  []netip.Prefix `json:"guests,omitempty"`
	Between []string       `json:"between,omitempty"` // devices that lead to other nodes
	// Ingress holds the ingress IPs that have a network, with the network that each belongs to.
	Ingress sorted.List[IngressIP] `json:"ingress,omitzero"`
	// ClampMSS is the most a TCP segment may hold on tunnelled paths, per family; 0: not clamped.
	ClampMSS4 uint16 `json:"clampMSS4,omitempty"`
	ClampMSS6 uint16 `json:"clampMSS6,omitempty"`
	// CountSent says that what leaves with an ingress IP is counted.
	CountSent bool `json:"countSent,omitempty"`
	// Hold says that new flows to the outside from Pods are dropped, as long as their source is neither an endpoint nor in Let.
	Hold bool `json:"hold,omitempty"`
	// Let are the addresses of this node's pods that need not be endpoints; empty without Hold.
	Let sorted.List[Address] `json:"let,omitzero"`
}

// Path is a way out of this node.
type Path struct {
	ID    PathID  `json:"id"`
	Key   PathKey `json:"key"`
	Table uint32  `json:"table,omitempty"`
	// Devices by which its packets leave; empty for the default network: every device that is no uplink of another.
	Devices  []string `json:"devices,omitempty"`
	Tunneled bool     `json:"tunneled,omitempty"`
	// Via are its next hops, one a family, where others leave by the same device: those of a path to another node on the LAN.
	Via []netip.Addr `json:"via,omitempty"`
}

// Uplink is an interface that belongs to a network: a VRF device, an interface enslaved to it, or one of a bare table.
type Uplink struct {
	Device string `json:"device"`
	Path   PathID `json:"path"`
}

// Endpoint is a selected pod's address.
type Endpoint struct {
	Addr netip.Addr `json:"addr,omitzero"`
	Path PathID     `json:"path"` // 0: dropped
	// Source is the address it leaves with: the ingress IP on the host, itself where it is steered on.
	// Invalid: the outgoing interface's.
	Source netip.Addr `json:"source,omitzero"`
	Node   string     `json:"node,omitempty"` // for people: where the pod is; empty: not known
	// Kept is the way by the standby. A flow that took it, when the standby was the host, may stay there.
	Kept Way `json:"kept,omitzero"`
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
	// Stray leads to the other of host and standby: what comes for no connection that is known here is one of its. 0: to none.
	Stray PathID `json:"stray,omitempty"`
	// Resumed says that the other one was the host before: TCP connections that began there go on there.
	Resumed bool `json:"resumed,omitempty"`
	// Counted says that this node is host or standby, and counts what leaves with this address.
	Counted bool `json:"counted,omitempty"`
}

// Waiting is an address of a pod of this node that leaves as an endpoint only.
type Waiting struct {
	Addr  netip.Addr  `json:"addr,omitzero"`
	Pod   cluster.Key `json:"pod"`
	Entry int         `json:"entry"` // of the configuration's hold, that selects it
}

// Announcement is an ingress IP that a speaker announces.
type Announcement struct {
	Prefix netip.Prefix `json:"prefix"`
	// Standby is a path for when the host's is gone: worse at every router, however far away.
	Standby bool `json:"standby,omitempty"`
	// Term decides between two nodes that both announce as the host for a moment: routers prefer the later one. 0: not known.
	Term int64 `json:"term,omitempty"`
	// Shutdown asks routers to look for another path while this one still works (RFC 8326).
	Shutdown bool `json:"shutdown,omitempty"`
}

// Speaker is the BGP speaker of one network.
type Speaker struct {
	Network         string                    `json:"network"`
	Device          string                    `json:"device,omitempty"` // VRF device to bind to; empty: none
	DeviceIndex     int                       `json:"-"`                // of it: sockets stay bound to one that is made anew
	ASN             uint32                    `json:"asn"`
	RouterID        netip.Addr                `json:"routerID,omitzero"`
	ListenPort      int                       `json:"listenPort"`
	GracefulRestart config.GracefulRestart    `json:"gracefulRestart"`
	Peers           []Peer                    `json:"peers,omitempty"`
	Announce        sorted.List[Announcement] `json:"announce,omitzero"` // exactly these
	Refuse          sorted.List[Prefix]       `json:"refuse,omitzero"`   // never learned, nor anything inside
	Subnets         []netip.Prefix            `json:"subnets,omitempty"` // of this node's links in the table that routes are learned into: never learned, nor anything inside
	Guarded         []netip.Addr              `json:"guarded,omitempty"` // beyond these: a route around one is learned only where receive lists exactly it
}

// Peer is a session's configuration and what this node adds to it.
type Peer struct {
	config.Peer
	BFD      *config.BFDProfile `json:"bfd,omitempty"`
	NextHop4 netip.Addr         `json:"nextHop4,omitzero"` // our address towards it, what announcements name as next hop; invalid: none of that family
	NextHop6 netip.Addr         `json:"nextHop6,omitzero"`
	Device   string             `json:"device,omitempty"` // interface by which an on-link peer is reached; empty: by routing
	OnLink   []netip.Prefix     `json:"onLink,omitempty"` // our addresses, with lengths, beside which its next hops are; empty: not known
}

// Service is what becomes of one EgressService on this node.
type Service struct {
	Key        cluster.Key        `json:"key"`
	SourceIPBy cluster.SourceIPBy `json:"sourceIPBy"`
	Network    string             `json:"network"`
	Host       string             `json:"host"`
	Standby    string             `json:"standby,omitempty"`
	IngressIPs []netip.Addr       `json:"ingressIPs,omitempty"`
	Endpoints  int                `json:"endpoints"`           // selected addresses in the cluster
	Local      int                `json:"local"`               // of them on this node
	Announced  []netip.Addr       `json:"announced,omitempty"` // from this node
	Aside      bool               `json:"aside,omitempty"`     // this node is elected host or standby, and has no such role as it lacks the network
}

// Masquerade says that egress leaves with the outgoing interface's address on the pod's own node.
func (s Service) Masquerade() bool { return s.SourceIPBy == cluster.SourceIPByNetwork }
