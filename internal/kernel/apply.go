package kernel

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// Result is the outcome of an Apply.
type Result struct {
	// Record is what the kernel holds now, for the next pass.
	Record Record
	// InForce is true if the tunnel, rules and packet filter are as planned, so that their ingress IPs may be
	// announced.
	InForce bool
	// Unmade maps the name of a VRF or VLAN sub-interface to the reason why it is not as planned. All else is in force
	// without it.
	Unmade map[string]error
	// Contradicted is true if connections may contradict the plan: the caller should call EndContradictions soon.
	Contradicted bool
	// Restored names objects that were in force after the last Apply, and that were found removed or changed since. A
	// link that goes down takes its routes along.
	Restored []string
	// Drift counts the restored objects by kind.
	Drift map[Drift]int
	// Refused has one route of each table and reason for which routes of the plan are left out, sorted, unless no packet needs
	// them. All else is in force without them.
	Refused []route.Refused
	// OnLink holds the addresses for which this node answers on the link.
	OnLink sorted.List[plan.OnLink]
	// Steps lists the appliers' work; several steps of one applier are joined.
	Steps []Step
}

// Whole reports whether every part of the kernel is as planned: devices, routes, rules and packet filter. Routes that
// peers announce and that cannot be do not count.
func (r Result) Whole() bool {
	return r.InForce && len(r.Unmade) == 0 && !slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Err != nil }) &&
		!slices.ContainsFunc(r.Refused, func(one route.Refused) bool { return !one.OfPeer() })
}

// application is an Apply under way.
type application struct {
	*Node
	began  time.Time
	seen   counts         // event counts at the beginning
	want   *plan.NodePlan // to be brought into force
	former *plan.NodePlan // wholly in force until now; nil: unknown
	before *plan.NodePlan // the same, where no event spoke against that; nil: the kernel has to be read
	rec    Record         // what the kernel holds so far; its Plan is the former one until want is applied
	routes *route.Changes // between before and want; nil: devices may differ, or before is unknown
	result Result
	errs   []error
}

// Apply makes the kernel equal to the plan. It first adds the devices and routes that packets will need, then the rules
// that direct packets there; removals come last. A missing nftables table is created before all that, and if that fails
// Apply stops: a new device may let packets in. Any other failing step does not stop the others. The caller must not
// modify the plan afterwards. held is what the kernel holds, as the last Apply or Restore returned it.
func (n *Node) Apply(ctx context.Context, held Record, p *plan.NodePlan) (Result, error) {
	a := n.application(held, p)
	a.try(ApplyAddresses, func() error { return a.leaveOnLink(ctx) })
	trusted := held.trustsTable(a.seen)
	if !trusted && !a.try(ApplyTable, func() error { return n.guard(ctx, &a.rec, p) }) {
		return a.end()
	}
	a.try(ApplyRoutes, func() error { return a.addRoutes(ctx) })
	rules := a.addRules(ctx)
	n.nft.Without = a.rec.untunnelled != nil
	a.try(ApplyTable, func() error { return a.endKept(ctx) })
	packets := a.try(ApplyTable, func() error { return n.writeTable(ctx, &a.rec, p, trusted) })
	a.result.Contradicted = packets && a.contradicted(held)
	a.result.InForce = rules && packets && (a.rec.untunnelled == nil || p.Tunnel.Spare)
	a.try(ApplyAddresses, func() error { return a.answerOnLink(ctx) })
	a.result.Unmade, a.result.Refused = a.rec.unmade, needed(a.rec.refused.Examples(), &p.DataPlane)
	a.result.Restored, a.result.Drift = a.rec.drift.objects, a.rec.drift.kinds
	a.rec.applied(p, held.refused)
	if a.result.InForce {
		a.remove(ctx)
	}
	a.try(ApplyRoutes, func() error { return n.reread(ctx, a.routes) })
	return a.end()
}

// needed leaves out the IPv6 routes through the tunnel that no packet takes: a node may lack IPv6 where the cluster has none.
func needed(all []route.Refused, d *plan.DataPlane) []route.Refused {
	return slices.DeleteFunc(all, func(r route.Refused) bool {
		i := slices.IndexFunc(d.Paths, func(p plan.Path) bool { return p.Tunneled && p.Table == r.Table })
		return i >= 0 && r.Dst.Addr().Is6() && !leadsIPv6(d, d.Paths[i].ID)
	})
}

// leadsIPv6 reports whether IPv6 packets of pods, or strays, take a path.
func leadsIPv6(d *plan.DataPlane, id plan.PathID) bool {
	first := netip.IPv6Unspecified() // IPv4 addresses come before it
	for e := range d.Endpoints.From(plan.Endpoint{Addr: first}) {
		if e.Path == id || e.Kept.Path == id {
			return true
		}
	}
	for i := range d.Ingress.From(plan.IngressIP{Addr: first}) {
		if i.Stray == id {
			return true
		}
	}
	return false
}

// sameRules reports whether the kernel is known to have the plan's rules.
func (a *application) sameRules() bool {
	return a.before != nil && sorted.SameSlice(a.before.Rules, a.want.Rules)
}

