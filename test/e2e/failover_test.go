package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// failoverRuns is how often TestFailover has the host die: FAILOVER_RUNS, to measure, with 100 ms as interval of BFD; or
// once, on a machine that may be too busy for that.
func failoverRuns(t *testing.T) (runs, interval int) {
	t.Helper()
	if text := os.Getenv("FAILOVER_RUNS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, "FAILOVER_RUNS")
		return n, 100
	}
	return 1, 1000
}

// TestFailover has the host of an EgressService die without a word, again and again, while its pods ask a hundred times a second; the last
// time the API server is away. It prints how long after the death each of the others acted.
func TestFailover(t *testing.T) {
	runs, interval := failoverRuns(t)
	s := play(t, stage.Options{Nodes: []string{"a", "b", "c"}, API: true, BFD: true, BFDInterval: interval})
	v := victim{pods: identities{"a-p1": web, "b-p1": web}, all: asDeployed()}
	v.roles = func(ctx context.Context) (host, standby string, err error) {
		e, err := s.EgressService(ctx, "shop", "web")
		if err == nil && !meta.IsStatusConditionTrue(e.Status.Conditions, "Programmed") {
			err = fmt.Errorf("want a host in force: %+v", e.Status)
		}
		return e.Status.Host, e.Status.Standby, err
	}
	die(t, s, v, runs)
}

// TestFailoverOfEgressIP does the same to the host of an EgressIP.
func TestFailoverOfEgressIP(t *testing.T) {
	runs, interval := failoverRuns(t)
	s := play(t, stage.Options{
		API: true, BFD: true, BFDInterval: interval, Nodes: []string{"a", "b", "c"},
		Config: egressIPConfig,
		Manifests: map[string]string{
			"cluster.yaml": strings.ReplaceAll(topologyManifest(t, "cluster.yaml"), plainB, assignableB), "pods.yaml": podManifests(),
		},
	})
	ctx := t.Context()
	crd, err := os.ReadFile("../../config/crd/k8s.ovn.org_egressips.yaml")
	require.NoError(t, err)
	require.NoError(t, s.API.Apply(ctx, string(crd)))
	require.NoError(t, s.Write(ctx, "egressip.yaml", strings.Replace(egressIPInAPI(),
		`[192.0.2.33, 192.0.2.34, "2001:db8:2::33", "2001:db8:2::34"]`, `[192.0.2.33, "2001:db8:2::33"]`, 1)))
	team := identity{"ext-red", "192.0.2.33", "2001:db8:2::33"}
	v := victim{
		pods: identities{"a-p1": team, "b-p1": team},
		all:  identities{"a-p1": team, "a-p2": team, "b-p1": team, "c-p1": team, "b-p2": nodeB},
	}
	v.roles = func(context.Context) (host, standby string, err error) {
		status := egressIPOf(t, s).Status
		if len(status.Items) != 2 || !meta.IsStatusConditionTrue(status.Conditions, "Programmed") {
			return "", "", fmt.Errorf("want two addresses in force: %+v", status)
		}
		one, other := status.Items[0], status.Items[1]
		if one.Node != other.Node || one.Standby != other.Standby {
			return "", "", fmt.Errorf("want both addresses on one node: %+v", status)
		}
		return one.Node, one.Standby, nil
	}
	awaitAll(t, s, v.all)
	awaitItems(t, s, func(status egressv1.EgressIPStatus) bool {
		assigned := meta.FindStatusCondition(status.Conditions, "Assigned")
		return assigned != nil && !strings.Contains(assigned.Message, "no other node would be better")
	})
	for both := false; !both; { // once both addresses are on b: one leaves it while the leader knows of no route of its family there
		require.NoError(t, s.Edit(ctx, "cluster.yaml", plainC, assignableC))
		awaitItems(t, s, func(status egressv1.EgressIPStatus) bool {
			both = len(status.Items) == 2 && status.Items[0].Node == "b" && status.Items[1].Node == "b"
			return len(status.Items) == 2 && status.Items[0].Standby != "" && status.Items[1].Standby != ""
		})
		if !both {
			require.NoError(t, s.Edit(ctx, "cluster.yaml", assignableC, plainC))
			awaitItems(t, s, func(status egressv1.EgressIPStatus) bool {
				return len(status.Items) == 2 && status.Items[0].Node == "b" && status.Items[1].Node == "b" && status.Items[1].Standby == ""
			})
		}
	}
	s.Witness.Reset()
	die(t, s, v, runs)
}

