package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster/kube"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// hosts asks the API server for the host and the standby of web, once they are in force.
func hosts(t *testing.T, s *stage.Stage) (host, standby string) {
	t.Helper()
	e, err := s.AwaitStatus(t.Context(), "shop", "web", func(e egressv1.EgressServiceStatus) error {
		if e.Host == "" || e.Standby == "" || !meta.IsStatusConditionTrue(e.Conditions, "Programmed") || !meta.IsStatusConditionTrue(e.Conditions, "Ready") {
			return errors.New("want a host and a standby in force")
		}
		return nil
	})
	require.NoError(t, err)
	return e.Status.Host, e.Status.Standby
}

// hostAt waits until both routers of red use exactly one path to the ingress IPs of web, by node.
func hostAt(t *testing.T, s *stage.Stage, node string) {
	t.Helper()
	for _, router := range []string{"red1", "red2"} {
		require.NoError(t, s.AwaitRoute(t.Context(), router, "192.0.2.10/32", inRedOf(node)[0]))
		require.NoError(t, s.AwaitRoute(t.Context(), router, "2001:db8:2::10/128", inRedOf(node)[1]))
	}
}

// patience is how long what should come soon may take, on a machine that does much else.
const patience = lab.Patience

func other(node string) string { return map[string]string{"a": "b", "b": "a"}[node] }

// TestKubernetes changes what pods are to the outside world by the objects of an API server, under their traffic.
func TestKubernetes(t *testing.T) {
	s := play(t, stage.Options{API: true, Manifests: oneFile(t)})
	ctx := t.Context()
	host, standby := hosts(t, s)
	hostAt(t, s, host)
	require.NoError(t, s.AwaitStandby(ctx, "red1", "192.0.2.10/32", inRedOf(standby)[0]))
	require.NoError(t, s.AwaitHost(ctx, "shop", "batch", "ALL", ""))
	now := asDeployed()
	awaitServed(t, s, now)

	change := changer(t, s, now)
	webAs := func(i identity) identities { return identities{"a-p1": i, "b-p1": i} }

	selector := "network: red\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: " + standby + "}}\n"
	t.Run("host by selector", func(t *testing.T) {
		watches := []*fibWatch{watchFIB(t, s, "red1"), watchFIB(t, s, "red2")}
		moving(t, s, now, func() {
			require.NoError(t, s.Edit(ctx, "shop.yaml", "network: red\n", selector))
			require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host), "the former host is kept for its flows")
			hostAt(t, s, standby)
		}, "a-p1", "b-p1")
		for _, w := range watches {
			w.requireMoved(t, "192.0.2.10", inRedOf(host)[0], inRedOf(standby)[0])
			w.requireMoved(t, "2001:db8:2::10", inRedOf(host)[1], inRedOf(standby)[1])
		}
	})
	change("selector gone: no failback", nil, func(t *testing.T) {
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host))
	}, selector, "network: red\n")
	moved := identity{"ext-red", "192.0.2.11", "2001:db8:2::11"}
	change("ingress IP", webAs(moved), func(t *testing.T) {
		require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.10/32"))
	}, "ip: 192.0.2.10", "ip: 192.0.2.11", `ip: "2001:db8:2::10"`, `ip: "2001:db8:2::11"`)
	change("ingress IP back", webAs(web), nil,
		"ip: 192.0.2.11", "ip: 192.0.2.10", `ip: "2001:db8:2::11"`, `ip: "2001:db8:2::10"`)
	change("network", webAs(identity{"ext-blue", web.source4, web.source6}), nil, "network: red", "network: blue # of web")
	change("network back", webAs(web), nil, "network: blue # of web", "network: red")
	change("mode", identities{
		"a-p1": {"ext-red", "10.1.0.11", "fd01::11"}, "b-p1": {"ext-red", "10.1.0.12", "fd01::12"},
	}, func(t *testing.T) {
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", "ALL", ""))
	}, "sourceIPBy: LoadBalancerIP", "sourceIPBy: Network # of web")
	change("mode back", webAs(web), nil, "sourceIPBy: Network # of web", "sourceIPBy: LoadBalancerIP")
	change("object deleted", identities{"a-p1": nodeA, "b-p1": nodeB}, func(t *testing.T) {
		require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.10/32"))
	}, webEgress, "# no web\n")
	change("object created", webAs(web), nil, "# no web\n", webEgress)
	change("endpoint removed", identities{"b-p1": nodeB}, nil, webEndpoint4, "# 4\n", webEndpoint6, "# 6\n")
	change("endpoint added", identities{"b-p1": web}, nil, "# 4\n", webEndpoint4, "# 6\n", webEndpoint6)

	for _, node := range []string{"a", "b"} {
		require.NotContains(t, strings.ToLower(s.Daemons[node].Log()), "pass failed", "the daemon of %s had no trouble", node)
	}
}

