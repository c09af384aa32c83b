package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/kernel/walk"
	"github.com/egressway/egressway/internal/status"
)

// inbound explains a connection from outside to an ingress IP, or to a pod behind one, and its replies.
func (e *explainer) inbound() {
	service := e.behind()
	if !e.Reply && !e.ingress(service) {
		return
	}
	if len(e.Inbound) == 0 {
		e.verdict(Unselected,
			"this node has no network by which it may come in: the main table routes such a connection and its replies, "+
				"and our rules do not apply")
		return
	}
	e.connections()
	if !e.Reply {
		e.elsewhere(service)
	}
}

// connections explains the connection on each network that it may have come in by, and gives the verdict.
func (e *explainer) connections() {
	var leave, fail []*Verdict
	for i := range e.Inbound {
		if v := e.comes(&e.Inbound[i]); v.Kind == Leaves {
			leave = append(leave, v)
		} else {
			fail = append(fail, v)
		}
	}
	e.conclude(leave, fail)
}

// conclude gives the verdict on a connection from those on the networks that it may come in by.
func (e *explainer) conclude(leave, fail []*Verdict) {
	switch {
	case len(leave) == 1:
		e.out.Verdict = *leave[0]
		e.out.Verdict.Text = "replies leave " + leave[0].Text
	case len(leave) > 1:
		e.verdict(Leaves, "replies leave by the network that the connection came in by: %s", joined(leave, "; or "))
	case len(fail) == 1:
		e.out.Verdict = *fail[0]
	default:
		e.verdict(Dropped, "%s", joined(fail, "; "))
	}
}

func joined(verdicts []*Verdict, separator string) string {
	texts := make([]string, len(verdicts))
	for i, v := range verdicts {
		texts[i] = v.Text
	}
	return strings.Join(texts, separator)
}

// behind returns the first EgressService that has the requested ingress IP; nil: unknown. It adds all of them to the
// result.
func (e *explainer) behind() (first *status.Service) {
	if e.Report == nil {
		return nil
	}
	for s := range e.Report.Rows() {
		if !slices.Contains(s.IngressIPs, e.To) {
			continue
		}
		e.out.Services = append(e.out.Services, s.Title())
		if first == nil {
			first = s
		}
	}
	return first
}

// ingress explains the destination. It returns false if that is no ingress IP, which ends the walk.
func (e *explainer) ingress(service *status.Service) bool {
	of := ""
	if service != nil {
		of = fmt.Sprintf(", of %s, network %s", oneOf(e.out.Services), service.Network)
	}
	switch {
	case e.Ingress.Found:
		e.step("ingress IP", "set "+e.Ingress.Set, "yes%s", of)
	case service != nil:
		e.step("ingress IP", "set "+e.Ingress.Set, "missing in the kernel, although it is one%s", strings.TrimPrefix(of, ","))
		if e.IngressWanted != nil {
			e.differ("the daemon wants %s to be known as an ingress IP but the kernel does not have it: "+
				"repaired within 10 s, or see the daemon's log", e.To)
		}
		if len(e.Inbound) == 0 || e.IngressWanted != nil {
			e.verdict(Damaged, "damaged: %s is an ingress IP%s, but it is missing in this node's kernel", e.To, strings.TrimPrefix(of, ","))
			return false
		}
	default:
		e.step("ingress IP", "set "+e.Ingress.Set, "no: %s is not an ingress IP of an EgressService", e.To)
		e.verdict(Dropped, "unknown: %s is not an ingress IP known to this node; our rules ignore it", e.To)
		return false
	}
	if service != nil {
		e.announced(service)
	}
	return true
}

