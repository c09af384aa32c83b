// Package config holds the daemon's configuration: its types, its defaults, and the reading of a file, which finds all
// errors at once.
//
// Operators read the comments beside the fields: gendoc makes the tables of docs/configuration.md and the JSON Schema from them and
// from the defaults of Parse. If a default depends on something else, the comment's last sentence is "Default: …."
package config

//go:generate go run ./gendoc . ../../docs/configuration.md ../../config/egressway.schema.json

import (
	"cmp"
	"math/bits"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Config is the whole configuration of a daemon. Defaults returns the values of keys that a file does not set.
type Config struct {
	Node   string `yaml:"node"`   // name of this node's Node object. Default: `$NODE_NAME`, then the host name.
	Source Source `yaml:"source"` // where the cluster's objects come from
	// destinations that are never steered, in addition to pod ranges, Service ranges, ClusterIPs and nodes' addresses
	ClusterCIDRs []netip.Prefix `yaml:"clusterCIDRs"`
	// ranges of pods, in addition to the podCIDRs of the Nodes: of a CNI that does not take pods' addresses from these, such as Calico
	PodCIDRs []netip.Prefix `yaml:"podCIDRs"`
	// a selected pod's packets without a host or a route: `drop` them, or `allow` them to leave by the main table
	OnNoPath NoPath   `yaml:"onNoPath"`
	Steering Steering `yaml:"steering"`
	Marks    Marks    `yaml:"marks"`
	BGP      BGP      `yaml:"bgp"`
	// networks that `spec.network` of an EgressService may name. Default: only the network `default`.
	Networks []Network `yaml:"networks"`
	// let `spec.network` name other networks, too: a number is a routing table, a word an existing VRF device
	AllowUnlisted bool `yaml:"allowUnlisted"`
	// pods whose new flows out of the cluster are dropped until the pod is an endpoint of an EgressService. So are
	// those of pod addresses on this node whose Pod is not known yet. Default: none.
	Hold     []Hold   `yaml:"hold"`
	Firewall Firewall `yaml:"firewall"`
	// which other kinds of objects beside EgressServices are served. A change takes effect at once
	Kinds    Kinds    `yaml:"kinds"`
	Election Election `yaml:"election"`
	Moves    Moves    `yaml:"moves"`
	// this node's services when its daemon gets SIGTERM: `keep` leaves everything in force for the next run; `drain`
	// moves them to other nodes, then withdraws the rest, and needs an API server
	OnStop   OnStop   `yaml:"onStop"`
	Failover Failover `yaml:"failover"`
	Speaker  Speaker  `yaml:"speaker"`
	Status   Status   `yaml:"status"`
	FlowLog  FlowLog  `yaml:"flowLog"`
	Log      Log      `yaml:"log"`

	file      string
	places    map[string]place          // as of decoder
	selectors map[string][]nodeSelector // of entries for some nodes, by their paths; nil: nodes do not differ
}

// Source configures where objects come from: from Manifests if it is set, else from the API server.
type Source struct {
	Kubernetes Kubernetes `yaml:"kubernetes"`
	// a folder of YAML and JSON files with the objects, which is watched, without its subfolders; while a file is
	// broken, its former objects stay. Without this key, objects come from the API server
	Manifests string `yaml:"manifests"`
}

// Kubernetes configures access to the API server.
type Kubernetes struct {
	Kubeconfig string `yaml:"kubeconfig"` // kubeconfig file for the API server. Default: the pod's service account.
	// namespace of the Leases: the leader's, and one for each node's report.
	// Default: `$POD_NAMESPACE`, then the service account's, then `egressway-system`.
	Namespace string `yaml:"namespace"`
	// label each host's node `egress-service.k8s.ovn.org/<namespace>-<name>`, for other programs that announce ingress
	// IPs, such as MetalLB
	LabelHosts bool `yaml:"labelHosts"`
}

// Kinds switches kinds of objects.
type Kinds struct {
	// EgressQoSes: `auto` serves them if the API server has their CRD, or the folder has such objects; `off` ignores them
	EgressQoS KindMode `yaml:"egressQoS"`
	// EgressFirewalls: `auto` serves them as above; `off` ignores them, and allows what they deny
	EgressFirewall KindMode `yaml:"egressFirewall"`
	// EgressIPs: `auto` serves them as above; `off` ignores them, and their pods leave as if nothing selected them
	EgressIP KindMode `yaml:"egressIP"`
}

// KindMode is whether a kind of objects is served.
type KindMode string

// The choices of KindMode.
const (
	KindAuto KindMode = "auto" // where there is its CRD, or objects in the folder
	KindOff  KindMode = "off"
)

// NoPath is the treatment of a selected pod's packets while there is no host or no route for them.
type NoPath string

// OnLink is whether a node answers ARP and NDP for addresses of a network.
type OnLink string

// The choices of OnLink. In a network's entry, OnLinkDefault means OnLinkAuto.
const (
	OnLinkDefault OnLink = ""
	OnLinkAuto    OnLink = "auto"
	OnLinkOff     OnLink = "off"
)

// The choices of NoPath. In a network's entry, NoPathDefault means the global choice.
const (
	NoPathDefault NoPath = ""
	NoPathDrop    NoPath = "drop"
	NoPathAllow   NoPath = "allow"
)

// Steering configures the way of an endpoint's egress from another node to the host.
type Steering struct {
	// `direct`: the host's node address is the next hop, and must be on-link; `vxlan`: through our tunnel; `auto`:
	// direct if the host is on-link, else through the tunnel. With vxlan and auto, hosts for which no path id is left share
	// one, through the tunnel
	Mode   SteeringMode `yaml:"mode"`
	Device string       `yaml:"device"` // name of our VXLAN device
	VNI    uint32       `yaml:"vni"`    // VXLAN network identifier, 1 to 16777215
	Port   uint16       `yaml:"port"`   // UDP port of the tunnel; must pass between nodes
	// MTU of the VXLAN device, 1280 to 65000 bytes. Default: 0, the underlay's less 50 (IPv4) or 70 (IPv6), and at
	// most that of an uplink.
	MTU int `yaml:"mtu"`
}

// SteeringMode is the way of steered packets.
type SteeringMode string

// The choices of SteeringMode.
const (
	SteeringAuto   SteeringMode = "auto"   // direct if the host's node IP is on-link, else VXLAN
	SteeringDirect SteeringMode = "direct" // with the host's node IP as next hop, on-link only
	SteeringVXLAN  SteeringMode = "vxlan"
)

// Marks configures the bits of fwmark and conntrack mark, and the priorities of routing rules, that are ours.
type Marks struct {
	// bits of packet and connection marks that no other program on the node uses, at least 4 in a row: one bit marks
	// egress, the others number the networks and the hosts steered to, 30 with 6 bits
	Mask uint32 `yaml:"mask"`
	// programs whose bits `mask` may take, because they do not run on these nodes or are configured for other bits:
	// `antrea`, `aws-vpc-cni`, `calico`, `cilium`, `kube-proxy`, `kube-router`, `kube-vip`, `tailscale`, `weave`.
	// Default: none.
	AllowConflicts []string `yaml:"allowConflicts"`
	// first of our 100 routing rule priorities, 1 to 899: all must precede the kernel's rule for VRFs at 1000
	RulePriority int `yaml:"rulePriority"`
}

// Paths returns how many networks and hosts steered to fit into the mask, and into the range of our routing tables.
func (m Marks) Paths() int {
	values := 1 << max(bits.OnesCount32(m.Mask)-1, 0) // one bit marks egress; the values 0 and all bits set are not used
	return max(min(values-2, SteeringTableCount-1), 0)
}

// BGP configures all speakers.
type BGP struct {
	ASN uint32 `yaml:"asn"` // our AS number; required with peers, here or in `overrides`. Default: none.
	// an IPv4 address that no other router of our AS has as router ID.
	// Default: the node's IPv4 InternalIP, else a hash of the node's name.
	RouterID netip.Addr `yaml:"routerID"`
	// AS number and router ID of some nodes. Default: none.
	Overrides []BGPOverride `yaml:"overrides"`
	// TCP port on which peers may connect: at all addresses in a VRF, without one at those from which the speaker
	// dials its peers; ports below 1024 need CAP_NET_BIND_SERVICE; -1: only the speaker connects
	ListenPort      int             `yaml:"listenPort"`
	GracefulRestart GracefulRestart `yaml:"gracefulRestart"`
	BFDProfiles     []BFDProfile    `yaml:"bfdProfiles"` // timers of BFD with peers; a peer names one in `bfdProfile`. Default: none.
}

// BGPOverride replaces settings of BGP on some nodes.
type BGPOverride struct {
	NodeSelectors []metav1.LabelSelector `yaml:"nodeSelectors"` // nodes with labels that one of them matches; required
	ASN           uint32                 `yaml:"asn"`           // `bgp.asn` of these nodes. Default: not replaced.
	RouterID      netip.Addr             `yaml:"routerID"`      // `bgp.routerID` of the node. Default: not replaced.
}

// GracefulRestart configures the Graceful Restart of RFC 4724: peers keep our routes while the speaker restarts.
type GracefulRestart struct {
	Enabled     bool     `yaml:"enabled" json:"enabled"`         // peers keep our routes while the speaker restarts (RFC 4724)
	RestartTime Duration `yaml:"restartTime" json:"restartTime"` // for how long peers keep them; whole seconds, at most 4095s
}

// BFDProfile holds timers of BFD (RFC 5880), in milliseconds.
type BFDProfile struct {
	Name             string `yaml:"name" json:"name,omitempty"`                         // name for `bfdProfile` of peers; required
	TransmitInterval uint32 `yaml:"transmitInterval" json:"transmitInterval,omitempty"` // milliseconds, 10 to 60000
	ReceiveInterval  uint32 `yaml:"receiveInterval" json:"receiveInterval,omitempty"`   // milliseconds, 10 to 60000
	// the session fails after so many missed packets in a row
	DetectMultiplier uint8 `yaml:"detectMultiplier" json:"detectMultiplier,omitempty"`
}

// DefaultNetwork is the name of the network that uses the main table, and the network of objects that name none.
const DefaultNetwork = "default"

// Network is a network that spec.network of an EgressService may name: a VRF with its table, or only a routing table.
type Network struct {
	Name string `yaml:"name"` // name in `spec.network`: at most 63 letters, digits, `.`, `_` and `-`; required
	VRF  string `yaml:"vrf"`  // VRF device: an existing one is used; with `interfaces` and `table` it is created
	// uplinks, by their names or with these keys; with `vrf` they are enslaved to it, and keep their IPv6 addresses
	Interfaces []Interface `yaml:"interfaces"`
	// routing table; required to create the VRF; without `vrf`, the network has no VRF device. Not 0, 253 to 255, nor
	// 794600 to 798695. Default: the VRF's.
	Table      uint32                `yaml:"table"`
	Namespaces *metav1.LabelSelector `yaml:"namespaces"` // namespaces that may use the network, by their labels. Default: every namespace.
	EgressIPs  []netip.Prefix        `yaml:"egressIPs"`  // prefixes of EgressIPs' addresses that leave by the network. Default: none.
	// answers of an EgressIP's host to ARP and NDP for its address: `auto`, where the address is in the subnet of an uplink, or
	// `off`. Never for ingress IPs. Default: auto.
	OnLink   OnLink `yaml:"onLink"`
	OnNoPath NoPath `yaml:"onNoPath"` // `onNoPath` of this network. Default: the global one.
	Peers    []Peer `yaml:"peers"`    // BGP neighbours in this network. Default: none.
	// the network is only on nodes with labels that one of them matches. Default: every node.
	NodeSelectors []metav1.LabelSelector `yaml:"nodeSelectors"`
	Overrides     []NetworkOverride      `yaml:"overrides"` // VRF and table of some nodes. Default: none.

	// Elsewhere is why the configuration does not give the network to this node; empty: the node should have it.
	Elsewhere string `yaml:"-"`
	// PeersElsewhere reports that the configuration gives this node none of the network's peers.
	PeersElsewhere bool `yaml:"-"`
}

// Uplinks returns the names of the network's interfaces.
func (n *Network) Uplinks() (names []string) {
	for _, i := range n.Interfaces {
		names = append(names, i.Name)
	}
	return names
}

// Interface is an uplink of a network. In the file, a name alone is an Interface of every node.
type Interface struct {
	// the interface's name. Default: with `parent`, its name, a dot and the VLAN ID, such as `bond0.1001`.
	Name string `yaml:"name"`
	// the daemon makes the interface, as a VLAN sub-interface of this one; requires `vlan`. Default: none: another program
	// makes the interface.
	Parent string `yaml:"parent"`
	VLAN   VLANID `yaml:"vlan"` // VLAN ID of the sub-interface, 1 to 4094. Default: none.
	// MTU of the sub-interface, 1280 to 65535 bytes and at most the parent's. Default: the parent's when it is made.
	MTU int `yaml:"mtu"`
	// addresses of the sub-interface with their prefix lengths, `192.0.2.2/31`; unnumbered peers need none. Default: none.
	Addresses []netip.Prefix `yaml:"addresses"`
	// nodes whose interface it is: those with labels that one of them matches. Default: every node.
	NodeSelectors []metav1.LabelSelector `yaml:"nodeSelectors"`
}

// short returns the field that an entry without keys sets.
func (i *Interface) short() any { return &i.Name }

// NetworkOverride replaces the VRF of a network on some nodes.
type NetworkOverride struct {
	NodeSelectors []metav1.LabelSelector `yaml:"nodeSelectors"` // nodes with labels that one of them matches; required
	VRF           string                 `yaml:"vrf"`           // `vrf` of these nodes. Default: not replaced.
	Table         uint32                 `yaml:"table"`         // `table` of these nodes. Default: not replaced.
}

// Hold selects pods that may leave the cluster only as endpoints of an EgressService. At least one of the selectors is
// set; a pod that matches both is selected.
type Hold struct {
	Namespaces *metav1.LabelSelector `yaml:"namespaces"` // labels of the pod's Namespace. Default: every namespace.
	Pods       *metav1.LabelSelector `yaml:"pods"`       // labels of the Pod. Default: every pod.
}

// Firewall sets how EgressFirewalls are kept.
type Firewall struct {
	// with an EgressFirewall in the cluster, drop new flows out of the cluster from pod addresses on this node whose Pod is not
	// known yet: its namespace may deny them. With `false`, a new pod may begin connections before its rules are in force
	Hold bool `yaml:"hold"`
	// servers whose answers say which addresses DNS names have, and which the daemon asks
	Resolvers Resolvers `yaml:"resolvers"`
	Names     Names     `yaml:"names"`
}

// Resolvers lists servers of DNS.
type Resolvers struct {
	// Services, `namespace/name`, with their cluster IPs and endpoints
	Services []string `yaml:"services"`
	// addresses of other servers, such as a DNS cache on each node. Pods reach those outside of the cluster only where their rules allow it
	Addresses []netip.Addr `yaml:"addresses"`
}

// Names sets how long addresses of DNS names stay in force.
type Names struct {
	// an address stays for so long after the time to live that the answer gave it, since pods keep answers, too: 0s to 1h
	Grace Duration `yaml:"grace"`
	// most time for which an answer waits until the kernel has its addresses: 10ms to 5s
	Wait Duration `yaml:"wait"`
}

// DynamicASN accepts a peer by the kind of its AS instead of by its number.
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
	// the neighbour's address; this or `interface` is required. Two networks without a VRF have different peers, or different
	// `sourceAddress`
	Address netip.Addr `yaml:"address" json:"address,omitzero"`
	// instead of `address`: an unnumbered session, to the link-local address that the neighbour's router
	// advertisements have; one peer for each interface of the network
	Interface string `yaml:"interface" json:"interface,omitempty"`
	Port      uint16 `yaml:"port" json:"port,omitempty"` // the neighbour's TCP port
	// the neighbour's AS number; this or `dynamicASN` is required. Default: none.
	ASN uint32 `yaml:"asn" json:"asn,omitempty"`
	// instead of `asn`: `external`, any AS except ours, or `internal`, ours
	DynamicASN DynamicASN `yaml:"dynamicASN" json:"dynamicASN,omitempty"`
	MyASN      uint32     `yaml:"myASN" json:"myASN,omitempty"` // our AS number towards this peer. Default: `bgp.asn`.
	// our address of the session and, in its family, the next hop of announcements; an address of this node, of the
	// family of `address`. Default: by routing.
	SourceAddress netip.Addr `yaml:"sourceAddress" json:"sourceAddress,omitzero"`
	// nodes that have this peer: those with labels that one of them matches. Without it, an unnumbered peer is on the
	// nodes that have its interface. Default: every node.
	NodeSelectors []metav1.LabelSelector `yaml:"nodeSelectors" json:"-"`
	Overrides     []PeerOverride         `yaml:"overrides" json:"-"` // our AS number and address on some nodes. Default: none.
	// the session ends after so long without a message; whole seconds, 3s to 65535s
	HoldTime Duration `yaml:"holdTime" json:"holdTime,omitempty"`
	// time between our KEEPALIVE messages; whole seconds, less than `holdTime`. Default: a third of `holdTime`.
	KeepaliveTime Duration `yaml:"keepaliveTime" json:"keepaliveTime,omitempty"`
	ConnectTime   Duration `yaml:"connectTime" json:"connectTime,omitempty"` // pause between attempts to connect; whole seconds
	// TTL towards a peer that is not on-link; 0: the peer is on-link
	EBGPMultiHop uint8 `yaml:"ebgpMultiHop" json:"ebgpMultiHop,omitempty"`
	// most hops to the peer (RFC 5082), 1 if it is on-link; 0: off; not together with `ebgpMultiHop`
	TTLSecurity uint8 `yaml:"ttlSecurity" json:"ttlSecurity,omitempty"`
	// file with the TCP MD5 password (RFC 2385), at most 80 bytes; relative to the configuration's folder
	PasswordFile string `yaml:"passwordFile" json:"passwordFile,omitempty"`
	// one of `bgp.bfdProfiles`, for a peer on the link; empty: no BFD
	BFDProfile string `yaml:"bfdProfile" json:"bfdProfile,omitempty"`
	// address families of the session; IPv4 and IPv6 sessions carry both
	AddressFamilies []Family `yaml:"addressFamilies" json:"addressFamilies,omitempty"`
	// most routes of a family that the peer may send, before `receive` filters them; the limit for routes with our AS
	// in their path, such as nodes' announcements that come back, is ten times as high. Above it the session ends
	// until `maxPrefixes` or another key that resets the session changes (AS numbers, addresses, port, timers, TTL,
	// password, families), or the speaker restarts. `receive`, `advertise` and `bfdProfile` reset no session
	MaxPrefixes uint32 `yaml:"maxPrefixes" json:"maxPrefixes,omitempty"`
	// routes that are learned. Never learned: cluster, node and loopback ranges, and prefixes inside a subnet of this
	// node. Learned only if listed exactly: a prefix around an address outside of these subnets that another node, a
	// BGP peer or the API server has. Default: none.
	Receive   []PrefixPattern `yaml:"receive" json:"receive,omitempty"`
	Advertise Advertise       `yaml:"advertise" json:"advertise,omitzero"`
}

