package plan_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/plan"
)

// somePorts returns a few ports, of which different rules have the same ones.
func somePorts(r *rand.Rand) (all []cluster.FirewallPort) {
	for range r.IntN(3) {
		all = append(all, cluster.FirewallPort{Protocol: pick[uint8](r, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP), Number: pick[uint16](r, 53, 80, 443)})
	}
	return all
}

// someEgressFirewall returns an EgressFirewall of a few rules, so that namespaces have equal ones.
func someEgressFirewall(r *rand.Rand) (e cluster.EgressFirewall) {
	for i := range r.IntN(6) {
		rule := cluster.FirewallRule{Number: i + 1, Deny: chance(r, 0.5), Ports: somePorts(r)}
		switch {
		case chance(r, 0.3):
			rule.Name = pick(r, "www.example.com", "*.shop.example", "a.example.com")
		case chance(r, 0.2):
			rule.Nodes = labels.SelectorFromSet(pick(r, nil, map[string]string{"rack": "1"}, map[string]string{"rack": "2"}))
		case chance(r, 0.9):
			rule.To = prefixes(pick(r, "203.0.113.0/24", "203.0.113.64/26", "203.0.113.0/25", "0.0.0.0/0", "10.0.0.0/8", "255.255.255.0/24", "2001:db8::/32", "2001:db8:1::/48", "::/0", "fd00::/8"))[0]
		}
		e.Rules = append(e.Rules, rule)
	}
	e.Given = len(e.Rules)
	return e
}

// named holds the addresses of the names that someEgressFirewall picks.
var named = map[string][]netip.Addr{
	"www.example.com": {addr("203.0.113.9"), addr("203.0.113.65"), addr("1::")},
	"*.shop.example":  {addr("203.0.113.9"), addr("255.255.255.254"), addr("2001:db8::")},
}

// changeEgressFirewall adds, changes or removes the EgressFirewall of a namespace.
func (e *evolving) changeEgressFirewall() {
	key := cluster.Key{Namespace: pick(e.Rand, "good", "other", "gone"), Name: cluster.NameEgressFirewall}
	o := &e.Objects
	if o.EgressFirewalls = o.EgressFirewalls.With(key, someEgressFirewall(e.Rand)); chance(e.Rand, 0.4) {
		o.EgressFirewalls = o.EgressFirewalls.Without(key)
	}
	e.changed.Add(cluster.KindEgressFirewall.ID(key))
}

// denied reports whether a plan denies a connection from a pod.
func denied(d *plan.DataPlane, from, to netip.Addr, port cluster.FirewallPort) bool {
	f, firewalled := d.Firewalled.Get(firewall.Firewalled{Addr: from})
	if !firewalled || slices.ContainsFunc(d.Inside, func(p netip.Prefix) bool { return p.Contains(to) }) {
		return false
	}
	i := slices.IndexFunc(d.Policies, func(p firewall.Policy) bool { return p.ID == f.Policy })
	return d.Policies[i].Denies(to, port, func(_ firewall.PolicyID, stretch int, a netip.Addr) bool {
		return slices.ContainsFunc(d.Policies[i].Stretches[stretch].Names, func(n string) bool { return slices.Contains(named[n], a) })
	})
}

// byRules reports whether rules, read one after another, deny a connection.
func byRules(s *plan.Snapshot, rules []cluster.FirewallRule, to netip.Addr, port cluster.FirewallPort) bool {
	for _, r := range rules {
		concerns := r.Nodes == nil && r.Name == "" && (!r.To.IsValid() || r.To.Contains(to)) || slices.Contains(named[r.Name], to)
		for _, n := range s.Objects.Nodes.All() {
			concerns = concerns || r.Nodes != nil && r.Nodes.Matches(labels.Set(n.Labels)) && slices.Contains(n.Addresses, to)
		}
		if concerns && (len(r.Ports) == 0 || slices.Contains(r.Ports, port)) {
			return r.Deny
		}
	}
	return false
}

// firewalledWorld is a world with one pod of namespace good on node n0.
func firewalledWorld(seed uint64, from ...netip.Addr) plan.Snapshot {
	s := world(seed)
	s.Node, s.Objects.PodsKnown = "n0", true
	s.Objects.Pods = cluster.MapOf(map[cluster.Key]cluster.Pod{{Namespace: "good", Name: "p"}: {Node: "n0", Addresses: from}})
	return s
}

