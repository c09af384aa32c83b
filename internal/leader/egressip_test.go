package leader

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube"
	"github.com/egressway/egressway/internal/config"
)

// ipsStage is a leader with an EgressIP of two addresses, and three nodes of which b and c may be hosts.
type ipsStage struct {
	*recorder
	*Leader
	config  *config.Config
	objects cluster.Objects
	version uint64
	now     time.Time
}

var teamKey = cluster.Key{Name: "team"}

func newIPsStage() *ipsStage {
	s := &ipsStage{recorder: &recorder{leads: true, reports: map[string]cluster.Report{}}, config: config.Defaults(), now: time.Now()}
	s.config.Networks = append(s.config.Networks, config.Network{Name: "red", EgressIPs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
	s.Leader = New(s.recorder)
	nodes := map[string]cluster.Node{"a": {Ready: true}}
	for _, name := range []string{"b", "c"} {
		nodes[name] = cluster.Node{Ready: true, Labels: map[string]string{cluster.LabelAssignable: ""}}
	}
	for name := range nodes {
		fit := cluster.NetworkState{Usable: true, IPv4: true, IPv6: true}
		s.recorder.reports[name] = cluster.Report{Networks: map[string]cluster.NetworkState{"default": fit, "red": fit}}
	}
	s.objects.Nodes = cluster.MapOf(nodes)
	s.set(cluster.EgressIP{
		UID: "1", Spec: 7, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.33"), netip.MustParseAddr("192.0.2.34")}, IPv4: true,
		Namespaces: labels.Everything(), Pods: labels.Everything(),
	})
	return s
}

// set replaces the EgressIP, as a watch would.
func (s *ipsStage) set(e cluster.EgressIP) {
	s.version++
	e.Version = s.version
	s.objects.EgressIPs = s.objects.EgressIPs.With(teamKey, e)
}

// elect elects, and stores what is written. It returns the status.
func (s *ipsStage) elect(t *testing.T, problems ...cluster.Problem) kube.WantedItems {
	t.Helper()
	s.now = s.now.Add(time.Second)
	s.Submit(Input{Config: s.config, Objects: s.objects, Changed: cluster.Everything(), Problems: problems})
	s.consider(s.now, false)
	require.NotEmpty(t, s.items)
	w := s.items[len(s.items)-1][teamKey]
	e := s.objects.EgressIPs.At(teamKey)
	e.Holders, e.Conditions = w.Items, w.Conditions
	s.set(e)
	return w
}

// inForce has nodes report everything as in force.
func (s *ipsStage) inForce(nodes ...string) {
	for _, name := range nodes {
		r := s.recorder.reports[name]
		r.AppliedIPs = s.version
		s.recorder.reports[name] = r
	}
}

func isTrue(w kube.WantedItems, kind string) bool {
	return meta.IsStatusConditionTrue(w.Conditions, kind)
}

// TestItems elects hosts and standbys for the addresses of an EgressIP.
func TestItems(t *testing.T) {
	s := newIPsStage()
	w := s.elect(t)
	require.Len(t, w.Items, 2)
	require.ElementsMatch(t, []string{"b", "c"}, []string{w.Items[0].Host, w.Items[1].Host}, "apart")
	require.ElementsMatch(t, []string{"b", "c"}, []string{w.Items[0].Standby, w.Items[1].Standby})
	require.Equal(t, []int64{1, 1}, []int64{w.Items[0].Term, w.Items[1].Term})
	require.True(t, isTrue(w, "Assigned"))
	require.False(t, isTrue(w, "Programmed"), "no node has reported it")
	require.True(t, isTrue(w, "Valid"))
	require.Empty(t, w.Events)
	s.elect(t)
	s.inForce("b", "c")
	require.True(t, isTrue(s.elect(t), "Programmed"))
	require.False(t, isTrue(s.elect(t, cluster.Problem{
		Kind: "EgressIP", Object: "team", Field: "spec.egressIPs", Value: "192.0.2.33", Reason: cluster.ReasonAddressConflict, Message: "belongs to another",
	}), "Programmed"), "its host refuses it")

	// A node that is cordoned hands over to the other once that one serves the object as it is now.
	e := s.objects.EgressIPs.At(teamKey)
	e.Spec = 8
	s.set(e)
	host, other := w.Items[0].Host, w.Items[0].Standby
	n := s.objects.Nodes.At(host)
	n.Cordoned = true
	s.objects.Nodes = s.objects.Nodes.With(host, n)
	w = s.elect(t)
	require.Equal(t, []string{host, other}, []string{w.Items[0].Host, w.Items[0].Standby})
	s.inForce("b", "c")
	w = s.elect(t)
	require.Equal(t, other, w.Items[0].Host)
	require.EqualValues(t, 2, w.Items[0].Term)
	require.Equal(t, host, w.Items[0].Standby, "it stays for its flows")

	// The session of the network decides, not that of others.
	for name, r := range s.recorder.reports {
		if name == other {
			r.Networks = map[string]cluster.NetworkState{"default": r.Networks["default"], "red": {Usable: true, Sessions: 1, IPv4: true}}
			s.recorder.reports[name] = r
		}
	}
	s.elect(t)
	s.now = s.now.Add(time.Minute)
	w = s.elect(t)
	require.Equal(t, []string{host, host}, []string{w.Items[0].Host, w.Items[1].Host})
}

// TestItemsStayInANewNetwork adds a network whose egressIPs hold addresses in use. The leader's node reads the new file first; the hosts
// and standbys stay until their own reports say whether they have the network.
func TestItemsStayInANewNetwork(t *testing.T) {
	s := newIPsStage()
	with := s.config
	s.config = config.Defaults()
	fit := s.recorder.reports["a"].Networks["default"]
	reads := func(node string, red cluster.NetworkState) {
		r := s.recorder.reports[node]
		r.Networks = map[string]cluster.NetworkState{"default": fit, "red": red}
		s.recorder.reports[node] = r
	}
	for name, r := range s.recorder.reports {
		r.Networks = map[string]cluster.NetworkState{"default": fit}
		s.recorder.reports[name] = r
	}
	s.elect(t)
	s.inForce("b", "c")
	before := s.elect(t).Items
	require.Len(t, before, 2)

	s.config = with
	require.Equal(t, before, s.elect(t).Items, "no node has the file but the leader's")
	reads("a", fit)
	s.now = s.now.Add(30 * time.Second)
	w := s.elect(t)
	require.Equal(t, before, w.Items)
	require.True(t, isTrue(w, "Assigned"))
	reads("b", fit)
	require.Equal(t, before, s.elect(t).Items, "another node has it")
	reads("c", cluster.NetworkState{})
	s.elect(t)
	s.now = s.now.Add(time.Minute)
	for _, item := range s.elect(t).Items {
		require.Equal(t, []string{"b", ""}, []string{item.Host, item.Standby}, "node c lacks the network")
	}
}

// TestItemsStayApart has the hosts of two addresses fail and come back, one after another: each time another node is free, so the
// addresses never meet on one.
func TestItemsStayApart(t *testing.T) {
	s := newIPsStage()
	s.config.Moves.KeepFlows = 0
	label := s.objects.Nodes.At("a")
	label.Labels = map[string]string{cluster.LabelAssignable: ""}
	s.objects.Nodes = s.objects.Nodes.With("a", label)
	settles := func(when string) []cluster.Holder {
		for range 4 {
			s.elect(t)
			s.inForce(slices.Collect(maps.Keys(s.recorder.reports))...)
		}
		items := s.elect(t).Items
		require.Len(t, items, 2, when)
		require.NotEqual(t, items[0].Host, items[1].Host, "%s: %v", when, items)
		return items
	}
	items := settles("at the start")
	for i := range 6 {
		node := items[i%2].Host
		report := s.recorder.reports[node]
		delete(s.recorder.reports, node)
		ready := func(is bool) {
			n := s.objects.Nodes.At(node)
			n.Ready = is
			s.objects.Nodes = s.objects.Nodes.With(node, n)
		}
		ready(false)
		settles(node + " fails")
		ready(true)
		s.recorder.reports[node] = report
		items = settles(node + " is back")
	}
}

// TestItemEvents finds that each new reason has one Event, and that a new leader does not repeat it.
func TestItemEvents(t *testing.T) {
	s := newIPsStage()
	s.elect(t)
	bad := cluster.Problem{Kind: "EgressIP", Object: "team", Field: "spec.egressIPs[2]", Value: "x", Reason: cluster.ReasonInvalidAddress, Message: "not an IP address"}
	conflict := cluster.Problem{Kind: "EgressIP", Object: "team", Field: "spec.podSelector", Reason: "PodConflict", Message: "pod is selected by another"}
	reasons := func(w kube.WantedItems) (all []string) {
		for _, e := range w.Events {
			require.True(t, e.Warning)
			all = append(all, e.Reason)
		}
		return all
	}
	w := s.elect(t, bad, conflict)
	require.Equal(t, []string{"InvalidEgressIP", "UndefinedRequest"}, reasons(w))
	require.False(t, isTrue(w, "Valid"))
	require.Empty(t, s.elect(t, bad, conflict).Events)
	s.recorder.leads = false
	s.consider(s.now, false)
	s.recorder.leads = true
	require.Empty(t, s.elect(t, bad, conflict).Events, "a new leader")

	for _, name := range []string{"b", "c"} {
		n := s.objects.Nodes.At(name)
		n.Labels = nil
		s.objects.Nodes = s.objects.Nodes.With(name, n)
	}
	w = s.elect(t, bad, conflict)
	require.Equal(t, []string{"NoMatchingNodeFound", "NoMatchingNodeFound"}, reasons(w))
	require.True(t, anyAssignable(cluster.Objects{Nodes: cluster.MapOf(map[string]cluster.Node{
		"a": {Labels: map[string]string{cluster.LabelAssignable: ""}},
	})}, map[string]cluster.Report{"a": {}}), "a node that is not Ready and reports")
	require.Empty(t, w.Items)
	require.False(t, isTrue(w, "Assigned"))
	require.Equal(t, "NoHost", meta.FindStatusCondition(w.Conditions, "Programmed").Reason)
	require.Equal(t, metav1.ConditionFalse, meta.FindStatusCondition(w.Conditions, "Assigned").Status)
}

// TestLooksForAnotherCRD finds that a leader writes again now and then while a CRD drops fields, without any change.
func TestLooksForAnotherCRD(t *testing.T) {
	for _, of := range []struct {
		name    string
		prunes  bool
		earlier bool // the CRD of EgressServices is an earlier one of ours
	}{
		{"ours", false, false},
		{"OVN-Kubernetes'", true, false},
		{"an earlier one", false, true},
	} {
		s, drops := newIPsStage(), of.prunes || of.earlier
		s.prunes, s.recorder.drops = of.prunes, map[cluster.Kind]bool{cluster.KindEgressService: of.earlier}
		for range 3 {
			s.elect(t)
			s.inForce("b", "c")
		}
		s.Submit(Input{Config: s.config, Objects: s.objects})
		s.consider(s.now.Add(2*time.Second), false)
		writes := len(s.items)
		s.Submit(Input{Config: s.config, Objects: s.objects})
		wait := s.consider(s.now.Add(5*time.Second), false)
		require.Len(t, s.items, writes)
		require.Equal(t, drops, wait > 0 && wait <= lookAgain, "%s: no pass need come: the next look is after %v", of.name, wait)
		s.consider(s.now.Add(lookAgain+10*time.Second), false)
		require.Equal(t, drops, len(s.items) > writes, of.name)
	}
}
