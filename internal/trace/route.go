package trace

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/kernel/walk"
)

func byWay(r *walk.Route) string {
	if r == nil || r.Err != nil {
		return ""
	}
	return ", by " + way(r)
}

// route explains the rule and the route; it returns false if the packet goes nowhere.
func (e *explainer) route(path walk.LivePath) bool {
	r, mark := e.Flight.Route, e.Flight.Arrive.Mark
	if r == nil {
		return false
	}
	table := e.ruledTable(mark)
	if r.Err != nil {
		e.step("route", routeAsked(e, mark), "none: %s", e.unreached(table))
		if path.ID != 0 {
			e.verdict(Dropped, "dropped: %s", e.unreached(table))
		}
		return false
	}
	e.step("route", routeAsked(e, mark), "%s", e.routeText(r))
	if table != 0 && r.Table != table && path.ID != 0 {
		e.out.Damage = append(e.out.Damage, fmt.Sprintf(
			"table %d has no route, but table %d is consulted after it: a rule of ours is missing", table, r.Table))
	}
	return true
}

// ruledTable explains the rule for a mark and returns its table; 0: no rule leads to a table.
func (e *explainer) ruledTable(mark uint32) uint32 {
	if mark&e.Live.Marks.Mask == 0 {
		return 0
	}
	rule := e.rule(mark)
	if rule == nil || rule.Unreachable {
		return 0
	}
	return rule.Table
}

func routeAsked(e *explainer, mark uint32) string {
	p := e.Flight.Packet
	asked := "ip route get " + p.To.String()
	if p.In != "" {
		asked += fmt.Sprintf(" from %s iif %s", p.From, p.In)
	}
	if mark&e.Live.Marks.Mask != 0 {
		asked += fmt.Sprintf(" mark %#x", mark)
	}
	return asked
}

// rule explains which rule of ours matches a mark; nil: no rule does.
func (e *explainer) rule(mark uint32) *walk.LiveRule {
	rules := e.Live.RulesFor(mark, e.To.Is6())
	if len(rules) == 0 {
		e.step("rule", "ip rule", "no rule of ours matches mark %#x", mark)
		e.out.Damage = append(e.out.Damage, fmt.Sprintf("no rule matches mark %#x", mark))
		return nil
	}
	r := rules[0]
	to := "table " + tableName(r.Table)
	if r.Unreachable {
		to = "unreachable: the rule to the path's table is missing"
	}
	e.step("rule", "ip rule", "%d: mark %#x/%#x to %s", r.Priority, r.Mark, r.Mask, to)
	return &r
}

// routeText describes a route.
func (e *explainer) routeText(r *walk.Route) string {
	if r.Local {
		return "to this node itself"
	}
	var b strings.Builder
	if r.Prefix.IsValid() {
		fmt.Fprintf(&b, "%s ", r.Prefix)
	}
	if r.Gateway.IsValid() {
		fmt.Fprintf(&b, "via %s ", r.Gateway)
	}
	fmt.Fprintf(&b, "by %s, table %s", r.Device, tableName(r.Table))
	if vrf := e.Live.VRF(r.Table); vrf != "" {
		fmt.Fprintf(&b, " (%s)", vrf)
	}
	fmt.Fprintf(&b, ", %s", origin(r))
	if r.Legs > 1 {
		fmt.Fprintf(&b, ", one of %d next hops, by flow", r.Legs)
	}
	return b.String()
}

// origin returns the program that made a route, in words.
func origin(r *walk.Route) string {
	switch {
	case r.Ours() && steering(r.Table):
		return "ours"
	case r.Ours():
		return "learned from a peer"
	}
	return protocolName(r.Protocol)
}

func steering(table uint32) bool {
	return table >= config.SteeringTableBase && table < config.SteeringTableBase+config.SteeringTableCount
}

func protocolName(p uint8) string {
	names := map[uint8]string{
		unix.RTPROT_KERNEL: "of the interface's subnet", unix.RTPROT_BOOT: "set by hand or a script", unix.RTPROT_STATIC: "static",
		unix.RTPROT_RA: "by router advertisement", unix.RTPROT_DHCP: "by DHCP", unix.RTPROT_BGP: "by another BGP daemon",
	}
	if n, ok := names[p]; ok {
		return n
	}
	return fmt.Sprintf("of protocol %d", p)
}

func tableName(t uint32) string {
	if t == unix.RT_TABLE_MAIN {
		return "main"
	}
	return fmt.Sprint(t)
}

// unreached returns the reason why the packet has no route.
func (e *explainer) unreached(table uint32) string {
	if errors.Is(e.Flight.Route.Err, unix.EXDEV) {
		return fmt.Sprintf("the reverse path filter of %s drops it: set net.ipv4.conf.%[1]s.rp_filter to 2, "+
			"and src_valid_mark to 0 on %[1]s and on all", e.In)
	}
	if table == 0 {
		return e.unruledRoute()
	}
	none := fmt.Sprintf("no route to %s in table %s", e.Flight.Packet.To, tableName(table))
	if family := e.unroutedFamily(table); family != "" {
		none += ", which has no " + family + " route that leads anywhere"
	}
	return none
}

// unruledRoute returns the reason why a packet that no rule leads to a path's table has no route.
func (e *explainer) unruledRoute() string {
	mark := e.Flight.Arrive.Mark
	switch {
	case errors.Is(e.Flight.Route.Err, unix.EINVAL):
		return fmt.Sprintf("the kernel rejects %s as a source on %s", e.From, e.In)
	case mark&e.Live.Marks.EgressBit() != 0:
		return fmt.Sprintf("no rule leads mark %#x to its path's table", mark&e.Live.Marks.Mask)
	}
	return fmt.Sprintf("no route to %s in the main table", e.Flight.Packet.To)
}

// unroutedFamily returns the packet's family if a table has no route that leads anywhere for it; empty: it has one, or
// that is unknown.
func (e *explainer) unroutedFamily(table uint32) string {
	routed, known := e.Routed[table]
	switch to := e.Flight.Packet.To; {
	case known && to.Is4() && !routed.IPv4:
		return "IPv4"
	case known && to.Is6() && !routed.IPv6:
		return "IPv6"
	}
	return ""
}

// wayOut describes a route out of a network. vrf is the VRF of its table; empty: the table has none.
func (e *explainer) wayOut(r *walk.Route) (vrf, by string) {
	vrf, by = e.Live.VRF(r.Table), way(r)
	if vrf != "" {
		by = vrf + ", " + by
	}
	return vrf, by
}
