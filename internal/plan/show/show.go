// Package show writes plans as text for people.
package show

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/text"
)

// Plan writes a plan for display: the EgressServices, then the devices, packet rules, routing and speakers of the node.
func Plan(out io.Writer, p *plan.NodePlan, problems []cluster.Problem) error {
	w := &textWriter{Writer: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), hosts: p.Tunnel, paths: map[plan.PathID]string{0: "drop"}}
	for _, path := range p.DataPlane.Paths {
		w.paths[path.ID] = fmt.Sprintf("%s %s", path.Key.Kind, path.Key.Name)
	}
	w.services(p)
	w.networks(p)
	w.packets(p)
	w.routing(p)
	w.bgp(p)
	if len(problems) > 0 {
		w.title("Problems")
		for _, problem := range problems {
			w.line("  %s: %s", problem.Reason, problem.Error())
		}
	}
	return w.Flush()
}

type textWriter struct {
	*tabwriter.Writer
	paths map[plan.PathID]string
	hosts *plan.Tunnel
	begun bool
}

// line writes a line. Tabs of the format separate cells; tabs of arguments are escaped.
func (w *textWriter) line(format string, args ...any) {
	_, _ = io.WriteString(w.Writer, text.Sprintf(format+"\n", args...)) // the tabwriter keeps the error for Flush
}

// cells writes a line of cells and skips empty ones.
func (w *textWriter) cells(all ...string) {
	all = slices.DeleteFunc(all, func(s string) bool { return s == "" })
	args := make([]any, len(all))
	for i, s := range all {
		args[i] = s
	}
	w.line("  %s"+strings.Repeat("\t%s", len(all)-1), args...)
}

func (w *textWriter) title(format string, args ...any) {
	if w.begun {
		w.line("")
	}
	w.begun = true
	w.line(format, args...)
}

// path names a path, and on PathShared the host with a MAC.
func (w *textWriter) path(id plan.PathID, via plan.MAC) string {
	name := w.paths[id]
	if host, ok := w.hosts.Host(via); ok && strings.HasPrefix(name, string(plan.PathShared)+" ") {
		return name + " to " + host.Node
	}
	return name
}

func (w *textWriter) services(p *plan.NodePlan) {
	w.title("EgressServices, as node %s has them", p.Node)
	none := true
	for s := range p.Services.All() {
		if s.Kind != cluster.KindEgressService {
			continue
		}
		none = false
		mode := "LoadBalancerIP"
		if s.Masquerade() {
			mode = "Network"
		}
		w.line("  %s\t%s\tnetwork %s\thost %s\tstandby %s\tingress %s\tendpoints %d, here %d\t%s", s.Key, mode, s.Network,
			orNone(s.Host), orNone(s.Standby), addrs(s.IngressIPs), s.Endpoints, s.Local, announcedText(p, s))
	}
	if none {
		w.line("  none")
	}
	w.egressIPs(p)
}

func (w *textWriter) egressIPs(p *plan.NodePlan) {
	begun := false
	for s := range p.Services.All() {
		if s.Kind != cluster.KindEgressIP {
			continue
		}
		if !begun {
			w.title("Addresses of EgressIPs, as node %s has them", p.Node)
			begun = true
		}
		if !s.Slot.IsValid() {
			w.line("  %s\tnone\tpods %d, here %d\tthat no address serves", s.Key, s.Endpoints, s.Local)
			continue
		}
		address := s.Slot.String()
		if len(s.IngressIPs) == 0 {
			address += " (refused)"
		}
		announced := announcedText(p, s)
		if s.OnLink != "" {
			announced += ", answered on " + s.OnLink
		}
		w.line("  %s\t%s\tnetwork %s\thost %s\tstandby %s\tpods %d, here %d\t%s", s.Key, address, s.Network,
			orNone(s.Host), orNone(s.Standby), s.Endpoints, s.Local, announced)
	}
}

func announcedText(p *plan.NodePlan, s plan.Service) string {
	switch {
	case s.Aside:
		return "not announced here: the node is elected and lacks the network"
	case len(s.Announced) == 0:
		return "not announced here"
	case p.Leaving:
		return "not announced here: the node leaves"
	case slices.Contains(p.HeldDown, s.Network):
		return "not announced here: held down"
	}
	return announcedAs(p, s)
}