// die has the host of an object die several times, and once more while the API server is away, and prints the durations.
func die(t *testing.T, s *stage.Stage, v victim, runs int) {
	t.Helper()
	f := &failovers{Stage: s, victim: v, watches: map[string]*fibWatch{}, took: map[string][]time.Duration{}}
	for _, router := range []string{"red1", "red2"} {
		f.watches[router] = watchFIB(t, s, router)
	}
	for i := range runs {
		f.run(t, false)
		if i%2 == 1 {
			f.forget(t)
		}
	}
	f.run(t, true)
	for _, what := range []string{"node noticed", "node steers anew", "router's FIB", "new flow works", "status confirmed"} {
		t.Logf("%-20s %s", what, percentiles(f.took[what]))
	}
}

// victim is an object whose host dies.
type victim struct {
	pods  identities // that ask, with their identities: one on node a, one on node b
	all   identities // that all pods may have
	roles func(ctx context.Context) (host, standby string, err error)
}

// addresses returns the addresses that the object's packets leave with.
func (v victim) addresses() []string { return []string{v.pods["a-p1"].source4, v.pods["a-p1"].source6} }

// TestDeafStandby has the standby alone hear nothing of the host, while a third node and the API server do: it takes over, and
// the one that elects gives in, for routers send to the later term. Otherwise there would be two hosts for as long as that lasts.
func TestDeafStandby(t *testing.T) {
	_, interval := failoverRuns(t)
	s := play(t, stage.Options{Nodes: []string{"a", "b", "c"}, API: true, BFD: true, BFDInterval: interval})
	ctx := t.Context()
	// b has pods of web, so it watches the host, and is neither.
	require.NoError(t, s.Edit(ctx, "web.yaml", "network: red", "network: red\n  nodeSelector: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [a, c]}]}"))
	_, err := s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
		if e.Host == "b" || e.Standby == "b" {
			return fmt.Errorf("host %s, standby %s", e.Host, e.Standby)
		}
		return nil
	})
	require.NoError(t, err)
	host, standby := hosts(t, s)
	now := identities{"a-p1": web, "b-p1": web}
	awaitAll(t, s, now)
	awaitWatched(t, s, host, standby, "b")
	_, err = s.Node(standby).Run(ctx, "nft", fmt.Sprintf("table inet deaf { chain c { type filter hook input priority -200; ip saddr 10.0.0.1%c udp dport 14784 drop; }; }", '1'+host[0]-'a'))
	require.NoError(t, err)
	_, err = s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
		if e.Host != standby || e.Standby != "" {
			return fmt.Errorf("want the host to be %s, and no standby that it does not hear: %+v", standby, e)
		}
		return nil
	})
	require.NoError(t, err)
	for _, router := range []string{"red1", "red2"} {
		require.NoError(t, s.AwaitRoute(ctx, router, "192.0.2.10/32", inRedOf(standby)[0]), "the only one")
		require.NoError(t, s.AwaitRoute(ctx, router, "2001:db8:2::10/128", inRedOf(standby)[1]), "the only one")
	}
	for _, node := range []string{"a", "b", "c"} { // the former host sends by its own uplink until its next pass
		awaitReport(t, s, node, func(r status.Report) string {
			if i := slices.IndexFunc(r.Services, func(e status.Service) bool { return e.Name == "web" }); i < 0 || r.Services[i].Host != standby {
				return "another host than " + standby
			}
			return ""
		})
	}
	traffic := ask(t, s, "a-p1", "b-p1")
	traffic.answered(t, 10, now)
	traffic.stop(t, now)
	_, err = s.Node(standby).Run(ctx, "nft", "delete table inet deaf")
	require.NoError(t, err)
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host), "no failback")
	requireInnocent(t, s, now)
}

// failovers is what a test of failover watches and measures.
type failovers struct {
	*stage.Stage
	victim
	watches map[string]*fibWatch // of the routers of red
	took    map[string][]time.Duration
}