// TestStatusIsPutRight has another than the leader write false statuses: no packet goes astray, and the leader puts them right.
func TestStatusIsPutRight(t *testing.T) {
	s := play(t, stage.Options{API: true})
	ctx := t.Context()
	now := asDeployed()
	host, standby := hosts(t, s)
	awaitServed(t, s, now)
	traffic := ask(t, s, "a-p1", "b-p1")
	traffic.answered(t, 3, now)
	for _, status := range []string{
		"{host: c, standby: null}", // a node without a daemon
		fmt.Sprintf("{host: %s, standby: %s}", standby, host),
		`{host: "", standby: null}`,
	} {
		require.NoError(t, s.API.Apply(ctx, fmt.Sprintf(
			"{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {namespace: shop, name: web}, spec: {sourceIPBy: LoadBalancerIP, network: red}, status: %s}", status)))
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", host, standby))
		traffic.answered(t, 3, now)
	}
	traffic.stop(t, now)
	hostAt(t, s, host)
	requireInnocent(t, s, now)
}

// TestLeaderDies kills the daemon that elects, and then takes the host's node away.
func TestLeaderDies(t *testing.T) {
	s := play(t, stage.Options{API: true})
	ctx := t.Context()
	now := asDeployed()
	host, standby := hosts(t, s)
	awaitServed(t, s, now)
	traffic := ask(t, s, "a-p1", "b-p1", "c-p1")
	traffic.answered(t, 3, now)

	leader := ""
	for node, d := range s.Daemons {
		if strings.Contains(d.Log(), "msg=leading") {
			leader = node
		}
	}
	require.NotEmpty(t, leader)
	s.Daemons[leader].Kill()
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		if !strings.Contains(s.Daemons[other(leader)].Log(), "msg=leading") {
			return errors.New("the other daemon does not lead")
		}
		return nil
	}))
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", host, standby), "nothing moves because a daemon died")
	hostAt(t, s, host)
	traffic.answered(t, 3, now)
	require.NoError(t, s.StartDaemon(leader))

	// The node of the host is not Ready any more, by what the API server says.
	const ready, not = `- {type: Ready, status: "True"}`, `- {type: Ready, status: "False"}`
	nodes, err := s.Manifest("cluster.yaml")
	require.NoError(t, err)
	documents := strings.Split(nodes, "---\n")
	for i, d := range documents {
		if strings.Contains(d, "name: "+host+"\n") {
			documents[i] = strings.Replace(d, ready, not, 1)
		}
	}
	require.NoError(t, s.Write(ctx, "cluster.yaml", strings.Join(documents, "---\n")))
	_, err = s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
		if e.Host != standby {
			return errors.New("want the standby as host")
		}
		return nil
	})
	require.NoError(t, err)
	hostAt(t, s, standby)
	traffic.answered(t, 5, now)
	require.NoError(t, s.Write(ctx, "cluster.yaml", nodes))
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host), "no failback")
	traffic.stop(t, now, now.nobody())
	requireInnocent(t, s, now)
}