// addRules adds the missing rules, and reports whether the kernel has all of the plan.
func (a *application) addRules(ctx context.Context) bool {
	return a.sameRules() || a.try(ApplyRules, func() error { return a.route.AddRules(ctx, a.want.Rules, a.rec.madeRule) })
}

// endKept ends the connections that only the plan in force keeps where they are.
func (a *application) endKept(ctx context.Context) error {
	if a.former == nil {
		return nil
	}
	return a.audit.EndKept(ctx, &a.former.DataPlane, &a.want.DataPlane, a.HandOver)
}

// contradicted records that the packet filter is as planned, and reports whether connections may contradict that.
func (a *application) contradicted(held Record) bool {
	return a.audit.Applied(held.Table.Data, &a.want.DataPlane) || held.look && a.audit.Due(a.clock())
}

// remove removes the rules, devices and routes that are no longer planned.
func (a *application) remove(ctx context.Context) {
	if !a.sameRules() {
		a.try(ApplyRules, func() error { return a.route.PruneRules(ctx, a.want.Rules) })
	}
	a.try(ApplyRoutes, func() error { return a.prune(ctx) })
}

// application begins an Apply.
func (n *Node) application(held Record, p *plan.NodePlan) *application {
	a := &application{Node: n, began: n.clock(), seen: n.stirs.now(), want: p, rec: held}
	a.rec.drift = held.drift.clone()
	if held.Whole {
		a.former = held.Plan
	}
	if !held.Whole || !sameConcern(held.Plan, p) {
		n.stirs.setConcern(concernOf(p)) // from here on, events about the objects that we make now matter
	}
	if held.trusts(a.seen) {
		a.before, a.routes = held.Plan, routeChanges(held.Plan, p)
	}
	return a
}

// routeChanges returns the difference between the routes of two plans; nil: devices or held tables may differ as well.
func routeChanges(before, p *plan.NodePlan) *route.Changes {
	if !sameDevices(before, p) || !sorted.Same(&before.Held, &p.Held) {
		return nil
	}
	return new(route.ChangesOf(before.Routes, p.Routes))
}

// sameDevices reports whether two plans have the same devices of ours.
func sameDevices(a, b *plan.NodePlan) bool {
	return sorted.Same(&a.VRFs, &b.VRFs) && sorted.Same(&a.VLANs, &b.VLANs) && sorted.Same(&a.Tunnel, &b.Tunnel)
}

// try runs a step of an applier, and reports whether it succeeded.
func (a *application) try(by Applier, step func() error) bool {
	began := time.Now()
	err := step()
	a.result.Steps = joinStep(a.result.Steps, Step{by, time.Since(began), err})
	a.errs = append(a.errs, err)
	return err == nil
}

// end returns the outcome.
func (a *application) end() (Result, error) {
	err := errors.Join(a.errs...)
	if a.rec.Whole = err == nil; a.rec.Whole {
		a.rec.seen = a.seen
		if a.before == nil {
			cost := a.facts.cost + a.trouble.cost + a.clock().Sub(a.began)
			a.rec.NextLook, a.rec.look = a.began.Add(max(lookEvery, lookShare*cost)), false
		}
	}
	a.result.Record = a.rec
	return a.result, err
}

// addRoutes adds the devices and routes that the plan needs: by difference, where that is known.
func (a *application) addRoutes(ctx context.Context) error {
	switch {
	case a.routes == nil:
		return a.addAll(ctx, &a.rec, a.want)
	case a.routes.None():
		return nil
	}
	a.rec.refused = a.rec.refused.Clone()
	a.rec.refused.Take(a.routes)
	err := a.route.AddChanged(ctx, a.links, *a.routes, func(r *plan.Route, err error) error {
		if errors.Is(err, unix.EEXIST) && slices.Contains(a.want.Held, r.Table) {
			return err
		}
		return a.rec.refused.Judge(r, err)
	})
	if errors.Is(err, unix.EEXIST) {
		// A route of an earlier run may be in the way. Only a full re-read distinguishes it from another program's.
		return a.addAll(ctx, &a.rec, a.want)
	}
	return err
}

// prune removes the devices and routes that are no longer planned.
func (a *application) prune(ctx context.Context) error {
	if a.routes != nil {
		return a.route.RemoveGone(ctx, a.routes.Gone)
	}
	p := a.want
	errs := []error{a.route.PruneRoutes(ctx, p.Routes.Slice(), p.Held...)}
	if a.former != nil && len(p.Held) > 0 {
		errs = append(errs, a.route.RemoveGone(ctx, ownGone(a.former, p)))
	}
	if p.Tunnel == nil {
		errs = append(errs, link.ApplyTunnel(ctx, a.links, nil))
	}
	return errors.Join(append(errs, link.PruneVLANs(ctx, a.links, p.VLANs), a.vrfs.Prune(ctx, a.links, p.VRFs))...)
}

