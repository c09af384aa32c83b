package lab

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
)

// ProxyServices stands in for kube-proxy on the nodes named: it replaces their tables `ip kube-proxy` and `ip6 kube-proxy`
// by ones of the same shape and with the same priorities and mark. NodePorts and session affinity are left out.
func (l *Lab) ProxyServices(ctx context.Context, o *cluster.Objects, nodes ...string) error {
	for _, name := range nodes {
		if _, err := l.Nodes[name].Input(ctx, proxyRules(name, o), "nft", "-f", "-"); err != nil {
			return fmt.Errorf("proxy services: %w", err)
		}
	}
	return nil
}

// proxyRules is the script that nft(8) loads on a node.
func proxyRules(node string, o *cluster.Objects) string {
	var b strings.Builder
	for _, f := range []family{
		{table: "ip", address: "ipv4_addr", is: netip.Addr.Is4},
		{table: "ip6", address: "ipv6_addr", is: netip.Addr.Is6},
	} {
		f.render(&b, node, o)
	}
	return b.String()
}

type family struct {
	table, address string
	is             func(netip.Addr) bool
}

const proxyFrame = `table %[1]s kube-proxy
delete table %[1]s kube-proxy
table %[1]s kube-proxy {
	chain nat-prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		jump services
	}
	chain nat-output {
		type nat hook output priority -100; policy accept;
		jump services
	}
	chain nat-postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x4000 == 0 return
		meta mark set meta mark ^ 0x4000
		masquerade fully-random
	}
	chain filter-forward {
		type filter hook forward priority filter; policy accept;
		ct state new jump service-endpoints-check
	}
	chain filter-output {
		type filter hook output priority filter; policy accept;
		ct state new jump service-endpoints-check
	}
	chain service-endpoints-check {
		%[1]s daddr . meta l4proto . th dport vmap @no-endpoint-services
	}
	chain reject-service {
		reject
	}
	chain services {
		%[1]s daddr . meta l4proto . th dport vmap @service-ips
	}
	chain mark-for-masquerade {
		meta mark set meta mark | 0x4000
	}
`

// backend is one endpoint on the port of a service.
type backend struct {
	address netip.Addr
	local   bool
}

func (f family) render(b *strings.Builder, node string, o *cluster.Objects) {
	fmt.Fprintf(b, proxyFrame, f.table)
	inPods := "{ " + strings.Join(f.podRanges(o), ", ") + " }"
	var targets, empty []string // elements of the two maps
	for _, key := range slices.SortedFunc(o.Services.Keys(), cluster.Key.Compare) {
		s := o.Services.At(key)
		backends := f.backends(o.Endpoints.At(key), node)
		for _, port := range s.Ports {
			protocol := strings.ToLower(cmp.Or(port.Protocol, "TCP"))
			name := fmt.Sprintf("%s/%s/%d", key, protocol, port.Port)
			frontends := f.frontends(&s, name, protocol, port.Port)
			if len(backends) == 0 {
				for _, x := range frontends {
					empty = append(empty, x.match+" : goto reject-service")
				}
				continue
			}
			for _, x := range frontends {
				targets = append(targets, x.match+" : goto "+x.chain)
			}
			f.chains(b, name, inPods, protocol, cmp.Or(port.TargetPort, port.Port), backends, s.LocalTraffic)
		}
	}
	f.verdicts(b, "service-ips", targets)
	f.verdicts(b, "no-endpoint-services", empty)
	b.WriteString("}\n")
}

// podRanges returns the nodes' pod CIDRs, sorted, and the host's own address.
func (f family) podRanges(o *cluster.Objects) (pods []string) {
	for _, n := range o.Nodes.All() {
		for _, p := range n.PodCIDRs {
			if f.is(p.Addr()) {
				pods = append(pods, p.String())
			}
		}
	}
	slices.Sort(pods)
	if f.table == "ip6" {
		return append(pods, "::1")
	}
	return append(pods, "127.0.0.0/32")
}

// frontend is an address and a port of a Service, as the key of a map, with the chain for its packets.
type frontend struct{ match, chain string }

// frontends returns those of a Service's port: by its cluster IPs, then by its ingress IPs.
func (f family) frontends(s *cluster.Service, name, protocol string, port uint16) (all []frontend) {
	add := func(a netip.Addr, chain string) {
		if f.is(a) {
			all = append(all, frontend{fmt.Sprintf("%s . %s . %d", a, protocol, port), chain + name})
		}
	}
	for _, a := range s.ClusterIPs {
		add(a, "cluster-")
	}
	for _, in := range s.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			add(a, "external-")
		}
	}
	return all
}

func (f family) backends(endpoints []cluster.Endpoint, node string) []backend {
	var all []backend
	for _, e := range endpoints {
		if a, err := netip.ParseAddr(e.Address); err == nil && f.is(a) {
			all = append(all, backend{a, e.Node == node})
		}
	}
	slices.SortFunc(all, func(x, y backend) int { return x.address.Compare(y.address) })
	return slices.CompactFunc(all, func(x, y backend) bool { return x.address == y.address })
}

// chains writes those of one port of one service: for its cluster IPs, for its ingress IPs, and for its endpoints.
func (f family) chains(b *strings.Builder, name, inPods, protocol string, port uint16, backends []backend, localTraffic bool) {
	chain := func(name string, rules ...string) {
		fmt.Fprintf(b, "\tchain %s {\n\t\t%s\n\t}\n", name, strings.Join(rules, "\n\t\t"))
	}
	endpoint := func(x backend) string {
		return "endpoint-" + name + "__" + strings.ReplaceAll(x.address.String(), ":", ".")
	}
	choose := func(from []backend) string {
		var choice []string
		for i, x := range from {
			choice = append(choice, fmt.Sprintf("%d : goto %s", i, endpoint(x)))
		}
		return fmt.Sprintf("numgen random mod %d vmap { %s }", len(from), strings.Join(choice, ", "))
	}
	for _, x := range backends {
		chain(endpoint(x),
			fmt.Sprintf("%s saddr %s jump mark-for-masquerade", f.table, x.address),
			fmt.Sprintf("meta l4proto %s dnat to %s", protocol, netip.AddrPortFrom(x.address, port)))
	}
	chain("service-"+name, choose(backends))
	chain("cluster-"+name, f.table+" saddr != "+inPods+" jump mark-for-masquerade", "goto service-"+name)
	if !localTraffic {
		chain("external-"+name, "jump mark-for-masquerade", "goto service-"+name)
		return
	}
	toLocal := "drop"
	if local := slices.DeleteFunc(slices.Clone(backends), func(x backend) bool { return !x.local }); len(local) > 0 {
		toLocal = choose(local)
	}
	chain("external-"+name,
		f.table+" saddr "+inPods+" goto service-"+name,
		"fib saddr type local jump mark-for-masquerade",
		"fib saddr type local goto service-"+name,
		toLocal)
}

func (f family) verdicts(b *strings.Builder, name string, elements []string) {
	fmt.Fprintf(b, "\tmap %s {\n\t\ttype %s . inet_proto . inet_service : verdict\n", name, f.address)
	if len(elements) > 0 {
		fmt.Fprintf(b, "\t\telements = { %s }\n", strings.Join(elements, ",\n\t\t\t"))
	}
	b.WriteString("\t}\n")
}
