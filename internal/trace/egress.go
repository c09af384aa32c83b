package trace

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/kernel/walk"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/status"
)

// egress explains the way of a packet that a pod of this node sends.
func (e *explainer) egress() {
	f := e.Flight
	e.step("comes in", "route to "+e.From.String(), "by %s", e.In)
	if e.serviceHandles() {
		e.toService()
		return
	}
	if e.denied() {
		e.known(walk.LivePath{})
		return
	}
	selected, path, hasPath := e.selected()
	switch {
	case !selected:
		e.unselected()
	case e.exempt():
	case !hasPath && !f.Arrive.Dropped:
		e.damagedAway(path, "its packets are not stopped")
	case !hasPath:
		e.verdict(Dropped,
			"dropped: %s is selected but has no path on this node: there is no host for it, or its network is not usable here", e.From)
	case f.Arrive.Dropped:
		e.dropped(f.Arrive, "before routing")
	default:
		e.onPath(path)
	}
	if !e.out.Verdict.bad() {
		e.out.Verdict.Text += e.unnamedPort()
	}
	e.marked(e.Wanted)
	e.compare(selected, path, hasPath)
	e.known(path)
}

// serviceHandles reports whether the destination is an ingress IP that a Service may handle before our rules see the packet. No Service
// handles an address of an EgressIP, and kube-proxy's IPVS mode comes after the EgressFirewall.
func (e *explainer) serviceHandles() bool {
	if _, own := e.Live.Local(e.To); !e.Ingress.Found || own && e.Flight.Judged.Drops() {
		return false
	}
	if e.Report == nil {
		return true
	}
	has := func(s status.Service) bool { return slices.Contains(s.IngressIPs, e.To) }
	return slices.ContainsFunc(e.Report.Services, has) || !slices.ContainsFunc(e.Report.EgressIPs, has)
}

// toService explains the packet of any pod to an ingress IP. EgressFirewall and hold do not apply, since they see the pod's address that
// the Service's DNAT has chosen.
func (e *explainer) toService() {
	var path walk.LivePath
	if !e.Flight.Judged.Drops() { // otherwise the simulation ended before it looked the pod up
		selected, found, hasPath := e.selected()
		e.compare(selected, found, hasPath)
		path = found
	}
	e.step("destination", "set "+e.Ingress.Set,
		"%s is an ingress IP: its Service's DNAT, by the CNI or kube-proxy, replaces it with a pod's address before our rules see it",
		e.To)
	e.verdict(Cluster, "stays in the cluster: %s is an ingress IP, which a Service handles; without one, the packet is dropped", e.To)
	e.known(path)
}

// denied explains the EgressFirewall of the pod's namespace, if its rules judge the packet, and reports whether they drop it.
func (e *explainer) denied() bool {
	judged := e.Flight.Judged
	policy, asked := judged.LookedUp(ruleset.SetFirewalled)
	w := e.Wanted
	switch {
	case !asked || !policy.Found:
		if w != nil && w.Denied && e.comparable() {
			e.differ("the daemon denies this by %s but the kernel has no policy for %s%s", w.Firewall, e.From, soon)
		}
		return false
	case !judged.Dropped:
		e.step("firewall", "chain "+ruleset.ChainFirewall, "%s%s",
			cmp.Or(e.firewallRule(), "allowed: no rule of an EgressFirewall matches"), e.unnamedPort())
		return false
	}
	rule := e.firewallRule()
	e.step("firewall", "chain "+judged.Decided, "denied: %s%s",
		cmp.Or(rule, "by a policy of EgressFirewall, which no daemon explains"), e.unnamedPort())
	e.verdict(Dropped, "dropped: %s%s", cmp.Or(rule, "an EgressFirewall denies it"), e.unnamedPort())
	if w != nil && !w.Denied && e.comparable() {
		e.differ("the daemon allows this but the kernel denies it%s", soon)
	}
	return true
}

// unnamedPort returns an addition to the verdict of an EgressFirewall that depends on the port, if the request names none; empty: it does
// not depend on it. ICMP has no ports.
func (e *explainer) unnamedPort() string {
	byPort := func(l walk.Lookup) bool { return ruleset.IsByPort(l.Set) }
	if judged := e.Flight.Judged; e.Port != 0 || e.Proto == "icmp" || judged == nil || !slices.ContainsFunc(judged.Lookups, byPort) {
		return ""
	}
	return " (for ports that no rule of the EgressFirewall names; --dport asks about one)"
}

