package agent

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
)

const (
	// reportWithin is how long a daemon that starts waits for its sessions and their routes before it tells that they are
	// missing: until then what its former run told still holds.
	reportWithin = 15 * time.Second
	// gatherWithin is how long one that begins to lead waits for the reports of nodes that may have no daemon: the first
	// node to report should not become the host of everything.
	gatherWithin = 5 * time.Second
	// moveWithin is how long a move waits for the next host's report.
	moveWithin = 10 * time.Second
)

// leadership is what this daemon remembers while it leads. A leader that begins knows nothing but what the objects say.
type leadership struct {
	since    time.Time // zero: it does not lead
	decided  map[cluster.Key]decision
	waiting  bool // something is due although nothing may happen
	reported bool // of this node, since the daemon started
	steady   steady
}

// decision is what the leader wants of an EgressService. It is what counts, whatever somebody else writes to the status.
type decision struct {
	uid        string
	status     cluster.Status // without conditions
	generation int64
	version    uint64 // of the object that first said so; 0: none does yet
	former     string // the standby that was the host before, and stays for its flows; empty: none
	began      time.Time
	moving     time.Time // since when another host is wanted; zero: none is
}

// report tells the leader what this node has.
func (a *Agent) report(c *config.Config, objects cluster.Objects, inForce bool) {
	api, ok := a.source.(apiServer)
	if !ok {
		return
	}
	states, incomplete := a.states(c)
	r := cluster.Report{Networks: states, Hosts: a.last.watched, Draining: a.draining.wanted(), Applied: a.last.applied}
	if inForce {
		r.Applied = applied(objects, c.Node, a.last.applied)
		a.last.applied = r.Applied
	}
	if incomplete && !r.Draining && !a.last.lead.reported && time.Since(a.started) < reportWithin {
		return
	}
	a.last.lead.reported = true
	api.Report(r)
}

// sessions are those of this node. Without a speaker the planned ones are down, be they known to have been up or not.
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

// applied is the newest version among all EgressServices, where one that concerns node is newer than before.
func applied(objects cluster.Objects, node string, before uint64) uint64 {
	newest, concerned := before, false
	for key, e := range objects.EgressServices {
		newest = max(newest, e.Version)
		concerned = concerned || e.Version > before && slices.Contains(election.Concerned(objects, key, e.Status), node)
	}
	if !concerned {
		return before
	}
	return newest
}

// lead elects for all nodes, while this daemon is the one that does.
func (a *Agent) lead(c *config.Config, objects cluster.Objects, problems []cluster.Problem) {
	api, ok := a.source.(apiServer)
	if !ok {
		return
	}
	l := &a.last.lead
	reports, leading := api.Leading()
	if !leading {
		l.since, l.decided, l.steady, l.waiting = time.Time{}, nil, steady{}, !l.reported
		return
	}
	if l.since.IsZero() {
		l.since, l.decided = time.Now(), map[cluster.Key]decision{}
	}
	reports, wait := l.steady.believe(reports, time.Now())
	if wait > 0 {
		time.AfterFunc(wait, a.wake)
	}
	l.waiting = !l.reported
	if time.Since(l.since) < gatherWithin && !allReport(objects, reports) {
		l.waiting = true
		return
	}
	api.Write(l.elect(api, c, objects, reports, problems))
}

// elect decides what should stand in the status of every EgressService.
func (l *leadership) elect(api apiServer, c *config.Config, objects cluster.Objects, reports map[string]cluster.Report, problems []cluster.Problem) map[cluster.Key]kube.Wanted {
	told := objects.EgressServices
	objects.EgressServices = l.remembered(objects)
	if c.Source.Kubernetes.LabelHosts {
		labels, unlabelled := election.Labels(objects)
		api.Label(labels)
		problems = append(slices.Clone(problems), unlabelled...)
	}
	found := byObject(problems)
	choices, dead := election.Elect(objects, reports), election.Dead(reports)
	keep := time.Duration(c.Moves.KeepFlows)
	want := make(map[cluster.Key]kube.Wanted, len(choices))
	for key, choice := range choices {
		view := election.View{
			Key: key, Choice: choice, Problems: without(found[key.String()], choice.Problem), Since: math.MaxUint64,
			Pruned: api.Pruned(), Dead: dead, Keep: keep > 0,
		}
		d, known := l.decided[key]
		if !known {
			// A leader that begins does not know which standby was the host before: each is given the time that flows have.
			d.former, d.began = told[key].Status.Standby, time.Now()
		}
		if time.Since(d.began) < keep {
			view.Former = d.former
		}
		if known {
			d.want(choice.Host)
			l.decided[key] = d
			view.Impatient = !d.moving.IsZero() && time.Since(d.moving) > moveWithin
		}
		if d.version != 0 {
			view.Since = d.version
		}
		next := election.Next(objects, reports, view)
		want[key] = kube.Wanted{Status: next, Events: events(told[key].Status, next, choice)}
		l.decide(key, told[key], next)
		l.waiting = l.waiting || next.Host != choice.Host || next.Standby != choice.Standby
	}
	return want
}

