package trace

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/egressway/egressway/internal/kernel/route"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/kernel/walk"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/internal/text"
)

var (
	addr    = netip.MustParseAddr
	pod     = addr("10.244.1.11")
	outside = addr("198.51.100.10")
	ingress = addr("192.0.2.10")
)

// node returns a node with networks default and red (eth2 in vrf-red), which steers to host b.
func node() *walk.Live {
	rule := func(priority int, mark, mask, table uint32, unreachable bool) walk.LiveRule {
		return walk.LiveRule{Rule: plan.Rule{Priority: priority, Mark: mark, Mask: mask, Table: table, Unreachable: unreachable}}
	}
	return &walk.Live{
		Table: true, Owner: 77, Marks: plan.Marks{Mask: 0x3f00, Priority: 700},
		Paths: []walk.LivePath{
			{ID: 1, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "default"}},
			{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}, Devices: []string{"eth2", "vrf-red"}},
			{ID: 3, Key: plan.PathKey{Kind: plan.PathSteer, Name: "b"}, Devices: []string{"eth1"}},
		},
		Rules: []walk.LiveRule{
			rule(700, 0x1f00, 0x3f00, 254, false), rule(701, 0x2200, 0x3f00, 1001, false), rule(701, 0x2300, 0x3f00, 794603, false),
			rule(798, 0x1f00, 0x3f00, 0, true), rule(799, 0x2100, 0x2100, 0, true), rule(799, 0x2200, 0x2200, 0, true),
		},
		Links:   []plan.Link{{Name: "vrf-red", VRFTable: 1001}, {Name: "eth1"}, {Name: "eth2", Master: "vrf-red"}, {Name: "cni0"}},
		Uplinks: []walk.Uplink{{Device: "eth2", Path: 2}, {Device: "vrf-red", Path: 2}},
	}
}

func report() *status.Report {
	return &status.Report{Node: "a", Ready: true, Services: []status.Service{
		{Namespace: "shop", Name: "web", Network: "red", Host: "a", IngressIPs: []netip.Addr{ingress}, Announced: []netip.Addr{ingress}, Local: 1},
		{Namespace: "shop", Name: "api", Network: "red", Host: "b", Standby: "c", IngressIPs: []netip.Addr{addr("192.0.2.11")}, Local: 1},
		{Namespace: "shop", Name: "lost", Network: "red", IngressIPs: []netip.Addr{addr("192.0.2.12")}, Local: 1},
	}}
}

// selected is the passage of a selected pod's packet through prerouting.
func selected(value string, mark uint32) *walk.Passage {
	return &walk.Passage{
		Chain: "prerouting", Decided: "path-" + value, Mark: mark, ConnectionMark: mark,
		Lookups: []walk.Lookup{{Set: "egress4", Key: pod.String(), Found: true, Value: value}, {Set: "cluster4", Key: outside.String()}},
	}
}

func byRed() *walk.Route {
	return &walk.Route{Table: 1001, Prefix: netip.MustParsePrefix("0.0.0.0/0"), Gateway: addr("10.1.0.1"), Device: "eth2", Protocol: route.Protocol, Legs: 2}
}

func passed(chain string) *walk.Passage { return &walk.Passage{Chain: chain} }

// onHost is the flight of a packet that leaves as planned.
func onHost() *walk.Flight {
	return &walk.Flight{
		Packet: walk.Packet{From: pod, To: outside, In: "cni0"}, Arrive: selected("2", 0x2200), Route: byRed(),
		NAT: &walk.Passage{Chain: "nat", Source: ingress}, Leave: passed("guard"), Source: ingress,
	}
}

func input(f *walk.Flight) *Input {
	return &Input{
		Request: Request{From: pod, To: outside, Proto: "tcp"}, Live: node(), In: "cni0", Flight: f, Report: report(),
		Ingress: walk.Lookup{Set: "ingress4"}, Wanted: &status.Address{Address: pod, Selected: true, Path: "network red", Source: ingress},
	}
}

// denied is the flight of a packet that an EgressFirewall denies.
func denied() *walk.Flight {
	return &walk.Flight{
		Packet: walk.Packet{From: pod, To: outside, In: "cni0"},
		Judged: &walk.Passage{
			Chain: "firewall", Decided: "denied", Rule: 1, Dropped: true,
			Lookups: []walk.Lookup{{Set: "firewalled4", Key: pod.String(), Found: true, Value: "1"}},
		},
		Arrive: passed("prerouting"),
	}
}

// byFirewall is the daemon's plan for such a packet.
var byFirewall = &status.Address{
	Address: pod, Selected: true, Path: "network red", Source: ingress,
	Firewall: "EgressFirewall shop/default, rule 3: Deny 0.0.0.0/0", Denied: true,
}

