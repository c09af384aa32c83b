package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

func TestNetworkStates(t *testing.T) {
	c := &config.Config{Networks: []config.Network{
		{Name: "red", Peers: []config.Peer{{}, {}}},
		{Name: "green", Peers: []config.Peer{{}}},
		{Name: "blue"},
		{Name: "exhausted", Peers: []config.Peer{{}}}, // no path id is left for it
	}}
	path := func(id plan.PathID, name string, table uint32) plan.Path {
		return plan.Path{ID: id, Key: plan.PathKey{Kind: plan.PathNetwork, Name: name}, Table: table}
	}
	p := &plan.NodePlan{Absent: []plan.Absence{{Network: "away", Why: "VRF device vrf-away does not exist"}}, DataPlane: plan.DataPlane{Paths: []plan.Path{
		path(1, "red", 101), path(2, "green", 102), path(3, "blue", 103), path(4, "gone", 0), path(6, "away", 106),
		{ID: 5, Key: plan.PathKey{Kind: plan.PathSteer, Name: "red"}, Table: 105},
	}}}
	routed := map[uint32]plan.Families{101: {IPv4: true}, 103: {IPv4: true, IPv6: true}}
	for _, test := range []struct {
		up         []bool // sessions of red, in the order of its peers
		red        cluster.NetworkState
		incomplete bool
	}{
		{nil, cluster.NetworkState{Usable: true, IPv4: true, Sessions: 2}, true}, // its speaker did not start
		{[]bool{true, false}, cluster.NetworkState{Usable: true, IPv4: true, Sessions: 2, Up: 1}, true},
		{[]bool{true, true}, cluster.NetworkState{Usable: true, IPv4: true, Sessions: 2, Up: 2}, false},
	} {
		sessions := []bgp.Session{{Network: "green", Up: true}, {Network: "removed", Up: true}}
		for _, up := range test.up {
			sessions = append(sessions, bgp.Session{Network: "red", Up: up})
		}
		states, incomplete := networkStates(c, p, routed, sessions)
		require.Equal(t, map[string]cluster.NetworkState{
			"red":   test.red,
			"green": {Usable: true, Sessions: 1, Up: 1},
			"blue":  {Usable: true, IPv4: true, IPv6: true},
			"gone":  {},
			"away":  {}, // not eligible, although it has no peers

			"exhausted": {Sessions: 1}, "default": {}, // the leader waits for a state of each listed network
		}, states)
		require.False(t, states["away"].Fit())
		require.False(t, states["exhausted"].Fit())
		require.Equal(t, test.incomplete, incomplete)
		require.Equal(t, test.red.Up > 0, states["red"].Fit())
	}
}

func TestEveryPeer(t *testing.T) {
	c := &config.Config{Networks: []config.Network{
		{Name: "red", Peers: []config.Peer{{Address: netip.MustParseAddr("10.1.0.1"), ASN: 1}, {Interface: "eth2"}}},
		{Name: "blue", Peers: []config.Peer{{Address: netip.MustParseAddr("10.2.0.1"), ASN: 2}}},
	}}
	p := &plan.NodePlan{Absent: []plan.Absence{{Network: "blue", Why: "it is down"}}}
	known := []bgp.Session{{Network: "red", Peer: "10.1.0.1", Up: true}}
	require.Equal(t, []bgp.Session{
		{Network: "blue", Peer: "10.2.0.1", Address: netip.MustParseAddr("10.2.0.1"), ASN: 2, State: bgp.StateWaiting, LastError: "it is down"},
		known[0],
		{Network: "red", Peer: "eth2", State: bgp.StateWaiting},
	}, everyPeer(c, p, known, nil))
	require.Len(t, everyPeer(c, nil, nil, nil), 3, "before there is a plan too")
}

func TestLinkIsDown(t *testing.T) {
	peer := func(device string, p config.Peer) plan.Peer { return plan.Peer{Peer: p, Device: device} }
	p := &plan.NodePlan{Speakers: []plan.Speaker{
		{Network: "blue", Peers: []plan.Peer{peer("eth2", config.Peer{Address: netip.MustParseAddr("10.2.0.1")})}},
		{Network: "red", Peers: []plan.Peer{
			peer("eth2", config.Peer{Address: netip.MustParseAddr("10.1.0.1")}),
			peer("eth3", config.Peer{Address: netip.MustParseAddr("10.1.0.2")}),
			peer("eth4", config.Peer{Interface: "eth4"}),
			peer("", config.Peer{Address: netip.MustParseAddr("10.9.0.1")}),
		}},
	}}
	sessions := func() []bgp.Session {
		var all []bgp.Session
		for _, peer := range []string{"10.1.0.1", "10.1.0.2", "10.9.0.1", "eth4"} {
			all = append(all, bgp.Session{Network: "red", Peer: peer, LastError: "BFD is down"})
		}
		return append(all, bgp.Session{Network: "blue", Peer: "10.2.0.1", Up: true})
	}
	found := sessions()
	var reasons []string
	for _, s := range everyPeer(&config.Config{}, p, found, linksDown([]plan.Link{{Name: "eth2"}, {Name: "eth3", Up: true}, {Name: "eth4"}})) {
		reasons = append(reasons, s.LastError)
	}
	require.Equal(t, []string{"link eth2 is down", "BFD is down", "BFD is down", "link eth4 is down", ""}, reasons)
	require.Equal(t, sessions(), found, "the speaker's own stay as they are")
}

// TestReplacement has a speaker replaced: networks whose sessions were up count as restarting until they are up again, or for reportWithin.
func TestReplacement(t *testing.T) {
	start := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	first, second := start, start.Add(time.Minute)
	var r replacement
	restarting := func(speaker time.Time, answers, incomplete bool, after time.Duration, red, blue int) (names []string) {
		states := map[string]cluster.NetworkState{"red": {Usable: true, Sessions: 2, Up: red}, "blue": {Usable: true, Sessions: 1, Up: blue}}
		r.mark(states, speaker, answers, incomplete, second.Add(after))
		for name, n := range states {
			if n.Restarting {
				names = append(names, name)
			}
		}
		return names
	}
	require.Empty(t, restarting(first, true, true, -time.Minute, 0, 0), "the daemon starts")
	require.Empty(t, restarting(first, true, true, -59*time.Second, 2, 0))
	require.Empty(t, restarting(first, true, true, -30*time.Second, 2, 0), "blue's router is away for long")
	require.Equal(t, []string{"red"}, restarting(first, false, true, 0, 0, 0), "it is gone")
	require.Equal(t, []string{"red"}, restarting(second, true, true, 3*time.Second, 0, 0), "another has begun")
	require.Empty(t, restarting(second, true, true, 6*time.Second, 1, 0), "a session is up")
	require.Equal(t, []string{"red"}, restarting(second, true, true, 7*time.Second, 0, 0), "and down again")
	require.Empty(t, restarting(second, true, true, reportWithin, 0, 0), "for long")
	require.Empty(t, restarting(second, true, true, reportWithin+time.Second, 0, 0))

	require.Empty(t, restarting(second, true, false, time.Minute, 2, 1))
	require.Empty(t, restarting(second, true, true, time.Minute, 0, 1), "red's routers are away")
	require.Equal(t, []string{"blue"}, restarting(start, true, true, 2*time.Minute, 0, 0), "replaced between two passes")
	require.Empty(t, restarting(start, false, true, 2*time.Minute+reportWithin, 0, 0))
	require.Empty(t, restarting(start, false, true, 3*time.Minute, 0, 0), "no other comes")
}