func announcedAs(p *plan.NodePlan, s plan.Service) string {
	if s.Standby == p.Node {
		return "announced here as standby"
	}
	return "announced here"
}

func (w *textWriter) networks(p *plan.NodePlan) {
	if len(p.VRFs)+len(p.VLANs) == 0 && p.Tunnel == nil {
		return
	}
	w.title("Devices")
	for _, v := range p.VLANs {
		w.vlan(v)
	}
	for _, v := range p.VRFs {
		w.vrf(v)
	}
	if p.Tunnel != nil {
		w.tunnel(p.Tunnel, &p.DataPlane)
	}
}

func (w *textWriter) vlan(v plan.VLAN) {
	mtu := "the parent's MTU"
	if v.MTU != 0 {
		mtu = fmt.Sprintf("MTU %d", v.MTU)
	}
	w.line("  adopt or create %s\tVLAN %d on %s\t%s, addresses %s", v.Name, v.ID, v.Parent, mtu, prefixes(v.Addrs))
}

func (w *textWriter) vrf(v plan.VRF) {
	verb := "adopt"
	if v.Create {
		verb = "adopt or create"
	}
	w.line("  %s VRF %s\ttable %d\tinterfaces %s", verb, v.Name, v.Table, orNone(strings.Join(v.Interfaces, " ")))
}

func (w *textWriter) tunnel(t *plan.Tunnel, d *plan.DataPlane) {
	w.line("  VXLAN %s\tVNI %d\tport %d from %s, MTU %d, TCP segments up to %d (IPv4), %d (IPv6)",
		t.Device, t.VNI, t.Port, t.Local, t.MTU, d.ClampMSS4, d.ClampMSS6)
	for _, h := range t.Hosts {
		if h.MAC == plan.Nowhere {
			w.line("  to no node\twhere chain shared does not find the host")
			continue
		}
		w.line("  to %s\tat %s", h.Node, h.Remote)
	}
}

func (w *textWriter) packets(p *plan.NodePlan) {
	d := p.DataPlane
	w.title("Packets of selected pods")
	for e := range d.Endpoints.All() {
		kept := ""
		if e.Kept.Path != 0 {
			kept = "old flows may stay on " + w.path(e.Kept.Path, e.Via)
		}
		w.cells("from "+e.Addr.String(), "on "+cmp.Or(e.Node, "any node"), w.path(e.Path, e.Via), sourceText(e), kept)
	}
	if d.Endpoints.Len() == 0 {
		w.line("  none")
	}
	w.held(p)
	w.qos(p)
	w.firewall(p)
	w.neverSteered(&d)
	w.ingress(&d)
}

// qos writes each EgressQoS with the number of pods that it selects on this node, and each class with its DSCP values.
func (w *textWriter) qos(p *plan.NodePlan) {
	if p.EgressQoSes.Len() == 0 {
		return
	}
	w.title("DSCP of packets, by EgressQoS")
	for q := range p.EgressQoSes.All() {
		w.line("  %s\trules %d\tpods here %d", q.Key, q.Rules, q.Pods)
	}
	d := &p.DataPlane
	for i := range d.QoS {
		c := &d.QoS[i]
		var from []netip.Addr
		for m := range d.Marked.All() {
			if m.Class == c.ID {
				from = append(from, m.Addr)
			}
		}
		w.line("  class %d, from %s", c.ID, addrs(from))
		for _, r := range c.Ranges {
			w.line("    to %s\tDSCP %d", rangeText(r.First, r.Last), r.DSCP)
		}
	}
}

// firewall writes each EgressFirewall with the number of its pods on this node, and each policy with the destinations that it denies.
func (w *textWriter) firewall(p *plan.NodePlan) {
	if p.EgressFirewalls.Len() == 0 {
		return
	}
	w.title("Connections of pods to outside of the cluster, by EgressFirewall")
	for e := range p.EgressFirewalls.All() {
		w.line("  %s\trules %d\tpods here %d", e.Key, e.Rules, e.Pods)
	}
	d := &p.DataPlane
	for i := range d.Policies {
		of := &d.Policies[i]
		var from []netip.Addr
		for f := range d.Firewalled.All() {
			if f.Policy == of.ID {
				from = append(from, f.Addr)
			}
		}
		w.line("  policy %d, from %s", of.ID, addrs(from))
		for n := range of.Stretches {
			if n > 0 {
				w.line("    and where none of these decides:")
			}
			w.stretch(&of.Stretches[n])
		}
	}
	if len(d.Policies) > 0 {
		w.line("  never denied: %s", prefixes(d.Inside))
	}
	if len(d.Resolvers) > 0 {
		w.line("  addresses of names: by answers of %s; this node asks %s", addrs(d.Resolvers), addrs(d.Asked))
	}
}

