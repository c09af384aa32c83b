package plan_test

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// evolving is a world that changes step by step. Snapshots that it has returned do not change.
type evolving struct {
	*rand.Rand
	plan.Snapshot
	changed cluster.Changed
	elect   bool // by the rules; else hosts are random
}

func evolvingWorld(seed uint64) *evolving {
	e := &evolving{Rand: rand.New(rand.NewPCG(seed, 7)), Snapshot: world(seed), changed: cluster.Everything()}
	e.elect = chance(e.Rand, 0.5)
	if chance(e.Rand, 0.6) {
		o := &e.Objects
		if !o.PodsKnown {
			o.Pods, o.PodsKnown = somePods(e.Rand), true
		}
		for i := range e.IntN(4) {
			o.EgressIPs = o.EgressIPs.With(cluster.Key{Name: fmt.Sprint("e", i)}, someEgressIP(e.Rand))
			o.Members = o.Members.With(cluster.Key{Name: fmt.Sprint("e", i)}, someMembers(e.Rand))
		}
		for range e.IntN(4) {
			e.changeEgressQoS()
		}
		for range e.IntN(4) {
			e.changeEgressFirewall()
		}
		for name, n := range o.Nodes.All() {
			n.Labels = map[string]string{cluster.LabelAssignable: ""}
			o.Nodes = o.Nodes.With(name, n)
		}
		e.Hosts = election.Elect(*o, nil)
	}
	return e
}

// someEgressIP returns an EgressIP that shares addresses and pods with others.
func someEgressIP(r *rand.Rand) cluster.EgressIP {
	selector := func(all ...map[string]string) labels.Selector { return labels.SelectorFromSet(pick(r, all...)) }
	e := cluster.EgressIP{
		Created:    time.Unix(int64(r.IntN(5)), 0),
		Namespaces: selector(nil, map[string]string{"blue": "yes"}, map[string]string{"egress": "held"}),
		Pods:       selector(nil, nil, map[string]string{"app": "web"}),
		IPv4:       chance(r, 0.1), IPv6: chance(r, 0.1),
	}
	if chance(r, 0.05) {
		e.Namespaces = nil
	}
	for range r.IntN(4) {
		a := addr(pick(r, fmt.Sprint("203.0.113.", r.IntN(20)), fmt.Sprint("2001:db8::", r.IntN(9)), "10.0.0.11", "10.96.0.1", "10.1.0.1"))
		if !slices.Contains(e.Addresses, a) {
			e.Addresses, e.IPv4, e.IPv6 = append(e.Addresses, a), e.IPv4 || a.Is4(), e.IPv6 || a.Is6()
		}
	}
	return e
}

// someMembers returns pods that an EgressIP selects; those of this node do not count.
func someMembers(r *rand.Rand) (all []cluster.Member) {
	for range r.IntN(6) {
		n := r.IntN(4)
		all = append(all, cluster.Member{
			Addr: addr(pick(r, fmt.Sprintf("10.244.%d.%d", n, 1+r.IntN(5)), fmt.Sprintf("fd00:10:244:%d::%d", n, 1+r.IntN(5)))),
			Node: fmt.Sprint("n", n), Namespace: pick(r, "shop", "other", "none"),
		})
	}
	slices.SortFunc(all, cluster.Member.Compare)
	return slices.Compact(all)
}

