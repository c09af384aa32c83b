package kernel

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// Record is what the kernel holds of ours, as the appliers last reported. The caller of a Node keeps it: Restore and
// Apply are handed the last Record and return the next one. The zero Record knows nothing.
type Record struct {
	// Plan is the last plan that was applied, wholly or in part; nil: none.
	Plan *plan.NodePlan
	// Whole is true if all of Plan is in force, apart from unmade devices and refused routes. If it is false, the next Apply
	// reads the kernel, and counts routes in held tables as left by an earlier run.
	Whole bool
	// Table is the content that our nftables table was last written with.
	Table nft.Held
	// NextLook is the time of the next full re-read. A pass should begin then: it finds changes that no event reported.
	NextLook time.Time

	look        bool                     // the present pass re-reads everything
	seen        counts                   // event counts when the last Apply began
	unmade      map[string]error         // by name, why a VRF or VLAN sub-interface is not as planned
	untunnelled error                    // why the tunnel is not as planned; nil: it is, or none is planned
	refused     route.Refusals           // routes of Plan that are left out
	leads       map[uint32]plan.Families // families that Plan's routes lead to, by table, without the refused routes
	drift       drift                    // found since the last Apply
}

// At returns the Record at the beginning of a pass. If a full re-read is due, that pass does not trust it.
func (r Record) At(now time.Time) Record {
	r.look = !now.Before(r.NextLook)
	return r
}

// trusts reports whether all of Plan is in force, and no event spoke against that.
func (r *Record) trusts(seen counts) bool {
	return r.Whole && !r.look && seen.watching && seen.all == r.seen.all
}

// trustsTable reports whether the nftables table is in force, and no event spoke against that.
func (r *Record) trustsTable(seen counts) bool {
	return r.Whole && !r.look && seen.watching && seen.table == r.seen.table
}

// applied records that a plan was applied instead of the former one. refused are the routes that were left out then.
func (r *Record) applied(p *plan.NodePlan, former route.Refusals) {
	if r.Plan == nil || !r.Plan.Routes.Same(p.Routes) || len(former)+len(r.refused) > 0 {
		r.leads = leadsOf(p.Routes, r.refused)
	}
	r.Plan, r.drift = p, drift{}
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
		if more := withFamily(f, r.Dst.Addr()); more != f {
			f = more
			leads[of] = f
		}
	}
	return leads
}

// withFamily returns families with that of an address.
func withFamily(f plan.Families, a netip.Addr) plan.Families {
	return plan.Families{IPv4: f.IPv4 || a.Is4(), IPv6: f.IPv6 || !a.Is4()}
}

// lacks reports whether one of the planned families is missing.
func lacks(has, planned plan.Families) bool {
	return planned.IPv4 && !has.IPv4 || planned.IPv6 && !has.IPv6
}

// lost reports whether one of the tables, or a VRF's table, lacks all routes of a family for which a route of ours
// should be there.
func (r *Record) lost(routed map[uint32]plan.Families, tables []uint32) bool {
	if r.Plan == nil {
		return false
	}
	for table, planned := range r.leads {
		if lacks(routed[table], planned) && (slices.Contains(tables, table) || r.ofVRF(table)) {
			return true
		}
	}
	return false
}

// ofVRF reports whether a table is a planned VRF's.
func (r *Record) ofVRF(table uint32) bool {
	return slices.ContainsFunc(r.Plan.VRFs, func(v plan.VRF) bool { return v.Table == table })
}

// drift names objects that were in force and had to be put back, and counts them by kind.
type drift struct {
	objects []string
	kinds   map[Drift]int
}

func (d drift) clone() drift { return drift{slices.Clone(d.objects), maps.Clone(d.kinds)} }

func (d *drift) add(kind Drift, object string) {
	if slices.Contains(d.objects, object) {
		return
	}
	d.objects = append(d.objects, object)
	if d.kinds == nil {
		d.kinds = map[Drift]int{}
	}
	d.kinds[kind]++
}

// madeRule records a created rule: it is drift if Plan has it. Rules of one priority, of both families, count as one
// object.
func (r *Record) madeRule(made route.Rule) {
	if r.Plan != nil && slices.Contains(route.BothFamilies(r.Plan.Rules), made) {
		r.drift.add(DriftRule, fmt.Sprintf("rule %d", made.Priority))
	}
}

// madeRoute records a created route. The routes of one table count as one object.
func (r *Record) madeRoute(made *plan.Route) {
	if r.Plan == nil {
		return
	}
	if had, ok := r.Plan.Routes.Get(*made); ok && had.Equal(*made) {
		r.drift.add(DriftRoutes, fmt.Sprintf("routes of table %d", made.Table))
	}
}

// madeVRF records a created VRF device.
func (r *Record) madeVRF(name string) {
	if r.Plan != nil && slices.ContainsFunc(r.Plan.VRFs, func(v plan.VRF) bool { return v.Name == name }) {
		r.drift.add(DriftVRF, "VRF device "+name)
	}
}

// madeVLAN records a created VLAN sub-interface.
func (r *Record) madeVLAN(name string) {
	if r.Plan != nil && slices.ContainsFunc(r.Plan.VLANs, func(v plan.VLAN) bool { return v.Name == name }) {
		r.drift.add(DriftVLAN, "VLAN sub-interface "+name)
	}
}

// enslaved records an interface that became a port of a VRF.
func (r *Record) enslaved(name, vrf string) {
	if r.Plan != nil && slices.ContainsFunc(r.Plan.VRFs, func(v plan.VRF) bool {
		return v.Name == vrf && slices.Contains(v.Interfaces, name)
	}) {
		r.drift.add(DriftInterface, "interface "+name+" in VRF "+vrf)
	}
}

// madeTunnel records a created tunnel device.
func (r *Record) madeTunnel(made *plan.Tunnel) {
	if r.Plan != nil && r.Plan.Tunnel != nil && r.Plan.Tunnel.Device == made.Device {
		r.drift.add(DriftTunnel, "VXLAN device "+made.Device)
	}
}

// madeAddress records an address that was added.
func (r *Record) madeAddress(a plan.OnLink) {
	if r.Plan == nil {
		return
	}
	if had, ok := r.Plan.DataPlane.OnLink.Get(a); ok && had == a {
		r.drift.add(DriftAddress, fmt.Sprintf("address %s of interface %s", a.Addr, a.Device))
	}
}

// missedTable records that another program changed the nftables table.
func (r *Record) missedTable() {
	if r.Plan != nil {
		r.drift.add(DriftTable, "nftables table inet "+ruleset.TableName)
	}
}
