package cluster

// Report is what the daemon of a node tells of itself to the one that elects hosts.
type Report struct {
	Networks map[string]NetworkState `json:"networks,omitempty"`
	// Applied is the newest version of an EgressService, that is its resourceVersion, that is in force on the node: in its
	// kernel, and in what its peers are told.
	Applied uint64 `json:"applied,omitempty"`
}

// NetworkState is what a node has of a network.
type NetworkState struct {
	Usable   bool `json:"usable"`   // its VRF and table are there
	Sessions int  `json:"sessions"` // configured ones
	Up       int  `json:"up"`
}

// Fit says whether the node can be the host of services of the network: it is there, and one of its peers listens. A
// network without peers has its routes, and its ingress IPs announced, by other means.
func (n NetworkState) Fit() bool { return n.Usable && (n.Sessions == 0 || n.Up > 0) }
