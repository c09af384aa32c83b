package plan_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// egressIPs is a snapshot of node n0, the host of three addresses of an EgressIP that selects 300 pods of n1.
func egressIPs() plan.Snapshot {
	c := config.Defaults()
	c.BGP.ASN = 64512
	c.Networks = []config.Network{
		{Name: "red", VRF: "vrf-red", Table: 1001, Interfaces: []config.Interface{{Name: "eth2"}}, EgressIPs: prefixes("203.0.113.0/24")},
	}
	s := plan.Snapshot{Node: "n0", Config: c, Objects: cluster.Objects{PodsKnown: true}, Hosts: map[election.Seat]election.Choice{}}
	for i := range 3 {
		a := []netip.Addr{addr(fmt.Sprintf("10.0.0.1%d", i))}
		s.Objects.Nodes = s.Objects.Nodes.With(fmt.Sprint("n", i), cluster.Node{Ready: true, Addresses: a, Internal: a, PodCIDRs: prefixes(fmt.Sprintf("10.244.%d.0/23", 2*i))})
	}
	s.Objects.Namespaces = s.Objects.Namespaces.With("team", cluster.Namespace{})
	for i := range 300 {
		s.Objects.Pods = s.Objects.Pods.With(cluster.Key{Namespace: "team", Name: fmt.Sprint("p", i)},
			cluster.Pod{Node: "n1", Addresses: []netip.Addr{addr(fmt.Sprintf("10.244.%d.%d", 2+i/200, 1+i%200))}})
	}
	e := cluster.EgressIP{IPv4: true, Namespaces: labels.Everything(), Pods: labels.Everything()}
	for i := range 3 {
		a := addr(fmt.Sprint("203.0.113.", 33+i))
		e.Addresses = append(e.Addresses, a)
		s.Hosts[election.EgressIPSeat("e", a)] = election.Choice{Host: "n0", Standby: "n2", Term: 1}
	}
	s.Objects.EgressIPs = s.Objects.EgressIPs.With(cluster.Key{Name: "e"}, e)
	s.Facts = plan.Assume(c, s.Objects, "n0")
	return s
}

// sources returns the source of each endpoint of a plan.
func sources(p *plan.NodePlan) map[netip.Addr]netip.Addr {
	all := map[netip.Addr]netip.Addr{}
	for e := range p.DataPlane.Endpoints.All() {
		all[e.Addr] = e.Source
	}
	return all
}

// requireMoved requires that exactly the pods with a source have another one of a list now.
func requireMoved(t *testing.T, before, now map[netip.Addr]netip.Addr, from netip.Addr, to ...netip.Addr) {
	t.Helper()
	require.Len(t, now, len(before))
	for pod, was := range before {
		if was == from {
			require.True(t, slices.Contains(to, now[pod]), "%s has %s", pod, now[pod])
		} else {
			require.Equal(t, was, now[pod], "%s keeps its address", pod)
		}
	}
}

