package lab

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
)

const (
	// managementBridge is made by labexec (LAB_API), which has put the API server behind it.
	managementBridge = "mgmt"
	// managementDevice is the name that containerlab gives a node's interface in its management network.
	managementDevice = "eth0"
	// managementFirst is the last byte of the first node's address.
	managementFirst = 10
)

// wires numbers the bridge's ends of all labs: those of a lab that has ended may exist for another moment.
var wires atomic.Uint32

// manage plans the management network: which nodes are in it, and with which addresses.
func (l *Lab) manage() {
	own := map[string]bool{}
	for _, link := range l.Topology.Graph.Links {
		for _, e := range link.Endpoints {
			own[e] = true
		}
	}
	for i, name := range slices.Sorted(maps.Keys(l.Nodes)) {
		if own[name+":"+managementDevice] {
			continue
		}
		n, last := l.Nodes[name], managementFirst+i
		n.Management = netip.AddrFrom4([4]byte{10, 98, 0, byte(last)})
		n.Definition.Exec = append([]string{
			fmt.Sprintf("ip addr add %s/24 dev %s", n.Management, managementDevice),
			fmt.Sprintf("ip addr add fd98::%d/64 dev %s nodad", last, managementDevice),
		}, n.Definition.Exec...)
	}
}

// managementWire is lines of ip(8) that connect the node, whose namespace is netns, with the bridge.
func (n *Node) managementWire(netns string) string {
	n.wire = fmt.Sprintf("mgmt%d", wires.Add(1))
	return fmt.Sprintf("link add %s netns %s type veth peer name %s\nlink set %[3]s master %s up\n",
		managementDevice, netns, n.wire, managementBridge)
}