// run has the host die, and come back.
func (s *failovers) run(t *testing.T, away bool) {
	t.Helper()
	ctx := t.Context()
	awaitAll(t, s.Stage, s.pods)
	host, standby := s.settled(t)
	pods := podsBut(host)
	watchers := []string{standby}
	for _, pod := range pods {
		watchers = append(watchers, pod[:1])
	}
	s.Witness.Reset()
	var questions []lab.Question
	for _, pod := range pods {
		for _, to := range outside {
			for _, p := range []lab.Protocol{lab.UDP, lab.TCP} {
				questions = append(questions, lab.Question{
					Node: pod, To: to, Protocol: p, Every: 10 * time.Millisecond,
					Want: []lab.Answerer{{Name: "ext-red", Source: netip.MustParseAddr(s.pods[pod].source(to))}},
				})
			}
		}
	}
	probe, err := s.Probe(questions...)
	require.NoError(t, err)
	steady := func(since time.Time) {
		t.Helper()
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			return probe.Steady(since, 50, func(lab.Question) bool { return true })
		}))
	}
	var lease coordinationv1.Lease
	require.NoError(t, s.API.Get(ctx, "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: "+stage.Namespace+", name: egressway}}", &lease))
	leader := *lease.Spec.HolderIdentity
	steady(time.Now())
	if nowHost, nowStandby := s.settled(t); nowHost != host || nowStandby != standby {
		t.Logf("the object has moved from %s and %s to %s and %s meanwhile", host, standby, nowHost, nowStandby)
		require.NoError(t, probe.Stop())
		s.run(t, away)
		return
	}
	if away {
		require.NoError(t, s.API.Freeze(ctx))
		steady(time.Now())
	}

	died := time.Now()
	require.NoError(t, s.Stage.Freeze(host))
	steady(time.Now())
	ended := time.Now()
	require.NoError(t, probe.Stop())
	requireInnocent(t, s.Stage, s.all)
	took := func(what string, d time.Duration) { s.took[what] = append(s.took[what], d) }
	for _, r := range probe.Between(died.Add(-time.Second), ended) {
		require.Empty(t, r.Wrong, "%s", r.Question)
		last := time.Duration(0)
		if n := len(r.Lost); n > 0 {
			last = r.Lost[n-1].Sub(died) + r.Question.Every
		}
		took("new flow works", last)
	}
	for _, w := range s.watches {
		for _, vip := range s.addresses() {
			if d, changed := w.away(t, vip, inRedOf(host), died); changed { // not where BFD took a starved host for dead before
				took("router's FIB", d)
			}
		}
	}
	for _, node := range watchers {
		for what, words := range map[string]string{"node noticed": "node went silent", "node steers anew": "failover is in force"} {
			if d, logged := loggedAfter(t, s.Daemons[node].Log(), words, died); logged {
				took(what, d)
			}
		}
	}

	// The one that elects confirms what happened, and the dead node's return changes nothing.
	if away {
		require.NoError(t, s.API.Thaw(ctx))
	}
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		now, _, err := s.roles(ctx)
		if err == nil && now != standby {
			err = fmt.Errorf("want host %s, not %s", standby, now)
		}
		return err
	}))
	took("status confirmed", time.Since(died))
	sessions := map[string]int{}
	for router := range s.watches {
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			number, up, err := established(s.Stage, router, inRedOf(host)[0])
			if err == nil && up {
				err = fmt.Errorf("%s still has a session with %s, which is dead", router, host)
			}
			sessions[router] = number
			return err
		}))
	}
	back := time.Now()
	require.NoError(t, s.Thaw(host))
	for router, w := range s.watches {
		awaitSession(t, s.Stage, router, inRedOf(host)[0], sessions[router])
		for _, vip := range s.addresses() {
			require.Empty(t, w.by(t, vip, inRedOf(host), back), "%s's way to %s after node %s is back", router, vip, host)
		}
	}
	t.Logf("%s died while %s led, %s is the host, confirmed after %s: new flows worked after %s", host, leader, standby, s.took["status confirmed"][len(s.took["status confirmed"])-1], s.took["new flow works"][len(s.took["new flow works"])-len(questions):])
}

// forget restarts the speakers, which forget former losses of BFD: after three within half a minute they take longer to detect the next
// (decision 0039), and a host that dies in a cluster has not died a moment ago.
func (s *failovers) forget(t *testing.T) {
	t.Helper()
	for node := range s.Speakers {
		replaceSpeaker(t, s.Stage, node)
	}
}

// replaceSpeaker ends a node's speaker, and returns when its daemon has started another.
func replaceSpeaker(t *testing.T, s *stage.Stage, node string) {
	t.Helper()
	former := speakerOf(t, s, node)
	require.NoError(t, syscall.Kill(former, syscall.SIGTERM))
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		if now := speakerOf(t, s, node); now == 0 || now == former {
			return fmt.Errorf("node %s has no other speaker yet", node)
		}
		return nil
	}))
}

// settled waits until the routers know the paths of host and standby, and BFD watches the host everywhere, and says who they are. Each
// look asks who they are now: on a busy machine BFD may have moved the service since.
func (s *failovers) settled(t *testing.T) (host, standby string) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		var err error
		if host, standby, err = s.roles(ctx); err != nil {
			return err
		}
		if host == "" || standby == "" {
			return fmt.Errorf("want a host and a standby, not %q and %q", host, standby)
		}
		for router := range s.watches {
			used, others, err := s.Paths(router, netip.MustParsePrefix(s.addresses()[0]+"/32"))
			if err == nil && (!slices.Equal(used, inRedOf(host)[:1]) || !slices.Equal(others, inRedOf(standby)[:1])) {
				err = fmt.Errorf("%s uses %v and has %v in reserve, want host %s and standby %s", router, used, others, host, standby)
			}
			if err != nil {
				return err
			}
			if err := routersBFD(s.Stage, router, inRedOf(host)[0]); err != nil {
				return err
			}
		}
		watchers := []string{standby}
		for _, pod := range podsBut(host) {
			watchers = append(watchers, pod[:1])
		}
		for _, other := range watchers {
			if err := watched(ctx, s.Stage, host, other); err != nil {
				return err
			}
		}
		return nil
	}))
	return host, standby
}

