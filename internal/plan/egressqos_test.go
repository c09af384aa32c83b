package plan_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/qos"
)

// someEgressQoS returns an EgressQoS of a few rules with few values, so that namespaces have equal ones.
func someEgressQoS(r *rand.Rand) (q cluster.EgressQoS) {
	for range r.IntN(5) {
		rule := cluster.QoSRule{
			DSCP: pick[uint8](r, 0, 10, 46),
			Pods: labels.SelectorFromSet(pick(r, nil, nil, map[string]string{"app": "web"}, map[string]string{"app": "db"})),
		}
		if chance(r, 0.7) {
			rule.To = prefixes(pick(r, "203.0.113.0/24", "203.0.113.64/26", "203.0.113.0/25", "0.0.0.0/0", "10.96.0.0/12", "255.255.255.0/24", "2001:db8::/32", "2001:db8:1::/48", "::/0", "ff00::/8"))[0]
		}
		q.Rules = append(q.Rules, rule)
	}
	return q
}

// changeEgressQoS adds, changes or removes the EgressQoS of a namespace.
func (e *evolving) changeEgressQoS() {
	key := cluster.Key{Namespace: pick(e.Rand, "good", "other", "gone"), Name: cluster.NameEgressQoS}
	o := &e.Objects
	if o.EgressQoSes = o.EgressQoSes.With(key, someEgressQoS(e.Rand)); chance(e.Rand, 0.3) {
		o.EgressQoSes = o.EgressQoSes.Without(key)
	}
	e.changed.Add(cluster.KindEgressQoS.ID(key))
}

// value returns the DSCP value of a packet by a plan; false: it keeps its own.
func value(d *plan.DataPlane, from, to netip.Addr) (dscp uint8, set bool) {
	m, marked := d.Marked.Get(qos.Marked{Addr: from})
	if !marked {
		return 0, false
	}
	of := d.QoS[slices.IndexFunc(d.QoS, func(c qos.Class) bool { return c.ID == m.Class })]
	for _, r := range of.Ranges {
		if !to.Less(r.First) && !r.Last.Less(to) {
			return r.DSCP, true
		}
	}
	return 0, false
}

// TestFirstRuleCounts compares the ranges of random rules with the rules themselves, at the ranges' ends and around them.
func TestFirstRuleCounts(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := world(seed)
		s.Node, s.Objects.PodsKnown = "n0", true
		key := cluster.Key{Namespace: "good", Name: "default"}
		q := someEgressQoS(r)
		for range r.IntN(30) {
			bits := r.IntN(33)
			q.Rules = append(q.Rules, cluster.QoSRule{
				DSCP: uint8(r.IntN(64)), Pods: labels.Everything(),
				To: netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(r.IntN(4) * 85), byte(r.IntN(3)), byte(r.IntN(256))}), bits).Masked(),
			})
		}
		s.Objects.EgressQoSes = cluster.MapOf(map[cluster.Key]cluster.EgressQoS{key: q})
		with := map[string]string{"app": pick(r, "web", "db")}
		from := []netip.Addr{addr("10.244.0.7"), addr("fd44:0::7")}
		s.Objects.Pods = cluster.MapOf(map[cluster.Key]cluster.Pod{{Namespace: "good", Name: "p"}: {Node: "n0", Labels: with, Addresses: from}})
		desired, _ := plan.Build(s)
		d := &desired.DataPlane
		to := []netip.Addr{addr("0.0.0.0"), addr("255.255.255.255"), addr("::"), addr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")}
		for _, rule := range q.Rules {
			if rule.To.IsValid() {
				to = append(to, rule.To.Addr(), cluster.LastAddr(rule.To), rule.To.Addr().Prev(), cluster.LastAddr(rule.To).Next())
			}
		}
		for _, a := range to {
			if !a.IsValid() {
				continue
			}
			i := slices.IndexFunc(q.Rules, func(rule cluster.QoSRule) bool {
				return rule.Pods.Matches(labels.Set(with)) && (!rule.To.IsValid() || rule.To.Contains(a))
			})
			dscp, set := value(d, from[map[bool]int{true: 0, false: 1}[a.Is4()]], a)
			require.Equal(t, i >= 0, set, "seed %d, to %s", seed, a)
			if i >= 0 {
				require.Equal(t, q.Rules[i].DSCP, dscp, "seed %d, to %s", seed, a)
			}
		}
		for _, c := range d.QoS {
			require.LessOrEqual(t, len(c.Ranges), 2*len(q.Rules))
			require.True(t, slices.IsSortedFunc(c.Ranges, func(x, y qos.Range) int { return x.Last.Compare(y.First) }))
		}
	}
}

