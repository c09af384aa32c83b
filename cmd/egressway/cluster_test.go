package main

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/fleet"
	"github.com/egressway/egressway/internal/status"
)

// TestPlugin checks under which names the program is kubectl's plugin, and that krew links it under that name.
func TestPlugin(t *testing.T) {
	for program, want := range map[string]bool{
		"kubectl-egressway": true, "/home/x/.krew/bin/kubectl-egressway": true, "egressway": false, "/usr/bin/egressway": false, "kubectl": false,
	} {
		require.Equal(t, want, isPlugin(program), program)
	}
	var out, errs bytes.Buffer
	require.Zero(t, executeAs(newPluginCommand(), []string{"trace", "--help"}, &out, &errs))
	require.Contains(t, out.String(), "kubectl egressway trace --from")
	require.Equal(t, exitError, executeAs(newPluginCommand(), []string{"status", "--fast"}, &out, &errs))
	require.Equal(t, exitError, executeAs(newPluginCommand(), []string{"diagnose"}, &out, &errs))
	require.Contains(t, errs.String(), "name the nodes, or all of them by --all")
	require.Equal(t, exitError, executeAs(newPluginCommand(), []string{"status", "--kubeconfig", filepath.Join(t.TempDir(), "none")}, &out, &errs))
	require.Contains(t, errs.String(), "read the kubeconfig: ")

	b, err := os.ReadFile("../../deploy/krew/egressway.yaml")
	require.NoError(t, err)
	var krew struct {
		Metadata struct{ Name string }
		Spec     struct{ Platforms []struct{ Bin string } }
	}
	require.NoError(t, yaml.Unmarshal(b, &krew))
	require.Equal(t, pluginName, "kubectl-"+krew.Metadata.Name)
	for _, p := range krew.Spec.Platforms {
		require.Equal(t, "egressway", p.Bin)
	}
}

func TestEndsOfTrace(t *testing.T) {
	four, six := netip.MustParseAddr("10.244.1.11"), netip.MustParseAddr("fd44:1::11")
	pod := fleet.Pod{Name: "shop/web", Addresses: []netip.Addr{six, four}}
	from, to, err := ends(pod, "")
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{six, anywhere6}, []netip.Addr{from, to})
	from, to, err = ends(pod, "198.51.100.10")
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{four, netip.MustParseAddr("198.51.100.10")}, []netip.Addr{from, to})
	_, _, err = ends(fleet.Pod{Name: "shop/web", Addresses: pod.Addresses[:1]}, "198.51.100.10")
	require.EqualError(t, err, "--to 198.51.100.10: pod shop/web has no address of that family")
}

// TestSummaryTables shows a node that answers beside one that does not.
func TestSummaryTables(t *testing.T) {
	now := time.Now()
	answers := []status.Answer{
		{Node: "a", Pod: "egressway-1", Summary: &status.Summary{
			Node: "a", Ready: true, Draining: true, HostOf: 2, Networks: []status.Network{{Usable: true}, {}},
			Sessions:         []status.Session{{Network: "red", Peer: "10.1.0.1", ASN: 64601, State: "established", Up: true, Since: now.Add(-time.Minute)}},
			ProblemsByReason: map[cluster.Reason]int{cluster.ReasonInvalidValue: 2, cluster.ReasonDuplicate: 1},
		}},
		{Node: "b", Error: "pod egressway-2 is waiting: CrashLoopBackOff"},
		{Node: "c", Pod: "egressway-3", Summary: &status.Summary{Node: "c", Unknowing: true}},
	}
	lines := func(write func(*bytes.Buffer) error) []string {
		var b bytes.Buffer
		require.NoError(t, write(&b))
		return strings.Split(strings.TrimSpace(b.String()), "\n")
	}
	require.Equal(t, []string{
		"NODE  READY          NETWORKS  SESSIONS  HOST OF  STANDBY OF  PROBLEMS",
		"a     yes, draining  1/2       1/1       2        0           3",
		"b     no answer",
		"c     no             -         -         ?        ?           0",
		"",
		"No answer:",
		"  node b: pod egressway-2 is waiting: CrashLoopBackOff",
	}, lines(func(b *bytes.Buffer) error { return status.WriteNodes(b, answers, false, now) }))
	wide := lines(func(b *bytes.Buffer) error { return status.WriteNodes(b, answers, true, now) })
	require.Contains(t, wide[1], "egressway-1  Duplicate,InvalidValue")
	require.Contains(t, wide[3], "?        ?           0         ?  ")
	require.Equal(t, []string{
		"NODE  NETWORK  PEER      AS     STATE        FOR   LAST ERROR",
		"a     red      10.1.0.1  64601  established  1m0s  -",
		"b     -        -         -      no answer    -     pod egressway-2 is waiting: CrashLoopBackOff",
	}, lines(func(b *bytes.Buffer) error { return status.WriteSessions(b, answers, false, now) }))
}
