package plan_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

const worlds = 120

// world invents a cluster with a few defects, as node n0 sees it. The same seed makes the same cluster.
func world(seed uint64) plan.Snapshot {
	r := rand.New(rand.NewPCG(seed, 0))
	c := config.Defaults()
	c.BGP.ASN = 64512
	c.Status.ServiceCounters = seed%2 == 0
	c.AllowUnlisted = chance(r, 0.5)
	c.OnNoPath = pick(r, config.NoPathDrop, config.NoPathAllow)
	c.Steering.Mode = pick(r, config.SteeringAuto, config.SteeringDirect, config.SteeringVXLAN)
	c.Marks.Mask = pick[uint32](r, 0x3f00, 0xf000)
	c.ClusterCIDRs = prefixes("10.250.0.0/16", "10.251.0.0/16", "fd50::/16")
	peer := config.Peer{Address: addr("10.1.0.1"), ASN: 64601}
	c.Networks = append(c.Networks,
		config.Network{Name: "red", VRF: "vrf-red", Table: 1001, Interfaces: []config.Interface{{Name: "eth2"}}, Peers: []config.Peer{peer}},
		config.Network{Name: "blue", VRF: "vrf-blue", Peers: []config.Peer{peer}, Namespaces: &metav1.LabelSelector{MatchLabels: map[string]string{"blue": "yes"}}},
		config.Network{Name: "green", Table: 100, OnNoPath: config.NoPathDrop})
	s := plan.Snapshot{Node: "n0", Config: c, Objects: cluster.Objects{
		Namespaces:   cluster.MapOf(map[string]cluster.Namespace{"good": {Labels: map[string]string{"blue": "yes"}}, "other": {}}),
		ServiceCIDRs: prefixes("10.96.0.0/16", "fd96::/108"),
	}}
	for i := range 2 + r.IntN(4) {
		as := []netip.Addr{addr(fmt.Sprintf("10.0.%d.1%d", r.IntN(8)/7, i)), addr(fmt.Sprintf("fd00::1%d", i))}
		if chance(r, 0.1) {
			as[0] = addr("10.0.0.10") // an address of n0 too
		}
		s.Objects.Nodes = s.Objects.Nodes.With(fmt.Sprint("n", i), cluster.Node{
			Ready: chance(r, 0.9), Addresses: as, Internal: as,
			PodCIDRs: prefixes(fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd44:%d::/64", i)),
		})
	}
	s.Facts = plan.Facts{
		Links: []plan.Link{
			{Name: "eth1", Up: true, MTU: 1500, Addrs: prefixes("10.0.0.10/24", "fd00::10/64")},
			{Name: "eth2", Up: true, MTU: 1500, Master: "vrf-red", Addrs: prefixes("10.1.0.10/24")},
			{Name: "eth3", Up: true, MTU: 1500, Master: "vrf-blue", Addrs: prefixes("10.2.0.10/24")},
			{Name: "vrf-red", Up: true, MTU: 65575, VRFTable: pick[uint32](r, 1001, 1001, 9)},
			{Name: "vrf-dmz", Up: true, MTU: 65575, VRFTable: 1009},
		},
		EgressHook: chance(rand.New(rand.NewPCG(seed, 13)), 0.5),
		ARP:        chance(rand.New(rand.NewPCG(seed, 14)), 0.8),
		Paths:      map[plan.PathKey]plan.PathID{{Kind: plan.PathNetwork, Name: "red"}: plan.PathID(r.IntN(9)), {Kind: plan.PathSteer, Name: "n1"}: plan.PathID(r.IntN(9))},
		Routed:     map[uint32]plan.Families{254: {IPv4: true}, 1001: {IPv4: true, IPv6: chance(r, 0.5)}},
	}
	if chance(r, 0.7) {
		s.Facts.Links = append(s.Facts.Links, plan.Link{Name: "vrf-blue", Up: true, MTU: 65575, VRFTable: 1002})
	}
	for _, network := range []string{"red", "blue", "gone"} {
		s.Learned = append(s.Learned, plan.NetworkRoutes{Network: network, Routes: sorted.Of([]plan.Route{
			{Dst: prefixes("0.0.0.0/0")[0], NextHops: []plan.NextHop{{Gateway: addr("10.1.0.1"), Device: "eth2"}}},
			{Dst: prefixes("192.0.2.0/24")[0], NextHops: []plan.NextHop{{Gateway: addr("10.1.0.2"), Device: "eth2"}}},
		}...)})
	}
	for i := range 1 + r.IntN(8) {
		addService(r, &s.Objects, cluster.Key{Namespace: pick(r, "good", "good", "other"), Name: fmt.Sprint("s", i)}, time.Unix(int64(r.IntN(5)), 0))
	}
	s.Hosts = election.Elect(s.Objects, nil)
	if also := rand.New(rand.NewPCG(seed, 11)); chance(also, 0.6) {
		c.Hold, s.Objects.Pods, s.Objects.PodsKnown = someHold(also), somePods(also), true
	}
	return s
}

// addService adds an EgressService, its Service and endpoints, more or less right.
func addService(r *rand.Rand, o *cluster.Objects, key cluster.Key, created time.Time) {
	o.EgressServices = o.EgressServices.With(key, cluster.EgressService{
		Created: created, SourceIPBy: pick(r, cluster.SourceIPByLoadBalancer, cluster.SourceIPByLoadBalancer, cluster.SourceIPByNetwork),
		Network: pick(r, "red", "red", "", "blue", "green", "vrf-dmz", "vrf-blue", "77", "78", "79", "254", "no/vrf"),
	})
	if chance(r, 0.95) {
		service := cluster.Service{LoadBalancer: chance(r, 0.95), LocalTraffic: chance(r, 0.2), ClusterIPs: []netip.Addr{addr(fmt.Sprint("10.96.0.", r.IntN(20)+1))}}
		for range r.IntN(4) {
			service.Ingress = append(service.Ingress, cluster.Ingress{IP: pick(r, fmt.Sprint("203.0.113.", r.IntN(9)), fmt.Sprint("2001:db8::", r.IntN(9)), pick(r, garbage...))})
		}
		o.Services = o.Services.With(key, service)
	}
	for range r.IntN(8) {
		n := r.IntN(5)
		e := cluster.Endpoint{Address: pick(r, fmt.Sprintf("10.244.%d.%d", n, r.IntN(20)), fmt.Sprintf("fd44:%d::%d", n, r.IntN(20))), Node: fmt.Sprint("n", n)}
		if chance(r, 0.1) {
			e.Address = pick(r, garbage...)
		}
		if chance(r, 0.1) {
			e.Node = pick(r, "", "n0", "unknown")
		}
		o.Endpoints = o.Endpoints.With(key, append(o.Endpoints.At(key), e))
	}
}

// garbage holds addresses that no object should have. The last four can be ingress IPs, in some worlds.
var garbage = []string{
	"", "x", "10.0.0.10", "10.96.0.1", "127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "169.254.0.1", "fe80::1", "fe80::1%eth1",
	"::ffff:10.244.0.1", "255.255.255.255", "10.244.0.0/24", "10.0.0.11", "203.0.113.1", "10.1.0.1", "192.0.2.1",
}

func chance(r *rand.Rand, p float64) bool { return r.Float64() < p }

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// shuffled returns the same snapshot in another order.
func shuffled(r *rand.Rand, s plan.Snapshot) plan.Snapshot {
	s.Facts.Links = shuffle(r, s.Facts.Links)
	s.Learned = shuffle(r, s.Learned)
	c := *s.Config
	c.Networks, c.ClusterCIDRs = shuffle(r, c.Networks), shuffle(r, c.ClusterCIDRs)
	s.Config = &c
	o := s.Objects
	o.ServiceCIDRs = shuffle(r, o.ServiceCIDRs)
	for key, endpoints := range o.Endpoints.All() {
		o.Endpoints = o.Endpoints.With(key, shuffle(r, endpoints))
	}
	s.Objects, s.Hosts = o, election.Elect(o, nil)
	return s
}

func shuffle[T any](r *rand.Rand, all []T) []T {
	all = slices.Clone(all)
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func asJSON(t *testing.T, s plan.Snapshot) string {
	t.Helper()
	desired, problems := plan.Build(s)
	data, err := json.MarshalIndent(map[string]any{"plan": desired, "problems": problems}, "", " ")
	require.NoError(t, err)
	return string(data)
}

// requireSame shows the first line that differs, instead of two long texts.
func requireSame(t *testing.T, want, got string, format string, args ...any) {
	t.Helper()
	if want == got {
		return
	}
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		require.Equal(t, a[max(i-3, 0):i+1], b[max(i-3, 0):i+1], fmt.Sprintf(format, args...))
	}
	require.Len(t, b, len(a), fmt.Sprintf(format, args...))
}

// The order of a snapshot's parts does not matter.
func TestSameInputSamePlan(t *testing.T) {
	for seed := range uint64(worlds) {
		s := world(seed)
		before, err := json.Marshal(s.Config)
		require.NoError(t, err)
		want := asJSON(t, s)
		requireSame(t, want, asJSON(t, s), "seed %d", seed)
		requireSame(t, want, asJSON(t, shuffled(rand.New(rand.NewPCG(seed, 1)), s)), "seed %d, shuffled", seed)
		after, err := json.Marshal(s.Config)
		require.NoError(t, err)
		require.Equal(t, string(before), string(after), "seed %d: the snapshot was changed", seed)
	}
}

// Plans have the properties that the appliers rely on.
func TestPlanHangsTogether(t *testing.T) {
	for seed := range uint64(worlds) {
		s := world(seed)
		p, _ := plan.Build(s)
		d := p.DataPlane
		paths := map[plan.PathID]plan.Path{}
		tables := map[uint32]bool{}
		for _, path := range d.Paths {
			require.NotZero(t, path.ID, "seed %d", seed)
			require.LessOrEqual(t, path.ID, d.Marks.MaxPath(), "seed %d", seed)
			require.NotContains(t, paths, path.ID, "seed %d", seed)
			paths[path.ID] = path
			tables[path.Table] = true
		}
		seen := map[netip.Addr]bool{}
		for e := range d.Endpoints.All() {
			require.False(t, seen[e.Addr], "seed %d: %s twice", seed, e.Addr)
			require.True(t, slices.ContainsFunc(d.Pods, func(r netip.Prefix) bool { return r.Contains(e.Addr) }), "seed %d: %s is no pod", seed, e.Addr)
			seen[e.Addr] = true
			if e.Path == 0 {
				require.False(t, e.Source.IsValid(), "seed %d: %s is dropped, with a source", seed, e.Addr)
				continue
			}
			require.Contains(t, paths, e.Path, "seed %d: path of %s", seed, e.Addr)
			require.NotZero(t, paths[e.Path].Table, "seed %d: path of %s", seed, e.Addr)
			if e.Source.IsValid() {
				require.Equal(t, e.Addr.BitLen(), e.Source.BitLen(), "seed %d", seed)
			}
		}
		uplinks := map[string]bool{}
		for _, u := range d.Uplinks {
			require.False(t, uplinks[u.Device], "seed %d: uplink %s twice", seed, u.Device)
			uplinks[u.Device] = true
			require.Contains(t, paths, u.Path, "seed %d: path of uplink %s", seed, u.Device)
		}
		for _, r := range p.Rules {
			require.True(t, r.Unreachable || r.Table == 254 || tables[r.Table], "seed %d: rule to table %d", seed, r.Table)
			require.Zero(t, r.Mark&^d.Marks.Mask, "seed %d: foreign mark bits", seed)
		}
		type destination struct {
			table  uint32
			dst    netip.Prefix
			metric uint32
		}
		routes := map[destination]bool{}
		for r := range p.Routes.All() {
			k := destination{r.Table, r.Dst, r.Metric}
			require.False(t, routes[k], "seed %d: route %v twice", seed, k)
			routes[k] = true
			require.NotEqual(t, r.Unreachable, len(r.NextHops) > 0, "seed %d", seed)
		}
		for _, list := range [][]netip.Prefix{d.Cluster, d.Pods} {
			for i, a := range list {
				require.Equal(t, a, a.Masked(), "seed %d", seed)
				require.False(t, i > 0 && list[i-1].Overlaps(a), "seed %d: %s and %s overlap", seed, list[max(i, 1)-1], a)
			}
		}
		requireHeld(t, s, p)
		announced := map[netip.Prefix]bool{}
		for _, speaker := range p.Speakers {
			for announcement := range speaker.Announce.All() {
				a := announcement.Prefix
				require.True(t, a.IsSingleIP(), "seed %d", seed)
				require.False(t, announced[a], "seed %d: %s announced in two networks", seed, a)
				announced[a] = true
				require.False(t, slices.ContainsFunc(d.Cluster, a.Overlaps), "seed %d: %s is inside the cluster", seed, a)
			}
		}
	}
}

// requireHeld compares the addresses that pass with those that the objects permit, one by one.
func requireHeld(t *testing.T, s plan.Snapshot, p *plan.NodePlan) {
	t.Helper()
	d := p.DataPlane
	wanted := len(s.Config.Hold) > 0 || s.Config.Firewall.Hold && s.Objects.EgressFirewalls.Len() > 0
	require.Equal(t, wanted && s.Objects.PodsKnown, d.Hold)
	if !d.Hold {
		require.Zero(t, d.Let.Len()+p.Waiting.Len())
		return
	}
	free, bound := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for key, pod := range s.Objects.Pods.All() {
		selected := slices.ContainsFunc(s.Config.Hold, func(h config.Hold) bool {
			has := func(selector *metav1.LabelSelector, labels map[string]string) bool {
				for name, value := range cmp.Or(selector, &metav1.LabelSelector{}).MatchLabels {
					if labels[name] != value {
						return false
					}
				}
				return true
			}
			return has(h.Namespaces, s.Objects.Namespaces.At(key.Namespace).Labels) && has(h.Pods, pod.Labels)
		})
		for _, a := range pod.Addresses {
			if pod.Node == s.Node && !pod.HostNetwork && !pod.Ended {
				free[a], bound[a] = free[a] || !selected, bound[a] || selected
			}
		}
	}
	for n := range 20 {
		for _, a := range []netip.Addr{addr(fmt.Sprintf("10.244.0.%d", n)), addr(fmt.Sprintf("fd44:0::%d", n))} {
			_, let := d.Let.Get(plan.Address{Addr: a})
			require.False(t, free[a] && !bound[a] && !let, "%s is not let go", a)
			if let && (!free[a] || bound[a]) { // an endpoint that needs no path
				require.True(t, slices.ContainsFunc(slices.Collect(maps.Values(maps.Collect(s.Objects.Endpoints.All()))), func(all []cluster.Endpoint) bool {
					return slices.ContainsFunc(all, func(e cluster.Endpoint) bool { return sameAddr(e.Address, a) })
				}), "%s is let go", a)
				_, selected := d.Endpoints.Get(plan.Endpoint{Addr: a})
				require.False(t, selected, "%s is let go", a)
			}
			_, waits := p.Waiting.Get(plan.Waiting{Addr: a})
			require.Equal(t, bound[a], waits, "%s", a)
		}
	}
}

func sameAddr(text string, a netip.Addr) bool {
	b, err := netip.ParseAddr(text)
	return err == nil && a == b
}

// fate holds the plan's results for the pods and ingress IPs of objects outside namespace broken. An object that cannot
// serve has none.
func fate(s plan.Snapshot) map[string]string {
	p, problems := plan.Build(s)
	unable := map[string]bool{}
	for _, problem := range problems {
		if problem.Reason == plan.ReasonNetworkNotFound || problem.Reason == plan.ReasonNetworkNotAllowed {
			unable[problem.Object] = true
		}
	}
	names := map[plan.PathID]string{0: "drop"}
	for _, path := range p.DataPlane.Paths {
		names[path.ID] = fmt.Sprint(path.Key, path.Table != 0)
	}
	of := map[string]string{}
	others := map[netip.Addr]bool{}
	for key, endpoints := range s.Objects.Endpoints.All() {
		for _, e := range endpoints {
			if a, err := netip.ParseAddr(e.Address); err == nil && key.Namespace != "broken" {
				others[a] = true
			}
		}
	}
	for e := range p.DataPlane.Endpoints.All() {
		if others[e.Addr] {
			way := names[e.Path]
			for _, path := range p.DataPlane.Paths { // a host may have a path of its own or share one
				if path.ID == e.Path && path.Key.Steers() {
					way = "steer"
				}
			}
			of[e.Addr.String()] = fmt.Sprint(way, e.Source)
		}
	}
	for service := range p.Services.All() {
		switch {
		case service.Key.Namespace == "broken":
		case unable[service.Key.String()] || service.Host == "" || !service.Masquerade() && len(service.IngressIPs) == 0:
			of[service.Key.String()] = "waits"
		default:
			of[service.Key.String()] = fmt.Sprint(service.Host, service.IngressIPs, service.Endpoints, service.Announced)
		}
	}
	return of
}

// requireInForce requires everything in force to be unchanged. Addresses that only waited may go to a service that can serve
// them.
func requireInForce(t *testing.T, want, got map[string]string, format string, args ...any) {
	t.Helper()
	for what, becomes := range want {
		if !strings.HasPrefix(becomes, "drop") && becomes != "waits" {
			require.Equal(t, becomes, got[what], "%s of %s", what, fmt.Sprintf(format, args...))
		}
	}
}

// A broken object that comes later changes nothing for the others, with any defect.
func TestBrokenObjectHarmsNoOther(t *testing.T) {
	key := cluster.Key{Namespace: "broken", Name: "b"}
	all := func(endpoints cluster.Map[cluster.Key, []cluster.Endpoint]) (all []cluster.Endpoint) {
		for _, k := range slices.SortedFunc(endpoints.Keys(), cluster.Key.Compare) {
			all = append(all, endpoints.At(k)...)
		}
		return all
	}
	var want map[string]string
	breakages := map[string]func(o *cluster.Objects, e *cluster.EgressService, s *cluster.Service){
		"no Service": func(o *cluster.Objects, _ *cluster.EgressService, _ *cluster.Service) {
			o.Services = o.Services.Without(key)
		},
		"not LoadBalancer": func(_ *cluster.Objects, _ *cluster.EgressService, s *cluster.Service) { s.LoadBalancer = false },
		"selector": func(_ *cluster.Objects, e *cluster.EgressService, _ *cluster.Service) {
			e.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}}
		},
		"network":   func(_ *cluster.Objects, e *cluster.EgressService, _ *cluster.Service) { e.Network = "nowhere" },
		"table":     func(_ *cluster.Objects, e *cluster.EgressService, _ *cluster.Service) { e.Network = "254" },
		"our table": func(_ *cluster.Objects, e *cluster.EgressService, _ *cluster.Service) { e.Network = "794601" },
		"no ingress, another network": func(_ *cluster.Objects, e *cluster.EgressService, s *cluster.Service) {
			e.Network, s.Ingress = "12", nil
		},
		"not allowed": func(_ *cluster.Objects, e *cluster.EgressService, _ *cluster.Service) { e.Network = "vrf-blue" },
		"no ingress":  func(_ *cluster.Objects, _ *cluster.EgressService, s *cluster.Service) { s.Ingress = nil },
		"bad ingress": func(_ *cluster.Objects, _ *cluster.EgressService, s *cluster.Service) {
			s.Ingress = nil
			for _, text := range garbage[:len(garbage)-4] {
				s.Ingress = append(s.Ingress, cluster.Ingress{IP: text, Hostname: "lb.example.com"})
			}
		},
		"no endpoints": func(o *cluster.Objects, _ *cluster.EgressService, _ *cluster.Service) {
			o.Endpoints = o.Endpoints.Without(key)
		},
		"bad endpoints": func(o *cluster.Objects, _ *cluster.EgressService, _ *cluster.Service) {
			o.Endpoints = o.Endpoints.With(key, nil)
			for _, text := range garbage {
				o.Endpoints = o.Endpoints.With(key, append(o.Endpoints.At(key), cluster.Endpoint{Address: text, Node: "n0"}))
			}
		},
		"stolen endpoints": func(o *cluster.Objects, _ *cluster.EgressService, _ *cluster.Service) {
			var served []cluster.Endpoint // a waiting address goes to the first service that can serve it
			for _, e := range all(o.Endpoints) {
				if becomes, is := want[e.Address]; is && !strings.HasPrefix(becomes, "drop") {
					served = append(served, e)
				}
			}
			o.Endpoints = o.Endpoints.With(key, served)
		},
		"stolen ingress": func(o *cluster.Objects, e *cluster.EgressService, s *cluster.Service) {
			e.Network, s.Ingress = "green", nil
			for _, k := range slices.SortedFunc(o.Services.Keys(), cluster.Key.Compare) {
				if n := o.EgressServices.At(k).Network; n != "green" && want[k.String()] != "waits" {
					s.Ingress = append(s.Ingress, o.Services.At(k).Ingress...)
				}
			}
		},
		"shared ingress": func(o *cluster.Objects, _ *cluster.EgressService, s *cluster.Service) {
			for _, k := range slices.SortedFunc(o.Services.Keys(), cluster.Key.Compare) {
				if o.EgressServices.At(k).Network == "red" {
					s.Ingress = append(s.Ingress, o.Services.At(k).Ingress...)
				}
			}
		},
		"sourceIPBy": func(_ *cluster.Objects, e *cluster.EgressService, _ *cluster.Service) { e.SourceIPBy = "Magic" },
	}
	names := slices.Sorted(maps.Keys(breakages))
	for seed := range uint64(10 * worlds) { // each world meets a quarter of the breakages
		s := world(seed)
		s.Facts.Paths = nil // an id in force for the broken one only may be the last
		for k, e := range s.Objects.EgressServices.All() {
			e.Status.Host = s.Hosts[election.ServiceSeat(k)].Host // only the status records which host it had before the broken one came
			s.Objects.EgressServices = s.Objects.EgressServices.With(k, e)
		}
		want = fate(s)
		for i := int(seed % 4); i < len(names); i += 4 {
			name, spoil := names[i], breakages[names[i]]
			o := s.Objects
			e := cluster.EgressService{Created: time.Unix(99, 0), SourceIPBy: cluster.SourceIPByLoadBalancer, Network: "red"}
			service := cluster.Service{LoadBalancer: true, ClusterIPs: []netip.Addr{addr("10.96.9.9")}, Ingress: []cluster.Ingress{{IP: "203.0.113.99"}}}
			o.Endpoints = o.Endpoints.With(key, []cluster.Endpoint{{Address: "10.244.0.99", Node: "n0"}, {Address: "10.244.1.99", Node: "n1"}})
			o.Services = o.Services.With(key, service)
			spoil(&o, &e, &service)
			o.EgressServices = o.EgressServices.With(key, e)
			if _, ok := o.Services.Get(key); ok {
				o.Services = o.Services.With(key, service)
			}
			broken := s
			broken.Objects, broken.Hosts = o, election.Elect(o, nil)
			for k, c := range s.Hosts { // the standby depends on the number of services of each node
				choice := broken.Hosts[k]
				choice.Standby = c.Standby
				broken.Hosts[k] = choice
			}
			requireInForce(t, want, fate(broken), "seed %d: %s", seed, name)
			_, problems := plan.Build(broken)
			require.True(t, slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Object == key.String() }) || name == "stolen endpoints" || name == "stolen ingress" || name == "shared ingress",
				"seed %d: %s is not told", seed, name)

			// An object that cannot serve changes nothing in force, at any age and with any names in it.
			if !slices.Contains([]string{"no Service", "not LoadBalancer", "selector", "network", "table", "our table", "not allowed", "no ingress", "no ingress, another network", "bad ingress"}, name) {
				continue
			}
			if name == "network" && s.Config.AllowUnlisted {
				continue // without reports, it may be a network of another node
			}
			e.Created = time.Unix(-1, 0)
			o.EgressServices = o.EgressServices.With(key, e)
			o.Endpoints = o.Endpoints.With(key, all(s.Objects.Endpoints))
			if len(service.Ingress) == 1 && service.LoadBalancer && name != "no Service" && name != "selector" {
				for _, k := range slices.SortedFunc(s.Objects.Services.Keys(), cluster.Key.Compare) {
					service.Ingress = append(service.Ingress, s.Objects.Services.At(k).Ingress...)
				}
				o.Services = o.Services.With(key, service)
			}
			broken.Objects, broken.Hosts = o, maps.Clone(broken.Hosts)
			seat := election.ServiceSeat(key)
			broken.Hosts[seat] = election.Elect(o, nil)[seat]
			requireInForce(t, want, fate(broken), "seed %d: an older one, %s", seed, name)
		}
	}
}

