package leader

import (
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube"
	"github.com/egressway/egressway/internal/election"
)

// moveWithin limits how long a move waits for the next host's report.
const moveWithin = 10 * time.Second

// term is the state of one term of leadership. A new leader only knows what the objects say.
type term struct {
	since   time.Time // zero: it does not lead
	last    time.Time // of the last election
	decided map[cluster.Key]decision
	touched cluster.Changed // objects with a new decision since the last election
	elected election.Elected
	waiting bool // elect again later, even without a change
	damping damping
	qos     texts[cluster.EgressQoS]
	walls   texts[cluster.EgressFirewall]
	ips     egressIPs
}

// decision is the leader's decision about an EgressService. It takes precedence over the status, which other clients
// may write.
type decision struct {
	uid        string
	status     cluster.Status // without conditions
	generation int64
	version    uint64   // of the first object whose status has the decision and the present ingress IPs; 0: none yet
	ingressIPs []string // of that status
	former     string   // the standby that was the host before, and stays for its flows; empty: none
	began      time.Time
	moving     time.Time // since when another host is wanted; zero: none is
}

// elect returns the wanted status of every EgressService. decided holds the objects with the decisions in their status.
func (t *term) elect(
	api API, in Input, decided cluster.Objects, reports map[string]cluster.Report, choices map[election.Seat]election.Choice,
) map[cluster.Key]kube.Wanted {
	t.waiting = false
	problems, written := in.Problems, in.Objects.EgressServices
	if in.Config.Source.Kubernetes.LabelHosts {
		labels, unlabelled := election.Labels(decided)
		api.Label(labels)
		problems = append(slices.Clone(problems), unlabelled...)
	}
	found, dead := byObject(withReported(problems, reports)), election.Dead(reports)
	keep := time.Duration(in.Config.Moves.KeepFlows)
	want := make(map[cluster.Key]kube.Wanted, len(choices))
	for key, e := range written.All() {
		choice := choices[election.ServiceSeat(key)]
		view := t.view(key, e, choice, keep)
		view.Problems, view.Pruned, view.Dead = without(found[key.String()], choice, reports), api.Pruned(), dead
		next := election.Next(decided, reports, view)
		want[key] = kube.Wanted{UID: e.UID, Status: next, Events: events(e.Status, next, choice)}
		t.decide(key, e, next)
		t.waiting = t.waiting || next.Host != choice.Host || next.Standby != choice.Standby || !holds(e.Status, next, view.Pruned)
	}
	return want
}

// view returns the part of an election's input that this term's decision about an object determines. keep is how long
// flows keep their former host.
func (t *term) view(key cluster.Key, e cluster.EgressService, choice election.Choice, keep time.Duration) election.View {
	d, known := t.decided[key]
	if !known {
		d = undecided(e.Status.Standby, e.Version)
	}
	view := d.view(known, choice, keep)
	if view.Key = key; known {
		t.decided[key] = d
	}
	return view
}

// undecided returns what a new leader knows of a seat. It does not know which standby was the host before: each gets the time that
// flows have. The present version of the object has the status at the latest: a node that has applied it need not report again.
func undecided(standby string, version uint64) decision {
	return decision{former: standby, began: time.Now(), version: version}
}

// view returns the part of an election's input that the decision determines, and notes which host is wanted if it is known, that is
// of this term.
func (d *decision) view(known bool, choice election.Choice, keep time.Duration) election.View {
	view := election.View{Choice: choice, Since: math.MaxUint64, Keep: keep > 0}
	if time.Since(d.began) < keep {
		view.Former = d.former
	}
	if known {
		d.want(choice.Host)
		view.Impatient = !d.moving.IsZero() && time.Since(d.moving) > moveWithin
	}
	if d.version != 0 {
		view.Since = d.version
	}
	return view
}

// holds reports whether a status has the decision, as far as the CRD keeps it. Until it does, the status is written
// again: after a change of the CRD, a watch may deliver fewer fields than the API server accepted.
func holds(s, decided cluster.Status, pruned bool) bool {
	return s.Host == decided.Host && (pruned || s.Standby == decided.Standby)
}

