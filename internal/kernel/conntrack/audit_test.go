package conntrack

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

func TestConnectionsThatContradictThePlan(t *testing.T) {
	d := stories.DataPlane()
	m := d.Marks
	check := newFlowCheck(d)
	check.own[2] = map[netip.Addr]bool{addr("10.1.0.11"): true}
	const outside = "198.51.100.10"
	for _, c := range []struct {
		what                   string
		source, target, leaves string // target after DNAT, leaves after SNAT
		mark                   uint32
		ends                   bool
	}{
		{"egress as planned", "10.244.1.11", outside, "203.0.113.10", m.Egress(2), false},
		{"egress as planned, foreign bits in the mark", "10.244.1.11", outside, "203.0.113.10", m.Egress(2) | 0xdead0000, false},
		{"egress with the ingress IP of before", "10.244.1.11", outside, "203.0.113.99", m.Egress(2), true},
		{"egress by the network of before", "10.244.1.11", outside, "203.0.113.10", m.Egress(1), true},
		{"steered as planned", "10.244.1.12", outside, "10.244.1.12", m.Egress(3), false},
		{"masqueraded as planned", "10.244.1.13", outside, "10.1.0.11", m.Egress(2), false},
		{"masqueraded now, left with an ingress IP before", "10.244.1.13", outside, "203.0.113.10", m.Egress(2), true},
		{"masqueraded now, was steered before by the path that has the id now", "10.244.1.13", outside, "10.244.1.13", m.Egress(2), true},
		{"egress of a pod that has no path now", "10.244.1.14", outside, "203.0.113.10", m.Egress(2), true},
		{"egress of a pod that is not selected now", "10.244.1.99", outside, "203.0.113.10", m.Egress(2), true},
		{"egress to a pod, begun while the ranges were not there", "10.244.1.11", "10.244.2.5", "203.0.113.10", m.Egress(2), true},
		{"begun before the pod was selected", "10.244.1.11", outside, "10.0.0.11", 0, true},
		{"of a selected pod inside the cluster", "10.244.1.11", "10.244.2.5", "10.244.1.11", 0, false},
		{"of a selected pod to a Service", "10.244.1.11", "10.244.2.5", "10.244.1.11", 0, false},
		{"of another pod", "10.244.1.99", outside, "10.0.0.11", 0, false},
		{"of the node", "10.0.0.11", "10.0.0.1", "10.0.0.11", 0, false},
		{"came in by a network", outside, "10.244.1.11", outside, m.Ingress(2), false},
		{"came in by a network that is gone", outside, "10.244.1.11", outside, m.Ingress(7), true},
		{"IPv6 egress as planned", "fd44:1::11", "2001:db8:100::10", "2001:db8:203::10", m.Egress(2), false},
		{"IPv6 begun before", "fd44:1::11", "2001:db8:100::10", "fd00::11", 0, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			of := Connection{source: addr(c.source), Target: addr(c.target), leaves: addr(c.leaves), mark: c.mark}
			require.Equal(t, c.ends, check.contradicts(of))
			of.zoned = true
			require.False(t, check.contradicts(of), "in a conntrack zone it is another program's")
		})
	}
}

// TestOwnAddresses reads the addresses that masqueraded flows may leave with: those of uplinks, not those of their VRF device.
func TestOwnAddresses(t *testing.T) {
	netns.Enter(t)
	netns.Uplink(t, "eth1", "10.1.0.11/24")
	netns.IP(t, "link add vrf-red type vrf table 1001", "link set vrf-red up", "addr add 192.0.2.1/32 dev vrf-red",
		"link set eth1 master vrf-red")
	red := plan.PathKey{Kind: plan.PathNetwork, Name: "red"}
	got := deviceAddresses(plan.Path{ID: 2, Key: red, Devices: []string{"eth1", "eth9", "vrf-red"}})
	require.Contains(t, got, addr("10.1.0.11"))
	require.NotContains(t, got, addr("192.0.2.1"))
}

// TestDoubtOfPlansBetween puts a plan into force that no connection was compared with, and then the previous plan
// again.
func TestDoubtOfPlansBetween(t *testing.T) {
	before, between := stories.DataPlane(), stories.DataPlane()
	e := before.Endpoints.Slice()[0]
	moved := e
	moved.Source = addr("203.0.113.99")
	between.Endpoints = between.Endpoints.With([]plan.Endpoint{moved}, nil)
	var s Audit
	require.True(t, s.Applied(nil, &before), "what was in force is not known")
	require.True(t, s.doubt.all)
	s.doubt = doubt{}
	require.False(t, s.Applied(&before, &before))
	require.True(t, s.Applied(&before, &between))
	again := before
	require.True(t, s.Applied(&between, &again), "what began under the one between may be there")
	require.Equal(t, map[netip.Addr]bool{e.Addr: false}, s.doubt.endpoints)
	require.True(t, s.Applied(&again, &again), "until it is checked")
	other := before
	other.Endpoints = before.Endpoints.With(nil, before.Endpoints.Slice()[1:2])
	require.True(t, s.Applied(&again, &other))
	require.Len(t, s.doubt.endpoints, 2)

	many := doubt{endpoints: map[netip.Addr]bool{}}
	for a := addr("10.0.0.0"); len(many.endpoints) < doubtMost; a = a.Next() {
		many.endpoints[a] = false
	}
	s.doubt.add(many)
	require.True(t, s.doubt.all, "too many to remember")
	require.Empty(t, s.doubt.endpoints)
	s.Reset()
	require.True(t, s.Applied(&other, &other))
}