// TestFirstFirewallRuleCounts compares the policies of random rules with the rules themselves, read one after another, at the ends of
// their destinations and around them.
func TestFirstFirewallRuleCounts(t *testing.T) {
	stretches := 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 4))
		from := []netip.Addr{addr("10.244.0.7"), addr("fd44:0::7")}
		s := firewalledWorld(seed, from...)
		e := someEgressFirewall(r)
		for range r.IntN(30) {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(r.IntN(4) * 85), byte(r.IntN(3)), byte(r.IntN(256))}), r.IntN(33)).Masked()
			e.Rules = append(e.Rules, cluster.FirewallRule{Deny: chance(r, 0.5), To: p, Ports: somePorts(r)})
		}
		if seed%50 == 0 { // so many ports that they do not fit into one stretch
			for n := range 700 {
				to := netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(n >> 4), byte(n)}), 8+n%25).Masked()
				e.Rules = append(e.Rules, cluster.FirewallRule{Deny: n%3 == 0, To: to, Ports: []cluster.FirewallPort{{Protocol: unix.IPPROTO_TCP, Number: uint16(1 + n%431)}}})
			}
		}
		s.Objects.EgressFirewalls = cluster.MapOf(map[cluster.Key]cluster.EgressFirewall{{Namespace: "good", Name: "default"}: e})
		desired, _ := plan.Build(s)
		d := &desired.DataPlane
		for _, p := range d.Policies {
			stretches = max(stretches, len(p.Stretches))
			for _, of := range p.Stretches {
				require.LessOrEqual(t, len(of.Ranges), 2*(len(e.Rules)+4*s.Objects.Nodes.Len()))
				require.True(t, slices.IsSortedFunc(of.Ranges, func(x, y firewall.Range) int { return x.Last.Compare(y.First) }))
			}
		}
		to := []netip.Addr{addr("0.0.0.1"), addr("255.255.255.254"), addr("1::"), addr("2001:db8::"), addr("ffee:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), addr("203.0.113.9"), addr("203.0.113.65")}
		for _, rule := range e.Rules {
			if rule.To.IsValid() {
				to = append(to, rule.To.Addr(), cluster.LastAddr(rule.To), rule.To.Addr().Prev(), cluster.LastAddr(rule.To).Next())
			}
		}
		for _, n := range s.Objects.Nodes.All() {
			to = append(to, n.Addresses...)
		}
		for i, a := range to {
			if !a.IsValid() || slices.ContainsFunc(d.Inside, func(p netip.Prefix) bool { return p.Contains(a) }) {
				continue
			}
			pod := from[map[bool]int{true: 0, false: 1}[a.Is4()]]
			for _, port := range []cluster.FirewallPort{
				{Protocol: unix.IPPROTO_TCP, Number: 443},
				{Protocol: unix.IPPROTO_TCP, Number: 80},
				{Protocol: unix.IPPROTO_UDP, Number: 53},
				{Protocol: unix.IPPROTO_UDP, Number: 443},
				{Protocol: unix.IPPROTO_SCTP, Number: 80},
				{Protocol: unix.IPPROTO_ICMP},
				{Protocol: unix.IPPROTO_TCP, Number: uint16(1 + i%431)},
			} {
				require.Equal(t, byRules(&s, e.Rules, a, port), denied(d, pod, a, port), "seed %d, to %s, %v, rules %v", seed, a, port, e.Rules)
			}
		}
	}
	require.Greater(t, stretches, 1)
}

// TestEqualFirewallsShareAPolicy expects one policy for 2,000 namespaces with equal rules, however they are written, and no change of
// it when another one comes. While two Pods are said to have one address, it may begin nothing that either of their policies denies.
func TestEqualFirewallsShareAPolicy(t *testing.T) {
	s := firewalledWorld(1)
	deny := func(to string) cluster.FirewallRule { return cluster.FirewallRule{Deny: true, To: prefixes(to)[0]} }
	written := []cluster.EgressFirewall{{Rules: []cluster.FirewallRule{deny("203.0.113.0/24")}}, {Rules: []cluster.FirewallRule{deny("203.0.113.0/25"), deny("203.0.113.128/25")}}}
	pods, firewalls := map[cluster.Key]cluster.Pod{}, map[cluster.Key]cluster.EgressFirewall{}
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}) }
	for i := range 2000 {
		namespace := fmt.Sprint("team-", i)
		pods[cluster.Key{Namespace: namespace, Name: "p"}] = cluster.Pod{Node: "n0", Addresses: []netip.Addr{at(i)}}
		firewalls[cluster.Key{Namespace: namespace, Name: "default"}] = written[i%2]
	}
	s.Objects.Pods, s.Objects.EgressFirewalls = cluster.MapOf(pods), cluster.MapOf(firewalls)
	var p plan.Planner
	before, _ := p.Plan(s, cluster.Everything())
	require.Len(t, before.DataPlane.Policies, 1)
	require.Equal(t, 2000, before.DataPlane.Firewalled.Len())

	other := cluster.Key{Namespace: "team-7", Name: "default"}
	s.Objects.EgressFirewalls = s.Objects.EgressFirewalls.With(other, cluster.DenyAll())
	var changed cluster.Changed
	changed.Add(cluster.KindEgressFirewall.ID(other))
	after, _ := p.Plan(s, changed)
	require.Len(t, after.DataPlane.Policies, 2)
	require.Contains(t, after.DataPlane.Policies, before.DataPlane.Policies[0])
	differ := 0
	for range before.DataPlane.Firewalled.Changes(after.DataPlane.Firewalled) {
		differ++
	}
	require.Equal(t, 1, differ)

	second := cluster.Key{Namespace: "elsewhere", Name: "q"}
	s.Objects.Pods = s.Objects.Pods.With(second, cluster.Pod{Node: "n0", Addresses: []netip.Addr{at(8)}})
	changed = cluster.Changed{}
	changed.AddPod(second)
	after, _ = p.Plan(s, changed)
	web := cluster.FirewallPort{Protocol: unix.IPPROTO_TCP, Number: 443}
	require.True(t, denied(&after.DataPlane, at(8), addr("198.51.100.1"), web), "one of the Pods has ended, and nothing shows which")
	require.True(t, denied(&after.DataPlane, at(8), addr("203.0.113.1"), web))
	require.False(t, denied(&after.DataPlane, at(9), addr("198.51.100.1"), web))
}

