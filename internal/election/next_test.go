package election

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

// up makes reports of nodes whose default network has one session, which is up.
func up(nodes ...string) map[string]cluster.Report {
	reports := map[string]cluster.Report{}
	for _, n := range nodes {
		reports[n] = cluster.Report{Networks: map[string]cluster.NetworkState{"default": {Usable: true, IPv4: true, IPv6: true, Sessions: 1, Up: 1}}}
	}
	return reports
}

func applied(reports map[string]cluster.Report, node string, version uint64) {
	r := reports[node]
	r.Applied = version
	reports[node] = r
}

func unready(o *cluster.Objects, node string) {
	n := o.Nodes.At(node)
	n.Ready = false
	o.Nodes = o.Nodes.With(node, n)
}

func condition(t *testing.T, s cluster.Status, kind string) metav1.Condition {
	t.Helper()
	c := meta.FindStatusCondition(s.Conditions, kind)
	require.NotNil(t, c, kind)
	return *c
}

// world moves one EgressService through its statuses, as a leader and an API server would.
type world struct {
	t       *testing.T
	o       cluster.Objects
	reports map[string]cluster.Report
	key     cluster.Key
	version uint64
	view    View   // Impatient, Pruned, Problems, Keep
	former  string // the last host, until the time is over
}

func (w *world) step() cluster.Status {
	w.t.Helper()
	v := w.view
	v.Key, v.Choice, v.Since, v.Dead, v.Former = w.key, Elect(w.o, w.reports)[ServiceSeat(w.key)], w.version, Dead(w.reports), w.former
	next := Next(w.o, w.reports, v)
	e := w.o.EgressServices.At(w.key)
	if w.former = v.Former; next.Host != e.Status.Host {
		w.former = e.Status.Host
	}
	if e.Status.Host != next.Host || e.Status.Standby != next.Standby {
		w.version++
	}
	e.Status = next
	w.o.EgressServices = w.o.EgressServices.With(w.key, e)
	return next
}

func TestMoveIsMadeBeforeItIsBroken(t *testing.T) {
	w := &world{t: t, o: objects(4, "a"), reports: up("n0", "n1", "n2"), key: key("a"), version: 1}
	first := w.step()
	require.EqualValues(t, 1, first.Term)
	require.Contains(t, []string{"n0", "n1", "n2"}, first.Host)
	require.Contains(t, []string{"n0", "n1", "n2"}, first.Standby, "n3 does not report")
	require.Equal(t, string(ReasonPending), condition(t, first, ConditionProgrammed).Reason)

	applied(w.reports, first.Host, w.version)
	require.Equal(t, metav1.ConditionTrue, condition(t, w.step(), ConditionProgrammed).Status)

	// The selector requires another node, which is not the standby.
	third := strings.NewReplacer(first.Host, "", first.Standby, "").Replace("n0n1n2")
	change(&w.o, "a", func(e *cluster.EgressService, _ *cluster.Service) {
		e.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"only": "this"}}
	})
	n := w.o.Nodes.At(third)
	n.Labels = map[string]string{"only": "this"}
	w.o.Nodes = w.o.Nodes.With(third, n)
	for range 3 {
		moving := w.step()
		require.Equal(t, first.Host, moving.Host)
		require.Equal(t, third, moving.Standby)
		require.EqualValues(t, 1, moving.Term)
		c := condition(t, moving, ConditionHostAssigned)
		require.Equal(t, string(ReasonMoving), c.Reason)
		require.Contains(t, c.Message, "node "+first.Host+" does not match spec.nodeSelector any more")
	}
	applied(w.reports, third, w.version)
	moved := w.step()
	require.Equal(t, third, moved.Host)
	require.Empty(t, moved.Standby)
	require.EqualValues(t, 2, moved.Term)
}

