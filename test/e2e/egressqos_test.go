package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// qosManifest gives pods with app=web a DSCP value for the outside world, for pods, and for the rest, each by family.
const qosManifest = `apiVersion: k8s.ovn.org/v1
kind: EgressQoS
metadata: {namespace: shop, name: default}
spec:
  egress:
  - {dscp: 46, dstCIDR: 198.51.100.0/24, podSelector: {matchLabels: {app: web}}}
  - {dscp: 34, dstCIDR: "2001:db8:100::/64", podSelector: {matchLabels: {app: web}}}
  - {dscp: 1, dstCIDR: 198.51.0.0/16, podSelector: {matchLabels: {app: web}}}
  - {dscp: 26, dstCIDR: 10.244.0.0/16, podSelector: {matchLabels: {app: web}}}
  - {dscp: 28, dstCIDR: "fd44::/16", podSelector: {matchLabels: {app: web}}}
  - {dscp: 10, podSelector: {matchLabels: {app: web}}}
`

// dscp are the values of a family by that manifest: of packets to the outside, to pods, and to other destinations.
type dscp struct{ outside, pods, others uint8 }

var asManifest = map[string]dscp{"ipv4": {46, 26, 10}, "ipv6": {34, 28, 10}}

// qosStage is a stage with witnesses at the routers, at pods and inside of nodes.
type qosStage struct {
	*stage.Stage
	inner *lab.Witness
}

// awaitDSCP waits until the packets of a question all have a DSCP value, at every place where the witnesses see them.
func (s *qosStage) awaitDSCP(t *testing.T, what string, want uint8, sent func(lab.Packet) bool, ask func(context.Context) error) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		s.Witness.Reset()
		s.inner.Reset()
		if err := ask(t.Context()); err != nil {
			return err
		}
		seen := s.Witness.Find(sent)
		for p, n := range s.inner.Find(sent) {
			seen[p] += n
		}
		if len(seen) == 0 {
			return fmt.Errorf("%s: no packets", what)
		}
		for p := range seen {
			if p.DSCP != want {
				return fmt.Errorf("%s: %s, want DSCP %d", what, p, want)
			}
		}
		return nil
	}))
}

// askBoth asks by each protocol.
func askBoth(s *stage.Stage, pod string, to netip.AddrPort, options ...lab.SocketOption) func(context.Context) error {
	return func(ctx context.Context) error {
		if _, err := s.Node(pod).AskTCP(ctx, to, options...); err != nil {
			return err
		}
		_, err := s.Node(pod).AskUDP(ctx, to, 100, options...)
		return err
	}
}

// outsideSees waits until a pod's packets have a DSCP value at the routers, behind SNAT.
func (s *qosStage) outsideSees(t *testing.T, pod string, as identity, f ipFamily, want uint8, options ...lab.SocketOption) {
	t.Helper()
	source := netip.MustParseAddr(as.source(f.outside))
	s.awaitDSCP(t, pod+" to "+f.outside.String(), want, func(p lab.Packet) bool {
		return p.Src == source && p.Dst == f.outside.Addr() && atRouter(p)
	}, askBoth(s.Stage, pod, f.outside, options...))
}

// atRouter reports whether a router saw a packet.
func atRouter(p lab.Packet) bool {
	_, is := stage.Routers[p.Node+":"+p.Interface]
	return is
}

// podSees waits until packets from one pod have a DSCP value where another pod receives them: those of questions, or of answers.
func (s *qosStage) podSees(t *testing.T, from, to string, f ipFamily, want uint8, ask func(context.Context) error) {
	t.Helper()
	s.awaitDSCP(t, from+" to "+to, want, func(p lab.Packet) bool {
		return p.Node == to && !p.Out && p.Src == f.pod(from) && p.Dst == f.pod(to) && p.Protocol != f.icmp
	}, ask)
}

