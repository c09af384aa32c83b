package agent

import (
	"maps"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/leader"
	"github.com/egressway/egressway/internal/sorted"
)

// reportWithin is how long a daemon that starts, or whose speaker is replaced, waits for its sessions and their routes before it
// reports them missing: until then the report of its former run holds, or the networks count as restarting.
const reportWithin = 15 * time.Second

// refusedFor is how long a kernel refuses the plan, or cannot be read, until the node reports that: longer than a few passes, and shorter
// than the leader waits until the next host of a planned move has the plan in force.
const refusedFor = 5 * time.Second

// firewalledMost bounds the namespaces in a report: a kubelet runs 110 pods by default.
const firewalledMost = 256

// report reports this node's state to the leader, and its addresses to all nodes, after the kernel got the plan.
func (a *Agent) report(c *config.Config, objects cluster.Objects, planned []cluster.Problem, result *kernel.Result) {
	if a.server == nil {
		return
	}
	a.server.ShareAddresses(a.planner.Secondary())
	states, incomplete := a.states(c)
	if a.last.replacement.mark(states, a.speakers.Started(), a.speakers.Problem() == nil, incomplete, time.Now()) {
		time.AfterFunc(reportWithin, a.wake)
	}
	obeyed := a.last.choices.Obeyed()
	a.last.refusal.mark(result.InForce, time.Now())
	r := cluster.Report{
		Networks: states, Hosts: a.last.others.nodes.Watched,
		Dead:     slices.DeleteFunc(slices.Sorted(maps.Keys(a.last.others.nodes.Dead)), func(node string) bool { return obeyed[node] }),
		Draining: a.draining.wanted(), Refusing: a.last.refusal.lasts(time.Now()),
		Applied: a.last.inForce.version, Unserved: leader.Unserved(planned),
	}
	if result.InForce {
		a.last.inForce.qos.advance(objects.EgressQoSes, objects.PodsKnown)
		a.last.inForce.firewalls.advance(objects.EgressFirewalls, objects.PodsKnown)
		a.last.inForce.advanceFirewalled(a.last.plan.EgressFirewalls)
	}
	if result.InForce && !restarting(states) {
		r.Applied = a.last.inForce.advance(objects, c.Node)
		if result.OnLink.Len() == a.last.plan.DataPlane.OnLink.Len() { // the node answers for all
			a.last.inForce.advanceIPs(objects, c.Node)
		}
	}
	r.EgressQoSes, r.EgressFirewalls = a.last.inForce.qos.digest, a.last.inForce.firewalls.digest
	r.Firewalled = a.last.inForce.firewalled
	r.AppliedIPs = a.last.inForce.ipVersion
	if incomplete && !r.Draining && a.starting() {
		r = cluster.Report{Starting: true, EgressQoSes: r.EgressQoSes, EgressFirewalls: r.EgressFirewalls, Firewalled: r.Firewalled}
	} else {
		a.last.reported = true
	}
	a.last.sent = r
	a.server.Report(r)
}

// reportUnread reports of a pass that could not read the kernel whether the node refuses and drains. The rest of the last report stays.
func (a *Agent) reportUnread() {
	a.last.refusal.mark(false, time.Now())
	if a.server == nil || !a.last.reported {
		return
	}
	a.last.sent.Refusing, a.last.sent.Draining = a.last.refusal.lasts(time.Now()), a.draining.wanted()
	a.server.Report(a.last.sent)
}

// restarting reports whether the speaker of a network is being replaced: routers keep the routes that the former one announced, but do not
// have those of changes since then.
func restarting(states map[string]cluster.NetworkState) bool {
	for _, n := range states {
		if n.Restarting {
			return true
		}
	}
	return false
}

// refusal follows how long the kernel has refused plans, or could not be read.
type refusal struct{ since time.Time }

// mark notes whether a plan is in force.
func (r *refusal) mark(inForce bool, now time.Time) {
	switch {
	case inForce:
		r.since = time.Time{}
	case r.since.IsZero():
		r.since = now
	}
}

// lasts reports whether that has been so for long.
func (r *refusal) lasts(now time.Time) bool {
	return !r.since.IsZero() && now.Sub(r.since) >= refusedFor
}

// starting reports whether the report of the daemon's former run may still hold.
func (a *Agent) starting() bool { return !a.last.reported && time.Since(a.started) < reportWithin }

// replacement follows how one speaker takes another one's place.
type replacement struct {
	speaker time.Time       // start of the last one
	since   time.Time       // when the former one went away; zero: there is one whose sessions are known
	up      map[string]bool // networks with a session that was up by then
}

// mark marks the networks whose sessions are down because the speaker is being replaced. started and answers are of the present speaker;
// incomplete means that not all of its sessions and their routes are there yet. begun means that one just went away.
func (r *replacement) mark(
	states map[string]cluster.NetworkState, started time.Time, answers, incomplete bool, now time.Time,
) (begun bool) {
	if begun = r.begins(started, answers); begun {
		r.since = now
	}
	if answers {
		r.speaker = started
	}
	if r.since.IsZero() || answers && !incomplete || now.Sub(r.since) >= reportWithin {
		r.since, r.up = time.Time{}, map[string]bool{}
		for name, n := range states {
			r.up[name] = n.Up > 0
		}
		return false
	}
	for name, n := range states {
		n.Restarting = n.Up == 0 && r.up[name]
		states[name] = n
	}
	return begun
}

