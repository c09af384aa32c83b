package plan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// racks returns a large cluster: nodes in racks, each with a subnet and label of its own, and services of 6 pods.
func racks(racks int) (*config.Config, cluster.Objects) {
	const services, nodes, pods = 10_000, 1_000, 6
	c := config.Defaults()
	c.Networks = append(c.Networks, config.Network{Name: "red", Table: 1001, Interfaces: []config.Interface{{Name: "eth2"}}})
	o := cluster.Objects{ServiceCIDRs: prefixes("10.96.0.0/12")}
	for i := range nodes {
		a := []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i % racks), byte(i/racks + 1)})}
		o.Nodes = o.Nodes.With(fmt.Sprint("n", i), cluster.Node{
			Ready: true, Addresses: a, Internal: a, Labels: map[string]string{"rack": fmt.Sprint(i % racks)},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(i >> 8), byte(i), 0}), 24)},
		})
	}
	for i := range services {
		e := cluster.EgressService{Network: "red", SourceIPBy: cluster.SourceIPByLoadBalancer}
		if racks > 1 {
			e.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": fmt.Sprint(i % racks)}}
		}
		o.EgressServices = o.EgressServices.With(nth(i), e)
		o.Services = o.Services.With(nth(i), cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: fmt.Sprintf("203.0.%d.%d", i>>8, i&255)}}})
		var endpoints []cluster.Endpoint
		for j := range pods {
			n := i*pods + j
			endpoints = append(endpoints, podOn(n%nodes, n/nodes+1))
		}
		o.Endpoints = o.Endpoints.With(nth(i), endpoints)
	}
	return c, o
}

// TestNoPodIsDroppedForNumbers checks that with the defaults, and with 1,000 nodes and 10,000 services of 6 pods each, no node
// lacks path ids for its pods' hosts: neither with few hosts for all services, nor with nodeSelectors of 60 racks.
func TestNoPodIsDroppedForNumbers(t *testing.T) {
	for _, n := range []int{1, 60} {
		t.Run(fmt.Sprint(n, " racks"), func(t *testing.T) {
			c, o := racks(n)
			hosts := election.PolicyOf(c).Elect(o, nil)
			for _, node := range []string{"n0", "n1", "n500", "n999"} {
				facts := plan.Assume(c, o, node)
				if n > 1 { // each rack is a subnet
					facts.Links[0].Addrs = []netip.Prefix{netip.PrefixFrom(o.Nodes.At(node).Internal[0], 24)}
				}
				p, problems := plan.Build(plan.Snapshot{Node: node, Config: c, Objects: o, Hosts: hosts, Facts: facts})
				for _, problem := range problems {
					require.NotEqual(t, plan.ReasonPathsExhausted, problem.Reason, problem)
				}
				own, shared := 0, 0
				for e := range p.DataPlane.Endpoints.All() {
					if e.Node == node {
						own++
						require.NotZero(t, e.Path, e)
					}
					if e.Via != (plan.MAC{}) {
						shared++
						require.Contains(t, macs(p.Tunnel.Hosts), e.Via)
					}
				}
				require.Equal(t, 60, own)
				require.Equal(t, n > 1, shared > 0)
				require.LessOrEqual(t, len(p.DataPlane.Paths), 30)
			}
		})
	}
}

func macs(hosts []plan.TunnelHost) (all []plan.MAC) {
	for _, h := range hosts {
		if h.Remote.IsValid() {
			all = append(all, h.MAC)
		}
	}
	return all
}