// TestEqualRulesShareAClass expects one class for namespaces with equal rules, and no change of it when another one comes.
func TestEqualRulesShareAClass(t *testing.T) {
	s := world(1)
	s.Node, s.Objects.PodsKnown, s.Objects.Pods = "n0", true, cluster.Map[cluster.Key, cluster.Pod]{}
	rules := cluster.EgressQoS{Rules: []cluster.QoSRule{{DSCP: 46, To: prefixes("203.0.113.0/24")[0], Pods: labels.Everything()}, {DSCP: 8, Pods: labels.Everything()}}}
	for i := range 200 {
		namespace := fmt.Sprint("team-", i)
		s.Objects.Pods = s.Objects.Pods.With(cluster.Key{Namespace: namespace, Name: "p"},
			cluster.Pod{Node: "n0", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 0, byte(i)})}})
		s.Objects.EgressQoSes = s.Objects.EgressQoSes.With(cluster.Key{Namespace: namespace, Name: "default"}, rules)
	}
	var p plan.Planner
	desired, _ := p.Plan(s, cluster.Everything())
	d := desired.DataPlane
	require.Len(t, d.QoS, 1)
	require.Equal(t, 200, d.Marked.Len())
	require.Len(t, d.QoS[0].Ranges, 3)

	other := cluster.Key{Namespace: "team-7", Name: "default"}
	s.Objects.EgressQoSes = s.Objects.EgressQoSes.With(other, cluster.EgressQoS{Rules: rules.Rules[1:]})
	var changed cluster.Changed
	changed.Add(cluster.KindEgressQoS.ID(other))
	after, _ := p.Plan(s, changed)
	require.Len(t, after.DataPlane.QoS, 2)
	require.Contains(t, after.DataPlane.QoS, d.QoS[0])
	differ := 0
	for range d.Marked.Changes(after.DataPlane.Marked) {
		differ++
	}
	require.Equal(t, 1, differ)

	// Two Pods have one address while the source has not reported the end of the first: neither gets the values of the other.
	second := cluster.Key{Namespace: "team-8", Name: "q"}
	s.Objects.Pods = s.Objects.Pods.With(second, cluster.Pod{Node: "n0", Addresses: []netip.Addr{addr("10.244.0.7"), addr("10.244.0.9")}})
	changed = cluster.Changed{}
	changed.AddPod(second)
	after, _ = p.Plan(s, changed)
	_, set := value(&after.DataPlane, addr("10.244.0.7"), addr("203.0.113.1"))
	require.False(t, set, "the Pods' rules differ")
	dscp, _ := value(&after.DataPlane, addr("10.244.0.9"), addr("203.0.113.1"))
	require.Equal(t, uint8(46), dscp, "the Pods' rules are equal")
}

// TestMarkedPods expects DSCP values for pods of this node alone, and none without an EgressQoS or while no Pods are known.
func TestMarkedPods(t *testing.T) {
	s := world(1)
	s.Node, s.Objects.PodsKnown = "n0", true
	pod := func(p cluster.Pod, n byte) cluster.Pod {
		p.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 0, n})}
		return p
	}
	s.Objects.Pods = cluster.MapOf(map[cluster.Key]cluster.Pod{
		{Namespace: "good", Name: "here"}: pod(cluster.Pod{Node: "n0"}, 1), {Namespace: "good", Name: "there"}: pod(cluster.Pod{Node: "n1"}, 2),
		{Namespace: "good", Name: "host"}: pod(cluster.Pod{Node: "n0", HostNetwork: true}, 3), {Namespace: "good", Name: "ended"}: pod(cluster.Pod{Node: "n0", Ended: true}, 4),
		{Namespace: "other", Name: "here"}: pod(cluster.Pod{Node: "n0"}, 5), {Namespace: "good", Name: "new"}: {Node: "n0"},
	})
	desired, _ := plan.Build(s)
	require.Zero(t, desired.DataPlane.Marked.Len())
	require.Zero(t, desired.EgressQoSes.Len())
	key := cluster.Key{Namespace: "good", Name: "default"}
	s.Objects.EgressQoSes = s.Objects.EgressQoSes.With(key, cluster.EgressQoS{Rules: []cluster.QoSRule{{DSCP: 0, Pods: labels.Everything()}}})
	desired, _ = plan.Build(s)
	require.Equal(t, []qos.Marked{{Addr: addr("10.244.0.1"), Class: desired.DataPlane.QoS[0].ID}}, desired.DataPlane.Marked.Slice())
	require.Equal(t, []qos.Object{{Key: key, Rules: 1, Pods: 1, Given: []qos.Rule{{}}}}, desired.EgressQoSes.Slice())
	require.Equal(t, []qos.Pod{{Addr: addr("10.244.0.1"), Key: cluster.Key{Namespace: "good", Name: "here"}, Rules: "\x01"}}, desired.QoSPods.Slice())
	s.Objects.PodsKnown, s.Objects.Pods = false, cluster.Map[cluster.Key, cluster.Pod]{}
	desired, _ = plan.Build(s)
	require.Zero(t, desired.DataPlane.Marked.Len())
	require.Equal(t, []qos.Object{{Key: key, Rules: 1}}, desired.EgressQoSes.Slice())
}

// BenchmarkQoS measures how long a change of one EgressQoS takes, and a change of one pod.
func BenchmarkQoS(b *testing.B) {
	s := world(1)
	s.Node, s.Objects.PodsKnown = "n0", true
	key := cluster.Key{Namespace: "good", Name: "default"}
	var rules [2]cluster.EgressQoS
	for i := range 1000 {
		rule := cluster.QoSRule{DSCP: uint8(i % 64), Pods: labels.Everything(), To: netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(i >> 8), byte(i), 0}), 24)}
		rules[0].Rules, rules[1].Rules = append(rules[0].Rules, rule), append(rules[1].Rules, rule)
	}
	rules[1].Rules[7].DSCP = 63
	s.Objects.EgressQoSes = s.Objects.EgressQoSes.With(key, rules[0])
	for i := range 250 {
		s.Objects.Pods = s.Objects.Pods.With(cluster.Key{Namespace: "good", Name: fmt.Sprint(i)}, cluster.Pod{Node: "n0", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 0, byte(i)})}})
	}
	var p plan.Planner
	p.Plan(s, cluster.Everything())
	b.Run("rule", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			s.Objects.EgressQoSes = s.Objects.EgressQoSes.With(key, rules[(i+1)%2])
			var changed cluster.Changed
			changed.Add(cluster.KindEgressQoS.ID(key))
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
