package e2e

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// TestKubeProxy has Kubernetes' own kube-proxy serve on nodes with VRFs, in nftables and iptables mode: pods leave with the ingress IP, and hosts in the
// VRF's network and in the default one reach pods by it, by both traffic policies.
func TestKubeProxy(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			s := play(t, stage.Options{API: true, KubeProxy: mode})
			t.Cleanup(func() {
				for node, proxy := range s.Proxies {
					if t.Failed() {
						t.Logf("kube-proxy of %s: %s", node, proxy.Log())
					}
				}
			})
			ctx := t.Context()
			host, _ := hosts(t, s)
			hostAt(t, s, host)
			for _, f := range ipFamilies {
				for _, pod := range []string{"a-p2", "b-p2"} { // each node's kube-proxy has its rules
					require.NoError(t, lab.Wait(ctx, patience, func() error {
						_, err := s.Node(pod).AskTCP(ctx, f.webCluster)
						return err
					}))
				}
			}
			now := asDeployed()
			awaitServed(t, s, now)
			traffic := ask(t, s, "a-p1", "b-p1")
			traffic.answered(t, 3, now)

			pod, far := host+"-p1", other(host)+"-p1"
			t.Run("ClusterIP", func(t *testing.T) {
				for _, f := range ipFamilies {
					everyBackend(t, s, "a-p2", f.webCluster, answers{"a-p1": f.pod("a-p2"), "b-p1": f.pod("a-p2")})
					everyBackend(t, s, "b-p1", f.batchCluster, answers{"a-p2": f.pod("b-p1"), "b-p2": f.pod("b-p1")})
				}
			})
			t.Run("externalTrafficPolicy Cluster", func(t *testing.T) {
				for _, f := range ipFamilies {
					everyBackend(t, s, "ext-red", netip.AddrPortFrom(f.web, 80), answers{pod: f.bridge(host), far: f.of(f.lan, host)})
					require.NotEmpty(t, with(s, "red", f.clientRed))
					for _, network := range []string{"blue", "default"} {
						require.Empty(t, with(s, network, f.clientRed))
						require.Empty(t, with(s, network, f.web))
					}
				}
			})
			t.Run("externalTrafficPolicy Local", func(t *testing.T) {
				require.NoError(t, s.Edit(ctx, "web.yaml", "  type: LoadBalancer\n", "  type: LoadBalancer\n  externalTrafficPolicy: Local\n"))
				awaitServed(t, s, now)
				for _, f := range ipFamilies {
					require.NoError(t, s.Await(ctx, "ext-red", netip.AddrPortFrom(f.web, 80), pod, f.clientRed.String()))
					for range 6 {
						a, err := s.Node("ext-red").AskTCP(ctx, netip.AddrPortFrom(f.web, 80))
						answered(t, a, err, pod, f.clientRed)
						a, err = s.Node("ext-red").AskUDP(ctx, netip.AddrPortFrom(f.web, 80), 100)
						answered(t, a, err, pod, f.clientRed)
					}
				}
			})
			traffic.answered(t, 3, now)
			require.Empty(t, s.Wrong(asWritten()))
		})
	}
}