// PeerOverride replaces our end of a session on some nodes.
type PeerOverride struct {
	NodeSelectors []metav1.LabelSelector `yaml:"nodeSelectors"` // nodes with labels that one of them matches; required
	MyASN         uint32                 `yaml:"myASN"`         // `myASN` of these nodes. Default: not replaced.
	SourceAddress netip.Addr             `yaml:"sourceAddress"` // `sourceAddress` of the node. Default: not replaced.
}

// LocalASN returns our AS number towards the peer. asn is the speaker's.
func (p *Peer) LocalASN(asn uint32) uint32 { return cmp.Or(p.MyASN, asn) }

// PeerName returns the name of a peer within its network: its address or interface.
func (p *Peer) PeerName() string { return cmp.Or(p.Interface, p.Address.String()) }

// PrefixPattern matches routes to Prefix, or with GE or LE to prefixes inside it with a length in [GE, LE].
type PrefixPattern struct {
	Prefix netip.Prefix `yaml:"prefix" json:"prefix"`   // this prefix; with `ge` or `le`, prefixes inside it; required
	GE     uint8        `yaml:"ge" json:"ge,omitempty"` // shortest prefix length. Default: the prefix's own.
	// longest prefix length. Default: with `ge` 32 (IPv4) or 128 (IPv6), else the prefix's own.
	LE uint8 `yaml:"le" json:"le,omitempty"`
}

