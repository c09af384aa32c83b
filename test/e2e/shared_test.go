package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/trace"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// late is the identity of the pods of shop/late.
var late = identity{"ext-red", "192.0.2.30", "2001:db8:2::30"}

// lateOf returns the manifest of shop/late, whose pods are a-p2 and b-p2, made from that of shop/web.
func lateOf(web string) string {
	return strings.NewReplacer("name: web", "name: late", "service-name: web", "service-name: late", "app: web", "app: late",
		"10.96.0.10", "10.96.0.30", "fd96::10", "fd96::30", "192.0.2.10", late.source4, "2001:db8:2::10", late.source6,
		"10.244.1.11", "10.244.1.12", "fd44:1::11", "fd44:1::12", "10.244.2.11", "10.244.2.12", "fd44:2::11", "fd44:2::12",
	).Replace(web)
}

// narrowed leaves path ids for five networks and one host. The nodes have the networks' interfaces from the beginning.
func narrowed(o stage.Options) stage.Options {
	spare := []string{"ip link add spare1 type dummy", "ip link add spare2 type dummy"}
	o.Exec = map[string][]string{"a": spare, "b": spare, "c": spare}
	edit := o.Config
	o.Config = func(c string) string {
		if edit != nil {
			c = edit(c)
		}
		for i := range spare {
			c += fmt.Sprintf("  - {name: spare%d, interfaces: [spare%d], table: %d}\n", i+1, i+1, 1003+i)
		}
		return c + "marks: {mask: \"0x0f00\"}\n"
	}
	return o
}

const (
	webAtC  = "status: {host: c, standby: a, term: 1}\n"
	lateAtA = "status: {host: a, standby: c, term: 1}\n"
)

// sharing are options of a lab in which pods of node b have two hosts, c and a, which share the only path id that is left.
func sharing(t *testing.T) stage.Options {
	t.Helper()
	in := func(status string) string {
		return strings.Replace(manifest(t, "web.yaml"), "network: red\n", "network: red\n"+status, 1)
	}
	return narrowed(stage.Options{
		Nodes: []string{"a", "b", "c"},
		Manifests: map[string]string{
			"cluster.yaml": manifest(t, "cluster.yaml"), "web.yaml": in(webAtC), "late.yaml": lateOf(in(lateAtA)),
		},
	})
}

// shared is who pods are in such a lab.
func shared() identities {
	return identities{"a-p1": web, "b-p1": web, "a-p2": late, "b-p2": late, "c-p1": nodeC}
}

// requireShared fails unless the packets of both pods of node b take the shared path.
func requireShared(t *testing.T, s *stage.Stage) {
	t.Helper()
	for set, pods := range map[string][]string{"hosts4": {"10.244.2.11", "10.244.2.12"}, "hosts6": {"fd44:2::11", "fd44:2::12"}} {
		list := strings.Join(inKernel(t, s, "b", "nft list map netdev egressway "+set), "\n")
		for _, pod := range pods {
			require.Contains(t, list, pod+" : ")
		}
	}
}

