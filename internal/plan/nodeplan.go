// Package plan turns a snapshot of everything known into the one desired state of this node. It is pure: no clock, no
// I/O, no log, no global; the same snapshot gives the same plan, whatever the order of its parts.
package plan

import (
	"net/netip"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
)

// Snapshot is all that a plan depends on.
type Snapshot struct {
	Node    string
	Config  *config.Config
	Objects cluster.Objects
	Hosts   map[cluster.Key]election.Choice
	Facts   Facts
	Learned []NetworkRoutes // by peers, sorted by network
}

// Facts is what the kernel of this node says, as far as a plan depends on it.
type Facts struct {
	Links []Link // sorted by name
	// Paths holds the path ids in force, so that marks in live packets and connections keep their meaning.
	Paths map[PathKey]PathID
	// Routed holds the tables of networks in which a usable unicast route stands, per family.
	Routed map[uint32]Families
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

// NodePlan is the desired state of one node. Its slices are sorted; nothing in it names a custom resource but Services.
type NodePlan struct {
	Node       string
	VRFs       []VRF
	Tunnel     *Tunnel // nil: no VXLAN steering
	Rules      []Rule
	Routes     []Route // every route of ours, in every table
	DataPlane  DataPlane
	Speakers   []Speaker
	Services   []Service // for people: what becomes of each EgressService here
	RouteTable []uint32  // tables of networks whose facts matter
}

// VRF is a VRF device with the interfaces enslaved to it. An existing device is adopted as it is.
type VRF struct {
	Name       string
	Table      uint32
	Create     bool     // when it does not exist
	Interfaces []string // enslave these, others stay as they are
}

// Tunnel is our VXLAN device and the hosts reached through it.
type Tunnel struct {
	Device string
	VNI    uint32
	Port   uint16
	MTU    int
	Local  netip.Addr // underlay address of this node
	MAC    [6]byte    // of our device, derived from Local
	Hosts  []TunnelHost
}

// TunnelHost is a host steered to. The next hop is its device's link-local address, for both families.
type TunnelHost struct {
	Node    string
	Remote  netip.Addr // underlay address
	MAC     [6]byte
	NextHop netip.Addr // fe80::/64 address made of MAC
}

// Rule is a routing policy rule, made for IPv4 and IPv6 alike.
type Rule struct {
	Priority    int
	Mark, Mask  uint32
	Table       uint32 // 0 with Unreachable
	Unreachable bool
}

// Route is a route of ours. Exactly one of NextHops and Unreachable is set.
type Route struct {
	Table       uint32
	Dst         netip.Prefix
	Metric      uint32 // 0: the kernel's default of the family
	NextHops    []NextHop
	Unreachable bool
}

// NextHop is one leg of a route, of equal weight.
type NextHop struct {
	Gateway netip.Addr // may be IPv6 for an IPv4 route, RFC 8950
	Device  string
	OnLink  bool
}

// PathID numbers a path within the mark. 0 is no path.
type PathID uint32

// PathKey names what a path id stands for, across restarts.
type PathKey struct {
	Kind PathKind
	Name string // of the network or node
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
	Marks   Marks
	Paths   []Path
	Uplinks []Uplink
	// Endpoints are the selected pods' addresses.
	Endpoints []Endpoint
	// Cluster holds destinations that are never steered: pods, Services, nodes.
	Cluster []netip.Prefix
	// Pods holds sources that must not leave by an uplink as they are, nor be reached from one.
	Pods []netip.Prefix
	// Ingress holds the ingress IPs that are served, with the network that each belongs to.
	Ingress []IngressIP
	// ClampMSS is the most a TCP segment may hold on tunnelled paths, per family; 0: not clamped.
	ClampMSS4, ClampMSS6 uint16
}

// Path is a way out of this node.
type Path struct {
	ID    PathID
	Key   PathKey
	Table uint32
	// Devices by which its packets leave; empty for the default network: every device that is no uplink of another.
	Devices  []string
	Tunneled bool
}

// Uplink is an interface that belongs to a network: a VRF device, an interface enslaved to it, or one of a bare table.
type Uplink struct {
	Device string
	Path   PathID
}

// Endpoint is a selected pod's address.
type Endpoint struct {
	Addr netip.Addr
	Path PathID // 0: dropped
	// Source is the address it leaves with: the ingress IP on the host, itself where it is steered on.
	// Invalid: the outgoing interface's.
	Source netip.Addr
}

// IngressIP is an address that clients use.
type IngressIP struct {
	Addr netip.Addr
	Path PathID // of its network; 0: the network has no path here
}

// Speaker is the BGP speaker of one network.
type Speaker struct {
	Network         string
	Device          string // VRF device to bind to; empty: none
	ASN             uint32
	RouterID        netip.Addr
	ListenPort      int
	GracefulRestart config.GracefulRestart
	Peers           []Peer
	Announce        []netip.Prefix // exactly these
	Refuse          []netip.Prefix // never learned, nor anything inside or around but a default route
}

// Peer is a session's configuration and what this node adds to it.
type Peer struct {
	config.Peer
	BFD      *config.BFDProfile
	NextHop4 netip.Addr // our address towards it, what announcements name as next hop; invalid: none of that family
	NextHop6 netip.Addr
	Device   string // interface by which an on-link peer is reached; empty: by routing
}

// Service is what becomes of one EgressService on this node.
type Service struct {
	Key        cluster.Key
	SourceIPBy cluster.SourceIPBy
	Network    string
	Host       string
	Standby    string
	IngressIPs []netip.Addr
	Endpoints  int          // selected addresses in the cluster
	Local      int          // of them on this node
	Announced  []netip.Addr // from this node
}

// Masquerade says that egress leaves with the outgoing interface's address on the pod's own node.
func (s Service) Masquerade() bool { return s.SourceIPBy == cluster.SourceIPByNetwork }
