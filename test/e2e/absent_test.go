package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// silver is a network whose interface no node has.
const silver = `  - name: silver
    vrf: vrf-silver
    interfaces: [eth9]
    table: 1009
    peers: [{address: 10.9.0.1, asn: 64609}]
`

// awaitReport waits until a node's report is as wanted.
func awaitReport(t *testing.T, s *stage.Stage, node string, wrong func(status.Report) string) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		out, err := s.Egressway(t.Context(), node, "status", "-o", "json")
		if err != nil {
			return err
		}
		var r status.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			return err
		}
		if text := wrong(r); text != "" {
			return fmt.Errorf("%s: %s; errors %v, networks %+v, problems %v", node, text, r.Errors, r.Networks, r.Problems)
		}
		return nil
	}))
}

// TestAbsentNetwork: the status names a network that a node lacks, and no other network is disturbed.
func TestAbsentNetwork(t *testing.T) {
	m := written(t, []string{"web.yaml"}, "  network: red\n", "  network: red\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: a}}\n")
	s := play(t, stage.Options{Manifests: m, Config: func(c string) string { return c + silver }})
	ctx := t.Context()
	// is waits until a's report of silver, and of the node, are these.
	is := func(ready, usable bool, reason string) {
		t.Helper()
		awaitReport(t, s, "a", func(r status.Report) string {
			n := slices.IndexFunc(r.Networks, func(n status.Network) bool { return n.Name == "silver" })
			peer := slices.IndexFunc(r.Sessions, func(p status.Session) bool { return p.Network == "silver" && p.Peer == "10.9.0.1" })
			has := func(p status.Problem) bool {
				return p.Object == "silver" && (string(p.Reason) == reason || reason == "")
			}
			switch {
			case n < 0 || r.Networks[n].Usable != usable || usable != (r.Networks[n].Lacks == ""):
				return fmt.Sprintf("silver should be usable: %t", usable)
			case peer < 0 || r.Sessions[peer].Up:
				return "the configured peer should be listed, its session down"
			case slices.ContainsFunc(r.Problems, has) != (reason != ""):
				return "silver should have the problem " + reason
			case r.Ready != ready:
				return fmt.Sprintf("the node should be ready: %t", ready)
			case len(r.Errors) > 0:
				return "passes should not fail"
			}
			return ""
		})
		awaitMetric(t, s, "a", `egressway_ready`, func(v float64) bool { return (v == 1) == ready })
		awaitMetric(t, s, "a", `egressway_network_usable{network="silver"}`, func(v float64) bool { return (v == 1) == usable })
		awaitMetric(t, s, "a", `egressway_bgp_session_up{network="silver",peer="10.9.0.1"}`, func(v float64) bool { return v == 0 })
	}
	state := func(state string, count float64) {
		t.Helper()
		awaitMetric(t, s, "a", fmt.Sprintf(`egressway_egressservices_by_state{state=%q}`, state), func(v float64) bool { return v == count })
	}

	for _, f := range ipFamilies {
		for _, pod := range []string{"a-p1", "b-p1"} {
			require.NoError(t, s.Await(ctx, pod, f.outside, "ext-red", f.web.String()))
		}
	}
	is(true, false, "InterfaceMissing") // no service of a's is of silver
	state("served", 1)

	require.NoError(t, s.Write(ctx, "mail.yaml", another(t, "mail", "192.0.2.30", "2001:db8:2::30",
		"  sourceIPBy: LoadBalancerIP\n  network: silver\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: a}}\n")))
	is(false, false, "InterfaceMissing")
	state("served", 1)
	state("problem", 1)

	run(t, s, "a", "ip link add br9 type bridge", "ip link add eth9 master br9 type dummy")
	is(false, false, "VRFNotMade")
	run(t, s, "a", "ip link set eth9 nomaster", "ip link set eth9 up")
	is(true, true, "NoRoute") // nothing leads out of it yet
	run(t, s, "a", "ip link del eth9")
	is(false, false, "InterfaceMissing")

	for _, f := range ipFamilies {
		for _, pod := range []string{"a-p1", "b-p1"} {
			answer, err := s.Node(pod).AskTCP(ctx, f.outside)
			answered(t, answer, err, "ext-red", f.web)
		}
		unanswered(t, func(c context.Context) error { _, err := s.Node("a-p2").AskTCP(c, f.outside); return err })
	}

	// What is said of red's routers turns false with them.
	announced := func(count float64) {
		t.Helper()
		awaitMetric(t, s, "a", `egressway_announced_prefixes{network="red"}`, func(v float64) bool { return v == count })
	}
	up := func(up float64) {
		t.Helper()
		for _, peer := range []string{"10.1.0.1", "10.1.0.2"} {
			awaitMetric(t, s, "a", fmt.Sprintf(`egressway_bgp_session_up{network="red",peer=%q}`, peer), func(v float64) bool { return v == up })
		}
	}
	up(1)
	announced(2)
	for _, r := range []string{"red1", "red2"} {
		run(t, s, r, "ip link set eth1 down")
	}
	up(0)
	announced(0)
	state("served", 0)
	state("problem", 2)
}

