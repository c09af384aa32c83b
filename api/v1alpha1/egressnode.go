package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's types.
var GroupVersion = schema.GroupVersion{Group: "egressway.io", Version: "v1alpha1"}

// EgressNodes is the name of the resource.
const EgressNodes = "egressnodes"

// EgressNode is the state of the node of the same name, as its daemon last reported it: of its kernel and its BGP sessions. The daemon
// writes it when it changes, and every ten minutes. Nothing reads it but people and their tools.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=egressnodes,shortName=egnode,scope=Cluster
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Networks",type=string,JSONPath=".status.networksUsable"
// +kubebuilder:printcolumn:name="Sessions",type=string,JSONPath=".status.sessionsUp"
// +kubebuilder:printcolumn:name="Host Of",type=integer,JSONPath=".status.hostOf"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Reported",type=date,JSONPath=".status.reported"
// +kubebuilder:printcolumn:name="Standby Of",type=integer,priority=1,JSONPath=".status.standbyOf"
// +kubebuilder:printcolumn:name="Down",type=string,priority=1,JSONPath=".status.down"
// +kubebuilder:printcolumn:name="Version",type=string,priority=1,JSONPath=".status.version"
type EgressNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status EgressNodeStatus `json:"status,omitempty"`
}

// EgressNodeStatus is the state of a node.
type EgressNodeStatus struct {
	// When the daemon wrote this state.
	// +optional
	Reported metav1.Time `json:"reported,omitempty"`

	// The version of the daemon.
	// +optional
	Version string `json:"version"`

	// Whether the node wants to serve no EgressService.
	// +optional
	Draining bool `json:"draining"`

	// The number of EgressServices, and of addresses of EgressIPs, whose host the node is.
	// +optional
	HostOf int32 `json:"hostOf"`

	// The number of those whose standby it is.
	// +optional
	StandbyOf int32 `json:"standbyOf"`

	// The usable networks of all, as "2/2". Empty: the state is not known.
	// +optional
	NetworksUsable string `json:"networksUsable"`

	// The BGP sessions that are up, of all, as "3/4". Empty: there are none, or the state is not known.
	// +optional
	SessionsUp string `json:"sessionsUp"`

	// The sessions that are down, as network/peer.
	// +optional
	// +listType=atomic
	Down []string `json:"down"`

	// The node's networks.
	// +optional
	// +listType=atomic
	Networks []EgressNodeNetwork `json:"networks"`

	// The node's BGP sessions; at most 256.
	// +optional
	// +listType=atomic
	Sessions []EgressNodeSession `json:"sessions"`

	// Ready: the node's kernel is as planned, and the node has every network that it serves. False, with the reason ObjectsUnknown:
	// since its start the daemon does not know all objects yet, and has written this condition alone. Unknown, with the reason NodeSilent:
	// the daemon does not report any more, and the leader has removed its last networks and sessions.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EgressNodeNetwork is the state of a network on a node.
type EgressNodeNetwork struct {
	Name string `json:"name"`
	// Whether its VRF, its interfaces and its table exist.
	Usable bool `json:"usable"`
	// Why it is not usable.
	// +optional
	Lacks string `json:"lacks,omitempty"`
}

// EgressNodeSession is a BGP session of a node.
type EgressNodeSession struct {
	Network string `json:"network"`
	// The configured address or interface of the peer.
	Peer string `json:"peer"`
	// The AS number of the peer; 0 while it is not known.
	// +optional
	ASN int64 `json:"asn,omitempty"`
	// Whether it is established, with a peer that is accepted.
	Up bool `json:"up"`
	// Since when it is up, or down, as the daemon saw it.
	// +optional
	Since metav1.Time `json:"since,omitempty"`
	// Why it was lost or refused.
	// +optional
	LastError string `json:"lastError,omitempty"`
}

// ConditionReady is the type of the condition.
const ConditionReady = "Ready"

// Reasons of the condition Ready.
const (
	ReasonInForce        = "InForce"
	ReasonNotInForce     = "NotInForce" // the message says why
	ReasonObjectsUnknown = "ObjectsUnknown"
	ReasonNodeSilent     = "NodeSilent"
)

// EgressNodeList is a list of EgressNodes.
//
// +kubebuilder:object:root=true
type EgressNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EgressNode `json:"items"`
}