// TestEgressQoS looks at the DSCP values of packets of pods, selected or not, outside and inside the cluster.
func TestEgressQoS(t *testing.T) {
	s := qosStage{Stage: play(t, stage.Options{
		Nodes: stage.Nodes, Config: func(c string) string { return c + "steering: {mode: vxlan}\n" },
		Manifests: map[string]string{
			"cluster.yaml": manifest(t, "cluster.yaml"), "web.yaml": manifest(t, "web.yaml") + "status: {host: a}\n",
			"pods.yaml": podManifests(), "qos.yaml": qosManifest,
		},
	})}
	ctx := t.Context()
	var err error
	s.inner, err = s.Lab.Witness("a-p1", "b-p1", "b-p2", "c-p1", "a:egressway", "b:eth1")
	require.NoError(t, err)
	pods := identities{"a-p1": web, "b-p1": web, "a-p2": nodeA, "c-p1": nodeC, "b-p2": nodeB}
	awaitAll(t, s.Stage, pods)

	t.Run("outside", func(t *testing.T) {
		for _, f := range ipFamilies {
			for _, pod := range []string{"a-p1", "b-p1", "a-p2", "c-p1"} { // on the host, steered, and not selected by an EgressService
				s.outsideSees(t, pod, pods[pod], f, asManifest[f.name].outside)
				s.outsideSees(t, pod, pods[pod], f, asManifest[f.name].outside, lab.WithDSCP(12))
			}
			s.outsideSees(t, "b-p2", nodeB, f, 0)
			s.outsideSees(t, "b-p2", nodeB, f, 12, lab.WithDSCP(12))
		}
	})

	t.Run("in the tunnel, and on it", func(t *testing.T) {
		for _, f := range ipFamilies {
			want := asManifest[f.name].outside
			s.awaitDSCP(t, "steered", want, func(p lab.Packet) bool {
				return p.Node == "a" && p.Interface == "egressway" && !p.Out && p.Src == f.pod("b-p1")
			}, askBoth(s.Stage, "b-p1", f.outside))
			outer := func(p lab.Packet) bool {
				return p.Node == "b" && p.Out && p.Protocol == lab.UDP && p.Dst == ipFamilies[0].of(ipFamilies[0].lan, "a") && p.DSCP == want
			}
			require.NotEmpty(t, s.inner.Find(outer), "%s", f.name)
		}
	})

	t.Run("in the cluster", func(t *testing.T) {
		for _, f := range ipFamilies {
			to := func(pod string) netip.AddrPort { return netip.AddrPortFrom(f.pod(pod), lab.ResponderPort) }
			want := asManifest[f.name].pods
			s.podSees(t, "a-p1", "c-p1", f, want, askBoth(s.Stage, "a-p1", to("c-p1")))
			s.podSees(t, "c-p1", "a-p1", f, want, askBoth(s.Stage, "a-p1", to("c-p1"))) // the answers
			s.podSees(t, "a-p1", "b-p2", f, want, askBoth(s.Stage, "a-p1", to("b-p2")))
			s.podSees(t, "b-p2", "a-p1", f, 0, askBoth(s.Stage, "a-p1", to("b-p2"))) // not selected
			// A Service: the destination is the pod behind it.
			s.awaitDSCP(t, "by the ClusterIP", want, func(p lab.Packet) bool {
				return p.Node == "b-p1" && !p.Out && p.Src == f.pod("c-p1") && p.Protocol != f.icmp
			}, func(ctx context.Context) error {
				for range 8 { // some go to a-p1
					if _, err := s.Node("c-p1").AskTCP(ctx, f.webCluster); err != nil {
						return err
					}
				}
				return nil
			})
		}
	})

	t.Run("answers to clients outside", func(t *testing.T) {
		for _, f := range ipFamilies {
			s.awaitDSCP(t, "to a client", asManifest[f.name].others, func(p lab.Packet) bool {
				return p.Src == f.web && p.Dst == f.clientRed && atRouter(p) && !p.Out
			}, askBoth(s.Stage, "ext-red", netip.AddrPortFrom(f.web, 80)))
		}
	})

	t.Run("a changed rule", func(t *testing.T) {
		require.NoError(t, s.Edit(ctx, "qos.yaml", "dscp: 46", "dscp: 18", "dscp: 34", "dscp: 20"))
		for _, pod := range []string{"a-p1", "b-p1", "c-p1"} {
			s.outsideSees(t, pod, pods[pod], ipFamilies[0], 18)
			s.outsideSees(t, pod, pods[pod], ipFamilies[1], 20)
		}
		require.NoError(t, s.Edit(ctx, "qos.yaml", "dscp: 18", "dscp: 46", "dscp: 20", "dscp: 34"))
		s.outsideSees(t, "a-p1", web, ipFamilies[0], 46)
	})

	t.Run("another label", func(t *testing.T) {
		labelled := "name: a-p1, labels: {app: %s}"
		require.NoError(t, s.Edit(ctx, "pods.yaml", fmt.Sprintf(labelled, "web"), fmt.Sprintf(labelled, "db")))
		s.outsideSees(t, "a-p1", web, ipFamilies[0], 0)
		s.outsideSees(t, "a-p2", nodeA, ipFamilies[0], 46)
		require.NoError(t, s.Edit(ctx, "pods.yaml", fmt.Sprintf(labelled, "db"), fmt.Sprintf(labelled, "web")))
		s.outsideSees(t, "a-p1", web, ipFamilies[0], 46)
	})

	t.Run("others change the table while no daemon runs", func(t *testing.T) {
		for what, damage := range map[string]string{
			"flush": "nft flush ruleset; nft -f /etc/cni/cni.nft", "an element": "nft delete element inet egressway classes4 '{ 10.244.1.11 }'",
			"the chain": "nft flush chain inet egressway qos",
		} {
			s.Daemons["a"].Kill()
			inKernel(t, s.Stage, "a", damage)
			require.NoError(t, s.StartDaemon("a"))
			for _, f := range ipFamilies {
				s.outsideSees(t, "a-p1", web, f, asManifest[f.name].outside)
			}
			require.Contains(t, strings.Join(inKernel(t, s.Stage, "a", "nft list map inet egressway classes4"), "\n"), "10.244.1.11", what)
		}
	})

	t.Run("status and metrics", func(t *testing.T) {
		out, err := s.Egressway(ctx, "a", "status")
		require.NoError(t, err)
		require.Regexp(t, `(?m)^EGRESSQOS +RULES +PODS HERE +PROBLEM$`, out)
		require.Regexp(t, `(?m)^shop/default +6 +2 +-$`, out)
	})

	t.Run("removal", func(t *testing.T) {
		require.NoError(t, s.Remove(ctx, "qos.yaml"))
		for _, f := range ipFamilies {
			for _, pod := range []string{"a-p1", "b-p1", "a-p2", "c-p1"} {
				s.outsideSees(t, pod, pods[pod], f, 0)
				s.outsideSees(t, pod, pods[pod], f, 12, lab.WithDSCP(12))
			}
		}
		for _, node := range stage.Nodes {
			require.Equal(t, []string{"0"}, inKernel(t, s.Stage, node, "nft list table inet egressway | grep -c -e qos -e classes -e dscp || true"))
		}
	})
	requireInnocent(t, s.Stage, pods)
}
