package election

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func key(name string) cluster.Key { return cluster.Key{Namespace: "shop", Name: name} }

func seat(name string) Seat { return ServiceSeat(key(name)) }

// objects makes nodes n0, n1, … labelled zone: even or odd, and services that have an endpoint on n0.
func objects(nodes int, services ...string) cluster.Objects {
	o := cluster.Objects{}
	for i := range nodes {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		zone := []string{"even", "odd"}[i%2]
		o.Nodes = o.Nodes.With(fmt.Sprintf("n%d", i), cluster.Node{
			Ready: true, Labels: map[string]string{"zone": zone}, Addresses: []netip.Addr{a}, Internal: []netip.Addr{a},
		})
	}
	for i, name := range services {
		o.EgressServices = o.EgressServices.With(key(name), cluster.EgressService{SourceIPBy: cluster.SourceIPByLoadBalancer})
		o.Services = o.Services.With(key(name), cluster.Service{
			LoadBalancer: true, Ingress: []cluster.Ingress{{IP: fmt.Sprintf("203.0.%d.%d", 113+i>>8, i&255)}},
		})
		o.Endpoints = o.Endpoints.With(key(name), []cluster.Endpoint{{Address: fmt.Sprintf("10.244.%d.%d", i>>8, i&255), Node: "n0"}})
	}
	return o
}

func names(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("svc-%d", i)
	}
	return names
}

func hosts(choices map[Seat]Choice) map[string]int {
	count := map[string]int{}
	for _, c := range choices {
		count[c.Host]++
	}
	return count
}

// change edits the parts of service name.
func change(o *cluster.Objects, name string, edit func(*cluster.EgressService, *cluster.Service)) {
	e, s := o.EgressServices.At(key(name)), o.Services.At(key(name))
	edit(&e, &s)
	o.EgressServices, o.Services = o.EgressServices.With(key(name), e), o.Services.With(key(name), s)
}

func TestWhyNoHost(t *testing.T) {
	zone := func(v string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"zone": v}}
	}
	tests := map[string]struct {
		edit func(*cluster.Objects)
		want cluster.Reason
	}{
		"no Service": {func(o *cluster.Objects) { o.Services = o.Services.Without(key("a")) }, cluster.ReasonServiceNotFound},
		"no Service, Network": {func(o *cluster.Objects) {
			o.Services = o.Services.Without(key("a"))
			change(o, "b", func(*cluster.EgressService, *cluster.Service) {})
			o.EgressServices = o.EgressServices.With(key("a"), cluster.EgressService{SourceIPBy: cluster.SourceIPByNetwork})
		}, cluster.ReasonServiceNotFound},
		"ClusterIP": {func(o *cluster.Objects) {
			change(o, "a", func(_ *cluster.EgressService, s *cluster.Service) { s.LoadBalancer = false })
		}, cluster.ReasonNotLoadBalancer},
		"no ingress": {func(o *cluster.Objects) {
			change(o, "a", func(_ *cluster.EgressService, s *cluster.Service) { s.Ingress = nil })
		}, cluster.ReasonNoIngressIP},
		"hostname ingress": {func(o *cluster.Objects) {
			change(o, "a", func(_ *cluster.EgressService, s *cluster.Service) {
				s.Ingress = []cluster.Ingress{{Hostname: "lb.example.com"}}
			})
		}, cluster.ReasonHostnameIngress},
		"loopback ingress": {func(o *cluster.Objects) {
			change(o, "a", func(_ *cluster.EgressService, s *cluster.Service) { s.Ingress = []cluster.Ingress{{IP: "127.0.0.1"}} })
		}, cluster.ReasonNoIngressIP},
		"node's address as ingress": {func(o *cluster.Objects) {
			change(o, "a", func(_ *cluster.EgressService, s *cluster.Service) { s.Ingress = []cluster.Ingress{{IP: "10.0.0.1"}} })
		}, cluster.ReasonNoIngressIP},
		"no endpoints": {func(o *cluster.Objects) { o.Endpoints = o.Endpoints.Without(key("a")) }, cluster.ReasonNoEndpoints},
		"hostNetwork only": {func(o *cluster.Objects) {
			o.Endpoints = o.Endpoints.With(key("a"), []cluster.Endpoint{{Address: "10.0.0.0", Node: "n0"}})
		}, cluster.ReasonNoEndpoints},
		"unusable endpoint": {func(o *cluster.Objects) {
			o.Endpoints = o.Endpoints.With(key("a"), []cluster.Endpoint{{Address: "::1", Node: "n0"}})
		}, cluster.ReasonNoEndpoints},
		"no node matches": {func(o *cluster.Objects) {
			change(o, "a", func(e *cluster.EgressService, _ *cluster.Service) { e.NodeSelector = zone("none") })
		}, cluster.ReasonNoEligibleNode},
		"Local without endpoint there": {func(o *cluster.Objects) {
			change(o, "a", func(e *cluster.EgressService, s *cluster.Service) { e.NodeSelector, s.LocalTraffic = zone("odd"), true })
		}, cluster.ReasonNoEligibleNode},
		"invalid selector": {func(o *cluster.Objects) {
			change(o, "a", func(e *cluster.EgressService, _ *cluster.Service) {
				e.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}}
			})
		}, cluster.ReasonInvalidSelector},
		"unknown mode": {func(o *cluster.Objects) {
			change(o, "a", func(e *cluster.EgressService, _ *cluster.Service) { e.SourceIPBy = "Magic" })
		}, cluster.ReasonInvalidValue},
		"shares an ingress IP that stands elsewhere": {func(o *cluster.Objects) {
			change(o, "b", func(e *cluster.EgressService, _ *cluster.Service) { e.NodeSelector = zone("odd") })
			change(o, "a", func(e *cluster.EgressService, s *cluster.Service) {
				e.Created = time.Unix(1, 0) // the younger
				e.NodeSelector = zone("even")
				s.Ingress = o.Services.At(key("b")).Ingress
			})
		}, cluster.ReasonSharedIngressHost},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := objects(4, "a", "b")
			test.edit(&o)
			got := Elect(o, nil)
			require.Empty(t, got[seat("a")].Host)
			require.Empty(t, got[seat("a")].Standby)
			require.NotNil(t, got[seat("a")].Problem)
			require.Equal(t, test.want, got[seat("a")].Problem.Reason)
			require.NotEmpty(t, got[seat("b")].Host, "the other is served")
			require.Nil(t, got[seat("b")].Problem)
		})
	}
}

