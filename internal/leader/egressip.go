package leader

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// egressIPs holds a term's decisions about EgressIPs.
type egressIPs struct {
	decided map[election.Seat]decision
	said    map[cluster.Key][]kube.Event // the Events that the present status of each EgressIP has had
}

// withDecisions replaces the objects' status by the decisions, as term.withDecisions does.
func (x *egressIPs) withDecisions(objects cluster.Objects) cluster.Map[cluster.Key, cluster.EgressIP] {
	all := objects.EgressIPs.Draft()
	byKey := map[cluster.Key][]cluster.Holder{}
	for seat, d := range x.decided {
		e, exists := objects.EgressIPs.Get(seat.Key)
		if !exists || e.UID != d.uid || !slices.Contains(e.Addresses, seat.Slot) {
			delete(x.decided, seat)
			continue
		}
		d.follow(revisionOf(e), e.Version, statusOf(e.Holder(seat.Slot)))
		x.decided[seat] = d
		h := cluster.Holder{Addr: seat.Slot, Host: d.status.Host, Standby: d.status.Standby, Term: d.status.Term}
		byKey[seat.Key] = append(byKey[seat.Key], h)
	}
	for key, holders := range byKey {
		e := all.At(key)
		slices.SortFunc(holders, func(a, b cluster.Holder) int { return a.Addr.Compare(b.Addr) })
		for _, h := range e.Holders {
			if !slices.ContainsFunc(holders, func(d cluster.Holder) bool { return d.Addr == h.Addr }) {
				holders = append(holders, h)
			}
		}
		e.Holders = holders
		all.Set(key, e)
	}
	return all.Map()
}

// revisionOf returns a number that changes with the spec alone, as the generation of other objects does.
func revisionOf(e cluster.EgressIP) int64 { return int64(e.Spec) } //nolint:gosec // a digest

// statusOf returns the nodes that have an address as a status.
func statusOf(h cluster.Holder) cluster.Status {
	return cluster.Status{Host: h.Host, Standby: h.Standby, Term: h.Term}
}

// electIPs returns the wanted status of every EgressIP. decided holds the objects with the decisions in their status.
func (t *term) electIPs(
	api API, in Input, decided cluster.Objects, reports map[string]cluster.Report, choices map[election.Seat]election.Choice,
) map[cluster.Key]kube.WantedItems {
	all := in.Objects.EgressIPs
	if all.Len() == 0 {
		t.ips = egressIPs{}
		return nil
	}
	found, dead, labelled := ofEgressIPs(withReported(in.Problems, reports)), election.Dead(reports), anyAssignable(in.Objects, reports)
	pruned, keep := api.PrunedItems(), time.Duration(in.Config.Moves.KeepFlows)
	want := make(map[cluster.Key]kube.WantedItems, all.Len())
	said := make(map[cluster.Key][]kube.Event, all.Len())
	for key, e := range all.All() {
		var sittings []election.Sitting
		w := kube.WantedItems{UID: e.UID}
		problems := found[key.String()]
		for _, a := range e.Addresses {
			seat := election.EgressIPSeat(key.Name, a)
			choice := choices[seat]
			view := t.ips.view(seat, e, choice, keep)
			view.Key, view.Pruned, view.Dead = key, pruned, dead
			now := decided.EgressIPs.At(key).Holder(a)
			now.Addr = a
			next := election.NextHolder(decided, reports, view, now)
			next.Changed = e.Holder(a).Host != next.Host
			if sittings = append(sittings, next); next.Host != "" {
				w.Items = append(w.Items, next.Holder)
			}
			if problems = without(problems, choice, reports); choice.Problem != nil {
				said[key] = appendEvent(said[key], *choice.Problem, labelled)
			}
			t.decideIP(seat, e, next.Holder)
			t.waiting = t.waiting || next.Host != choice.Host || next.Standby != choice.Standby ||
				!holds(statusOf(e.Holder(a)), statusOf(next.Holder), pruned)
		}
		w.Conditions = election.ItemConditions(reports, sittings, problems)
		for _, p := range problems {
			said[key] = appendEvent(said[key], p, labelled)
		}
		w.Events = t.ips.unsaid(key, e, w.Conditions, said[key])
		want[key] = w
	}
	t.ips.said = said
	return want
}

