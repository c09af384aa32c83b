package leader

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// wall is an EgressFirewall, and the reports of nodes, as a leader sees them.
type wall struct {
	texts[cluster.EgressFirewall]
	api     recorder
	in      Input
	reports map[string]cluster.Report
	now     time.Time
	wait    time.Duration // until it should be considered again
}

var shopWall = cluster.Key{Namespace: "shop", Name: "default"}

func (w *wall) set(generation int64) {
	w.in.Objects.EgressFirewalls = w.in.Objects.EgressFirewalls.With(shopWall,
		cluster.EgressFirewall{Meta: cluster.Meta{UID: "1", Generation: generation}})
}

// report has nodes report all present objects as in force, and pods of namespaces.
func (w *wall) report(node string, namespaces ...string) {
	w.reports[node] = cluster.Report{EgressFirewalls: cluster.Revisions(w.in.Objects.EgressFirewalls), Firewalled: namespaces}
}

// after returns the status that is wanted after some more time.
func (w *wall) after(wait time.Duration) cluster.TextStatus {
	w.now = w.now.Add(wait)
	w.wait = w.consider(&w.api, egressFirewalls, w.in, w.reports, w.now)
	return w.api.texts[shopWall]
}

func newWall() *wall {
	return &wall{in: Input{Config: &config.Config{}}, reports: map[string]cluster.Report{"a": {}, "b": {}, "c": {}}, now: time.Now()}
}

const firewallText, firewallOtherwise = "EgressFirewall Rules applied", "EgressFirewall Rules not correctly applied"

// TestEgressFirewallStatus follows the status of an EgressFirewall, and the nodes that its messages name.
func TestEgressFirewallStatus(t *testing.T) {
	w := newWall()
	require.Empty(t, w.after(detailsEvery))
	require.Zero(t, w.api.written, "without an EgressFirewall there is nothing to write")
	w.set(1)
	s := w.after(detailsEvery)
	require.Equal(t, firewallOtherwise, s.Text)
	require.Equal(t, []string{
		"a: " + firewallOtherwise + ": not in force yet", "b: " + firewallOtherwise + ": not in force yet",
		"c: " + firewallOtherwise + ": not in force yet",
	}, s.Messages)
	w.report("a", "media", "shop")
	w.report("b")
	s = w.after(detailsEvery)
	require.Equal(t, []string{"c: " + firewallOtherwise + ": not in force yet", "a: " + firewallText}, s.Messages)
	require.Equal(t, "not in force yet on c", meta.FindStatusCondition(s.Conditions, "Programmed").Message)
	w.report("c", "shop")
	s = w.after(0)
	require.Equal(t, firewallText, s.Text)
	require.Equal(t, []string{"a: " + firewallText, "c: " + firewallText}, s.Messages)
	require.Equal(t, []metav1.Condition{
		{Type: "Programmed", Status: metav1.ConditionTrue, Reason: "Applied", Message: "in force on all nodes that report", ObservedGeneration: 1},
		{Type: "Valid", Status: metav1.ConditionTrue, Reason: "Valid", Message: "all rules can be used", ObservedGeneration: 1},
	}, s.Conditions)

	w.in.Problems = []cluster.Problem{
		{Kind: "EgressQoS", Object: "shop/default", Field: "spec", Reason: cluster.ReasonInvalidValue, Message: "another kind"},
		{Kind: "EgressFirewall", Object: "shop/default", Field: "spec.egress[1].to", Reason: cluster.ReasonInvalidAddress, Message: "no"},
		{Kind: "EgressFirewall", Object: "shop/default", Field: "spec.egress[2].to", Reason: cluster.ReasonInvalidValue, Message: "neither"},
	}
	s = w.after(0)
	require.Equal(t, firewallOtherwise, s.Text)
	require.Equal(t, "a: "+firewallOtherwise+": spec.egress[1].to: no and 1 more faults", s.Messages[0])
	require.Equal(t, metav1.ConditionTrue, meta.FindStatusCondition(s.Conditions, "Programmed").Status, "by the strictest reading")
	valid := meta.FindStatusCondition(s.Conditions, "Valid")
	require.Equal(t, metav1.ConditionFalse, valid.Status)
	require.Equal(t, "spec.egress[1].to: no, spec.egress[2].to: neither", valid.Message)
	w.in.Problems = nil
	require.Equal(t, firewallText, w.after(0).Text)

	for i := range 20 {
		w.report(fmt.Sprintf("n%02d", i), "shop")
	}
	s = w.after(detailsEvery)
	require.Equal(t, firewallText, s.Text)
	require.Len(t, s.Messages, namesMost+1)
	require.Equal(t, "n05: "+firewallText, s.Messages[namesMost-1])
	require.Equal(t, "and 14 more", s.Messages[namesMost])
}

// TestOldReportsDoNotDelay: a new leader does not wait for a node whose Lease expired long ago, which has an earlier revision in its report.
func TestOldReportsDoNotDelay(t *testing.T) {
	w := newWall()
	w.set(1)
	w.report("c", "shop")
	old := w.reports["c"]
	old.Old = true
	w.reports["c"] = old
	w.set(2)
	w.report("a")
	w.report("b")
	s := w.after(0)
	require.Equal(t, firewallText, s.Text)
	require.Empty(t, s.Messages)
	old.Old = false
	w.reports["c"] = old
	require.Equal(t, []string{"c: " + firewallOtherwise + ": not in force yet"}, w.after(0).Messages, "it has renewed its Lease")
}

