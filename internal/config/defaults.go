package config

import "time"

// Defaults returns the configuration of an empty file.
func Defaults() *Config {
	return &Config{
		OnNoPath: NoPathDrop,
		Steering: Steering{Mode: SteeringAuto, Device: "egressway", VNI: 7946, Port: 4790},
		Marks:    Marks{Mask: defaultMask, RulePriority: 700},
		BGP: BGP{
			ListenPort:      -1,
			GracefulRestart: GracefulRestart{Enabled: true, RestartTime: Duration(120 * time.Second)},
		},
		Networks: []Network{{Name: DefaultNetwork}},
		Firewall: Firewall{
			Hold:      true,
			Resolvers: Resolvers{Services: []string{"kube-system/kube-dns"}},
			Names:     Names{Grace: Duration(time.Minute), Wait: Duration(200 * time.Millisecond)},
		},
		Kinds:    Kinds{EgressQoS: KindAuto, EgressFirewall: KindAuto, EgressIP: KindAuto},
		Election: Election{Hosts: 12},
		Moves:    Moves{KeepFlows: Duration(time.Minute), Within: Duration(20 * time.Second)},
		OnStop:   OnStopKeep,
		Failover: Failover{
			BFD:   NodeBFD{Enabled: true, Port: 14784, TransmitInterval: 100, ReceiveInterval: 100, DetectMultiplier: 3},
			Flows: NodeFlows{Enabled: true, Port: 4785},
		},
		Speaker: Speaker{Socket: "/run/egressway/speaker.sock", Start: true},
		Status:  Status{Socket: "/run/egressway/egressway.sock", MetricsAddress: "127.0.0.1:9479", PerService: true},
		FlowLog: FlowLog{EventBuffer: 16 << 20},
		Log:     Log{Level: "info", Format: "text"},
	}
}

// setDefaults sets a peer's values before its entry is decoded.
func (p *Peer) setDefaults() {
	*p = Peer{
		Port:            179,
		HoldTime:        Duration(9 * time.Second),
		ConnectTime:     Duration(5 * time.Second),
		AddressFamilies: []Family{IPv4Unicast, IPv6Unicast},
		MaxPrefixes:     10000,
	}
}

// setDefaults sets a profile's timers to the usual ones of routers.
func (p *BFDProfile) setDefaults() {
	*p = BFDProfile{TransmitInterval: 300, ReceiveInterval: 300, DetectMultiplier: 3}
}

// complete sets defaults that depend on other values.
func (c *Config) complete() {
	for i := range c.Networks {
		for j := range c.Networks[i].Interfaces {
			c.Networks[i].Interfaces[j].setName()
		}
		for j := range c.Networks[i].Peers {
			c.Networks[i].Peers[j].complete()
		}
	}
	if _, ok := c.Network(DefaultNetwork); !ok {
		c.Networks = append(c.Networks, Network{Name: DefaultNetwork})
	}
}

func (p *Peer) complete() {
	if p.KeepaliveTime == 0 && p.HoldTime > 0 {
		// A third of the hold time, as RFC 4271 suggests: two messages may be lost.
		third := time.Duration(p.HoldTime) / 3
		p.KeepaliveTime = Duration(max(third.Truncate(time.Second), time.Second))
	}
}

// Network returns the entry for a spec.network. The empty name means the default network, which every configuration
// has.
func (c *Config) Network(name string) (*Network, bool) {
	if name == "" {
		name = DefaultNetwork
	}
	for i := range c.Networks {
		if c.Networks[i].Name == name {
			return &c.Networks[i], true
		}
	}
	return nil, false
}
