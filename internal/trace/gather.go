package trace

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/kernel/walk"
	"github.com/egressway/egressway/internal/plan"
)

// BadInput is the error about a flag's value. Right describes a right one.
type BadInput struct {
	Flag, Value, Right string
}

func (e BadInput) Error() string { return fmt.Sprintf("--%s %s: %s", e.Flag, e.Value, e.Right) }

// Protocols maps the supported protocols to their numbers.
var Protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "icmp": unix.IPPROTO_ICMP}

func (r *Request) protocol() uint8 {
	if r.Proto == "icmp" && r.From.Is6() {
		return unix.IPPROTO_ICMPV6
	}
	return Protocols[r.Proto]
}

// Destination returns the protocol and port of the packet.
func (r *Request) Destination() cluster.FirewallPort {
	return cluster.FirewallPort{Protocol: r.protocol(), Number: r.Port}
}

// mostFlows limits the connections of a pair that are reported.
const mostFlows = 5

// Gather fills in with the kernel's answers for its request.
func (in *Input) Gather(ctx context.Context) (err error) {
	l := in.Live
	in.From, in.To = in.From.Unmap(), in.To.Unmap()
	if in.Ingress, err = l.Lookup(ruleset.SetIngress, in.To); err != nil {
		return err
	}
	from, err := in.place(in.From)
	if err != nil {
		return err
	}
	switch {
	case from.pod && in.Reply:
		in.In = from.device
		return in.gatherInbound(ctx, from.device)
	case from.pod:
		in.In = from.device
		return in.gatherEgress(ctx)
	case in.comesFrom(from):
		return in.gatherInbound(ctx, "")
	}
	return in.notHere("from", in.From, from)
}

// comesFrom reports whether the packet may come in from outside, from a place that is no pod of this node. A reply is a
// pod's, and a pod of another node sends packets to ingress IPs only.
func (in *Input) comesFrom(p place) bool {
	ingress := in.Ingress.Found || in.IngressWanted != nil
	return !in.Reply && !p.own && (ingress || !p.other)
}

// place describes where an address is, seen from this node.
type place struct {
	pod    bool // behind a device of this node
	own    bool // this node's own
	other  bool // a pod of another node
	device string
	by     string
}

// place finds out where an address is.
func (in *Input) place(a netip.Addr) (p place, err error) {
	if link, ok := in.Live.Local(a); ok {
		return place{own: true, device: link.Name}, nil
	}
	r, err := in.Live.Route(walk.Packet{To: a})
	if err != nil || r.Err != nil {
		return p, err
	}
	guests, err := in.Live.Lookup(ruleset.SetGuests, a)
	if err != nil {
		return p, err
	}
	behind, err := in.behindDevice(a, r)
	if err != nil {
		return p, err
	}
	other := guests.Found && (!behind || !in.attached(a, r))
	return place{
		pod:    !other && behind,
		other:  other,
		device: r.Device,
		by:     way(r),
	}, nil
}

// attached reports whether an address behind a device of this node is in the device's subnet, as on a bridge, or has a route for it alone.
// Ranges of the configuration hold pods of this node and of others; a tunnel to other nodes has neither.
func (in *Input) attached(a netip.Addr, r *walk.Route) bool {
	return alone(r) || slices.ContainsFunc(in.Live.Links, func(l plan.Link) bool {
		return l.Name == r.Device && slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return !p.IsSingleIP() && p.Contains(a) })
	})
}

// alone reports whether a route is for one address, as CNIs add it for a pod.
func alone(r *walk.Route) bool { return r.Prefix.IsValid() && r.Prefix.IsSingleIP() }

// behindDevice reports whether an address with a route of the main table may be a pod of this node: it is on a device that is no uplink,
// without a next hop, and the route is for it alone or it is among the pods.
func (in *Input) behindDevice(a netip.Addr, r *walk.Route) (bool, error) {
	uplink := slices.ContainsFunc(in.Live.Uplinks, func(u walk.Uplink) bool { return u.Device == r.Device })
	switch {
	case r.Gateway.IsValid() || uplink || in.onLAN(a, r.Device):
		return false, nil
	case alone(r):
		return true, nil
	}
	return in.amongPods(a)
}

// amongPods reports whether an address may be a pod's, here or elsewhere: it is selected, or in a range of pods, or no range of its family
// is known.
func (in *Input) amongPods(a netip.Addr) (bool, error) {
	for _, kind := range []string{ruleset.SetPods, ruleset.SetEgress} {
		if l, err := in.Live.Lookup(kind, a); err != nil || l.Found {
			return l.Found, err
		}
	}
	ranged, err := in.Live.Filled(ruleset.SetPods, a)
	return !ranged, err
}