// events returns the Events for the change from one status to the next.
func events(now, next cluster.Status, choice election.Choice) (all []kube.Event) {
	switch {
	case next.Host == now.Host:
	case next.Host == "":
		why := messageOf(next, election.ConditionHostAssigned)
		all = append(all, kube.Event{
			Warning: true, Reason: "HostLost", Message: fmt.Sprintf("%s is no longer the host, and no node is: %s", now.Host, why),
		})
	case now.Host == "":
		all = append(all, kube.Event{Reason: "HostElected", Message: messageOf(next, election.ConditionHostAssigned)})
	default:
		all = append(all, kube.Event{Reason: "HostMoved", Message: fmt.Sprintf("from %s to %s: %s", now.Host, next.Host, choice.Why)})
	}
	if now.Host == "" { // else a host that was lost has an Event of its own
		all = append(all, warnings(now, next, election.ConditionHostAssigned)...)
	}
	return append(all, warnings(now, next, election.ConditionValid)...)
}

// warnings returns an Event if a condition is not true for a new reason.
func warnings(now, next cluster.Status, kind string) []kube.Event {
	c := meta.FindStatusCondition(next.Conditions, kind)
	if c == nil || c.Status == metav1.ConditionTrue || c.Message == messageOf(now, kind) {
		return nil
	}
	return []kube.Event{{Warning: true, Reason: c.Reason, Message: c.Message}}
}

func messageOf(s cluster.Status, kind string) string {
	if c := meta.FindStatusCondition(s.Conditions, kind); c != nil {
		return c.Message
	}
	return ""
}

// allReport reports whether all Ready nodes have reported their networks, which those whose daemon starts have not. An old report counts
// for none: its node would get nothing.
func allReport(objects cluster.Objects, reports map[string]cluster.Report) bool {
	for name, n := range objects.Nodes.All() {
		if r := reports[name]; n.Ready && (r.Old || len(r.Networks) == 0) {
			return false
		}
	}
	return true
}

// withDecisions replaces the objects' status by the decisions: neither an API server that lags behind nor another client
// that writes a status decides anything.
func (t *term) withDecisions(objects cluster.Objects) cluster.Map[cluster.Key, cluster.EgressService] {
	all := objects.EgressServices.Draft()
	for key, d := range t.decided {
		e, exists := all.Get(key)
		if !exists || e.UID != d.uid {
			delete(t.decided, key)
			continue
		}
		d.follow(e.Generation, e.Version, e.Status)
		t.decided[key] = d
		if written := e.Status; !d.stands(written) || written.Term != d.status.Term {
			e.Status = d.status
			e.Status.Conditions = written.Conditions
			all.Set(key, e)
		}
	}
	return all.Map()
}

// follow records the present version of the decision's object, which has a status.
func (d *decision) follow(generation int64, version uint64, status cluster.Status) {
	if generation != d.generation || !slices.Equal(status.IngressIPs, d.ingressIPs) {
		d.generation, d.ingressIPs, d.version = generation, status.IngressIPs, 0
	}
	if version < d.version {
		d.version = 0 // etcd was restored from a backup: no node reports that version again soon
	}
	if d.version == 0 && d.stands(status) {
		d.version = version
	}
}

func (t *term) decide(key cluster.Key, e cluster.EgressService, next cluster.Status) {
	next.Conditions = nil
	had, known := t.decided[key]
	if known && had.stands(next) {
		return
	}
	d := had.next(known, next, e.Status)
	d.uid, d.generation, d.ingressIPs = e.UID, e.Generation, e.Status.IngressIPs
	if d.stands(e.Status) {
		d.version = e.Version
	}
	t.decided[key] = d
	t.touched.Add(cluster.KindEgressService.ID(key))
}

// next returns the decision for a status after this one, which is known, or after the object's status.
func (d decision) next(known bool, next, status cluster.Status) decision {
	now := decision{status: next, began: time.Now(), moving: d.moving}
	was := d.status
	if !known {
		was = status
		now.former = was.Standby
	}
	if was.Host != next.Host {
		now.former = was.Host
	}
	return now
}

// want records which host is wanted.
func (d *decision) want(host string) {
	switch {
	case host == d.status.Host:
		d.moving = time.Time{}
	case d.moving.IsZero():
		d.moving = time.Now()
	}
}

// stands reports whether a status has the decided host and standby.
func (d decision) stands(s cluster.Status) bool {
	return d.status.Host == s.Host && d.status.Standby == s.Standby
}