// TestNewLeaderBelievesStatuses has another object change just before a term begins: the nodes' digests show no more which of the others
// they have in force. The status of such a one stays for a while, except where it was of an earlier generation or a node has none in force.
func TestNewLeaderBelievesStatuses(t *testing.T) {
	former := newWall()
	former.set(1)
	for _, node := range []string{"a", "b", "c"} {
		former.report(node)
	}
	status := former.after(0)
	require.Equal(t, firewallText, status.Text)

	begin := func(generation int64) *wall {
		w := newWall()
		w.reports = maps.Clone(former.reports)
		w.in.Objects.EgressFirewalls = cluster.MapOf(map[cluster.Key]cluster.EgressFirewall{
			shopWall:                              {Meta: cluster.Meta{UID: "1", Generation: generation, Status: status}},
			{Namespace: "other", Name: "default"}: {Meta: cluster.Meta{UID: "2", Generation: 1}},
		})
		return w
	}
	w := begin(1)
	require.Equal(t, status, w.after(0))
	require.Equal(t, believeFor, w.wait)
	require.Equal(t, firewallOtherwise, w.api.texts[cluster.Key{Namespace: "other", Name: "default"}].Text)
	w.report("a")
	require.Equal(t, status, w.after(believeFor-1))
	require.Equal(t, firewallOtherwise, w.after(w.wait).Text, "the others may have failed: no further report need come")
	require.Zero(t, w.wait)

	w = begin(1)
	for _, node := range []string{"a", "b", "c"} {
		w.report(node)
	}
	require.Equal(t, status, w.after(0))
	require.Zero(t, w.wait, "all have confirmed it")

	w = begin(1)
	w.reports["c"] = cluster.Report{}
	require.Equal(t, []string{"c: " + firewallOtherwise + ": not in force yet"}, w.after(0).Messages)
	require.Equal(t, firewallOtherwise, begin(2).after(0).Text)
}

// TestRewritesForAnotherCRD has a CRD drop parts of the statuses: they are written again now and then without any change, and at once
// when it keeps them.
func TestRewritesForAnotherCRD(t *testing.T) {
	w := newWall()
	w.set(1)
	w.after(0)
	require.Zero(t, w.wait)
	written := func(wait time.Duration) bool {
		before := w.api.written
		w.after(wait)
		return w.api.written > before
	}
	require.False(t, written(lookAgain))
	w.api.drops = map[cluster.Kind]bool{cluster.KindEgressFirewall: true}
	require.True(t, written(0))
	require.Equal(t, lookAgain, w.wait)
	require.False(t, written(lookAgain-time.Second))
	require.Equal(t, time.Second, w.wait)
	require.True(t, written(w.wait))
	w.api.drops = nil
	require.True(t, written(time.Second))
	require.Zero(t, w.wait)
	require.False(t, written(lookAgain))
}

// TestAPIServerIsDenied checks that a valid EgressFirewall which denies the API server says so, as soon as the server has another address.
func TestAPIServerIsDenied(t *testing.T) {
	w := newWall()
	deny := cluster.EgressFirewall{Rules: []cluster.FirewallRule{{Number: 1, Deny: true, To: netip.MustParsePrefix("10.0.0.0/24"), Text: "Deny 10.0.0.0/24"}}}
	w.in.Objects.EgressFirewalls = w.in.Objects.EgressFirewalls.With(shopWall, deny)
	for _, node := range []string{"a", "b", "c"} {
		w.report(node)
	}
	valid := func() *metav1.Condition {
		s := w.after(0)
		require.Equal(t, firewallText, s.Text)
		c := meta.FindStatusCondition(s.Conditions, "Valid")
		require.Equal(t, metav1.ConditionTrue, c.Status)
		return c
	}
	require.Equal(t, "all rules can be used", valid().Message)
	at := func(address string) {
		w.in.Objects.Endpoints = w.in.Objects.Endpoints.With(cluster.APIService, []cluster.Endpoint{{Address: address}})
	}
	at("10.0.0.11")
	require.Contains(t, valid().Message, "all rules can be used; denies the API server at 10.0.0.11, by rule 1 (Deny 10.0.0.0/24)")
	at("10.0.1.11")
	require.Equal(t, "all rules can be used", valid().Message)
}

// TestDetailsWait checks that nodes which follow one after another do not cost a write of each object, and that no verdict waits.
func TestDetailsWait(t *testing.T) {
	w := newWall()
	w.set(1)
	first := w.after(detailsEvery)
	w.report("a")
	require.NotEqual(t, first, w.after(detailsEvery), "the first detail in a while")
	second := w.after(0)
	w.report("b")
	require.Equal(t, second, w.after(time.Second), "another one waits")
	require.Equal(t, second, w.after(time.Second))
	require.Equal(t, detailsEvery-2*time.Second, w.wait)
	require.NotEqual(t, second, w.after(w.wait), "without a change meanwhile")
	require.Zero(t, w.wait)
	written := w.api.written
	w.after(detailsEvery)
	require.Equal(t, written, w.api.written)
	w.set(2)
	require.EqualValues(t, 2, w.after(0).Conditions[0].ObservedGeneration)
	for _, node := range []string{"a", "b", "c"} {
		w.report(node)
	}
	require.Equal(t, firewallText, w.after(0).Text)
	w.report("b", "shop")
	require.Equal(t, []string{"b: " + firewallText}, w.after(0).Messages, "the first detail in a while")
	w.report("c", "shop")
	require.Equal(t, []string{"b: " + firewallText}, w.after(time.Second).Messages)
	require.Equal(t, []string{"b: " + firewallText, "c: " + firewallText}, w.after(detailsEvery).Messages)
}
