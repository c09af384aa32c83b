package leader

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube"
	"github.com/egressway/egressway/internal/cluster/manifests"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
)

// recorder is an API that records what is written.
type recorder struct {
	leads   bool
	reports map[string]cluster.Report
	writes  []map[cluster.Key]kube.Wanted
	labels  []map[string][]string
	texts   map[cluster.Key]cluster.TextStatus // the last ones
	written int                                // number of writes of texts
	items   []map[cluster.Key]kube.WantedItems
	prunes  bool // the CRD of EgressIPs drops fields
	drops   map[cluster.Kind]bool
	stands  bool
}

func (r *recorder) Contend() { r.stands = true }

func (r *recorder) WriteItems(want map[cluster.Key]kube.WantedItems) { r.items = append(r.items, want) }

func (r *recorder) PrunedItems() bool { return r.prunes }

func (r *recorder) Drops(kind cluster.Kind) bool {
	return r.drops[kind] || r.prunes && kind == cluster.KindEgressIP
}

func (r *recorder) WriteTexts(_ cluster.Kind, want map[cluster.Key]kube.WantedText) {
	r.texts, r.written = map[cluster.Key]cluster.TextStatus{}, r.written+1
	for key, w := range want {
		r.texts[key] = w.Status
	}
}

func (r *recorder) Leading() (map[string]cluster.Report, bool) { return r.reports, r.leads }
func (r *recorder) Write(want map[cluster.Key]kube.Wanted)     { r.writes = append(r.writes, want) }
func (r *recorder) Label(want map[string][]string)             { r.labels = append(r.labels, want) }
func (*recorder) Pruned() bool                                 { return false }

// lastHost returns the host of shop/web in the last write.
func (r *recorder) lastHost() string { return r.writes[len(r.writes)-1][web].Status.Host }

// TestTerm runs a term of leadership from its beginning to its end, by an injected clock.
func TestTerm(t *testing.T) {
	c := config.Defaults()
	objects, _, problems := manifests.Open("../../config/samples").Read()
	require.Empty(t, problems)
	fit := cluster.NetworkState{Usable: true, IPv4: true, IPv6: true}
	report := func(red cluster.NetworkState) cluster.Report {
		return cluster.Report{Networks: map[string]cluster.NetworkState{"default": fit, "red": red, "blue": fit}}
	}
	api := &recorder{}
	l := New(api)
	now := time.Now()
	consider := func(after time.Duration) time.Duration { now = now.Add(after); return l.consider(now, false) }

	require.False(t, api.stands, "without a plan it would lead and elect nothing")
	l.Submit(Input{Config: c, Objects: objects, Changed: cluster.Changed{All: true}})
	require.True(t, api.stands)
	require.Zero(t, consider(0), "another daemon leads")
	require.Empty(t, api.writes)

	api.leads, api.reports = true, map[string]cluster.Report{"a": report(fit), "b": report(fit), "c": report(fit)}
	stale := objects
	stale.StaleNodes = true
	l.Submit(Input{Config: c, Objects: stale})
	require.Equal(t, retryAfter, consider(0), "a new leader waits until it knows which nodes are Ready")
	require.Empty(t, api.writes)
	require.Zero(t, l.term.since, "its term begins then")
	l.Submit(Input{Config: c, Objects: objects})

	api.reports = map[string]cluster.Report{"b": report(fit)}
	require.Equal(t, retryAfter, consider(0), "a new leader waits for reports")
	require.Empty(t, api.writes)
	api.reports = map[string]cluster.Report{"a": {EgressQoSes: "x"}, "b": report(fit), "c": {}}
	require.Equal(t, retryAfter, consider(0), "daemons that start have not reported their networks")
	require.Empty(t, api.writes)
	old := report(fit)
	old.Old = true
	api.reports = map[string]cluster.Report{"a": report(fit), "b": old, "c": report(fit)}
	require.Equal(t, retryAfter, consider(0), "the daemon of b may live")
	require.Empty(t, api.writes)
	api.reports = map[string]cluster.Report{"a": report(fit), "b": report(fit), "c": report(fit)}
	consider(time.Second)
	require.Len(t, api.writes, 1)
	host := api.lastHost()
	require.NotEmpty(t, host)
	require.Empty(t, api.labels, "the configuration does not ask for labels")

	unfit := fit
	unfit.Usable = false
	api.reports = map[string]cluster.Report{"a": report(fit), "b": report(fit), "c": report(fit)}
	api.reports[host] = report(unfit)
	require.LessOrEqual(t, consider(time.Second), steadyFor, "the change is not believed yet")
	require.Equal(t, host, api.lastHost())
	consider(steadyFor)
	require.NotEqual(t, host, api.lastHost())

	writes := len(api.writes)
	api.leads = false
	require.Zero(t, consider(time.Second))
	require.Len(t, api.writes, writes)
	require.Empty(t, l.term.decided, "a leader forgets its decisions with its term")
	api.leads = true
	consider(gatherWithin)
	require.Equal(t, retryAfter, consider(time.Millisecond), "it waits for its own writes to appear")
	require.Greater(t, len(api.writes), writes)
}

