package leader

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
)

var web = cluster.Key{Namespace: "shop", Name: "web"}

func as(host, standby string) cluster.Status { return cluster.Status{Host: host, Standby: standby} }

func TestFormerHostIsRemembered(t *testing.T) {
	l := &term{decided: map[cluster.Key]decision{}}
	object := cluster.EgressService{UID: "1", Status: as("a", "b")}
	decide := func(s cluster.Status) decision {
		l.decide(web, object, s)
		return l.decided[web]
	}
	first := decide(as("a", "b"))
	require.Equal(t, "b", first.former, "a leader that begins does not know")
	require.Equal(t, first, decide(as("a", "b")), "it is decided once")
	require.Empty(t, decide(as("a", "c")).former)
	require.Equal(t, "a", decide(as("c", "a")).former)
	require.Empty(t, decide(as("c", "")).former)
	require.Equal(t, "c", decide(as("", "")).former)

	l.decided = map[cluster.Key]decision{}
	require.Equal(t, "a", decide(as("b", "a")).former, "it was the host by what the object said")
}

// A move is impatient when it takes long, not when there was none for long.
func TestPatienceBeginsWithTheMove(t *testing.T) {
	d := decision{status: as("a", "b"), began: time.Now().Add(-time.Hour)}
	d.want("a")
	require.Zero(t, d.moving)
	d.want("c")
	began := d.moving
	require.NotZero(t, began)
	d.want("b")
	require.Equal(t, began, d.moving)

	l := &term{decided: map[cluster.Key]decision{web: d}}
	l.decide(web, cluster.EgressService{}, as("a", "c"))
	d = l.decided[web]
	require.Equal(t, began, d.moving, "a step of it is no new move")
	d.want("a")
	require.Zero(t, d.moving)
}

// What is in force stays so when another daemon begins to lead: else each status would be written twice, at every restart of a leader.
func TestLeaderBegins(t *testing.T) {
	object := cluster.EgressService{UID: "1", Version: 7, Status: as("a", "b")}
	in := Input{Config: &config.Config{}, Objects: cluster.Objects{EgressServices: cluster.MapOf(map[cluster.Key]cluster.EgressService{web: object})}}
	choices := map[election.Seat]election.Choice{election.ServiceSeat(web): {Host: "a", Standby: "b", Serves: []string{"a", "b"}}}
	for applied, want := range map[uint64]metav1.ConditionStatus{6: metav1.ConditionFalse, 7: metav1.ConditionTrue, 8: metav1.ConditionTrue} {
		l := &term{decided: map[cluster.Key]decision{}}
		got := l.elect(kube.New(slog.New(slog.DiscardHandler), kube.Options{}, func() {}), in, in.Objects, map[string]cluster.Report{"a": {Applied: applied}}, choices)
		require.Equal(t, want, meta.FindStatusCondition(got[web].Status.Conditions, election.ConditionProgrammed).Status, applied)
	}
}

// When etcd is restored from a backup, versions fall. The host reports those that it finds then.
func TestVersionsFall(t *testing.T) {
	object := cluster.EgressService{UID: "1", Version: 5000, Status: as("a", "b")}
	l := &term{decided: map[cluster.Key]decision{}}
	choices := map[election.Seat]election.Choice{election.ServiceSeat(web): {Host: "a", Standby: "b", Serves: []string{"a", "b"}}}
	inForce := func(applied uint64) bool {
		in := Input{Config: &config.Config{}, Objects: cluster.Objects{
			EgressServices: cluster.MapOf(map[cluster.Key]cluster.EgressService{web: object}),
		}}
		decided := in.Objects
		decided.EgressServices = l.withDecisions(in.Objects)
		api := kube.New(slog.New(slog.DiscardHandler), kube.Options{}, func() {})
		got := l.elect(api, in, decided, map[string]cluster.Report{"a": {Applied: applied}}, choices)[web].Status
		return meta.IsStatusConditionTrue(got.Conditions, election.ConditionProgrammed)
	}
	require.True(t, inForce(5000))
	require.True(t, inForce(5000), "as decided before")
	object.Version = 1000
	require.False(t, inForce(999))
	require.True(t, inForce(1000))
	object.Version, object.Status = 900, as("c", "a")
	require.False(t, inForce(1000), "a backup of an older decision: the leader has to write its own again")
	object.Version, object.Status = 901, as("a", "b")
	require.False(t, inForce(900))
	require.True(t, inForce(901))
}

// A host that serves the former ingress IPs of an EgressService does not serve the next ones: its report has to be about the status that
// names them.
func TestOtherIngressIPsAreNotInForceYet(t *testing.T) {
	ingress := "192.0.2.1"
	object := cluster.EgressService{UID: "1", Version: 7, Status: as("a", "b")}
	object.Status.IngressIPs = []string{ingress}
	l := &term{decided: map[cluster.Key]decision{}}
	choices := map[election.Seat]election.Choice{election.ServiceSeat(web): {Host: "a", Standby: "b", Serves: []string{"a", "b"}}}
	inForce := func(applied uint64) bool {
		in := Input{Config: &config.Config{}, Objects: cluster.Objects{
			EgressServices: cluster.MapOf(map[cluster.Key]cluster.EgressService{web: object}),
			Services:       cluster.MapOf(map[cluster.Key]cluster.Service{web: {Ingress: []cluster.Ingress{{IP: ingress}}}}),
		}}
		decided := in.Objects
		decided.EgressServices = l.withDecisions(in.Objects)
		api := kube.New(slog.New(slog.DiscardHandler), kube.Options{}, func() {})
		got := l.elect(api, in, decided, map[string]cluster.Report{"a": {Applied: applied}}, choices)[web].Status
		require.Equal(t, []string{ingress}, got.IngressIPs)
		return meta.IsStatusConditionTrue(got.Conditions, election.ConditionProgrammed)
	}
	require.True(t, inForce(7))
	require.True(t, inForce(7), "as decided before")

	ingress = "192.0.2.2"
	require.False(t, inForce(7), "the status has yet to name it")
	object.Version, object.Status.IngressIPs = 9, []string{ingress}
	require.False(t, inForce(8))
	require.True(t, inForce(9))
	object.Version = 10
	require.True(t, inForce(9), "of conditions only")

	object.Version, object.Status.IngressIPs = 11, nil
	require.False(t, inForce(10))
	require.True(t, inForce(11), "an earlier CRD keeps no ingress IPs")
}
