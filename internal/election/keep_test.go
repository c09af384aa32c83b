package election

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

// wander changes some objects at random, and returns the changes.
func wander(r *rand.Rand, o *cluster.Objects) (changed cluster.Changed) {
	for range 1 + r.IntN(3) {
		k := key(fmt.Sprint("s", r.IntN(12)))
		changed.Add(cluster.KindEgressService.ID(k))
		spec, service := o.EgressServices.At(k), o.Services.At(k)
		spec.Created = time.Unix(int64(r.IntN(3)), 0)
		if r.IntN(4) == 0 {
			wanderEgressIP(r, o, &changed)
		}
		switch r.IntN(9) {
		case 0:
			o.EgressServices = o.EgressServices.Without(k)
			continue
		case 1:
			o.Services = o.Services.Without(k)
			continue
		case 2:
			spec.Status = cluster.Status{Host: fmt.Sprint("n", r.IntN(6)), Standby: fmt.Sprint("n", r.IntN(6)), Term: r.Int64N(3)}
		case 3:
			spec.Network = []string{"", "red", "blue"}[r.IntN(3)]
		case 4:
			service.LocalTraffic = !service.LocalTraffic
		case 5:
			spec.SourceIPBy = []cluster.SourceIPBy{cluster.SourceIPByLoadBalancer, cluster.SourceIPByNetwork}[r.IntN(2)]
		default:
			o.Endpoints = o.Endpoints.With(k, nil)
			for range r.IntN(4) {
				o.Endpoints = o.Endpoints.With(k, append(o.Endpoints.At(k), cluster.Endpoint{Address: fmt.Sprint("10.244.0.", r.IntN(9)), Node: fmt.Sprint("n", r.IntN(6))}))
			}
		}
		service.LoadBalancer = r.IntN(8) > 0
		service.Ingress = []cluster.Ingress{{IP: fmt.Sprint("192.0.2.", r.IntN(20))}}
		o.EgressServices, o.Services = o.EgressServices.With(k, spec), o.Services.With(k, service)
	}
	if r.IntN(12) == 0 {
		name := fmt.Sprint("n", r.IntN(6))
		if n, there := o.Nodes.Get(name); there && r.IntN(2) == 0 {
			n.Ready = !n.Ready
			o.Nodes = o.Nodes.With(name, n)
		} else if there {
			o.Nodes = o.Nodes.Without(name)
		} else {
			a := []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.0.0.", name[1:]))}
			o.Nodes = o.Nodes.With(name, cluster.Node{Ready: true, Addresses: a, Internal: a, Labels: map[string]string{cluster.LabelAssignable: ""}})
		}
		changed.All = true
	}
	return changed
}

// wanderEgressIP changes an EgressIP at random, which may share its addresses with others and with ingress IPs.
func wanderEgressIP(r *rand.Rand, o *cluster.Objects, changed *cluster.Changed) {
	key := cluster.Key{Name: fmt.Sprint("e", r.IntN(4))}
	changed.Add(cluster.KindEgressIP.ID(key))
	if r.IntN(4) == 0 {
		o.EgressIPs = o.EgressIPs.Without(key)
		return
	}
	e := cluster.EgressIP{Created: time.Unix(int64(r.IntN(3)), 0)}
	for range r.IntN(4) {
		a := netip.MustParseAddr(fmt.Sprint("192.0.2.", 15+r.IntN(12)))
		if !slices.Contains(e.Addresses, a) {
			e.Addresses = append(e.Addresses, a)
			e.Holders = append(e.Holders, cluster.Holder{Addr: a, Host: fmt.Sprint("n", r.IntN(9)), Standby: fmt.Sprint("n", r.IntN(9)), Term: r.Int64N(3)})
		}
	}
	o.EgressIPs = o.EgressIPs.With(key, e)
}

// follow updates a copy of the choices by the changes that an update reports.
func follow(kept, choices map[Seat]Choice, changed []Seat) {
	for _, k := range changed {
		if c, there := choices[k]; there {
			kept[k] = c
		} else {
			delete(kept, k)
		}
	}
}

// obeyAnew derives the choices from the objects' status from scratch.
func obeyAnew(o cluster.Objects) map[Seat]Choice {
	choices, _ := new(Obeyed).Update(o, cluster.Everything())
	return choices
}

// Updated choices are the same as choices made from scratch.
func TestChoicesInStep(t *testing.T) {
	for seed := range uint64(40) {
		policy := []Policy{{}, {Alone: true}, {Hosts: 2, Alone: true}, {Hosts: 2}}[seed%4]
		r := rand.New(rand.NewPCG(seed, 0))
		o := objects(5, "s0", "s1", "s2")
		obeyed, elected := new(Obeyed), new(Elected)
		keptObeyed, keptElected := map[Seat]Choice{}, map[Seat]Choice{}
		changed := cluster.Everything()
		for step := range 200 {
			choices, keys := obeyed.Update(o, changed)
			require.Equal(t, obeyAnew(o), choices, "seed %d, step %d", seed, step)
			follow(keptObeyed, choices, keys)
			require.Equal(t, choices, keptObeyed, "seed %d, step %d", seed, step)

			choices, keys = elected.Update(o, nil, changed, policy)
			require.Equal(t, policy.Elect(o, nil), choices, "seed %d, step %d: %v", seed, step, slices.Collect(maps.Keys(changed.Of[cluster.KindEgressService])))
			follow(keptElected, choices, keys)
			require.Equal(t, choices, keptElected, "seed %d, step %d", seed, step)
			changed = wander(r, &o)
		}
	}
}

// A new endpoint changes no host and causes no election.
func TestNoElectionForAnEndpoint(t *testing.T) {
	o, elected := objects(5, "s0", "s1"), new(Elected)
	before, _ := elected.Update(o, nil, cluster.Everything(), Policy{})
	o.Endpoints = o.Endpoints.With(key("s0"), append(slices.Clone(o.Endpoints.At(key("s0"))), cluster.Endpoint{Address: "10.244.0.77", Node: "n1"}))
	after, changed := elected.Update(o, nil, changeOf(key("s0")), Policy{})
	require.Empty(t, changed)
	require.Equal(t, reflect.ValueOf(before).Pointer(), reflect.ValueOf(after).Pointer(), "the same map")
}

// changeOf is the change of one EgressService.
func changeOf(key cluster.Key) (changed cluster.Changed) {
	changed.Add(cluster.KindEgressService.ID(key))
	return changed
}