func TestExplain(t *testing.T) {
	without := func(in *Input, wanted *status.Address) *Input { in.Wanted = wanted; return in }
	steered := func() *walk.Flight {
		f := onHost()
		f.Arrive = selected("3", 0x2300)
		f.Route = &walk.Route{Table: 794603, Gateway: addr("10.0.0.12"), Device: "eth1", Protocol: route.Protocol, Legs: 1}
		f.NAT.Source, f.Source = pod, pod
		return f
	}
	// shared has hosts share path 3: the kernel leads the pod's packets to the host at this address, which invalid drops.
	shared := func(at string) func(*Input) {
		return func(in *Input) {
			in.Live.Paths[2] = walk.LivePath{ID: 3, Key: plan.PathKey{Kind: plan.PathShared, Name: "tunnel"}, Devices: []string{"egressway"}}
			in.Flight.Route.Gateway, in.Flight.Route.Device = addr("fe80::ff:fe00:0"), "egressway"
			in.Flight.Shared = &walk.SharedHost{Set: "hosts4"}
			if at != "" {
				in.Flight.Shared.MAC, in.Flight.Shared.At = plan.MAC{2, 1}, addr(at)
			}
		}
	}
	byShared := &status.Address{Selected: true, Path: "steer b", Source: pod, HostAt: addr("10.0.0.12")}
	unreached := func(err error) *walk.Flight {
		return &walk.Flight{Packet: walk.Packet{From: pod, To: outside, In: "cni0"}, Arrive: selected("2", 0x2200), Route: &walk.Route{Err: err}}
	}
	unselected := func() *walk.Flight {
		return &walk.Flight{
			Packet: walk.Packet{From: pod, To: outside, In: "cni0"},
			Arrive: &walk.Passage{Lookups: []walk.Lookup{{Set: "egress4", Key: pod.String()}}},
			Route:  &walk.Route{Table: 254, Gateway: addr("10.0.0.1"), Device: "eth1", Protocol: unix.RTPROT_STATIC, Legs: 1},
			NAT:    passed("nat"), Leave: passed("guard"), Source: pod,
		}
	}
	heldPod := func() *walk.Flight {
		return &walk.Flight{
			Packet: walk.Packet{From: pod, To: outside, In: "cni0"},
			Arrive: &walk.Passage{
				Dropped: true, Decided: "held", Rule: 3, Why: ruleset.DropHeld.Counter(),
				Lookups: []walk.Lookup{{Set: "egress4", Key: pod.String()}, {Set: "pods4", Found: true}, {Set: "let4"}, {Set: "cluster4"}},
			},
		}
	}
	const unnamed = " (for ports that no rule of the EgressFirewall names; --dport asks about one)"
	judgedByPort := []walk.Lookup{
		{Set: "firewalled4", Key: pod.String(), Found: true, Value: "1"},
		{Set: "policy-1-0", Key: outside.String(), Found: true, Value: "policy-1-0-ports-0"},
		{Set: "policy-1-0-ports-0-deny", Key: "0x060000000019"},
	}
	const toIngress = "stays in the cluster: 192.0.2.10 is an ingress IP, which a Service handles; without one, the packet is dropped"
	exempt := func(to string, l walk.Lookup) *Input {
		in := input(&walk.Flight{
			Packet: walk.Packet{From: pod, To: addr(to), In: "cni0"},
			Arrive: &walk.Passage{Decided: "exempt", Lookups: []walk.Lookup{{Set: "egress4", Key: pod.String(), Found: true, Value: "2"}, l}},
			Route:  &walk.Route{Table: 254, Device: "eth1"},
		})
		in.To = addr(to)
		return in
	}
	for name, test := range map[string]struct {
		in       *Input
		edit     func(*Input)
		kind     Kind
		verdict  string
		services string
		differs  string
		damage   string
		step     string // one of the steps
	}{
		"leaves": {
			in: input(onHost()), kind: Leaves, verdict: "leaves by red (vrf-red, eth2 via 10.1.0.1) as 192.0.2.10", services: "shop/web",
			step: "0.0.0.0/0 via 10.1.0.1 by eth2, table 1001 (vrf-red), learned from a peer, one of 2 next hops, by flow",
		},
		"without a daemon": {
			in: input(onHost()), edit: func(in *Input) { in.Report, in.Wanted, in.Silent, in.Live.Owner = nil, nil, "no daemon answers", 0 },
			kind: Leaves, verdict: "leaves by red (vrf-red, eth2 via 10.1.0.1) as 192.0.2.10", step: "present, without an owner: no daemon runs, and the last one's rules stay in force",
		},
		"handed": {
			in:   without(input(steered()), &status.Address{Selected: true, Path: "steer b", Source: pod}),
			kind: Handed, verdict: "handed to host b (direct: eth1 via 10.0.0.12)", services: "shop/api",
		},
		"handed by the tunnel": {
			in: without(input(steered()), &status.Address{Selected: true, Path: "steer b", Source: pod}),
			edit: func(in *Input) {
				in.Flight.Route.Gateway, in.Flight.Route.Device, in.Live.Links[1].Name = addr("fe80::1"), "egressway", "egressway"
			},
			kind: Handed, verdict: "handed to host b (vxlan: egressway via fe80::1)", services: "shop/api",
		},
		"handed by the shared path": {
			in: without(input(steered()), byShared), edit: shared("10.0.0.12"), kind: Handed, services: "shop/api",
			verdict: "handed to host b (vxlan: egressway to 10.0.0.12)", step: "10.244.1.11 : 02:01:00:00:00:00, which the tunnel leads to 10.0.0.12",
		},
		"handed to another host than wanted": {
			in: without(input(steered()), byShared), edit: shared("10.0.0.13"), kind: Handed,
			verdict: "handed to host at 10.0.0.13 (vxlan: egressway to 10.0.0.13)",
			differs: "the daemon wants 10.244.1.11 to be steered to host b but the kernel has it steered to another host, by the path that hosts share" +
				": repaired within 10 s, or see the daemon's log",
		},
		"without a host on the shared path": {
			in: without(input(steered()), byShared), edit: shared(""), kind: Dropped,
			verdict: "dropped by the tunnel: set hosts4 of table netdev egressway has no host for 10.244.1.11",
			differs: "the daemon wants 10.244.1.11 to be steered to host b but the kernel has it steered to another host, by the path that hosts share" +
				": repaired within 10 s, or see the daemon's log",
		},
		"masqueraded": {
			in: without(input(onHost()), &status.Address{Selected: true, Path: "network red"}),
			edit: func(in *Input) {
				in.Flight.NAT, in.Flight.Source = &walk.Passage{Masquerade: true}, addr("10.1.0.11")
			},
			kind: Leaves, verdict: "leaves by red (vrf-red, eth2 via 10.1.0.1) as 10.1.0.11", step: "10.1.0.11, the address of eth2",
		},
		"masqueraded without an address": {
			in: without(input(onHost()), &status.Address{Selected: true, Path: "network red"}),
			edit: func(in *Input) {
				in.Flight.NAT = &walk.Passage{Chain: "nat", Decided: "snat", Rule: 2, Masquerade: true, Dropped: true}
				in.Flight.Leave, in.Flight.Source = nil, netip.Addr{}
			},
			kind: Dropped, verdict: "dropped: no device has an address that it could leave with by eth2",
		},
		"with the address of the loopback device": {
			in: without(input(onHost()), &status.Address{Selected: true, Path: "network red", Source: addr("10.255.0.11")}),
			edit: func(in *Input) {
				in.Flight.NAT.Source, in.Flight.Source = addr("10.255.0.11"), addr("10.255.0.11")
				in.Live.Links = append(in.Live.Links, plan.Link{Name: "lo", Addrs: []netip.Prefix{netip.MustParsePrefix("10.255.0.11/32")}})
			},
			kind: Leaves, verdict: "leaves by red (vrf-red, eth2 via 10.1.0.1) as 10.255.0.11", step: "10.255.0.11, the address of lo",
		},
		"with the address of the VRF device": {
			in: without(input(onHost()), &status.Address{Selected: true, Path: "network red", Source: addr("10.1.0.11")}),
			edit: func(in *Input) {
				in.Flight.NAT.Source, in.Flight.Source = addr("10.1.0.11"), addr("10.1.0.11")
				in.Live.Links[0].Addrs = []netip.Prefix{netip.MustParsePrefix("10.1.0.11/32")}
				in.Report.Services = append(in.Report.Services, status.Service{Namespace: "shop", Name: "batch", Network: "red", Host: "ALL", Local: 1})
			},
			kind: Leaves, verdict: "leaves by red (vrf-red, eth2 via 10.1.0.1) as 10.1.0.11", services: "shop/batch",
			step: "10.1.0.11, the address of vrf-red",
		},
		"no route": {
			in: input(unreached(unix.ENETUNREACH)), kind: Dropped, verdict: "dropped: no route to 198.51.100.10 in table 1001", services: "shop/web",
		},
		"no route at all": {
			in: input(unreached(unix.ENETUNREACH)), edit: func(in *Input) { in.Routed = map[uint32]plan.Families{1001: {IPv6: true}} }, kind: Dropped,
			verdict: "dropped: no route to 198.51.100.10 in table 1001, which has no IPv4 route that leads anywhere", services: "shop/web",
		},
		"no rule": {
			in: input(unreached(unix.ENETUNREACH)), edit: func(in *Input) { in.Live.Rules = in.Live.Rules[3:] }, kind: Dropped, services: "shop/web",
			verdict: "dropped: no rule leads mark 0x2200 to its path's table", step: "799: mark 0x2200/0x2200 to unreachable: the rule to the path's table is missing",
		},
		"reverse path filter": {
			in: input(unreached(unix.EXDEV)), kind: Dropped, services: "shop/web",
			verdict: "dropped: the reverse path filter of cni0 drops it: set net.ipv4.conf.cni0.rp_filter to 2, and src_valid_mark to 0 on cni0 and on all",
		},
		"guard": {
			in: input(onHost()), edit: func(in *Input) {
				in.Flight.Leave = &walk.Passage{Chain: "guard", Dropped: true, Decided: "guard-2"}
				in.Flight.Route.Device = "eth1"
			},
			kind: Dropped, verdict: "dropped: by the guard, since it would leave by eth1, which is not a device of network red (eth2, vrf-red)", services: "shop/web",
		},
		"no path": {
			in: input(&walk.Flight{
				Packet: walk.Packet{From: pod, To: outside},
				Arrive: &walk.Passage{Dropped: true, Decided: "no-path", Lookups: []walk.Lookup{{Set: "egress4", Found: true, Value: "0"}, {Set: "cluster4"}}},
			}),
			edit: func(in *Input) { in.Wanted.Path = "" }, kind: Dropped,
			verdict: "dropped: 10.244.1.11 is selected but has no path on this node: there is no host for it, or its network is not usable here",
		},
		"held, not known": {
			in: without(input(heldPod()), &status.Address{Held: "no running Pod of this node is known to have it"}), kind: Dropped,
			verdict: "dropped: held, since no running Pod of this node is known to have it; it goes once it is an endpoint: find its Pod with " +
				"kubectl get pods -A -o wide --field-selector status.podIP=10.244.1.11, and check whether an EndpointSlice of its Service lists it",
			step: "no: new flows to the outside wait until 10.244.1.11 is an endpoint, or the address of a Pod that no entry of hold selects",
		},
		"held, without a daemon": {
			in: input(heldPod()), edit: func(in *Input) { in.Report, in.Wanted, in.Silent, in.Live.Owner = nil, nil, "no daemon answers", 0 }, kind: Dropped,
			verdict: "dropped: held, since it is not an endpoint of an EgressService, and no known Pod of this node that hold lets go has it; " +
				"it goes once it is an endpoint: find its Pod with kubectl get pods -A -o wide --field-selector status.podIP=10.244.1.11, and check whether an EndpointSlice of its Service lists it",
		},
		"held, but let go": {
			in: without(input(heldPod()), &status.Address{}), kind: Dropped,
			verdict: "dropped: held, since it is not an endpoint of an EgressService, and no known Pod of this node that hold lets go has it; " +
				"it goes once it is an endpoint: find its Pod with kubectl get pods -A -o wide --field-selector status.podIP=10.244.1.11, and check whether an EndpointSlice of its Service lists it",
			differs: "the daemon lets 10.244.1.11 go but the kernel holds it: repaired within 10 s, or see the daemon's log",
		},
		"not selected": {
			in: without(input(unselected()), &status.Address{}), kind: Unselected,
			verdict: "not selected: leaves like any pod of this node, by the main table and the CNI's masquerade (eth1 via 10.0.0.1)",
		},
		"not selected, but wanted": {
			in: input(unselected()), kind: Unselected,
			verdict: "not selected: leaves like any pod of this node, by the main table and the CNI's masquerade (eth1 via 10.0.0.1)",
			differs: "the daemon wants 10.244.1.11 to be sent by network red but the kernel has it not selected: repaired within 10 s, or see the daemon's log",
		},
		"another source than wanted": {
			in: input(onHost()), edit: func(in *Input) { in.Wanted.Source = addr("192.0.2.99") }, kind: Leaves, services: "shop/web",
			verdict: "leaves by red (vrf-red, eth2 via 10.1.0.1) as 192.0.2.10",
			differs: "the daemon wants 10.244.1.11 to leave as 192.0.2.99 but the kernel has 192.0.2.10: repaired within 10 s, or see the daemon's log",
		},
		"table missing": {
			in: input(unselected()), edit: func(in *Input) {
				in.Live.Table, in.Live.Damage, in.Flight.Arrive.Lookups = false, []string{"nftables table inet egressway is missing although our routing rules exist"}, nil
			},
			kind: Damaged, verdict: "damaged: nftables table inet egressway is missing, so 10.244.1.11 goes like any pod of this node, by eth1 via 10.0.0.1",
			differs: "the daemon wants nftables table inet egressway but the kernel has none: recreated within 10 s, or see the daemon's log",
			damage:  "nftables table inet egressway is missing although our routing rules exist",
		},
		"prerouting flushed": {
			in: without(input(unselected()), &status.Address{}), edit: func(in *Input) { in.Flight.Arrive.Lookups = nil },
			kind: Damaged, verdict: "damaged: no rule looks 10.244.1.11 up, so it goes like any pod of this node, by eth1 via 10.0.0.1",
		},
		"not marked": {
			in: input(onHost()), edit: func(in *Input) { in.Flight.Arrive.Mark = 0 }, kind: Damaged, services: "shop/web",
			verdict: "damaged: our rules do not mark it, so it should go by network red but goes by eth2 via 10.1.0.1 (table 1001)",
		},
		"own source": {
			in: input(onHost()), edit: func(in *Input) { in.Flight.NAT, in.Flight.Source = passed("nat"), pod }, kind: Damaged,
			verdict: "damaged: leaves by red (vrf-red, eth2 via 10.1.0.1) with its own address", services: "shop/web",
			differs: "the daemon wants 10.244.1.11 to leave as 192.0.2.10 but the kernel has no source for it: repaired within 10 s, or see the daemon's log",
		},
		"in the cluster": {
			in: exempt("10.244.2.7", walk.Lookup{Set: "cluster4", Found: true, Value: "10.244.0.0/16"}), kind: Cluster, services: "shop/web",
			verdict: "stays in the cluster: 10.244.2.7 is in 10.244.0.0/16: such packets are never steered, and keep their source",
		},
		"this node's own": {
			in: exempt("10.0.0.11", walk.Lookup{Set: "cluster4"}), kind: Cluster, services: "shop/web",
			verdict: "stays in the cluster: 10.0.0.11 is an address of this node, or not a unicast address",
		},
		"an ingress IP": {
			in:   exempt("192.0.2.10", walk.Lookup{Set: "cluster4"}),
			edit: func(in *Input) { in.Ingress.Found = true }, kind: Cluster, services: "shop/web", verdict: toIngress,
		},
		"an ingress IP, from a pod that is not selected": {
			in: without(input(unselected()), &status.Address{}), kind: Cluster, verdict: toIngress,
			edit: func(in *Input) {
				in.To, in.Ingress.Found = ingress, true
				in.Flight.NAT = &walk.Passage{Chain: "nat", Decided: "unclaimed", Rule: 2, Dropped: true}
			},
		},
		"an ingress IP, from a held pod": {
			in: without(input(heldPod()), &status.Address{Held: "no running Pod of this node is known to have it"}), kind: Cluster, verdict: toIngress,
			edit: func(in *Input) { in.To, in.Ingress.Found, in.Flight.Arrive.Decided = ingress, true, "exempt" },
		},
		"an ingress IP, without a daemon": {
			in: input(heldPod()), kind: Cluster, verdict: toIngress,
			edit: func(in *Input) { in.To, in.Ingress.Found, in.Report, in.Wanted = ingress, true, nil, nil },
		},
		"an ingress IP, with an EgressFirewall": {
			in: without(input(denied()), byFirewall), kind: Cluster, verdict: toIngress, edit: func(in *Input) { in.To, in.Ingress.Found = ingress, true },
		},
		"an ingress IP, with an EgressFirewall and IPVS": {
			in: without(input(denied()), byFirewall), kind: Dropped, verdict: "dropped: " + byFirewall.Firewall,
			edit: func(in *Input) {
				in.To, in.Ingress.Found = ingress, true
				in.Live.Links = append(in.Live.Links, plan.Link{Name: "kube-ipvs0", Addrs: []netip.Prefix{netip.PrefixFrom(ingress, 32)}})
			},
		},
		"denied, like every port": {
			in: without(input(denied()), byFirewall), kind: Dropped, verdict: "dropped: " + byFirewall.Firewall,
			step: "denied: " + byFirewall.Firewall,
		},
		"denied, like ports that no rule names": {
			in: without(input(denied()), byFirewall), kind: Dropped, verdict: "dropped: " + byFirewall.Firewall + unnamed,
			edit: func(in *Input) { in.Flight.Judged.Lookups = judgedByPort }, step: "denied: " + byFirewall.Firewall + unnamed,
		},
		"denied by its port": {
			in: without(input(denied()), byFirewall), kind: Dropped, verdict: "dropped: " + byFirewall.Firewall,
			edit: func(in *Input) { in.Flight.Judged.Lookups, in.Port = judgedByPort, 25 }, step: "denied: " + byFirewall.Firewall,
		},
		"denied, without a port": {
			in: without(input(denied()), byFirewall), kind: Dropped, verdict: "dropped: " + byFirewall.Firewall,
			edit: func(in *Input) { in.Flight.Judged.Lookups, in.Proto = judgedByPort, "icmp" },
		},
		"allowed, like ports that no rule names": {
			in: input(onHost()), kind: Leaves, services: "shop/web", verdict: "leaves by red (vrf-red, eth2 via 10.1.0.1) as 192.0.2.10" + unnamed,
			edit: func(in *Input) { in.Flight.Judged = &walk.Passage{Chain: "firewall", Lookups: judgedByPort} },
			step: "allowed: no rule of an EgressFirewall matches" + unnamed,
		},
		"an address of an EgressIP": {
			in: without(input(unselected()), &status.Address{}), kind: Dropped, verdict: "dropped: its destination is an ingress IP that no Service handles",
			edit: func(in *Input) {
				in.To, in.Ingress.Found = addr("192.0.2.20"), true
				in.Report.EgressIPs = []status.Service{{Name: "mail", Network: "red", Host: "a", IngressIPs: []netip.Addr{in.To}}}
				in.Flight.NAT = &walk.Passage{Chain: "nat", Decided: "unclaimed", Rule: 2, Dropped: true}
			},
		},
		"an address of an EgressIP, from a selected pod": {
			in: input(onHost()), kind: Dropped, verdict: "dropped: its destination is an ingress IP that no Service handles", services: "shop/web",
			edit: func(in *Input) {
				in.To, in.Ingress.Found = addr("192.0.2.20"), true
				in.Report.EgressIPs = []status.Service{{Name: "mail", Network: "red", Host: "a", IngressIPs: []netip.Addr{in.To}}}
				in.Flight.Arrive.Dropped, in.Flight.Arrive.Decided, in.Flight.Route, in.Flight.NAT = true, "exempt", nil, nil
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.edit != nil {
				test.edit(test.in)
			}
			r := Explain(test.in)
			require.Equal(t, test.verdict, r.Verdict.Text)
			require.Equal(t, test.kind, r.Verdict.Kind)
			require.Equal(t, test.services, strings.Join(r.Services, " "))
			require.Equal(t, test.differs, strings.Join(r.Differences, " "))
			require.Equal(t, test.damage, strings.Join(r.Damage, " "))
			require.Equal(t, test.kind != Dropped && test.kind != Damaged && test.damage == "", r.Fine())
			if test.step != "" {
				var steps []string
				for _, s := range r.Steps {
					steps = append(steps, s.Found)
				}
				require.Contains(t, steps, test.step)
			}
		})
	}
}

