// Package config is the daemon's configuration: its types, its defaults, and how a file becomes one of them with every
// error found at once.
//
// What stands beside the fields is what operators read: gendoc makes the tables of docs/configuration.md of it, with the defaults
// that Parse gives. A default that depends on something else is said here, in a last sentence "Default: …."
package config

//go:generate go run ./gendoc . ../../docs/configuration.md

import (
	"math/bits"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Config is the whole configuration of one daemon. The zero value of a field means its default, see Defaults.
type Config struct {
	Node         string         `yaml:"node"`         // name of this node, as its Node object has it. Default: `$NODE_NAME`, then the host name.
	Source       Source         `yaml:"source"`       // where objects come from
	ClusterCIDRs []netip.Prefix `yaml:"clusterCIDRs"` // destinations that are never steered, in addition to the pod ranges, Service ranges, ClusterIPs and node addresses in the objects
	OnNoPath     NoPath         `yaml:"onNoPath"`     // a selected pod's packets while there is no host or no route for them: `drop` them, or `allow` them to leave by the main table
	Steering     Steering       `yaml:"steering"`
	Marks        Marks          `yaml:"marks"`
	BGP          BGP            `yaml:"bgp"`
	Networks     []Network      `yaml:"networks"` // networks that `spec.network` of an EgressService may name. Default: the network `default` alone.
	// `spec.network` may name unlisted networks: a number is a routing table then, a word an existing VRF device
	AllowUnlisted bool `yaml:"allowUnlisted"`
	// pods whose new flows to the outside wait until they are endpoints of an EgressService. With an entry, every address on the node that
	// belongs to no known Pod waits too. Default: none.
	Hold  []Hold `yaml:"hold"`
	Moves Moves  `yaml:"moves"`
	// this node's services when its daemon gets SIGTERM. `keep`: the state stays in force, and the next run adopts it; `drain`: services
	// move to other nodes first, then the daemon withdraws the rest; this needs an API server
	OnStop   OnStop   `yaml:"onStop"`
	Failover Failover `yaml:"failover"`
	Speaker  Speaker  `yaml:"speaker"`
	Status   Status   `yaml:"status"`
	Log      Log      `yaml:"log"`
}

// Source says where objects come from; exactly one is used, Manifests if it is set.
type Source struct {
	Kubernetes Kubernetes `yaml:"kubernetes"`
	Manifests  string     `yaml:"manifests"` // a folder of YAML and JSON files with the objects, without its subfolders, watched; a broken file keeps what it held. Without it they come from the API server
}

// Kubernetes says how to reach the API server.
type Kubernetes struct {
	Kubeconfig string `yaml:"kubeconfig"` // file that says how to reach the API server. Default: the service account, inside a cluster.
	// of the Leases: one whose holder elects, one for each node's report.
	// Default: `$POD_NAMESPACE`, then the service account's, then `egressway-system`.
	Namespace  string `yaml:"namespace"`
	LabelHosts bool   `yaml:"labelHosts"` // label each host's node `egress-service.k8s.ovn.org/<namespace>-<name>`, for others who announce
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
	Mode   SteeringMode `yaml:"mode"`   // `direct`: with the host's node address as next hop, which must be on-link; `vxlan`: by our tunnel; `auto`: direct where the host is on-link, else by the tunnel
	Device string       `yaml:"device"` // name of our VXLAN device
	VNI    uint32       `yaml:"vni"`    // VXLAN network identifier, 1 to 16777215
	Port   uint16       `yaml:"port"`   // UDP port of the tunnel; must pass between nodes
	MTU    int          `yaml:"mtu"`    // of the VXLAN device, bytes, 1280 to 65000. Default: 0, the underlay's less 50 (IPv4) or 70 (IPv6), and no more than an uplink's.
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
	Mask         uint32 `yaml:"mask"`         // bits of packet and connection mark that are ours alone on the node: at least 4 in a row, without kube-proxy's 0x4000 and 0x8000; one says egress, the others count networks and hosts steered to, 30 with 6 bits
	RulePriority int    `yaml:"rulePriority"` // first of our 100 routing rule priorities, 1 to 899: before the kernel's rule for VRFs at 1000
}

// Paths is how many networks and hosts steered to the mask has room for, also among the routing tables of our steering.
func (m Marks) Paths() int {
	values := 1 << max(bits.OnesCount32(m.Mask)-1, 0) // one bit says egress; no value of 0 and of all bits set
	return max(min(values-2, SteeringTableCount-1), 0)
}

// BGP is what all speakers share.
type BGP struct {
	ASN             uint32          `yaml:"asn"`        // our AS number; needed where there are peers. Default: none.
	RouterID        netip.Addr      `yaml:"routerID"`   // an IPv4 address; needed on nodes that have none as InternalIP. Default: the node's IPv4 InternalIP.
	ListenPort      int             `yaml:"listenPort"` // TCP port on which peers may call, below 1024 with CAP_NET_BIND_SERVICE only; -1: the speaker calls and does not listen
	GracefulRestart GracefulRestart `yaml:"gracefulRestart"`
	BFDProfiles     []BFDProfile    `yaml:"bfdProfiles"` // timers of BFD with peers, which choose one by `bfdProfile`. Default: none.
}

// GracefulRestart is RFC 4724's: peers keep our routes while the speaker restarts.
type GracefulRestart struct {
	Enabled     bool     `yaml:"enabled" json:"enabled"`         // peers keep our routes while the speaker restarts (RFC 4724)
	RestartTime Duration `yaml:"restartTime" json:"restartTime"` // for how long they do; whole seconds, at most 4095s
}

// BFDProfile holds RFC 5880 timers, in milliseconds.
type BFDProfile struct {
	Name             string `yaml:"name" json:"name,omitempty"`                         // by which peers refer to it
	TransmitInterval uint32 `yaml:"transmitInterval" json:"transmitInterval,omitempty"` // milliseconds, 10 to 60000
	ReceiveInterval  uint32 `yaml:"receiveInterval" json:"receiveInterval,omitempty"`   // milliseconds, 10 to 60000
	DetectMultiplier uint8  `yaml:"detectMultiplier" json:"detectMultiplier,omitempty"` // so many packets missed in a row are a failure
}

// DefaultNetwork is the name of the network that is the main table, used by objects that name none.
const DefaultNetwork = "default"

// Network is what an EgressService's spec.network names: a VRF with its table, or a bare routing table.
type Network struct {
	Name       string                `yaml:"name"`       // name for `spec.network`: letters, digits, `.`, `_`, `-`; at most 63
	VRF        string                `yaml:"vrf"`        // VRF device: adopted when it exists, created when `interfaces` and `table` are given
	Interfaces []string              `yaml:"interfaces"` // uplinks; with `vrf` we enslave them to it, and their IPv6 addresses survive
	Table      uint32                `yaml:"table"`      // routing table; needed to create the VRF, alone: a network without a VRF device. Not 0, 253 to 255, nor 794600 to 798695. Default: the VRF's.
	Namespaces *metav1.LabelSelector `yaml:"namespaces"` // namespaces that may use the network, by their labels. Default: every namespace.
	OnNoPath   NoPath                `yaml:"onNoPath"`   // of this network. Default: the global `onNoPath`.
	Peers      []Peer                `yaml:"peers"`      // BGP neighbours in this network. Default: none.
}

// Hold selects pods that are to leave the cluster as endpoints of an EgressService only. At least one of both selectors is given; a
// pod that both match is selected.
type Hold struct {
	Namespaces *metav1.LabelSelector `yaml:"namespaces"` // by labels of the pod's Namespace. Default: every namespace.
	Pods       *metav1.LabelSelector `yaml:"pods"`       // by labels of the Pod. Default: every pod.
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
	Address         netip.Addr `yaml:"address" json:"address,omitzero"`                  // the neighbour's; this or `interface` is needed
	Interface       string     `yaml:"interface" json:"interface,omitempty"`             // instead of `address`: unnumbered, the neighbour's link-local address is learned from its router advertisements; no other of the network may have the same
	Port            uint16     `yaml:"port" json:"port,omitempty"`                       // TCP port to call
	ASN             uint32     `yaml:"asn" json:"asn,omitempty"`                         // the neighbour's AS number; this or `dynamicASN` is needed. Default: none.
	DynamicASN      DynamicASN `yaml:"dynamicASN" json:"dynamicASN,omitempty"`           // instead of `asn`: any AS but ours, or ours
	HoldTime        Duration   `yaml:"holdTime" json:"holdTime,omitempty"`               // silence after which the session is given up; whole seconds, 3s at least, or 0s: never
	KeepaliveTime   Duration   `yaml:"keepaliveTime" json:"keepaliveTime,omitempty"`     // between our messages; whole seconds. Default: a third of `holdTime`.
	ConnectTime     Duration   `yaml:"connectTime" json:"connectTime,omitempty"`         // pause between attempts; whole seconds
	EBGPMultiHop    uint8      `yaml:"ebgpMultiHop" json:"ebgpMultiHop,omitempty"`       // TTL towards a peer that is not on-link; 0: it is
	TTLSecurity     uint8      `yaml:"ttlSecurity" json:"ttlSecurity,omitempty"`         // hops that the peer may be away (RFC 5082), 1 where it is on-link; 0: off; excludes `ebgpMultiHop`
	PasswordFile    string     `yaml:"passwordFile" json:"passwordFile,omitempty"`       // file with the TCP MD5 password (RFC 2385), at most 80 bytes; relative to the configuration's folder
	BFDProfile      string     `yaml:"bfdProfile" json:"bfdProfile,omitempty"`           // one of `bgp.bfdProfiles`; empty: no BFD
	AddressFamilies []Family   `yaml:"addressFamilies" json:"addressFamilies,omitempty"` // both go over either kind of session
	// routes of one family that the peer may send, before `receive` filters them, and ten times as many with our AS in the path, such as
	// nodes' announcements that it sends back; above it the session ends, until the peer's configuration changes or the speaker restarts
	MaxPrefixes uint32          `yaml:"maxPrefixes" json:"maxPrefixes,omitempty"`
	Receive     []PrefixPattern `yaml:"receive" json:"receive,omitempty"` // routes to learn. Never learned: cluster, node and loopback ranges, and prefixes inside a subnet of this node; around another node, a BGP peer or the API server beyond these only prefixes that are listed exactly. Default: none.
	Advertise   Advertise       `yaml:"advertise" json:"advertise,omitzero"`
}

// PrefixPattern matches routes: Prefix itself, or with GE or LE the prefixes inside it whose length is in [GE, LE].
type PrefixPattern struct {
	Prefix netip.Prefix `yaml:"prefix" json:"prefix"`   // this prefix, and with `ge` or `le` those inside of it
	GE     uint8        `yaml:"ge" json:"ge,omitempty"` // shortest prefix length. Default: the prefix's own.
	LE     uint8        `yaml:"le" json:"le,omitempty"` // longest prefix length. Default: with `ge` that of an address, else the prefix's own.
}

// Advertise holds the attributes of what we announce to one peer.
type Advertise struct {
	Communities      []string `yaml:"communities" json:"communities,omitempty"`           // RFC 1997: `64512:1`, or a well-known name such as `no-export`
	LargeCommunities []string `yaml:"largeCommunities" json:"largeCommunities,omitempty"` // RFC 8092: `64512:1:2`
	LocalPref        uint32   `yaml:"localPref" json:"localPref,omitempty"`               // internal peers only; the standby's is half of it. Default: 0, which is 100.
	// more is added by `status.term` (65535 less the term), so that routers prefer a later host; should be the same on all nodes
	MED           uint32 `yaml:"med" json:"med,omitempty"`
	ASPathPrepend uint8  `yaml:"asPathPrepend" json:"asPathPrepend,omitempty"` // times; the standby's path is 5 longer towards external peers
}

// Moves says how services go from one host to another while both could serve them.
type Moves struct {
	// how long the former host stays standby after a planned move, so that flows on it can end there; 0s: it does not; at most 1h.
	// The leader's value counts for all nodes
	KeepFlows Duration `yaml:"keepFlows"`
	// with `onStop: drain`, how long a stop waits for services to move, 1s to 1h; keep it below the pod's termination grace
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
	Socket string `yaml:"socket"` // Unix socket where the daemon finds `egressway speaker`; an absolute path of a file
	Start  bool   `yaml:"start"`  // start one where none answers; false: systemd, or a DaemonSet, does
}

// Status says where the daemon answers about itself.
type Status struct {
	Socket         string     `yaml:"socket"`         // Unix socket for `egressway status` and other commands; an absolute path
	MetricsAddress string     `yaml:"metricsAddress"` // IP address and TCP port of `/metrics`, `/healthz` and `/readyz`; empty: none
	MetricsTLS     MetricsTLS `yaml:"metricsTLS"`
	PerService     bool       `yaml:"perService"` // metrics of each EgressService that the node is host or standby of
	// with `perService`: packets and bytes by ingress IP, counted by the kernel on the host
	ServiceCounters bool `yaml:"serviceCounters"`
}

// MetricsTLS has MetricsAddress served by TLS alone, version 1.2 at least. Files are PEM; relative paths are relative to the
// configuration's folder, and renewed files are taken at once. The zero value: in the clear.
type MetricsTLS struct {
	CertFile string `yaml:"certFile"` // PEM file with the certificate: `metricsAddress` speaks TLS alone then
	KeyFile  string `yaml:"keyFile"`  // PEM file with its private key
	// PEM file: metrics are for clients with a certificate by one of these authorities; `/healthz` and `/readyz` stay open to all clients
	ClientCAFile string `yaml:"clientCAFile"`
}

// Log says what is logged, to standard error.
type Log struct {
	Level  string `yaml:"level"`  // `debug`, `info`, `warn` or `error`
	Format string `yaml:"format"` // `text` or `json`
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
