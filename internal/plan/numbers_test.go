package plan_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// TestNoPodIsDroppedForNumbers checks that with the defaults, and with 1,000 nodes and 10,000 services of 6 pods each, no node
// lacks path ids for its pods' hosts.
func TestNoPodIsDroppedForNumbers(t *testing.T) {
	const services, nodes, pods = 10_000, 1_000, 6
	c := config.Defaults()
	c.Networks = append(c.Networks, config.Network{Name: "red", Table: 1001, Interfaces: []config.Interface{{Name: "eth2"}}})
	o := cluster.Objects{ServiceCIDRs: prefixes("10.96.0.0/12")}
	for i := range nodes {
		a := []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}
		o.Nodes = o.Nodes.With(fmt.Sprint("n", i), cluster.Node{
			Ready: true, Addresses: a, Internal: a, PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(i >> 8), byte(i), 0}), 24)},
		})
	}
	for i := range services {
		o.EgressServices = o.EgressServices.With(nth(i), cluster.EgressService{Network: "red", SourceIPBy: cluster.SourceIPByLoadBalancer})
		o.Services = o.Services.With(nth(i), cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: fmt.Sprintf("203.0.%d.%d", i>>8, i&255)}}})
		var endpoints []cluster.Endpoint
		for j := range pods {
			n := i*pods + j
			endpoints = append(endpoints, podOn(n%nodes, n/nodes+1))
		}
		o.Endpoints = o.Endpoints.With(nth(i), endpoints)
	}
	hosts := election.PolicyOf(c).Elect(o, nil)
	for _, node := range []string{"n0", "n1", "n500", "n999"} {
		p, problems := plan.Build(plan.Snapshot{Node: node, Config: c, Objects: o, Hosts: hosts, Facts: plan.Assume(c, o, node)})
		for _, problem := range problems {
			require.NotEqual(t, plan.ReasonPathsExhausted, problem.Reason, problem)
		}
		own := 0
		for e := range p.DataPlane.Endpoints.All() {
			if e.Node == node {
				own++
				require.NotZero(t, e.Path, e)
			}
		}
		require.Equal(t, services*pods/nodes, own)
		require.LessOrEqual(t, len(p.DataPlane.Paths), c.Election.Hosts+2, "hosts, and two networks")
	}
}
