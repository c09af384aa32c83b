package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/api/v1alpha1"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ip       = netip.MustParseAddr
	noon     = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	families = []config.Family{config.IPv4Unicast, config.IPv6Unicast}
)

func host(s string) netip.Prefix { return netip.PrefixFrom(ip(s), ip(s).BitLen()) }

// pass is a pass of node a: red has two peers of which one is up, blue's VRF is missing, default has no peers.
func pass() (*plan.NodePlan, []cluster.Problem, []bgp.Session, Pass) {
	p := &plan.NodePlan{
		Node: "a",
		VRFs: []plan.VRF{{Name: "vrf-red", Table: 1001}},
		VLANs: []plan.VLAN{
			{Name: "red0", Parent: "bond0", ID: 1001, Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/24")}}, {Name: "red1", Parent: "bond0", ID: 1002},
		},
		Routes: sorted.Of(
			plan.Route{Table: 1001, Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHops: []plan.NextHop{{Gateway: ip("10.1.0.1"), Device: "red0"}}},
			plan.Route{Table: 1001, Dst: netip.MustParsePrefix("0.0.0.0/0"), Metric: 4278198272, Unreachable: true},
		),
		DataPlane: plan.DataPlane{Paths: []plan.Path{
			{ID: 1, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}, Table: 1001, Devices: []string{"red0", "red1", "vrf-red"}},
			{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "default"}, Table: 254},
			{ID: 3, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "blue"}},
			{ID: 4, Key: plan.PathKey{Kind: plan.PathSteer, Name: "b"}, Table: 7001},
		}},
		Speakers: []plan.Speaker{{
			Network: "red", Announce: sorted.Of([]plan.Announcement{
				{Prefix: host("203.0.113.10")}, {Prefix: host("203.0.113.11")}, {Prefix: host("203.0.113.13"), Standby: true}, {Prefix: host("2001:db8::10")},
			}...),
			Peers: []plan.Peer{
				{Peer: config.Peer{Address: ip("10.1.0.1")}, NextHop4: ip("10.1.0.2")}, // no next hop for IPv6
				{Peer: config.Peer{Interface: "red1"}},
			},
		}},
		Services: sorted.Of([]plan.Service{
			{
				Key: cluster.Key{Namespace: "shop", Name: "both"}, Network: "red", Host: "a", Standby: "b", Endpoints: 4, Local: 3,
				IngressIPs: []netip.Addr{ip("203.0.113.10"), ip("2001:db8::10")}, Announced: []netip.Addr{ip("203.0.113.10"), ip("2001:db8::10")},
			},
			{
				Key: cluster.Key{Namespace: "shop", Name: "fresh"}, Network: "red", Host: "a", Endpoints: 1,
				IngressIPs: []netip.Addr{ip("203.0.113.11")}, Announced: []netip.Addr{ip("203.0.113.11")},
			},
			{
				Key: cluster.Key{Namespace: "shop", Name: "lost"}, Network: "nowhere", Endpoints: 2,
				IngressIPs: []netip.Addr{ip("203.0.113.12")},
			},
			{
				Key: cluster.Key{Namespace: "shop", Name: "out"}, SourceIPBy: cluster.SourceIPByNetwork, Network: "blue", Host: cluster.AllHosts, Endpoints: 1,
			},
			{
				Key: cluster.Key{Namespace: "shop", Name: "spare"}, Network: "red", Host: "b", Standby: "a", Endpoints: 1,
				IngressIPs: []netip.Addr{ip("203.0.113.13")}, Announced: []netip.Addr{ip("203.0.113.13")},
			},
		}...),
	}
	problems := []cluster.Problem{
		{Kind: "Network", Object: "blue", Field: "vrf", Value: "vrf-blue", Reason: plan.ReasonVRFMissing, Message: "no such VRF device on node a"},
		{Kind: "EgressService", Object: "shop/lost", Field: "spec.network", Value: "nowhere", Reason: plan.ReasonNetworkNotFound, Message: "no such network", Where: "lost.yaml:4"},
		{Kind: "EgressService", Object: "shop/lost", Reason: cluster.ReasonNoEligibleNode, Message: "no node\tis eligible\x1b[31m"},
		{Kind: "EgressService", Object: "shop/broken", Reason: cluster.ReasonInvalidManifest, Message: "not readable"},
	}
	sessions := []bgp.Session{
		{
			Network: "red", Peer: "10.1.0.1", Address: ip("10.1.0.1"), ASN: 64601, State: bgp.StateEstablished, Up: true,
			Since: noon.Add(-90 * time.Minute), Families: families, Received: 3, Accepted: 1, Announced: 2, BFD: "up",
		},
		{Network: "red", Peer: "red1", State: bgp.StateWaiting, Since: noon.Add(-50 * time.Hour), LastError: "no neighbour seen"},
	}
	return p, problems, sessions, Pass{
		Began: noon.Add(-12 * time.Millisecond), Ended: noon, InForce: true, ConnectionsEnded: 7,
		Announced: map[string][]netip.Prefix{"red": {host("203.0.113.10"), host("203.0.113.13"), host("2001:db8::10")}}, // 203.0.113.11 waits for the kernel
	}
}

// publish publishes a report as the pass would that it tells of.
func publish(s *Status, r Report) {
	p := Pass{Began: r.Applied.Add(-r.Duration), Ended: r.Applied, ConnectionsEnded: r.ConnectionsEnded}
	for _, e := range r.Errors {
		p.Err = errors.Join(p.Err, errors.New(e))
	}
	s.Publish(p, func() Report { return r })
}

