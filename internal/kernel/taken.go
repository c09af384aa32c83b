package kernel

import (
	"fmt"
	"slices"

	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// taken collects drift: objects that were in force after the last Apply, are still planned, and had to be restored.
type taken struct {
	before  *plan.NodePlan           // plan in force since the last Apply; nil: none
	leads   map[uint32]plan.Families // families that its routes lead to, by table, without the refused routes
	lacking bool                     // some routes were refused
	objects []string
	kinds   map[Drift]int
}

// end returns the drift found by an Apply, and starts over with the plan p that it brought into force.
func (t *taken) end(p *plan.NodePlan, refused route.Refusals) (objects []string, kinds map[Drift]int) {
	objects, kinds = t.objects, t.kinds
	leads, lacking := t.leads, len(refused) > 0
	if t.before == nil || !t.before.Routes.Same(p.Routes) || t.lacking || lacking {
		leads = leadsOf(p.Routes, refused)
	}
	*t = taken{before: p, leads: leads, lacking: lacking}
	return objects, kinds
}

// leadsOf returns, by table, the families for which routes lead somewhere.
func leadsOf(routes sorted.List[plan.Route], refused route.Refusals) map[uint32]plan.Families {
	leads := map[uint32]plan.Families{}
	var of uint32 // table of the previous route: with very many, most are of one table
	var f plan.Families
	for r := range routes.All() {
		if r.Unreachable || refused.Has(&r) {
			continue
		}
		if r.Table != of {
			of, f = r.Table, leads[r.Table]
		}
		if ipv4 := r.Dst.Addr().Is4(); ipv4 && !f.IPv4 || !ipv4 && !f.IPv6 {
			f.IPv4, f.IPv6 = f.IPv4 || ipv4, f.IPv6 || !ipv4
			leads[of] = f
		}
	}
	return leads
}

// lost reports whether one of the tables, or a VRF's table, lacks all routes of a family for which a route of ours
// should be there.
func (t *taken) lost(routed map[uint32]plan.Families, tables []uint32) bool {
	if t.before == nil {
		return false
	}
	for _, v := range t.before.VRFs {
		tables = append(slices.Clip(tables), v.Table)
	}
	for table, planned := range t.leads {
		has := routed[table]
		if slices.Contains(tables, table) && (planned.IPv4 && !has.IPv4 || planned.IPv6 && !has.IPv6) {
			return true
		}
	}
	return false
}

func (t *taken) add(kind Drift, object string) {
	if slices.Contains(t.objects, object) {
		return
	}
	t.objects = append(t.objects, object)
	if t.kinds == nil {
		t.kinds = map[Drift]int{}
	}
	t.kinds[kind]++
}

// rule records a created rule. Rules of one priority, of both families, count as one object.
func (t *taken) rule(r route.Rule) {
	if t.before != nil && slices.Contains(route.BothFamilies(t.before.Rules), r) {
		t.add(DriftRule, fmt.Sprintf("rule %d", r.Priority))
	}
}

// route records a created route. The routes of one table count as one object.
func (t *taken) route(p *plan.Route) {
	if t.before == nil {
		return
	}
	if had, ok := t.before.Routes.Get(*p); ok && had.Equal(*p) {
		t.add(DriftRoutes, fmt.Sprintf("routes of table %d", p.Table))
	}
}

// vrf records a created VRF device.
func (t *taken) vrf(name string) {
	if t.before != nil && slices.ContainsFunc(t.before.VRFs, func(v plan.VRF) bool { return v.Name == name }) {
		t.add(DriftVRF, "VRF device "+name)
	}
}

// port records an interface that was enslaved.
func (t *taken) port(name, vrf string) {
	if t.before != nil && slices.ContainsFunc(t.before.VRFs, func(v plan.VRF) bool {
		return v.Name == vrf && slices.Contains(v.Interfaces, name)
	}) {
		t.add(DriftInterface, "interface "+name+" in VRF "+vrf)
	}
}

// tunnel records a created tunnel device.
func (t *taken) tunnel(made *plan.Tunnel) {
	if t.before != nil && t.before.Tunnel != nil && t.before.Tunnel.Device == made.Device {
		t.add(DriftTunnel, "VXLAN device "+made.Device)
	}
}

// table records that the nftables table was changed by another program.
func (t *taken) table() {
	if t.before != nil {
		t.add(DriftTable, "nftables table inet "+ruleset.TableName)
	}
}
