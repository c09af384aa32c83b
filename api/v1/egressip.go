package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EgressIP asks that pods, selected by the labels of their namespaces and their own, leave the cluster with one of its
// addresses as their source address.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=egressips,shortName=eip,scope=Cluster
// +kubebuilder:printcolumn:name="EgressIPs",type=string,JSONPath=".spec.egressIPs[*]"
// +kubebuilder:printcolumn:name="Assigned Node",type=string,JSONPath=".status.items[*].node"
// +kubebuilder:printcolumn:name="Assigned EgressIPs",type=string,JSONPath=".status.items[*].egressIP"
// +kubebuilder:printcolumn:name="Standby",type=string,priority=1,JSONPath=".status.items[*].standby"
type EgressIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec EgressIPSpec `json:"spec"`
	// +optional
	Status EgressIPStatus `json:"status,omitempty"`
}

// EgressIPSpec is the wanted egress of pods.
type EgressIPSpec struct {
	// The source addresses, IPv4, IPv6 or both. Each has a node of its own as host.
	EgressIPs []string `json:"egressIPs"`

	// The namespaces whose pods are selected, by their labels. Every namespace when it is an empty selector.
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`

	// The pods in these namespaces that are selected, by their labels. Every pod when empty.
	// +optional
	PodSelector metav1.LabelSelector `json:"podSelector,omitempty"`
}

// EgressIPStatus is what became of the wish.
type EgressIPStatus struct {
	// The addresses that have a host, in the order of the spec.
	Items []EgressIPStatusItem `json:"items"`

	// Why addresses have or have no host, and whether their egress is served.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EgressIPStatusItem is an address with its host.
type EgressIPStatusItem struct {
	// The name of the node that is the host.
	Node string `json:"node"`

	// The address.
	EgressIP string `json:"egressIP"`

	// The name of the node that takes over from the host. It is programmed like the host, and routers know its path, as a
	// worse one.
	// +optional
	Standby string `json:"standby,omitempty"`

	// How many hosts the address has had. Routers prefer the path of a later host.
	// +optional
	Term int64 `json:"term,omitempty"`
}

// EgressIPList is a list of EgressIPs.
//
// +kubebuilder:object:root=true
type EgressIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []EgressIP `json:"items"`
}