func TestMoveDoesNotWait(t *testing.T) {
	for name, lose := range map[string]func(w *world, host string){
		"not Ready":     func(w *world, host string) { unready(&w.o, host) },
		"no such node":  func(w *world, host string) { w.o.Nodes = w.o.Nodes.Without(host) },
		"daemon silent": func(w *world, host string) { delete(w.reports, host) },
		"session down": func(w *world, host string) {
			w.reports[host] = cluster.Report{Networks: map[string]cluster.NetworkState{"default": {Usable: true, Sessions: 2}}}
		},
		"network gone": func(w *world, host string) {
			w.reports[host] = cluster.Report{Networks: map[string]cluster.NetworkState{"default": {Sessions: 2}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, o: objects(4, "a"), reports: up("n0", "n1", "n2"), key: key("a"), version: 1}
			first := w.step()
			lose(w, first.Host)
			moved := w.step()
			require.Equal(t, first.Standby, moved.Host, "the standby serves already")
			require.NotEqual(t, first.Host, moved.Standby)
			require.EqualValues(t, 2, moved.Term)
		})
	}
	for name, view := range map[string]View{"impatient": {Impatient: true}, "upstream's CRD": {Pruned: true}} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, o: objects(4, "a"), reports: up("n0", "n1"), key: key("a"), version: 1, view: view}
			first := w.step()
			change(&w.o, "a", func(e *cluster.EgressService, _ *cluster.Service) {
				e.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": w.o.Nodes.At(first.Standby).Labels["zone"]}}
			})
			require.Equal(t, first.Standby, w.step().Host)
		})
	}
}

// moved returns a world in which the selector moved service a from its first host to the third node.
func moved(t *testing.T, view View) (w *world, from, to string) {
	t.Helper()
	w = &world{t: t, o: objects(3, "a"), reports: up("n0", "n1", "n2"), key: key("a"), version: 1, view: view}
	first := w.step()
	to = strings.NewReplacer(first.Host, "", first.Standby, "").Replace("n0n1n2")
	n := w.o.Nodes.At(to)
	n.Labels = map[string]string{"only": "this"}
	w.o.Nodes = w.o.Nodes.With(to, n)
	change(&w.o, "a", func(e *cluster.EgressService, _ *cluster.Service) {
		e.NodeSelector = &metav1.LabelSelector{MatchLabels: n.Labels}
	})
	require.Equal(t, to, w.step().Standby)
	applied(w.reports, to, w.version)
	require.Equal(t, to, w.step().Host)
	return w, first.Host, to
}

func TestFormerHostIsKeptForItsFlows(t *testing.T) {
	w, from, to := moved(t, View{Keep: true})
	for range 3 {
		kept := w.step()
		require.Equal(t, to, kept.Host)
		require.Equal(t, from, kept.Standby, "although it is no candidate")
		require.EqualValues(t, 2, kept.Term)
		require.Equal(t, "node "+to+" is the host; node "+from+", which was, stays as standby for flows that go by it",
			condition(t, kept, ConditionHostAssigned).Message)
	}
	w.former = ""
	over := w.step()
	require.Equal(t, to, over.Host)
	require.Empty(t, over.Standby, "the time is over")
	require.EqualValues(t, 2, over.Term)

	t.Run("not if it is not wanted", func(t *testing.T) {
		w, _, _ := moved(t, View{})
		require.Empty(t, w.o.EgressServices.At(w.key).Status.Standby)
	})
	for name, lose := range map[string]func(w *world, host string){
		"session down": func(w *world, host string) {
			w.reports[host] = cluster.Report{Networks: map[string]cluster.NetworkState{"default": {Usable: true, IPv4: true, Sessions: 2}}}
		},
		"no route":      func(w *world, host string) { routed(w.reports, host, false, true) },
		"daemon silent": func(w *world, host string) { delete(w.reports, host) },
		"dead":          func(w *world, host string) { say(w.reports, w.o.EgressServices.At(w.key).Status.Host, host, false) },
		"no such node":  func(w *world, host string) { w.o.Nodes = w.o.Nodes.Without(host) },
		"not Ready":     func(w *world, host string) { unready(&w.o, host) },
	} {
		t.Run(name, func(t *testing.T) {
			w, from, to := moved(t, View{Keep: true})
			require.Equal(t, from, w.step().Standby)
			lose(w, from)
			left := w.step()
			require.Equal(t, to, left.Host)
			require.Empty(t, left.Standby, "it can't serve any more")
			require.EqualValues(t, 2, left.Term)
		})
	}
	t.Run("a move back does not wait", func(t *testing.T) {
		w, from, _ := moved(t, View{Keep: true})
		change(&w.o, "a", func(e *cluster.EgressService, _ *cluster.Service) {
			e.NodeSelector = &metav1.LabelSelector{MatchLabels: w.o.Nodes.At(from).Labels}
		})
		applied(w.reports, from, w.version)
		back := w.step()
		require.Equal(t, from, back.Host)
		require.EqualValues(t, 3, back.Term)
	})
	t.Run("where it may be the standby it is that", func(t *testing.T) {
		w, from, _ := moved(t, View{Keep: true})
		change(&w.o, "a", func(e *cluster.EgressService, _ *cluster.Service) { e.NodeSelector = nil })
		w.former = ""
		stays := w.step()
		require.Equal(t, from, stays.Standby)
		require.Contains(t, condition(t, stays, ConditionHostAssigned).Message, "would take over")
	})
}