// FuzzBuild plans for objects of every kind of garbage.
func FuzzBuild(f *testing.F) {
	f.Add(uint64(1), "red", "10.244.0.1", "n0", "203.0.113.1", "eth1", uint32(0x3f00), 1500)
	f.Add(uint64(2), "", "::ffff:1.2.3.4", "", "", "", uint32(0xf0000000), -1)
	f.Add(uint64(3), "4294967295", "fe80::1%x", "n9", "fd00::1", "vrf-red", uint32(0xf), 70000)
	f.Fuzz(func(t *testing.T, seed uint64, network, endpoint, node, ingress, device string, mask uint32, mtu int) {
		s := world(seed)
		if mask < 0xf || mask&(mask+mask&-mask) != 0 {
			mask = 0x3f00 // the configuration refuses others
		}
		s.Config.Marks.Mask = mask
		key := cluster.Key{Namespace: node, Name: endpoint}
		s.Objects.EgressServices = s.Objects.EgressServices.With(key, cluster.EgressService{Network: network, SourceIPBy: cluster.SourceIPBy(device)})
		s.Objects.Services = s.Objects.Services.With(key, cluster.Service{LoadBalancer: true, ClusterIPs: []netip.Addr{{}}, Ingress: []cluster.Ingress{{IP: ingress}, {}}})
		s.Objects.Endpoints = s.Objects.Endpoints.With(key, []cluster.Endpoint{{Address: endpoint, Node: node}, {}})
		s.Objects.Nodes = s.Objects.Nodes.With(node, cluster.Node{Ready: true, Internal: []netip.Addr{{}}, Addresses: []netip.Addr{{}}, PodCIDRs: []netip.Prefix{{}}})
		s.Facts.Links = append(slices.DeleteFunc(s.Facts.Links, func(l plan.Link) bool { return l.Name == device }), plan.Link{Name: device, MTU: mtu, Master: network, VRFTable: mask, Addrs: []netip.Prefix{{}}})
		for _, s.Node = range []string{"n0", node, ""} {
			s.Hosts = election.Elect(s.Objects, nil)
			requireSame(t, asJSON(t, s), asJSON(t, shuffled(rand.New(rand.NewPCG(seed, 1)), s)), "shuffled")
			s.Hosts[election.ServiceSeat(key)] = election.Choice{Host: node}
			plan.Build(s)
		}
	})
}
