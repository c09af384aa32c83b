package kernel

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// learnedRoutes returns as many routes as a peer with a large part of the Internet's table advertises.
func learnedRoutes(n int) []plan.Route {
	routes := make([]plan.Route, n)
	for i := range routes {
		routes[i] = plan.Route{
			Table: 1001, Metric: 20, NextHops: []plan.NextHop{via("10.1.0.1", "eth2")},
			Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(20 + i>>16), byte(i >> 8), byte(i), 0}), 24),
		}
	}
	return routes
}

// BenchmarkApply measures the kernel part of a pass with 100,000 learned routes, 100,000 endpoints and 10,000 ingress
// IPs.
func BenchmarkApply(b *testing.B) {
	machine := netns.New(b)
	machine.Run("ip link add eth2 type veth peer name eth2p", "ip link set eth2p up", "ip link set eth2 up", "ip addr add 10.1.0.2/24 dev eth2")
	d := stories.DataPlane()
	d.Uplinks = []plan.Uplink{{Device: "eth2", Path: 2}}
	d.Endpoints = sorted.Of(stories.ManyEndpoints(100_000, 2)...)
	var ingress []plan.IngressIP
	for i := range 10_000 {
		ingress = append(ingress, plan.IngressIP{Addr: netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), Path: 2})
	}
	d.Ingress = sorted.Of(ingress...)
	full := &plan.NodePlan{DataPlane: d, Routes: sorted.Of(learnedRoutes(100_000)...), Rules: []plan.Rule{{Priority: 701, Mark: 0x2200, Mask: 0x3f00, Table: 1001}}}
	with := func(change func(p *plan.NodePlan)) *plan.NodePlan {
		p := *full
		change(&p)
		return &p
	}
	one := d.Endpoints.Slice()[5000]
	moved := make([]plan.Endpoint, 10_000)
	for i, e := range d.Endpoints.Slice()[:10_000] {
		moved[i] = plan.Endpoint{Addr: e.Addr, Path: 3, Source: e.Addr}
	}
	thousand := full.Routes.Slice()
	for i := range 1000 {
		thousand[i*100].NextHops = []plan.NextHop{via("10.1.0.7", "eth2")}
	}
	var n *keptNode
	require.NoError(b, machine.Do(func() (err error) { n, err = openKept(); return err }))
	defer n.Close()
	pass := func(p *plan.NodePlan) error {
		if _, err := n.Facts(b.Context(), 1001); err != nil {
			return err
		}
		if _, err := n.Problems("a", []string{"eth2"}); err != nil {
			return err
		}
		_, err := n.Apply(b.Context(), p)
		return err
	}
	require.NoError(b, machine.Do(func() error {
		n.stirs.watch(func() {}, nil) // no other program changes anything
		return pass(full)
	}))
	for _, c := range []struct {
		name string
		to   *plan.NodePlan
	}{
		{"nothing", full},
		{"one-endpoint", with(func(p *plan.NodePlan) { p.DataPlane.Endpoints = d.Endpoints.With(nil, []plan.Endpoint{one}) })},
		{"one-ingress-IP", with(func(p *plan.NodePlan) { p.DataPlane.Ingress = d.Ingress.With(nil, ingress[77:78]) })},
		{"10000-endpoints-move", with(func(p *plan.NodePlan) { p.DataPlane.Endpoints = d.Endpoints.With(moved, nil) })},
		{"one-path", with(func(p *plan.NodePlan) {
			p.DataPlane.Paths = append(slices.Clone(d.Paths), plan.Path{ID: 9, Key: plan.PathKey{Kind: plan.PathSteer, Name: "z"}, Table: 1009})
		})},
		{"one-route", with(func(p *plan.NodePlan) { p.Routes = full.Routes.With(nil, learnedRoutes(1)) })},
		{"1000-routes", with(func(p *plan.NodePlan) { p.Routes = full.Routes.With(thousand, nil) })},
	} {
		b.Run(c.name, func(b *testing.B) {
			require.NoError(b, machine.Do(func() error {
				defer netns.ProcessorTime(b)()
				for i := 0; b.Loop(); i++ {
					if err := pass([]*plan.NodePlan{c.to, full}[i%2]); err != nil {
						return err
					}
				}
				return pass(full)
			}))
		})
	}
	none := with(func(p *plan.NodePlan) { p.Routes = sorted.List[plan.Route]{} })
	for _, c := range []struct {
		name     string
		from, to *plan.NodePlan
	}{{"100000-routes-come", none, full}, {"100000-routes-go", full, none}} {
		b.Run(c.name, func(b *testing.B) {
			require.NoError(b, machine.Do(func() error {
				var used int64
				for b.Loop() {
					b.StopTimer()
					if err := pass(c.from); err != nil {
						return err
					}
					used -= netns.ProcessorUsed(b)
					b.StartTimer()
					if err := pass(c.to); err != nil {
						return err
					}
					used += netns.ProcessorUsed(b)
				}
				b.ReportMetric(float64(used)/float64(b.N)/1e6, "cpu-ms/op")
				return pass(full)
			}))
		})
	}
	b.Run("look-at-everything", func(b *testing.B) {
		require.NoError(b, machine.Do(func() error {
			defer netns.ProcessorTime(b)()
			for b.Loop() {
				n.stirs.missed()
				if err := pass(full); err != nil {
					return err
				}
			}
			return nil
		}))
	})
}
