package config

// Failover says how nodes notice that a host has died and what they do before anybody has elected another.
type Failover struct {
	BFD   NodeBFD   `yaml:"bfd"`
	Flows NodeFlows `yaml:"flows"`
}

// NodeFlows is the channels between host and standby by which the standby learns of established egress flows, to go on with
// them. It should be the same on all nodes: Port must be.
type NodeFlows struct {
	Enabled bool   `yaml:"enabled"` // the host sends its established egress flows to the standby, where they continue
	Port    uint16 `yaml:"port"`    // TCP, the same on all nodes; must pass between their InternalIPs
}

// NodeBFD is the sessions between nodes by which they watch hosts (RFC 5880, over several hops as in RFC 5883). It should
// be the same on all nodes: Port must be.
type NodeBFD struct {
	Enabled          bool   `yaml:"enabled"`          // those that steer to a host, and its standby, watch it by BFD
	Port             uint16 `yaml:"port"`             // UDP, the same on all nodes; must pass between their InternalIPs. Not 4784 where FRR runs on nodes
	TransmitInterval uint32 `yaml:"transmitInterval"` // milliseconds, 10 to 60000
	ReceiveInterval  uint32 `yaml:"receiveInterval"`  // milliseconds, 10 to 60000; a node that more than 500 watch asks for longer ones
	DetectMultiplier uint8  `yaml:"detectMultiplier"` // so many packets missed in a row are a death, 1 to 50
}

// Profile holds the timers of the sessions between nodes.
func (b NodeBFD) Profile() BFDProfile {
	return BFDProfile{TransmitInterval: b.TransmitInterval, ReceiveInterval: b.ReceiveInterval, DetectMultiplier: b.DetectMultiplier}
}

// singleHopBFD is the UDP port that sessions with BGP peers use (RFC 5881), on every address of the node.
const singleHopBFD = 3784

func (v *validator) failover() {
	b := v.c.Failover.BFD
	switch b.Port {
	case 0:
		v.bad("failover.bfd.port", "not a UDP port: 1 to 65535")
	case v.c.Steering.Port:
		v.bad("failover.bfd.port", "steering.port is the same: both are UDP ports of this node, each needs its own")
	case singleHopBFD:
		v.bad("failover.bfd.port", "BFD with BGP peers uses this port: any other")
	}
	v.bfdIntervals("failover.bfd", b.Profile())
	if most := uint8(50); b.DetectMultiplier == 0 || b.DetectMultiplier > most {
		v.bad("failover.bfd.detectMultiplier", "1 to %d missed packets", most)
	}
	switch port := v.c.Failover.Flows.Port; {
	case port == 0:
		v.bad("failover.flows.port", "not a TCP port: 1 to 65535")
	case int(port) == v.c.BGP.ListenPort:
		v.bad("failover.flows.port", "bgp.listenPort is the same: both are TCP ports of this node, each needs its own")
	}
}

// bfdIntervals judges the timers of the profile at path: the range is the one that FRR takes.
func (v *validator) bfdIntervals(path string, p BFDProfile) {
	const least, most = 10, 60000
	if p.TransmitInterval < least || p.TransmitInterval > most {
		v.bad(path+".transmitInterval", "%d to %d milliseconds", least, most)
	}
	if p.ReceiveInterval < least || p.ReceiveInterval > most {
		v.bad(path+".receiveInterval", "%d to %d milliseconds", least, most)
	}
}