func TestFrom(t *testing.T) {
	r := From(pass())
	require.True(t, r.Ready)
	require.Equal(t, 12*time.Millisecond, r.Duration)
	require.Equal(t, noon, r.Applied)
	require.Equal(t, []Network{
		{Name: "blue", Lacks: "it has no path"},
		{Name: "default", Table: 254, Usable: true},
		{Name: "red", VRF: "vrf-red", Table: 1001, Usable: true, Learned: 1, Sessions: 2, SessionsUp: 1},
	}, r.Networks)
	require.Equal(t, []VLAN{
		{Name: "red0", Network: "red", ID: 1001, Parent: "bond0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/24")}},
		{Name: "red1", Network: "red", ID: 1002, Parent: "bond0", Addresses: []netip.Prefix{}},
	}, r.VLANs)
	require.Len(t, r.Services, 5)
	both, fresh, lost, out := r.Services[0], r.Services[1], r.Services[2], r.Services[3]
	require.Equal(t, []netip.Addr{ip("203.0.113.10")}, both.Announced, "no peer that is up has a next hop for the other")
	require.Equal(t, cluster.SourceIPByLoadBalancer, both.SourceIPBy)
	require.Empty(t, fresh.Announced, "not announced yet")
	require.Len(t, lost.Problems, 2)
	require.Equal(t, cluster.SourceIPByNetwork, out.SourceIPBy)
	require.Len(t, r.Problems, 4)
	require.Equal(t, "red1", r.Sessions[1].Peer)
}

// TestHeldDown expects a network in which announcements are held down to be shown, and services there of which the node is host or standby.
func TestHeldDown(t *testing.T) {
	p, problems, sessions, at := pass()
	p.HeldDown, at.Announced = []string{"red"}, nil
	r := From(p, problems, sessions, at)
	r.Node = "a"
	for _, n := range r.Networks {
		require.Equal(t, n.Name == "red", n.HeldDown, n.Name)
	}
	for _, wide := range []bool{false, true} {
		var out bytes.Buffer
		require.NoError(t, WriteText(&out, r, wide, noon))
		require.Equal(t, 3, strings.Count(out.String(), "held down"), out.String())
	}
}

func TestFromNothingKnown(t *testing.T) {
	r := From(nil, nil, nil, Pass{Err: errors.Join(errors.New("one"), fmt.Errorf("two: %w", errors.Join(errors.New("x"), errors.New("y"))), fmt.Errorf("%w and %w", io.EOF, io.EOF))})
	require.Equal(t, []string{"one", "two: x\ny", "EOF and EOF"}, r.Errors)
	b, err := json.Marshal(r)
	require.NoError(t, err)
	require.NotContains(t, string(b), "null", "lists are there even when they are empty")
}

func TestAnnouncedNeedsASession(t *testing.T) {
	p, problems, sessions, done := pass()
	sessions[0].Up, sessions[0].State = false, "active"
	require.Empty(t, From(p, problems, sessions, done).Services[0].Announced)
	sessions[1] = bgp.Session{Network: "red", Peer: "red1", Up: true, Announced: 2, Families: families}
	require.Len(t, From(p, problems, sessions, done).Services[0].Announced, 2, "a link-local next hop serves both families")
	sessions[1].Announced = 0
	require.Empty(t, From(p, problems, sessions, done).Services[0].Announced)
}

// TestAnnouncedInSentFamilies expects the families that the speaker sends to count, where it reports them: an unnumbered peer without
// extended next hops gets no IPv4.
func TestAnnouncedInSentFamilies(t *testing.T) {
	p, problems, sessions, done := pass()
	sessions[0].Up = false
	sessions[1].Up, sessions[1].Announced, sessions[1].Families = true, 1, families
	sessions[1].Sent = families[1:]
	require.Equal(t, []netip.Addr{ip("2001:db8::10")}, From(p, problems, sessions, done).Services[0].Announced)
	sessions[1].Sent = families
	require.Len(t, From(p, problems, sessions, done).Services[0].Announced, 2)
}

func TestReportSurvivesJSON(t *testing.T) {
	r := From(pass())
	b, err := json.Marshal(r)
	require.NoError(t, err)
	var back Report
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, r, back)
}

func TestWriteText(t *testing.T) {
	r := From(pass())
	r.Node, r.Version, r.Started = "a", "v0.1.0", noon.Add(-72*time.Hour)
	failed := r
	failed.Ready, failed.ConfigStale, failed.Errors = false, true, []string{"add rule 701: operation not permitted"}
	for name, c := range map[string]struct {
		report Report
		wide   bool
	}{
		"table":     {r, false},
		"wide":      {r, true},
		"failed":    {failed, false},
		"empty":     {Report{Node: "a", Started: noon}, true},
		"unknowing": {Report{Node: "a", Started: noon, Applied: noon.Add(time.Second), Unknowing: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, WriteText(&out, c.report, c.wide, noon.Add(3*time.Second)))
			golden(t, name+".txt", out.String())
		})
	}
}

// TestUnknowing: a daemon that does not know all objects yet does not claim that its node serves none, also before its first pass.
func TestUnknowing(t *testing.T) {
	r := From(nil, nil, nil, Pass{Ended: noon, Unknowing: true})
	require.True(t, r.Summary().Unknowing)
	require.True(t, New("", "a").Report().Unknowing)
	for _, unready := range []string{"not all objects are known yet", ""} { // a newer report may say that the node is ready
		state := r.nodeState(unready, nil)
		require.Len(t, state.Conditions, 1)
		require.Equal(t, metav1.ConditionFalse, state.Conditions[0].Status)
		require.Equal(t, v1alpha1.ReasonObjectsUnknown, state.Conditions[0].Reason)
	}
}

// golden compares text with a file, which UPDATE=1 writes.
func golden(t *testing.T, name, text string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}
