package kube

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/kubetest"
)

const (
	soon = lab.Patience
	step = 10 * time.Millisecond
)

// quick holds the timing of tests.
var quick = timing{
	lease: 3 * time.Second, renew: 2 * time.Second, retry: 200 * time.Millisecond,
	life: 2 * time.Second, beat: 300 * time.Millisecond,
}

// TestCoordinate shares one API server among its subtests, each in a namespace of its own.
func TestCoordinate(t *testing.T) {
	s := kubetest.Start(t, kubetest.Options{Args: []string{"-endpointslice=false", "-run-pods=false"}})
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, s.Kubeconfig(), 0o600))
	k, err := newClients(Options{Kubeconfig: file}, func(time.Duration) {}, func(netip.Addr) {})
	require.NoError(t, err)
	f := &fixture{s, k}
	f.applyCRD(t, ourCRD)
	for _, n := range []string{"a", "b", "c"} {
		_, err := k.core.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	t.Run("one leads", f.oneLeads)
	t.Run("reports", f.reports)
	t.Run("reports of daemons that start", f.startingReports)
	t.Run("status", f.status)
	t.Run("successors", f.successors)
	t.Run("obeys the leader", f.obeys)
	t.Run("similar events", f.similarEvents)
	t.Run("events of a deleted namespace", f.lostEvents)
	t.Run("last words", f.lastWords)
	t.Run("pruned", f.prunes)
	t.Run("earlier CRD", f.earlierCRD)
	t.Run("labels", f.labels)
	t.Run("rosters", f.rosters)
	t.Run("rosterless", f.rosterless)
	t.Run("hosts are read", f.hostsAreRead)
	t.Run("addresses", f.addresses)
	t.Run("node states", f.nodeStates)
	t.Run("removed node", f.removedNode)
	t.Run("texts", f.texts)
	t.Run("items", f.items)
	t.Run("members", f.members)
	t.Run("members that move", f.movingMembers)
	t.Run("outage", f.outage)
}

// fixture is an API server with our CRD and the Nodes a, b and c.
type fixture struct {
	*kubetest.Server
	clients
}

const ourCRD, upstreamCRD = "../../../config/crd/k8s.ovn.org_egressservices.yaml", "testdata/upstream-crd.yaml"

// applyCRD installs the CRD of EgressService from the file.
func (f *fixture) applyCRD(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	f.Apply(t, string(text))
}

// namespace creates a namespace and returns its name.
func (f *fixture) namespace(t *testing.T) string {
	t.Helper()
	n, err := f.core.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return n.Name
}

// daemon is the part of a node's daemon that this package implements.
type daemon struct {
	*Cluster
	link  *link
	awake chan struct{}
	stop  func() // stops in order, and waits for the end
}

// daemon starts a node's daemon that stands for election, with its own link to the server and an empty report.
func (f *fixture) daemon(t *testing.T, namespace, node string) *daemon {
	t.Helper()
	d := f.unable(t, namespace, node)
	d.Contend()
	return d
}

// unable is daemon for one that has no plan yet.
func (f *fixture) unable(t *testing.T, namespace, node string) *daemon {
	t.Helper()
	d := &daemon{link: newLink(t, f.Kubeconfig()), awake: make(chan struct{}, 1)}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("daemon", node)
	options := Options{Kubeconfig: d.link.kubeconfig, Namespace: namespace, Node: node, LabelHosts: true}
	c := New(log, options, func() {
		select {
		case d.awake <- struct{}{}:
		default:
		}
	})
	c.timing, c.pauses = quick, nodePauses(usualPauses)
	c.Report(cluster.Report{})
	d.Cluster = c
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Run(ctx)
	}()
	d.stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(d.stop)
	return d
}

func (d *daemon) isLeading() bool {
	_, leading := d.Leading()
	return leading
}

// leader waits until one of the daemons leads. Two never lead at once.
func leader(t *testing.T, of ...*daemon) (it *daemon) {
	t.Helper()
	require.Eventually(t, func() bool {
		var leading []*daemon
		for _, d := range of {
			if d.isLeading() {
				leading = append(leading, d)
			}
		}
		if len(leading) > 1 {
			t.Errorf("%d daemons lead", len(leading))
		}
		if len(leading) == 1 {
			it = leading[0]
		}
		return it != nil
	}, soon, step)
	return it
}

func others(of []*daemon, but *daemon) (all []*daemon) {
	for _, d := range of {
		if d != but {
			all = append(all, d)
		}
	}
	return all
}