// quiet makes node a, which announces no ingress IP, know the network red.
func quiet(in *Input, n status.Network) {
	n.Name = "red"
	in.Report.Networks, in.Report.Services[0].Announced = []status.Network{n}, nil
}

// fromOutside is a connection from a client to an ingress IP through red, with its reply.
func fromOutside() *Input {
	answer := onHost()
	answer.Packet = walk.Packet{From: addr("0.0.0.0"), To: outside}
	answer.Arrive = &walk.Passage{Decided: "reply-2", Mark: 0x2200, ConnectionMark: 0x0200}
	answer.NAT, answer.Source = nil, ingress
	return &Input{
		Request: Request{From: outside, To: ingress, Proto: "tcp", Port: 80}, Live: node(), Report: report(),
		Ingress: walk.Lookup{Set: "ingress4", Found: true},
		Inbound: []Inbound{{
			Path: node().Paths[1], Device: "eth2", Arrive: &walk.Passage{Decided: "from-2", Mark: 0x1f00, ConnectionMark: 0x0200}, Answer: answer,
		}},
	}
}

func TestExplainInbound(t *testing.T) {
	const repliesByRed = "replies leave by red (vrf-red, eth2 via 10.1.0.1) as 192.0.2.10"
	for name, test := range map[string]struct {
		edit    func(*Input)
		kind    Kind
		verdict string
		step    string
	}{
		"to the host": {kind: Leaves, verdict: "replies leave by red (vrf-red, eth2 via 10.1.0.1) as 192.0.2.10", step: "by this node in red"},
		"without a daemon": {
			edit: func(in *Input) { in.Report = nil }, kind: Leaves, verdict: "replies leave by red (vrf-red, eth2 via 10.1.0.1) as 192.0.2.10", step: "yes",
		},
		"not announced here": {
			edit: func(in *Input) { in.To = addr("192.0.2.11") }, kind: Elsewhere,
			verdict: "not announced by this node: routers send it to host b; ask there", step: "not by this node: host is b",
		},
		"without a host": {
			edit: func(in *Input) { in.To = addr("192.0.2.12") }, kind: Dropped,
			verdict: "not announced: EgressService shop/lost has no host, so no router has a way to 192.0.2.12", step: "by no node: the service has no host",
		},
		"to the host, without peers": {
			edit: func(in *Input) { quiet(in, status.Network{Usable: true}) }, kind: Leaves, verdict: repliesByRed,
			step: "not by this node, although it is a host: network red has no peers here, so another program, such as MetalLB, announces it",
		},
		"to the host, held down": {
			edit: func(in *Input) { quiet(in, status.Network{Usable: true, Sessions: 2, SessionsUp: 2, HeldDown: true}) }, kind: Leaves,
			verdict: repliesByRed, step: "network red is held down until the role of this node is confirmed",
		},
		"to the host, without a session": {
			edit: func(in *Input) { quiet(in, status.Network{Usable: true, Sessions: 2}) }, kind: Leaves,
			verdict: repliesByRed, step: "no BGP session of network red is up",
		},
		"to the host, before its session": {
			edit: func(in *Input) { quiet(in, status.Network{Usable: true, Sessions: 2, SessionsUp: 1}) }, kind: Leaves,
			verdict: repliesByRed, step: "no BGP session of network red has sent it",
		},
		"to the host, without its network": {
			edit: func(in *Input) { quiet(in, status.Network{Lacks: "eth2 is missing"}) }, kind: Leaves,
			verdict: repliesByRed, step: "network red is not usable here: eth2 is missing",
		},
		"to one of all hosts": {
			edit: func(in *Input) {
				quiet(in, status.Network{Usable: true, Sessions: 2, SessionsUp: 2})
				in.Report.Services[0].Host, in.Report.Services[0].Local = "ALL", 0
			}, kind: Leaves, verdict: repliesByRed, step: "no endpoint is on this node, or no BGP session of network red has sent it",
		},
		"to the host, without peers, where replies go astray": {
			edit: func(in *Input) {
				quiet(in, status.Network{Usable: true})
				in.Inbound[0].Answer.Arrive.Mark = 0
			}, kind: Damaged, verdict: "damaged: replies to connections that came in by red are not routed back there",
		},
		"nobody's": {
			edit: func(in *Input) { in.To, in.Ingress.Found = addr("192.0.2.99"), false }, kind: Dropped,
			verdict: "unknown: 192.0.2.99 is not an ingress IP known to this node; our rules ignore it",
		},
		"not in the kernel": {
			edit: func(in *Input) { in.Ingress.Found, in.IngressWanted = false, &status.Address{Ingress: true} }, kind: Damaged,
			verdict: "damaged: 192.0.2.10 is an ingress IP of EgressService shop/web, network red, but it is missing in this node's kernel",
		},
		"replies go astray": {
			edit: func(in *Input) { in.Inbound[0].Answer.Arrive.Mark = 0 }, kind: Damaged,
			verdict: "damaged: replies to connections that came in by red are not routed back there",
		},
		"dropped": {
			edit: func(in *Input) { in.Inbound[0].Arrive = &walk.Passage{Dropped: true, Decided: "from-2", Rule: 9} }, kind: Dropped,
			verdict: "dropped when it comes in by red: rule 9 of chain from-2",
		},
		"by network default": {
			edit: func(in *Input) { in.Inbound = []Inbound{{Path: node().Paths[0]}} }, kind: Leaves,
			verdict: "replies leave by the main table (network default)", step: "by network default: routed by the main table; replies leave",
		},
		"by network default, whose strays go on": {
			edit: func(in *Input) {
				in.Inbound = []Inbound{{
					Path: node().Paths[0], Handed: walk.Lookup{Set: "handed4", Found: true}, Stray: walk.Lookup{Set: "strays4", Found: true, Value: "3"},
				}}
			}, kind: Leaves,
			verdict: "replies leave by the main table (network default)",
			step:    "packets of no connection here go on to node b with a hop limit of 8, unless they come with 8 or less",
		},
		"on a node without its network": {
			edit: func(in *Input) { in.Inbound = nil }, kind: Unselected,
			verdict: "this node has no network by which it may come in: the main table routes such a connection and its replies, and our rules do not apply",
		},
		"no way back": {
			edit: func(in *Input) { in.Inbound[0].Answer.Route = &walk.Route{Err: unix.ENETUNREACH} }, kind: Dropped,
			verdict: "dropped: no route to 198.51.100.10 in table 1001",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := fromOutside()
			if test.edit != nil {
				test.edit(in)
			}
			r := Explain(in)
			require.Equal(t, test.verdict, r.Verdict.Text)
			require.Equal(t, test.kind, r.Verdict.Kind)
			if test.step != "" {
				var steps []string
				for _, s := range r.Steps {
					steps = append(steps, s.Found)
				}
				require.Contains(t, strings.Join(steps, "\n"), test.step)
			}
		})
	}
}