// step changes one thing.
func (e *evolving) step() {
	o := &e.Objects
	key := e.key()
	e.changed.Add(cluster.KindEgressService.ID(key))
	switch e.IntN(47) {
	case 0, 1, 2: // endpoints come
		var added []cluster.Endpoint
		for range 1 + e.IntN(3) {
			added = append(added, e.endpoint())
		}
		e.setEndpoints(key, slices.Concat(o.Endpoints.At(key), added))
	case 3, 4: // and go
		e.setEndpoints(key, slices.DeleteFunc(slices.Clone(o.Endpoints.At(key)), func(cluster.Endpoint) bool { return chance(e.Rand, 0.4) }))
	case 5: // and move to another service
		to := e.key()
		e.changed.Add(cluster.KindEgressService.ID(to))
		moved := o.Endpoints.At(key)
		e.setEndpoints(key, nil)
		e.setEndpoints(to, slices.Concat(o.Endpoints.At(to), moved))
	case 6: // others' endpoints
		e.setEndpoints(key, slices.Concat(o.Endpoints.At(key), o.Endpoints.At(e.key())))
	case 7, 8: // ingress IPs
		e.service(key, func(s *cluster.Service) {
			s.Ingress = nil
			s.SharingKey, s.Created = pick(e.Rand, "", "one", "two"), time.Unix(int64(e.IntN(5)), 0)
			for range e.IntN(4) {
				s.Ingress = append(s.Ingress, cluster.Ingress{IP: pick(e.Rand, fmt.Sprint("203.0.113.", e.IntN(9)), fmt.Sprint("2001:db8::", e.IntN(9)),
					pick(e.Rand, garbage...), e.endpoint().Address, e.clusterIP().String())})
			}
		})
	case 9:
		e.service(key, func(s *cluster.Service) {
			s.ClusterIPs = nil
			for range e.IntN(3) {
				s.ClusterIPs = append(s.ClusterIPs, e.clusterIP())
			}
		})
	case 10:
		e.service(key, func(s *cluster.Service) {
			s.LoadBalancer, s.LocalTraffic = chance(e.Rand, 0.9), chance(e.Rand, 0.3)
		})
	case 11:
		e.service(key, func(s *cluster.Service) { *s = cluster.Service{} })
		o.Services = o.Services.Without(key)
	case 12, 13:
		e.egress(key, func(s *cluster.EgressService) {
			s.Network = pick(e.Rand, "red", "red", "", "blue", "green", "vrf-dmz", "vrf-blue", "77", "254", "no/vrf", "red", "dark")
		})
	case 14:
		e.egress(key, func(s *cluster.EgressService) {
			if s.Created = time.Unix(int64(e.IntN(5)), 0); chance(e.Rand, 0.5) {
				s.Status.Host = pick(e.Rand, "n0", "n1", "n2", "")
				s.Status.Conditions = []metav1.Condition{{Type: election.ConditionHostAssigned, Status: metav1.ConditionTrue, LastTransitionTime: metav1.Unix(int64(e.IntN(9)), 0)}}
			}
		})
	case 15:
		e.egress(key, func(s *cluster.EgressService) {
			s.SourceIPBy = pick(e.Rand, cluster.SourceIPByLoadBalancer, cluster.SourceIPByNetwork)
			s.NodeSelector = nil
			if chance(e.Rand, 0.5) {
				s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": pick(e.Rand, "1", "2")}}
			}
		})
	case 16:
		e.egress(key, func(*cluster.EgressService) {})
		o.EgressServices = o.EgressServices.Without(key)
	case 17:
		name := fmt.Sprint("n", e.IntN(6))
		n := o.Nodes.At(name)
		switch e.IntN(3) {
		case 0:
			o.Nodes = o.Nodes.Without(name)
		case 1:
			as := []netip.Addr{addr(fmt.Sprintf("10.0.%d.1%d", e.IntN(8)/7, e.IntN(6))), addr(fmt.Sprintf("fd00::1%d", e.IntN(6)))}
			i := name[1:]
			o.Nodes = o.Nodes.With(name, cluster.Node{Ready: true, Addresses: as, Internal: as, PodCIDRs: prefixes("10.244."+i+".0/24", "fd44:"+i+"::/64")})
		default:
			n.Ready, n.Cordoned, n.Labels = chance(e.Rand, 0.7), chance(e.Rand, 0.3), map[string]string{"rack": pick(e.Rand, "1", "2")}
			if chance(e.Rand, 0.3) {
				n.PodCIDRs = nil
			}
			o.Nodes = o.Nodes.With(name, n)
		}
		e.changed.Join(cluster.Everything())
	case 18:
		c := *e.Config
		switch e.IntN(7) {
		case 6:
			c.Hold, c.Firewall.Hold = someHold(e.Rand), chance(e.Rand, 0.6)
		case 5:
			c.Status.ServiceCounters = !c.Status.ServiceCounters
		case 0:
			c.AllowUnlisted = !c.AllowUnlisted
		case 1:
			c.OnNoPath = pick(e.Rand, config.NoPathDrop, config.NoPathAllow)
		case 2:
			c.Steering.Mode = pick(e.Rand, config.SteeringAuto, config.SteeringDirect, config.SteeringVXLAN)
		case 3:
			c.Marks.Mask = pick[uint32](e.Rand, 0x3f00, 0xf000, 0x7000)
		case 4:
			c.ClusterCIDRs = pick(e.Rand, nil, prefixes("10.250.0.0/16"), prefixes("10.0.0.0/8", "fd50::/16"))
			c.PodCIDRs = pick(e.Rand, nil, prefixes("10.251.0.0/16"), prefixes("10.244.0.0/16", "fd51::/16"))
		}
		e.Config = &c
	case 19:
		e.links()
	case 20:
		e.Facts.Routed = maps.Clone(e.Facts.Routed)
		e.Facts.Routed[pick[uint32](e.Rand, 254, 1001, 1002, 1009, 100)] = plan.Families{IPv4: chance(e.Rand, 0.6), IPv6: chance(e.Rand, 0.6)}
	case 21:
		e.Learned = slices.Clone(e.Learned)
		l := &e.Learned[e.IntN(len(e.Learned))]
		l.Routes = sorted.List[plan.Route]{}
		for i := range e.IntN(4) {
			l.Routes = l.Routes.With([]plan.Route{{Dst: prefixes(fmt.Sprintf("192.0.%d.0/24", i))[0], NextHops: []plan.NextHop{{Gateway: addr("10.1.0.1"), Device: "eth2"}}}}, nil)
		}
	case 22:
		e.Draining, e.Leaving = chance(e.Rand, 0.3), chance(e.Rand, 0.2)
		e.HeldDown = pick(e.Rand, nil, []string{"red"}, []string{"green"}, []string{"green", "red"})
	case 23:
		e.Heard = nil
		for i := range 6 {
			if e.Heard == nil && chance(e.Rand, 0.7) {
				e.Heard = map[string]bool{}
			}
			if e.Heard != nil {
				e.Heard[fmt.Sprint("n", i)] = chance(e.Rand, 0.7)
			}
		}
	case 30:
		e.Answering = nil
		if chance(e.Rand, 0.8) {
			e.Answering = map[string]bool{}
			for i := range 6 {
				if chance(e.Rand, 0.6) {
					e.Answering[fmt.Sprint("n", i)] = true
				}
			}
		}
	case 31:
		e.Unmade = pick(e.Rand, nil, []string{"vrf-red"}, []string{"vrf-green", "vrf-red"})
	case 46: // matters only while Node n0 is missing
		e.InternalIPv4 = pick(e.Rand, netip.Addr{}, addr("10.0.0.10"), addr("10.0.0.11"))
	case 24:
		e.Unsettled = pick(e.Rand, nil, []string{"red"}, []string{"red", "green"})
	case 25: // a new one whose name is nearly another's
		addService(e.Rand, o, e.fresh(), time.Unix(int64(e.IntN(5)), 0))
	case 26, 27: // pods come, go and change
		pod := cluster.Key{Namespace: pick(e.Rand, "good", "other", "gone"), Name: fmt.Sprint("p", e.IntN(10))}
		if !o.PodsKnown {
			break // not known yet
		}
		if o.Pods = o.Pods.With(pod, somePod(e.Rand)); chance(e.Rand, 0.3) {
			o.Pods = o.Pods.Without(pod)
		}
		e.changed.AddPod(pod)
	case 28: // the source starts or stops following pods
		if o.PodsKnown && chance(e.Rand, 0.7) {
			break
		}
		for key := range o.Pods.Keys() {
			e.changed.AddPod(key)
		}
		if o.PodsKnown = !o.PodsKnown; o.PodsKnown {
			o.Pods = somePods(e.Rand)
		} else {
			o.Pods = cluster.Map[cluster.Key, cluster.Pod]{}
		}
		for key := range o.Pods.Keys() {
			e.changed.AddPod(key)
		}
	case 36: // nodes' interfaces get addresses, some of which others use; the change does not name them
		o.Secondary = o.Secondary.With(fmt.Sprint("n", e.IntN(4)), e.secondary())
	case 32, 33, 34: // EgressIPs come, change and go
		key := cluster.Key{Name: fmt.Sprint("e", e.IntN(4))}
		if o.EgressIPs = o.EgressIPs.With(key, someEgressIP(e.Rand)); chance(e.Rand, 0.2) {
			o.EgressIPs = o.EgressIPs.Without(key)
		}
		e.changed.Add(cluster.KindEgressIP.ID(key))
	case 43, 44: // the leader writes members of EgressIPs
		key := cluster.Key{Name: fmt.Sprint("e", e.IntN(4))}
		o.Members = o.Members.With(key, someMembers(e.Rand))
		e.changed.Add(cluster.KindEgressIP.ID(key))
	case 37, 38, 39:
		e.changeEgressQoS()
	case 40, 41, 42:
		e.changeEgressFirewall()
	case 35: // ranges of egress IPs
		c := *e.Config
		c.Networks = slices.Clone(c.Networks)
		for i := range c.Networks {
			c.Networks[i].OnLink = pick(e.Rand, config.OnLinkDefault, config.OnLinkAuto, config.OnLinkOff)
			c.Networks[i].EgressIPs = pick(e.Rand, nil, prefixes("203.0.113.0/28"), prefixes("203.0.113.4/30", "2001:db8::/64"))
		}
		e.Config = &c
	case 45: // API servers, which may have addresses of EgressIPs
		e.changed.Add(cluster.KindEgressService.ID(cluster.APIService))
		var servers []cluster.Endpoint
		for range e.IntN(3) {
			servers = append(servers, cluster.Endpoint{Address: pick(e.Rand, fmt.Sprint("203.0.113.", e.IntN(20)), fmt.Sprint("2001:db8::", e.IntN(9)), "10.0.0.11")})
		}
		e.setEndpoints(cluster.APIService, servers)
	case 29:
		o.Namespaces = o.Namespaces.With("other", cluster.Namespace{Labels: map[string]string{"egress": pick(e.Rand, "held", "free")}})
		e.changed.Join(cluster.Everything())
	}
}

