package main

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/lab/bench/internal/figures"
)

// The kinds of packets.
const (
	established = "established"   // of a selected pod's flow, to the outside
	answers     = "answers"       // of that flow, back
	fresh       = "first packets" // of selected pods' flows
	passing     = "unselected pod"
	passingBack = "its answers"
	passingNew  = "its first packets"
	local       = "node itself"
	pingPong    = "question and answer" // of a selected pod, its own sockets and those outside included
)

var kinds = []string{established, answers, fresh, passing, passingBack, passingNew, local, pingPong}

const (
	flows    = 1024 // that packets of established flows belong to
	newFlows = 8192
)

// subject is a node with a layout, and its measurements.
type subject struct {
	*bed
	layout
	name    string
	streams map[string]*stream
	socket  int // of the node, to the outside
	ends    [2]int
	took    map[string][]float64 // ns per packet, by round
	scale   int                  // a batch is smaller by that
}

type bench struct {
	subjects []*subject
	only     []string
	size     int
	parts    bool
}

// entry describes a subject that is not built yet.
type entry struct {
	name string
	l    layout
}

func (b *bench) prepare() error {
	const members = 10_000
	own := layout{pods: ownPods, enters: "pod0", device: "eth2", source: ingressIP}
	with := func(l layout, endpoints int, setup func(layout) error) layout {
		l.endpoints, l.setup = endpoints, setup
		return l
	}
	eth1 := own
	eth1.device = "eth1"
	noNAT := eth1
	noNAT.source = unchanged
	ruled := own
	ruled.source = unchanged
	one := eth1
	one.source = oneSource
	oneRule := own
	oneRule.source = oneSource
	all := []entry{
		{"forwarding", with(noNAT, members, plain)},
		{"forwarding, one routing rule", with(ruled, members, oneRoutingRule)},
		{"one SNAT rule", with(one, members, staticSNAT)},
		{"one SNAT rule, one routing rule", with(oneRule, members, staticRule)},
	}
	numbered := func(format string, n int) string { return fmt.Sprintf(format, figures.Count(n)) }
	for _, n := range []int{1, 100, 1000, 10_000} {
		all = append(all, entry{numbered("a rule per endpoint, %s", n), with(own, n, rulePerEndpoint)})
	}
	direct := egressway(config.SteeringDirect, "a")
	for _, n := range []int{1, 100, 1000, 10_000, 50_000} {
		all = append(all, entry{numbered("egressway, %s", n), with(own, n, direct)})
	}
	for _, n := range []int{1, 10_000} {
		all = append(all, entry{numbered("egressway, counting services, %s", n), with(own, n, egressway(config.SteeringDirect, "a", true))})
	}
	// Cluster rules masquerade packets without another source: those of unselected pods get the node's.
	masquerading := noNAT
	masquerading.source = func(layout, int) netip.Addr { return netip.MustParseAddr("10.0.0.11") }
	steered := noNAT
	host := own
	host.pods, host.enters = farPods, "eth1"
	all = append(all,
		entry{"cluster", with(masquerading, members, func(layout) error { return clusterRules() })},
		entry{"cluster, egressway, 10,000", with(own, members, func(l layout) error {
			if err := clusterRules(); err != nil {
				return err
			}
			return direct(l)
		})},
		entry{"egressway, 10,000, steered to a neighbour", with(steered, members, egressway(config.SteeringDirect, "b"))},
		entry{"egressway, 10,000, of a neighbour's pods", with(host, members, direct)},
	)
	six := func(l layout) layout { l.v6 = true; return l }
	all = append(all,
		entry{"IPv6, forwarding", with(six(noNAT), members, plain)},
		entry{"IPv6, one SNAT rule", with(six(one), members, staticSNAT)},
		entry{"IPv6, egressway, 10,000", with(six(own), members, direct)},
	)
	all = slices.Concat(all, firewalls(noNAT), qosLayouts(noNAT), egressIPLayouts(own))
	if canVRF() {
		vrf := func(l layout) layout { l.vrf = true; return l }
		all = append(all,
			entry{"VRF, forwarding", with(vrf(noNAT), members, plain)},
			entry{"VRF, one SNAT rule, one routing rule", with(vrf(oneRule), members, staticRule)},
		)
		for _, n := range []int{1, 10_000, 50_000} {
			all = append(all, entry{numbered("VRF, egressway, %s", n), with(vrf(own), n, direct)})
		}
	} else {
		fmt.Fprintln(os.Stderr, "this kernel has no VRF devices: layouts with them are left out")
	}
	if b.parts {
		all = parts(noNAT)
	}
	for _, e := range all {
		if len(b.only) > 0 && !slices.ContainsFunc(b.only, func(w string) bool { return strings.Contains(e.name, w) }) {
			continue
		}
		began := time.Now()
		s, err := newSubject(e.name, e.l)
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		b.subjects = append(b.subjects, s)
		fmt.Fprintf(os.Stderr, "%s: ready after %s\n", e.name, time.Since(began).Round(time.Millisecond))
	}
	return nil
}