// events tells people what changes between two statuses.
func events(now, next cluster.Status, choice election.Choice) (all []kube.Event) {
	switch {
	case next.Host == now.Host:
	case next.Host == "":
		all = append(all, kube.Event{Warning: true, Reason: "HostLost", Message: fmt.Sprintf("%s is not the host any more, there is none: %s", now.Host, messageOf(next, election.ConditionHostAssigned))})
	case now.Host == "":
		all = append(all, kube.Event{Reason: "HostElected", Message: messageOf(next, election.ConditionHostAssigned)})
	default:
		all = append(all, kube.Event{Reason: "HostMoved", Message: fmt.Sprintf("from %s to %s: %s", now.Host, next.Host, choice.Why)})
	}
	for _, kind := range []string{election.ConditionHostAssigned, election.ConditionValid} {
		c := meta.FindStatusCondition(next.Conditions, kind)
		if c == nil || c.Status == metav1.ConditionTrue || c.Message == messageOf(now, kind) || kind == election.ConditionHostAssigned && now.Host != "" {
			continue
		}
		all = append(all, kube.Event{Warning: true, Reason: c.Reason, Message: c.Message})
	}
	return all
}

func messageOf(s cluster.Status, kind string) string {
	if c := meta.FindStatusCondition(s.Conditions, kind); c != nil {
		return c.Message
	}
	return ""
}

func allReport(objects cluster.Objects, reports map[string]cluster.Report) bool {
	for name, n := range objects.Nodes {
		if _, reports := reports[name]; n.Ready && !reports {
			return false
		}
	}
	return true
}

// remembered puts what was decided over what the objects' status says: an API server that lags behind, or somebody else
// who writes to a status, decides nothing.
func (l *leadership) remembered(objects cluster.Objects) map[cluster.Key]cluster.EgressService {
	all := maps.Clone(objects.EgressServices)
	for key, d := range l.decided {
		e, exists := all[key]
		if !exists || e.UID != d.uid {
			delete(l.decided, key)
			continue
		}
		if e.Generation != d.generation {
			d.generation, d.version = e.Generation, 0
		}
		if d.version == 0 && d.stands(e.Status) {
			d.version = e.Version
		}
		l.decided[key] = d
		d.status.Conditions = e.Status.Conditions
		e.Status = d.status
		all[key] = e
	}
	return all
}

func (l *leadership) decide(key cluster.Key, e cluster.EgressService, next cluster.Status) {
	next.Conditions = nil
	had, known := l.decided[key]
	if known && had.stands(next) {
		return
	}
	d := decision{uid: e.UID, status: next, generation: e.Generation, began: time.Now(), moving: had.moving}
	was := had.status
	if !known {
		was = e.Status
		d.former = was.Standby
	}
	if was.Host != next.Host {
		d.former = was.Host
	}
	if d.stands(e.Status) {
		d.version = e.Version
	}
	l.decided[key] = d
}

// want notes which host is wanted.
func (d *decision) want(host string) {
	switch {
	case host == d.status.Host:
		d.moving = time.Time{}
	case d.moving.IsZero():
		d.moving = time.Now()
	}
}

// stands says whether a status has the host and the standby that were decided.
func (d decision) stands(s cluster.Status) bool {
	return d.status.Host == s.Host && d.status.Standby == s.Standby
}

// byObject gathers what is wrong with each EgressService.
func byObject(problems []cluster.Problem) map[string][]cluster.Problem {
	found := map[string][]cluster.Problem{}
	for _, p := range cluster.SortProblems(slices.Clone(problems)) {
		if p.Kind == "EgressService" || p.Kind == "Service" {
			found[p.Object] = append(found[p.Object], p)
		}
	}
	return found
}

// without leaves out why there is no host, which the condition HostAssigned says.
func without(problems []cluster.Problem, p *cluster.Problem) []cluster.Problem {
	return slices.DeleteFunc(slices.Clone(problems), func(q cluster.Problem) bool {
		return q.Reason == election.ReasonNoHost || p != nil && q == *p
	})
}