// A standby that is no longer eligible is replaced at once, because no flow uses it.
func TestStandbyIsNotKept(t *testing.T) {
	w := &world{t: t, o: objects(3, "a"), reports: up("n0", "n1", "n2"), key: key("a"), version: 1, view: View{Keep: true}}
	first := w.step()
	cordon(&w.o, first.Standby, true)
	next := w.step()
	require.Equal(t, first.Host, next.Host)
	require.NotEqual(t, first.Standby, next.Standby)
	require.NotEmpty(t, next.Standby)
}

// When the host dies, the nodes switch by themselves to the status that the leader then writes.
func TestFailoverIsConfirmed(t *testing.T) {
	obeyed := func(w *world) Choice {
		after, _ := obeyAnew(w.o)[ServiceSeat(w.key)].Failover(Dead(w.reports))
		return after
	}
	t.Run("by the standby", func(t *testing.T) {
		w := &world{t: t, o: objects(4, "a"), reports: up("n0", "n1", "n2"), key: key("a"), version: 1, view: View{Keep: true}}
		first := w.step()
		say(w.reports, first.Standby, first.Host, false)
		by := obeyed(w)
		require.Equal(t, first.Standby, by.Host)
		confirmed := w.step()
		require.Equal(t, by.Host, confirmed.Host)
		require.Equal(t, by.Term, confirmed.Term)
		require.NotEqual(t, first.Host, confirmed.Standby)
		require.Equal(t, by.Host, w.step().Host)

		say(w.reports, first.Standby, first.Host, true)
		back := w.step()
		require.Equal(t, by.Host, back.Host, "no failback")
		require.EqualValues(t, 2, back.Term)
	})
	t.Run("by a standby that may not be the host", func(t *testing.T) {
		w, from, to := moved(t, View{Keep: true})
		n := w.o.Nodes.At("n3")
		n.Ready, n.Labels = true, map[string]string{"only": "this"}
		w.o.Nodes = w.o.Nodes.With("n3", n)
		maps.Copy(w.reports, up("n3"))
		require.Equal(t, from, w.step().Standby)
		say(w.reports, from, to, false)
		by := obeyed(w)
		require.Equal(t, from, by.Host)
		confirmed := w.step()
		require.Equal(t, []string{from, "n3"}, []string{confirmed.Host, confirmed.Standby}, "it goes on from there")
		require.Equal(t, by.Term, confirmed.Term)
		require.Equal(t, from, w.step().Host, "until the next one reports")
		applied(w.reports, "n3", w.version)
		last := w.step()
		require.Equal(t, []string{"n3", from}, []string{last.Host, last.Standby})
		require.EqualValues(t, 4, last.Term)
	})
	t.Run("not by one that cannot serve", func(t *testing.T) {
		w := &world{t: t, o: objects(3, "a"), reports: up("n0", "n1", "n2"), key: key("a"), version: 1}
		first := w.step()
		third := strings.NewReplacer(first.Host, "", first.Standby, "").Replace("n0n1n2")
		say(w.reports, third, first.Host, false)
		routed(w.reports, first.Standby, false, false)
		next := w.step()
		require.Equal(t, third, next.Host)
		require.EqualValues(t, 3, next.Term, "nodes have given the term to the standby")
	})
	t.Run("nobody else", func(t *testing.T) {
		w := &world{t: t, o: objects(1, "a"), reports: up("n0"), key: key("a"), version: 1}
		first := w.step()
		say(w.reports, "w", "n0", false)
		require.Equal(t, first.Host, obeyed(w).Host)
		stays := w.step()
		require.Equal(t, first.Host, stays.Host)
		require.EqualValues(t, 1, stays.Term)
		require.Contains(t, condition(t, stays, ConditionHostAssigned).Message, "node n0 does not answer the nodes that watch it, but no other node may be the host")
	})
}

