package e2e

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// outsiders is a Service whose endpoint is outside of the cluster.
const outsiders = `apiVersion: v1
kind: Service
metadata: {namespace: shop, name: far}
spec: {clusterIP: 10.96.0.77, clusterIPs: [10.96.0.77], ipFamilies: [IPv4], ports: [{port: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: far-1, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
ports: [{name: "", port: 8080, protocol: TCP}]
endpoints: [{addresses: [198.51.100.10], conditions: {ready: true}}]
`

// TestKubeProxy has Kubernetes' own kube-proxy serve on nodes with VRFs, in each of its modes: pods leave with the ingress IP, and hosts in the
// VRF's network and in the default one reach pods by it, by both traffic policies.
func TestKubeProxy(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables", "ipvs"} {
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
			host, standby := hosts(t, s)
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

			t.Run("ClusterIP", func(t *testing.T) {
				for _, f := range ipFamilies {
					everyBackend(t, s, "a-p2", f.webCluster, answers{"a-p1": f.pod("a-p2"), "b-p1": f.pod("a-p2")})
					everyBackend(t, s, "b-p1", f.batchCluster, answers{"a-p2": f.pod("b-p1"), "b-p2": f.pod("b-p1")})
				}
			})
			t.Run("externalTrafficPolicy Cluster", func(t *testing.T) {
				for _, f := range ipFamilies {
					everyBackend(t, s, "ext-red", netip.AddrPortFrom(f.web, 80),
						answers{host + "-p1": f.bridge(host), other(host) + "-p1": f.of(f.lan, host)})
					require.NotEmpty(t, with(s, "red", f.clientRed))
					for _, network := range []string{"blue", "default"} {
						require.Empty(t, with(s, network, f.clientRed))
						require.Empty(t, with(s, network, f.web))
					}
				}
			})
			t.Run("planned move", func(t *testing.T) {
				visits, old := visit(t, s, "ext-red"), talk(t, s, now)
				editNode(t, s, host, "spec:\n", "spec:\n  unschedulable: true\n")
				require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host))
				hostAt(t, s, standby)
				if mode == "ipvs" { // the kernel delivers what belongs to the former host to the node itself
					for _, v := range visits { // once the routers' kernels follow their BGP tables
						require.NoError(t, lab.Wait(ctx, patience, func() error {
							if _, err := v.session.Ask(ctx); err == nil {
								return errors.New("the connection goes on")
							}
							return nil
						}))
					}
				} else {
					visits.goOn(t)
				}
				traffic.answered(t, 3, now)
				old.goOn(t, now, now)
				visit(t, s, "ext-red").goOn(t)
				editNode(t, s, host, "  unschedulable: true\n", "")
				host, standby = standby, host
			})
			t.Run("externalTrafficPolicy Local", func(t *testing.T) {
				pod := host + "-p1"
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
			t.Run("endpoints outside of the cluster", func(t *testing.T) {
				require.NoError(t, s.Write(ctx, "far.yaml", outsiders))
				asks := func(node string) func(context.Context) error {
					return func(ctx context.Context) error {
						_, err := s.Node(node).AskTCP(ctx, netip.MustParseAddrPort("10.96.0.77:8080"))
						return err
					}
				}
				for _, node := range []string{"a", "b"} { // its kube-proxy has the Service
					require.NoError(t, lab.Wait(ctx, patience, func() error { return asks(node)(ctx) }))
				}
				for _, pod := range []string{"a-p1", "b-p1"} {
					if mode == "ipvs" { // by the node's default route, it would be answered
						unanswered(t, asks(pod))
					} else {
						require.NoError(t, asks(pod)(ctx))
					}
				}
			})
		})
	}
}