// view is term.view for an address of an EgressIP.
func (x *egressIPs) view(seat election.Seat, e cluster.EgressIP, choice election.Choice, keep time.Duration) election.View {
	d, known := x.decided[seat]
	if !known {
		d = undecided(e.Holder(seat.Slot).Standby, e.Version)
	}
	view := d.view(known, choice, keep)
	if known {
		x.decided[seat] = d
	}
	return view
}

// decideIP is decide for an address of an EgressIP.
func (t *term) decideIP(seat election.Seat, e cluster.EgressIP, next cluster.Holder) {
	had, known := t.ips.decided[seat]
	status, stands := statusOf(next), statusOf(e.Holder(seat.Slot))
	if known && had.stands(status) {
		return
	}
	d := had.next(known, status, stands)
	d.uid, d.generation = e.UID, revisionOf(e)
	if d.stands(stands) {
		d.version = e.Version
	}
	if t.ips.decided == nil {
		t.ips.decided = map[election.Seat]decision{}
	}
	t.ips.decided[seat] = d
	t.touched.Add(cluster.KindEgressIP.ID(seat.Key))
}

// ofEgressIPs groups the problems of EgressIPs by object.
func ofEgressIPs(problems []cluster.Problem) map[string][]cluster.Problem {
	found := map[string][]cluster.Problem{}
	for _, p := range cluster.SortProblems(slices.Clone(problems)) {
		if p.Kind == cluster.KindEgressIP.String() {
			found[p.Object] = append(found[p.Object], p)
		}
	}
	return found
}

// anyAssignable reports whether a node that is Ready or reports may have egress IPs.
func anyAssignable(o cluster.Objects, reports map[string]cluster.Report) bool {
	for name, n := range o.Nodes.All() {
		_, labelled := n.Labels[cluster.LabelAssignable]
		if r, reported := reports[name]; labelled && cluster.Electable(n, r, reported) {
			return true
		}
	}
	return false
}

// eventReasons are the reasons of OVN-Kubernetes' Events, by those of problems.
var eventReasons = map[cluster.Reason]string{
	cluster.ReasonEgressIPConflict: "EgressIPConflict",
	cluster.ReasonAddressConflict:  "UnsupportedRequest",
	cluster.ReasonInvalidAddress:   "InvalidEgressIP",
	cluster.ReasonNoEgressIP:       "InvalidEgressIP",
	cluster.ReasonTooManyAddresses: "InvalidEgressIP",
	cluster.ReasonInvalidSelector:  "InvalidEgressIP",
	cluster.ReasonInvalidValue:     "InvalidEgressIP",
	plan.ReasonPodConflict:         "UndefinedRequest",
	cluster.ReasonNoEligibleNode:   "UnassignedRequest",
	plan.ReasonNetworkNotAllowed:   "UnsupportedRequest",
}

// appendEvent adds the Event of a problem, unless it is there.
func appendEvent(all []kube.Event, p cluster.Problem, labelled bool) []kube.Event {
	reason := eventReasons[p.Reason]
	switch {
	case reason == "":
		return all
	case p.Reason == cluster.ReasonNoEligibleNode && !labelled:
		reason = "NoMatchingNodeFound"
	}
	event := kube.Event{Warning: true, Reason: reason, Message: election.Explain(p)}
	if slices.Contains(all, event) {
		return all
	}
	return append(all, event)
}

// unsaid returns those of the Events of an EgressIP's wanted status that its present status has not had. A new leader finds in the
// conditions whether a former one has written the same.
func (x *egressIPs) unsaid(key cluster.Key, e cluster.EgressIP, next []metav1.Condition, events []kube.Event) []kube.Event {
	former, known := x.said[key]
	if !known && sameTexts(next, e.Conditions) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(events), func(e kube.Event) bool { return slices.Contains(former, e) })
}

// sameTexts reports whether the conditions that name problems are equal.
func sameTexts(next, now []metav1.Condition) bool {
	for _, kind := range []string{election.ConditionAssigned, election.ConditionValid} {
		a, b := meta.FindStatusCondition(next, kind), meta.FindStatusCondition(now, kind)
		if a == nil || b == nil || a.Message != b.Message {
			return false
		}
	}
	return true
}
