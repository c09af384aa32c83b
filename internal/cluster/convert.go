package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	egressv1 "github.com/egressway/egressway/api/v1"
)

// The From functions trim API objects to the fields that are read. They are pure. An invalid part is left out and becomes
// a Problem. An object that an API server would refuse becomes a Problem, and ok is false.

// FromEgressService trims an EgressService. It keeps an invalid selector: such an object has no host, and its pods'
// packets are dropped, while without the object they would leave the node as they are. It also keeps a name that is
// valid for an EgressService but for no Service, so that the object's status can report that.
func FromEgressService(o *egressv1.EgressService) (key Key, e EgressService, problems []Problem, ok bool) {
	key = keyOf(o)
	f := findings{kind: "EgressService", object: key.String()}
	name, namespace := f.label("metadata.name", key.Name), f.label("metadata.namespace", key.Namespace)
	if !namespace || !name && len(validation.IsDNS1123Subdomain(key.Name)) > 0 {
		return key, e, f.problems, false
	}
	e = EgressService{
		UID:        string(o.UID),
		Created:    o.CreationTimestamp.Time,
		SourceIPBy: SourceIPBy(o.Spec.SourceIPBy),
		Network:    o.Spec.Network,
		Status: Status{
			Host: o.Status.Host, Standby: o.Status.Standby, Term: o.Status.Term, Conditions: o.Status.Conditions,
			Generation: o.Status.ObservedGeneration, IngressIPs: o.Status.IngressIPs,
		},
		Generation: o.Generation,
	}
	switch e.SourceIPBy {
	case "":
		e.SourceIPBy = SourceIPByLoadBalancer
	case SourceIPByLoadBalancer, SourceIPByNetwork:
	default:
		f.add("spec.sourceIPBy", string(e.SourceIPBy), ReasonInvalidValue, "one of %s, %s", SourceIPByLoadBalancer, SourceIPByNetwork)
		return key, e, f.problems, false
	}
	if s := o.Spec.NodeSelector; len(s.MatchLabels) > 0 || len(s.MatchExpressions) > 0 {
		e.NodeSelector = s.DeepCopy()
		if _, err := metav1.LabelSelectorAsSelector(e.NodeSelector); err != nil {
			f.add("spec.nodeSelector", "", ReasonInvalidSelector, "not a label selector: %s", err)
		}
	}
	return key, e, f.problems, true
}

// MetalLB's annotations of Services that share an ingress IP: all of them have the same value.
const (
	annotationShared       = "metallb.io/allow-shared-ip"
	annotationSharedFormer = "metallb.universe.tf/allow-shared-ip" // of older releases
)

// FromService trims a Service.
func FromService(o *corev1.Service) (key Key, s Service, problems []Problem, ok bool) {
	key = keyOf(o)
	f := findings{kind: "Service", object: key.String()}
	if !f.key(key) {
		return key, s, f.problems, false
	}
	s = Service{
		LoadBalancer: o.Spec.Type == corev1.ServiceTypeLoadBalancer,
		LocalTraffic: o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		Created:      o.CreationTimestamp.Time,
		SharingKey:   cmp.Or(o.Annotations[annotationShared], o.Annotations[annotationSharedFormer]),
	}
	s.ClusterIPs = f.clusterIPs(&o.Spec)
	for _, in := range o.Status.LoadBalancer.Ingress {
		s.Ingress = append(s.Ingress, Ingress{IP: in.IP, Hostname: in.Hostname})
	}
	for i, p := range o.Spec.Ports {
		if !validPort(p) {
			f.add(fmt.Sprintf("spec.ports[%d]", i), "", ReasonInvalidValue, "a port is a number from 1 to 65535")
			continue
		}
		s.Ports = append(s.Ports, fromPort(p))
	}
	return key, s, f.problems, true
}

// validPort reports whether the numbers of a port are in range; a named target port has number 0.
func validPort(p corev1.ServicePort) bool {
	return p.Port >= 1 && p.Port <= 65535 && p.TargetPort.IntVal >= 0 && p.TargetPort.IntVal <= 65535
}

// fromPort trims a port of a Service, whose numbers are valid.
func fromPort(p corev1.ServicePort) Port {
	port := Port{
		Name: p.Name, Protocol: cmp.Or(string(p.Protocol), string(corev1.ProtocolTCP)),
		Port: uint16(p.Port), TargetPort: uint16(p.Port),
	}
	switch {
	case p.TargetPort.Type == intstr.String:
		port.TargetPort = 0 // by name: differs from pod to pod
	case p.TargetPort.IntVal != 0:
		port.TargetPort = uint16(p.TargetPort.IntVal)
	}
	return port
}