// firewallRule returns the rule that decides about the packet, as the daemon says; empty: unknown, or none does.
func (e *explainer) firewallRule() string {
	if e.Wanted == nil {
		return ""
	}
	return e.Wanted.Firewall
}

// selected reports whether the source is a selected pod, and its path.
func (e *explainer) selected() (selected bool, path walk.LivePath, hasPath bool) {
	l, asked := e.Flight.Arrive.LookedUp(ruleset.SetEgress)
	if !asked || !l.Found {
		what := "no: " + e.From.String() + " is behind no EgressService here"
		if !asked {
			what = "unknown: no rule looks it up"
		}
		e.step("selected", "set "+setOf(ruleset.SetEgress, e.From), "%s", what)
		return false, path, false
	}
	where := fmt.Sprintf("set %s: %s : %s", l.Set, l.Key, l.Value)
	id := l.PathValue()
	if id == 0 {
		e.step("selected", where, "yes, but without a path on this node")
		return true, path, false
	}
	path, known := e.Live.Path(id)
	if !known {
		e.step("selected", where, "yes, with path %d, which is not in force", id)
		e.out.Damage = append(e.out.Damage, fmt.Sprintf("path %d of %s is not in set paths", id, e.From))
		return true, path, false
	}
	e.out.Services = append(e.out.Services, services(e.Report, e.key(path), e.source())...)
	of := oneOf(e.out.Services)
	if of != "" {
		of = ", " + of
	}
	e.step("selected", where, "yes, path %d: %s%s", id, pathName(e.key(path)), of)
	return true, path, true
}

// source returns the ingress IP that NAT binds or the daemon plans; invalid: neither does.
func (e *explainer) source() (ingress netip.Addr) {
	if nat := e.Flight.NAT; nat != nil && nat.Source.IsValid() && nat.Source != e.From {
		ingress = nat.Source
	} else if e.Wanted != nil && e.Wanted.Source != e.From {
		ingress = e.Wanted.Source
	}
	if e.ownerOf(ingress) != "" {
		return netip.Addr{}
	}
	return ingress
}

// ownerOf returns the VRF device, or the loopback device, that has an address: the source of pods with sourceIPBy: Network if no interface
// of the network has one; empty: neither has it.
func (e *explainer) ownerOf(a netip.Addr) string {
	if link, ok := e.Live.Local(a); ok && (link.VRFTable != 0 || link.Name == walk.Loopback) {
		return link.Name
	}
	return ""
}

// exempt reports whether the destination is in the cluster, which we leave alone.
func (e *explainer) exempt() bool {
	arrive := e.Flight.Arrive
	cluster, asked := arrive.LookedUp(ruleset.SetCluster)
	switch {
	case cluster.Found:
		e.inCluster(cluster)
	case arrive.Decided == "exempt" && !arrive.Dropped:
		e.step("destination", "fib daddr type", "an address of this node, or not a unicast address: left alone")
		e.verdict(Cluster, "stays in the cluster: %s is an address of this node, or not a unicast address", e.To)
	default:
		if asked {
			e.step("destination", "set "+setOf(ruleset.SetCluster, e.To), "outside of the cluster")
		}
		return false
	}
	return true
}

// inCluster explains a destination that is in a range of the cluster.
func (e *explainer) inCluster(l walk.Lookup) {
	e.step("destination", "set "+l.Set, "inside the cluster: in %s", l.Value)
	e.verdict(Cluster, "stays in the cluster: %s is in %s: such packets are never steered, and keep their source", e.To, l.Value)
	if e.Flight.Unrouted() {
		e.out.Verdict.Text += "; but unless a Service's DNAT applies, " + e.unreached(0)
		return
	}
	e.route(walk.LivePath{})
}