// stretch writes the destinations about which a stretch of rules decides.
func (w *textWriter) stretch(s *firewall.Stretch) {
	if len(s.Names) > 0 {
		w.line("    to the addresses of %s\t%s", strings.Join(s.Names, ", "), outcomeText(s, s.Named))
	}
	for _, r := range s.Ranges {
		w.line("    to %s\t%s", rangeText(r.First, r.Last), outcomeText(s, r.Outcome))
	}
}

// outcomeText describes the outcome of a stretch's destination.
func outcomeText(s *firewall.Stretch, o firewall.Outcome) string {
	words := map[firewall.Outcome]string{firewall.Allow: "allowed", firewall.Deny: "denied", firewall.Undecided: "not decided"}
	if o < firewall.FirstPorts {
		return words[o]
	}
	p, exceptions := &s.Ports[o-firewall.FirstPorts], ""
	for _, of := range []struct {
		ports []cluster.FirewallPort
		firewall.Outcome
	}{{p.Allow, firewall.Allow}, {p.Deny, firewall.Deny}} {
		if len(of.ports) > 0 {
			exceptions += portsText(of.ports) + " " + words[of.Outcome] + ", "
		}
	}
	return exceptions + "others " + words[p.Otherwise]
}

// portsText lists ports.
func portsText(all []cluster.FirewallPort) string {
	names := map[uint8]string{}
	for name, number := range cluster.FirewallProtocols {
		names[number] = strings.ToLower(name)
	}
	var words []string
	for _, p := range all {
		words = append(words, fmt.Sprintf("%s/%d", names[p.Protocol], p.Number))
	}
	return strings.Join(words, " ")
}

// rangeText formats a range of addresses, as a prefix if it is one.
func rangeText(first, last netip.Addr) string {
	for bits := range first.BitLen() + 1 {
		if p := netip.PrefixFrom(first, bits); p == p.Masked() && cluster.LastAddr(p) == last {
			return p.String()
		}
	}
	return first.String() + "-" + last.String()
}

// sourceText describes the source address with which an endpoint's packets leave; empty: they are dropped.
func sourceText(e plan.Endpoint) string {
	switch {
	case e.Path == 0:
		return ""
	case e.Source == e.Addr:
		return "source kept"
	case e.Source.IsValid():
		return "source " + e.Source.String()
	}
	return "source of the outgoing interface"
}

func (w *textWriter) neverSteered(d *plan.DataPlane) {
	four := slices.IndexFunc(d.Cluster, func(p netip.Prefix) bool { return p.Addr().Is6() }) // they are sorted
	if four < 0 {
		four = len(d.Cluster)
	}
	w.title("Never steered, being inside the cluster")
	w.line("  %s", prefixes(d.Cluster[:four]))
	w.line("  %s", prefixes(d.Cluster[four:]))
}

func (w *textWriter) ingress(d *plan.DataPlane) {
	if d.Ingress.Len() == 0 {
		return
	}
	w.title("Connections to ingress IPs answer by the network they came by")
	for i := range d.Ingress.All() {
		stray := ""
		if i.Stray != 0 {
			stray = "flows unknown here go to " + w.path(i.Stray, i.Via)
		}
		w.cells("to "+i.Addr.String(), "of "+w.paths[i.Path], stray)
	}
}

// held lists this node's pods that are subject to hold, and whether their packets pass.
func (w *textWriter) held(p *plan.NodePlan) {
	d := p.DataPlane
	if !d.Hold {
		return
	}
	w.title("Packets of this node's other pods, to the outside")
	for a := range d.Let.All() {
		w.line("  from %s\tlet go", a)
	}
	for a := range p.Waiting.All() {
		w.line("  from %s\tpod %s, selected by hold[%d]\t%s", a.Addr, a.Pod, a.Entry, heldText(&d, a.Addr))
	}
	w.line("  from any other address in %s: held, no Pod of this node is known to have it", prefixes(d.Pods))
}

