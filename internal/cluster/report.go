package cluster

import "encoding/json"

// Report is what the daemon of a node tells of itself to the one that elects hosts.
type Report struct {
	Networks map[string]NetworkState `json:"networks,omitempty"`
	// Hosts says of every node that this one watches by BFD (RFC 5880) whether it is alive. False: it was, and went silent.
	// A node that never answered is not among them.
	Hosts map[string]bool `json:"hosts,omitempty"`
	// Dead names those of them that this node has concluded are dead: it takes their standbys for the hosts, and where it is the
	// standby itself, it is the host already.
	Dead []string `json:"dead,omitempty"`
	// Draining says that the node wants to serve no EgressService: it is about to go.
	Draining bool `json:"draining,omitempty"`
	// Applied is the newest version of an EgressService, that is its resourceVersion, that is in force on the node: in its
	// kernel, and in what its peers are told.
	Applied uint64 `json:"applied,omitempty"`
	// Unserved are problems of EgressServices that only this node has: their conditions name them. Some, where there are many.
	Unserved []Problem `json:"unserved,omitempty"`
}

// NetworkState is what a node has of a network.
type NetworkState struct {
	Usable bool `json:"usable"` // its VRF and table are there
	// IPv4 and IPv6 say that a route of the family which leads somewhere stands in the table: one whose device has carrier.
	IPv4     bool `json:"ipv4"`
	IPv6     bool `json:"ipv6"`
	Sessions int  `json:"sessions"` // configured ones
	Up       int  `json:"up"`
}

// UnmarshalJSON reads what any version of the daemon reported: one that tells nothing of routes is taken to have them.
func (n *NetworkState) UnmarshalJSON(text []byte) error {
	type plain NetworkState
	read := plain{IPv4: true, IPv6: true}
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	*n = NetworkState(read)
	return nil
}

// Fit reports whether the node can be the host of services of the network at all: it is there, and one of its peers listens. A
// network without peers has its ingress IPs announced by other means. Whether it has routes is another question: where no
// node has one, somebody is the host nevertheless.
func (n NetworkState) Fit() bool { return n.Usable && (n.Sessions == 0 || n.Up > 0) }
