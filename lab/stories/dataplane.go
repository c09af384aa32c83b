package stories

import (
	"net/netip"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// DataPlane returns a plan with two networks and another host, for tests that change parts of the plan.
func DataPlane() plan.DataPlane {
	a := netip.MustParseAddr
	p := netip.MustParsePrefix
	return plan.DataPlane{
		Marks: plan.Marks{Mask: 0x3f00, Priority: 700},
		Paths: []plan.Path{
			{ID: 1, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "default"}, Table: 254},
			{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}, Table: 1001, Devices: []string{"eth2", "vrf-red"}},
			{ID: 3, Key: plan.PathKey{Kind: plan.PathSteer, Name: "b"}, Table: 794603, Devices: []string{"egressway"}, Tunneled: true},
		},
		Uplinks: []plan.Uplink{{Device: "eth2", Path: 2}, {Device: "vrf-red", Path: 2}},
		Endpoints: sorted.Of([]plan.Endpoint{
			{Addr: a("10.244.1.11"), Path: 2, Source: a("203.0.113.10")},
			{Addr: a("10.244.1.12"), Path: 3, Source: a("10.244.1.12")},
			{Addr: a("10.244.1.13"), Path: 2},
			{Addr: a("10.244.1.14")},
			{Addr: a("fd44:1::11"), Path: 2, Source: a("2001:db8:203::10")},
		}...),
		Cluster:   []netip.Prefix{p("10.244.0.0/16"), p("255.255.255.255/32"), p("fd44::/16"), p("ff00::/8")},
		Pods:      []netip.Prefix{p("10.244.1.0/24"), p("10.244.2.0/24"), p("fd44:1::/64")},
		Ingress:   sorted.Of(plan.IngressIP{Addr: a("203.0.113.10"), Path: 2}, plan.IngressIP{Addr: a("2001:db8:203::10"), Path: 2}),
		ClampMSS4: 1410, ClampMSS6: 1390,
	}
}

// ManyEndpoints returns n IPv4 endpoints on a path.
func ManyEndpoints(n int, path plan.PathID) []plan.Endpoint {
	all := make([]plan.Endpoint, n)
	for i := range all {
		a := netip.AddrFrom4([4]byte{10, byte(128 + i>>16), byte(i >> 8), byte(i)})
		all[i] = plan.Endpoint{Addr: a, Path: path, Source: netip.AddrFrom4([4]byte{203, 0, byte(i % 10_000 >> 8), byte(i % 10_000)})}
	}
	return all
}