// TestHostWithoutNetwork: with manifests a host that loses the network's interface leaves the service to the standby, and takes it back.
func TestHostWithoutNetwork(t *testing.T) {
	now := strings.Replace(manifest(t, "web.yaml"), "network: red\n", "network: red\nstatus: {host: a, standby: b, term: 1}\n", 1)
	s := play(t, stage.Options{Manifests: map[string]string{"cluster.yaml": manifest(t, "cluster.yaml"), "web.yaml": now}})
	routed := func(by string) {
		t.Helper()
		for _, router := range []string{"red1", "red2"} {
			for _, f := range ipFamilies {
				require.NoError(t, s.AwaitRoute(t.Context(), router, host(f.web), f.of(f.red, by).String()))
			}
		}
	}
	is := func(ready, aside bool, host, standby string) {
		t.Helper()
		awaitReport(t, s, "a", func(r status.Report) string {
			if len(r.Services) != 1 {
				return "one EgressService should be listed"
			}
			if own := r.Services[0]; r.Ready != ready || own.Aside != aside || own.Host != host || own.Standby != standby || (len(own.Announced) > 0) == aside {
				return fmt.Sprintf("should be ready %t, aside %t, host %q, standby %q: ready %t, %+v", ready, aside, host, standby, r.Ready, own)
			}
			return ""
		})
	}
	awaitServed(t, s, identities{"a-p1": web, "b-p1": web})
	awaitWatched(t, s, "a", "b")
	routed("a")
	is(true, false, "a", "b")

	run(t, s, "a", "ip link set eth2 name eth8")
	is(false, true, "b", "")
	routed("b")
	awaitServed(t, s, identities{"a-p1": web})
	awaitDropped(t, s, "b-p1") // b cannot know, and steers to a still

	run(t, s, "a", "ip link set eth8 name eth2")
	is(true, false, "a", "b")
	routed("a")
	awaitServed(t, s, identities{"a-p1": web, "b-p1": web})
	requireInnocent(t, s, identities{"a-p1": web, "b-p1": web})
}

// TestNotInForce: a tunnel device that the kernel does not make turns false, within 10 seconds, every word that says it is in force.
func TestNotInForce(t *testing.T) {
	s := play(t, stage.Options{API: true, Config: func(c string) string { return c + "steering: {mode: vxlan}\n" }})
	ctx := t.Context()
	host, _ := hosts(t, s)
	is := func(inForce bool) {
		t.Helper()
		awaitMetric(t, s, host, `egressway_ready`, func(v float64) bool { return (v == 1) == inForce })
		awaitReport(t, s, host, func(r status.Report) string {
			if r.Ready != inForce || (len(r.Errors) == 0) != inForce {
				return fmt.Sprintf("should be in force: %t", inForce)
			}
			return ""
		})
		_, err := s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
			if e.Host != host || meta.IsStatusConditionTrue(e.Conditions, "Programmed") != inForce || meta.IsStatusConditionTrue(e.Conditions, "Ready") != inForce {
				return fmt.Errorf("Programmed and Ready should be %t, the host %s: %+v", inForce, host, e)
			}
			return nil
		})
		require.NoError(t, err)
	}
	is(true)
	require.NoError(t, s.Daemons[host].Signal(syscall.SIGSTOP)) // it would be quicker
	run(t, s, host, "ip link del egressway", "ip link add egressway type dummy")
	require.NoError(t, s.Daemons[host].Signal(syscall.SIGCONT))
	awaitMetric(t, s, host, `egressway_ready`, func(v float64) bool { return v == 0 })
	require.NoError(t, s.API.Apply(ctx,
		"{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {namespace: shop, name: web}, spec: {sourceIPBy: LoadBalancerIP, network: red, nodeSelector: {matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]}}}"))
	is(false)
	run(t, s, host, "ip link del egressway")
	is(true)
}
