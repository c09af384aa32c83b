package flows

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

func TestRoles(t *testing.T) {
	nodes := cluster.MapOf(map[string]cluster.Node{
		"a":   {Internal: []netip.Addr{addr("fd00::11"), addr("10.0.0.11")}},
		"b":   {Internal: []netip.Addr{addr("10.0.0.12"), addr("fd00::12")}},
		"c":   {Internal: []netip.Addr{addr("10.0.0.13")}},
		"six": {Internal: []netip.Addr{addr("fd00::13")}},
		"bad": {},
	})
	web4, web6, shop := addr("192.0.2.10"), addr("2001:db8:2::10"), addr("192.0.2.20")
	service := func(network, host, standby string, ips ...netip.Addr) plan.Service {
		return plan.Service{Network: network, Host: host, Standby: standby, IngressIPs: ips}
	}
	p := &plan.NodePlan{Node: "a", DataPlane: plan.DataPlane{Paths: []plan.Path{
		{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}},
		{ID: 3, Key: plan.PathKey{Kind: plan.PathSteer, Name: "blue"}},
	}}}
	four := func(a netip.Addr, host bool) Role {
		return Role{a, addr("10.0.0.11"), addr("10.0.0.12"), "b", host, false, 2}
	}
	parted := func(host, standby, from string) plan.Service {
		return plan.Service{Network: "red", Host: host, Standby: standby, Parted: from, IngressIPs: []netip.Addr{web4}}
	}
	ofC := func(host bool) Role { return Role{web4, addr("10.0.0.11"), addr("10.0.0.13"), "c", host, true, 2} }
	for _, c := range []struct {
		what     string
		services []plan.Service
		want     []Role
	}{
		{"host", []plan.Service{service("red", "a", "b", web4, web6)}, []Role{four(web4, true), four(web6, true)}},
		{"standby", []plan.Service{service("red", "b", "a", web4)}, []Role{four(web4, false)}},
		{
			"two services with one ingress IP",
			[]plan.Service{service("red", "a", "b", web4), service("red", "a", "b", web4, shop)},
			[]Role{four(web4, true), four(shop, true)},
		},
		{
			"the other has IPv6 only",
			[]plan.Service{service("red", "a", "six", web4)},
			[]Role{{web4, addr("fd00::11"), addr("fd00::13"), "six", true, false, 2}},
		},
		{"host beside a standby and the former one", []plan.Service{parted("a", "b", "c")}, []Role{four(web4, true), ofC(true)}},
		{"former standby", []plan.Service{parted("c", "b", "c")}, []Role{ofC(false)}},
		{"neither", []plan.Service{service("red", "b", "six", web4)}, nil},
		{"no standby", []plan.Service{service("red", "a", "", web4)}, nil},
		{"on all nodes", []plan.Service{service("red", "ALL", "", web4)}, nil},
		{"a network without a path here", []plan.Service{service("blue", "a", "b", web4)}, nil},
		{"the other has no address", []plan.Service{service("red", "a", "bad", web4)}, nil},
		{"the other is not known", []plan.Service{service("red", "a", "gone", web4)}, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			for i := range c.services {
				c.services[i].Key.Name = fmt.Sprint(i)
			}
			p.Services = sorted.Of(c.services...)
			require.Equal(t, listOf(c.want...), new(Roles).Find(nil, p, nodes))
		})
	}
}

// listOf returns a list of roles and leaves the slice unchanged.
func listOf(roles ...Role) sorted.List[Role] { return sorted.Of(slices.Clone(roles)...) }

// TestRolesOfPlansInTurn finds the same roles step by step, in successive plans, as in the last plan alone.
func TestRolesOfPlansInTurn(t *testing.T) {
	var nodes cluster.Map[string, cluster.Node]
	for i, name := range []string{"a", "b", "c", "none"} {
		nodes = nodes.With(name, cluster.Node{Internal: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}})
	}
	nodes = nodes.With("none", cluster.Node{})
	paths := []plan.Path{
		{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}},
		{ID: 3, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "blue"}},
	}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		one := func(of ...string) string { return of[r.IntN(len(of))] }
		var services sorted.List[plan.Service]
		var found Roles
		var former *plan.NodePlan
		for step := range 50 {
			var set, gone []plan.Service
			for range r.IntN(5) {
				s := plan.Service{
					Key: cluster.Key{Name: fmt.Sprint(r.IntN(20))}, Network: one("red", "blue", "green"), Host: one("a", "b", "c", "ALL", ""), Standby: one("a", "b", "c", "none", ""),
					Parted: one("", "", "b", "c"),
				}
				for range r.IntN(3) {
					s.IngressIPs = append(s.IngressIPs, netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(8))}))
				}
				if r.IntN(4) == 0 {
					gone = append(gone, s)
				} else {
					set = append(set, s)
				}
			}
			services = services.With(set, gone)
			p := &plan.NodePlan{Node: "a", Services: services, DataPlane: plan.DataPlane{Paths: paths}}
			require.Equal(t, new(Roles).Find(nil, p, nodes).Slice(), found.Find(former, p, nodes).Slice(), "seed %d, step %d", seed, step)
			if former = p; r.IntN(10) == 0 {
				former = nil // the next step begins from scratch
			}
		}
	}
}