// TestWhyHostsDoNotShare checks that PathsExhausted names the remedy besides a wider mask.
func TestWhyHostsDoNotShare(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*plan.Snapshot)
		remedy string
	}{
		"direct": {
			func(s *plan.Snapshot) { s.Config.Steering.Mode = config.SteeringDirect },
			"widen the mask, or choose steering.mode auto or vxlan: hosts then share a path",
		},
		"no hook": {
			func(s *plan.Snapshot) { s.Facts.EgressHook = false },
			"widen the mask, or use a kernel with CONFIG_NETFILTER_EGRESS (Linux 5.16): hosts then share a path",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := story(t, "testdata/shared-path", "a")
			_, problems := plan.Build(s)
			require.Empty(t, problems, "hosts share a path")
			test.change(&s)
			_, problems = plan.Build(s)
			var remedies []string
			for _, p := range problems {
				if p.Kind == "Config" {
					_, remedy, _ := strings.Cut(p.Message, "is not served, ")
					remedies = append(remedies, remedy)
				}
			}
			require.Equal(t, []string{test.remedy}, remedies)
		})
	}
}

// TestSharedPathIsKept expects hosts to stay on the shared path while it is in force, even if ids get free, and to get ids of
// their own afterwards.
func TestSharedPathIsKept(t *testing.T) {
	s, _ := story(t, "testdata/shared-path", "a")
	shared := func() (hosts []string) {
		p, _ := plan.Build(s)
		s.Facts.Paths = map[plan.PathKey]plan.PathID{}
		for _, path := range p.DataPlane.Paths {
			s.Facts.Paths[path.Key] = path.ID
		}
		for e := range p.DataPlane.Endpoints.All() {
			if host, ok := p.Tunnel.Host(e.Via); ok && e.Addr.Is4() {
				hosts = append(hosts, host.Node)
			}
		}
		return hosts
	}
	require.Equal(t, []string{"c", "d"}, shared())
	s.Config.Marks.Mask = 0x3f00
	s.Config.Steering.Mode = config.SteeringVXLAN // the tunnel stays
	require.Equal(t, []string{"c", "d"}, shared())
	for _, name := range []string{"mail", "web"} {
		s.Hosts[election.ServiceSeat(cluster.Key{Namespace: "shop", Name: name})] = election.Choice{Host: "b"}
	}
	require.Empty(t, shared())
	require.NotContains(t, s.Facts.Paths, plan.PathKey{Kind: plan.PathShared, Name: "tunnel"})
}

// TestOldestServicesKeepPathIDs checks that a planner gives the path ids, of which there are fewer than hosts, to the hosts of the
// services that a plan from scratch finds to be the oldest, while services come, go, grow older and change host.
func TestOldestServicesKeepPathIDs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	s := large()
	s.Config.Marks.Mask, s.Config.Steering.Mode = 0xf000, config.SteeringDirect // seven ids
	all := s.Objects
	s.Hosts = maps.Clone(s.Hosts)
	s.Objects = cluster.Objects{ServiceCIDRs: all.ServiceCIDRs, Nodes: all.Nodes}
	for i := range 40 {
		key := nth(i/2*100 + i%2)
		s.Objects.Services = s.Objects.Services.With(key, all.Services.At(key))
		s.Objects.Endpoints = s.Objects.Endpoints.With(key, all.Endpoints.At(key))
	}
	var p plan.Planner
	lacking := map[string]bool{}
	changed := cluster.Everything()
	for range 150 {
		s.Facts.Paths = nil // none is in force, so only the age decides
		got, problems := p.Plan(s, changed)
		want, found := plan.Build(s)
		requireSame(t, textOf(t, want, found), textOf(t, got, problems), "changed %v", changed)
		for _, problem := range found {
			lacking[problem.Message] = true
		}
		changed = cluster.Changed{}
		for range 1 + r.IntN(2) {
			key := nth(r.IntN(20)*100 + r.IntN(2))
			s.Objects.EgressServices = s.Objects.EgressServices.Without(key)
			if r.IntN(3) > 0 {
				s.Objects.EgressServices = s.Objects.EgressServices.With(key, cluster.EgressService{
					Network: "red", SourceIPBy: cluster.SourceIPByLoadBalancer, Created: time.Unix(r.Int64N(100), 0),
				})
			}
			s.Hosts[election.ServiceSeat(key)] = election.Choice{Host: fmt.Sprint("n", 2+r.IntN(12))}
			changed.Add(cluster.KindEgressService.ID(key))
		}
	}
	require.Greater(t, len(lacking), 10, "hosts without a path id differ")
}
