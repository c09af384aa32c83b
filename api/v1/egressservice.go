package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EgressService asks that the pods behind the LoadBalancer Service of the same namespace and name leave the cluster with
// that Service's ingress IP as their source address, by a network of their own, or both.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=egressservices,shortName=egsvc
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Assigned Host",type=string,JSONPath=".status.host"
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=".spec.network"
// +kubebuilder:printcolumn:name="Ingress",type=string,JSONPath=".status.ingressIPs"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Standby",type=string,priority=1,JSONPath=".status.standby"
// +kubebuilder:printcolumn:name="Programmed",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Programmed')].status"
type EgressService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec EgressServiceSpec `json:"spec,omitempty"`
	// +optional
	Status EgressServiceStatus `json:"status,omitempty"`
}

// EgressServiceSpec is the wanted egress of a Service's pods.
type EgressServiceSpec struct {
	// Where the source address of the pods' egress comes from. LoadBalancerIP, also meant when the field is empty: the
	// Service's ingress IP; one node is the host of all of it. Network: the address of the interface by which each pod's
	// own node reaches the network.
	// +optional
	SourceIPBy SourceIPMode `json:"sourceIPBy,omitempty"`

	// Which nodes may become the host, with sourceIPBy LoadBalancerIP. Every node when empty.
	// +optional
	NodeSelector metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// The network by which the pods' egress, and the replies to clients that came by it, leave. The nodes' main routing
	// table when empty.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	Network string `json:"network,omitempty"`
}

// SourceIPMode is where the source address of egress comes from.
//
// +kubebuilder:validation:Enum=LoadBalancerIP;Network
type SourceIPMode string

// The choices of SourceIPMode.
const (
	SourceIPLoadBalancer SourceIPMode = "LoadBalancerIP"
	SourceIPNetwork      SourceIPMode = "Network"
)

// EgressServiceStatus is what became of the wish.
type EgressServiceStatus struct {
	// The name of the node that is the host; "ALL" with sourceIPBy Network; empty while there is none.
	Host string `json:"host"`

	// The name of the node that takes over from the host. It is programmed like the host, and routers know its path, as a
	// worse one.
	// +optional
	Standby string `json:"standby,omitempty"`

	// How many hosts there have been. Routers prefer the path of a later host, so that a former one that does not know yet
	// gets no packets.
	// +optional
	Term int64 `json:"term,omitempty"`

	// The metadata.generation to which the conditions refer.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// The ingress IPs of the Service: the sources of egress, unless sourceIPBy is Network.
	// +optional
	// +listType=atomic
	IngressIPs []string `json:"ingressIPs,omitempty"`

	// Why there is or is no host, and whether its egress is served: Ready summarizes the other conditions.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EgressServiceList is a list of EgressServices.
//
// +kubebuilder:object:root=true
type EgressServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []EgressService `json:"items"`
}
