package plan_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// FuzzInvariants plans for worlds that contain an object of garbage: the same input makes the same bytes, in any order; an
// endpoint has one way; an endpoint's source is an ingress IP of a Service that selects it.
func FuzzInvariants(f *testing.F) {
	f.Add(uint64(1), "red", "10.244.0.1", "n0", "203.0.113.1", true)
	f.Add(uint64(7), "blue", "fd44:1::2", "n1", "2001:db8::5", false)
	f.Add(uint64(9), "", "::ffff:10.244.0.1", "", "10.96.0.1", true)
	f.Add(uint64(4), "77", "10.244.1.7", "n2", "::", false)
	f.Fuzz(func(t *testing.T, seed uint64, network, endpoint, node, ingress string, byNetwork bool) {
		s := world(seed)
		key := cluster.Key{Namespace: "good", Name: "fuzzed"}
		by := cluster.SourceIPByLoadBalancer
		if byNetwork {
			by = cluster.SourceIPByNetwork
		}
		s.Objects.EgressServices = s.Objects.EgressServices.With(key, cluster.EgressService{Network: network, SourceIPBy: by})
		s.Objects.Services = s.Objects.Services.With(key, cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: ingress}, {IP: "203.0.113.77"}}})
		s.Objects.Endpoints = s.Objects.Endpoints.With(key, []cluster.Endpoint{{Address: endpoint, Node: node}, {Address: endpoint, Node: "n0"}, {Address: "10.244.0.99", Node: node}})
		s.Hosts = election.Elect(s.Objects, nil)
		want := asJSON(t, s)
		requireSame(t, want, asJSON(t, s), "the same again")
		requireSame(t, want, asJSON(t, shuffled(rand.New(rand.NewPCG(seed, 2)), s)), "shuffled")

		p, problems := plan.Build(s)
		owners := map[netip.Addr][]cluster.Key{} // by endpoint
		for k, all := range s.Objects.Endpoints.All() {
			for _, e := range all {
				if a, err := netip.ParseAddr(e.Address); err == nil {
					owners[a] = append(owners[a], k)
				}
			}
		}
		ingressOf := map[cluster.Key][]netip.Addr{}
		for service := range p.Services.All() {
			ingressOf[service.Key] = service.IngressIPs
		}
		seen := map[netip.Addr]bool{}
		own := func(e plan.Endpoint, source netip.Addr) bool {
			return source == e.Addr || slices.ContainsFunc(owners[e.Addr], func(k cluster.Key) bool { return slices.Contains(ingressOf[k], source) })
		}
		for e := range p.DataPlane.Endpoints.All() {
			require.False(t, seen[e.Addr], "%s has two ways", e.Addr)
			seen[e.Addr] = true
			require.NotEmpty(t, owners[e.Addr], "%s is nobody's endpoint", e.Addr)
			for _, source := range []netip.Addr{e.Source, e.Kept.Source} {
				require.True(t, !source.IsValid() || own(e, source), "%s leaves as %s", e.Addr, source)
			}
		}
		told := slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Object == key.String() })
		_, planned := ingressOf[key]
		require.True(t, told || planned, "neither planned nor a problem")
		for _, problem := range problems {
			require.NotEmpty(t, problem.Object)
		}
	})
}
