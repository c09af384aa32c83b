package flowlog

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	web   = cluster.Key{Namespace: "shop", Name: "web"}
	batch = cluster.Key{Namespace: "shop", Name: "batch"}
)

// world is a cluster as node a plans it: web and batch share an ingress IP, masq leaves with the address of the interface.
func world() (cluster.Objects, *plan.NodePlan) {
	endpoint := func(a, node string) cluster.Endpoint { return cluster.Endpoint{Address: a, Node: node} }
	shared, own := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11")
	masq := cluster.Key{Namespace: "shop", Name: "masq"}
	vip := netip.MustParseAddr("203.0.113.20")
	objects := cluster.Objects{
		EgressServices: cluster.MapOf(map[cluster.Key]cluster.EgressService{web: {}, batch: {}, masq: {}}),
		Endpoints: cluster.MapOf(map[cluster.Key][]cluster.Endpoint{
			web: {endpoint("10.244.1.1", "a")}, batch: {endpoint("10.244.2.1", "b")}, masq: {endpoint("10.244.1.9", "a")},
			{Namespace: "shop", Name: "plain"}: {endpoint("10.244.2.1", "b")},
		}),
		Pods: cluster.MapOf(map[cluster.Key]cluster.Pod{{Namespace: "lab", Name: "p"}: {Addresses: []netip.Addr{netip.MustParseAddr("10.244.3.3")}}}),
	}
	at := func(a, node string) plan.Endpoint {
		return plan.Endpoint{Addr: netip.MustParseAddr(a), Path: 2, Node: node}
	}
	return objects, &plan.NodePlan{
		Node: "a",
		DataPlane: plan.DataPlane{
			Paths:     []plan.Path{{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}}, {ID: 3, Key: plan.PathKey{Kind: plan.PathSteer, Name: "b"}}},
			Endpoints: sorted.Of(at("10.244.1.1", "a"), at("10.244.2.1", "b"), at("10.244.1.9", "a")),
		},
		Services: sorted.Of(
			plan.Service{Key: web, Network: "red", Host: "a", Standby: "b", IngressIPs: []netip.Addr{shared, own}},
			plan.Service{Key: batch, Network: "red", Host: "b", Standby: "a", IngressIPs: []netip.Addr{shared}},
			plan.Service{Key: masq, Network: "red", Host: cluster.AllHosts, SourceIPBy: cluster.SourceIPByNetwork},
			plan.Service{Kind: cluster.KindEgressIP, Key: cluster.Key{Name: "vip"}, Slot: vip, Host: "a", Network: "red", IngressIPs: []netip.Addr{vip}},
		),
	}
}

// record returns a UDP connection that left by network red.
func record(pod, source string) conntrack.Record {
	return conntrack.Record{
		Flow: conntrack.Flow{
			Proto: unix.IPPROTO_UDP, Path: 2, Src: netip.MustParseAddrPort(pod), SNAT: netip.MustParseAddrPort(source),
			Dst: netip.MustParseAddrPort("198.51.100.10:53"),
		},
		Counted: true, Sent: conntrack.Traffic{Packets: 1, Bytes: 100},
		Start: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), End: time.Date(2026, 1, 2, 3, 4, 6, 7, time.UTC),
	}
}