// Advertise holds the attributes of our announcements to one peer.
type Advertise struct {
	// RFC 1997: `64512:1`, or a well-known name such as `no-export`
	Communities      []string `yaml:"communities" json:"communities,omitempty"`
	LargeCommunities []string `yaml:"largeCommunities" json:"largeCommunities,omitempty"` // RFC 8092: `64512:1:2`
	// LOCAL_PREF, for internal peers only; the standby announces half of it. Default: 0, which means 100.
	LocalPref uint32 `yaml:"localPref" json:"localPref,omitempty"`
	// MED, to which 65535 less `status.term` is added, so that routers prefer a later host; should be the same on all
	// nodes
	MED uint32 `yaml:"med" json:"med,omitempty"`
	// how many times our AS number is prepended, towards external peers, at most 250; the standby prepends it 5 times more
	ASPathPrepend uint8 `yaml:"asPathPrepend" json:"asPathPrepend,omitempty"`
}

// Election configures the choice of hosts.
type Election struct {
	// number of nodes among which hosts and standbys are chosen, of those that may be the host of an EgressService: first
	// the nodes that are host or standby already, then by a hash of their names. At least 2, or 0 for all nodes. Hosts in
	// place stay where they are. The leader's value is in force; with `source.manifests`, it must be the same on all nodes
	Hosts int `yaml:"hosts"`
}

