package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// dropLimit is how long an answer may take while we look whether there is none, as lab.Within counts it: they come within milliseconds.
const dropLimit = 300 * time.Millisecond

// awaitDropped waits until pods get no answer from the outside, by no protocol of either family.
func awaitDropped(t *testing.T, s *stage.Stage, pods ...string) {
	t.Helper()
	var questions []func(context.Context) error
	for _, pod := range pods {
		for _, to := range outside {
			answered := func(how string, err error) error {
				if err != nil {
					return nil
				}
				return fmt.Errorf("pod %s to %s by %s: answered", pod, to, how)
			}
			questions = append(questions,
				func(ctx context.Context) error {
					_, err := s.Node(pod).AskTCP(ctx, to)
					return answered("TCP", err)
				},
				func(ctx context.Context) error {
					_, err := s.Node(pod).AskUDP(ctx, to, 1)
					return answered("UDP", err)
				},
				func(ctx context.Context) error {
					return answered("ICMP", s.Node(pod).Ping(ctx, to.Addr(), 8))
				})
		}
	}
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		ctx, cancel := lab.Within(t.Context(), dropLimit)
		defer cancel()
		return atOnce(questions, func(q func(context.Context) error) error { return q(ctx) })
	}))
}

// outage is a way to take the path of some pods away.
type outage struct {
	name    string
	pods    []string // that lose it; all others keep theirs
	begin   func(t *testing.T)
	end     func(t *testing.T)
	instead identities // who the pods are meanwhile; nil: nobody, their packets are dropped
}

// play has every pod ask all the time, takes the path away and gives it back.
func (o outage) play(t *testing.T, s *stage.Stage, all identities) {
	t.Helper()
	lost := identities{}
	for _, pod := range o.pods {
		lost[pod] = all[pod]
	}
	s.Witness.Reset()
	old := talk(t, s, all)
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
	traffic.answered(t, 3, all)

	o.begin(t)
	if o.instead == nil {
		awaitDropped(t, s, o.pods...)
	} else {
		awaitAll(t, s, o.instead)
	}
	requireInnocent(t, s, all, o.instead)

	// From here on not a single packet of theirs comes out, neither of new connections nor of old ones.
	s.Witness.Reset()
	meanwhile := identities{}
	for pod, i := range all {
		if _, ok := lost[pod]; !ok {
			meanwhile[pod] = i
		}
	}
	meanwhile = meanwhile.with(o.instead)
	if o.instead == nil {
		awaitDropped(t, s, o.pods...)
		old.unheard(t, lost)
	} else {
		traffic.answered(t, 5, meanwhile)
	}
	requireInnocent(t, s, meanwhile)

	o.end(t)
	traffic.answered(t, 5, all)
	awaitAll(t, s, all)
	awaitWays(t, s, all) // the next one loses nothing
	if o.instead == nil {
		traffic.stop(t, all, all.with(lost.nobody()))
	} else {
		traffic.stop(t, all, all.with(lost.nobody()).with(o.instead))
	}
	requireInnocent(t, s, all, o.instead)
}

