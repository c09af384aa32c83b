package kube

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/egressway/egressway/internal/cluster"
)

// TestOldReports lists Leases of which some had expired by the clock: their reports are old until their nodes renew them.
func TestOldReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		woken := 0
		r := &reports{gap: 30 * time.Second, wake: func() { woken++ }, gone: func(string) {}}
		lease := func(node string, version int, ago time.Duration) *coordinationv1.Lease {
			l := leaseOf(node, version, `{}`)
			l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(-ago)}
			return l
		}
		old := func() (names string) {
			all, _ := r.living()
			for _, name := range []string{"a", "b", "c"} {
				if all[name].Old {
					names += name
				}
			}
			return names
		}
		r.listed([]*coordinationv1.Lease{lease("a", 1, time.Minute), lease("b", 2, time.Hour), lease("c", 3, time.Hour)})
		require.Equal(t, "bc", old())
		woken = 0
		r.changed(lease("c", 4, time.Hour)) // its clock is wrong
		require.Equal(t, "b", old())
		require.Equal(t, 1, woken)
		r.changed(lease("a", 5, 0))
		require.Equal(t, 1, woken)
		r.listed([]*coordinationv1.Lease{lease("a", 5, 0), lease("b", 2, time.Hour), lease("c", 4, time.Hour)})
		require.Equal(t, "b", old())
	})
}

// leaseOf returns a version of a node's Lease, with the times of a wrong clock.
func leaseOf(node string, version int, report string) *coordinationv1.Lease {
	lasts, long := int32(60), metav1.NewMicroTime(time.Unix(int64(version), 0))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: reportName(node), ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{annotationReport: report},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &lasts, RenewTime: &long},
	}
}

func TestNodesAreJudgedByTheLeadersClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		woken := 0
		r := &reports{gap: 30 * time.Second, wake: func() { woken++ }, gone: func(string) {}}
		living := func() (names string) {
			all, _ := r.living()
			for _, name := range []string{"a", "b", "c"} {
				if _, ok := all[name]; ok {
					names += name
				}
			}
			return names
		}
		version := 10
		beats := func(seconds int, nodes ...string) {
			for range seconds / 20 {
				pass(20 * time.Second)
				for _, node := range nodes {
					version++
					r.changed(leaseOf(node, version, `{}`))
				}
			}
		}

		_, known := r.living()
		require.False(t, known)
		r.listed([]*coordinationv1.Lease{leaseOf("a", 1, `{}`), leaseOf("b", 2, `{}`), leaseOf("c", 3, `{"applied":5}`)})
		require.Equal(t, "abc", living())
		all, _ := r.living()
		require.Equal(t, cluster.Report{Applied: 5, Old: true}, all["c"])

		// c is silent while others renew.
		beats(40, "a", "b")
		require.Equal(t, "abc", living())
		r.deleted(leaseOf("b", 4, `{}`)) // by mistake
		require.Equal(t, "abc", living())
		woken = 0
		beats(20, "a", "b")
		require.Equal(t, "ab", living())
		require.Equal(t, 1, woken, "for c only: renewals are no news")

		// It comes back.
		beats(20, "a", "b", "c")
		require.Equal(t, "abc", living())

		// The watch is silent for long, then delivers again: every node gets its whole time.
		pass(10 * time.Minute)
		require.Equal(t, "abc", living())
		beats(40, "a")
		require.Equal(t, "abc", living())
		beats(40, "a")
		require.Equal(t, "a", living())

		// The same after a list, also for a node that is not in it.
		beats(20, "a", "b")
		pass(time.Hour)
		r.listed([]*coordinationv1.Lease{leaseOf("a", version, `{}`)})
		require.Equal(t, "ab", living())
		beats(60, "a")
		require.Equal(t, "a", living())

		// A Lease without a report is ignored.
		forged, empty := leaseOf("b", version+1, `{}`), leaseOf("b", version+1, `{}`)
		forged.Name, empty.Spec = "egressway", coordinationv1.LeaseSpec{}
		for _, l := range []*coordinationv1.Lease{forged, empty, leaseOf("b", version+1, "none")} {
			r.changed(l)
			require.Equal(t, "a", living())
		}
	})
}

func TestReportName(t *testing.T) {
	require.Equal(t, "node.a.example", reportName("a.example"))
	long, other := strings.Repeat("a", 253), strings.Repeat("a", 252)+"b"
	require.NotEqual(t, reportName(long), reportName(other))
	require.Empty(t, validation.IsDNS1123Subdomain(reportName(long)))
}

func TestLeaseIsJudgedByTheOwnClock(t *testing.T) {
	const spread = time.Second
	synctest.Test(t, func(t *testing.T) {
		var s sighting
		vacant := func() chan bool {
			answer := make(chan bool, 1)
			go func() { answer <- s.vacant(t.Context(), spread) }()
			synctest.Wait()
			return answer
		}
		hold := func(holder string, renewed int64) []byte {
			lasts, at := int32(15), metav1.NewMicroTime(time.Unix(renewed, 0))
			l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &lasts, RenewTime: &at}}
			s.observe(l)
			raw, err := json.Marshal(resourcelock.LeaseSpecToLeaderElectionRecord(&l.Spec)) // as the elector's lock does
			require.NoError(t, err)
			return raw
		}

		answer := vacant()
		pass(time.Hour)
		require.Empty(t, answer, "nothing is known yet")
		s.observe(nil)
		pass(spread)
		require.True(t, <-answer, "there is no Lease")

		hold("other", 1)
		answer = vacant()
		for i := range int64(100) {
			pass(14 * time.Second)
			require.False(t, s.expired(hold("other", i)))
		}
		require.Empty(t, answer, "it is renewed, whatever the holder's clock says")
		pass(14 * time.Second)
		s.observe(nil)
		raw := hold("other", 7)
		s.awaitOther(t.Context(), "mine")
		pass(14 * time.Second)
		require.Empty(t, answer)
		pass(time.Second + spread)
		require.True(t, <-answer, "it was not renewed")
		require.True(t, s.expired(raw))
		require.False(t, s.expired(append(raw, ' ')), "another record")

		hold("other", 8)
		answer = vacant()
		hold("", 9)
		pass(spread)
		require.True(t, <-answer, "it was given back")
	})
}

func TestTakenByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sighting
		ended := make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		watch := func() { s.awaitOther(ctx, "mine"); ended <- struct{}{} }
		observe := func(holder string) {
			lasts := int32(15)
			s.observe(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &lasts}})
			synctest.Wait()
		}
		observe("other")
		pass(15 * time.Second)
		go watch()
		observe("mine")
		observe("")
		require.Empty(t, ended)
		observe("another")
		<-ended
		observe("mine")
		go watch()
		synctest.Wait()
		cancel()
		<-ended
	})
}

// pass advances a test's own clock.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // passes at once under synctest
	synctest.Wait()
}
