package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EgressQoS asks that packets of the pods of its namespace have a DSCP value, by their destination. A namespace has one, named
// default.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=egressqoses,singular=egressqos
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=".status.status"
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="an EgressQoS is named default: a namespace has one"
type EgressQoS struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec EgressQoSSpec `json:"spec,omitempty"`
	// +optional
	Status EgressQoSStatus `json:"status,omitempty"`
}

// EgressQoSSpec holds the rules of a namespace.
type EgressQoSSpec struct {
	// The rules. Of those that match a pod and the destination of its packet, the first counts.
	Egress []EgressQoSRule `json:"egress"`
}

// EgressQoSRule sets the DSCP value of the packets that it matches.
type EgressQoSRule struct {
	// The value of the DS field (RFC 2474).
	// +kubebuilder:validation:Minimum:=0
	// +kubebuilder:validation:Maximum:=63
	DSCP int `json:"dscp"`

	// The destinations, IPv4 or IPv6. Every destination of both families when left out.
	// +optional
	// +kubebuilder:validation:Format="cidr"
	DstCIDR *string `json:"dstCIDR,omitempty"`

	// The pods of the namespace, by their labels. Every pod when empty.
	// +optional
	PodSelector metav1.LabelSelector `json:"podSelector,omitempty"`
}

// EgressQoSStatus says whether the rules are in force.
type EgressQoSStatus struct {
	// A short text: whether all rules are applied.
	// +optional
	Status string `json:"status,omitempty"`

	// Whether the rules are valid, and applied on all nodes.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EgressQoSList is a list of EgressQoSes.
//
// +kubebuilder:object:root=true
type EgressQoSList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []EgressQoS `json:"items"`
}
