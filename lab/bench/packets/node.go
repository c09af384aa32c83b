package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/plan"
)

// Sources and destinations. Addresses of pods and ingress IPs go up from these.
var (
	outsider = map[bool]netip.Addr{false: netip.MustParseAddr("198.51.100.10"), true: netip.MustParseAddr("2001:db8:100::10")}
	ownPods  = map[bool]netip.Addr{false: netip.MustParseAddr("10.64.1.0"), true: netip.MustParseAddr("fd64::1:0")}
	// others are pods of this node that are not selected.
	others    = map[bool]netip.Addr{false: netip.MustParseAddr("10.67.0.0"), true: netip.MustParseAddr("fd64::ff:0")}
	farPods   = map[bool]netip.Addr{false: netip.MustParseAddr("10.68.1.0"), true: netip.MustParseAddr("fd68::1:0")} // of node b
	ingresses = map[bool]netip.Addr{false: netip.MustParseAddr("203.0.0.1"), true: netip.MustParseAddr("2001:db8:203::1")}
)

// plus is the address i after a.
func plus(a netip.Addr, i int) netip.Addr {
	b := a.AsSlice()
	low := b[len(b)-4:]
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)+uint32(i))
	a, _ = netip.AddrFromSlice(b)
	return a
}

const perService = 10 // endpoints

// layout selects how a node sends pods' packets out by eth2 with another source.
type layout struct {
	endpoints int
	v6        bool
	vrf       bool // eth2 is in a VRF device, whose table leads out by it
	setup     func(layout) error
	device    string                       // by which selected pods' packets leave
	source    func(layout, int) netip.Addr // that those of an endpoint have there
	pods      map[bool]netip.Addr          // the selected pods
	enters    string                       // device by which they come
}

func (l layout) podAddr(i int) netip.Addr { return plus(l.pods[l.v6], i) }

func unchanged(l layout, i int) netip.Addr { return l.podAddr(i) }
func ingressIP(l layout, i int) netip.Addr { return plus(ingresses[l.v6], i/perService) }
func oneSource(l layout, _ int) netip.Addr { return ingresses[l.v6] }

// tracked has the kernel track connections, without a rule that packets meet.
const tracked = `
table inet tracked {
	chain unused { ct state new accept; }
}
`

func plain(layout) error { return rules(tracked) }

// staticSNAT is the least that gives pods another source.
func staticSNAT(layout) error {
	return rules(`
table inet static {
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "eth1" ip saddr 10.64.0.0/15 snat ip to 203.0.0.1
		oifname "eth1" ip6 saddr fd64::1:0/108 snat ip6 to 2001:db8:203::1
	}
}
`)
}

// oneRoutingRule leads the pods to the other network. A node with a VRF device has such a rule already, the kernel's own.
func oneRoutingRule(l layout) error {
	pods := map[bool]string{false: "10.64.0.0/15", true: "fd64::1:0/108"}[l.v6]
	if err := script("rule add from " + pods + " priority 900 table 1001\n"); err != nil {
		return err
	}
	if l.vrf { // packets that arrive by the VRF are routed by its table
		if err := script("route add 10.64.0.0/14 via 169.254.1.2 dev pod0 table 1001\n" +
			"route add fd64::/64 via fd69::2 dev pod0 table 1001\n"); err != nil {
			return err
		}
	}
	return rules(tracked)
}

// staticRule is that with one routing rule, which leads to the other network.
func staticRule(l layout) error {
	if err := oneRoutingRule(l); err != nil {
		return err
	}
	return rules(`
table inet static {
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "eth2" ip saddr 10.64.0.0/15 snat ip to 203.0.0.1
		oifname "eth2" ip6 saddr fd64::1:0/108 snat ip6 to 2001:db8:203::1
	}
}
`)
}

// rulePerEndpoint is the common layout: a routing rule and an element of a map of sources for each endpoint.
func rulePerEndpoint(l layout) error {
	var routing, sources strings.Builder
	for i := range l.endpoints {
		_, _ = fmt.Fprintf(&routing, "rule add from %s priority 900 table 1001\n", l.podAddr(i))
		_, _ = fmt.Fprintf(&sources, "%s : %s, ", l.podAddr(i), ingressIP(l, i))
	}
	if err := script(routing.String()); err != nil {
		return err
	}
	return rules(`
table inet each {
	map sources { type ipv4_addr : ipv4_addr; elements = { ` + strings.TrimSuffix(sources.String(), ", ") + ` } }
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "eth2" snat ip to ip saddr map @sources
	}
}
`)
}