// TestAPIServerAway takes the API server away twice: from daemons that run and one that starts; then, for LAB_API_AWAY if
// that is set (1h), until the host dies without a word. It prints when a change is in force after the server answers again.
func TestAPIServerAway(t *testing.T) {
	const interval = 2000 // a machine that is busy now and then is not to be mistaken for dead routers
	long := time.Duration(0)
	if text := os.Getenv("LAB_API_AWAY"); text != "" {
		var err error
		long, err = time.ParseDuration(text)
		require.NoError(t, err, "LAB_API_AWAY")
	}
	s := play(t, stage.Options{API: true, BFD: true, BFDInterval: interval, Manifests: oneFile(t)})
	ctx := t.Context()
	now := asDeployed()
	host, standby := hosts(t, s)
	awaitServed(t, s, now)
	awaitWatched(t, s, host, standby)
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
	traffic.answered(t, 3, now)
	away := func() {
		t.Helper()
		for _, node := range []string{"a", "b"} { // a daemon that has yet to reach it by some request would not say it again
			awaitReport(t, s, node, func(r status.Report) string {
				if i := slices.IndexFunc(r.Problems, func(p status.Problem) bool { return p.Reason == kube.ReasonUnreachable }); i >= 0 {
					return "has not reached the server by every request"
				}
				return ""
			})
		}
		const silent = "it does not answer"
		said := map[string]int{}
		for _, node := range []string{"a", "b"} {
			said[node] = strings.Count(s.Daemons[node].Log(), silent)
		}
		require.NoError(t, s.API.Kill(ctx))
		awaitLog(t, s, silent, said, "a", "b")
	}
	back := func(then identities, fromTo ...string) {
		t.Helper()
		require.NoError(t, s.API.Up(ctx))
		answers := time.Now()
		require.NoError(t, s.Edit(ctx, "shop.yaml", fromTo...))
		awaitAll(t, s, then)
		t.Logf("a change was in force %s after the API server answered again", time.Since(answers))
	}

	away()
	require.NoError(t, s.Daemons[standby].Stop(ctx))
	require.NoError(t, s.StartDaemon(standby))
	awaitLog(t, s, "it does not answer", nil, standby)
	traffic.answered(t, 10, now)
	traffic.stop(t, now)
	moved := identity{"ext-red", "192.0.2.11", "2001:db8:2::11"}
	before, now := now, now.with(identities{"a-p1": moved, "b-p1": moved})
	back(now, "ip: 192.0.2.10", "ip: 192.0.2.11", `ip: "2001:db8:2::10"`, `ip: "2001:db8:2::11"`)
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", host, standby))
	requireInnocent(t, s, before, now)

	awaitWays(t, s, now)
	s.Witness.Reset()
	traffic = ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
	require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.11/32", inRedOf(host)[0]))
	require.NoError(t, s.AwaitStandby(ctx, "red1", "192.0.2.11/32", inRedOf(standby)[0]))
	away()
	traffic.answered(t, 3, now)
	traffic.stop(t, now)
	inForce := map[string][]string{}
	for _, node := range []string{"a", "b"} {
		inForce[node] = lasting(t, s, node)
	}
	var watches []*fibWatch
	for _, router := range []string{"red1", "red2", "blue1", "blue2"} {
		watches = append(watches, watchFIB(t, s, router))
	}
	select {
	case <-ctx.Done():
	case <-time.After(long):
	}
	for node, was := range inForce {
		require.Equal(t, was, lasting(t, s, node), "what is in force at node %s after %s", node, long)
	}
	sameRoutes(t, watches, moved.source4, moved.source6, "192.0.2.20", "2001:db8:2::20")
	awaitAll(t, s, now)
	require.NoError(t, s.Freeze(host))
	require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.11/32", inRedOf(standby)[0]))
	awaitAll(t, s, identities{standby + "-p1": moved, "c-p1": nodeC})
	back(identities{standby + "-p1": web}, "ip: 192.0.2.11", "ip: 192.0.2.10", `ip: "2001:db8:2::11"`, `ip: "2001:db8:2::10"`)
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, ""))
	require.NoError(t, s.Thaw(host))
	awaitAll(t, s, before)
	require.NoError(t, s.Write(ctx, "zoo.yaml", lateManifest))
	awaitAll(t, s, identities{"c-p1": nodeC}) // no daemon is on node c
	require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.10/32", inRedOf(standby)[0]))
	_, err := s.AwaitStatus(ctx, "shop", "zoo", func(e egressv1.EgressServiceStatus) error {
		if e.Host == "" {
			return errors.New("want a host")
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host))
	requireInnocent(t, s, before, now)
}
