// Package cluster holds the objects of the cluster that egress depends on, trimmed to the fields that are read, whatever
// source they come from: kube watches an API server, manifests a folder.
package cluster

import (
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/text"
)

// Key names a namespaced object. An EgressService and its Service share one.
type Key struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (k Key) String() string { return k.Namespace + "/" + k.Name }

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

// Objects is everything a source knows. It is not changed after it was handed out.
type Objects struct {
	EgressServices Map[Key, EgressService]
	Services       Map[Key, Service]
	Endpoints      Map[Key, []Endpoint] // of the Service of that key, all its EndpointSlices together
	Nodes          Map[string, Node]
	Namespaces     Map[string, Namespace]
	ServiceCIDRs   []netip.Prefix
	// Pods are those that a source follows, of this node at least.
	Pods      Map[Key, Pod]
	PodsKnown bool // false: none is followed, or they are not known yet
}

// EgressService is the part of the custom resource that is read.
type EgressService struct {
	UID          string    // empty: unknown
	Created      time.Time // zero: unknown
	SourceIPBy   SourceIPBy
	NodeSelector *metav1.LabelSelector // nil: every node
	Network      string                // empty: the default network
	Status       Status                // as it is obeyed
	Writer       Writer                // of the host, standby and term that the server has
	Disobeyed    *Status               // what the server has in place of Status, which no daemon obeys; nil: Status
	Generation   int64
	Version      uint64 // metadata.resourceVersion, larger with every change; 0: unknown
}

// Stands returns the status that the source has, be it obeyed or not.
func (e EgressService) Stands() Status {
	if e.Disobeyed != nil {
		return *e.Disobeyed
	}
	return e.Status
}

// Writer is who wrote the part of a status that is obeyed.
type Writer uint8

// The writers of a status.
const (
	WriterUnknown Writer = iota // the source does not say: the status is obeyed
	WriterNobody                // there is no host, or it was removed
	WriterLeader
	WriterOther // at least of a part
)

// Status is what the status of an EgressService says, or should say.
type Status struct {
	Host       string // a node, AllHosts, or empty: none
	Standby    string // the node that takes over; empty: none
	Term       int64  // how many hosts there have been; 0: not known
	Conditions []metav1.Condition
}

// SourceIPBy is where the source address of egress comes from.
type SourceIPBy string

// The choices of SourceIPBy.
const (
	SourceIPByLoadBalancer SourceIPBy = "LoadBalancerIP" // the Service's ingress IP; also when the field is empty
	SourceIPByNetwork      SourceIPBy = "Network"        // the outgoing interface's address on the endpoint's own node
)

// AllHosts is status.host of an EgressService whose every node is its host.
const AllHosts = "ALL"

// Service is the part of a core/v1 Service that is read.
type Service struct {
	LoadBalancer bool // spec.type
	LocalTraffic bool // spec.externalTrafficPolicy: Local
	ClusterIPs   []netip.Addr
	Ingress      []Ingress // status.loadBalancer.ingress, in order
	Ports        []Port
	Created      time.Time // zero: unknown
	SharingKey   string    // Services of several namespaces share an ingress IP where each has the same; empty: none
}

// Shares reports whether two Services, of the namespaces of their keys, may have an ingress IP in common: those of one namespace have one
// owner, others ask for it.
func Shares(key Key, sharingKey string, other Key, otherKey string) bool {
	return key.Namespace == other.Namespace || sharingKey != "" && sharingKey == otherKey
}

// Ingress is one entry of status.loadBalancer.ingress, as written: an IP or a host name.
type Ingress struct {
	IP, Hostname string
}

// Port is a port of a Service. The lab's service proxy reads it, steering does not: it covers every protocol.
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

// Target is what an endpoint says that its address belongs to.
type Target uint8

// The targets of endpoints.
const (
	TargetPod     Target = iota // a Pod of the EndpointSlice's namespace
	TargetUnknown               // the EndpointSlice does not say
	TargetOther                 // something else
)

// Node is the part of a core/v1 Node that is read.
type Node struct {
	UID       string // empty: unknown
	Labels    map[string]string
	Ready     bool
	Cordoned  bool         // spec.unschedulable
	Addresses []netip.Addr // every address of status.addresses
	Internal  []netip.Addr // those of type InternalIP
	PodCIDRs  []netip.Prefix
}

// Namespace is the part of a core/v1 Namespace that is read.
type Namespace struct {
	Labels map[string]string
}

// Pod is the part of a core/v1 Pod that is read.
type Pod struct {
	Node        string // empty: on none yet
	Labels      map[string]string
	Addresses   []netip.Addr // status.podIPs; none: not known yet
	HostNetwork bool
	Ended       bool // its phase is Succeeded or Failed: its addresses may be another's
}

// Problem says what is wrong with one object. Every other object is served as if it was alone.
type Problem struct {
	Kind    string `json:"kind"`            // EgressService, Service, EndpointSlice, Node, Config, ...
	Object  string `json:"object"`          // namespace/name or name
	Field   string `json:"field,omitempty"` // path of the field, empty: the whole object
	Value   string `json:"value,omitempty"` // what is there
	Reason  Reason `json:"reason"`          // a word for machines, CamelCase
	Message string `json:"message"`         // what is wrong and what would be right
	Where   string `json:"where,omitempty"` // file:line, where the source is a file
	More    int    `json:"more,omitempty"`  // values of the same field that are as wrong, and are not listed
}

// Reason is a Problem in one word, fit for a condition's reason.
type Reason string

// Error writes the problem on one line: [where: ]kind object: field: value: message.
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