// announced explains whether routers know a way to the address through this node.
func (e *explainer) announced(s *status.Service) {
	if s.OnLink != "" {
		e.step("on link", "egressway status", "this node answers ARP and NDP for it on %s", s.OnLink)
	}
	switch {
	case slices.Contains(s.Announced, e.To) && s.Standby == e.Report.Node && s.Host != e.Report.Node:
		e.step("announced", "egressway status", "by this node as standby: routers prefer host %s", s.Host)
	case slices.Contains(s.Announced, e.To):
		e.step("announced", "egressway status", "by this node in %s", s.Network)
	case s.Host == "":
		e.step("announced", "egressway status", "by no node: the service has no host")
	case e.hosts(s):
		e.step("announced", "egressway status", "not by this node, although it is a host: %s", e.unannounced(s))
	default:
		e.step("announced", "egressway status", "not by this node: host is %s", s.Host)
	}
}

// hosts reports whether this node is a host of a service: connections to its ingress IPs come here even if others announce them.
func (e *explainer) hosts(s *status.Service) bool {
	return s.Host == e.Report.Node || s.Host == cluster.AllHosts
}

// unannounced returns why this node announces no address of a service, although it is a host.
func (e *explainer) unannounced(s *status.Service) string {
	i := slices.IndexFunc(e.Report.Networks, func(n status.Network) bool { return n.Name == s.Network })
	if i < 0 {
		return "network " + s.Network + " is not known here"
	}
	switch n := e.Report.Networks[i]; {
	case !n.Usable:
		return fmt.Sprintf("network %s is not usable here: %s", n.Name, n.Lacks)
	case n.Sessions == 0:
		return fmt.Sprintf("network %s has no peers here, so another program, such as MetalLB, announces it", n.Name)
	case n.HeldDown:
		return fmt.Sprintf("network %s is held down until the role of this node is confirmed", n.Name)
	case n.SessionsUp == 0:
		return fmt.Sprintf("no BGP session of network %s is up", n.Name)
	case s.Host == cluster.AllHosts && s.Local == 0:
		return fmt.Sprintf("no endpoint is on this node, or no BGP session of network %s has sent it", n.Name)
	}
	return fmt.Sprintf("no BGP session of network %s has sent it", s.Network)
}

// elsewhere gives the verdict if another node announces the address of a service to routers, or none does. If a host announces nothing,
// the verdict on the connections stays.
func (e *explainer) elsewhere(s *status.Service) {
	if s == nil || s.OnLink != "" || slices.Contains(s.Announced, e.To) || e.hosts(s) {
		return
	}
	if s.Host == "" {
		e.verdict(Dropped, "not announced: %s has no host, so no router has a way to %s", oneOf([]string{s.Title()}), e.To)
		return
	}
	e.verdict(Elsewhere, "not announced by this node: routers send it to host %s; ask there", s.Host)
	e.out.Verdict.Host = s.Host
}

// comes explains a connection through one network.
func (e *explainer) comes(b *Inbound) *Verdict {
	name, m := b.Path.Key.Name, e.Live.Marks
	if b.Device == "" { // the default network: it has no uplinks of ours
		e.step("comes in", "set uplinks", "by network %s: routed by the main table; replies leave like any packet of this node", name)
		e.handedOn(b)
		return &Verdict{Kind: Leaves, Network: name, Text: "by the main table (network " + name + ")"}
	}
	if b.Arrive != nil {
		if bad := e.arrives(b); bad != nil {
			return bad
		}
	}
	f := b.Answer
	if f == nil {
		return b.fails(Dropped, "no reply was simulated")
	}
	if f.Arrive.Dropped {
		return b.fails(Dropped, "replies to connections that came in by %s are dropped: rule %d of chain %s",
			name, f.Arrive.Rule, f.Arrive.Decided)
	}
	if f.Arrive.Mark&m.Mask != m.Egress(b.Path.ID) {
		e.step("reply", "set replies, ct mark", "is not routed back to network %s", name)
		return b.fails(Damaged, "damaged: replies to connections that came in by %s are not routed back there", name)
	}
	e.step("reply", fmt.Sprintf("chain %s, mark %#x", f.Arrive.Decided, f.Arrive.Mark&m.Mask), "goes back by network %s", name)
	e.Flight = f
	if !e.backTo(f, b.Path) {
		return b.fails(Dropped, "dropped: %s", e.unreached(e.tableOf(f.Arrive.Mark)))
	}
	if d := f.Dropped(); d != nil {
		e.step("guard", "chain "+d.Decided, "drops it")
		return b.fails(Dropped, "dropped: replies would leave by %s, rule %d of chain %s", way(f.Route), d.Rule, d.Decided)
	}
	e.step("guard", "chain guard", "passes")
	if e.Reply {
		e.marked(e.Wanted)
	} else {
		e.marked(nil) // the plan for the pod that answers is unknown
	}
	vrf, by := e.wayOut(f.Route)
	text := fmt.Sprintf("by %s (%s)", name, by)
	if source := e.answersAs(); source.IsValid() {
		text += " as " + source.String()
	}
	return &Verdict{
		Kind: Leaves, Text: text, Network: name, VRF: vrf,
		Table: f.Route.Table, Device: f.Route.Device, NextHop: f.Route.Gateway, Source: e.answersAs(),
	}
}