// clusterRules stands in for the other rules on a cluster's node: kube-proxy's in its nftables mode, and those of a CNI
// that masquerades.
func clusterRules() error {
	return rules(`
table ip kube-proxy {
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 10.96.0.1 . tcp . 443 : goto service, 10.96.0.10 . udp . 53 : goto service }
	}
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.99 . tcp . 80 : drop } }
	chain service { dnat to 10.0.0.12; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
	chain nat-output { type nat hook output priority -100; policy accept; jump services; }
	chain nat-postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x4000 == 0 return
		meta mark set meta mark ^ 0x4000
		masquerade fully-random
	}
	chain filter-prerouting { type filter hook prerouting priority -110; policy accept; ct state new jump check; }
	chain filter-forward { type filter hook forward priority -110; policy accept; ct state new jump check; }
	chain filter-output { type filter hook output priority -110; policy accept; ct state new jump check; }
	chain check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
}
table ip cni {
	set inside { type ipv4_addr; flags interval; elements = { 10.64.0.0/13, 10.96.0.0/12, 10.0.0.0/24, 224.0.0.0/4 } }
	chain postrouting {
		type nat hook postrouting priority srcnat + 10; policy accept;
		ip saddr 10.64.0.0/14 ip daddr != @inside oifname "eth1" masquerade
	}
	chain forward {
		type filter hook forward priority filter; policy accept;
		iifname "pod0" accept
		oifname "pod0" accept
	}
}
`)
}

// egressway has the daemon's own plan put in force: this node, a, is the host, or steers the pods to node b.
func egressway(mode config.SteeringMode, host string, counting ...bool) func(layout) error {
	return func(l layout) error {
		c := config.Defaults()
		c.Status.ServiceCounters = len(counting) > 0
		c.Steering.Mode = mode
		red := config.Network{Name: "red", Table: 1001, Interfaces: []config.Interface{{Name: "eth2"}}}
		if l.vrf {
			red.VRF = "red"
		}
		c.Networks = append(c.Networks, red)
		o := twoNodes()
		hosts := map[election.Seat]election.Choice{}
		standby := map[string]string{"a": "b", "b": "a"}[host]
		where := "a"
		if l.enters != "pod0" {
			where = "b"
		}
		for i := range l.endpoints {
			key := cluster.Key{Namespace: "shop", Name: fmt.Sprint("s", i/perService)}
			if i%perService == 0 {
				o.EgressServices = o.EgressServices.With(key, cluster.EgressService{
					Network:    "red",
					SourceIPBy: cluster.SourceIPByLoadBalancer,
				})
				o.Services = o.Services.With(key, cluster.Service{
					LoadBalancer: true,
					Ingress:      []cluster.Ingress{{IP: ingressIP(l, i).String()}},
				})
				hosts[election.ServiceSeat(key)] = election.Choice{Host: host, Standby: standby}
			}
			o.Endpoints = o.Endpoints.With(key, append(o.Endpoints.At(key), cluster.Endpoint{Address: l.podAddr(i).String(), Node: where}))
		}
		return putInForce(plan.Snapshot{Node: "a", Config: c, Objects: o, Hosts: hosts})
	}
}

// twoNodes is a cluster of node a, which is measured, and of b.
func twoNodes() cluster.Objects {
	p := netip.MustParsePrefix
	a := netip.MustParseAddr
	node := func(n string, pods ...string) cluster.Node {
		internal := []netip.Addr{a("10.0.0." + n), a("fd00::" + n)}
		return cluster.Node{Ready: true, Addresses: internal, Internal: internal, PodCIDRs: []netip.Prefix{p(pods[0]), p(pods[1])}}
	}
	return cluster.Objects{
		ServiceCIDRs: []netip.Prefix{p("10.96.0.0/12")},
		Nodes: cluster.MapOf(map[string]cluster.Node{
			"a": node("11", "10.64.0.0/14", "fd64::/64"), "b": node("12", "10.68.0.0/14", "fd68::/64"),
		}),
	}
}

// putInForce has the daemon's plan put in force in the thread's namespace.
func putInForce(s plan.Snapshot) error {
	n, err := kernel.Open()
	if err != nil {
		return err
	}
	keep = append(keep, n)
	ctx := context.Background()
	if s.Facts, _, err = n.Facts(ctx, kernel.Record{}, 1001); err != nil {
		return err
	}
	desired, problems := plan.Build(s)
	for _, p := range problems {
		return fmt.Errorf("plan: %w", p)
	}
	r, err := n.Apply(ctx, kernel.Record{}, desired)
	if err == nil && !r.InForce {
		err = errors.New("not in force")
	}
	return err
}

// keep holds the owners of the tables.
var keep []*kernel.Node