// TestPodsKeepTheirEgressIP expects pods to be spread over the addresses of an EgressIP, and only those of an address that cannot
// serve to leave with another one.
func TestPodsKeepTheirEgressIP(t *testing.T) {
	first, second, third := addr("203.0.113.33"), addr("203.0.113.34"), addr("203.0.113.35")
	key, web := cluster.Key{Name: "e"}, cluster.Key{Namespace: "shop", Name: "web"}
	s := egressIPs()
	var planner plan.Planner
	desired, problems := planner.Plan(s, cluster.Everything())
	require.Empty(t, problems)
	begun := sources(desired)
	count := map[netip.Addr]int{}
	for _, source := range begun {
		count[source]++
	}
	require.Len(t, count, 3)
	for a, n := range count {
		require.InDelta(t, 100, n, 30, "pods of %s", a)
	}

	var changed cluster.Changed
	changed.Add(cluster.KindEgressIP.ID(key))
	host := s.Hosts[election.EgressIPSeat("e", second)]
	s.Hosts[election.EgressIPSeat("e", second)] = election.Choice{}
	desired, _ = planner.Plan(s, changed)
	requireMoved(t, begun, sources(desired), second, first, third)
	s.Hosts[election.EgressIPSeat("e", second)] = host
	desired, _ = planner.Plan(s, changed)
	require.Equal(t, begun, sources(desired), "they return with the address")

	// A Service has one of the addresses.
	changed = cluster.Changed{}
	changed.Add(cluster.KindEgressService.ID(web))
	s.Objects.Services = s.Objects.Services.With(web, cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: third.String()}}})
	desired, problems = planner.Plan(s, changed)
	requireMoved(t, begun, sources(desired), third, first, second)
	require.Len(t, problems, 1)
	require.Equal(t, `EgressIP e: spec.egressIPs: "203.0.113.35": is the ingress IP of Service shop/web, which keeps it: choose another address`,
		problems[0].Error())
	s.Objects.Services = s.Objects.Services.Without(web)
	desired, problems = planner.Plan(s, changed)
	require.Empty(t, problems)
	require.Equal(t, begun, sources(desired))

	// An API server has one of the addresses, which has a host nevertheless.
	changed = cluster.Changed{}
	changed.Add(cluster.KindEgressService.ID(cluster.APIService))
	s.Objects.Endpoints = s.Objects.Endpoints.With(cluster.APIService, []cluster.Endpoint{{Address: "192.0.2.6"}, {Address: first.String()}})
	desired, problems = planner.Plan(s, changed)
	requireMoved(t, begun, sources(desired), first, second, third)
	require.Len(t, problems, 1)
	require.Equal(t, `EgressIP e: spec.egressIPs: "203.0.113.33": is the API server's`, problems[0].Error())
	s.Objects.Endpoints = s.Objects.Endpoints.Without(cluster.APIService)
	desired, problems = planner.Plan(s, changed)
	require.Empty(t, problems)
	require.Equal(t, begun, sources(desired))

	// A node knows addresses that others do not: they cost only its own seat, as all nodes assign the pods alike.
	s.APIServer = []netip.Addr{second}
	desired, problems = planner.Plan(s, cluster.Changed{})
	require.Len(t, problems, 1)
	for pod, source := range sources(desired) {
		require.True(t, source == begun[pod] || begun[pod] == second && !source.IsValid(), "%s has %s", pod, source)
	}
	s.APIServer = nil
	desired, _ = planner.Plan(s, cluster.Changed{})
	require.Equal(t, begun, sources(desired))

	// No address has a host: the pods are dropped, and stay assigned.
	changed = cluster.Changed{}
	changed.Add(cluster.KindEgressIP.ID(key))
	for _, a := range []netip.Addr{first, second, third} {
		s.Hosts[election.EgressIPSeat("e", a)] = election.Choice{}
	}
	desired, _ = planner.Plan(s, changed)
	require.Len(t, sources(desired), 300)
	for e := range desired.DataPlane.Endpoints.All() {
		require.Zero(t, e.Path)
	}
	for service := range desired.Services.All() {
		require.Equal(t, count[service.Slot], service.Endpoints, "%s", service.Slot)
	}
}

