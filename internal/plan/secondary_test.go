package plan_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, addr(text))
	}
	return all
}

// secondaryWorld is node n0 with interfaces of all kinds, and another node n1.
func secondaryWorld() plan.Snapshot {
	c := config.Defaults()
	c.BGP.ASN = 64512
	c.ClusterCIDRs = prefixes("10.250.0.0/16")
	c.Networks = append(c.Networks,
		config.Network{
			Name: "red", VRF: "vrf-red", Table: 1001, Interfaces: []config.Interface{{Name: "eth2"}},
			Peers: []config.Peer{{Address: addr("192.0.2.1"), ASN: 64601}},
		},
		config.Network{Name: "blue", Table: 100, Interfaces: []config.Interface{{Name: "eth3"}, {Name: "eth1"}}})
	node := func(number int) cluster.Node {
		as := addrs(fmt.Sprintf("10.0.0.1%d", number), fmt.Sprintf("fd00::1%d", number))
		return cluster.Node{Ready: true, Addresses: as, Internal: as, PodCIDRs: prefixes(fmt.Sprintf("10.244.%d.0/24", number))}
	}
	return plan.Snapshot{
		Node: "n0", Config: c,
		Objects: cluster.Objects{
			Nodes:        cluster.MapOf(map[string]cluster.Node{"n0": node(0), "n1": node(1)}),
			ServiceCIDRs: prefixes("10.96.0.0/16"),
		},
		Facts: plan.Facts{Links: []plan.Link{
			{Name: "lo", Up: true, Addrs: prefixes("127.0.0.1/8", "10.9.9.9/32", "::1/128")},
			{Name: "eth1", Up: true, Addrs: prefixes("10.0.0.10/24", "10.0.0.50/24", "198.51.100.50/32", "fd00::10/64", "fd00::50/64", "fe80::1/64")},
			{Name: "eth2", Up: true, Master: "vrf-red", Addrs: prefixes("10.1.0.10/24")},
			{Name: "eth3", Up: true, Addrs: prefixes("10.3.0.10/24")},
			{Name: "eth4", Up: true, Master: "vrf-foreign", Addrs: prefixes("10.4.0.10/24")},
			{Name: "storage", Up: true, Addrs: prefixes("10.50.0.10/24", "fd50::10/64")},
			{Name: "cni0", Up: true, Addrs: prefixes("10.244.0.1/24")},
			{Name: "dns", Up: true, Addrs: prefixes("10.96.0.10/32", "169.254.20.10/32", "10.250.0.1/32")},
			{Name: "kube-ipvs0", Addrs: prefixes("203.0.113.10/32")},
			{Name: "vrf-red", Up: true, VRFTable: 1001},
			{Name: "vrf-foreign", Up: true, VRFTable: 7, Addrs: prefixes("10.7.7.7/32")},
		}},
	}
}

// TestOwnSecondaryAddresses checks which addresses a node shares with the others.
func TestOwnSecondaryAddresses(t *testing.T) {
	s := secondaryWorld()
	var p plan.Planner
	require.Zero(t, p.Secondary().Len())
	_, problems := p.Plan(s, cluster.Everything())
	require.Equal(t, cluster.Secondary{
		Beside: addrs("10.0.0.50", "198.51.100.50", "fd00::50"), Apart: addrs("10.9.9.9", "10.50.0.10", "fd50::10"),
	}, p.Secondary())
	require.False(t, slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Reason == plan.ReasonManyAddresses }))

	s.Facts.Links = slices.Clone(s.Facts.Links)
	for i := range 100 {
		s.Facts.Links = append(s.Facts.Links, plan.Link{Name: fmt.Sprint("many", i), Addrs: []netip.Prefix{netip.PrefixFrom(addr(fmt.Sprint("10.8.0.", i)), 32)}})
	}
	_, problems = p.Plan(s, cluster.Changed{})
	require.Equal(t, cluster.SecondaryMost, p.Secondary().Len())
	require.True(t, slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Reason == plan.ReasonManyAddresses && p.Value == "106" }))

	s.Objects.Nodes = s.Objects.Nodes.Without("n0")
	p.Plan(s, cluster.Everything())
	require.Zero(t, p.Secondary().Len(), "without a Node object, nothing shows which interfaces lead to other nodes")
}

