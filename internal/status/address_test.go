package status

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

func TestAddressOf(t *testing.T) {
	a := netip.MustParseAddr
	p := &plan.NodePlan{DataPlane: plan.DataPlane{
		Paths: []plan.Path{
			{ID: 1, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}},
			{ID: 2, Key: plan.PathKey{Kind: plan.PathSteer, Name: "b"}},
			{ID: 3, Key: plan.PathKey{Kind: plan.PathShared, Name: "tunnel"}},
		},
		Endpoints: sorted.Of(
			plan.Endpoint{Addr: a("10.244.1.11"), Path: 1, Source: a("192.0.2.10"), Node: "a"},
			plan.Endpoint{Addr: a("10.244.1.12"), Path: 2, Source: a("10.244.1.12")}, plan.Endpoint{Addr: a("10.244.1.13")},
			plan.Endpoint{Addr: a("10.244.1.15"), Path: 3, Source: a("10.244.1.15"), Via: plan.MAC{2, 1}},
		),
		Ingress: sorted.Of(plan.IngressIP{Addr: a("192.0.2.10"), Path: 1}),
	}, Tunnel: &plan.Tunnel{Hosts: []plan.TunnelHost{{MAC: plan.Nowhere}, {Node: "c", Remote: a("10.0.0.13"), MAC: plan.MAC{2, 1}}}}}
	for _, want := range []Address{
		{Address: a("10.244.1.11"), Selected: true, Path: "network red", Source: a("192.0.2.10"), Node: "a"},
		{Address: a("10.244.1.12"), Selected: true, Path: "steer b", Source: a("10.244.1.12")},
		{Address: a("10.244.1.13"), Selected: true},
		{Address: a("10.244.1.14")},
		{Address: a("10.244.1.15"), Selected: true, Path: "steer c", HostAt: a("10.0.0.13"), Source: a("10.244.1.15")},
		{Address: a("192.0.2.10"), Ingress: true, Network: "red"},
	} {
		require.Equal(t, want, addressOf(p, want.Address))
	}
	require.Equal(t, Address{Address: a("10.244.1.11")}, addressOf(nil, a("10.244.1.11")), "before the first pass")
}
