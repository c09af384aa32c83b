// Package config is the daemon's configuration: its types, its defaults, and how a file becomes one of them with every
// error found at once.
package config

import (
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Config is the whole configuration of one daemon. The zero value of a field means its default, see Defaults.
type Config struct {
	Node         string         `yaml:"node"`         // name of the node; default $NODE_NAME, then the host name
	Source       Source         `yaml:"source"`       // where objects come from
	ClusterCIDRs []netip.Prefix `yaml:"clusterCIDRs"` // never steered, beside what the objects tell
	OnNoPath     NoPath         `yaml:"onNoPath"`     // what happens to a selected pod without host or route
	Steering     Steering       `yaml:"steering"`
	Marks        Marks          `yaml:"marks"`
	BGP          BGP            `yaml:"bgp"`
	Networks     []Network      `yaml:"networks"`
	// AllowUnlisted permits a spec.network that no entry of Networks names: a number is a routing table, a string an
	// existing VRF device.
	AllowUnlisted bool     `yaml:"allowUnlisted"`
	Moves         Moves    `yaml:"moves"`
	OnStop        OnStop   `yaml:"onStop"`
	Failover      Failover `yaml:"failover"`
	Speaker       Speaker  `yaml:"speaker"`
	Status        Status   `yaml:"status"`
	Log           Log      `yaml:"log"`
}

// Source says where objects come from; exactly one is used, Manifests if it is set.
type Source struct {
	Kubernetes Kubernetes `yaml:"kubernetes"`
	Manifests  string     `yaml:"manifests"` // a folder of YAML files, watched
}

// Kubernetes says how to reach the API server.
type Kubernetes struct {
	Kubeconfig string `yaml:"kubeconfig"` // default: the service account inside a cluster
	Namespace  string `yaml:"namespace"`  // of the Leases; default $POD_NAMESPACE, then the service account's, then egressway-system
	LabelHosts bool   `yaml:"labelHosts"` // label the host's node egress-service.k8s.ovn.org/<namespace>-<name>
}

// NoPath is what happens to a selected pod's packets while there is no host or no route for them.
type NoPath string

// The choices of NoPath. NoPathDefault stands in a network's entry for the global choice.
const (
	NoPathDefault NoPath = ""
	NoPathDrop    NoPath = "drop"
	NoPathAllow   NoPath = "allow"
)

// Steering says how an endpoint's egress reaches the host from another node.
type Steering struct {
	Mode   SteeringMode `yaml:"mode"`
	Device string       `yaml:"device"` // name of our VXLAN device
	VNI    uint32       `yaml:"vni"`
	Port   uint16       `yaml:"port"` // UDP
	MTU    int          `yaml:"mtu"`  // of the VXLAN device, bytes; 0: the underlay's less the encapsulation
}

// SteeringMode is how steered packets travel.
type SteeringMode string

// The choices of SteeringMode.
const (
	SteeringAuto   SteeringMode = "auto"   // direct where the host's node IP is on-link, else VXLAN
	SteeringDirect SteeringMode = "direct" // by the host's node IP as next hop, on-link only
	SteeringVXLAN  SteeringMode = "vxlan"
)

// Marks says which bits of the fwmark and of the conntrack mark are ours, and where our rules stand.
type Marks struct {
	Mask         uint32 `yaml:"mask"`         // contiguous, at least 4 bits
	RulePriority int    `yaml:"rulePriority"` // first of our band of 100 priorities; before the kernel's l3mdev rule at 1000
}

// BGP is what all speakers share.
type BGP struct {
	ASN             uint32          `yaml:"asn"`
	RouterID        netip.Addr      `yaml:"routerID"`   // default: the node's IPv4 InternalIP
	ListenPort      int             `yaml:"listenPort"` // -1: dial only
	GracefulRestart GracefulRestart `yaml:"gracefulRestart"`
	BFDProfiles     []BFDProfile    `yaml:"bfdProfiles"`
}

// GracefulRestart is RFC 4724's: peers keep our routes while the daemon restarts.
type GracefulRestart struct {
	Enabled     bool     `yaml:"enabled" json:"enabled"`
	RestartTime Duration `yaml:"restartTime" json:"restartTime"` // at most 4095 s
}

// BFDProfile holds RFC 5880 timers, in milliseconds.
type BFDProfile struct {
	Name             string `yaml:"name" json:"name,omitempty"`
	TransmitInterval uint32 `yaml:"transmitInterval" json:"transmitInterval,omitempty"`
	ReceiveInterval  uint32 `yaml:"receiveInterval" json:"receiveInterval,omitempty"`
	DetectMultiplier uint8  `yaml:"detectMultiplier" json:"detectMultiplier,omitempty"`
}

// DefaultNetwork is the name of the network that is the main table, used by objects that name none.
const DefaultNetwork = "default"

// Network is what an EgressService's spec.network names: a VRF with its table, or a bare routing table.
type Network struct {
	Name       string                `yaml:"name"`
	VRF        string                `yaml:"vrf"`        // VRF device; adopted when it exists, created when Interfaces are listed
	Interfaces []string              `yaml:"interfaces"` // uplinks; with a VRF we enslave them to it
	Table      uint32                `yaml:"table"`      // needed to create the VRF; alone: a network without a VRF device
	Namespaces *metav1.LabelSelector `yaml:"namespaces"` // who may use it; nil: everybody
	OnNoPath   NoPath                `yaml:"onNoPath"`   // overrides Config.OnNoPath
	Peers      []Peer                `yaml:"peers"`
}

// DynamicASN admits a peer by the kind of its AS instead of by its number.
type DynamicASN string

// The choices of DynamicASN.
const (
	DynamicNone     DynamicASN = ""
	DynamicExternal DynamicASN = "external"
	DynamicInternal DynamicASN = "internal"
)

// Family is an address family of a session.
type Family string

// The choices of Family.
const (
	IPv4Unicast Family = "ipv4unicast"
	IPv6Unicast Family = "ipv6unicast"
)

// Peer is a BGP neighbour of one network.
type Peer struct {
	Address         netip.Addr      `yaml:"address" json:"address,omitzero"`
	Interface       string          `yaml:"interface" json:"interface,omitempty"` // instead of Address: unnumbered, the neighbour's link-local address is learned
	Port            uint16          `yaml:"port" json:"port,omitempty"`           // TCP port to dial
	ASN             uint32          `yaml:"asn" json:"asn,omitempty"`
	DynamicASN      DynamicASN      `yaml:"dynamicASN" json:"dynamicASN,omitempty"`
	HoldTime        Duration        `yaml:"holdTime" json:"holdTime,omitempty"`
	KeepaliveTime   Duration        `yaml:"keepaliveTime" json:"keepaliveTime,omitempty"`
	ConnectTime     Duration        `yaml:"connectTime" json:"connectTime,omitempty"`
	EBGPMultiHop    uint8           `yaml:"ebgpMultiHop" json:"ebgpMultiHop,omitempty"` // TTL; 0: the peer is on-link
	TTLSecurity     uint8           `yaml:"ttlSecurity" json:"ttlSecurity,omitempty"`   // hops, RFC 5082; 0: off
	PasswordFile    string          `yaml:"passwordFile" json:"passwordFile,omitempty"` // TCP MD5, RFC 2385
	BFDProfile      string          `yaml:"bfdProfile" json:"bfdProfile,omitempty"`
	AddressFamilies []Family        `yaml:"addressFamilies" json:"addressFamilies,omitempty"`
	MaxPrefixes     uint32          `yaml:"maxPrefixes" json:"maxPrefixes,omitempty"` // per family; the session closes above
	Receive         []PrefixPattern `yaml:"receive" json:"receive,omitempty"`         // nothing is accepted unless listed
	Advertise       Advertise       `yaml:"advertise" json:"advertise,omitzero"`
}

// PrefixPattern matches routes: Prefix itself, or with GE or LE the prefixes inside it whose length is in [GE, LE].
type PrefixPattern struct {
	Prefix netip.Prefix `yaml:"prefix" json:"prefix"`
	GE     uint8        `yaml:"ge" json:"ge,omitempty"`
	LE     uint8        `yaml:"le" json:"le,omitempty"`
}

// Advertise holds the attributes of what we announce to one peer.
type Advertise struct {
	Communities      []string `yaml:"communities" json:"communities,omitempty"`           // RFC 1997, "64512:1" or a well-known name
	LargeCommunities []string `yaml:"largeCommunities" json:"largeCommunities,omitempty"` // RFC 8092, "64512:1:2"
	LocalPref        uint32   `yaml:"localPref" json:"localPref,omitempty"`               // internal peers only; 0: 100
	MED              uint32   `yaml:"med" json:"med,omitempty"`
	ASPathPrepend    uint8    `yaml:"asPathPrepend" json:"asPathPrepend,omitempty"` // times
}

// Moves says how services go from one host to another while both could serve them.
type Moves struct {
	// KeepFlows is how long the former host stays as the standby, so that flows which go by it may end there; 0: not at
	// all. What the daemon that elects has counts for all.
	KeepFlows Duration `yaml:"keepFlows"`
	// Within bounds how long a daemon that ends with OnStopDrain waits for its services to move.
	Within Duration `yaml:"within"`
}

// OnStop is what becomes of this node's services when its daemon is told to end.
type OnStop string

// The choices of OnStop.
const (
	OnStopKeep  OnStop = "keep"  // what is in force stays, for the next run to take over
	OnStopDrain OnStop = "drain" // they move to other nodes first
)

// Speaker says where the process is that speaks BGP and BFD for the daemon, and outlives it.
type Speaker struct {
	Socket string `yaml:"socket"`
	Start  bool   `yaml:"start"` // one where none answers on Socket; else somebody else does
}

// Status says where the daemon answers about itself.
type Status struct {
	Socket         string `yaml:"socket"`
	MetricsAddress string `yaml:"metricsAddress"` // empty: no TCP listener
}

// Log says what is logged, to standard error.
type Log struct {
	Level  string `yaml:"level"`  // debug, info, warn, error
	Format string `yaml:"format"` // text, json
}

// Duration is a time.Duration written as "9s" or "1m30s".
type Duration time.Duration

// MarshalText writes a Duration as it is read.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Duration) UnmarshalText(text []byte) error {
	t, err := time.ParseDuration(string(text))
	*d = Duration(t)
	return err
}