// TestStandbyThatTookOver: a standby that does not hear the host, which other nodes hear, acts as the host already, and
// routers prefer it.
func TestStandbyThatTookOver(t *testing.T) {
	w := &world{t: t, o: objects(4, "a"), reports: up("n0", "n1", "n2", "n3"), key: key("a"), version: 1, view: View{Keep: true}}
	first := w.step()
	applied(w.reports, first.Host, w.version)
	applied(w.reports, first.Standby, w.version)
	all := []string{"n0", "n1", "n2", "n3"}
	see := func(witnesses ...string) {
		for _, n := range all {
			r := w.reports[n]
			if r.Hosts, r.Dead = nil, nil; slices.Contains(witnesses, n) {
				r.Hosts = map[string]bool{first.Host: n != first.Standby, first.Standby: true}
				delete(r.Hosts, n)
			}
			if n == first.Standby {
				r.Dead = []string{first.Host}
			}
			w.reports[n] = r
		}
	}
	see(all...)
	require.Empty(t, Dead(w.reports), "others hear it")
	choice := Elect(w.o, w.reports)[ServiceSeat(w.key)]
	require.Equal(t, first.Standby, choice.Host)
	require.Equal(t, fmt.Sprintf("node %s, its standby, does not hear node %s, and has taken over", first.Standby, first.Host), choice.Why)
	taken := w.step()
	require.Equal(t, first.Standby, taken.Host)
	require.EqualValues(t, first.Term+1, taken.Term, "as it announces already")
	require.NotEmpty(t, taken.Standby)
	require.NotEqual(t, first.Host, taken.Standby, "it would take over in turn, as it may not hear the other either")
	for range 3 {
		again := w.step()
		require.Equal(t, taken.Host, again.Host)
		require.Equal(t, taken.Standby, again.Standby)
	}
	see()
	for _, n := range all {
		if n != taken.Host && n != first.Host {
			delete(w.reports, n)
		}
	}
	require.Empty(t, w.step().Standby, "the former host would be none")
}

// TestNodeOfHostIsDeleted: every node switches to the standby, and the leader confirms it in the same term.
func TestNodeOfHostIsDeleted(t *testing.T) {
	w := &world{t: t, o: objects(4, "a"), reports: up("n0", "n1", "n2", "n3"), key: key("a"), version: 1}
	first := w.step()
	w.o.Nodes = w.o.Nodes.Without(first.Host)
	obeyed := obeyAnew(w.o)[ServiceSeat(w.key)]
	require.Equal(t, first.Standby, obeyed.Host)
	drain(w.reports, first.Standby, true) // so that another is preferred
	next := w.step()
	require.Equal(t, obeyed.Host, next.Host)
	require.Equal(t, obeyed.Term, next.Term)
	require.NotEqual(t, first.Standby, next.Standby, "which has its turn afterwards")
}

func TestHasteAndLeisure(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(w *world, host string)
		why   string
		haste bool
	}{
		"cordoned": {func(w *world, host string) { cordon(&w.o, host, true) }, "is cordoned", false},
		"draining": {func(w *world, host string) { drain(w.reports, host, true) }, "is draining", false},
		"not Ready": {func(w *world, host string) {
			unready(&w.o, host)
			say(w.reports, "w", host, true)
		}, "is not Ready", false},
		"no route": {func(w *world, host string) { routed(w.reports, host, false, false) }, "network default has no IPv4 route", true},
		"dead":     {func(w *world, host string) { say(w.reports, "w", host, false) }, "does not answer", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, o: objects(3, "a"), reports: up("n0", "n1", "n2"), key: key("a"), version: 1}
			first := w.step()
			w.version++ // the standby has not reported this
			test.spoil(w, first.Host)
			require.Contains(t, Elect(w.o, w.reports)[ServiceSeat(w.key)].Why, test.why)
			next := w.step()
			if test.haste {
				require.Equal(t, first.Standby, next.Host)
				return
			}
			require.Equal(t, first.Host, next.Host)
			c := condition(t, next, ConditionHostAssigned)
			require.Equal(t, string(ReasonMoving), c.Reason)
			require.Contains(t, c.Message, test.why)
			applied(w.reports, first.Standby, w.version)
			require.Equal(t, first.Standby, w.step().Host)
		})
	}
}

