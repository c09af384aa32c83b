package plan_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// BenchmarkBuild plans a node of a large cluster: 10,000 EgressServices of 10 endpoints each on 1,000 nodes, few of them hosts.
func BenchmarkBuild(b *testing.B) {
	const services, nodes, hosts = 10_000, 1_000, 20
	c := config.Defaults()
	c.Networks = append(c.Networks, config.Network{Name: "red", VRF: "vrf-red", Table: 1001, Interfaces: []string{"eth2"}, Peers: []config.Peer{{Address: addr("10.1.0.1"), ASN: 64601}}})
	o := cluster.Objects{
		EgressServices: map[cluster.Key]cluster.EgressService{}, Services: map[cluster.Key]cluster.Service{},
		Endpoints: map[cluster.Key][]cluster.Endpoint{}, Nodes: map[string]cluster.Node{}, ServiceCIDRs: prefixes("10.96.0.0/12"),
	}
	for i := range nodes {
		a := []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}
		o.Nodes[fmt.Sprint("n", i)] = cluster.Node{
			Ready: i < hosts, Addresses: a, Internal: a, PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(i >> 8), byte(i), 0}), 24)},
		}
	}
	for i := range services {
		key := cluster.Key{Namespace: "shop", Name: fmt.Sprint("s", i)}
		o.EgressServices[key] = cluster.EgressService{Network: "red", SourceIPBy: cluster.SourceIPByLoadBalancer}
		o.Services[key] = cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: fmt.Sprintf("203.0.%d.%d", i>>8, i&255)}}}
		for j := range 10 {
			n := (i*10 + j) % nodes
			o.Endpoints[key] = append(o.Endpoints[key], cluster.Endpoint{Address: fmt.Sprintf("172.%d.%d.%d", n>>8, n&255, i*10/nodes), Node: fmt.Sprint("n", n)})
		}
	}
	s := plan.Snapshot{Node: "n1", Config: c, Objects: o, Hosts: election.Elect(o, nil), Facts: plan.Assume(c, o, "n1")}
	for b.Loop() {
		plan.Build(s)
	}
}
