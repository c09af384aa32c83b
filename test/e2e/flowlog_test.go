package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// flowLine is a line of the flow log, as docs/flowlog.md describes it.
type flowLine struct {
	Event                                string
	Time                                 time.Time
	Node, Kind, Namespace, Name, Role    string
	Network, Protocol, PodNode           string
	PodIP, SourceIP, DestinationIP       netip.Addr
	PodPort, SourcePort, DestinationPort uint16
	Start, End                           time.Time
	PacketsSent, BytesSent               uint64
	PacketsReceived, BytesReceived       uint64
	Lost                                 uint64
	LostBy                               string
}

// from returns the source that the remote saw.
func (l flowLine) from() netip.AddrPort { return netip.AddrPortFrom(l.SourceIP, l.SourcePort) }

// flowLog is the file of all nodes: they share the kernel, and so the folder in memory.
func flowLog(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "flowlog-") //nolint:usetesting // in memory, which all nodes see
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "flows.jsonl")
}

// counting makes nodes count connections, and forget them a second after their end.
func counting(nodes ...string) map[string][]string {
	all := map[string][]string{}
	for _, n := range nodes {
		all[n] = []string{"sysctl -qw net.netfilter.nf_conntrack_acct=1 net.netfilter.nf_conntrack_timestamp=1 " +
			"net.netfilter.nf_conntrack_tcp_timeout_time_wait=1 net.netfilter.nf_conntrack_udp_timeout=1 net.netfilter.nf_conntrack_tcp_timeout_close=1"}
	}
	return all
}

// readLog returns the lines of a file.
func readLog(t *testing.T, file string) (all []flowLine) {
	t.Helper()
	content, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	for text := range strings.Lines(string(content)) {
		if strings.HasSuffix(text, "\n") { // the last one may be on its way
			var l flowLine
			require.NoError(t, json.Unmarshal([]byte(text), &l), text)
			all = append(all, l)
		}
	}
	return all
}

// awaitLogged waits until a file has lines that satisfy enough. The kernel forgets a connection that has expired when it meets it, so the
// wait makes it look at all of them.
func awaitLogged(t *testing.T, s *stage.Stage, file string, enough func([]flowLine) error) []flowLine {
	t.Helper()
	var lines []flowLine
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		for node := range s.Daemons {
			if _, err := s.Node(node).Run(t.Context(), "cat", "/proc/net/nf_conntrack"); err != nil {
				return err
			}
		}
		lines = readLog(t, file)
		return enough(lines)
	}))
	return lines
}

// ofSource returns the lines about ended connections with a source that the remote saw.
func ofSource(lines []flowLine, protocol string, seen netip.AddrPort) (all []flowLine) {
	for _, l := range lines {
		if l.Event == "connection" && l.Protocol == protocol && l.from() == seen {
			all = append(all, l)
		}
	}
	return all
}

// usage is a connection that a pod had, and the source that the remote saw.
type usage struct {
	pod, protocol string
	to            netip.AddrPort
	seen          netip.AddrPort
	bytes         uint64 // each way, at least
	began, ended  time.Time
}

// missing returns an error that names a connection without a line.
func missing(uses []usage) func([]flowLine) error {
	return func(lines []flowLine) error {
		for _, u := range uses {
			if len(ofSource(lines, u.protocol, u.seen)) == 0 {
				return fmt.Errorf("no line about %s of %s as %s to %s among %d", u.protocol, u.pod, u.seen, u.to, len(lines))
			}
		}
		return nil
	}
}