// TestReusedID ends connections that came in by a network whose path id means another network now: their replies would leave by that.
func TestReusedID(t *testing.T) {
	named := func(name string) *plan.DataPlane {
		return &plan.DataPlane{Marks: plan.Marks{Mask: 0x3f00}, Paths: []plan.Path{
			{ID: 1, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "default"}}, {ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: name}},
		}}
	}
	red, blue := named("red"), named("blue")
	var s Audit
	require.False(t, s.Applied(red, red))
	require.True(t, s.Applied(red, blue))
	require.True(t, s.doubt.all)
	check := newFlowCheck(*blue)
	check.doubt = s.doubt
	came := Connection{source: addr("198.51.100.7"), Target: addr("10.244.1.11"), leaves: addr("198.51.100.7"), mark: blue.Marks.Ingress(2)}
	require.True(t, check.contradicts(came))
	came.mark = blue.Marks.Ingress(1)
	require.False(t, check.contradicts(came))
	require.Empty(t, doubtOf(blue, named("blue")).reused)
}

// TestDoubt checks that an endpoint is in doubt if one of its connections contradicts a plan and not the plan before.
func TestDoubt(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	d := plan.DataPlane{Marks: plan.Marks{Mask: 0x3f00}}
	found, spared := 0, 0
	for range 200 {
		next := stories.AnyDataPlane(r, d)
		a, b := newFlowCheck(d), newFlowCheck(next)
		of := doubtOf(&d, &next)
		for range 500 {
			pod := func() netip.Addr {
				if i := r.IntN(120); i%2 == 0 {
					return addr(fmt.Sprintf("10.244.1.%d", i))
				}
				return addr(fmt.Sprintf("fd44:1::%d", r.IntN(120)))
			}
			c := Connection{source: pod(), Target: addr("198.51.100.1"), leaves: addr(fmt.Sprintf("203.0.113.%d", r.IntN(4)))}
			if r.IntN(3) == 0 {
				c.leaves = c.source
			}
			if r.IntN(3) == 0 {
				c.Target = addr([]string{"10.244.1.1", "10.96.0.1", "fd44::1"}[r.IntN(3)])
			}
			id := plan.PathID(1 + r.IntN(6))
			c.mark = []uint32{0, d.Marks.Egress(id), d.Marks.Ingress(id)}[r.IntN(3)]
			_, doubted := of.endpoints[c.source]
			joined := b.inCluster(c.Target) && !a.inCluster(c.Target) // its connections wait for the next check of all
			if !a.contradicts(c) && b.contradicts(c) && !joined {
				found++
				require.True(t, of.all || doubted, "%+v", c)
			} else if !of.all && !doubted {
				spared++
			}
		}
		d = next
	}
	require.Greater(t, found, 100)
	require.Greater(t, spared, 100)
}