// TestExplainConnections has existing connections of a pod that has no path now, of one that a firewall denies, and of one to a Service.
func TestExplainConnections(t *testing.T) {
	unmarked := func() *walk.Flight {
		return &walk.Flight{
			Packet: walk.Packet{From: pod, To: outside, In: "cni0"},
			Arrive: &walk.Passage{Lookups: []walk.Lookup{{Set: "egress4", Key: pod.String()}}},
			Route:  &walk.Route{Table: 254, Gateway: addr("10.0.0.1"), Device: "eth1"}, NAT: passed("nat"), Leave: passed("guard"), Source: pod,
		}
	}
	noPath := func() *walk.Flight {
		return &walk.Flight{
			Packet: walk.Packet{From: pod, To: outside},
			Arrive: &walk.Passage{Dropped: true, Decided: "no-path", Lookups: []walk.Lookup{{Set: "egress4", Found: true, Value: "0"}, {Set: "cluster4"}}},
		}
	}
	known := func(mark uint32, source netip.Addr, f *walk.Flight) KnownFlow {
		return KnownFlow{walk.LiveFlow{
			Src: netip.AddrPortFrom(pod, 40000), Dst: netip.AddrPortFrom(outside, 80), Leaves: netip.AddrPortFrom(source, 40000), Mark: mark,
		}, f}
	}
	byNetwork, bySteering, byNone := known(0x2200, ingress, onHost()), known(0x2300, pod, onHost()), known(0, addr("10.0.0.11"), unmarked())
	cameIn := known(0x0200, pod, unmarked())
	lost := known(0x2200, ingress, &walk.Flight{Arrive: passed("prerouting"), Judged: &walk.Passage{Dropped: true, Decided: "firewall"}})
	for name, test := range map[string]struct {
		flight *walk.Flight
		edit   func(*Input)
		kind   Kind
		flows  []KnownFlow
		kinds  []Kind
	}{
		"of a pod that leaves": {
			flight: onHost(), kind: Leaves, flows: []KnownFlow{byNetwork, bySteering, byNone, cameIn, lost},
			kinds: []Kind{Leaves, Handed, Unselected, Unselected, Dropped},
		},
		"of a pod that is not selected": {flight: unmarked(), kind: Unselected, flows: []KnownFlow{byNetwork, byNone}, kinds: []Kind{Leaves, Unselected}},
		"of a pod without a path":       {flight: noPath(), kind: Dropped, flows: []KnownFlow{byNetwork, bySteering}, kinds: []Kind{Leaves, Handed}},
		"of a pod that a firewall denies": {
			flight: denied(), kind: Dropped, flows: []KnownFlow{byNetwork, byNone, lost}, kinds: []Kind{Leaves, Unselected, Dropped},
		},
		"to a Service": {
			flight: unmarked(), edit: func(in *Input) { in.To, in.Ingress.Found = ingress, true }, kind: Cluster,
			flows: []KnownFlow{byNone, byNetwork}, kinds: []Kind{Cluster, Leaves},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(test.flight)
			in.Flows = test.flows
			if test.edit != nil {
				test.edit(in)
			}
			r := Explain(in)
			require.Equal(t, test.kind, r.Verdict.Kind, r.Verdict.Text)
			kinds := []Kind{}
			for _, f := range r.Flows {
				kinds = append(kinds, f.Kind)
			}
			require.Equal(t, test.kinds, kinds)
		})
	}
}