// TestFirewallSparesTheInside expects no denial of pods and Services, and one of nodes, even if clusterCIDRs lists them.
func TestFirewallSparesTheInside(t *testing.T) {
	s := firewalledWorld(1, addr("10.244.0.7"), addr("fd44:0::7"))
	c := *s.Config
	c.ClusterCIDRs, s.Config = prefixes("10.0.0.0/8", "fd00::/16"), &c
	s.Objects.EgressFirewalls = cluster.MapOf(map[cluster.Key]cluster.EgressFirewall{{Namespace: "good", Name: "default"}: cluster.DenyAll()})
	desired, _ := plan.Build(s)
	web := cluster.FirewallPort{Protocol: unix.IPPROTO_TCP, Number: 443}
	nodes := 0
	for _, n := range s.Objects.Nodes.All() {
		for _, a := range n.Addresses {
			from := "10.244.0.7"
			if a.Is6() {
				from = "fd44:0::7"
			}
			require.True(t, denied(&desired.DataPlane, addr(from), a, web), a)
			nodes++
		}
	}
	require.Positive(t, nodes)
	for _, a := range []string{"10.244.0.1", "10.244.3.9", "10.96.0.1", "10.1.2.3", "169.254.20.10", "224.0.0.5", "127.0.0.1"} {
		require.False(t, denied(&desired.DataPlane, addr("10.244.0.7"), addr(a), web), a)
	}
	require.True(t, denied(&desired.DataPlane, addr("10.244.0.7"), addr("198.51.100.1"), web))
}

// TestFirewalledPodOutsideRanges reports a pod with a policy that is in no range of pods: those that it asks may be in none either.
func TestFirewalledPodOutsideRanges(t *testing.T) {
	key := cluster.Key{Namespace: "good", Name: "default"}
	deny := cluster.MapOf(map[cluster.Key]cluster.EgressFirewall{key: cluster.DenyAll()})
	of := func(all []cluster.Problem) []cluster.Problem {
		return slices.DeleteFunc(slices.Clone(all), func(p cluster.Problem) bool { return p.Reason != plan.ReasonOutsidePodRanges })
	}
	s := firewalledWorld(1, addr("10.244.0.7"))
	s.Objects.EgressFirewalls = deny
	_, problems := plan.Build(s)
	require.Empty(t, of(problems))

	s = firewalledWorld(1, addr("192.168.7.5"))
	var p plan.Planner
	_, problems = p.Plan(s, cluster.Everything())
	require.Empty(t, of(problems), "no policy")
	s.Objects.EgressFirewalls = deny
	var changed cluster.Changed
	changed.Add(cluster.KindEgressFirewall.ID(key))
	_, problems = p.Plan(s, changed)
	require.Len(t, of(problems), 1)
	require.Contains(t, of(problems)[0].Error(), `podCIDRs: "192.168.7.5": a pod of namespace good`)
	c := *s.Config
	c.PodCIDRs, s.Config = append(prefixes("192.168.0.0/16"), c.PodCIDRs...), &c
	_, problems = p.Plan(s, cluster.Changed{})
	require.Empty(t, of(problems))
}