// TestSecondaryAddresses checks which of the addresses that other nodes share are inside the cluster on this node.
func TestSecondaryAddresses(t *testing.T) {
	s := secondaryWorld()
	var p plan.Planner
	inside := func(changed cluster.Changed) (all []string) {
		t.Helper()
		desired, _ := p.Plan(s, changed)
		full, _ := plan.Build(s)
		require.Equal(t, full.DataPlane.Cluster, desired.DataPlane.Cluster)
		for _, a := range desired.DataPlane.Cluster {
			all = append(all, a.String())
		}
		return all
	}
	without := inside(cluster.Everything())
	s.Objects.Secondary = cluster.MapOf(map[string]cluster.Secondary{
		"n1": {
			Beside: addrs("10.0.0.51", "198.51.100.51", "fd00::51",
				"10.1.0.51", "10.3.0.51", "10.4.0.51", // of networks that this node reaches by other tables
				"192.0.2.1"), // a peer
			Apart: addrs("10.50.0.11", "fd50::11", "10.1.0.52", "172.17.0.1", "10.9.9.9", "10.0.0.52"),
		},
		"n0":   {Beside: addrs("10.66.0.1")}, // this node knows better
		"gone": {Beside: addrs("10.66.0.2")},
	})
	added := func(changed cluster.Changed) (all []string) {
		t.Helper()
		return slices.DeleteFunc(inside(changed), func(a string) bool { return slices.Contains(without, a) })
	}
	all := []string{"10.0.0.51/32", "10.0.0.52/32", "10.50.0.11/32", "198.51.100.51/32", "fd00::51/128", "fd50::11/128"}
	require.Equal(t, all, added(cluster.Changed{}))

	// An ingress IP of any Service is outside, for as long as it is one.
	key := cluster.Key{Namespace: "good", Name: "s"}
	service := cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: "10.0.0.51"}}, Created: time.Unix(1, 0)}
	changed := cluster.Changed{}
	changed.Add(cluster.KindEgressService.ID(key))
	s.Objects.Services = s.Objects.Services.With(key, service)
	require.Equal(t, all[1:], added(changed))
	s.Objects.EgressServices = s.Objects.EgressServices.With(key, cluster.EgressService{Network: "red", Status: cluster.Status{Host: "n0"}})
	require.Equal(t, all[1:], added(changed))
	s.Objects.EgressServices = s.Objects.EgressServices.Without(key)
	s.Objects.Services = s.Objects.Services.Without(key)
	require.Equal(t, all, added(changed))

	// A ClusterIP is inside, and stays so by the node's interface.
	s.Objects.Services = s.Objects.Services.With(key, cluster.Service{ClusterIPs: addrs("198.51.100.51")})
	require.Equal(t, all, added(changed))
	s.Objects.Services = s.Objects.Services.Without(key)
	require.Equal(t, all, added(changed))

	// What the node's annotation lists counts as well, and nothing of a node that has lost its addresses.
	n1 := s.Objects.Nodes.At("n1")
	n1.Secondary = cluster.Secondary{Beside: addrs("10.0.0.53")}
	s.Objects.Nodes = s.Objects.Nodes.With("n1", n1)
	s.Objects.Secondary = s.Objects.Secondary.With("n1", cluster.Secondary{})
	require.Equal(t, []string{"10.0.0.53/32"}, added(cluster.Everything()))
	s.Objects.Nodes = s.Objects.Nodes.Without("n1")
	require.Empty(t, added(cluster.Everything()))
}