func TestConditions(t *testing.T) {
	w := &world{t: t, o: objects(2, "a"), reports: up("n0", "n1"), key: key("a"), version: 1}
	foreign := metav1.Condition{Type: "example.com/Audited", Status: metav1.ConditionTrue, Reason: "Seen"}
	change(&w.o, "a", func(e *cluster.EgressService, s *cluster.Service) {
		e.Status.Conditions = []metav1.Condition{foreign}
		e.Generation = 7
		s.Ingress = nil
	})
	w.view.Problems = []cluster.Problem{
		{Kind: "EgressService", Object: "shop/a", Field: "endpoints", Value: "10.0.0.1", Reason: "InvalidAddress", Message: "is no pod's"},
		{Kind: "Service", Object: "shop/a", Field: "spec.ports[0]", Reason: "InvalidValue", Message: "a port is a number"},
	}
	s := w.step()
	require.Empty(t, s.Host)
	require.Zero(t, s.Term)
	c := condition(t, s, ConditionHostAssigned)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	require.Equal(t, string(cluster.ReasonNoIngressIP), c.Reason)
	require.EqualValues(t, 7, c.ObservedGeneration)
	require.True(t, strings.HasPrefix(c.Message, "its Service has no usable ingress IP yet"), c.Message)
	c = condition(t, s, ConditionValid)
	require.Equal(t, "InvalidAddress", c.Reason)
	require.Equal(t, `endpoints: "10.0.0.1": is no pod's; Service shop/a: spec.ports[0]: a port is a number`, c.Message)
	require.Equal(t, string(ReasonNoHost), condition(t, s, ConditionProgrammed).Reason)
	require.Equal(t, foreign, condition(t, s, foreign.Type), "others' conditions stay")

	change(&w.o, "a", func(e *cluster.EgressService, _ *cluster.Service) { e.SourceIPBy = cluster.SourceIPByNetwork })
	w.view.Problems = nil
	s = w.step()
	require.Equal(t, cluster.AllHosts, s.Host)
	require.Empty(t, s.Standby)
	require.Equal(t, metav1.ConditionTrue, condition(t, s, ConditionValid).Status)
	require.Contains(t, condition(t, s, ConditionProgrammed).Message, "n0", "its endpoint is there")
	applied(w.reports, "n0", w.version)
	require.Equal(t, metav1.ConditionTrue, condition(t, w.step(), ConditionProgrammed).Status)
}

func TestWhyNoNodeIsEligible(t *testing.T) {
	o := objects(5, "a")
	reports := up("n0")
	reports["n0"] = cluster.Report{Networks: map[string]cluster.NetworkState{"default": {Usable: true, Sessions: 1}}}
	reports["n1"] = cluster.Report{Networks: map[string]cluster.NetworkState{"other": {Usable: true}}}
	p := Elect(o, reports)[seat("a")].Problem
	require.NotNil(t, p)
	require.Equal(t, cluster.ReasonNoEligibleNode, p.Reason)
	require.Equal(t, "no BGP session of network default is up on n0; network default is not usable on n1; no daemon reports from n2, n3, n4", p.Message)
	for node := range o.Nodes.Keys() {
		unready(&o, node)
	}
	require.Equal(t, "no BGP session of network default is up on n0; network default is not usable on n1", Elect(o, reports)[seat("a")].Problem.Message)
	require.Equal(t, "no node is Ready", Elect(o, map[string]cluster.Report{})[seat("a")].Problem.Message)
}