// TestOwners attributes connections to objects, pods and roles, also after these have changed.
func TestOwners(t *testing.T) {
	objects, p := world()
	l := New(slog.New(slog.DiscardHandler), "a", plan.Marks{Mask: 0x3f00}, func() {})
	on := config.FlowLog{File: "/nowhere"}
	says := func(pod, source string) string {
		t.Helper()
		entry, ok := l.entry(eventConnection, record(pod, source))
		require.True(t, ok)
		return strings.Join([]string{entry.Kind, entry.Namespace, entry.Name, entry.Role, entry.Network, entry.Pod, entry.PodNode}, " ")
	}
	l.Set(on, objects, cluster.Changed{}, p, p) // a log that is switched on reads all of it
	require.Equal(t, "EgressService shop web host red  a", says("10.244.1.1:1", "203.0.113.11:1"))
	require.Equal(t, "EgressService shop web host red  a", says("10.244.1.1:1", "203.0.113.10:1"))
	require.Equal(t, "EgressService shop batch standby red  b", says("10.244.2.1:1", "203.0.113.10:1"))
	require.Equal(t, "EgressService shop masq  red  a", says("10.244.1.9:1", "192.0.2.1:1"))
	require.Equal(t, "EgressIP lab vip host red p ", says("10.244.3.3:1", "203.0.113.20:1"))
	require.Equal(t, "    red  ", says("10.244.9.9:1", "192.0.2.1:1"))

	// A service that is gone, and a pod that another service has now, are still known by what they had.
	next, former := *p, p
	next.Services = p.Services.With(nil, []plan.Service{{Key: web}})
	next.DataPlane.Endpoints = p.DataPlane.Endpoints.With(nil, []plan.Endpoint{{Addr: netip.MustParseAddr("10.244.1.1")}})
	objects.EgressServices = cluster.MapOf(map[cluster.Key]cluster.EgressService{batch: {}})
	objects.Endpoints = cluster.MapOf(map[cluster.Key][]cluster.Endpoint{batch: {{Address: "10.244.1.1"}}})
	var changed cluster.Changed
	changed.Add(cluster.KindEgressService.ID(web))
	changed.Add(cluster.KindEgressService.ID(batch))
	l.Set(on, objects, changed, former, &next)
	require.Equal(t, "EgressService shop web  red  ", says("10.244.1.1:1", "203.0.113.11:1"))
	require.Equal(t, "EgressService shop batch standby red  ", says("10.244.1.1:1", "203.0.113.10:1"))
	l.owners.sources.sweep(time.Now().Add(2 * keepFor))
	l.owners.pods.sweep(time.Now().Add(2 * keepFor))
	require.Equal(t, "    red  ", says("10.244.8.8:1", "203.0.113.11:1"))

	// What was steered elsewhere, and a copy of another host's connection that never carried a packet, did not leave here.
	steered := record("10.244.1.1:1", "203.0.113.10:1")
	steered.Path = 3
	_, ok := l.entry(eventConnection, steered)
	require.False(t, ok)
	silent := record("10.244.1.1:1", "203.0.113.10:1")
	silent.Sent = conntrack.Traffic{}
	_, ok = l.entry(eventConnection, silent)
	require.False(t, ok)
	silent.Counted = false // the kernel did not count: it may have carried some
	_, ok = l.entry(eventConnection, silent)
	require.True(t, ok)

	l.Set(config.FlowLog{}, objects, changed, former, &next)
	require.Nil(t, l.owners)
}

// TestPodsInTurnAtAnAddress gives one address to three pods in turn. A finished Pod keeps its address in the status.
func TestPodsInTurnAtAnAddress(t *testing.T) {
	objects, p := world()
	l := New(slog.New(slog.DiscardHandler), "a", plan.Marks{Mask: 0x3f00}, func() {})
	have := func(pods map[string]cluster.Pod) string {
		all := map[cluster.Key]cluster.Pod{}
		for name, pod := range pods {
			pod.Addresses = []netip.Addr{netip.MustParseAddr("10.244.3.3")}
			all[cluster.Key{Namespace: "lab", Name: name}] = pod
		}
		objects.Pods = cluster.MapOf(all)
		l.Set(config.FlowLog{File: "/nowhere"}, objects, cluster.Changed{All: true}, p, p)
		entry, ok := l.entry(eventConnection, record("10.244.3.3:1", "203.0.113.20:1"))
		require.True(t, ok)
		return entry.Pod
	}
	require.Equal(t, "first", have(map[string]cluster.Pod{"first": {}}))
	require.Equal(t, "second", have(map[string]cluster.Pod{"first": {Ended: true}, "second": {}}))
	require.Equal(t, "second", have(map[string]cluster.Pod{"first": {Ended: true}}), "the end of its last connections comes later")
	require.Equal(t, "third", have(map[string]cluster.Pod{"third": {}}))
	require.Equal(t, "third", have(nil))
	require.Equal(t, "third", have(map[string]cluster.Pod{"beside": {HostNetwork: true}}))
}

// TestLine shows a line as programs read it.
func TestLine(t *testing.T) {
	objects, p := world()
	l := New(slog.New(slog.DiscardHandler), "a", plan.Marks{Mask: 0x3f00}, func() {})
	l.Set(config.FlowLog{File: "/nowhere"}, objects, cluster.Everything(), nil, p)
	r := record("10.244.1.1:1000", "203.0.113.11:2000")
	entry, _ := l.entry(eventConnection, r)
	entry.Time, entry.End = time.Date(2026, 1, 2, 3, 4, 6, 8, time.UTC), &r.End
	require.Equal(t, `{"event":"connection","time":"2026-01-02T03:04:06.000000008Z","node":"a","kind":"EgressService","namespace":"shop",`+
		`"name":"web","role":"host","network":"red","protocol":"udp","podIP":"10.244.1.1","podPort":1000,"podNode":"a",`+
		`"sourceIP":"203.0.113.11","sourcePort":2000,"destinationIP":"198.51.100.10","destinationPort":53,`+
		`"start":"2026-01-02T03:04:05.000000006Z","end":"2026-01-02T03:04:06.000000007Z","packetsSent":1,"bytesSent":100,`+
		`"packetsReceived":0,"bytesReceived":0}`+"\n", string(entry.text()))
}

