// Package cluster holds the objects of the cluster on which egress depends, trimmed to the fields that are read. Its
// subpackages are the sources: kube watches an API server, manifests a folder.
package cluster

import (
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/text"
)

// Key names an object. An EgressService and its Service have the same Key. Objects of the cluster, such as an EgressIP, have no
// namespace.
type Key struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Compare orders keys by namespace, then name.
func (k Key) Compare(o Key) int {
	if k.Namespace != o.Namespace {
		if k.Namespace < o.Namespace {
			return -1
		}
		return 1
	}
	switch {
	case k.Name < o.Name:
		return -1
	case k.Name > o.Name:
		return 1
	}
	return 0
}

// APIService is the key of the Service whose endpoints are the API servers.
var APIService = Key{Namespace: "default", Name: "kubernetes"}

// Kind is a kind of object.
type Kind uint8

// The kinds whose objects claim addresses, in the order of their precedence.
const (
	// KindEgressService is the kind of EgressServices. A Service and its endpoints have the identity of the EgressService of
	// their name, whether it exists or not.
	KindEgressService Kind = iota
	// KindEgressIP is the kind of EgressIPs.
	KindEgressIP
	// Claimants is the number of these kinds.
	Claimants = iota
)

// The other kinds.
const (
	// KindEgressQoS is the kind of EgressQoSes.
	KindEgressQoS Kind = Claimants + iota
	// KindEgressFirewall is the kind of EgressFirewalls.
	KindEgressFirewall
	// Kinds is the number of kinds.
	Kinds = Claimants + iota
)

// String returns the name of the kind in manifests.
func (k Kind) String() string {
	return [Kinds]string{
		KindEgressService: "EgressService", KindEgressIP: "EgressIP", KindEgressQoS: "EgressQoS", KindEgressFirewall: "EgressFirewall",
	}[k]
}

// KindSet holds a value for each kind: whether it is in the set.
type KindSet [Kinds]bool

// ID returns the identity of the object of this kind with a key.
func (k Kind) ID(key Key) ID { return ID{Kind: k, Key: key} }

// ID identifies an object among those of all kinds, or one address of an object that has a seat for each of its addresses.
type ID struct {
	Kind Kind
	Key
	Slot netip.Addr // invalid: the object as a whole
}

// String returns the kind, and namespace and name. All addresses of an object have the same string.
func (i ID) String() string { return i.Kind.String() + " " + i.Key.String() }

// Compare orders objects by precedence of their kinds, then by namespace and name, and those of one object by address.
func (i ID) Compare(o ID) int {
	if i.Kind != o.Kind {
		return int(i.Kind) - int(o.Kind)
	}
	if c := i.Key.Compare(o.Key); c != 0 {
		return c
	}
	return i.Slot.Compare(o.Slot)
}

// Objects holds all objects of a source. It is immutable.
type Objects struct {
	EgressServices  Map[Key, EgressService]
	EgressIPs       Map[Key, EgressIP]
	EgressQoSes     Map[Key, EgressQoS]
	EgressFirewalls Map[Key, EgressFirewall]
	Services        Map[Key, Service]
	Endpoints       Map[Key, []Endpoint] // by Service, from all its EndpointSlices
	Nodes           Map[string, Node]
	Namespaces      Map[string, Namespace]
	ServiceCIDRs    []netip.Prefix
	// Secondary holds the secondary addresses that nodes' daemons report of their interfaces, by the name of the node. Changed
	// does not name them.
	Secondary Map[string, Secondary]
	// Pods holds the Pods that a source follows, those of this node at least.
	Pods Map[Key, Pod]
	// Members holds the pods of other nodes that each EgressIP selects, sorted. Of this node Pods decides.
	Members   Map[Key, []Member]
	PodsKnown bool // false: Pods are not followed, or not known yet
	// StaleNodes means that Ready and Cordoned of other nodes may be old: only a leader follows them.
	StaleNodes bool
}

// Without returns the objects except those of some optional kinds.
func (o Objects) Without(kinds KindSet) Objects {
	if kinds[KindEgressIP] {
		o.EgressIPs, o.Members = Map[Key, EgressIP]{}, Map[Key, []Member]{}
	}
	if kinds[KindEgressQoS] {
		o.EgressQoSes = Map[Key, EgressQoS]{}
	}
	if kinds[KindEgressFirewall] {
		o.EgressFirewalls = Map[Key, EgressFirewall]{}
	}
	return o
}

// EgressService is the part of the custom resource that is read.
type EgressService struct {
	UID          string    // empty: unknown
	Created      time.Time // zero: unknown
	SourceIPBy   SourceIPBy
	NodeSelector *metav1.LabelSelector // nil: every node
	Network      string                // empty: the default network
	Status       Status                // the one in force
	Writer       Writer                // of the server's host, standby and term
	Disobeyed    *Status               // the server's status if daemons do not follow it, see Writer; nil: it is Status
	Generation   int64
	Version      uint64 // metadata.resourceVersion, larger with every change; 0: unknown
}

// Stands returns the status that the source has, whether it is in force or not.
func (e EgressService) Stands() Status {
	if e.Disobeyed != nil {
		return *e.Disobeyed
	}
	return e.Status
}

