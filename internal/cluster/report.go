package cluster

import "encoding/json"

// Report is the state of a node, as its daemon reports it to the leader.
type Report struct {
	// Starting means that the daemon does not know its sessions yet, as it has just started. The report then stands only where the node
	// has never reported: otherwise the one of its former run does.
	Starting bool `json:"-"`
	// Old means that the report may be of long ago: a leader found it when its term began, and by the clock it had expired then.
	Old bool `json:"-"`
	// Networks holds the state of each network that the node's configuration lists, also of one that the node lacks.
	Networks map[string]NetworkState `json:"networks,omitempty"`
	// Hosts holds, for each node that this one watches by BFD (RFC 5880), whether it is alive; false: its session went down.
	// A node that never answered is not included.
	Hosts map[string]bool `json:"hosts,omitempty"`
	// Dead names the nodes of Hosts that this node has concluded to be dead: it treats their standbys as hosts, and where it is
	// the standby itself, it already acts as the host. It lacks those whose standby this node is by a later decision of the leader, unless
	// it acts instead of them elsewhere.
	Dead []string `json:"dead,omitempty"`
	// Draining asks the leader to move all EgressServices off this node, which is about to stop.
	Draining bool `json:"draining,omitempty"`
	// Refusing means that the node's kernel has refused rules or packet filter, or could not be read, for a while, so it follows no change.
	// It goes on with what it does, and should get nothing else to do.
	Refusing bool `json:"refusing,omitempty"`
	// Applied is the newest version (metadata.resourceVersion) of an EgressService that is in force on the node: in its kernel
	// and in its announcements.
	Applied uint64 `json:"applied,omitempty"`
	// AppliedIPs is the same of EgressIPs: the watches of both kinds are not in step.
	AppliedIPs uint64 `json:"appliedEgressIPs,omitempty"`
	// EgressQoSes holds the Revisions of the EgressQoSes that are in force on the node; empty: none are served.
	EgressQoSes string `json:"egressQoSes,omitempty"`
	// EgressFirewalls holds the same of EgressFirewalls.
	EgressFirewalls string `json:"egressFirewalls,omitempty"`
	// Firewalled holds the namespaces that have an EgressFirewall, and pods on the node, sorted. If there are many, it holds some.
	Firewalled []string `json:"firewalled,omitempty"`
	// Unserved holds problems of EgressServices on this node only, which become conditions. If there are many, it holds some.
	Unserved []Problem `json:"unserved,omitempty"`
}

// Electable reports whether a node may be host or standby, as far as its Node says: it is Ready, or its daemon reports, as it does while
// only the kubelet is stopped.
func Electable(n Node, r Report, reports bool) bool { return n.Ready || reports && !r.Old }

// NetworkState is the state of a network on a node.
type NetworkState struct {
	Usable bool `json:"usable"` // its VRF and table exist
	// IPv4 and IPv6 report whether the table has a usable route of the family: one whose device has carrier.
	IPv4     bool `json:"ipv4"`
	IPv6     bool `json:"ipv6"`
	Sessions int  `json:"sessions"` // configured ones
	Up       int  `json:"up"`
	// Restarting means that none is up since the speaker is being replaced: they were up before, and routers keep the node's routes.
	Restarting bool `json:"restarting,omitempty"`
}

// UnmarshalJSON reads the report of any version of the daemon: without information about routes, it assumes them.
func (n *NetworkState) UnmarshalJSON(text []byte) error {
	type plain NetworkState
	read := plain{IPv4: true, IPv6: true}
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	*n = NetworkState(read)
	return nil
}

// Fit reports whether the node may be a host of the network at all: the network is usable, and at least one of its
// sessions is up, or about to be again. Ingress IPs of a network without peers are announced by other means. Routes do
// not matter here: if no node has one, some node is the host nevertheless.
func (n NetworkState) Fit() bool { return n.Usable && (n.Sessions == 0 || n.Up > 0 || n.Restarting) }