// begins reports whether a speaker went away that was there until now.
func (r *replacement) begins(started time.Time, answers bool) bool {
	return r.since.IsZero() && (!answers || !started.Equal(r.speaker))
}

// bridge has the networks that were up before a speaker is replaced count as up since now, until the sessions of the next one are known,
// or for reportWithin. The parameters are as for mark.
func (r *replacement) bridge(up map[string]time.Time, started time.Time, answers bool, now time.Time) {
	if !r.begins(started, answers) && (r.since.IsZero() || now.Sub(r.since) >= reportWithin) {
		return
	}
	for network, was := range r.up {
		if _, is := up[network]; was && !is {
			up[network] = now
		}
	}
}

// sessions returns this node's sessions. Without a speaker all planned ones are down, whether or not they were up
// before.
func (a *Agent) sessions() (all []bgp.Session) {
	if a.speakers.Problem() == nil {
		return a.speakers.Sessions()
	}
	for _, s := range a.last.plan.Speakers {
		for range s.Peers {
			all = append(all, bgp.Session{Network: s.Network})
		}
	}
	return all
}

// inForce tracks which versions of EgressServices are in force on this node.
type inForce struct {
	version  uint64                                          // the newest that was reported
	newest   uint64                                          // of services
	services cluster.Map[cluster.Key, cluster.EgressService] // at the last call of advance
	pending  cluster.Changed                                 // changed since then

	qos        ofKind[cluster.EgressQoS]
	firewalls  ofKind[cluster.EgressFirewall]
	walls      sorted.List[firewall.Object]
	firewalled []string // namespaces with an EgressFirewall, and pods here, at most firewalledMost

	ips       cluster.Map[cluster.Key, cluster.EgressIP] // that are in force
	ipVersion uint64                                     // the newest of them that was reported
}

// advanceIPs notes that the EgressIPs are in force, unless the Pods of this node that they select are not known yet. Their newest version
// is reported if one that concerns node is newer than the last reported one.
func (f *inForce) advanceIPs(objects cluster.Objects, node string) {
	all := objects.EgressIPs
	if all.Same(f.ips) || all.Len() > 0 && !objects.PodsKnown {
		return
	}
	f.ips = all
	newest, concerned := uint64(0), false
	for _, e := range all.All() {
		newest = max(newest, e.Version)
		concerned = concerned || e.Version > f.ipVersion && slices.ContainsFunc(e.Holders, func(h cluster.Holder) bool {
			return h.Host == node || h.Standby == node
		})
	}
	if concerned || f.ipVersion > newest { // as in advance
		f.ipVersion = newest
	}
}

// ofKind holds the objects of a kind that are in force on this node.
type ofKind[V interface{ Revision() cluster.Revision }] struct {
	objects cluster.Map[cluster.Key, V]
	digest  string // of objects; empty: there are none
}

// advance notes that all objects are in force, unless the Pods that they concern are not known yet.
func (k *ofKind[V]) advance(all cluster.Map[cluster.Key, V], podsKnown bool) {
	switch {
	case all.Len() == 0:
		k.objects, k.digest = all, ""
	case podsKnown && !all.Same(k.objects):
		k.objects, k.digest = all, cluster.Revisions(all)
	}
}

// advanceFirewalled notes the EgressFirewalls that are in force, as they are on this node.
func (f *inForce) advanceFirewalled(all sorted.List[firewall.Object]) {
	if f.walls.Same(all) {
		return
	}
	f.walls, f.firewalled = all, nil
	for o := range all.All() {
		if o.Pods > 0 && len(f.firewalled) < firewalledMost {
			f.firewalled = append(f.firewalled, o.Key.Namespace)
		}
	}
}

// advance examines the changes that are in force now. It returns the newest version of all EgressServices if one that
// concerns node is newer than the last reported version, otherwise the last reported version. It never returns a version that no
// object has reached: when etcd is restored from a backup, versions fall, and those that follow are not in force yet. Nor does it pass an
// object that concerns node and whose Service has other ingress IPs here than the leader saw: the watch of Services may be late.
func (f *inForce) advance(objects cluster.Objects, node string) uint64 {
	f.follow(objects.EgressServices)
	concerned, late := false, false
	look := func(key cluster.Key, e cluster.EgressService) {
		if e.Version <= f.version || !slices.Contains(election.Concerned(objects, key, e.Status), node) {
			return
		}
		concerned = true
		late = late || len(e.Status.IngressIPs) > 0 && !slices.Equal(e.Status.IngressIPs, election.IngressIPs(objects.Services.At(key)))
	}
	if f.pending.All {
		for key, e := range f.services.All() {
			look(key, e)
		}
	} else {
		for key := range f.pending.Of[cluster.KindEgressService] {
			look(key, f.services.At(key)) // a deleted one has version 0
		}
	}
	if late && f.version <= f.newest {
		return f.version
	}
	f.pending = cluster.Changed{}
	if concerned || f.version > f.newest {
		f.version = f.newest
	}
	return f.version
}

// follow notes the present EgressServices and their newest version. It reads all of them only where the one that had the newest version
// has an older one now, or is gone.
func (f *inForce) follow(now cluster.Map[cluster.Key, cluster.EgressService]) {
	all := f.pending.All
	for key := range f.pending.Of[cluster.KindEgressService] {
		was, is := f.services.At(key).Version, now.At(key).Version
		all = all || was > is && was == f.newest
		f.newest = max(f.newest, is)
	}
	if f.services = now; !all {
		return
	}
	f.newest = 0
	for _, e := range now.All() {
		f.newest = max(f.newest, e.Version)
	}
}