func (f *fixture) oneLeads(t *testing.T) {
	ns := f.namespace(t)
	unable := f.unable(t, ns, "u")
	require.Eventually(t, func() bool { return unable.synced.Load() }, soon, step)
	all := []*daemon{f.daemon(t, ns, "a"), f.daemon(t, ns, "b"), f.daemon(t, ns, "c")}
	first := leader(t, all...)
	require.False(t, unable.isLeading(), "it has no plan")

	// The first one is cut off: it can neither renew nor release the Lease.
	first.link.cut()
	second := leader(t, others(all, first)...)
	require.False(t, first.isLeading())
	require.NotSame(t, first, second)
	first.stop()

	// The second one ends in order, and releases the Lease to the third at once.
	second.stop()
	lease, err := f.core.CoordinationV1().Leases(ns).Get(t.Context(), leaseName, metav1.GetOptions{})
	require.NoError(t, err)
	require.NotContains(t, *lease.Spec.HolderIdentity, second.options.Node+"_")
	third := leader(t, others(others(all, first), second)...)
	_, leading := second.Leading()
	require.False(t, leading)

	// A deleted Lease is acquired again, and one that another holder has is respected.
	require.NoError(t, f.core.CoordinationV1().Leases(ns).Delete(t.Context(), leaseName, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		lease, err = f.core.CoordinationV1().Leases(ns).Get(t.Context(), leaseName, metav1.GetOptions{})
		return err == nil && third.isLeading()
	}, soon, step)
	require.Eventually(t, func() bool {
		_, err := f.core.CoordinationV1().Leases(ns).Patch(t.Context(), leaseName, types.MergePatchType,
			[]byte(`{"spec":{"holderIdentity":"someone","leaseDurationSeconds":2}}`), metav1.PatchOptions{})
		return err == nil && !third.isLeading()
	}, soon, step)
	require.Same(t, third, leader(t, third))
}