// queueTo returns a queue to a file, which nothing writes yet.
func queueTo(path string) *queue {
	return newQueue(New(slog.New(slog.DiscardHandler), "a", plan.Marks{}, func() {}), path)
}

// events returns the events of a file's lines, those about losses with the cause and the count.
func events(t *testing.T, path string) (all []string) {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	for text := range strings.Lines(string(content)) {
		var l line
		require.NoError(t, json.Unmarshal([]byte(text), &l), text)
		event := l.Event
		if l.Lost > 0 {
			event += strings.Join([]string{"", l.LostBy, string(rune('0' + l.Lost))}, " ")
		}
		all = append(all, event)
	}
	return all
}

// TestRotation writes to the file that has the path now.
func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows")
	q := queueTo(path)
	q.begin()
	require.NoError(t, q.write())
	require.NoError(t, os.Rename(path, path+".1"))
	q.put(line{Event: eventConnection})
	require.NoError(t, q.write())
	require.NoError(t, os.Truncate(path, 0))
	q.put(line{Event: eventOpen})
	require.NoError(t, q.write())
	require.Equal(t, []string{eventBegin}, events(t, path+".1"))
	require.Equal(t, []string{eventOpen}, events(t, path))
	require.EqualValues(t, 3, q.log.Counters().Lines)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o007)
	q.file.close()
}

// TestMissingLinesAreCounted lets the kernel, the queue and the file lose lines: the next lines that the file accepts say how many.
func TestMissingLinesAreCounted(t *testing.T) {
	q := queueTo("/dev/full")
	problem := func() string {
		p := q.log.Problems()
		if len(p) == 0 {
			return ""
		}
		return p[0].Message
	}
	q.log.settings.File = "/dev/full"
	q.miss(lossKernel, 7)
	for range 3 {
		q.put(line{Event: eventConnection})
	}
	require.ErrorIs(t, q.write(), unix.ENOSPC)
	require.Contains(t, problem(), "no space left")
	require.Equal(t, [losses]uint64{lossKernel: 7, lossFile: 3}, q.missing)
	require.ErrorIs(t, q.write(), unix.ENOSPC)
	require.Equal(t, [losses]uint64{lossKernel: 7, lossFile: 3}, q.missing)

	q.lines = make([]byte, mostQueued)
	q.put(line{Event: eventConnection})
	q.lines = nil
	q.file.path = filepath.Join(t.TempDir(), "none", "flows")
	require.ErrorIs(t, q.write(), os.ErrNotExist)
	q.file.path = filepath.Join(t.TempDir(), "flows")
	q.put(line{Event: eventConnection})
	require.NoError(t, q.write())
	require.NotContains(t, problem(), "accepts no lines")
	require.Equal(t, []string{"lost kernel 7", "lost file 4", eventConnection}, events(t, q.file.path))
	require.Equal(t, Counters{Lines: 1, LinesLost: 4}, q.log.Counters())
	q.file.close()
}

// TestPartOfALine ends a line of which the file accepted a part only, and counts it.
func TestPartOfALine(t *testing.T) {
	fds := make([]int, 2)
	require.NoError(t, unix.Pipe2(fds, unix.O_CLOEXEC|unix.O_NONBLOCK))
	reader, writer := os.NewFile(uintptr(fds[0]), "reader"), os.NewFile(uintptr(fds[1]), "writer")
	defer reader.Close()
	_, err := unix.FcntlInt(writer.Fd(), unix.F_SETPIPE_SZ, 4096)
	require.NoError(t, err)
	q := queueTo(config.StandardOutput)
	q.file.open = writer
	for range 100 {
		q.put(line{Event: eventConnection})
	}
	require.NoError(t, writer.SetWriteDeadline(time.Now().Add(time.Second)))
	require.ErrorIs(t, q.write(), os.ErrDeadlineExceeded)
	require.True(t, q.file.partial)
	written := q.log.Counters().Lines
	require.Positive(t, written)
	require.EqualValues(t, 100-written, q.missing[lossFile])
	q.file.close()
}
