package main

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// firewalledPods is the number of pods under rules, in each layout with EgressFirewalls.
const firewalledPods = 2000

// firewalls are layouts with EgressFirewalls: one rule, as many as an object may have, and that rule in many namespaces. Pods leave by
// the main table, by which a packet costs least, so that the rules show most.
func firewalls(own layout) (all []entry) {
	for _, v6 := range []bool{false, true} {
		add := func(what string, rules, ports, namespaces int) {
			l := own
			l.v6, l.endpoints, l.setup = v6, firewalledPods, firewalled(firewallRules(rules, ports), namespaces)
			all = append(all, entry{family(v6, "firewall, %s", what), l})
		}
		add("one rule", 1, 1, 1)
		add("8,000 rules", cluster.MostFirewallRules, 1, 1)
		add("8,000 rules, 100 ports", cluster.MostFirewallRules, 100, 1)
		add("2,000 namespaces", 1, 1, firewalledPods)
	}
	return all
}

// firewalled has the daemon put an EgressFirewall in force in each of so many namespaces, which have the pods among them. Other pods
// are of a namespace without rules.
func firewalled(rules cluster.EgressFirewall, namespaces int) func(layout) error {
	return func(l layout) error {
		o := twoNodes()
		pods := map[cluster.Key]cluster.Pod{}
		pod := func(namespace string, a netip.Addr) {
			pods[cluster.Key{Namespace: namespace, Name: a.String()}] = cluster.Pod{Node: "a", Addresses: []netip.Addr{a}}
		}
		all := map[cluster.Key]cluster.EgressFirewall{}
		for i := range l.endpoints {
			namespace := fmt.Sprint("n", i%namespaces)
			pod(namespace, l.podAddr(i))
			all[cluster.Key{Namespace: namespace, Name: cluster.NameEgressFirewall}] = rules
		}
		for i := range newFlows {
			pod("free", plus(others[l.v6], i))
		}
		o.Pods, o.PodsKnown, o.EgressFirewalls = cluster.MapOf(pods), true, cluster.MapOf(all)
		return putInForce(plan.Snapshot{Node: "a", Config: config.Defaults(), Objects: o})
	}
}

// firewallRules are n rules of both families, a third of them for one port each, of so many different ones. The last rule, by port,
// decides about the packets that are measured.
func firewallRules(n, ports int) (e cluster.EgressFirewall) {
	e.Given = n
	for i := range n - 1 {
		high, low := byte(i>>8), byte(i)
		rule := cluster.FirewallRule{Number: i + 1, Deny: i%2 == 0, To: netip.PrefixFrom(netip.AddrFrom4([4]byte{100, high, low, 0}), 24)}
		if i%4 > 1 {
			rule.To = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, high, low}), 48)
		}
		if i%3 == 0 {
			rule.Ports = []cluster.FirewallPort{{Protocol: unix.IPPROTO_TCP, Number: uint16(1 + i%ports)}} //nolint:gosec // small
		}
		e.Rules = append(e.Rules, rule)
	}
	last := []cluster.FirewallPort{{Protocol: unix.IPPROTO_UDP, Number: 54}}
	e.Rules = append(e.Rules, cluster.FirewallRule{Number: n, Deny: true, Ports: last})
	return e
}