// TestHostsShareAPath gives the pods of node b two hosts and one path id. Their connections go on while their hosts are moved
// on purpose, while the node's daemon ends and starts, and while others flush nftables.
func TestHostsShareAPath(t *testing.T) {
	s := play(t, sharing(t))
	ctx := t.Context()
	all := shared()
	ledBy(t, s, "c")
	awaitServed(t, s, all)
	requireShared(t, s)
	for _, f := range ipFamilies {
		r, exit := traced(t, s, "b", fromTo(f.pod("b-p1"), f.outside.Addr(), "--dport", "8080")...)
		require.Zero(t, exit, r.Verdict.Text)
		require.Equal(t, trace.Handed, r.Verdict.Kind)
		require.Equal(t, "c", r.Verdict.Host)
		require.Equal(t, []string{"shop/web"}, r.Services)
		require.Empty(t, r.Differences)
		require.Empty(t, r.Damage)
	}

	idle := slices.Concat(shifted(t, s, "a-p1", "b-p1", 40000), shifted(t, s, "b-p1", "a-p1", 40001))
	knownTo(t, s, "a", idle)
	s.Witness.Reset()
	old := talk(t, s, all)
	traffic := ask(t, s, slices.Sorted(maps.Keys(all))...)
	traffic.answered(t, 3, all)
	goesOn := func(t *testing.T) {
		t.Helper()
		traffic.answered(t, 5, all)
		old.goOn(t, all, all)
		requireAlive(t, idle)
	}

	was := webAtC
	for i, next := range []struct{ host, standby string }{{"a", "c"}, {"c", "a"}, {"a", "c"}} {
		t.Run(fmt.Sprintf("move %d to %s", i+1, next.host), func(t *testing.T) {
			now := fmt.Sprintf("status: {host: %s, standby: %s, term: %d}\n", next.host, next.standby, 2+i)
			require.NoError(t, s.Edit(ctx, "web.yaml", was, now))
			was = now
			ledBy(t, s, next.host)
			for _, router := range []string{"red1", "red2"} {
				require.NoError(t, s.AwaitStandby(ctx, router, "192.0.2.10/32", inRedOf(next.standby)[0]))
			}
			goesOn(t)
		})
	}
	for name, end := range map[string]func() error{
		"stopped": func() error { return s.Daemons["b"].Stop(ctx) },
		"killed":  func() error { s.Daemons["b"].Kill(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, end())
			goesOn(t)
			require.NoError(t, s.StartDaemon("b"))
			awaitOwner(t, s, "b")
			goesOn(t)
			requireShared(t, s)
		})
	}
	t.Run("flushed", func(t *testing.T) {
		for range 5 {
			_, err := s.Node("b").Run(ctx, "nft", "flush", "ruleset")
			require.NoError(t, err)
			traffic.answered(t, 1, all)
		}
		goesOn(t)
		_, err := s.Node("b").Run(ctx, "nft", "flush map netdev egressway hosts4")
		require.ErrorContains(t, err, "Operation not permitted")
	})
	traffic.stop(t, all)
	requireInnocent(t, s, all)

	t.Run("tunnel deleted", func(t *testing.T) {
		_, err := s.Node("b").Run(ctx, "ip", "link", "del", "egressway")
		require.NoError(t, err)
		awaitAll(t, s, all)
		requireAlive(t, idle)
		requireInnocent(t, s, all)
	})
	t.Run("stray", func(t *testing.T) {
		// A flow of the former host's own pod stays there. Node b, the host now, hands its answers over by the shared path.
		const before = "status: {host: a, standby: b, term: 8}\n"
		require.NoError(t, s.Edit(ctx, "web.yaml", was, before))
		for _, router := range []string{"red1", "red2"} {
			require.NoError(t, s.AwaitStandby(ctx, router, "192.0.2.10/32", inRedOf("b")[0]))
		}
		own := identities{"a-p1": web}
		kept := talk(t, s, own)
		require.NoError(t, s.Edit(ctx, "web.yaml", before, "status: {host: b, standby: a, term: 9}\n"))
		ledBy(t, s, "b")
		require.Contains(t, strings.Join(inKernel(t, s, "b", "nft list map netdev egressway partners4"), "\n"), "192.0.2.10 : ")
		kept.goOn(t, own, own)
		requireInnocent(t, s, all)
	})
}

// TestSharedPathOutlivesAHost makes a host silent that pods of node b reach by the shared path. Their connections go on by the
// standby.
func TestSharedPathOutlivesAHost(t *testing.T) {
	o := sharing(t)
	o.BFD, o.BFDInterval = true, 1000
	s := play(t, o)
	all := shared()
	ledBy(t, s, "c")
	require.NoError(t, s.AwaitStandby(t.Context(), "red1", "192.0.2.10/32", inRedOf("a")[0]))
	awaitServed(t, s, all)
	awaitWatched(t, s, "c", "a", "b")
	requireShared(t, s)
	idle := shifted(t, s, "b-p1", "a-p1", 40001)
	knownTo(t, s, "a", idle)
	s.Witness.Reset()
	require.NoError(t, s.Freeze("c"))
	ledBy(t, s, "a")
	requireAlive(t, idle)
	all = all.with(nil)
	delete(all, "c-p1")
	awaitAll(t, s, all)
	wrong := s.Wrong(allowed(all, shared()))
	maps.DeleteFunc(wrong, func(p lab.Packet, _ int) bool { return p.Interface == "(lost)" && p.Node != "gw" }) // more than the witness can count
	require.Empty(t, wrong)
}

// TestUpgradeToASharedPath swaps the daemon of node b for another version and back. LAB_OTHER names the program of a former
// commit, by which hosts do not share paths yet: it drops the packets of pods whose host has no path id. Connections of the
// other pods go on.
func TestUpgradeToASharedPath(t *testing.T) {
	this, err := lab.Binary()
	require.NoError(t, err)
	ctx := t.Context()
	former, _, err := lab.OtherBinary(ctx)
	require.NoError(t, err)
	o := sharing(t)
	o.Nodes = []string{"a", "c"}
	s := play(t, o)
	require.NoError(t, s.StartDaemonOf("b", former))
	ledBy(t, s, "c")
	all := shared()
	older := identities{"b-p2": late} // of the first service by name, where none is older
	awaitServed(t, s, older)
	old := talk(t, s, older)
	for range 2 {
		require.NoError(t, s.Daemons["b"].Stop(ctx))
		require.NoError(t, s.StartDaemonOf("b", this))
		awaitAll(t, s, all)
		requireShared(t, s)
		old.goOn(t, older, older)
		s.Daemons["b"].Kill()
		require.NoError(t, s.StartDaemonOf("b", former))
		awaitOwner(t, s, "b")
		awaitAll(t, s, older)
		old.goOn(t, older, older)
	}
	requireInnocent(t, s, all)
}