func TestObey(t *testing.T) {
	o := objects(3, "a", "b", "c", "d", "e", "f")
	change(&o, "a", func(e *cluster.EgressService, _ *cluster.Service) {
		e.Status = cluster.Status{Host: "n1", Standby: "n2", Term: 4}
	})
	change(&o, "b", func(e *cluster.EgressService, _ *cluster.Service) { e.Status.Host = "gone" })
	change(&o, "c", func(e *cluster.EgressService, _ *cluster.Service) { e.Status.Host = cluster.AllHosts })
	change(&o, "d", func(e *cluster.EgressService, _ *cluster.Service) {
		e.SourceIPBy, e.Status.Host = cluster.SourceIPByNetwork, "n1"
	})
	change(&o, "e", func(_ *cluster.EgressService, s *cluster.Service) { s.Ingress = nil })
	change(&o, "f", func(e *cluster.EgressService, _ *cluster.Service) {
		e.Status = cluster.Status{Host: "gone", Standby: "n2", Term: 4}
	})
	got := obeyAnew(o)
	require.Equal(t, Choice{Host: "n2", Term: 5, Why: "there is no node gone any more"}, got[seat("f")])
	require.Equal(t, Choice{Host: "n1", Standby: "n2", Term: 4}, got[seat("a")])
	require.Empty(t, got[seat("b")].Host)
	require.Contains(t, got[seat("b")].Problem.Message, "there is no node gone")
	require.Empty(t, got[seat("c")].Host, "the mode has changed, the status not yet")
	require.Equal(t, cluster.AllHosts, got[seat("d")].Host, "the mode alone says so")
	require.Equal(t, cluster.ReasonNoIngressIP, got[seat("e")].Problem.Reason)
}

// TestObeyWithoutReady: the roster of Nodes does not say which are Ready, so a daemon has no opinion about that.
func TestObeyWithoutReady(t *testing.T) {
	o := objects(2, "a", "b")
	facts := cluster.Facts("n1", o.Nodes.At("n1"), nil)
	unready(&o, "n0")
	unready(&o, "n1")
	require.Equal(t, facts, cluster.Facts("n1", o.Nodes.At("n1"), nil))
	change(&o, "a", func(e *cluster.EgressService, _ *cluster.Service) { e.Status = cluster.Status{Host: "n1", Term: 4} })
	address := netip.MustParseAddr("203.0.114.1")
	o.EgressIPs = cluster.MapOf(map[cluster.Key]cluster.EgressIP{{Name: "team"}: {
		Addresses: []netip.Addr{address}, Holders: []cluster.Holder{{Addr: address, Host: "n1", Term: 2}},
	}})
	got := obeyAnew(o)
	require.Equal(t, Choice{Host: "n1", Term: 4}, got[seat("a")])
	require.Equal(t, Choice{Host: "n1", Term: 2}, got[EgressIPSeat("team", address)])
	require.Equal(t, ReasonNoHost, got[seat("b")].Problem.Reason, "the condition that the leader writes says why")
}

func TestLabels(t *testing.T) {
	o := objects(3)
	add := func(namespace, name, host string, age int) {
		o.EgressServices = o.EgressServices.With(cluster.Key{Namespace: namespace, Name: name}, cluster.EgressService{
			Created: metav1.Unix(int64(1000-age), 0).Time, Status: cluster.Status{Host: host},
		})
	}
	add("a-b", "c", "n0", 1)
	add("a", "b-c", "n1", 2)
	add("shop", "web", "n1", 1)
	add("shop", "none", "", 1)
	add("shop", "all", cluster.AllHosts, 1)
	add(strings.Repeat("n", 32), strings.Repeat("s", 30), "n2", 1)
	add(strings.Repeat("n", 32), strings.Repeat("s", 31), "n2", 1)
	labels, problems := Labels(o)
	require.Equal(t, map[string][]string{"n1": {"a-b-c", "shop-web"}, "n2": {strings.Repeat("n", 32) + "-" + strings.Repeat("s", 30)}}, labels)
	require.Len(t, problems, 2)
	require.Equal(t, ReasonLabelConflict, problems[0].Reason)
	require.Equal(t, "a-b/c", problems[0].Object)
	require.Equal(t, ReasonLabelTooLong, problems[1].Reason)
}