// fails returns the verdict that a connection through the network does not work.
func (b *Inbound) fails(k Kind, format string, args ...any) *Verdict {
	return &Verdict{Kind: k, Network: b.Path.Key.Name, Text: fmt.Sprintf(format, args...)}
}

// arrives explains a connection's first packet. It returns the verdict if that ends the connection; nil: it does not.
func (e *explainer) arrives(b *Inbound) *Verdict {
	name, a := b.Path.Key.Name, b.Arrive
	if a.Dropped {
		e.step("comes in", "chain "+a.Decided, "by network %s (%s): dropped", name, b.Device)
		return b.fails(Dropped, "dropped when it comes in by %s: rule %d of chain %s", name, a.Rule, a.Decided)
	}
	mark := a.ConnectionMark & e.Live.Marks.Mask
	if mark != e.Live.Marks.Ingress(b.Path.ID) {
		e.step("comes in", "set uplinks", "by network %s (%s): its connection does not get the network's mark", name, b.Device)
		return b.fails(Damaged,
			"damaged: connections that come in by %s are not marked, so their replies leave by the main table", name)
	}
	known := ""
	if b.Known {
		known = "; there is such a connection"
	}
	e.step("comes in", fmt.Sprintf("chain %s, ct mark %#x", a.Decided, mark),
		"by network %s (%s); its Service's DNAT, by the CNI or kube-proxy, chooses the pod%s", name, b.Device, known)
	e.strays(a)
	return nil
}

// handedOn explains where packets of no connection go on to in a network without uplinks.
func (e *explainer) handedOn(b *Inbound) {
	if !b.Handed.Found || !b.Stray.Found {
		return
	}
	if p, ok := e.Live.Path(b.Stray.PathValue()); ok {
		e.step("stray", "sets "+b.Handed.Set+", "+b.Stray.Set,
			"packets of no connection here go on to %s with a hop limit of %d, unless they come with %[2]d or less",
			partnerName(p.Key), ruleset.HandedHops)
	}
}

// strays explains where packets of no connection go on to.
func (e *explainer) strays(a *walk.Passage) {
	l, ok := a.LookedUp(ruleset.SetStrays)
	if !ok || !l.Found {
		return
	}
	if p, ok := e.Live.Path(l.PathValue()); ok {
		e.step("stray", "set "+l.Set, "packets of no connection here go on to %s", partnerName(p.Key))
	}
}

// answersAs returns the source that the client sees.
func (e *explainer) answersAs() netip.Addr {
	if e.Reply {
		return netip.Addr{}
	}
	return e.To
}

// backTo explains a reply's rule and route.
func (e *explainer) backTo(f *walk.Flight, path walk.LivePath) bool {
	to := e.To
	e.To = f.Packet.To // the steps are about the reply
	defer func() { e.To = to }()
	return e.route(walk.LivePath{ID: path.ID, Key: path.Key})
}

func (e *explainer) tableOf(mark uint32) uint32 {
	for _, r := range e.Live.RulesFor(mark, e.To.Is6()) {
		if !r.Unreachable {
			return r.Table
		}
	}
	return 0
}