// Writer is the author of a status's host, standby and term. Daemons do not follow those of another program than the
// leader.
type Writer uint8

// The writers of a status.
const (
	WriterUnknown Writer = iota // the source does not know: the status is followed
	WriterNobody                // no program owns the host: there is none, or it was removed
	WriterLeader
	WriterOther // another program wrote at least a part
)

// Status is the present or wanted status of an EgressService.
type Status struct {
	Host       string // a node, AllHosts, or empty: none
	Standby    string // the node that takes over from the host; empty: none
	Term       int64  // number of hosts so far; 0: not known
	Conditions []metav1.Condition
	Generation int64    // the object's generation to which the conditions refer; 0: not known
	IngressIPs []string // of the Service
}

// SourceIPBy is the origin of the source address of egress.
type SourceIPBy string

// The choices of SourceIPBy.
const (
	SourceIPByLoadBalancer SourceIPBy = "LoadBalancerIP" // the Service's ingress IP; also when the field is empty
	SourceIPByNetwork      SourceIPBy = "Network"        // the outgoing interface's address on the endpoint's own node
)

// AllHosts is the status.host of an EgressService for which every node is a host.
const AllHosts = "ALL"

// Service is the part of a core/v1 Service that is read.
type Service struct {
	LoadBalancer bool // spec.type
	LocalTraffic bool // spec.externalTrafficPolicy: Local
	ClusterIPs   []netip.Addr
	Ingress      []Ingress // status.loadBalancer.ingress, in order
	Ports        []Port
	Created      time.Time // zero: unknown
	SharingKey   string    // Services of different namespaces with the same key share an ingress IP; empty: none
}

// Shares reports whether two Services may have an ingress IP in common: those of one namespace may, since they have one
// owner; others need the same sharing key. Objects without a namespace share no address.
func Shares(key Key, sharingKey string, other Key, otherKey string) bool {
	return key.Namespace != "" && key.Namespace == other.Namespace || sharingKey != "" && sharingKey == otherKey
}

// Ingress is one entry of status.loadBalancer.ingress, as written: an IP or a host name.
type Ingress struct {
	IP, Hostname string
}

// Port is a port of a Service. Only the lab's service proxy reads it; steering covers all protocols and ports.
type Port struct {
	Name, Protocol   string
	Port, TargetPort uint16
}

// Endpoint is one address of one endpoint of an EndpointSlice, as written.
type Endpoint struct {
	Address string
	Node    string // empty: unknown
	Target  Target
}

// Target is the kind of object that an endpoint names as the owner of its address.
type Target uint8

// The targets of endpoints.
const (
	TargetPod     Target = iota // a Pod of the EndpointSlice's namespace
	TargetUnknown               // the EndpointSlice does not say
	TargetOther                 // another object
)

// Node is the part of a core/v1 Node that is read.
type Node struct {
	UID       string // empty: unknown
	Labels    map[string]string
	Ready     bool
	Cordoned  bool         // spec.unschedulable
	Addresses []netip.Addr // InternalIPs and ExternalIPs of status.addresses
	Internal  []netip.Addr // those of type InternalIP
	Secondary Secondary    // what an annotation lists besides Addresses
	PodCIDRs  []netip.Prefix
}

// Namespace is the part of a core/v1 Namespace that is read.
type Namespace struct {
	Labels map[string]string
}

// Pod is the part of a core/v1 Pod that is read.
type Pod struct {
	Node        string // empty: not scheduled yet
	Labels      map[string]string
	Addresses   []netip.Addr // status.podIPs; none: not known yet
	HostNetwork bool
	Ended       bool // phase Succeeded or Failed: another pod may have its addresses now
}

// HoldsAddresses reports whether the Pod has addresses of its own, and has not ended.
func (p Pod) HoldsAddresses() bool { return !p.HostNetwork && !p.Ended }

// Problem describes a fault of one object. All other objects are served as without it.
type Problem struct {
	Kind    string `json:"kind"`            // EgressService, Service, EndpointSlice, Node, Config, ...
	Object  string `json:"object"`          // namespace/name or name
	Field   string `json:"field,omitempty"` // path of the field, empty: the whole object
	Value   string `json:"value,omitempty"` // the present value
	Reason  Reason `json:"reason"`          // a word for machines, CamelCase
	Message string `json:"message"`         // the fault, and what would be right
	Where   string `json:"where,omitempty"` // file:line, where the source is a file
	Node    string `json:"node,omitempty"`  // the node that has it, where others may not; empty: all nodes find it
	More    int    `json:"more,omitempty"`  // further bad values of the same field
}

// Reason names a kind of Problem in one word, fit for a condition's reason.
type Reason string

// Error returns the problem on one line: [where: ]kind object: field: value: message.
func (p Problem) Error() string {
	s := p.Kind + " " + p.Object + ": "
	if p.Where != "" {
		s = p.Where + ": " + s
	}
	if p.Field != "" {
		s += p.Field + ": "
	}
	if p.Value != "" {
		s += text.Quote(p.Value) + ": "
	}
	s += p.Message
	if p.More > 0 {
		s += fmt.Sprintf("; and %d more such values", p.More)
	}
	return text.Line(s)
}