// heldText describes how long packets of an address wait that an entry of hold selects.
func heldText(d *plan.DataPlane, a netip.Addr) string {
	if _, is := d.Endpoints.Get(plan.Endpoint{Addr: a}); is {
		return "is an endpoint, as above"
	}
	if _, let := d.Let.Get(plan.Address{Addr: a}); let {
		return "is an endpoint without a path, let go"
	}
	return "held until it is an endpoint"
}

func (w *textWriter) routing(p *plan.NodePlan) {
	w.title("Routing rules (both families)")
	for _, r := range p.Rules {
		to := fmt.Sprintf("lookup %d", r.Table)
		if r.Unreachable {
			to = "unreachable"
		}
		w.line("  %d\tfwmark %#x/%#x\t%s\t%s", r.Priority, r.Mark, r.Mask, to, w.meaning(p, r))
	}
	if p.Routes.Len() > 0 {
		w.title("Routes")
	}
	for r := range p.Routes.All() {
		w.line("  table %d\t%s\t%s", r.Table, r.Dst, routeText(r))
	}
}

// routeText describes the next hops of a route, and its metric.
func routeText(r plan.Route) string {
	to := "unreachable"
	if !r.Unreachable {
		hops := make([]string, len(r.NextHops))
		for i, h := range r.NextHops {
			hops[i] = fmt.Sprintf("via %s dev %s", h.Gateway, h.Device)
		}
		to = strings.Join(hops, ", ")
	}
	if r.Metric != 0 {
		to += fmt.Sprintf(" metric %d", r.Metric)
	}
	return to
}

// meaning describes the purpose of a rule.
func (w *textWriter) meaning(p *plan.NodePlan, r plan.Rule) string {
	m := p.DataPlane.Marks
	switch {
	case r.Unreachable:
		return "without a route: dropped"
	case r.Mark == m.Cluster():
		return "came by an uplink, is for the cluster"
	}
	return w.paths[m.Path(r.Mark)]
}

func (w *textWriter) bgp(p *plan.NodePlan) {
	for _, s := range p.Speakers {
		bound := "not bound to a device"
		if s.Device != "" {
			bound = "bound to " + s.Device
		}
		w.title("BGP speaker of network %s: AS %d, router ID %s, %s", s.Network, s.ASN, s.RouterID, bound)
		for _, peer := range s.Peers {
			name := peer.PeerName()
			as := cmp.Or(string(peer.DynamicASN), fmt.Sprint(peer.ASN))
			w.line("  peer %s\tAS %s\tnext hops %s", name, as, addrs(valid(peer.NextHop4, peer.NextHop6)))
		}
		switch {
		case p.Leaving:
			w.line("  announces nothing: the node leaves")
		case slices.Contains(p.HeldDown, s.Network):
			w.line("  announces nothing until this node's role is confirmed")
		default:
			w.announced(&s)
		}
	}
}

// announced lists the ingress IPs that a speaker announces, by role.
func (w *textWriter) announced(s *plan.Speaker) {
	as := map[string][]netip.Prefix{}
	for a := range s.Announce.All() {
		as[role(a)] = append(as[role(a)], a.Prefix)
	}
	w.line("  announces %s", prefixes(as[""]))
	for _, role := range []string{roleStandby, roleFormer} {
		if len(as[role]) > 0 {
			w.line("  announces as %s %s", role, prefixes(as[role]))
		}
	}
}

const (
	roleStandby = "standby"
	roleFormer  = "former host"
)

// role returns the role in which a node announces an ingress IP; empty: host.
func role(a plan.Announcement) string {
	switch {
	case !a.Standby:
		return ""
	case a.Shutdown:
		return roleFormer
	}
	return roleStandby
}

func valid(all ...netip.Addr) (some []netip.Addr) {
	for _, a := range all {
		if a.IsValid() {
			some = append(some, a)
		}
	}
	return some
}

func orNone(s string) string {
	return cmp.Or(s, "none")
}

func addrs(all []netip.Addr) string { return joined(all) }

func prefixes(all []netip.Prefix) string { return joined(all) }

func joined[T fmt.Stringer](all []T) string {
	if len(all) == 0 {
		return "none"
	}
	s := make([]string, len(all))
	for i, x := range all {
		s[i] = x.String()
	}
	return strings.Join(s, " ")
}