// TestFlowLog reads in the log which pod used an ingress IP, and when, across a rotation and a restart of the daemon.
func TestFlowLog(t *testing.T) {
	file := flowLog(t)
	s := play(t, stage.Options{
		Nodes: []string{"a", "b", "c"}, Manifests: oneFile(t), Exec: counting("a", "b", "c"),
		Config: func(c string) string { return c + "flowLog: {file: " + file + "}\n" },
	})
	ctx := t.Context()
	all := asDeployed()
	awaitServed(t, s, all)
	const host = "a"
	ledBy(t, s, host)

	converse := func(pod string, to netip.AddrPort) []usage {
		t.Helper()
		const size = 100 << 10
		tcp := usage{pod: pod, protocol: "tcp", to: to, bytes: size, began: time.Now()}
		session, err := s.Node(pod).Open(ctx, to)
		require.NoError(t, err)
		answer, err := session.Transfer(ctx, size, size)
		require.NoError(t, err)
		require.NoError(t, stage.Check(answer, all[pod].host, all[pod].source(to)))
		require.NoError(t, session.Close())
		tcp.seen, tcp.ended = answer.Peer, time.Now()
		udp := usage{pod: pod, protocol: "udp", to: to, bytes: 500, began: time.Now()}
		answer, err = s.Node(pod).AskUDP(ctx, to, 500)
		require.NoError(t, err)
		udp.seen, udp.ended = answer.Peer, time.Now()
		return []usage{tcp, udp}
	}
	judge := func(u usage, lines []flowLine) {
		t.Helper()
		found := ofSource(lines, u.protocol, u.seen)
		require.Len(t, found, 1, "%+v", found)
		l := found[0]
		node := u.pod[:1]
		want := flowLine{
			Event: "connection", Node: host, Kind: "EgressService", Namespace: "shop", Name: "web", Role: "host", Network: "red",
			Protocol: u.protocol, PodNode: node, PodIP: netip.MustParseAddr(podAddrs["a-p1"][0]), DestinationIP: u.to.Addr(), DestinationPort: u.to.Port(),
			SourceIP: u.seen.Addr(), SourcePort: u.seen.Port(),
		}
		if u.pod[2:] == "p2" { // it leaves by its own node with the address of the interface
			want.Node, want.Name, want.Role, want.Network = node, "batch", "", "blue"
		} else {
			want.PodIP = netip.MustParseAddr(podAddrs[u.pod][0])
			if u.to.Addr().Is6() {
				want.PodIP = netip.MustParseAddr(podAddrs[u.pod][1])
			}
		}
		got := flowLine{
			Event: l.Event, Node: l.Node, Kind: l.Kind, Namespace: l.Namespace, Name: l.Name, Role: l.Role, Network: l.Network,
			Protocol: l.Protocol, PodNode: l.PodNode, PodIP: l.PodIP, DestinationIP: l.DestinationIP, DestinationPort: l.DestinationPort,
			SourceIP: l.SourceIP, SourcePort: l.SourcePort,
		}
		if u.pod[2:] == "p2" {
			want.PodIP = l.PodIP
		}
		require.Equal(t, want, got)
		require.GreaterOrEqual(t, l.BytesSent, u.bytes)
		require.GreaterOrEqual(t, l.BytesReceived, uint64(1))
		if u.protocol == "tcp" {
			require.GreaterOrEqual(t, l.BytesReceived, u.bytes)
		}
		require.LessOrEqual(t, l.BytesSent, 3*u.bytes+1000)
		require.WithinRange(t, l.Start, u.began.Add(-time.Second), u.ended.Add(time.Second))
		require.WithinRange(t, l.End, l.Start, l.Time.Add(time.Second))
	}
	var uses []usage
	for _, to := range outside {
		for _, pod := range []string{"a-p1", "b-p1", "b-p2"} { // one of the host's, one that is steered to it, one of another kind
			uses = append(uses, converse(pod, to)...)
		}
	}
	lines := awaitLogged(t, s, file, missing(uses))
	for _, u := range uses {
		judge(u, lines)
	}
	require.Equal(t, "begin", lines[0].Event)

	// A file that was renamed gets no more lines.
	require.NoError(t, os.Rename(file, file+".1"))
	uses = converse("b-p1", outside[0])
	for _, u := range uses {
		judge(u, awaitLogged(t, s, file, missing(uses)))
	}

	// A connection that lasts longer than the daemon is known to the next one.
	lasts := usage{pod: "b-p1", protocol: "tcp", to: outside[1], bytes: 100 << 10, began: time.Now()}
	session, err := s.Node(lasts.pod).Open(ctx, lasts.to)
	require.NoError(t, err)
	answer, err := session.Transfer(ctx, 100<<10, 100<<10)
	require.NoError(t, err)
	lasts.seen, lasts.ended = answer.Peer, time.Now()
	s.Daemons[host].Kill()
	<-s.Daemons[host].Done()
	require.NoError(t, os.Rename(file, file+".2"))
	require.NoError(t, s.StartDaemon(host))
	awaitLogged(t, s, file, func(lines []flowLine) error {
		begun := false
		for _, l := range lines {
			begun = begun || l.Event == "begin" && l.Node == host
			if begun && l.Event == "open" && l.from() == lasts.seen && l.BytesSent >= lasts.bytes {
				return nil
			}
		}
		return fmt.Errorf("no open connection as %s after the beginning among %+v", lasts.seen, lines)
	})
	require.NoError(t, session.Close())
	judge(lasts, awaitLogged(t, s, file, missing([]usage{lasts})))
	value, ok := metric(t, s, host, "egressway_flow_log_events_lost_total")
	require.True(t, ok)
	require.Zero(t, value)
}

// TestFlowLogNamesWhatIsLost ends many connections at once with little room for events: each has a line, or is counted as lost in the
// log and in the metrics. Without the kernel's counters a problem says which settings would give them.
func TestFlowLogNamesWhatIsLost(t *testing.T) {
	file := flowLog(t)
	s := play(t, stage.Options{
		Manifests: oneFile(t), Exec: map[string][]string{"a": {"sysctl -qw net.netfilter.nf_conntrack_udp_timeout=5"}},
		Config: func(c string) string { return c + "flowLog: {file: " + file + ", eventBuffer: 4096}\n" },
	})
	ctx := t.Context()
	awaitServed(t, s, asDeployed())
	ledBy(t, s, "a")
	report, err := s.Egressway(ctx, "a", "status", "-o", "wide")
	require.NoError(t, err)
	require.Contains(t, report, "FlowLogIncomplete")
	require.Contains(t, report, "net.netfilter.nf_conntrack_acct")
	require.Contains(t, report, "net.netfilter.nf_conntrack_timestamp")
	seen := map[netip.AddrPort]bool{}
	for range 300 {
		answer, err := s.Node("a-p1").AskUDP(ctx, outside[0], 10)
		require.NoError(t, err)
		seen[answer.Peer] = true
	}
	lost := uint64(0)
	awaitLogged(t, s, file, func(lines []flowLine) error {
		found := 0
		lost = 0
		for _, l := range lines {
			if l.Event == "connection" && seen[l.from()] {
				found++
				require.Zero(t, l.BytesSent)
				require.Zero(t, l.Start)
				require.NotZero(t, l.End)
			}
			if l.Event == "lost" && l.Node == "a" {
				require.Equal(t, "kernel", l.LostBy)
				lost += l.Lost
			}
		}
		if found+int(lost) < len(seen) || lost == 0 {
			return fmt.Errorf("%d lines, %d lost of %d", found, lost, len(seen))
		}
		return nil
	})
	awaitMetric(t, s, "a", "egressway_flow_log_events_lost_total", atLeast(float64(lost)))
}
