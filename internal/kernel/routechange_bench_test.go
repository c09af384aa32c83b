package kernel

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
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

// processorTime reports an operation's CPU time, which on a busy machine says more than its duration.
func processorTime(b *testing.B) (end func()) {
	b.Helper()
	before := processorUsed(b)
	return func() { b.ReportMetric(float64(processorUsed(b)-before)/float64(b.N)/1e6, "cpu-ms/op") }
}

func processorUsed(b *testing.B) (nanoseconds int64) {
	b.Helper()
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkApply measures the kernel part of a pass with 100,000 learned routes, 100,000 endpoints and 10,000 ingress
// IPs.
func BenchmarkApply(b *testing.B) {
	machine := newNetNS(b)
	machine.run("ip link add eth2 type veth peer name eth2p", "ip link set eth2p up", "ip link set eth2 up", "ip addr add 10.1.0.2/24 dev eth2")
	d := someDataPlane()
	d.Uplinks = []plan.Uplink{{Device: "eth2", Path: 2}}
	d.Endpoints = sorted.Of(manyEndpoints(100_000, 2)...)
	var ingress []plan.IngressIP
	for i := range 10_000 {
		ingress = append(ingress, plan.IngressIP{Addr: netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), Path: 2})
	}
	d.Ingress = sorted.Of(ingress...)
	full := &plan.NodePlan{DataPlane: d, Routes: learnedRoutes(100_000), Rules: []plan.Rule{{Priority: 701, Mark: 0x2200, Mask: 0x3f00, Table: 1001}}}
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
	thousand := slices.Clone(full.Routes)
	for i := range 1000 {
		thousand[i*100].NextHops = []plan.NextHop{via("10.1.0.7", "eth2")}
	}
	var n *Node
	require.NoError(b, machine.do(func() (err error) { n, err = Open(); return err }))
	defer n.Close()
	n.look.next = n.clock()
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
	require.NoError(b, machine.do(func() error {
		n.stirs.watch(func() {}) // no other program changes anything
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
		{"one-route", with(func(p *plan.NodePlan) { p.Routes = full.Routes[1:] })},
		{"1000-routes", with(func(p *plan.NodePlan) { p.Routes = thousand })},
	} {
		b.Run(c.name, func(b *testing.B) {
			require.NoError(b, machine.do(func() error {
				defer processorTime(b)()
				for i := 0; b.Loop(); i++ {
					if err := pass([]*plan.NodePlan{c.to, full}[i%2]); err != nil {
						return err
					}
				}
				return pass(full)
			}))
		})
	}
	none := with(func(p *plan.NodePlan) { p.Routes = nil })
	for _, c := range []struct {
		name     string
		from, to *plan.NodePlan
	}{{"100000-routes-come", none, full}, {"100000-routes-go", full, none}} {
		b.Run(c.name, func(b *testing.B) {
			require.NoError(b, machine.do(func() error {
				var used int64
				for b.Loop() {
					b.StopTimer()
					if err := pass(c.from); err != nil {
						return err
					}
					used -= processorUsed(b)
					b.StartTimer()
					if err := pass(c.to); err != nil {
						return err
					}
					used += processorUsed(b)
				}
				b.ReportMetric(float64(used)/float64(b.N)/1e6, "cpu-ms/op")
				return pass(full)
			}))
		})
	}
	b.Run("look-at-everything", func(b *testing.B) {
		require.NoError(b, machine.do(func() error {
			defer processorTime(b)()
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

// BenchmarkContradictions measures the cost of finding the connections of some endpoints, and of all, among 100,000.
func BenchmarkContradictions(b *testing.B) {
	machine := newNetNS(b)
	d := someDataPlane()
	d.Endpoints = sorted.Of(manyEndpoints(100_000, 2)...)
	all := d.Endpoints.Slice()
	flows := make([]Flow, len(all))
	for i, e := range all {
		flows[i] = Flow{
			Proto: unix.IPPROTO_TCP, Src: netip.AddrPortFrom(e.Addr, 1000), Dst: netip.MustParseAddrPort("198.51.100.10:443"),
			SNAT: netip.AddrPortFrom(e.Source, uint16(1000+i/10_000)), Path: 2, State: TCPEstablished, Answered: true, Assured: true, Timeout: 1000,
		}
	}
	require.NoError(b, machine.do(func() error {
		r, err := InjectFlows(Injection{Marks: d.Marks}, flows)
		if err == nil && r.Created != len(flows) {
			err = fmt.Errorf("%+v", r)
		}
		return err
	}))
	for _, count := range []int{1, 10, 10_000, len(all)} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			of := doubt{all: count == len(all), endpoints: map[netip.Addr]bool{}}
			for _, e := range all[:count] {
				of.endpoints[e.Addr] = true
			}
			require.NoError(b, machine.do(func() error {
				defer processorTime(b)()
				var n Node
				for b.Loop() {
					if _, err := n.endContradictions(b.Context(), d, of); err != nil {
						return err
					}
				}
				return nil
			}))
		})
	}
}
