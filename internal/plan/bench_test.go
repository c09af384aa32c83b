package plan_test

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// large is a node of a large cluster: 10,000 EgressServices of 10 endpoints each on 1,000 nodes, few of them hosts.
func large() plan.Snapshot {
	const services, nodes, hosts = 10_000, 1_000, 20
	c := config.Defaults()
	c.Networks = append(c.Networks, config.Network{Name: "red", VRF: "vrf-red", Table: 1001, Interfaces: []config.Interface{{Name: "eth2"}}, Peers: []config.Peer{{Address: addr("10.1.0.1"), ASN: 64601}}})
	o := cluster.Objects{
		ServiceCIDRs: prefixes("10.96.0.0/12"),
	}
	for i := range nodes {
		a := []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}
		o.Nodes = o.Nodes.With(fmt.Sprint("n", i), cluster.Node{
			Ready: i < hosts, Addresses: a, Internal: a, PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(i >> 8), byte(i), 0}), 24)},
		})
	}
	for i := range services {
		key := nth(i)
		o.EgressServices = o.EgressServices.With(key, cluster.EgressService{Network: "red", SourceIPBy: cluster.SourceIPByLoadBalancer})
		o.Services = o.Services.With(key, cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: fmt.Sprintf("203.0.%d.%d", i>>8, i&255)}}})
		for j := range 10 {
			n := (i*10 + j) % nodes
			o.Endpoints = o.Endpoints.With(key, append(o.Endpoints.At(key), podOn(n, i*10/nodes)))
		}
	}
	s := plan.Snapshot{Node: "n1", Config: c, Objects: o, Hosts: election.Elect(o, nil), Facts: plan.Assume(c, o, "n1")}
	inForce(&s)
	return s
}

func nth(i int) cluster.Key { return cluster.Key{Namespace: "shop", Name: fmt.Sprint("s", i)} }

func podOn(node, i int) cluster.Endpoint {
	return cluster.Endpoint{Address: fmt.Sprintf("172.%d.%d.%d", node>>8, node&255, i), Node: fmt.Sprint("n", node)}
}

func inForce(s *plan.Snapshot) {
	p, _ := plan.Build(*s)
	s.Facts.Paths = map[plan.PathKey]plan.PathID{}
	for _, path := range p.DataPlane.Paths {
		s.Facts.Paths[path.Key] = path.ID
	}
}

// BenchmarkBuild measures a first plan, as at a start or when a node joins.
func BenchmarkBuild(b *testing.B) {
	s := large()
	b.ReportAllocs()
	for b.Loop() {
		plan.Build(s)
	}
}

// BenchmarkNodes plans everything from scratch after the nodes changed.
func BenchmarkNodes(b *testing.B) {
	s := large()
	var p plan.Planner
	p.Plan(s, cluster.Everything())
	b.ReportAllocs()
	for b.Loop() {
		p.Plan(s, cluster.Everything())
	}
}

// benchmark plans repeatedly while one change is made and reverted.
func benchmark(b *testing.B, s plan.Snapshot, change func(s *plan.Snapshot, i int) (changed cluster.Changed)) {
	b.Helper()
	var p plan.Planner
	p.Plan(s, cluster.Everything())
	for i := range 4 {
		p.Plan(s, change(&s, i))
	}
	runtime.GC()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		p.Plan(s, change(&s, i))
		i++
	}
}

// endpoints adds one endpoint to some services, or removes it.
func endpoints(s *plan.Snapshot, i int, services ...int) (changed cluster.Changed) {
	for _, n := range services {
		key := nth(n)
		changed.Add(cluster.KindEgressService.ID(key))
		all := s.Objects.Endpoints.At(key)
		if i%2 == 0 {
			s.Objects.Endpoints = s.Objects.Endpoints.With(key, append(slices.Clone(all), podOn(n%1000, 200+n%7)))
		} else {
			s.Objects.Endpoints = s.Objects.Endpoints.With(key, all[:len(all)-1])
		}
	}
	return changed
}

func BenchmarkEndpoint(b *testing.B) {
	benchmark(b, large(), func(s *plan.Snapshot, i int) cluster.Changed { return endpoints(s, i, i/2%10_000) })
}

func BenchmarkEndpointsOf100(b *testing.B) {
	var some []int
	for i := range 100 {
		some = append(some, i*97)
	}
	benchmark(b, large(), func(s *plan.Snapshot, i int) cluster.Changed { return endpoints(s, i, some...) })
}