func (f *fixture) reports(t *testing.T) {
	ns := f.namespace(t)
	all := []*daemon{f.daemon(t, ns, "a"), f.daemon(t, ns, "b")}
	first := leader(t, all...)
	second := others(all, first)[0]
	told := func(d *daemon, want cluster.Report) func() bool {
		return func() bool {
			reports, leading := first.Leading()
			got, ok := reports[d.options.Node]
			return leading && ok && reflect.DeepEqual(got, want)
		}
	}
	full := cluster.Report{
		Applied: 7, Draining: true, Hosts: map[string]bool{"x": false},
		Networks: map[string]cluster.NetworkState{"red": {Usable: true, IPv4: true, Sessions: 2, Up: 1}},
	}
	for _, d := range all {
		require.Eventually(t, told(d, cluster.Report{}), soon, step)
		d.Report(full)
		require.Eventually(t, told(d, full), soon, step)
	}

	leases := f.core.CoordinationV1().Leases(ns)
	name := reportName(second.options.Node)
	there := func() *coordinationv1.Lease {
		var lease *coordinationv1.Lease
		require.Eventually(t, func() bool {
			var err error
			lease, err = leases.Get(t.Context(), name, metav1.GetOptions{})
			return err == nil
		}, soon, step)
		return lease
	}
	lease := there()
	require.Equal(t, map[string]string{labelName: component, labelReport: ""}, lease.Labels)
	require.JSONEq(t, `{"networks":{"red":{"usable":true,"ipv4":true,"ipv6":false,"sessions":2,"up":1}},"draining":true,"hosts":{"x":false},"applied":7}`, lease.Annotations[annotationReport])
	node, err := f.core.CoreV1().Nodes().Get(t.Context(), second.options.Node, metav1.GetOptions{})
	require.NoError(t, err)

	// Deleted by hand, it comes back, and its node is not presumed dead meanwhile.
	require.NoError(t, leases.Delete(t.Context(), name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		reports, leading := first.Leading()
		if leading {
			_, ok := reports[second.options.Node]
			require.True(t, ok)
		}
		now, err := leases.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && now.UID != lease.UID
	}, soon, step)
	require.Equal(t, node.UID, there().OwnerReferences[0].UID)

	// A report with invalid content is ignored, and soon overwritten.
	_, err = leases.Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+annotationReport+`":"{"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return there().Annotations[annotationReport] != "{" }, soon, step)
	require.True(t, told(second, full)())

	// A node whose daemon ended is presumed dead after a while; the others are not.
	second.stop()
	require.Eventually(t, func() bool {
		reports, leading := first.Leading()
		_, ok := reports[second.options.Node]
		return leading && !ok
	}, soon, step)
	require.True(t, told(first, full)())
}

// startingReports checks that the report of a daemon that starts is the first one of its node, but does not replace another one.
func (f *fixture) startingReports(t *testing.T) {
	ns := f.namespace(t)
	starting, other := f.daemon(t, ns, "a"), f.daemon(t, ns, "b")
	leases := f.core.CoordinationV1().Leases(ns)
	reported := func(digest string) func() bool {
		return func() bool {
			reports, leading := leader(t, starting, other).Leading()
			r, has := reports["a"]
			return leading && has && r.EgressQoSes == digest
		}
	}
	renewals := func(count int) {
		last := ""
		require.Eventually(t, func() bool {
			l, err := leases.Get(t.Context(), reportName("b"), metav1.GetOptions{})
			if err == nil && l.ResourceVersion != last {
				last = l.ResourceVersion
				count--
			}
			return count < 0
		}, soon, step)
	}
	require.Eventually(t, reported(""), soon, step)
	starting.Report(cluster.Report{Starting: true, EgressQoSes: "early"})
	renewals(3)
	former, err := leases.Get(t.Context(), reportName("a"), metav1.GetOptions{})
	require.NoError(t, err)
	require.JSONEq(t, "{}", former.Annotations[annotationReport])
	require.NoError(t, leases.Delete(t.Context(), reportName("a"), metav1.DeleteOptions{}))
	require.Eventually(t, reported("early"), soon, step)
	starting.Report(cluster.Report{EgressQoSes: "known"})
	require.Eventually(t, reported("known"), soon, step)
}

// outage checks that no leader presumes a node dead after an outage of the API server.
func (f *fixture) outage(t *testing.T) {
	ns := f.namespace(t)
	all := []*daemon{f.daemon(t, ns, "a"), f.daemon(t, ns, "b"), f.daemon(t, ns, "c")}
	everyone := func() bool {
		reports, _ := leader(t, all...).Leading()
		return len(reports) == len(all)
	}
	require.Eventually(t, everyone, soon, step)
	for _, outage := range []struct {
		name        string
		begin, over func(testing.TB)
	}{
		{"killed", f.Kill, f.Up},
		{"frozen", f.Freeze, f.Thaw},
	} {
		t.Log(outage.name)
		outage.begin(t)
		for _, d := range all { // until the leader's Lease has expired, which lasts longer than those of the nodes
			require.Eventually(t, func() bool {
				d.lease.mu.Lock()
				defer d.lease.mu.Unlock()
				return time.Now().After(d.lease.until)
			}, soon, step)
			require.Eventually(t, func() bool { return !d.isLeading() }, soon, step)
		}
		outage.over(t)
		require.True(t, everyone(), "at once, for whoever leads")
	}
}

// link is a daemon's own path to the server.
type link struct {
	kubeconfig string
	to         string
	listener   net.Listener
	mu         sync.Mutex
	open       map[net.Conn]bool // nil: the link is cut
	g          sync.WaitGroup
}

func newLink(t *testing.T, kubeconfig []byte) *link {
	t.Helper()
	config, err := clientcmd.Load(kubeconfig)
	require.NoError(t, err)
	l := &link{kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), open: map[net.Conn]bool{}}
	l.listener, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	for _, c := range config.Clusters {
		server, err := url.Parse(c.Server)
		require.NoError(t, err)
		l.to = server.Host
		c.Server = "https://" + l.listener.Addr().String()
	}
	require.NoError(t, clientcmd.WriteToFile(*config, l.kubeconfig))
	l.g.Go(l.serve)
	t.Cleanup(l.cut)
	return l
}

func (l *link) serve() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", l.to)
		if err != nil {
			near.Close()
			continue
		}
		l.mu.Lock()
		if l.open == nil {
			l.mu.Unlock()
			near.Close()
			far.Close()
			return
		}
		l.open[near], l.open[far] = true, true
		l.mu.Unlock()
		pass := func(from, to net.Conn) {
			_, _ = io.Copy(to, from)
			near.Close()
			far.Close()
		}
		l.g.Go(func() { pass(near, far) })
		l.g.Go(func() { pass(far, near) })
	}
}

// cut breaks the link for good.
func (l *link) cut() {
	l.mu.Lock()
	l.listener.Close()
	for c := range l.open {
		c.Close()
	}
	l.open = nil
	l.mu.Unlock()
	l.g.Wait()
}