// FromSlice trims an EndpointSlice to its Service and its endpoints. It ignores the endpoints' conditions: an endpoint
// ends when the slice no longer has it. A slice without a Service, or of host names, has no endpoints.
func FromSlice(o *discoveryv1.EndpointSlice) (service Key, endpoints []Endpoint) {
	service = Key{o.Namespace, o.Labels[discoveryv1.LabelServiceName]}
	if service.Name == "" || o.AddressType == discoveryv1.AddressTypeFQDN {
		return service, nil
	}
	for i := range o.Endpoints {
		endpoints = appendEndpoints(endpoints, o.Namespace, &o.Endpoints[i])
	}
	return service, endpoints
}

// appendEndpoints appends an endpoint for each address of one in an EndpointSlice of a namespace.
func appendEndpoints(all []Endpoint, namespace string, e *discoveryv1.Endpoint) []Endpoint {
	node := ""
	if e.NodeName != nil {
		node = *e.NodeName
	}
	for _, a := range e.Addresses {
		all = append(all, Endpoint{Address: a, Node: node, Target: target(namespace, e.TargetRef)})
	}
	return all
}

// target returns the kind of object that a targetRef in an EndpointSlice of a namespace names.
func target(namespace string, ref *corev1.ObjectReference) Target {
	switch {
	case ref == nil:
		return TargetUnknown
	case ref.Kind == "Pod" && ref.Name != "" && (ref.Namespace == "" || ref.Namespace == namespace):
		return TargetPod
	}
	return TargetOther
}

// FromNode trims a Node.
func FromNode(o *corev1.Node) (name string, n Node, problems []Problem, ok bool) {
	f := findings{kind: "Node", object: o.Name}
	if len(validation.IsDNS1123Subdomain(o.Name)) > 0 {
		f.add("metadata.name", o.Name, ReasonInvalidName, "lower case letters, digits, '-' and '.', at most 253 bytes")
		return o.Name, n, f.problems, false
	}
	n = Node{UID: string(o.UID), Labels: o.Labels, Cordoned: o.Spec.Unschedulable}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady {
			n.Ready = c.Status == corev1.ConditionTrue
		}
	}
	n.Addresses, n.Internal = f.nodeAddresses(o.Status.Addresses)
	if len(n.Internal) == 0 {
		f.add("status.addresses", "", ReasonNoInternalIP,
			"no usable address of type InternalIP: nothing can be steered to or from this node")
	}
	n.Secondary = f.secondary(o.Annotations[annotationHostCIDRs], n.Addresses)
	if len(o.Spec.PodCIDRs) > 0 {
		n.PodCIDRs = f.prefixes("spec.podCIDRs", o.Spec.PodCIDRs)
	} else if o.Spec.PodCIDR != "" {
		n.PodCIDRs = f.prefixes("spec.podCIDR", []string{o.Spec.PodCIDR})
	}
	return o.Name, n, f.problems, true
}

// FromNamespace trims a Namespace, and adds the label with its name, which selectors use, if no API server has done so.
func FromNamespace(o *corev1.Namespace) (name string, n Namespace, problems []Problem, ok bool) {
	f := findings{kind: "Namespace", object: o.Name}
	if !f.label("metadata.name", o.Name) {
		return o.Name, n, f.problems, false
	}
	n.Labels = map[string]string{}
	maps.Copy(n.Labels, o.Labels)
	n.Labels[corev1.LabelMetadataName] = o.Name
	return o.Name, n, nil, true
}

// FromPod trims a Pod.
func FromPod(o *corev1.Pod) (key Key, p Pod, problems []Problem, ok bool) {
	key = keyOf(o)
	f := findings{kind: "Pod", object: key.String()}
	if namespace := f.label("metadata.namespace", key.Namespace); !namespace {
		return key, p, f.problems, false
	}
	if len(validation.IsDNS1123Subdomain(key.Name)) > 0 {
		f.add("metadata.name", key.Name, ReasonInvalidName, "lower case letters, digits, '-' and '.', at most 253 bytes")
		return key, p, f.problems, false
	}
	p = Pod{
		Node: o.Spec.NodeName, Labels: o.Labels, HostNetwork: o.Spec.HostNetwork,
		Ended: o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed,
	}
	for i, in := range o.Status.PodIPs {
		p.Addresses = f.address(p.Addresses, fmt.Sprintf("status.podIPs[%d].ip", i), in.IP)
	}
	if len(o.Status.PodIPs) == 0 && o.Status.PodIP != "" {
		p.Addresses = f.address(p.Addresses, "status.podIP", o.Status.PodIP)
	}
	return key, p, f.problems, true
}

