package leader

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

// TestEgressQoSStatus follows the status of EgressQoSes: it is true only of revisions that all nodes report as in force.
func TestEgressQoSStatus(t *testing.T) {
	shop, media := cluster.Key{Namespace: "shop", Name: "default"}, cluster.Key{Namespace: "media", Name: "default"}
	var q texts[cluster.EgressQoS]
	api, in, now := &recorder{}, Input{}, time.Now()
	set := func(key cluster.Key, uid string, generation int64) {
		in.Objects.EgressQoSes = in.Objects.EgressQoSes.With(key, cluster.EgressQoS{Meta: cluster.Meta{UID: uid, Generation: generation}})
	}
	reports := map[string]cluster.Report{"a": {}, "b": {}}
	report := func(nodes ...string) {
		for _, n := range nodes {
			reports[n] = cluster.Report{EgressQoSes: cluster.Revisions(in.Objects.EgressQoSes)}
		}
	}
	// consider considers after a time in which details come up to date.
	consider := func() {
		now = now.Add(detailsEvery)
		q.consider(api, egressQoSes, in, reports, now)
	}
	// is considers, and checks which nodes are named as those where an object is not in force.
	is := func(key cluster.Key, behind ...string) {
		t.Helper()
		consider()
		s := api.texts[key]
		ready := meta.FindStatusCondition(s.Conditions, "Ready")
		require.Equal(t, len(behind) == 0, s.Text == "EgressQoS Rules applied", s)
		require.Equal(t, len(behind) == 0, ready.Status == metav1.ConditionTrue, s)
		require.Equal(t, in.Objects.EgressQoSes.At(key).Generation, ready.ObservedGeneration)
		var zones []string
		for _, c := range s.Conditions {
			if node, ok := cutZone(c.Type); ok {
				require.Equal(t, metav1.ConditionFalse, c.Status)
				zones = append(zones, node)
			}
		}
		require.Equal(t, behind, zones)
	}

	consider()
	require.Zero(t, api.written, "without an EgressQoS there is nothing to write")
	set(shop, "1", 1)
	is(shop, "a", "b")
	require.Equal(t, "EgressQoS Rules not correctly applied", api.texts[shop].Text)
	report("a")
	is(shop, "b")
	report("b")
	is(shop)
	writes := api.written
	consider()
	require.Equal(t, writes, api.written, "nothing has changed")

	set(media, "2", 1)
	is(media, "a", "b")
	is(shop) // which did not change
	report("a")
	set(media, "2", 2)
	is(media, "a", "b")
	report("a", "b")
	is(media)

	set(shop, "3", 1) // deleted, and made again
	is(shop, "a", "b")
	report("a", "b")
	is(shop)
	reports["c"] = cluster.Report{} // a new node
	is(shop, "c")
	delete(reports, "c")
	is(shop)

	in.Problems = []cluster.Problem{{Kind: "EgressQoS", Object: "shop/default", Field: "spec.egress[3].dstCIDR", Reason: cluster.ReasonInvalidAddress, Message: "no"}}
	consider()
	valid := meta.FindStatusCondition(api.texts[shop].Conditions, "Valid")
	require.Equal(t, metav1.ConditionFalse, valid.Status)
	require.Equal(t, "InvalidAddress", valid.Reason)
	require.Equal(t, "spec.egress[3].dstCIDR: no", valid.Message)
	require.Equal(t, "EgressQoS Rules not correctly applied", api.texts[shop].Text)
	is(media)
	in.Problems = []cluster.Problem{{Kind: "EgressQoS", Object: "shop/default", Field: "spec.egress[3].dstCIDR", Reason: cluster.ReasonHostBits, Message: "counts as 10.1.0.0/16"}}
	is(shop)
	valid = meta.FindStatusCondition(api.texts[shop].Conditions, "Valid")
	require.Equal(t, metav1.ConditionTrue, valid.Status, "the rule is in force")
	require.Equal(t, "all rules can be used; spec.egress[3].dstCIDR: counts as 10.1.0.0/16", valid.Message)
	in.Problems = nil

	for i := range 20 {
		reports[fmt.Sprintf("n%02d", i)] = cluster.Report{}
	}
	consider()
	require.Len(t, api.texts[shop].Conditions, 2+namesMost)
	require.Contains(t, meta.FindStatusCondition(api.texts[shop].Conditions, "Ready").Message, "n00, n01, n02, n03, n04, n05, n06, n07 and 12 more")
}

func cutZone(kind string) (node string, ok bool) {
	if len(kind) <= len(zoneReady) || kind[:len(zoneReady)] != zoneReady {
		return "", false
	}
	return kind[len(zoneReady):], true
}