// TestContradictionsOfFew ends the connections of some endpoints, found by their source, and none of the others.
func TestContradictionsOfFew(t *testing.T) {
	netns.Enter(t)
	var audit Audit
	t.Cleanup(audit.Close)
	d := stories.DataPlane()
	d.Endpoints = sorted.Of(stories.ManyEndpoints(100, 2)...)
	all := d.Endpoints.Slice()
	var flows []Flow
	for i, e := range all {
		flows = append(flows, Flow{
			Proto: unix.IPPROTO_TCP, Src: netip.AddrPortFrom(e.Addr, uint16(1000+i)), Dst: netip.MustParseAddrPort("198.51.100.10:443"),
			SNAT: netip.AddrPortFrom(e.Source, uint16(1000+i)), Path: 2, State: TCPEstablished, Answered: true, Assured: true, Timeout: 1000,
		})
	}
	r, err := InjectFlows(Injection{Marks: d.Marks}, flows)
	require.NoError(t, err)
	require.Equal(t, len(flows), r.Created)
	count := func() (n int) {
		require.NoError(t, ListFlows(t.Context(), d.Marks, func(Flow) bool { n++; return true }))
		return n
	}
	var held *plan.DataPlane
	end := func() uint {
		t.Helper()
		now, ended := d, uint(0)
		former := held
		held = &now
		if audit.Applied(former, &now) {
			var err error
			ended, err = audit.End(t.Context(), now, noNames, time.Now)
			require.NoError(t, err)
		}
		require.False(t, audit.Applied(&now, &now))
		return ended
	}
	d.Endpoints = sorted.Of(stories.ManyEndpoints(100, 0)...)
	end()
	_, err = InjectFlows(Injection{Marks: d.Marks}, flows)
	require.NoError(t, err)
	d.Endpoints = sorted.Of(all...)
	require.Zero(t, end(), "they have a path now")
	require.Equal(t, 100, count())
	steered := d.Endpoints.Slice()[99]
	steered.Path, steered.Source = 3, steered.Addr
	d.Endpoints = d.Endpoints.With([]plan.Endpoint{steered}, nil)
	require.EqualValues(t, 1, end())
	for _, few := range []int{1, fewest, 20} {
		had := count()
		d.Endpoints = d.Endpoints.With(nil, d.Endpoints.Slice()[:few])
		require.Equal(t, uint(few), end())
		require.Equal(t, had-few, count())
	}
	moved := d.Endpoints.Slice()[0]
	moved.Path, moved.Kept = 3, plan.Way{Path: 2, Source: moved.Source}
	moved.Source = moved.Addr
	d.Endpoints = d.Endpoints.With([]plan.Endpoint{moved}, nil)
	require.Zero(t, end(), "it may stay")
	moved.Node = "c"
	d.Endpoints = d.Endpoints.With([]plan.Endpoint{moved}, nil)
	require.Zero(t, end())
	var seen []netip.Addr
	require.NoError(t, DumpConnections(moved.Addr, func(body []byte) bool {
		source, _ := tupleAddresses(nl.Attr(body, vnl.SizeofNfgenmsg, vnl.CTA_TUPLE_ORIG))
		seen = append(seen, source)
		return true
	}))
	require.Equal(t, []netip.Addr{moved.Addr}, seen, "the kernel leaves out the rest")
}

// TestKeptOnlyBefore selects the endpoints whose connections can leave a kept way before the next plan is in force.
func TestKeptOnlyBefore(t *testing.T) {
	pod := addr("10.244.1.12")
	at := func(path plan.PathID, kept plan.Way) *plan.DataPlane {
		d := stories.DataPlane()
		e, _ := d.Endpoints.Get(plan.Endpoint{Addr: pod})
		e.Path, e.Kept = path, kept
		d.Endpoints = d.Endpoints.With([]plan.Endpoint{e}, nil)
		return &d
	}
	by := func(d *plan.DataPlane, host byte) *plan.DataPlane {
		d.Paths = append(slices.Clone(d.Paths), plan.Path{ID: 9, Key: plan.PathKey{Kind: plan.PathShared, Name: "tunnel"}})
		e, _ := d.Endpoints.Get(plan.Endpoint{Addr: pod})
		e.Via = plan.MAC{2, 0, 0, 0, 0, host}
		d.Endpoints = d.Endpoints.With([]plan.Endpoint{e}, nil)
		return d
	}
	none, red, shared := plan.Way{}, plan.Way{Path: 2, Source: addr("203.0.113.10")}, plan.Way{Path: 9, Source: pod}
	other := at(3, none)
	other.Paths = slices.DeleteFunc(slices.Clone(other.Paths), func(p plan.Path) bool { return p.ID == 3 })
	for name, c := range map[string]struct {
		before, next *plan.DataPlane
		moves        bool
	}{
		"kept no more":           {at(3, red), at(3, none), true},
		"kept elsewhere":         {at(3, red), at(3, plan.Way{Path: 2, Source: pod}), true},
		"kept still":             {at(3, red), at(3, red), false},
		"kept from now on":       {at(3, none), at(3, red), false},
		"new flows go elsewhere": {at(3, red), at(2, none), false},
		"the path is gone":       {at(3, red), other, false},
		"nothing is known":       {nil, at(3, none), false},

		"kept on the shared path from now on":      {at(3, red), by(at(3, shared), 1), true},
		"kept on the shared path no more":          {by(at(3, shared), 1), at(3, red), true},
		"kept by another host of the shared path":  {by(at(3, shared), 1), by(at(3, shared), 2), true},
		"kept by a host of the shared path still":  {by(at(3, shared), 1), by(at(3, shared), 1), false},
		"new flows go by the shared path":          {by(at(9, red), 1), by(at(9, none), 1), true},
		"new flows go to another one of its hosts": {by(at(9, red), 1), by(at(9, none), 2), false},
	} {
		of, endpoints := keptOnlyBefore(c.before, c.next)
		_, moves := of.endpoints[pod]
		require.Equal(t, c.moves, moves, name)
		if e, _ := endpoints.Get(plan.Endpoint{Addr: pod}); moves {
			had, _ := c.before.Endpoints.Get(plan.Endpoint{Addr: pod})
			require.NotEqual(t, had.Kept, e.Kept, name)
		}
	}
}
