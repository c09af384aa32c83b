package kube

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/egressway/egressway/internal/cluster"
)

// aPod returns a Pod that runs on a node; without addresses it does not run yet. Without a kubelet, its deletion is immediate.
func aPod(name, node, addresses string) string {
	status := ""
	if addresses != "" {
		status = "\nstatus: {phase: Running, podIPs: [" + addresses + "]}"
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default, labels: {app: it}}
spec: {nodeName: %s, terminationGracePeriodSeconds: 0, automountServiceAccountToken: false, containers: [{name: it, image: it}]}%s
`, name, node, status)
}

func podsAre(names ...string) func(o cluster.Objects, _ []cluster.Problem, synced bool) bool {
	return func(o cluster.Objects, _ []cluster.Problem, synced bool) bool {
		var have []string
		for key := range o.Pods.Keys() {
			have = append(have, key.Name)
		}
		slices.Sort(have)
		return synced && o.PodsKnown && slices.Equal(have, names)
	}
}

// TestPodsAreComplainedAboutApart has the Pods of this node and those of all nodes fail to be listed: each list has its own complaint.
func TestPodsAreComplainedAboutApart(t *testing.T) {
	c := newTold(t)
	nowhere, err := newClients(Options{Kubeconfig: fileOf(t, []byte(`{apiVersion: v1, kind: Config, current-context: x,
  clusters: [{name: x, cluster: {server: "http://`+freeAddress(t)+`"}}], contexts: [{name: x, context: {cluster: x}}]}`))},
		func(time.Duration) {}, func(netip.Addr) {})
	require.NoError(t, err)
	m := newMemberKeeper(&term{Cluster: c.Cluster, clients: nowhere})
	complaint := func() bool { return len(c.complaints.all()) > 0 }
	fails := func(list func(context.Context, clients, metav1.ListOptions) (runtime.Object, error)) {
		t.Helper()
		_, err := list(t.Context(), nowhere, metav1.ListOptions{})
		require.Error(t, err)
		require.True(t, complaint())
	}

	// The leader follows all Pods no longer.
	fails(c.pods.list)
	m.pods.forget()
	require.True(t, complaint())
	require.NoError(t, c.pods.Replace(nil, ""))
	require.False(t, complaint())

	// This node's Pods are listed.
	fails(m.pods.list)
	require.NoError(t, c.pods.Replace(nil, ""))
	require.True(t, complaint())

	// The term ends.
	c.change(func() bool { return m.pods.turn(true) })
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.follow(ctx)
	}()
	require.True(t, waitFor(t, complaint))
	end()
	<-ended
	require.False(t, complaint())
}

// pods checks that the own node's Pods are followed while they are wanted, and that missing ones in a list are doubted.
func (s *site) pods(t *testing.T) {
	mine, other := aPod("mine", "own", `{ip: 10.244.9.1}, {ip: "fd44:9::1"}`), aPod("other", "elsewhere", "{ip: 10.244.8.1}")
	s.Apply(t, mine)
	s.Apply(t, other)
	p := newProxy(t, s)
	p.set(func() { p.blind = podResource })
	r := read(t, p.kubeconfig, func(o *Options) { o.Pods = true })
	require.True(t, waitFor(t, func() (refused bool) {
		p.set(func() { refused = p.refused > 0 })
		return refused
	}))
	r.until(t, "all but pods", func(cluster.Objects, []cluster.Problem, bool) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return !slices.ContainsFunc(r.kinds[:len(r.kinds)-1], func(f follower) bool { return !f.isSynced() })
	})
	_, synced := r.latest()
	require.False(t, synced, "nothing is known before pods are")
	p.set(func() { p.blind = "" })
	r.until(t, "pods", podsAre("mine"))
	require.Equal(t, cluster.Pod{
		Node: "own", Labels: map[string]string{"app": "it"}, Addresses: []netip.Addr{netip.MustParseAddr("10.244.9.1"), netip.MustParseAddr("fd44:9::1")},
	}, r.objects(t).Pods.At(cluster.Key{Namespace: "default", Name: "mine"}))
	r.untilWell(t)

	_, _, _, _ = r.Objects()
	s.Apply(t, aPod("new", "own", ""))
	var changed cluster.Changed
	require.True(t, waitFor(t, func() bool {
		_, c, _, _ := r.Objects()
		changed.Join(c)
		return changed.Pods[cluster.Key{Namespace: "default", Name: "new"}]
	}))
	require.False(t, changed.All)
	require.Empty(t, changed.Of[cluster.KindEgressService])
	s.Apply(t, aPod("new", "own", "{ip: 10.244.9.2}"))
	r.until(t, "an address", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
		return len(o.Pods.At(cluster.Key{Namespace: "default", Name: "new"}).Addresses) == 1
	})

	// A list misses all of them: a second one refutes it.
	doubted := func(problems []cluster.Problem) bool {
		return slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Object == podResource && p.Reason == ReasonListDoubted })
	}
	p.relist(t, podResource, 1, []string{"mine", "new"})
	r.until(t, "doubt", func(o cluster.Objects, problems []cluster.Problem, _ bool) bool {
		require.Len(t, maps.Collect(o.Pods.All()), 2)
		return doubted(problems)
	})
	r.until(t, "no doubt", func(o cluster.Objects, problems []cluster.Problem, _ bool) bool {
		require.Len(t, maps.Collect(o.Pods.All()), 2)
		return !doubted(problems)
	})

	// They are unwanted, and wanted again.
	r.FollowPods(false)
	o, _ := r.latest()
	require.False(t, o.PodsKnown)
	require.Zero(t, o.Pods)
	s.Delete(t, aPod("new", "own", ""))
	r.until(t, "nothing is kept", func(cluster.Objects, []cluster.Problem, bool) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return !r.pods.synced
	})
	r.untilWell(t)
	r.FollowPods(true)
	_, synced = r.latest()
	require.True(t, synced, "all else goes on meanwhile")
	r.until(t, "pods again", podsAre("mine"))
	s.Delete(t, mine)
	r.until(t, "none", podsAre())
	s.Delete(t, other)
	r.stop()
}