func TestNoNodeIsReady(t *testing.T) {
	o := objects(1, "a")
	n := o.Nodes.At("n0")
	n.Ready = false
	o.Nodes = o.Nodes.With("n0", n)
	require.Equal(t, cluster.ReasonNoEligibleNode, Elect(o, nil)[seat("a")].Problem.Reason)
}

func TestNetworkModeHasEveryHost(t *testing.T) {
	o := objects(2, "a")
	change(&o, "a", func(e *cluster.EgressService, s *cluster.Service) {
		e.SourceIPBy, s.Ingress = cluster.SourceIPByNetwork, nil
	})
	o.Endpoints = o.Endpoints.Without(key("a"))
	require.Equal(t, Choice{Host: cluster.AllHosts}, Elect(o, nil)[seat("a")])
}

func TestEligibility(t *testing.T) {
	o := objects(5, "a")
	change(&o, "a", func(e *cluster.EgressService, s *cluster.Service) {
		e.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "even"}}
		s.LocalTraffic = true
	})
	o.Endpoints = o.Endpoints.With(key("a"), []cluster.Endpoint{{Address: "10.244.0.1", Node: "n1"}, {Address: "10.244.0.2", Node: "n2"}, {Address: "10.244.0.3"}})
	require.Equal(t, Choice{Host: "n2"}, Elect(o, nil)[seat("a")])
	o.Endpoints = o.Endpoints.With(key("a"), append(o.Endpoints.At(key("a")), cluster.Endpoint{Address: "10.244.0.4", Node: "n4"}))
	got := Elect(o, nil)[seat("a")]
	require.ElementsMatch(t, []string{"n2", "n4"}, []string{got.Host, got.Standby})
}

func TestHostStays(t *testing.T) {
	o := objects(3, names(9)...)
	for _, name := range names(9) {
		change(&o, name, func(e *cluster.EgressService, _ *cluster.Service) { e.Status.Host = "n1" })
	}
	require.Equal(t, map[string]int{"n1": 9}, hosts(Elect(o, nil)), "no rebalancing")
	n := o.Nodes.At("n1")
	n.Ready = false
	o.Nodes = o.Nodes.With("n1", n)
	moved := Elect(o, nil)
	require.Len(t, hosts(moved), 2)
	require.Zero(t, hosts(moved)["n1"])
	n.Ready = true
	o.Nodes = o.Nodes.With("n1", n)
	for _, name := range names(9) {
		change(&o, name, func(e *cluster.EgressService, _ *cluster.Service) { e.Status.Host = moved[seat(name)].Host })
	}
	for k, c := range Elect(o, nil) {
		require.Equal(t, moved[k].Host, c.Host, "no failback")
	}
	change(&o, "svc-0", func(e *cluster.EgressService, _ *cluster.Service) { e.Status.Host = "gone" })
	require.Equal(t, "n1", Elect(o, nil)[seat("svc-0")].Host, "a host that is no node counts for nothing; n1 has the fewest services")
}