// TestNetworkOfEgressIP expects the network of an address to follow from the longest prefix that lists it, also on a node that lacks
// the network, and not from the subnets of a node's interfaces: nodes have different ones.
func TestNetworkOfEgressIP(t *testing.T) {
	s := egressIPs()
	c := *s.Config
	c.Networks = append(slices.Clone(c.Networks),
		config.Network{Name: "blue", Table: 1002, Interfaces: []config.Interface{{Name: "eth3"}}, EgressIPs: prefixes("203.0.113.32/30")})
	s.Config = &c
	e := s.Objects.EgressIPs.At(cluster.Key{Name: "e"})
	e.Addresses = append(e.Addresses, addr("203.0.113.36"), addr("10.3.0.50"))
	s.Objects.EgressIPs = s.Objects.EgressIPs.With(cluster.Key{Name: "e"}, e)
	s.Facts = plan.Assume(&c, s.Objects, "n0")
	for i := range s.Facts.Links {
		if l := &s.Facts.Links[i]; l.Name == "eth3" {
			l.Addrs = prefixes("10.3.0.10/24")
		}
	}
	want := map[string]string{
		"203.0.113.33": "blue", "203.0.113.34": "blue", "203.0.113.35": "blue", "203.0.113.36": "red", "10.3.0.50": "default",
	}
	for _, elsewhere := range []string{"", "the network is not on this node"} {
		c.Networks[1].Elsewhere = elsewhere
		desired, _ := plan.Build(s)
		networks := map[string]string{}
		for service := range desired.Services.All() {
			networks[service.Slot.String()] = service.Network
		}
		require.Equal(t, want, networks)
	}
}

// TestFlowsStayWhereNoHostAnswersOnALink moves the addresses of an EgressIP from host n2 to n0, and looks at pods of n1, which lacks an
// uplink in the subnet. Where hosts can only answer on a link, the former host gets no more answers, so no flow stays there.
func TestFlowsStayWhereNoHostAnswersOnALink(t *testing.T) {
	for _, test := range []struct {
		name  string
		edit  func(*config.Network)
		stays bool
	}{
		{"no peers", func(*config.Network) {}, false},
		{"no peers, on a node that lacks the network", func(n *config.Network) {
			*n = config.Network{Name: n.Name, EgressIPs: n.EgressIPs, Elsewhere: "the network is not on this node"}
		}, false},
		{"peers", func(n *config.Network) { n.Peers = []config.Peer{{Address: addr("10.2.0.1"), ASN: 64601}} }, true},
		{"peers of other nodes", func(n *config.Network) { n.PeersElsewhere = true }, true},
		{"not on a link", func(n *config.Network) { n.OnLink = config.OnLinkOff }, true},
	} {
		s := egressIPs()
		s.Node = "n1"
		test.edit(&s.Config.Networks[0])
		for seat := range s.Hosts {
			s.Hosts[seat] = election.Choice{Host: "n0", Standby: "n2", Term: 2, Former: true}
		}
		s.Facts = plan.Assume(s.Config, s.Objects, s.Node)
		desired, problems := plan.Build(s)
		require.Empty(t, problems, test.name)
		kept := 0
		for e := range desired.DataPlane.Endpoints.All() {
			require.NotZero(t, e.Path, test.name)
			if e.Kept.Path != 0 {
				kept++
			}
		}
		require.Equal(t, map[bool]int{true: 300}[test.stays], kept, test.name)
	}
}

// TestMembersOfOtherNodes plans the same for Pods of other nodes and for the members that the leader writes of them. Of its own node it
// believes the Pods.
func TestMembersOfOtherNodes(t *testing.T) {
	whole := egressIPs()
	want, _ := new(plan.Planner).Plan(whole, cluster.Everything())
	part := whole
	part.Objects.Pods = cluster.Map[cluster.Key, cluster.Pod]{}
	members := []cluster.Member{{Addr: addr("10.244.0.9"), Node: "n0", Namespace: "team"}} // it has left since
	for key, p := range whole.Objects.Pods.All() {
		members = append(members, cluster.Member{Addr: p.Addresses[0], Node: p.Node, Namespace: key.Namespace})
	}
	slices.SortFunc(members, cluster.Member.Compare)
	part.Objects.Members = part.Objects.Members.With(cluster.Key{Name: "e"}, members)
	have, problems := new(plan.Planner).Plan(part, cluster.Everything())
	require.Empty(t, problems)
	require.Equal(t, sources(want), sources(have))
	require.Len(t, sources(have), 300)
}
