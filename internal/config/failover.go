package config

// Failover configures how nodes detect a host's death, and act before the leader elects another host.
type Failover struct {
	BFD   NodeBFD   `yaml:"bfd"`
	Flows NodeFlows `yaml:"flows"`
}

// NodeFlows configures the channels from hosts to standbys that carry established egress flows, so that the standby can
// continue them. It should be the same on all nodes; Port must be.
type NodeFlows struct {
	Enabled bool   `yaml:"enabled"` // the host sends its established egress flows to its standby, where they continue after a failover
	Port    uint16 `yaml:"port"`    // TCP port, the same on all nodes; must pass between their InternalIPs
}

// NodeBFD configures the BFD sessions between nodes, by which they watch hosts (RFC 5880, and RFC 5883 for several
// hops). It should be the same on all nodes; Port must be.
type NodeBFD struct {
	Enabled bool `yaml:"enabled"` // a host's standby and the nodes that steer to it watch it by BFD
	// UDP port, the same on all nodes; must pass between their InternalIPs. Not 4784 if FRR runs on nodes
	Port             uint16 `yaml:"port"`
	TransmitInterval uint32 `yaml:"transmitInterval"` // milliseconds, 10 to 60000
	ReceiveInterval  uint32 `yaml:"receiveInterval"`  // milliseconds, 10 to 60000; a node watched by more than 500 asks for longer ones
	DetectMultiplier uint8  `yaml:"detectMultiplier"` // missed packets in a row after which a node is dead, 1 to 50
}

// Profile returns the timers of the sessions between nodes.
func (b NodeBFD) Profile() BFDProfile {
	return BFDProfile{TransmitInterval: b.TransmitInterval, ReceiveInterval: b.ReceiveInterval, DetectMultiplier: b.DetectMultiplier}
}

// singleHopBFD is the UDP port of BFD sessions with BGP peers (RFC 5881), on every address of the node.
const singleHopBFD = 3784

func (v *validator) failover() {
	v.nodeBFD("failover.bfd", v.c.Failover.BFD)
	switch port := v.c.Failover.Flows.Port; {
	case port == 0:
		v.bad("failover.flows.port", "not a TCP port: 1 to 65535")
	case int(port) == v.c.BGP.ListenPort:
		v.bad("failover.flows.port", "bgp.listenPort is the same: both are TCP ports of this node, each needs its own")
	}
}

func (v *validator) nodeBFD(path string, b NodeBFD) {
	switch b.Port {
	case 0:
		v.bad(path+".port", "not a UDP port: 1 to 65535")
	case v.c.Steering.Port:
		v.bad(path+".port", "steering.port is the same: both are UDP ports of this node, each needs its own")
	case singleHopBFD:
		v.bad(path+".port", "BFD with BGP peers uses this port: choose another")
	}
	v.bfdIntervals(path, b.Profile())
	if most := uint8(50); b.DetectMultiplier == 0 || b.DetectMultiplier > most {
		v.bad(path+".detectMultiplier", "1 to %d missed packets", most)
	}
}

// bfdIntervals checks the intervals of the profile at path: the valid range is FRR's.
func (v *validator) bfdIntervals(path string, p BFDProfile) {
	const least, most = 10, 60000
	if p.TransmitInterval < least || p.TransmitInterval > most {
		v.bad(path+".transmitInterval", "%d to %d milliseconds", least, most)
	}
	if p.ReceiveInterval < least || p.ReceiveInterval > most {
		v.bad(path+".receiveInterval", "%d to %d milliseconds", least, most)
	}
}