func TestSharedIngressSharesHost(t *testing.T) {
	o := objects(8, names(6)...)
	share := func(name string, ips ...string) {
		change(&o, name, func(_ *cluster.EgressService, s *cluster.Service) {
			s.Ingress = nil
			for _, ip := range ips {
				s.Ingress = append(s.Ingress, cluster.Ingress{IP: ip})
			}
		})
	}
	share("svc-0", "203.0.113.1")
	share("svc-1", "2001:db8::1")
	share("svc-2", "203.0.113.1", "2001:DB8:0::1") // joins the two, and is older
	for _, name := range []string{"svc-0", "svc-1", "svc-3", "svc-4", "svc-5"} {
		change(&o, name, func(e *cluster.EgressService, _ *cluster.Service) { e.Created = time.Unix(1, 0) })
	}
	share("svc-3", "203.0.113.1")
	change(&o, "svc-3", func(e *cluster.EgressService, _ *cluster.Service) { e.Network = "blue" }) // of another network
	change(&o, "svc-1", func(e *cluster.EgressService, _ *cluster.Service) {
		e.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "odd"}}
		e.Network = "default" // the meaning of the empty name
	})
	got := Elect(o, nil)
	require.Equal(t, got[seat("svc-0")], got[seat("svc-1")])
	require.Equal(t, got[seat("svc-0")], got[seat("svc-2")])
	require.Equal(t, "odd", o.Nodes.At(got[seat("svc-0")].Host).Labels["zone"])
	require.Equal(t, "odd", o.Nodes.At(got[seat("svc-0")].Standby).Labels["zone"])
	require.NotEqual(t, got[seat("svc-0")].Host, got[seat("svc-3")].Host, "three services are there already")
}

func TestServicesSpread(t *testing.T) {
	got := hosts(Elect(objects(7, names(700)...), nil))
	require.Len(t, got, 7)
	for host, n := range got {
		require.Equal(t, 100, n, host)
	}
	standbys := map[string]int{}
	for _, c := range Elect(objects(7, names(700)...), nil) {
		require.NotEqual(t, c.Host, c.Standby)
		standbys[c.Standby]++
	}
	for node, n := range standbys {
		require.InDelta(t, 100, n, 40, node)
	}
	first := map[string]int{}
	for i := range 600 { // each alone: only the hash decides
		for host, n := range hosts(Elect(objects(6, fmt.Sprintf("svc-%d", i)), nil)) {
			first[host] += n
		}
	}
	for host, n := range first {
		require.InDelta(t, 100, n, 40, host)
	}
}

// The same objects in any order give the same choice, and a choice that is written into status is chosen again.
func TestElectIsStable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		o := objects(1+rng.IntN(6), names(rng.IntN(12))...)
		for _, k := range byAge(&o, egressServices{}) {
			change(&o, k.Name, func(e *cluster.EgressService, s *cluster.Service) {
				e.Created = time.Unix(rng.Int64N(3), 0)
				if rng.IntN(3) == 0 {
					e.Status.Host = fmt.Sprintf("n%d", rng.IntN(8))
				}
				if rng.IntN(3) == 0 {
					e.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": []string{"even", "odd"}[rng.IntN(2)]}}
				}
				s.Ingress = []cluster.Ingress{{IP: fmt.Sprintf("203.0.113.%d", rng.IntN(6))}, {IP: fmt.Sprintf("2001:db8::%d", 1+rng.IntN(6))}}
				s.LocalTraffic = rng.IntN(5) == 0
			})
		}
		want := Elect(o, nil)
		require.Len(t, want, o.EgressServices.Len())
		shuffled := cluster.Objects{
			EgressServices: reinserted(rng, o.EgressServices), Services: reinserted(rng, o.Services),
			Endpoints: reinserted(rng, o.Endpoints), Nodes: reinserted(rng, o.Nodes),
		}
		require.Equal(t, want, Elect(shuffled, nil))
		for k, c := range want {
			require.NotEqual(t, c.Host == "", c.Problem == nil, "either a host or a reason: %s", k)
			change(&o, k.Name, func(e *cluster.EgressService, _ *cluster.Service) { e.Status.Host = c.Host })
		}
		for k, c := range Elect(o, nil) {
			require.Equal(t, want[k].Host, c.Host)
		}
	}
}

// reinserted copies a map and inserts its entries in another order.
func reinserted[K comparable, V any](rng *rand.Rand, m cluster.Map[K, V]) cluster.Map[K, V] {
	keys := slices.Collect(m.Keys())
	rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	var out cluster.Draft[K, V]
	for _, k := range keys {
		out.Set(k, m.At(k))
	}
	return out.Map()
}

func BenchmarkElect(b *testing.B) {
	o := objects(1000, names(10000)...)
	for b.Loop() {
		Elect(o, nil)
	}
}