// damagedAway gives the verdict that a selected pod's packet goes the wrong way.
func (e *explainer) damagedAway(path walk.LivePath, why string) {
	to := "nowhere"
	if r := e.Flight.Route; r != nil && r.Err == nil {
		to = "by " + way(r) + " (table " + tableName(r.Table) + ")"
	}
	should := "should be dropped"
	if path.ID != 0 {
		should = "should go by " + pathName(path.Key)
	}
	e.verdict(Damaged, "damaged: %s, so it %s but goes %s", why, should, to)
}

// unselected explains the packet of a pod that is not selected.
func (e *explainer) unselected() {
	switch a := e.Flight.Arrive; {
	case a.Dropped && a.Why == ruleset.DropHeld.Counter():
		e.held()
	case a.Dropped:
		e.dropped(a, "before routing")
	case e.unruled():
	default:
		e.route(walk.LivePath{})
		e.leaveUnselected()
	}
}

// leaveUnselected gives the verdict on a packet that our rules leave alone.
func (e *explainer) leaveUnselected() {
	f := e.Flight
	switch r := f.Route; {
	case r == nil:
	case r.Err != nil:
		e.verdict(Dropped, "dropped: not selected, and %s", e.unreached(0))
	case r.Local:
		e.verdict(Unselected, "not selected: to this node itself")
	case f.NAT.Drops():
		e.dropped(f.NAT, "on its way out")
	default:
		v := e.verdict(Unselected,
			"not selected: leaves like any pod of this node, by the %s table and the CNI's masquerade (%s)", tableName(r.Table), way(r))
		v.Device, v.NextHop, v.Table = r.Device, r.Gateway, r.Table
	}
}

// unruled reports whether our table, or its lookup of sources, is missing, and then gives the verdict.
func (e *explainer) unruled() bool {
	f := e.Flight
	if !e.Live.Table && (len(e.Live.Rules) > 0 || e.Wanted != nil && e.Wanted.Selected) {
		e.verdict(Damaged,
			"damaged: nftables table inet egressway is missing, so %s goes like any pod of this node%s", e.From, byWay(f.Route))
		return true
	}
	if _, asked := f.Arrive.LookedUp(ruleset.SetEgress); !asked && e.Live.Table && f.Arrive.Decided == "" {
		e.verdict(Damaged, "damaged: no rule looks %s up, so it goes like any pod of this node%s", e.From, byWay(f.Route))
		return true
	}
	return false
}

// held explains the packet of a pod that may leave as an endpoint only, or that is not known yet.
func (e *explainer) held() {
	const look = "kubectl get pods -A -o wide --field-selector status.podIP="
	e.step("let go", "set "+setOf(ruleset.SetLet, e.From),
		"no: new flows to the outside wait until %s is an endpoint, or the address of a Pod that no entry of hold selects", e.From)
	why, next := "it is not an endpoint of an EgressService, and no known Pod of this node that hold lets go has it",
		"find its Pod with "+look+e.From.String()+", and check whether an EndpointSlice of its Service lists it"
	switch w := e.Wanted; {
	case w == nil || e.Report == nil:
	case w.Selected:
		why, next = "the daemon wants it to be selected, which is not in force", "see the daemon's log"
	case w.Held != "":
		why = w.Held
	default:
		e.differ("the daemon lets %s go but the kernel holds it: repaired within 10 s, or see the daemon's log", e.From)
	}
	e.verdict(Dropped, "dropped: held, since %s; it goes once it is an endpoint: %s", why, next)
}

// onPath explains how a selected pod's packet goes on its path.
func (e *explainer) onPath(path walk.LivePath) {
	f, m := e.Flight, e.Live.Marks
	if f.Arrive.Mark&m.Mask != m.Egress(path.ID) {
		e.step("mark", "chain "+f.Arrive.Decided, "%#x, not %#x of its path", f.Arrive.Mark&m.Mask, m.Egress(path.ID))
		e.damagedAway(path, "our rules do not mark it")
		return
	}
	e.step("mark", "chain "+f.Arrive.Decided, "%#x/%#x: egress by path %d", f.Arrive.Mark&m.Mask, m.Mask, path.ID)
	if !e.route(path) {
		return
	}
	e.leave(path)
}