// Moves configures moves of services from one host to another while both are alive.
type Moves struct {
	// how long a former host stays as standby after a planned move, so that its flows may end there; 0s to 1h; 0s: not
	// at all. The leader's value is in force on all nodes, but a node whose own file has another one may end connections
	// of the former host's own pods; with `source.manifests`, each node's own
	KeepFlows Duration `yaml:"keepFlows"`
	// with `onStop: drain`, how long a stop waits for services to move, 1s to 1h; keep it below the pod's termination
	// grace period, or below its systemd unit's `TimeoutStopSec`, 90 s unless set
	Within Duration `yaml:"within"`
}

// OnStop is the treatment of this node's services when its daemon stops.
type OnStop string

// The choices of OnStop.
const (
	OnStopKeep  OnStop = "keep"  // everything in force stays, and the next run adopts it
	OnStopDrain OnStop = "drain" // services move to other nodes first
)

// Speaker configures the process that speaks BGP and BFD for the daemon, and outlives it.
type Speaker struct {
	Socket string `yaml:"socket"` // Unix socket of `egressway speaker`; an absolute path of a file
	Start  bool   `yaml:"start"`  // start a speaker if none answers; false: systemd or a DaemonSet does
}

// Status configures the daemon's sources of information about itself.
type Status struct {
	Socket         string     `yaml:"socket"`         // Unix socket for `egressway status` and other commands; an absolute path
	MetricsAddress string     `yaml:"metricsAddress"` // IP address and TCP port of `/metrics`, `/healthz` and `/readyz`; empty: none
	MetricsTLS     MetricsTLS `yaml:"metricsTLS"`
	PerService     bool       `yaml:"perService"` // metrics of each EgressService for which the node is host or standby
	// with `perService`: packets and bytes by ingress IP, counted by the kernel on the host
	ServiceCounters bool `yaml:"serviceCounters"`
}

