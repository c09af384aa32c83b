// Package leader elects the host and standby of every EgressService, while this daemon leads. It remembers its
// decisions, dampens the states of networks that nodes report, and writes each status. It runs in a goroutine of its own:
// an election among ten thousand objects and a thousand nodes does not delay the passes of this node.
package leader

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/sorted"
)

const (
	// gatherWithin is how long a new leader waits for the reports of nodes that may have no daemon: the first node to
	// report should not become the host of everything.
	gatherWithin = 5 * time.Second
	// leadShare × the duration of an election is how long the leader rests after it: elections use at most a quarter of
	// a core.
	leadShare = 3
	// retryAfter is the pause before an election that waits for reports or for a status.
	retryAfter = time.Second
	// lookAgain is how long after an election the leader writes again where a CRD drops fields: another one may be there by now.
	lookAgain = 10 * time.Second
)

// API is the part of the API server's client that elections use.
type API interface {
	// Contend lets this daemon stand for election from now on.
	Contend()
	// Leading returns the reports of the living nodes. leading is false unless this daemon leads and has read them.
	Leading() (reports map[string]cluster.Report, leading bool)
	// Write sets the statuses that every EgressService should have.
	Write(want map[cluster.Key]kube.Wanted)
	// WriteItems sets the statuses that every EgressIP should have.
	WriteItems(want map[cluster.Key]kube.WantedItems)
	// WriteTexts sets the statuses that every object of a kind should have.
	WriteTexts(kind cluster.Kind, want map[cluster.Key]kube.WantedText)
	// Label sets the labels that each node should have.
	Label(want map[string][]string)
	// Pruned reports whether the CRD in the cluster drops fields that only ours has.
	Pruned() bool
	// PrunedItems reports the same of the CRD of EgressIPs.
	PrunedItems() bool
	// Drops reports whether the CRD of a kind in the cluster drops any part of the status.
	Drops(kind cluster.Kind) bool
}

// Leader elects for all nodes, while this daemon leads.
type Leader struct {
	api API
	due chan struct{}

	mu   sync.Mutex
	next Input // of the next election

	term    term // the fields from here on are used by Run's goroutine only
	last    Input
	reports map[string]cluster.Report // as used by the last election
	pruned  [2]bool                   // at that election
}

// Input is the input of elections from one pass of this node.
type Input struct {
	Config   *config.Config
	Objects  cluster.Objects
	Changed  cluster.Changed // since the last election
	Problems []cluster.Problem
}

// New returns a leader that elects while api leads.
func New(api API) *Leader { return &Leader{api: api, due: make(chan struct{}, 1)} }

// Submit hands over the input of a pass, and with the first one stands for election. It does not wait.
func (l *Leader) Submit(in Input) {
	l.api.Contend()
	l.mu.Lock()
	in.Changed.Join(l.next.Changed)
	l.next = in
	l.mu.Unlock()
	select {
	case l.due <- struct{}{}:
	default:
	}
}

// Run elects after each pass, and again when time makes a difference, until ctx ends.
func (l *Leader) Run(ctx context.Context) {
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for {
		timed := false
		select {
		case <-ctx.Done():
			return
		case <-l.due:
		case <-again.C:
			timed = true
		}
		began := time.Now()
		if wait := l.consider(began, timed); wait > 0 {
			again.Reset(wait)
		}
		if !pause.For(ctx, leadShare*time.Since(began)) {
			return
		}
	}
}

// consider elects, if this daemon leads and anything has changed since the last election. It returns the time after
// which it should be called again even without a change; 0: never.
func (l *Leader) consider(now time.Time, timed bool) (wait time.Duration) {
	reports, leading := l.api.Leading()
	if !leading {
		l.abdicate()
		return 0
	}
	in, wait, ready := l.take()
	if !ready {
		return wait
	}
	begins := l.term.since.IsZero()
	if begins {
		l.term.since, l.term.decided = now, map[cluster.Key]decision{}
		in.Changed.All = true
	}
	reports, wait = l.term.damping.dampen(ofNodes(reports, in.Objects), now)
	if now.Sub(l.term.since) < gatherWithin && !allReport(in.Objects, reports) {
		l.keep(in)
		return retryAfter
	}
	wait = soonest(wait, l.term.qos.consider(l.api, egressQoSes, in, reports, now))
	wait = soonest(wait, l.term.walls.consider(l.api, egressFirewalls, in, reports, now))
	decided := in.Objects
	decided.EgressServices, decided.EgressIPs = l.term.withDecisions(in.Objects), l.term.ips.withDecisions(in.Objects)
	in.Changed.Join(l.term.touched)
	l.term.touched = cluster.Changed{}
	choices, others := l.term.elected.Update(decided, reports, in.Changed, election.PolicyOf(in.Config))
	if timed || begins || l.term.waiting || len(others) > 0 || l.differs(in, reports) || l.looksAgain(now) {
		l.term.last = now
		l.last, l.reports, l.pruned = in, reports, prunings(l.api) // before elect: later changes belong to the next election
		l.api.Write(l.term.elect(l.api, in, decided, reports, choices))
		l.api.WriteItems(l.term.electIPs(l.api, in, decided, reports, choices))
	}
	if l.term.waiting {
		return soonest(wait, retryAfter)
	}
	if l.drops() { // a CRD that keeps them causes no pass
		return soonest(wait, max(l.term.last.Add(lookAgain).Sub(now), retryAfter))
	}
	return wait
}