// secondary returns addresses that may also be ingress IPs, endpoints, ClusterIPs or another network's.
func (e *evolving) secondary() (s cluster.Secondary) {
	one := func() netip.Addr {
		return addr(pick(e.Rand, fmt.Sprint("203.0.113.", e.IntN(9)), fmt.Sprint("10.0.0.", e.IntN(20)), fmt.Sprint("10.1.0.", e.IntN(20)),
			fmt.Sprint("2001:db8::", e.IntN(9)), "192.0.2.1", "10.244.1.7", "fd44:1::7", e.clusterIP().String()))
	}
	for range e.IntN(5) {
		s.Beside = append(s.Beside, one())
	}
	for range e.IntN(3) {
		s.Apart = append(s.Apart, one())
	}
	return s
}

// someHold returns entries of a configuration's hold, mostly few.
func someHold(r *rand.Rand) (all []config.Hold) {
	selector := func(labels map[string]string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: labels}
	}
	for range r.IntN(3) {
		all = append(all, pick(r, config.Hold{Pods: selector(nil)}, config.Hold{Namespaces: selector(map[string]string{"egress": "held"})},
			config.Hold{Pods: selector(map[string]string{"app": "web"})},
			config.Hold{Namespaces: selector(map[string]string{"blue": "yes"}), Pods: selector(map[string]string{"app": "web"})}))
	}
	return all
}