// ownGone returns the routes that the plan before has and p lacks, in tables held by both. They are from this run; the
// tables are held for the routes of an earlier run, which stay.
func ownGone(before, p *plan.NodePlan) []*plan.Route {
	return slices.DeleteFunc(route.ChangesOf(before.Routes, p.Routes).Gone, func(r *plan.Route) bool {
		return !slices.Contains(before.Held, r.Table) || !slices.Contains(p.Held, r.Table)
	})
}

// Restore puts back the nftables table, devices and routes of the Record's plan that others removed. It returns the next
// Record, also with an error; the next Apply reports the drift.
func (n *Node) Restore(ctx context.Context, held Record) (Record, error) {
	if held.Plan == nil {
		return held, nil
	}
	held.drift = held.drift.clone()
	n.facts = knownFacts{} // no event reports our own changes
	if err := n.guard(ctx, &held, held.Plan); err != nil {
		return held, err
	}
	err := n.addAll(ctx, &held, held.Plan)
	return held, err
}

// guard creates the nftables table if it is missing. Until routes and rules exist, the table drops the packets that
// need them.
func (n *Node) guard(ctx context.Context, rec *Record, p *plan.NodePlan) error {
	if now, err := nft.ReadState(); err != nil || now.Exists {
		return err
	}
	n.nft.Without = true // devices follow
	return n.writeTable(ctx, rec, p, false)
}

// writeTable makes the nftables table equal to a plan.
func (n *Node) writeTable(ctx context.Context, rec *Record, p *plan.NodePlan, trusted bool) error {
	r, err := n.nft.Apply(ctx, rec.Table, &p.DataPlane, trusted)
	if r.Made && len(rec.Table.Paths) == 0 {
		n.audit.Renumbered(&p.DataPlane)
	}
	rec.Table = r.Held
	if r.Missed {
		rec.missedTable()
	}
	if r.Changed && r.Doubted {
		n.audit.Reset() // packets may have passed under other rules
	}
	return err
}

// addAll creates the missing devices and routes of a plan.
func (n *Node) addAll(ctx context.Context, rec *Record, p *plan.NodePlan) error {
	n.addDevices(ctx, rec, p)
	errs := []error{ctx.Err()}
	rec.untunnelled = nil
	if p.Tunnel != nil {
		rec.untunnelled = link.ApplyTunnel(ctx, n.links, p.Tunnel, func(made *plan.Tunnel) {
			rec.madeTunnel(made)
			n.nft.DeviceMade()
		})
		errs = append(errs, rec.untunnelled)
	}
	former := rec.refused
	rec.refused = route.Refusals{}
	return errors.Join(append(errs, n.route.AddRoutes(ctx, n.links, p.Routes.Slice(), func(r *plan.Route, err error) error {
		if err == nil && !former.Has(r) {
			rec.madeRoute(r)
		}
		return rec.refused.Judge(r, err)
	}))...)
}

// addDevices makes VLAN sub-interfaces and VRFs: the sub-interface comes before the VRF that it belongs to, and its addresses
// come last, because the kernel flushes IPv6 addresses when an interface changes its VRF.
func (n *Node) addDevices(ctx context.Context, rec *Record, p *plan.NodePlan) {
	vlans := link.ApplyVLANs(ctx, n.links, p.VLANs)
	for _, name := range vlans.Made {
		rec.madeVLAN(name)
	}
	vrfs := n.vrfs.Apply(ctx, n.links, withoutPorts(p.VRFs, vlans.Lacking))
	for _, name := range vrfs.Made {
		rec.madeVRF(name)
	}
	for _, port := range vrfs.Joined {
		rec.enslaved(port.Name, port.VRF)
	}
	rec.unmade = vrfs.Unmade // each concerns only its network
	maps.Copy(rec.unmade, vlans.Unmade)
	for name, err := range link.ApplyVLANAddresses(ctx, n.links, p.VLANs) {
		rec.unmade[name] = errors.Join(rec.unmade[name], err)
	}
}

// withoutPorts returns VRFs without the interfaces that are lacking.
func withoutPorts(vrfs []plan.VRF, lacking []string) []plan.VRF {
	if len(lacking) == 0 {
		return vrfs
	}
	vrfs = slices.Clone(vrfs)
	for i, v := range vrfs {
		vrfs[i].Interfaces = slices.DeleteFunc(slices.Clone(v.Interfaces), func(name string) bool { return slices.Contains(lacking, name) })
	}
	return vrfs
}

// reread updates the cached facts about tables after we changed routes there, since no event reports our own changes.
// Without changes, these are not known. If a table's usable families changed, it asks for another pass.
func (n *Node) reread(ctx context.Context, changes *route.Changes) error {
	if !n.facts.valid {
		return nil
	}
	tables := n.facts.touched(changes)
	if len(tables) == 0 {
		return nil
	}
	routed, err := route.ReadAllRouted(ctx, tables)
	if err != nil {
		return err
	}
	now := maps.Clone(n.facts.Routed)
	maps.Copy(now, routed)
	if !maps.Equal(now, n.facts.Routed) {
		n.facts.Routed = now
		n.stirs.wakeUp()
	}
	return nil
}