func TestWriteText(t *testing.T) {
	in := input(onHost())
	in.Flows = []KnownFlow{{
		LiveFlow: walk.LiveFlow{Src: netip.AddrPortFrom(pod, 40000), Dst: netip.AddrPortFrom(outside, 80), Leaves: netip.AddrPortFrom(ingress, 40000), Mark: 0x2200},
		Flight:   onHost(),
	}}
	var out bytes.Buffer
	require.NoError(t, Explain(in).WriteText(&out, text.Colours{}))
	require.Equal(t, `10.244.1.11 to 198.51.100.10, tcp, on node a

  1.  rules        present, owned by the daemon                                                                            (nft table inet egressway)
  2.  comes in     by cni0                                                                                                 (route to 10.244.1.11)
  3.  selected     yes, path 2: network red, EgressService shop/web                                                        (set egress4: 10.244.1.11 : 2)
  4.  destination  outside of the cluster                                                                                  (set cluster4)
  5.  mark         0x2200/0x3f00: egress by path 2                                                                         (chain path-2)
  6.  rule         701: mark 0x2200/0x3f00 to table 1001                                                                   (ip rule)
  7.  route        0.0.0.0/0 via 10.1.0.1 by eth2, table 1001 (vrf-red), learned from a peer, one of 2 next hops, by flow  (ip route get 198.51.100.10 from 10.244.1.11 iif cni0 mark 0x2200)
  8.  source       192.0.2.10, the ingress IP                                                                              (set source4)
  9.  guard        passes                                                                                                  (chain guard)

Existing connections:
  tcp 10.244.1.11:40000 to 198.51.100.10:80, on path 2 (network red), as 192.0.2.10: stays on this path

=> leaves by red (vrf-red, eth2 via 10.1.0.1) as 192.0.2.10
`, out.String())
	out.Reset()
	require.NoError(t, Explain(in).WriteText(&out, text.AlwaysColours()))
	require.Contains(t, out.String(), "\x1b[32m=> leaves by red")
}