// somePods returns pods, some of which share their addresses with endpoints and with other pods.
func somePods(r *rand.Rand) cluster.Map[cluster.Key, cluster.Pod] {
	all := map[cluster.Key]cluster.Pod{}
	for range r.IntN(12) {
		all[cluster.Key{Namespace: pick(r, "good", "other", "gone"), Name: fmt.Sprint("p", r.IntN(10))}] = somePod(r)
	}
	return cluster.MapOf(all)
}

func somePod(r *rand.Rand) cluster.Pod {
	p := cluster.Pod{Node: pick(r, "n0", "n0", "n0", "n1", ""), HostNetwork: chance(r, 0.1), Ended: chance(r, 0.2), Labels: map[string]string{"app": pick(r, "web", "db")}}
	for range r.IntN(3) {
		n := r.IntN(20)
		p.Addresses = append(p.Addresses, addr(pick(r, fmt.Sprintf("10.244.0.%d", n), fmt.Sprintf("fd44:0::%d", n))))
	}
	return p
}

func (e *evolving) links() {
	e.Facts.Links = slices.Clone(e.Facts.Links)
	i := e.IntN(len(e.Facts.Links))
	l := &e.Facts.Links[i]
	e.Unsure = pick(e.Rand, nil, nil, []string{l.Name})
	switch e.IntN(6) {
	case 0:
		l.MTU = pick(e.Rand, 1400, 1500, 9000)
	case 1:
		l.Index++
	case 2:
		l.Addrs = append(slices.Clone(l.Addrs), prefixes(pick(e.Rand, fmt.Sprintf("10.0.0.%d/24", e.IntN(20)), "203.0.113.200/24", "2001:db8::ff/64"))...)
	case 3:
		if name := "kube-ipvs0"; !slices.ContainsFunc(e.Facts.Links, func(l plan.Link) bool { return l.Name == name }) {
			e.Facts.Links = append(e.Facts.Links, plan.Link{Name: name, Addrs: []netip.Prefix{netip.PrefixFrom(e.clusterIP(), 32), prefixes("203.0.113.3/32")[0]}})
		}
	case 4:
		if len(e.Facts.Links) > 3 {
			e.Facts.Links = slices.Delete(e.Facts.Links, i, i+1)
		}
	case 5:
		l.VRFTable = pick[uint32](e.Rand, 0, 100, 1001, 1002, 1009)
	}
}