// podsBut are pods of web that are on another node.
func podsBut(node string) []string {
	return slices.DeleteFunc([]string{"a-p1", "b-p1"}, func(pod string) bool { return pod[:1] == node })
}

// inRedOf returns the addresses of a node in the network red.
func inRedOf(node string) []string {
	end := string('1' + rune(node[0]-'a'))
	return []string{"10.1.0.1" + end, "fd01::1" + end}
}

// awaitWatched waits until other nodes watch a node, and see it alive.
func awaitWatched(t *testing.T, s *stage.Stage, node string, watchers ...string) {
	t.Helper()
	for _, other := range watchers {
		require.NoError(t, lab.Wait(t.Context(), patience, func() error { return watched(t.Context(), s, node, other) }))
	}
}

// watched says why another node does not watch a node, or does not see it alive.
func watched(ctx context.Context, s *stage.Stage, node, other string) error {
	out, err := s.Egressway(ctx, other, "status", "-o", "json")
	if err == nil && !strings.Contains(out, fmt.Sprintf("\"node\": %q,\n      \"alive\": true", node)) {
		err = fmt.Errorf("node %s does not watch %s: %s", other, node, out)
	}
	return err
}

// routersBFD says why a router's session of BFD with a node is not up, which takes seconds more than that of BGP.
func routersBFD(s *stage.Stage, router, peer string) error {
	var all []frrPeer
	if err := s.Node(router).VTYJSON(&all, "bfdd", "show bfd peers json"); err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(p frrPeer) bool { return p.Peer == netip.MustParseAddr(peer) && p.Status == "up" }) {
		return fmt.Errorf("%s has no session of BFD with %s: %+v", router, peer, all)
	}
	return nil
}

// percentiles sums durations up.
func percentiles(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	slices.Sort(all)
	at := func(share float64) time.Duration {
		return all[min(len(all)-1, int(share*float64(len(all))))].Round(time.Millisecond)
	}
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, most %s of %d", at(0.5), at(0.9), at(0.99), all[len(all)-1].Round(time.Millisecond), len(all))
}

var logged = regexp.MustCompile(`time=(\S+)`)

// loggedAfter is how long after a moment a daemon first logged something; false: it has not.
func loggedAfter(t *testing.T, log, what string, moment time.Time) (time.Duration, bool) {
	t.Helper()
	for line := range strings.Lines(log) {
		if !strings.Contains(line, what) {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, logged.FindStringSubmatch(line)[1])
		require.NoError(t, err)
		if at.After(moment) {
			return at.Sub(moment), true
		}
	}
	return 0, false
}

var stamp = regexp.MustCompile(`^\[(\S+)\] `)

// away is how long after a moment the route to a host first went by none of some gateways; false: it has not changed.
func (w *fibWatch) away(t *testing.T, addr string, gateways []string, moment time.Time) (time.Duration, bool) {
	t.Helper()
	for _, c := range w.changesAfter(t, addr, moment) {
		if c.there && !slices.ContainsFunc(gateways, func(g string) bool { return slices.Contains(c.words, g) }) {
			return c.at.Sub(moment), true
		}
	}
	return 0, false
}

// by are the routes to a host by one of some gateways that came after a moment.
func (w *fibWatch) by(t *testing.T, addr string, gateways []string, moment time.Time) (all []string) {
	t.Helper()
	for _, c := range w.changesAfter(t, addr, moment) {
		if c.there && slices.ContainsFunc(gateways, func(g string) bool { return slices.Contains(c.words, g) }) {
			all = append(all, strings.Join(c.words, " "))
		}
	}
	return all
}

// fibChange is one that a kernel told.
type fibChange struct {
	at    time.Time
	there bool // it is not a deletion
	words []string
}

func (w *fibWatch) changesAfter(t *testing.T, addr string, moment time.Time) (all []fibChange) {
	t.Helper()
	for _, l := range w.changes(addr) {
		at, err := time.ParseInLocation("2006-01-02T15:04:05.999999", stamp.FindStringSubmatch(l)[1], time.Local)
		require.NoError(t, err, l)
		if words := strings.Fields(l); !at.Before(moment) {
			all = append(all, fibChange{at, !slices.Contains(words, "Deleted"), words})
		}
	}
	return all
}