// FromServiceCIDR trims a ServiceCIDR.
func FromServiceCIDR(o *networkingv1.ServiceCIDR) ([]netip.Prefix, []Problem) {
	f := findings{kind: "ServiceCIDR", object: o.Name}
	cidrs := f.prefixes("spec.cidrs", o.Spec.CIDRs)
	return cidrs, f.problems
}

// CompactEndpoints removes duplicates: a Service has a slice for each family and set of ports, so an endpoint may be in
// several.
func CompactEndpoints(endpoints []Endpoint) []Endpoint {
	seen := make(map[Endpoint]bool, len(endpoints))
	return slices.DeleteFunc(endpoints, func(e Endpoint) bool {
		twice := seen[e]
		seen[e] = true
		return twice
	})
}

func keyOf(o metav1.Object) Key { return Key{o.GetNamespace(), o.GetName()} }

// mostFindings bounds the problems of one object. Further ones appear when these are corrected.
const mostFindings = 10

// Few returns the first problems of one object, as many as are reported.
func Few(problems []Problem) []Problem { return problems[:min(len(problems), mostFindings)] }

// findings collects the problems of one object.
type findings struct {
	kind, object string
	problems     []Problem
}

func (f *findings) add(field, value string, reason Reason, format string, args ...any) {
	if len(f.problems) == mostFindings {
		return
	}
	f.problems = append(f.problems, Problem{
		Kind: f.kind, Object: f.object, Field: field, Value: Clip(value), Reason: reason, Message: fmt.Sprintf(format, args...),
	})
}

// key checks that a Service may have this namespace and name.
func (f *findings) key(k Key) bool {
	name, namespace := f.label("metadata.name", k.Name), f.label("metadata.namespace", k.Namespace)
	return name && namespace
}

func (f *findings) label(field, name string) bool {
	switch {
	case name == "":
		f.add(field, "", ReasonInvalidName, "missing")
	case len(name) > validation.DNS1123LabelMaxLength:
		f.add(field, name, ReasonNameTooLong, "at most %d bytes, this has %d", validation.DNS1123LabelMaxLength, len(name))
	case len(validation.IsDNS1123Label(name)) > 0:
		f.add(field, name, ReasonInvalidName, "lower case letters, digits and '-', a letter or digit first and last")
	default:
		return true
	}
	return false
}

// usablePrefix reports whether a prefix may hold pods or Services. One of length 0 may not: it would make every destination part
// of the cluster.
func usablePrefix(p netip.Prefix) bool {
	return p.Bits() > 0 && !p.Addr().Is4In6() && !p.Addr().IsMulticast() && !p.Addr().IsLoopback()
}

// prefixes returns the usable prefixes.
func (f *findings) prefixes(field string, texts []string) []netip.Prefix {
	var usable []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || !usablePrefix(p) {
			f.add(field, text, ReasonInvalidAddress, "not a usable prefix, such as 10.244.1.0/24")
			continue
		}
		usable = append(usable, p.Masked())
	}
	return usable
}

// clusterIPs returns the usable ClusterIPs of a Service.
func (f *findings) clusterIPs(spec *corev1.ServiceSpec) (all []netip.Addr) {
	texts, field := spec.ClusterIPs, "spec.clusterIPs"
	if len(texts) == 0 {
		texts, field = []string{spec.ClusterIP}, "spec.clusterIP"
	}
	for _, text := range texts {
		if text != "" && text != corev1.ClusterIPNone {
			all = f.address(all, field, text)
		}
	}
	return all
}

// address appends an address, if it is usable.
func (f *findings) address(all []netip.Addr, field, text string) []netip.Addr {
	a, err := ParseAddr(text)
	if err != nil {
		f.add(field, text, ReasonInvalidAddress, "%s", err)
		return all
	}
	return append(all, a)
}

// nodeAddresses returns the usable addresses of a Node, and those of them that are InternalIPs.
func (f *findings) nodeAddresses(addresses []corev1.NodeAddress) (all, internal []netip.Addr) {
	for i, addr := range addresses {
		if !slices.Contains([]corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP}, addr.Type) {
			continue
		}
		a, err := ParseAddr(addr.Address)
		if err != nil {
			f.add(fmt.Sprintf("status.addresses[%d].address", i), addr.Address, ReasonInvalidAddress, "%s", err)
			continue
		}
		all = append(all, a)
		if addr.Type == corev1.NodeInternalIP {
			internal = append(internal, a)
		}
	}
	return all, internal
}