// TestNoPath takes the path of selected pods away in every way there is. Their packets are dropped on their node, and
// all is well again when the path is back, without anybody's help.
func TestNoPath(t *testing.T) {
	// The daemon adopts vrf-red where it finds it and makes vrf-blue.
	s := play(t, stage.Options{
		Config: func(c string) string {
			return strings.Replace(c, "    vrf: vrf-red\n    interfaces: [eth2]\n    table: 1001\n", "    vrf: vrf-red\n", 1)
		},
		Exec: map[string][]string{"a": {
			"ip link add vrf-red type vrf table 1001", "ip link set vrf-red up", "ip link set eth2 master vrf-red", "ip addr add fd01::11/64 dev eth2 nodad",
		}},
	})
	ctx := t.Context()
	all := asDeployed()
	require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.10/32", "10.1.0.11"))
	awaitServed(t, s, all)

	edit := func(file string, fromTo ...string) func(*testing.T) {
		return func(t *testing.T) { t.Helper(); require.NoError(t, s.Edit(ctx, file, fromTo...)) }
	}
	run := func(node string, commands ...string) func(*testing.T) {
		return func(t *testing.T) {
			t.Helper()
			_, err := s.Node(node).Run(ctx, "sh", "-ec", strings.Join(commands, "\n"))
			require.NoError(t, err)
		}
	}
	red := func(commands ...string) func(*testing.T) {
		return func(t *testing.T) {
			t.Helper()
			for _, router := range []string{"red1", "red2"} {
				_, err := s.Node(router).VTY("bgpd", append([]string{"configure terminal", "router bgp 64601"}, commands...)...)
				require.NoError(t, err)
			}
		}
	}
	const nowhere = "network: red\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: nowhere}}\n"
	webPods, bluePods := []string{"a-p1", "b-p1"}, []string{"a-p2"}
	outages := []outage{
		{
			name: "no node matches", pods: webPods,
			begin: edit("web.yaml", "network: red\n", nowhere), end: edit("web.yaml", nowhere, "network: red\n"),
		},
		{
			name: "no node is Ready", pods: webPods,
			begin: edit("cluster.yaml", `status: "True"`, `status: "False"`), end: edit("cluster.yaml", `status: "False"`, `status: "True"`),
		},
		{
			name: "no route", pods: webPods,
			begin: red("address-family ipv4 unicast", "no neighbor NODES default-originate", "exit-address-family",
				"address-family ipv6 unicast", "no neighbor NODES default-originate"),
			end: red("address-family ipv4 unicast", "neighbor NODES default-originate", "exit-address-family",
				"address-family ipv6 unicast", "neighbor NODES default-originate"),
		},
		{
			name: "no BGP session", pods: webPods,
			begin: red("neighbor NODES shutdown"), end: red("no neighbor NODES shutdown"),
		},
		{
			name: "uplink down", pods: webPods,
			begin: run("a", "ip link set eth2 down"),
			end:   run("a", "ip link set eth2 up", "ip addr replace fd01::11/64 dev eth2 nodad"),
		},
		{
			name: "VRF missing", pods: webPods,
			begin: func(t *testing.T) {
				t.Helper()
				run("a", "ip link del vrf-red")(t)
				// The table's routes leave with the device, but until the daemon has seen that, it may set them again.
				awaitProblem(t, s, "a", plan.ReasonVRFMissing, "", true)
			},
			end: run("a", "ip link add vrf-red type vrf table 1001", "ip link set vrf-red up", "ip link set eth2 master vrf-red",
				"ip addr replace fd01::11/64 dev eth2 nodad"),
		},
		{
			name: "uplink of the other network down", pods: bluePods,
			begin: run("a", "ip link set eth3 down"),
			end:   run("a", "ip link set eth3 up", "ip addr replace fd02::11/64 dev eth3 nodad"),
		},
	}
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) { o.play(t, s, all) })
	}

	t.Run("VRF of ours deleted", func(t *testing.T) {
		s.Witness.Reset()
		traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
		traffic.answered(t, 3, all)
		times := sessionsOf(t, s, "blue1:10.2.0.11", "blue2:10.2.0.11")
		run("a", "ip link del vrf-blue")(t)
		traffic.answered(t, 5, all) // the daemon makes it again at once
		for session, n := range times {
			router, peer, _ := strings.Cut(session, ":")
			awaitSession(t, s, router, peer, n) // over the new device: routes may be missing until then
		}
		awaitLearned(t, s)
		awaitAll(t, s, all)
		traffic.stop(t, all, all.with(identities{"a-p2": {}}))
		requireInnocent(t, s, all)
	})

	t.Run("allowed", func(t *testing.T) {
		require.NoError(t, s.EditConfig(func(c string) string { return c + "onNoPath: allow\n" }))
		asNode := identities{"a-p1": nodeA, "b-p1": nodeB}
		for _, o := range []outage{outages[0], outages[2]} {
			o.instead = asNode
			if o.name == "no route" {
				o.instead = identities{"a-p1": nodeA} // b cannot know of a's routes: what it steers there is dropped there
			}
			t.Run(o.name, func(t *testing.T) { o.play(t, s, all) })
		}
	})
}