// onLAN reports whether an address is a neighbour on the device of the main table's default route, where no pods are.
func (in *Input) onLAN(a netip.Addr, device string) bool {
	for _, any := range []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")} {
		if any.Is4() != a.Is4() {
			continue
		}
		if r, err := in.Live.Route(walk.Packet{To: any}); err == nil && r.Err == nil && r.Device == device && r.Gateway.IsValid() {
			pods, err := in.Live.Lookup(ruleset.SetPods, a)
			return err != nil || !pods.Found
		}
	}
	return false
}

// notHere returns the error for an address that is not a pod of this node.
func (in *Input) notHere(flag string, a netip.Addr, p place) error {
	right := "give a pod of this node or, with an ingress IP as --to, an address outside the cluster"
	switch {
	case p.own:
		right = "an address of this node itself (" + p.device + "), whose own packets no EgressService selects; give a pod's address"
	case p.other:
		right = "a pod of another node, which is reached by " + p.by + ": run this command on that node"
	case in.Reply:
		right = "not a pod of this node; with --reply, give the pod that answers, " +
			"or leave --reply out and give the client as --from and the ingress IP as --to"
	case p.by != "":
		right = "not a pod of this node (it is reached by " + p.by + "): give a pod of this node, or an ingress IP as --to"
	}
	return BadInput{flag, a.String(), right}
}

func (in *Input) gatherEgress(ctx context.Context) (err error) {
	l := in.Live
	p := walk.Packet{From: in.From, To: in.To, Proto: in.protocol(), Port: in.Port, In: in.In}
	if in.Flight, err = l.Fly(p, netip.Addr{}); err != nil {
		return err
	}
	if err := in.routed(in.Flight); err != nil {
		return err
	}
	flows, err := l.Flows(ctx, in.From, in.isForward, mostFlows)
	if err != nil {
		return err
	}
	for _, f := range flows {
		flight, err := l.Fly(nextOf(f, p), f.Leaves.Addr())
		if err != nil {
			return err
		}
		in.Flows = append(in.Flows, KnownFlow{f, flight})
	}
	return nil
}

// nextOf returns the next packet of an existing connection; p is the packet in the request.
func nextOf(f walk.LiveFlow, p walk.Packet) walk.Packet {
	p.To, p.SourcePort, p.Port = f.Answers, f.Src.Port(), f.Dst.Port()
	p.Connection = walk.Connection{Known: f.Answered, DNAT: f.Answers != f.Dst.Addr(), Mark: f.Mark, Source: f.Src.Addr()}
	return p
}

// routed checks, for a packet without a route, whether the tables that its rules name have any route.
func (in *Input) routed(f *walk.Flight) error {
	if !f.Unrouted() {
		return nil
	}
	if in.Routed == nil {
		in.Routed = map[uint32]plan.Families{}
	}
	for _, r := range in.Live.RulesFor(f.Arrive.Mark, in.To.Is6()) {
		if r.Unreachable {
			continue
		}
		families, err := in.Live.Routed(r.Table)
		if err != nil {
			return err
		}
		in.Routed[r.Table] = families
	}
	return nil
}

// gatherInbound follows a connection from outside through each network that it may have come in by. device is the
// device of the pod that answers; empty: unknown.
func (in *Input) gatherInbound(ctx context.Context, device string) error {
	flows, err := in.Live.Flows(ctx, in.client(), in.isConnection, mostFlows)
	if err != nil {
		return err
	}
	in.Inbound = []Inbound{}
	for _, path := range in.candidates(flows) {
		b, err := in.through(path, flows, device)
		if err != nil {
			return err
		}
		in.Inbound = append(in.Inbound, b)
	}
	return nil
}

// isConnection reports whether the client's connection is one that the request describes.
func (in *Input) isConnection(f walk.LiveFlow) bool {
	if in.Reply {
		return f.Answers == in.From && f.Proto == in.protocol()
	}
	return in.isForward(f)
}

// isForward reports whether the sender's connection is one that the request, which is no reply, describes.
func (in *Input) isForward(f walk.LiveFlow) bool {
	return f.Dst.Addr() == in.To && f.Proto == in.protocol() && (in.Port == 0 || in.Port == f.Dst.Port())
}

// client returns the address that began the connection.
func (in *Input) client() netip.Addr {
	if in.Reply {
		return in.To
	}
	return in.From
}