// TestEndpointsOfResolversAreNotAsked expects answers of a DNS Service's endpoints to count, and the daemon to ask these only where
// there is no ClusterIP and no configured address: they may listen at another port than the Service.
func TestEndpointsOfResolversAreNotAsked(t *testing.T) {
	dns := cluster.Key{Namespace: "kube-system", Name: "kube-dns"}
	endpoint, ip, cache := addr("10.244.2.53"), addr("10.96.0.10"), addr("169.254.20.10")
	for name, c := range map[string]struct {
		ips, configured, asked []netip.Addr
	}{
		"a ClusterIP":     {ips: []netip.Addr{ip}, asked: []netip.Addr{ip}},
		"and an address":  {ips: []netip.Addr{ip}, configured: []netip.Addr{cache}, asked: []netip.Addr{ip, cache}},
		"an address":      {configured: []netip.Addr{cache}, asked: []netip.Addr{cache}},
		"endpoints alone": {asked: []netip.Addr{endpoint}},
	} {
		t.Run(name, func(t *testing.T) {
			s := firewalledWorld(1, addr("10.244.0.7"))
			config := *s.Config
			config.Firewall.Resolvers.Services, config.Firewall.Resolvers.Addresses = []string{dns.String()}, c.configured
			s.Config = &config
			s.Objects.Services = s.Objects.Services.With(dns, cluster.Service{ClusterIPs: c.ips})
			s.Objects.Endpoints = s.Objects.Endpoints.With(dns, []cluster.Endpoint{{Address: endpoint.String()}})
			key := cluster.Key{Namespace: "good", Name: "default"}
			e := cluster.EgressFirewall{Rules: []cluster.FirewallRule{{Deny: true, Name: "www.example.com"}}}
			s.Objects.EgressFirewalls = cluster.MapOf(map[cluster.Key]cluster.EgressFirewall{key: e})
			desired, _ := plan.Build(s)
			require.Equal(t, c.asked, desired.DataPlane.Asked)
			require.ElementsMatch(t, slices.Concat(c.ips, c.configured, []netip.Addr{endpoint}), desired.DataPlane.Resolvers)
		})
	}
}

// TestFirewallHoldsUnknownPods expects pods' addresses to wait while their Pod is not known, as long as there is an EgressFirewall,
// unless firewall.hold is false.
func TestFirewallHoldsUnknownPods(t *testing.T) {
	known := addr("10.244.0.7")
	s := firewalledWorld(1, known)
	c := *s.Config
	c.Hold, s.Config = nil, &c
	var p plan.Planner
	none, _ := p.Plan(s, cluster.Everything())
	require.False(t, none.DataPlane.Hold)

	key := cluster.Key{Namespace: "elsewhere", Name: "default"}
	s.Objects.EgressFirewalls = cluster.MapOf(map[cluster.Key]cluster.EgressFirewall{key: cluster.DenyAll()})
	var changed cluster.Changed
	changed.Add(cluster.KindEgressFirewall.ID(key))
	held, _ := p.Plan(s, changed)
	require.True(t, held.DataPlane.Hold)
	require.Equal(t, []plan.Address{{Addr: known}}, held.DataPlane.Let.Slice())

	open := c
	open.Firewall.Hold = false
	s.Config = &open
	desired, _ := p.Plan(s, cluster.Changed{})
	require.False(t, desired.DataPlane.Hold)
}

// BenchmarkFirewall measures how long 8,000 rules of one namespace take to become a policy, and a change of one pod.
func BenchmarkFirewall(b *testing.B) {
	s := firewalledWorld(1)
	key := cluster.Key{Namespace: "good", Name: "default"}
	var rules [2]cluster.EgressFirewall
	for i := range 7999 {
		rule := cluster.FirewallRule{To: netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(i >> 8), byte(i), 0}), 24)}
		if i%2 == 0 {
			rule.Ports = []cluster.FirewallPort{{Protocol: unix.IPPROTO_TCP, Number: 443}}
		}
		rules[0].Rules, rules[1].Rules = append(rules[0].Rules, rule), append(rules[1].Rules, rule)
	}
	for i := range rules {
		rules[i].Rules = append(rules[i].Rules, cluster.FirewallRule{Deny: true})
	}
	rules[1].Rules[7].Deny = true
	s.Objects.EgressFirewalls = s.Objects.EgressFirewalls.With(key, rules[0])
	for i := range 250 {
		s.Objects.Pods = s.Objects.Pods.With(cluster.Key{Namespace: "good", Name: fmt.Sprint(i)}, cluster.Pod{Node: "n0", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 0, byte(i)})}})
	}
	var p plan.Planner
	p.Plan(s, cluster.Everything())
	b.Run("rule", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			s.Objects.EgressFirewalls = s.Objects.EgressFirewalls.With(key, rules[(i+1)%2])
			var changed cluster.Changed
			changed.Add(cluster.KindEgressFirewall.ID(key))
			p.Plan(s, changed)
		}
	})
	b.Run("pod", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			pod := cluster.Key{Namespace: "good", Name: "7"}
			s.Objects.Pods = s.Objects.Pods.With(pod, cluster.Pod{Node: "n0", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, byte(i)})}})
			var changed cluster.Changed
			changed.AddPod(pod)
			p.Plan(s, changed)
		}
	})
}