func (e *evolving) keys() []cluster.Key {
	all := map[cluster.Key]bool{}
	for k := range e.Objects.EgressServices.Keys() {
		all[k] = true
	}
	for k := range e.Objects.Services.Keys() {
		all[k] = true
	}
	return slices.SortedFunc(maps.Keys(all), cluster.Key.Compare)
}

func (e *evolving) key() cluster.Key {
	if all := e.keys(); len(all) > 0 && chance(e.Rand, 0.95) {
		return pick(e.Rand, all...)
	}
	return e.fresh()
}

// fresh returns a random key and adds it to the change, with all objects of that key.
func (e *evolving) fresh() cluster.Key {
	key := cluster.Key{Namespace: pick(e.Rand, "good", "other"), Name: fmt.Sprint("s", e.IntN(12))}
	o := &e.Objects
	e.changed.Add(cluster.KindEgressService.ID(key))
	o.Endpoints = o.Endpoints.With(key, slices.Clone(o.Endpoints.At(key)))
	return key
}

func (e *evolving) endpoint() cluster.Endpoint {
	n := e.IntN(5)
	x := cluster.Endpoint{Address: pick(e.Rand, fmt.Sprintf("10.244.%d.%d", n, e.IntN(20)), fmt.Sprintf("fd44:%d::%d", n, e.IntN(20))), Node: fmt.Sprint("n", n)}
	if chance(e.Rand, 0.15) {
		x.Address = pick(e.Rand, pick(e.Rand, garbage...), fmt.Sprint("203.0.113.", e.IntN(9)), e.clusterIP().String(), "fd44:1:0::7", "fd44:1::7")
	}
	if chance(e.Rand, 0.1) {
		x.Node = pick(e.Rand, "", "n0", "unknown")
	}
	if chance(e.Rand, 0.1) {
		x.Target = pick(e.Rand, cluster.TargetUnknown, cluster.TargetOther)
	}
	return x
}

// clusterIP returns a ClusterIP that several Services may have, mostly in their range.
func (e *evolving) clusterIP() netip.Addr {
	return addr(pick(e.Rand, "10.96.0.", "10.97.0.") + strconv.Itoa(e.IntN(6)+1))
}

func (e *evolving) setEndpoints(key cluster.Key, all []cluster.Endpoint) {
	e.Objects.Endpoints = e.Objects.Endpoints.With(key, all)
	if all == nil {
		e.Objects.Endpoints = e.Objects.Endpoints.Without(key)
	}
}

func (e *evolving) service(key cluster.Key, change func(*cluster.Service)) {
	s := e.Objects.Services.At(key)
	change(&s)
	e.Objects.Services = e.Objects.Services.With(key, s)
}

func (e *evolving) egress(key cluster.Key, change func(*cluster.EgressService)) {
	s := e.Objects.EgressServices.At(key)
	change(&s)
	e.Objects.EgressServices = e.Objects.EgressServices.With(key, s)
}