// through follows a connection from outside, and its reply, through one network. A network without an uplink has neither.
func (in *Input) through(path walk.LivePath, flows []walk.LiveFlow, device string) (b Inbound, err error) {
	l := in.Live
	b = Inbound{Path: path, Device: in.uplink(path.ID)}
	if b.Device == "" {
		err = in.strays(&b)
		return b, err
	}
	answers, first := netip.Addr{}, in.To
	for _, f := range flows {
		if l.Marks.Path(f.Mark) == path.ID {
			b.Known, answers, first = true, f.Answers, f.Dst.Addr()
		}
	}
	if !in.Reply {
		b.Arrive, err = l.Arrive(walk.Packet{
			From: in.From, To: in.To, Proto: in.protocol(), Port: in.Port, In: b.Device, Connection: walk.Connection{DNAT: true},
		})
		if err != nil {
			return b, err
		}
	}
	if b.Answer, err = l.Fly(in.answer(path.ID, answers, device), first); err != nil {
		return b, err
	}
	return b, in.routed(b.Answer)
}

// strays looks up where packets of no connection go on to, in a network without uplinks.
func (in *Input) strays(b *Inbound) (err error) {
	if in.Reply {
		return nil
	}
	if b.Handed, err = in.Live.Lookup(ruleset.SetHanded, in.To); err == nil {
		b.Stray, err = in.Live.Lookup(ruleset.SetStrays, in.To)
	}
	return err
}

// uplink returns a device by which packets of a network come in, rather a VRF's member than the VRF; empty: it has none.
func (in *Input) uplink(path plan.PathID) (device string) {
	for _, u := range in.Live.Uplinks {
		if u.Path == path && (device == "" || in.Live.IsVRF(device)) {
			device = u.Device
		}
	}
	return device
}

// answer returns the reply of a connection that came in by a network. answers is the address that existing connections
// reach, device that of the pod in the request; without both, any pod answers.
func (in *Input) answer(path plan.PathID, answers netip.Addr, device string) walk.Packet {
	client := in.client()
	p := walk.Packet{
		To: client, Proto: in.protocol(), SourcePort: in.Port,
		Connection: walk.Connection{Known: true, Reply: true, DNAT: true, Mark: in.Live.Marks.Ingress(path), Source: client},
	}
	p.From, p.In = in.answerer(answers, device)
	switch {
	case p.In != "":
	case client.Is4():
		p.From = netip.IPv4Unspecified()
	default:
		p.From = netip.IPv6Unspecified()
	}
	return p
}

// answerer returns the pod that answers, and its device; empty: unknown.
func (in *Input) answerer(answers netip.Addr, device string) (pod netip.Addr, by string) {
	if in.Reply {
		return in.From, device
	}
	if answers.IsValid() {
		if at, err := in.place(answers); err == nil && at.pod {
			return answers, at.device
		}
	}
	return pod, ""
}

// wantedPath returns the path that the daemon plans for the pod that answers; empty: unknown.
func (in *Input) wantedPath() string {
	if !in.Reply || in.Wanted == nil {
		return ""
	}
	return in.Wanted.Path
}

// candidates returns the networks that a connection may have come in by: the network of its ingress IP, those of
// existing connections, or otherwise all with an uplink here.
func (in *Input) candidates(flows []walk.LiveFlow) (all []walk.LivePath) {
	named, known := in.named(), in.cameInBy(flows)
	for _, p := range in.Live.Paths {
		var may bool
		switch {
		case p.Key.Kind != plan.PathNetwork:
		case len(named) > 0:
			may = slices.Contains(named, p.Key.Name)
		case len(known) > 0:
			may = known[p.ID]
		default:
			may = slices.ContainsFunc(in.Live.Uplinks, func(u walk.Uplink) bool { return u.Path == p.ID })
		}
		if may {
			all = append(all, p)
		}
	}
	return all
}

// cameInBy returns the paths of the networks that existing connections came in by.
func (in *Input) cameInBy(flows []walk.LiveFlow) map[plan.PathID]bool {
	known, m := map[plan.PathID]bool{}, in.Live.Marks
	for _, f := range flows {
		if id := m.Path(f.Mark); id != 0 && f.Mark&m.EgressBit() == 0 {
			known[id] = true
		}
	}
	return known
}

// named lists the networks of the ingress IP, and of the pod that answers, by the daemon's report.
func (in *Input) named() (networks []string) {
	if in.Report != nil && !in.Reply {
		for s := range in.Report.Rows() {
			if slices.Contains(s.IngressIPs, in.To) {
				networks = append(networks, s.Network)
			}
		}
	}
	if network, ok := strings.CutPrefix(in.wantedPath(), string(plan.PathNetwork)+" "); ok {
		networks = append(networks, network)
	}
	return networks
}