// TestReportsOfNodesThatAreGone: a daemon that goes on without its Node is no witness of another node's death.
func TestReportsOfNodesThatAreGone(t *testing.T) {
	objects, _, problems := manifests.Open("../../config/samples").Read()
	require.Empty(t, problems)
	e := objects.EgressServices.At(web)
	e.Version, e.Status = 1, as("a", "c")
	objects.EgressServices = cluster.MapOf(map[cluster.Key]cluster.EgressService{web: e})
	fit := cluster.NetworkState{Usable: true, IPv4: true, IPv6: true}
	report := cluster.Report{Applied: 1, Networks: map[string]cluster.NetworkState{"default": fit, "red": fit, "blue": fit}}
	witness := report
	witness.Hosts = map[string]bool{"a": false}
	api := &recorder{leads: true, reports: map[string]cluster.Report{"a": report, "c": report, "x": witness}}
	host := func(o cluster.Objects) string {
		l := New(api)
		l.Submit(Input{Config: config.Defaults(), Objects: o, Changed: cluster.Everything()})
		l.consider(time.Now(), false)
		l.consider(time.Now().Add(gatherWithin), false)
		return api.lastHost()
	}
	require.Equal(t, "a", host(objects))
	objects.Nodes = objects.Nodes.With("x", cluster.Node{Ready: true})
	require.Equal(t, "c", host(objects), "the same node with its Node")
}

// TestReadyFollowsEndpoints: where every node with an endpoint is a host, a status depends on endpoints.
func TestReadyFollowsEndpoints(t *testing.T) {
	objects, _, problems := manifests.Open("../../config/samples").Read()
	require.Empty(t, problems)
	e := objects.EgressServices.At(web)
	e.Version, e.SourceIPBy, e.Status = 1, cluster.SourceIPByNetwork, cluster.Status{Host: cluster.AllHosts}
	objects.EgressServices = cluster.MapOf(map[cluster.Key]cluster.EgressService{web: e})
	fit := cluster.NetworkState{Usable: true, IPv4: true, IPv6: true}
	report := cluster.Report{Applied: 1, Networks: map[string]cluster.NetworkState{"default": fit, "red": fit, "blue": fit}}
	api := &recorder{leads: true, reports: map[string]cluster.Report{"a": report, "b": report, "c": report}}
	l, c := New(api), config.Defaults()
	submit := func(o cluster.Objects) cluster.Status {
		var changed cluster.Changed
		changed.Add(cluster.KindEgressService.ID(web))
		l.Submit(Input{Config: c, Objects: o, Changed: changed})
		l.consider(time.Now(), false)
		return api.writes[len(api.writes)-1][web].Status
	}
	require.True(t, meta.IsStatusConditionTrue(submit(objects).Conditions, election.ConditionReady))
	objects.Endpoints = objects.Endpoints.Without(web)
	require.False(t, meta.IsStatusConditionTrue(submit(objects).Conditions, election.ConditionReady))
}
