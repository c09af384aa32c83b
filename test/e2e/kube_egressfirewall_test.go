package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

const firewallCRD = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: egressfirewalls.k8s.ovn.org}}`

// firewallOf is an EgressFirewall of a namespace with these rules.
func firewallOf(namespace string, rules ...string) string {
	head, _, _ := strings.Cut(firewallManifest, "  - ")
	return strings.Replace(head, "shop", namespace, 1) + "  - " + strings.Join(rules, "\n  - ") + "\n"
}

const (
	firewallApplied    = "EgressFirewall Rules applied"
	firewallNotApplied = "EgressFirewall Rules not correctly applied"
)

// first returns the first of two values.
func first[T any](of, _ T) T { return of }

const deny4, deny6 = `{type: Deny, to: {cidrSelector: 0.0.0.0/0}}`, `{type: Deny, to: {cidrSelector: "::/0"}}`

// TestEgressFirewallByAPI has an API server deliver EgressFirewalls, by the CRD of OVN-Kubernetes and by ours, to daemons that run.
func TestEgressFirewallByAPI(t *testing.T) {
	upstream, err := os.ReadFile("../../internal/cluster/kube/testdata/upstream-egressfirewalls.yaml")
	require.NoError(t, err)
	ours := ourCRD(t, "egressfirewalls")
	namespaces := "{apiVersion: v1, kind: Namespace, metadata: {name: open}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: closed}}\n"
	s := play(t, stage.Options{API: true, Manifests: map[string]string{
		"cluster.yaml": manifest(t, "cluster.yaml"), "web.yaml": manifest(t, "web.yaml"), "namespaces.yaml": namespaces,
		"pods.yaml": strings.Join([]string{podOf("shop", "a-p1", "web"), podOf("shop", "b-p1", "web"), podOf("open", "a-p2", "web")}, "---\n"),
	}})
	ctx := t.Context()
	now := identities{"a-p1": web, "b-p1": web, "a-p2": nodeA, "b-p2": nodeB}
	asManifest := func(t *testing.T) {
		t.Helper()
		for _, pod := range []string{"a-p1", "b-p1"} {
			allowed, denied := questions(s, pod)
			awaitAnswers(t, pod, allowed...)
			awaitDenied(t, pod, denied...)
		}
	}
	// stays expects rules in force, and that no packet which they deny comes out.
	stays := func(t *testing.T) {
		t.Helper()
		s.Witness.Reset()
		asManifest(t)
		requireNone(t, s, []identity{web}, func(p lab.Packet) bool {
			return p.Protocol != map[bool]lab.Protocol{true: lab.TCP, false: lab.UDP}[p.Src.Is4()]
		})
	}
	// tables waits until the nftables table of each node has, or has not, chains of EgressFirewalls.
	tables := func(t *testing.T, want bool) {
		t.Helper()
		for _, node := range []string{"a", "b"} {
			require.NoError(t, lab.Wait(ctx, patience, func() error {
				n := inKernel(t, s, node, "nft list table inet egressway | grep -c -e policy- -e firewall -e drop-held || true")
				if slices.Equal(n, []string{"0"}) == want {
					return fmt.Errorf("node %s has chains of EgressFirewalls: %t", node, !want)
				}
				return nil
			}))
		}
	}
	status := func(t *testing.T, words ...string) {
		t.Helper()
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			out, err := s.Egressway(ctx, "a", "status", "-o", "wide")
			for _, w := range words {
				if err == nil && !strings.Contains(out, w) {
					err = errors.New("no " + w + " in\n" + out)
				}
			}
			return err
		}))
	}

	// messages waits for a status whose messages name these nodes, each with these texts.
	messages := func(t *testing.T, text string, of map[string]string) {
		t.Helper()
		awaitText(t, s, "EgressFirewall", func(o textObject) bool {
			named := map[string]string{}
			for _, m := range o.Status.Messages {
				node, words, _ := strings.Cut(m, ": ")
				named[node] = words
			}
			return o.Status.Status == text && maps.EqualFunc(named, of, strings.HasPrefix)
		})
	}

	t.Run("no CRD", func(t *testing.T) {
		awaitAll(t, s, now)
		tables(t, false)
	})

	t.Run("the CRD of OVN-Kubernetes comes, and an object", func(t *testing.T) {
		require.NoError(t, s.API.Apply(ctx, string(upstream)))
		require.NoError(t, s.Write(ctx, "firewall.yaml", firewallManifest))
		asManifest(t)
		stays(t)
		awaitAll(t, s, identities{"a-p2": nodeA})
		requireCluster(t, s, "a-p1")
		messages(t, firewallApplied, map[string]string{"a": firewallApplied, "b": firewallApplied})
	})

	t.Run("a pod that starts under a Deny", func(t *testing.T) {
		require.NoError(t, s.Write(ctx, "closed.yaml", firewallOf("closed", deny4, deny6)))
		awaitDropped(t, s, "b-p2") // no Pod is known
		s.Witness.Reset()
		traffic := ask(t, s, "b-p2")
		require.NoError(t, s.Write(ctx, "new.yaml", podOf("closed", "b-p2", "web")))
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			map4 := strings.Join(inKernel(t, s, "b", "nft list map inet egressway firewalled4"), "\n")
			if !strings.Contains(map4, ipFamilies[0].pod("b-p2").String()) {
				return errors.New("the Pod has no policy yet: " + map4)
			}
			return nil
		}))
		requireCluster(t, s, "b-p2")
		awaitDropped(t, s, "b-p2")
		for _, f := range traffic {
			require.Empty(t, f.stream.Stop().Seen)
		}
		requireNone(t, s, []identity{nodeB}, func(lab.Packet) bool { return true })
		require.NoError(t, s.Remove(ctx, "closed.yaml"))
		awaitAll(t, s, identities{"b-p2": nodeB}) // a Pod whose namespace has no rules
	})

	t.Run("bad rules", func(t *testing.T) {
		require.NoError(t, s.Write(ctx, "open.yaml", firewallOf("open", deny4)))
		require.NoError(t, s.Write(ctx, "firewall.yaml", firewallOf("shop",
			`{type: Allow, to: {cidrSelector: 198.51.100.10}}`, `{type: Allow, to: {cidrSelector: "2001:db8:100::/64"}, ports: [{protocol: TCP, port: 8080}]}`,
			`{type: Deny, to: {cidrSelector: 203.0.113.1}, ports: [{protocol: TCP, port: 8080}]}`)))
		status(t, "spec.egress[0].to.cidrSelector", "spec.egress[2].to.cidrSelector", "write 203.0.113.1/32", "its ports of every destination")
		words := firewallNotApplied + ": spec.egress[0].to.cidrSelector: "
		messages(t, firewallNotApplied, map[string]string{"a": words, "b": words})
		for _, pod := range []string{"a-p1", "b-p1"} {
			s.Witness.Reset()
			for i, f := range ipFamilies {
				tcp := func(ctx context.Context) error { _, err := s.Node(pod).AskTCP(ctx, f.outside); return err }
				udp := func(ctx context.Context) error { _, err := s.Node(pod).AskUDP(ctx, f.outside, 100); return err }
				awaitAnswers(t, "beside its ports", udp, ping(s, pod, f.outside.Addr()))
				if i == 0 {
					awaitDenied(t, "by the Deny that cannot be read", tcp)
				} else {
					awaitAnswers(t, "by the Allow before it", tcp)
				}
			}
		}
		awaitDenied(t, "another namespace", ping(s, "a-p2", stage.Outside4.Addr()))
		awaitAnswers(t, "another namespace", ping(s, "a-p2", stage.Outside6.Addr()))
		require.NoError(t, s.Remove(ctx, "open.yaml"))
		require.NoError(t, s.Write(ctx, "firewall.yaml", firewallManifest))
		asManifest(t)
		stays(t)
	})

	t.Run("as OVN-Kubernetes documents it", func(t *testing.T) {
		require.NoError(t, s.Write(ctx, "firewall.yaml", ofGuide(t, "EgressFirewall")))
		status(t, "NoResolver", "www.example.com") // there is none here
		for _, pod := range []string{"a-p1", "b-p1"} {
			udp := func(ctx context.Context) error { _, err := s.Node(pod).AskUDP(ctx, stage.Outside4, 100); return err }
			tcp := func(ctx context.Context) error { _, err := s.Node(pod).AskTCP(ctx, stage.Outside4); return err }
			awaitAnswers(t, "its second rule", udp, ping(s, pod, stage.Outside6.Addr()))
			awaitDenied(t, "its last rule", tcp, ping(s, pod, stage.Outside4.Addr()))
		}
		require.NoError(t, s.Write(ctx, "firewall.yaml", firewallManifest))
		asManifest(t)
	})

	t.Run("our CRD", func(t *testing.T) {
		require.NoError(t, s.API.Apply(ctx, ours))
		require.Error(t, s.API.Apply(ctx, firewallOf("open", `{type: Deny, to: {cidrSelector: 203.0.113.1}}`)), "refused at once")
		require.Error(t, s.API.Apply(ctx, strings.Replace(firewallOf("open", deny4), "name: default", "name: other", 1)))
		stays(t)
	})

	t.Run("a status holds for the next packet", func(t *testing.T) {
		for range 3 {
			for _, port := range []string{"8081", "8080"} {
				manifest := strings.ReplaceAll(firewallManifest, "8080", port)
				require.NoError(t, s.Write(ctx, "firewall.yaml", manifest))
				awaitText(t, s, "EgressFirewall", isApplied("EgressFirewall"))
				for _, pod := range []string{"a-p1", "b-p1"} {
					for _, q := range first(questions(s, pod)) {
						if port == "8080" {
							require.NoError(t, q(ctx), pod)
							continue
						}
						bounded, cancel := lab.Within(ctx, dropLimit)
						require.Error(t, q(bounded), pod)
						cancel()
					}
				}
			}
		}
	})

	t.Run("the API server is denied", func(t *testing.T) {
		says := func(want bool) func(textObject) bool {
			return func(o textObject) bool {
				valid := meta.FindStatusCondition(o.Status.Conditions, "Valid")
				return o.Status.Status == firewallApplied && valid != nil && strings.Contains(valid.Message, "denies the API server at ") == want
			}
		}
		awaitText(t, s, "EgressFirewall", says(false)) // no endpoint is known
		slice := fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: kubernetes-ipv4, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints: [{addresses: [%s], conditions: {ready: true}}]
ports: [{name: https, protocol: TCP, port: 6443}]
`, ipFamilies[0].of(ipFamilies[0].lan, "c"))
		require.NoError(t, s.API.Apply(ctx, slice))
		awaitText(t, s, "EgressFirewall", says(true))
		require.NoError(t, s.Write(ctx, "firewall.yaml", firewallOf("shop", `{type: Deny, to: {cidrSelector: 198.51.100.0/24}}`)))
		awaitText(t, s, "EgressFirewall", says(false))
		require.NoError(t, s.Write(ctx, "firewall.yaml", firewallManifest))
		asManifest(t)
	})

	t.Run("a node that does not follow is named", func(t *testing.T) {
		node := follower(t, s)
		require.NoError(t, s.Daemons[node].Signal(syscall.SIGSTOP))
		require.NoError(t, s.Write(ctx, "firewall.yaml", firewallOf("shop", deny4, deny6)))
		o := awaitText(t, s, "EgressFirewall", func(o textObject) bool {
			programmed := meta.FindStatusCondition(o.Status.Conditions, "Programmed")
			return programmed != nil && programmed.Message == "not in force yet on "+node
		})
		require.Equal(t, firewallNotApplied, o.Status.Status)
		require.Equal(t, node+": "+firewallNotApplied+": not in force yet", o.Status.Messages[0])
		require.Len(t, o.Status.Messages, 2, "the other node has a pod")
		allowed, _ := questions(s, node+"-p1")
		awaitAnswers(t, node, allowed...) // which is true
		require.NoError(t, s.Daemons[node].Signal(syscall.SIGCONT))
		awaitText(t, s, "EgressFirewall", isApplied("EgressFirewall"))
		awaitDenied(t, node, allowed...)
		require.NoError(t, s.Write(ctx, "firewall.yaml", firewallManifest))
		asManifest(t)
	})

	t.Run("a new Deny ends connections", func(t *testing.T) {
		endsConnections(t, s, "a-p1", "b-p1")
		require.NoError(t, s.Write(ctx, "firewall.yaml", firewallManifest))
		asManifest(t)
	})

	t.Run("nodes by their labels", func(t *testing.T) {
		const first = "  egress:\n"
		require.NoError(t, s.Edit(ctx, "firewall.yaml", first, first+"  - {type: Allow, to: {nodeSelector: {matchLabels: {reach: \"yes\"}}}}\n"))
		node := netip.Addr.String
		for _, f := range ipFamilies {
			awaitDenied(t, node(f.of(f.lan, "b")), ping(s, "a-p1", f.of(f.lan, "b")))
		}
		require.NoError(t, s.Edit(ctx, "cluster.yaml", "labels: {kubernetes.io/hostname: b}", "labels: {kubernetes.io/hostname: b, reach: \"yes\"}"))
		for _, f := range ipFamilies {
			awaitAnswers(t, node(f.of(f.lan, "b")), ping(s, "a-p1", f.of(f.lan, "b")))
		}
		require.NoError(t, s.Write(ctx, "firewall.yaml", firewallManifest))
		for _, f := range ipFamilies {
			awaitDenied(t, node(f.of(f.lan, "b")), ping(s, "a-p1", f.of(f.lan, "b")))
		}
	})

	t.Run("a daemon that starts", func(t *testing.T) {
		s.Daemons["a"].Kill()
		stays(t)
		require.NoError(t, s.StartDaemon("a"))
		stays(t)
	})

	t.Run("the API server is away", func(t *testing.T) {
		require.NoError(t, s.API.Kill(ctx))
		s.Daemons["b"].Kill()
		require.NoError(t, s.StartDaemon("b")) // it knows of no object
		stays(t)
		require.NoError(t, s.API.Up(ctx))
		status(t, "shop/default")
		stays(t)
	})

	t.Run("switched off and on", func(t *testing.T) {
		path := strings.TrimSuffix(s.Kubeconfig("a"), ".kubeconfig") + ".yaml"
		config, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, append(slices.Clone(config), "kinds: {egressFirewall: off}\n"...), 0o644))
		awaitAll(t, s, identities{"a-p1": web})
		require.NoError(t, os.WriteFile(path, config, 0o644))
		asManifest(t)
		stays(t)
	})

	t.Run("the CRD goes with its object, and comes back", func(t *testing.T) {
		s.Witness.Reset()
		require.NoError(t, s.API.Delete(ctx, firewallCRD))
		status(t, "CRDMissing")
		stays(t)
		require.NoError(t, s.API.Apply(ctx, ours)) // without the object
		awaitAll(t, s, now)
		tables(t, false)
		require.NoError(t, s.API.Apply(ctx, firewallManifest))
		asManifest(t)
		stays(t)
	})

	t.Run("deleted", func(t *testing.T) {
		require.NoError(t, s.Remove(ctx, "firewall.yaml"))
		awaitAll(t, s, now)
		tables(t, false)
		s.Witness.Reset()
		awaitAll(t, s, now)
		requireInnocent(t, s, now)
	})
	for node, d := range s.Daemons {
		require.NotContains(t, strings.ToLower(d.Log()), "pass failed", node)
	}
}