func newSubject(name string, l layout) (*subject, error) {
	bed, err := newBed(name, l.vrf)
	if err != nil {
		return nil, err
	}
	s := &subject{bed: bed, layout: l, name: name, streams: map[string]*stream{}, took: map[string][]float64{}, scale: 1}
	if strings.Contains(name, "a rule per endpoint") {
		s.scale = 1 + l.endpoints/100
	}
	if err := in(bed.node, func() error { return l.setup(l) }); err != nil {
		return nil, err
	}
	if err := s.sinks(); err != nil {
		return nil, err
	}
	if err := s.people(); err != nil {
		return nil, err
	}
	if err := in(bed.node, s.load); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

// mac is the address of a device of the node.
func mac(device string) [6]byte {
	return [6]byte{2, 0, 0, 0, 0, map[string]byte{"pod0": 1, "eth1": 2, "eth2": 3}[device]}
}

// load makes the streams.
func (s *subject) load() error {
	far := netip.AddrPortFrom(outsider[s.v6], 53)
	port := func(a netip.Addr, i int) netip.AddrPort { return netip.AddrPortFrom(a, uint16(10_000+i)) }
	spread := func(i, of int) int { return i * s.endpoints / of }
	add := func(kind, device string, n int, f func(i int) (from, to netip.AddrPort)) error {
		frames := make([]frame, n)
		for i := range frames {
			from, to := f(i)
			frames[i] = udpFrame(mac(device), from, to)
		}
		at, err := index(device)
		if err != nil {
			return err
		}
		s.streams[kind], err = newStream(at, frames)
		return err
	}
	bystander := others[s.v6]
	passingSource := func(i int) netip.Addr { return plus(bystander, i) }
	if strings.HasPrefix(s.name, "cluster") {
		passingSource = func(int) netip.Addr { return netip.MustParseAddr("10.0.0.11") }
	}
	steps := []error{
		add(established, s.enters, flows, func(i int) (netip.AddrPort, netip.AddrPort) {
			return port(s.podAddr(spread(i, flows)), i), far
		}),
		add(answers, s.device, flows, func(i int) (netip.AddrPort, netip.AddrPort) {
			return far, port(s.source(s.layout, spread(i, flows)), i)
		}),
		add(fresh, s.enters, newFlows, func(i int) (netip.AddrPort, netip.AddrPort) {
			return port(s.podAddr(i*7919%s.endpoints), 2000+i), far
		}),
		add(passing, "pod0", flows, func(i int) (netip.AddrPort, netip.AddrPort) { return port(plus(bystander, i), 20_000+i), far }),
		add(passingBack, "eth1", flows, func(i int) (netip.AddrPort, netip.AddrPort) { return far, port(passingSource(i), 20_000+i) }),
		add(passingNew, "pod0", newFlows, func(i int) (netip.AddrPort, netip.AddrPort) {
			return port(plus(bystander, i*7%newFlows), 22_000+i), far
		}),
	}
	for _, err := range steps {
		if err != nil {
			return err
		}
	}
	var err error
	if s.socket, err = socket(netip.AddrPort{}, far); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream", []byte("3600"), 0)
}

// socket opens a UDP socket in the thread's namespace.
func socket(local, remote netip.AddrPort) (int, error) {
	convert := func(a netip.AddrPort) unix.Sockaddr {
		if a.Addr().Is6() {
			return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
		}
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	family := unix.AF_INET
	if local.Addr().Is6() || remote.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	if local.IsValid() {
		if err := unix.Bind(fd, convert(local)); err != nil {
			return 0, fmt.Errorf("bind socket to %s: %w", local, err)
		}
	}
	if remote.IsValid() {
		if err := unix.Connect(fd, convert(remote)); err != nil {
			return 0, fmt.Errorf("connect socket to %s: %w", remote, err)
		}
	}
	return fd, nil
}

// people gives a pod and a host outside sockets. It is not for nodes whose selected pods are elsewhere.
func (s *subject) people() error {
	if s.enters != "pod0" {
		return nil
	}
	pod, router, net, node := s.podAddr(0), "169.254.1.1", "169.254.1.2/30",
		map[string]string{"eth1": "10.0.0.11", "eth2": "10.1.0.11"}[s.device]
	nodad, outsideNets := "", [2]string{"10.0.0.254/24", "10.1.0.254/24"}
	if s.v6 {
		router, net, node = "fd69::1", "fd69::2/126", map[string]string{"eth1": "fd00::11", "eth2": "fd01::11"}[s.device]
		nodad, outsideNets = " nodad", [2]string{"fd00::254/64", "fd01::254/64"}
	}
	if err := in(s.pod, func() (err error) {
		if err := script(fmt.Sprintf("address add %s dev pod0%s\naddress add %s dev lo%s\nroute add default via %s dev pod0\n",
			net, nodad, pod, nodad, router)); err != nil {
			return err
		}
		s.ends[0], err = socket(netip.AddrPortFrom(pod, 7000), netip.AddrPortFrom(outsider[s.v6], 7))
		return err
	}); err != nil {
		return err
	}
	return in(s.outside, func() (err error) {
		if err := script(fmt.Sprintf("address add %s dev eth1%s\naddress add %s dev eth2%s\naddress add %s dev lo%s\n"+
			"route add default via %s\n",
			outsideNets[0], nodad, outsideNets[1], nodad, outsider[s.v6], nodad, node)); err != nil {
			return err
		}
		s.ends[1], err = socket(netip.AddrPortFrom(outsider[s.v6], 7), netip.AddrPort{})
		return err
	})
}

// sinks count the packets that leave the node, and drop them at once.
func (s *subject) sinks() error {
	const chain = `	chain %[1]s {
		type filter hook ingress device %[1]s priority 0; policy accept;
		meta length 50 counter name %[1]s drop
	}
`
	table := func(devices ...string) string {
		var b strings.Builder
		b.WriteString("table netdev sink {\n")
		for _, d := range devices {
			_, _ = fmt.Fprintf(&b, "\tcounter %s { }\n"+chain, d)
		}
		b.WriteString("}\n")
		return b.String()
	}
	if err := in(s.outside, func() error { return rules(table("eth1", "eth2")) }); err != nil {
		return err
	}
	return in(s.pod, func() error { return rules(table("pod0")) })
}