func BenchmarkIngressIP(b *testing.B) {
	benchmark(b, large(), func(s *plan.Snapshot, i int) (changed cluster.Changed) {
		key := nth(i / 2 % 10_000)
		service := s.Objects.Services.At(key)
		service.Ingress = slices.Clone(service.Ingress)
		service.Ingress[0].IP = fmt.Sprintf("203.%d.%d.%d", (i+1)%2, (i/2%10_000)>>8, i/2&255)
		s.Objects.Services = s.Objects.Services.With(key, service)
		changed.Add(cluster.KindEgressService.ID(key))
		return changed
	})
}

// BenchmarkFirstSteered adds and removes a pod of this node that is the first to be steered to another node.
func BenchmarkFirstSteered(b *testing.B) {
	s := large()
	key := nth(77)
	s.Hosts = maps.Clone(s.Hosts)
	s.Hosts[election.ServiceSeat(key)] = election.Choice{Host: "n999", Standby: "n998"}
	inForce(&s)
	benchmark(b, s, func(s *plan.Snapshot, i int) (changed cluster.Changed) {
		changed.Add(cluster.KindEgressService.ID(key))
		all := s.Objects.Endpoints.At(key)
		if i%2 == 0 {
			all = append(slices.Clone(all), podOn(1, 250))
		} else {
			all = all[:len(all)-1]
		}
		s.Objects.Endpoints = s.Objects.Endpoints.With(key, all)
		return changed
	})
}

// BenchmarkBigServiceMoves moves a service of 10,000 endpoints from one host to another.
func BenchmarkBigServiceMoves(b *testing.B) {
	s := large()
	for i := range 1000 {
		s.Objects.EgressServices = s.Objects.EgressServices.Without(nth(i))
	}
	key := cluster.Key{Namespace: "shop", Name: "big"}
	s.Objects.EgressServices = s.Objects.EgressServices.With(key, cluster.EgressService{Network: "red", SourceIPBy: cluster.SourceIPByLoadBalancer})
	s.Objects.Services = s.Objects.Services.With(key, cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: "203.1.0.1"}}})
	for i := range 10_000 {
		s.Objects.Endpoints = s.Objects.Endpoints.With(key, append(s.Objects.Endpoints.At(key), podOn(i%1000, 240+i/1000)))
	}
	s.Hosts = election.Elect(s.Objects, nil)
	inForce(&s)
	benchmark(b, s, func(s *plan.Snapshot, i int) (changed cluster.Changed) {
		s.Hosts = maps.Clone(s.Hosts)
		s.Hosts[election.ServiceSeat(key)] = []election.Choice{{Host: "n1", Standby: "n2"}, {Host: "n3", Standby: "n1", Former: true}}[i%2]
		changed.Add(cluster.KindEgressService.ID(key))
		return changed
	})
}

func BenchmarkEndpointBesideLearned(b *testing.B) {
	s := large()
	s.Learned = append(s.Learned, plan.NetworkRoutes{Network: "red", Routes: sorted.Of(learnedRoutes(100_000)...)})
	benchmark(b, s, func(s *plan.Snapshot, i int) cluster.Changed { return endpoints(s, i, i/2%10_000) })
}

// BenchmarkLearnedRoute adds and removes one learned route beside 100,000.
func BenchmarkLearnedRoute(b *testing.B) {
	s := large()
	all := learnedRoutes(100_001)
	with := sorted.Of(all...)
	s.Learned = append(s.Learned, plan.NetworkRoutes{Network: "red"})
	benchmark(b, s, func(s *plan.Snapshot, i int) (none cluster.Changed) {
		s.Learned = slices.Clone(s.Learned)
		l := &s.Learned[len(s.Learned)-1].Routes
		if *l = with; i%2 == 0 {
			*l = with.With(nil, all[i%100_000:][:1])
		}
		return none
	})
}

func learnedRoutes(n int) (all []plan.Route) {
	hops := []plan.NextHop{{Gateway: addr("10.1.0.1"), Device: "eth2"}}
	for i := range n {
		all = append(all, plan.Route{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 16), byte(i >> 8), byte(i)}), 32), NextHops: hops})
	}
	return all
}

// BenchmarkMemory measures the memory that a planner and its plan hold.
func BenchmarkMemory(b *testing.B) {
	s := large()
	held := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	for b.Loop() {
		before := held()
		var p plan.Planner
		desired, _ := p.Plan(s, cluster.Everything())
		anew := held() - before
		for i := range 20_000 {
			desired, _ = p.Plan(s, endpoints(&s, i, i/2))
		}
		b.ReportMetric(anew, "MiB")
		b.ReportMetric(held()-before, "MiB-after-changes")
		runtime.KeepAlive(desired)
		runtime.KeepAlive(&p)
	}
}
