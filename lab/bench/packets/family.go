package main

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// perEgressIP is the number of pods of an EgressIP.
const perEgressIP = 50

// egressIPLayouts are layouts with EgressIPs of one address each, of which this node is the host: one, and a thousand.
func egressIPLayouts(own layout) (all []entry) {
	for _, v6 := range []bool{false, true} {
		for _, n := range []int{1, 1000} {
			l := own
			l.v6, l.endpoints, l.setup = v6, n*perEgressIP, egressIPs
			l.source = func(l layout, i int) netip.Addr { return plus(ingresses[l.v6], i/perEgressIP) }
			all = append(all, entry{family(v6, "egress IPs, %d", n), l})
		}
	}
	return all
}

// family returns the name of a layout.
func family(v6 bool, format string, args ...any) string {
	return map[bool]string{false: "", true: "IPv6, "}[v6] + fmt.Sprintf(format, args...)
}

// egressIPs has the daemon put EgressIPs in force, each for the pods of a namespace.
func egressIPs(l layout) error {
	c := config.Defaults()
	red := config.Network{Name: "red", Table: 1001, Interfaces: []config.Interface{{Name: "eth2"}}}
	red.EgressIPs = []netip.Prefix{netip.MustParsePrefix("203.0.0.0/16"), netip.MustParsePrefix("2001:db8:203::/48")}
	c.Networks = append(c.Networks, red)
	o := twoNodes()
	pods, all, namespaces := map[cluster.Key]cluster.Pod{}, map[cluster.Key]cluster.EgressIP{}, map[string]cluster.Namespace{}
	hosts := map[election.Seat]election.Choice{}
	for i := range l.endpoints {
		name, source := fmt.Sprint("e", i/perEgressIP), l.source(l, i)
		pods[cluster.Key{Namespace: name, Name: fmt.Sprint(i)}] = cluster.Pod{Node: "a", Addresses: []netip.Addr{l.podAddr(i)}}
		if i%perEgressIP == 0 {
			set := labels.Set{"team": name}
			namespaces[name] = cluster.Namespace{Labels: set}
			all[cluster.Key{Name: name}] = cluster.EgressIP{
				Addresses: []netip.Addr{source}, IPv4: !l.v6, IPv6: l.v6,
				Namespaces: labels.SelectorFromSet(set), Pods: labels.Everything(),
			}
			hosts[election.EgressIPSeat(name, source)] = election.Choice{Host: "a", Standby: "b", Term: 1}
		}
	}
	o.Pods, o.PodsKnown, o.Namespaces, o.EgressIPs = cluster.MapOf(pods), true, cluster.MapOf(namespaces), cluster.MapOf(all)
	return putInForce(plan.Snapshot{Node: "a", Config: c, Objects: o, Hosts: hosts})
}

// markedPods is the number of pods under rules, in each layout with EgressQoSes.
const markedPods = 2000

// qosLayouts are layouts with EgressQoSes: one rule, as many as an object may have, and that rule in many namespaces. Pods leave by the
// main table, by which a packet costs least, so that the rules show most.
func qosLayouts(own layout) (all []entry) {
	for _, v6 := range []bool{false, true} {
		add := func(what string, rules, namespaces int) {
			l := own
			l.v6, l.endpoints = v6, markedPods
			l.setup = func(l layout) error { return marked(l, qosRules(rules), namespaces) }
			all = append(all, entry{family(v6, "QoS, %s", what), l})
		}
		add("one rule", 1, 1)
		add("1,000 rules", 1000, 1)
		add("2,000 namespaces", 1, markedPods)
	}
	return all
}

// marked has the daemon put an EgressQoS in force in each of so many namespaces, which have the pods among them.
func marked(l layout, rules []cluster.QoSRule, namespaces int) error {
	o := twoNodes()
	pods, all := map[cluster.Key]cluster.Pod{}, map[cluster.Key]cluster.EgressQoS{}
	for i := range l.endpoints {
		namespace := fmt.Sprint("n", i%namespaces)
		pods[cluster.Key{Namespace: namespace, Name: fmt.Sprint(i)}] = cluster.Pod{Node: "a", Addresses: []netip.Addr{l.podAddr(i)}}
		all[cluster.Key{Namespace: namespace, Name: cluster.NameEgressQoS}] = cluster.EgressQoS{Rules: rules}
	}
	o.Pods, o.PodsKnown, o.EgressQoSes = cluster.MapOf(pods), true, cluster.MapOf(all)
	return putInForce(plan.Snapshot{Node: "a", Config: config.Defaults(), Objects: o})
}

// qosRules are n rules of both families with all values. The last rule decides about the packets that are measured.
func qosRules(n int) (rules []cluster.QoSRule) {
	const values = 64
	for i := range n {
		high, low := byte(i>>8), byte(i)
		r := cluster.QoSRule{Number: i + 1, DSCP: uint8(i % values), Pods: labels.Everything()} //nolint:gosec // small
		r.To = netip.PrefixFrom(netip.AddrFrom4([4]byte{100, high, low, 0}), 24)
		if i%2 > 0 {
			r.To = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, high, low}), 48)
		}
		if i == n-1 {
			r.To, r.DSCP = netip.Prefix{}, 46
		}
		rules = append(rules, r)
	}
	return rules
}