// MetricsTLS restricts MetricsAddress to TLS, version 1.2 or newer. Files are PEM. Relative paths are relative to the
// configuration's folder. Renewed files are used at once. With the zero value there is no TLS.
type MetricsTLS struct {
	CertFile string `yaml:"certFile"` // PEM file with the certificate; with it, `metricsAddress` accepts only TLS
	KeyFile  string `yaml:"keyFile"`  // PEM file with the certificate's private key
	// PEM file with authorities: `/metrics` needs a client certificate by one of them; `/healthz` and `/readyz` need
	// none
	ClientCAFile string `yaml:"clientCAFile"`
	// `/metrics` needs the bearer token of a user whom the API server lets `get` the path `/metrics`; with `clientCAFile`, either
	// suffices
	TokenReview bool `yaml:"tokenReview"`
}

// FlowLog configures the log of connections that left this node.
type FlowLog struct {
	// file that gets a line of JSON for each connection of a selected pod that left by this node, when it has ended: an
	// absolute path, or `-`: standard output. It is opened again after a rotation. Empty: no flow log
	File string `yaml:"file"`
	// bytes of kernel memory for events that wait for the daemon, 4096 to 1073741824; an event takes about 1 KiB
	EventBuffer int `yaml:"eventBuffer"`
}

// StandardOutput is the FlowLog.File of the process's standard output.
const StandardOutput = "-"

// Log configures the log on standard error.
type Log struct {
	Level  string `yaml:"level"`  // `debug`, `info`, `warn` or `error`
	Format string `yaml:"format"` // `text` or `json`
}

// Duration is a time.Duration in the form "9s" or "1m30s".
type Duration time.Duration

// MarshalText formats a Duration as UnmarshalText reads it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText parses the output of MarshalText.
func (d *Duration) UnmarshalText(text []byte) error {
	t, err := time.ParseDuration(string(text))
	*d = Duration(t)
	return err
}
