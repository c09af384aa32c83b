package election

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

// give sets the ingress IPs of a service, and the host in its status.
func give(o *cluster.Objects, name, host string, ips ...string) {
	change(o, name, func(e *cluster.EgressService, s *cluster.Service) {
		e.Status = cluster.Status{Host: host}
		s.Ingress = nil
		for _, ip := range ips {
			s.Ingress = append(s.Ingress, cluster.Ingress{IP: ip})
		}
	})
}

// settled writes the choices into the statuses.
func settled(o *cluster.Objects, choices map[Seat]Choice) {
	for k, c := range choices {
		change(o, k.Name, func(e *cluster.EgressService, _ *cluster.Service) {
			e.Status.Host, e.Status.Standby = c.Host, c.Standby
		})
	}
}

// A service that shares ingress IPs with others gets their host or none, and does not affect them.
func TestNewcomerThatShares(t *testing.T) {
	const a, b, neither = "203.0.113.1", "203.0.113.2", "203.0.113.3"
	zone := func(o *cluster.Objects, name, zone string) {
		change(o, name, func(e *cluster.EgressService, _ *cluster.Service) {
			e.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": zone}}
		})
	}
	tests := map[string]struct {
		edit          func(o *cluster.Objects) // of a, b and the newcomer c
		hostA, hostB  string
		hostC, reason string // the host, or a part of the message
	}{
		"two hosts": {func(*cluster.Objects) {}, "n0", "n1", "", "several, which they keep: " +
			"EgressService shop/a (203.0.113.1, host n0) and EgressService shop/b (203.0.113.2, host n1)"},
		"the same host": {func(o *cluster.Objects) { give(o, "b", "n0", b) }, "n0", "n0", "n0", ""},
		"one":           {func(o *cluster.Objects) { give(o, "c", "", a) }, "n0", "n1", "n0", ""},
		"one, on a node that is not for it": {func(o *cluster.Objects) {
			give(o, "c", "", a)
			zone(o, "c", "odd")
		}, "n0", "n1", "", "stays that of EgressService shop/a (203.0.113.1, host n0)"},
		"the same host, which is not for it": {func(o *cluster.Objects) {
			give(o, "b", "n0", b)
			zone(o, "c", "odd")
		}, "n0", "n0", "", "stays that of EgressService shop/a (203.0.113.1, host n0) and EgressService shop/b (203.0.113.2, host n0)"},
		"older than they": {func(o *cluster.Objects) {
			change(o, "c", func(e *cluster.EgressService, _ *cluster.Service) { e.Created = time.Unix(-1, 0) })
		}, "n0", "n1", "", "n0) and EgressService"},
		"had the host of one before": {func(o *cluster.Objects) { give(o, "c", "n0", a, b) }, "n0", "n1", "", "n0) and EgressService"},
		"in another network": {func(o *cluster.Objects) {
			change(o, "c", func(e *cluster.EgressService, _ *cluster.Service) { e.Network = "blue" })
		}, "n0", "n1", "any", ""},
		"together, and their host is gone": {func(o *cluster.Objects) {
			give(o, "a", "n9", a)
			give(o, "b", "n9", b)
			give(o, "c", "n9", a, b)
			zone(o, "b", "odd")
		}, "any", "any", "any", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := objects(4, "a", "b", "c")
			give(&o, "a", "n0", a)
			give(&o, "b", "n1", b)
			give(&o, "c", "", a, b, neither)
			change(&o, "c", func(e *cluster.EgressService, _ *cluster.Service) { e.Created = time.Unix(1, 0) })
			test.edit(&o)
			got := Elect(o, nil)
			is := func(name, want string) {
				require.NotEmpty(t, got[seat(name)].Host, name)
				if want != "any" {
					require.Equal(t, want, got[seat(name)].Host, name)
				}
			}
			is("a", test.hostA)
			is("b", test.hostB)
			if test.hostC != "" {
				is("c", test.hostC)
				return
			}
			require.Empty(t, got[seat("c")].Host)
			require.Equal(t, cluster.ReasonSharedIngressHost, got[seat("c")].Problem.Reason)
			require.Contains(t, got[seat("c")].Problem.Message, test.reason)
		})
	}
}