// leave explains the source, the guard, and the packet's final way.
func (e *explainer) leave(path walk.LivePath) {
	f := e.Flight
	r := f.Route
	if r.Local {
		e.damagedAway(path, "it is routed to this node itself")
		return
	}
	if f.NAT.Drops() {
		e.dropped(f.NAT, "on its way out")
		return
	}
	e.translated()
	if f.Leave.Dropped {
		e.guarded(path)
		return
	}
	e.step("guard", "chain guard", "passes")
	if to := f.Shared; to != nil {
		e.handedByMAC(to)
		return
	}
	if path.Key.Kind == plan.PathSteer {
		e.handed(path)
		return
	}
	vrf, by := e.wayOut(r)
	v := e.verdict(Leaves, "leaves by %s (%s) as %s", path.Key.Name, by, f.Source)
	v.Network, v.VRF, v.Table, v.Device, v.NextHop, v.Source = path.Key.Name, vrf, r.Table, r.Device, r.Gateway, f.Source
	if !f.Source.IsValid() || f.Source == e.From {
		v.Kind, v.Text = Damaged, fmt.Sprintf("damaged: leaves by %s (%s) with its own address", path.Key.Name, by)
	}
}

// translated explains the source that the packet gets.
func (e *explainer) translated() {
	switch nat := e.Flight.NAT; {
	case nat == nil:
	case nat.Source == e.From:
		e.step("source", "set "+setOf(ruleset.SetSource, e.From), "%s itself: the host gives it the ingress IP", e.From)
	case e.ownerOf(nat.Source) != "":
		e.step("source", "set "+setOf(ruleset.SetSource, e.From), "%s, the address of %s", nat.Source, e.ownerOf(nat.Source))
	case nat.Source.IsValid():
		e.step("source", "set "+setOf(ruleset.SetSource, e.From), "%s, the ingress IP", nat.Source)
	case nat.Masquerade:
		e.step("source", "set "+setOf(ruleset.SetMasquerade, e.From), "%s, the address of %s", e.Flight.Source, e.masqueradeDevice())
	default:
		e.step("source", "set "+setOf(ruleset.SetSource, e.From), "unchanged: %s", e.From)
	}
}

// masqueradeDevice returns the device that has the address of a masquerade: the outgoing one, or another if that has none.
func (e *explainer) masqueradeDevice() string {
	if link, ok := e.Live.Local(e.Flight.Source); ok {
		return link.Name
	}
	return e.Flight.Route.Device
}

// guarded gives the verdict that the guard dropped the packet.
func (e *explainer) guarded(path walk.LivePath) {
	f := e.Flight
	e.step("guard", "chain "+f.Leave.Decided, "drops it")
	why := "it would leave as " + f.Source.String() + ", which is not planned"
	if device := f.Route.Device; path.Devices != nil && !slices.Contains(path.Devices, device) {
		why = fmt.Sprintf("it would leave by %s, which is not a device of %s (%s)",
			device, pathName(path.Key), strings.Join(path.Devices, ", "))
	}
	e.verdict(Dropped, "dropped: by the guard, since %s", why)
}

// handed gives the verdict that the packet goes to the host of its service.
func (e *explainer) handed(path walk.LivePath) {
	r := e.Flight.Route
	over := "direct"
	if link, _ := e.Live.Link(r.Device); link.Name != "" && r.Gateway.IsLinkLocalUnicast() {
		over = "vxlan"
	}
	v := e.verdict(Handed, "handed to host %s (%s: %s)", path.Key.Name, over, way(r))
	v.Host, v.Device, v.NextHop, v.Table = path.Key.Name, r.Device, r.Gateway, r.Table
}

// handedByMAC gives the verdict that PathShared leads the packet to the host of its service, or that the tunnel drops it.
func (e *explainer) handedByMAC(to *walk.SharedHost) {
	r := e.Flight.Route
	if !to.At.IsValid() {
		e.verdict(Dropped, "dropped by the tunnel: set %s of table netdev %s has no host for %s", to.Set, ruleset.TableName, e.From)
		return
	}
	host := cmp.Or(e.sharedName(), "at "+to.At.String())
	e.step("host", "set "+to.Set, "%s : %s, which the tunnel leads to %s", e.From, net.HardwareAddr(to.MAC[:]), to.At)
	v := e.verdict(Handed, "handed to host %s (vxlan: %s to %s)", host, r.Device, to.At)
	v.Host, v.Device, v.NextHop, v.Table = e.sharedName(), r.Device, to.At, r.Table
}