// ofNodes returns the reports of nodes that exist. A daemon goes on when its Node is deleted, and reports other nodes dead that do not
// answer it any more.
func ofNodes(reports map[string]cluster.Report, objects cluster.Objects) map[string]cluster.Report {
	known := make(map[string]cluster.Report, len(reports))
	for node, r := range reports {
		if _, exists := objects.Nodes.Get(node); exists {
			known[node] = r
		}
	}
	return known
}

// soonest returns the shorter of two waits; 0: never.
func soonest(wait, other time.Duration) time.Duration {
	if wait == 0 || other == 0 {
		return max(wait, other)
	}
	return min(wait, other)
}

// abdicate forgets the term. The first election of the next one considers all objects.
func (l *Leader) abdicate() {
	l.term, l.reports = term{}, nil
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next.Changed = cluster.Changed{}
}

// take returns the input of an election. If it is not ready, wait is the time until it may be without another pass; 0: never.
func (l *Leader) take() (in Input, wait time.Duration, ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next.Config == nil {
		return in, 0, false // no pass yet
	}
	if l.next.Objects.StaleNodes {
		return in, retryAfter, false // a new leader has yet to list all Nodes
	}
	in = l.next
	l.next.Changed = cluster.Changed{}
	return in, 0, true
}

// keep returns the changes of an input that was not used.
func (l *Leader) keep(in Input) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next.Changed.Join(in.Changed)
}

// differs reports whether anything but the choices may change the written status. Endpoints, which change all the time,
// do not, unless each of their nodes is a host, nor does anything else of a Service than its ingress IPs.
func (l *Leader) differs(in Input, reports map[string]cluster.Report) bool {
	if in.Changed.All || in.Config != l.last.Config || prunings(l.api) != l.pruned ||
		!sorted.OneSlice(in.Problems, l.last.Problems) || !reflect.DeepEqual(reports, l.reports) {
		return true
	}
	for key := range in.Changed.Of[cluster.KindEgressService] {
		was, had := l.last.Objects.EgressServices.Get(key)
		now, exists := in.Objects.EgressServices.Get(key)
		if had != exists || !reflect.DeepEqual(was, now) ||
			!slices.Equal(l.last.Objects.Services.At(key).Ingress, in.Objects.Services.At(key).Ingress) ||
			!slices.Equal(election.Concerned(l.last.Objects, key, was.Status), election.Concerned(in.Objects, key, now.Status)) {
			return true
		}
	}
	for key := range in.Changed.Of[cluster.KindEgressIP] { // that of members does not matter
		was, had := l.last.Objects.EgressIPs.Get(key)
		now, exists := in.Objects.EgressIPs.Get(key)
		if had != exists || !reflect.DeepEqual(was, now) {
			return true
		}
	}
	return false
}

// looksAgain reports whether the last election was a while ago, and a CRD drops fields.
func (l *Leader) looksAgain(now time.Time) bool {
	return l.drops() && now.Sub(l.term.last) >= lookAgain
}

// drops reports whether a CRD drops fields that an election sets, be it OVN-Kubernetes' or an earlier one of ours.
func (l *Leader) drops() bool {
	return l.api.Drops(cluster.KindEgressService) || l.api.Drops(cluster.KindEgressIP)
}

// prunings returns which CRDs in the cluster drop fields that only ours have: of EgressServices, of EgressIPs.
func prunings(api API) [2]bool { return [2]bool{api.Pruned(), api.PrunedItems()} }