// A service that waits for one that is then refused gets a host of its own.
func TestSharingWithARefusedOne(t *testing.T) {
	o := objects(4, "a", "b", "c", "d")
	give(&o, "a", "n0", "203.0.113.1")
	give(&o, "b", "n1", "203.0.113.2")
	give(&o, "c", "", "203.0.113.1", "203.0.113.2", "203.0.113.3")
	give(&o, "d", "", "203.0.113.3")
	got := Elect(o, nil)
	require.Empty(t, got[seat("c")].Host)
	require.NotEmpty(t, got[seat("d")].Host)
	settled(&o, got)
	again := Elect(o, nil)
	require.Contains(t, again[seat("c")].Problem.Message, "EgressService shop/a (203.0.113.1, host n0) and EgressService shop/b (203.0.113.2, host n1) and EgressService shop/d (203.0.113.3")
	require.Equal(t, got[seat("d")].Host, again[seat("d")].Host)
}

// A new service, of any age and with any ingress IPs, moves no service that has a host. It gets the host of all services with
// which it shares ingress IPs, or is refused with their names. Services of one host stay together when the host goes, if a
// node fits them all.
func TestNewcomerMovesNobody(t *testing.T) {
	refused, joined := 0, 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		o := objects(2+r.IntN(4), names(1+r.IntN(8))...)
		ips := func() (ips []string) {
			for range 1 + r.IntN(3) {
				ips = append(ips, fmt.Sprintf("203.0.113.%d", r.IntN(9)))
			}
			return ips
		}
		zone := func(name string) {
			change(&o, name, func(e *cluster.EgressService, _ *cluster.Service) {
				e.Created = time.Unix(r.Int64N(3), 0)
				if r.IntN(4) == 0 {
					e.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": []string{"even", "odd"}[r.IntN(2)]}}
				}
			})
		}
		for _, k := range byAge(&o, egressServices{}) {
			give(&o, k.Name, "", ips()...)
			zone(k.Name)
		}
		before := Elect(o, nil)
		settled(&o, before)

		o.EgressServices = o.EgressServices.With(key("new"), cluster.EgressService{SourceIPBy: cluster.SourceIPByLoadBalancer})
		o.Services = o.Services.With(key("new"), cluster.Service{LoadBalancer: true})
		o.Endpoints = o.Endpoints.With(key("new"), []cluster.Endpoint{{Address: "10.244.9.9", Node: "n0"}})
		give(&o, "new", "", ips()...)
		zone("new")
		after := Elect(o, nil)
		for k, was := range before {
			if was.Host != "" {
				require.Equal(t, was.Host, after[k].Host, "seed %d: %s", seed, k)
			}
		}
		requireShared(t, o, after, seed)
		var with []Seat
		for k, c := range after {
			if c.Host != "" && k != seat("new") && shares(o, key("new"), k.Key) {
				with = append(with, k)
			}
		}
		if c := after[seat("new")]; c.Problem != nil {
			refused++
			require.Equal(t, cluster.ReasonSharedIngressHost, c.Problem.Reason, "seed %d", seed)
			hosts := map[string]bool{}
			for _, k := range with {
				hosts[after[k].Host] = true
			}
			for host := range hosts {
				require.Contains(t, c.Problem.Message, ", host "+host, "seed %d", seed)
			}
		} else if len(with) > 0 {
			joined++
		}

		settled(&o, after)
		gone := fmt.Sprint("n", r.IntN(o.Nodes.Len()))
		n := o.Nodes.At(gone)
		n.Ready = false
		o.Nodes = o.Nodes.With(gone, n)
		requireShared(t, o, Elect(o, nil), seed)
		for k, c := range Elect(o, nil) {
			if after[k].Host == "" || c.Host != "" {
				continue
			}
			require.True(t, c.Problem.Reason == cluster.ReasonNoEligibleNode || slices.ContainsFunc(byAge(&o, egressServices{}), func(other seated) bool {
				return other.Seat != k && shares(o, k.Key, other.Key) && after[other.Seat].Host != "" && o.EgressServices.At(other.Key).NodeSelector != nil
			}), "seed %d: %s lost its host though every node fits those with which it shares: %s", seed, k, c.Problem)
		}
	}
	require.Greater(t, refused, 100)
	require.Greater(t, joined, 100)
}

func shares(o cluster.Objects, a, b cluster.Key) bool {
	return slices.ContainsFunc(o.Services.At(a).Ingress, func(in cluster.Ingress) bool { return slices.Contains(o.Services.At(b).Ingress, in) })
}

// requireShared requires that services that share an ingress IP have one host, except those without a host.
func requireShared(t *testing.T, o cluster.Objects, choices map[Seat]Choice, seed uint64) {
	t.Helper()
	for a, x := range choices {
		for b, y := range choices {
			if x.Host != "" && y.Host != "" && shares(o, a.Key, b.Key) {
				require.Equal(t, x.Host, y.Host, "seed %d: %s and %s", seed, a, b)
			}
		}
	}
}