// sharedName returns the name of the host that PathShared leads to; empty: it is not the one that the daemon wants, whose name
// is known.
func (e *explainer) sharedName() string {
	w, to := e.Wanted, e.Flight.Shared
	if w == nil || to == nil || !to.At.IsValid() || w.HostAt != to.At {
		return ""
	}
	return strings.TrimPrefix(w.Path, string(plan.PathSteer)+" ")
}

// key returns the key of a path, and for PathShared that of a path to the packet's host, if that is known.
func (e *explainer) key(path walk.LivePath) plan.PathKey {
	if name := e.sharedName(); name != "" {
		return plan.PathKey{Kind: plan.PathSteer, Name: name}
	}
	return path.Key
}

// dropped gives the verdict that a chain dropped the packet.
func (e *explainer) dropped(p *walk.Passage, when string) {
	why := map[string]string{
		"no-path":   "selected, but without a path here",
		"exempt":    "its destination is an ingress IP that no Service handles",
		"between":   "a pod of another node, which is not selected here: its node steers it already, or still",
		"late":      "a reply of a connection that ended with a change",
		"unclaimed": "its destination is an ingress IP that no Service handles",
	}[p.Decided]
	if why == "" && strings.HasPrefix(p.Decided, "path-") {
		why = "its connection began on another path"
	}
	if why == "" {
		why = fmt.Sprintf("rule %d of chain %s", p.Rule, p.Decided)
	}
	if p.Masquerade {
		why = "no device has an address that it could leave with by " + e.Flight.Route.Device
	}
	e.step("rules", fmt.Sprintf("chain %s, rule %d", p.Decided, p.Rule), "dropped %s", when)
	e.verdict(Dropped, "dropped: %s", why)
}

// compare reports differences between the daemon's plan and the kernel.
func (e *explainer) compare(selected bool, path walk.LivePath, hasPath bool) {
	if !e.comparable() {
		return
	}
	wanted, has := describe(e.Wanted.Selected, e.Wanted.Path), describe(selected, e.reported(path))
	if wanted != has {
		e.differ("the daemon wants %s to be %s but the kernel has it %s%s", e.From, wanted, has, soon)
		return
	}
	e.compareSource()
	if hasPath && e.out.Verdict.bad() && !e.Report.Ready {
		e.differ("the daemon says that the kernel is not as planned: see its log, or egressway status")
	}
}

// comparable reports whether the daemon's plan is known and our table is there. Without the table everything differs,
// and that is reported already.
func (e *explainer) comparable() bool { return e.Report != nil && e.Wanted != nil && e.Live.Table }

// soon ends sentences about a difference.
const soon = ": repaired within 10 s, or see the daemon's log"

// compareSource reports whether the kernel gives the packet another source than planned.
func (e *explainer) compareSource() {
	nat, w := e.Flight.NAT, e.Wanted
	if nat != nil && w.Selected && w.Source.IsValid() && nat.Source != w.Source {
		e.differ("the daemon wants %s to leave as %s but the kernel has %s%s", e.From, w.Source, orNone(nat.Source), soon)
	}
}

func orNone(a netip.Addr) string {
	if !a.IsValid() {
		return "no source for it"
	}
	return a.String()
}

// reported returns a path as the daemon's report has it; empty: no path.
func (e *explainer) reported(path walk.LivePath) string {
	if path.ID == 0 {
		return ""
	}
	key := e.key(path)
	return string(key.Kind) + " " + key.Name
}

func describe(selected bool, path string) string {
	kind, name, _ := strings.Cut(path, " ")
	switch {
	case !selected:
		return "not selected"
	case path == "":
		return "selected without a path"
	case kind == string(plan.PathShared):
		return "steered to another host, by the path that hosts share"
	case kind == string(plan.PathSteer):
		return "steered to host " + name
	}
	return "sent by network " + name
}

func setOf(kind string, a netip.Addr) string {
	if a.Is4() {
		return kind + "4"
	}
	return kind + "6"
}