// choose chooses hosts again, and adds the services whose choice differs to the change.
func (e *evolving) choose() {
	before := e.Hosts
	if e.elect {
		e.Hosts = election.Elect(e.Objects, nil)
	} else {
		e.Hosts = maps.Clone(before)
		for range e.IntN(3) {
			if all := e.keys(); len(all) > 0 {
				e.Hosts[election.ServiceSeat(pick(e.Rand, all...))] = election.Choice{
					Host: pick(e.Rand, "", "n0", "n0", "n1", "n2", "n3", cluster.AllHosts), Standby: pick(e.Rand, "", "n0", "n1", "n2"),
					Term: e.Int64N(3), Former: chance(e.Rand, 0.3), Left: chance(e.Rand, 0.2), Parted: pick(e.Rand, "", "", "n1", "n2"),
				}
			}
		}
		for key, spec := range e.Objects.EgressIPs.All() {
			for _, a := range spec.Addresses {
				if chance(e.Rand, 0.2) {
					e.Hosts[election.EgressIPSeat(key.Name, a)] = election.Choice{
						Host: pick(e.Rand, "", "n0", "n0", "n1", "n2"), Standby: pick(e.Rand, "", "n0", "n1", "n2"), Term: e.Int64N(3),
					}
				}
			}
		}
	}
	for seat, choice := range e.Hosts {
		if !reflect.DeepEqual(choice, before[seat]) {
			e.changed.Add(seat.ID)
		}
	}
	for seat := range before {
		if _, still := e.Hosts[seat]; !still {
			e.changed.Add(seat.ID)
		}
	}
}

func textOf(t *testing.T, desired *plan.NodePlan, problems []cluster.Problem) string {
	t.Helper()
	explained := "" // not part of the plan's text
	for p := range desired.QoSPods.All() {
		explained += fmt.Sprintf("%s %s %q %t\n", p.Addr, p.Key, p.Rules, p.Twice)
	}
	for q := range desired.EgressQoSes.All() {
		explained += fmt.Sprint(q.Given)
	}
	data, err := json.MarshalIndent(map[string]any{"plan": desired, "problems": problems, "explained": explained}, "", " ")
	require.NoError(t, err)
	return string(data)
}

func hashOf(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return h.Sum64()
}

// A Planner that gets the changes plans the same as Build, at every step, and does not modify its earlier plans.
func TestPlannerPlansWhatBuildPlans(t *testing.T) {
	worlds, steps := uint64(60), 60
	if n, err := strconv.Atoi(os.Getenv("PLAN_WORLDS")); err == nil { // for a longer run
		worlds = uint64(n)
	}
	for seed := range worlds {
		e := evolvingWorld(seed)
		var p plan.Planner
		var before *plan.NodePlan
		var told []cluster.Problem
		var hash uint64
		for step := range steps {
			desired, problems := p.Plan(e.Snapshot, e.changed)
			full, all := plan.Build(e.Snapshot)
			text := textOf(t, desired, problems)
			requireSame(t, textOf(t, full, all), text, "seed %d, step %d, changed %v", seed, step, e.changed)
			require.Equal(t, indices(full), indices(desired), "seed %d, step %d", seed, step)
			if before != nil {
				require.Equal(t, hash, hashOf(textOf(t, before, told)), "seed %d, step %d: the plan before has changed", seed, step)
				requireShared(t, before, desired)
			}
			before, told, hash = desired, problems, hashOf(text)

			again, sameProblems := p.Plan(e.Snapshot, cluster.Changed{})
			require.Same(t, desired, again, "seed %d, step %d: nothing changed", seed, step)
			require.True(t, len(problems) == 0 || &problems[0] == &sameProblems[0])

			e.changed = cluster.Changed{}
			for range e.IntN(4) {
				e.step()
			}
			e.choose()
			if chance(e.Rand, 0.8) { // else the plan is not in force yet
				e.Facts.Paths = map[plan.PathKey]plan.PathID{}
				for _, path := range desired.DataPlane.Paths {
					e.Facts.Paths[path.Key] = path.ID
				}
			}
		}
	}
}

// indices lists the device indices, which JSON leaves out.
func indices(p *plan.NodePlan) (all []int) {
	for _, s := range p.Speakers {
		all = append(all, s.DeviceIndex)
	}
	return all
}

// requireShared requires equal slices of two plans to be identical.
func requireShared(t *testing.T, before, now *plan.NodePlan) {
	t.Helper()
	for _, of := range []struct{ before, now any }{{*before, *now}, {before.DataPlane, now.DataPlane}} {
		x, y := reflect.ValueOf(of.before), reflect.ValueOf(of.now)
		for i := range x.NumField() {
			if f := x.Field(i); f.Kind() == reflect.Slice && f.Len() > 0 && reflect.DeepEqual(f.Interface(), y.Field(i).Interface()) {
				require.Equal(t, f.Pointer(), y.Field(i).Pointer(), x.Type().Field(i).Name)
			}
		}
	}
}
