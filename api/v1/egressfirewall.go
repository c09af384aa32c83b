package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EgressFirewall allows or denies connections that the pods of its namespace begin, by their destination. A namespace has one,
// named default.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=egressfirewalls,singular=egressfirewall
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="EgressFirewall Status",type=string,JSONPath=".status.status"
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="an EgressFirewall is named default: one a namespace"
type EgressFirewall struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec EgressFirewallSpec `json:"spec"`
	// +optional
	Status EgressFirewallStatus `json:"status,omitempty"`
}

// EgressFirewallSpec holds the rules of a namespace.
type EgressFirewallSpec struct {
	// The rules. Of those that match the destination of a connection, the first counts. Connections that none matches are allowed.
	Egress []EgressFirewallRule `json:"egress"`
}

// EgressFirewallRule allows or denies connections to a destination.
type EgressFirewallRule struct {
	// Allow or Deny.
	Type EgressFirewallRuleType `json:"type"`

	// The ports and protocols. Every protocol and port when left out.
	// +optional
	Ports []EgressFirewallPort `json:"ports,omitempty"`

	// The destination.
	To EgressFirewallDestination `json:"to"`
}

// EgressFirewallRuleType is Allow or Deny.
//
// +kubebuilder:validation:Pattern=`^Allow|Deny$`
type EgressFirewallRuleType string

// The choices of EgressFirewallRuleType.
const (
	EgressFirewallAllow EgressFirewallRuleType = "Allow"
	EgressFirewallDeny  EgressFirewallRuleType = "Deny"
)

// EgressFirewallPort is a port of a protocol.
type EgressFirewallPort struct {
	// TCP, UDP or SCTP.
	// +kubebuilder:validation:Pattern=`^TCP|UDP|SCTP$`
	Protocol string `json:"protocol"`

	// The destination port.
	// +kubebuilder:validation:Minimum:=1
	// +kubebuilder:validation:Maximum:=65535
	Port int32 `json:"port"`
}

// EgressFirewallDestination names destinations by one of its fields.
//
// +kubebuilder:validation:MinProperties:=1
// +kubebuilder:validation:MaxProperties:=1
type EgressFirewallDestination struct {
	// Addresses of a prefix, IPv4 or IPv6.
	// +optional
	// +kubebuilder:validation:Format="cidr"
	CIDRSelector string `json:"cidrSelector,omitempty"`

	// Addresses of a DNS name; "*." stands for one label.
	// +optional
	// +kubebuilder:validation:Pattern=`^(\*\.)?([A-Za-z0-9-]+\.)*[A-Za-z0-9-]+\.?$`
	DNSName string `json:"dnsName,omitempty"`

	// All addresses of the nodes with these labels. Every node when empty.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// EgressFirewallStatus reports whether the rules are in force.
type EgressFirewallStatus struct {
	// "EgressFirewall Rules applied" or "EgressFirewall Rules not correctly applied".
	// +optional
	Status string `json:"status,omitempty"`

	// Messages of nodes that have pods of the namespace, each after the name of its node.
	// +optional
	// +listType=set
	Messages []string `json:"messages,omitempty"`

	// Whether the rules are valid, and in force on all nodes.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EgressFirewallList is a list of EgressFirewalls.
//
// +kubebuilder:object:root=true
type EgressFirewallList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []EgressFirewall `json:"items"`
}
