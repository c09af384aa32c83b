package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// written are the topology's objects of the files named, with text replaced; from and to alternate.
func written(t *testing.T, files []string, fromTo ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range append(files, "cluster.yaml") {
		b, err := os.ReadFile(filepath.Join(containerlab, "vrf-egress", "manifests", name))
		require.NoError(t, err)
		all[name] = string(b)
	}
	for i := 0; i+1 < len(fromTo); i += 2 {
		found := false
		for name, content := range all {
			if name != "cluster.yaml" && strings.Contains(content, fromTo[i]) {
				all[name], found = strings.ReplaceAll(content, fromTo[i], fromTo[i+1]), true
			}
		}
		require.True(t, found, "the manifests hold %q", fromTo[i])
	}
	return all
}

// replaced edits the daemon's configuration; from and to alternate.
func replaced(fromTo ...string) func(string) string {
	return strings.NewReplacer(fromTo...).Replace
}

// TestDefaultNetwork: a service without a network leaves by the main table, with its ingress IP; other pods of the same
// nodes leave beside it as ever.
func TestDefaultNetwork(t *testing.T) {
	s := play(t, stage.Options{Manifests: written(t, []string{"web.yaml"}, "  network: red\n", "")})
	ctx := t.Context()
	want := map[string]map[string][]string{"gw": {}}
	allowed := map[string][]string{}
	for _, f := range ipFamilies {
		want["gw"][host(f.web)] = []string{f.of(f.lan, "a").String()}
		allowed["default"] = append(allowed["default"], f.web.String())
		for _, node := range []string{"a", "b", "c"} {
			allowed["default"] = append(allowed["default"], f.of(f.lan, node).String())
		}
	}
	expectRIBs(t, s, want)
	for _, f := range ipFamilies {
		for _, node := range []string{"a", "b"} {
			require.NoError(t, s.Await(ctx, node+"-p1", f.outside, "ext-default", f.web.String()))
		}
	}
	s.Witness.Reset()
	for _, f := range ipFamilies {
		for _, node := range []string{"a", "b"} {
			outsideAnswers(t, s, f, node+"-p1", "ext-default", f.web)
			transfers(t, s, f, node+"-p1", "ext-default", f.web)
			outsideAnswers(t, s, f, node+"-p2", "ext-default", f.of(f.lan, node)) // in no service
		}
		everyBackend(t, s, "ext-default", netip.AddrPortFrom(f.web, 80), answers{"a-p1": f.bridge("a"), "b-p1": f.of(f.lan, "a")})
	}
	require.Empty(t, s.Wrong(allowed))
	require.NoError(t, checkRIBs(s, want))
}

// TestBareTable: a network may be a routing table alone, its uplink in no VRF.
func TestBareTable(t *testing.T) {
	s := play(t, stage.Options{
		Config: replaced("    vrf: vrf-red\n", "", "table: 1001", "table: 1003"),
		Exec:   map[string][]string{"b": {"ip link del vrf-red", "ip addr add fd01::12/64 dev eth2 nodad"}},
	})
	ctx := t.Context()
	await(t, s)
	require.NoError(t, s.RespondOn(ctx, "a", "b"))
	for _, f := range ipFamilies {
		for _, node := range []string{"a", "b"} {
			gateways := map[string][]string{"ipv4": {"10.1.0.1", "10.1.0.2"}, "ipv6": {"fd01::1", "fd01::2"}}[f.name]
			require.NoError(t, lab.Wait(ctx, patience, func() error {
				if have := routes(t, s, node, f, "1003", "default"); !slices.Equal(have, gateways) {
					return fmt.Errorf("%s leaves red by %v, want %v", node, have, gateways)
				}
				return nil
			}))
			outsideAnswers(t, s, f, node+"-p1", "ext-red", f.web)
			outsideAnswers(t, s, f, node+"-p2", "ext-blue", f.of(f.blue, node))
			transfers(t, s, f, node+"-p1", "ext-red", f.web)
			// The uplink's address is one of the node's.
			a, err := s.Node(node+"-p1").AskTCP(ctx, netip.AddrPortFrom(f.of(f.red, node), lab.ResponderPort))
			answered(t, a, err, node, f.pod(node+"-p1"))
		}
		everyBackend(t, s, "ext-red", netip.AddrPortFrom(f.web, 80), answers{"a-p1": f.bridge("a"), "b-p1": f.of(f.lan, "a")})
		for _, network := range []string{"blue", "default"} {
			require.Empty(t, with(s, network, f.clientRed))
			require.Empty(t, with(s, network, f.web))
		}
	}
	require.Empty(t, s.Wrong(asWritten()))
	narrow(t, s)
	overlay(t, s)
	for _, f := range ipFamilies {
		for _, pod := range []string{"a-p1", "b-p1"} {
			run(t, s, "ext-red", "ip route flush cache", "ip -6 route flush cache")
			transfers(t, s, f, pod, "ext-red", f.web)
		}
	}
	require.Empty(t, s.Wrong(asWritten()))
}

// count reads a named counter of a node's table inet probe.
func count(t *testing.T, s *stage.Stage, node, counter string) (packets int) {
	t.Helper()
	out, err := s.Node(node).Run(t.Context(), "nft", "list", "counter", "inet", "probe", counter)
	require.NoError(t, err)
	_, after, found := strings.Cut(out, "packets ")
	require.True(t, found)
	_, err = fmt.Sscan(after, &packets)
	require.NoError(t, err)
	return packets
}

// TestVXLAN: steering by the tunnel, as where nodes share no link.
func TestVXLAN(t *testing.T) {
	s := play(t, stage.Options{Config: func(c string) string { return c + "steering: {mode: vxlan}\n" }})
	await(t, s)
	ctx := t.Context()
	for _, r := range []string{"red1", "red2"} {
		_, err := s.Node(r).Input(ctx, `table inet probe {
			counter fits {}
			counter large {}
			chain forward {
				type filter hook forward priority 0
				ip saddr 192.0.2.10 tcp flags syn tcp option maxseg size <= 1410 counter name fits
				ip saddr 192.0.2.10 tcp flags syn tcp option maxseg size > 1410 counter name large
				ip6 saddr 2001:db8:2::10 tcp flags syn tcp option maxseg size <= 1390 counter name fits
				ip6 saddr 2001:db8:2::10 tcp flags syn tcp option maxseg size > 1390 counter name large
			}
		}`, "nft", "-f", "-")
		require.NoError(t, err)
	}
	counted := func(counter string) int { return count(t, s, "red1", counter) + count(t, s, "red2", counter) }

	for _, f := range ipFamilies {
		fits, large := counted("fits"), counted("large")
		a, err := s.Node("b-p1").AskTCP(ctx, f.outside)
		answered(t, a, err, "ext-red", f.web)
		require.Equal(t, []int{fits + 1, large}, []int{counted("fits"), counted("large")}, "a steered pod's segments fit into the tunnel")
		a, err = s.Node("a-p1").AskTCP(ctx, f.outside)
		answered(t, a, err, "ext-red", f.web)
		require.Equal(t, []int{fits + 1, large + 1}, []int{counted("fits"), counted("large")}, "those of a pod on the host are as they were")

		for _, node := range []string{"a", "b"} {
			outsideAnswers(t, s, f, node+"-p1", "ext-red", f.web)
			outsideAnswers(t, s, f, node+"-p2", "ext-blue", f.of(f.blue, node))
			transfers(t, s, f, node+"-p1", "ext-red", f.web)
		}
		everyBackend(t, s, "ext-red", netip.AddrPortFrom(f.web, 80), answers{"a-p1": f.bridge("a"), "b-p1": f.of(f.lan, "a")})
	}

	// Nobody tells the pod about sizes any more: what TCP agreed on has to do.
	_, err := s.Node("b-p1").Input(ctx, `table inet deaf {
		chain input {
			type filter hook input priority 0
			icmp type destination-unreachable drop
			icmpv6 type packet-too-big drop
		}
	}`, "nft", "-f", "-")
	require.NoError(t, err)
	for _, f := range ipFamilies {
		run(t, s, "b-p1", "ip route flush cache", "ip -6 route flush cache")
		transfers(t, s, f, "b-p1", "ext-red", f.web)
	}
	require.Empty(t, s.Wrong(asWritten()))
}

// another is the service web once more, with other pods, addresses and spec.
func another(t *testing.T, name, ingress4, ingress6, spec string) string {
	t.Helper()
	return written(t, []string{"web.yaml"},
		"name: web", "name: "+name,
		"10.96.0.10", "10.96.0.30", "fd96::10", "fd96::30", "port: 80, ", "port: 25, ",
		"- ip: 192.0.2.10", "- ip: "+ingress4, `- ip: "2001:db8:2::10"`, `- ip: "`+ingress6+`"`,
		"10.244.1.11", "10.244.1.12", "10.244.2.11", "10.244.2.12", "fd44:1::11", "fd44:1::12", "fd44:2::11", "fd44:2::12",
		"  sourceIPBy: LoadBalancerIP\n  network: red\n", spec)["web.yaml"]
}

// TestSharedIngress: several ingress IPs of one service, one of them shared with another service, and an endpoint that
// is a node's own.
func TestSharedIngress(t *testing.T) {
	m := written(t, []string{"web.yaml"},
		"  network: red\n", "  network: red\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: a}}\n",
		`      - ip: "2001:db8:2::10"`, `      - ip: "2001:db8:2::10"`+"\n      - ip: 192.0.2.11\n"+`      - ip: "2001:db8:2::11"`,
		"endpoints:\n  - {addresses: [10.244.1.11]", "endpoints:\n  - {addresses: [10.0.0.12], nodeName: b, conditions: {ready: true}}\n  - {addresses: [10.244.1.11]",
		"endpoints:\n"+`  - {addresses: ["fd44:1::11"]`, "endpoints:\n"+`  - {addresses: ["fd00::12"], nodeName: b, conditions: {ready: true}}`+"\n"+`  - {addresses: ["fd44:1::11"]`)
	m["mail.yaml"] = another(t, "mail", "192.0.2.10", "2001:db8:2::10", "  sourceIPBy: LoadBalancerIP\n  network: red\n")
	s := play(t, stage.Options{Manifests: m})
	ctx := t.Context()
	require.NoError(t, s.RespondOn(ctx, "b"))
	red := map[string][]string{}
	allowed := map[string][]string{}
	for _, f := range ipFamilies {
		red[host(f.web)] = []string{f.of(f.red, "a").String()}
		red[host(f.web.Next())] = []string{f.of(f.red, "a").String()}
		allowed["red"] = append(allowed["red"], f.web.String())
		allowed["default"] = append(allowed["default"], f.of(f.lan, "b").String())
	}
	want := map[string]map[string][]string{"red1": red, "red2": red}
	expectRIBs(t, s, want)
	pods := []string{"a-p1", "b-p1", "a-p2", "b-p2"}
	for _, f := range ipFamilies {
		for _, pod := range pods {
			require.NoError(t, s.Await(ctx, pod, f.outside, "ext-red", f.web.String()))
		}
	}
	s.Witness.Reset()
	for _, f := range ipFamilies {
		for _, pod := range pods {
			outsideAnswers(t, s, f, pod, "ext-red", f.web)
		}
		outsideAnswers(t, s, f, "b", "ext-default", f.of(f.lan, "b")) // the node itself, though it is an endpoint
		for _, ip := range []netip.Addr{f.web, f.web.Next()} {
			everyBackend(t, s, "ext-red", netip.AddrPortFrom(ip, 80), answers{"a-p1": f.bridge("a"), "b-p1": f.of(f.lan, "a"), "b": f.of(f.lan, "a")})
		}
		everyBackend(t, s, "ext-red", netip.AddrPortFrom(f.web, 25), answers{"a-p2": f.bridge("a"), "b-p2": f.of(f.lan, "a")})
		require.Empty(t, with(s, "default", f.clientRed))
	}
	require.Empty(t, s.Wrong(allowed))
	require.NoError(t, checkRIBs(s, want))
}

// TestHosts: the host is where the nodeSelector or a status that stands already says.
func TestHosts(t *testing.T) {
	m := written(t, []string{"web.yaml"}, "  network: red\n", "  network: red\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: b}}\n")
	m["mail.yaml"] = another(t, "mail", "192.0.2.30", "2001:db8:2::30", "  sourceIPBy: LoadBalancerIP\n  network: blue\nstatus:\n  host: b\n")
	s := play(t, stage.Options{Manifests: m})
	ctx := t.Context()
	red, blue, allowed := map[string][]string{}, map[string][]string{}, map[string][]string{}
	mail := map[string]netip.Addr{"ipv4": netip.MustParseAddr("192.0.2.30"), "ipv6": netip.MustParseAddr("2001:db8:2::30")}
	for _, f := range ipFamilies {
		red[host(f.web)] = []string{f.of(f.red, "b").String()}
		blue[host(mail[f.name])] = []string{f.of(f.blue, "b").String()}
		allowed["red"] = append(allowed["red"], f.web.String())
		allowed["blue"] = append(allowed["blue"], mail[f.name].String())
	}
	want := map[string]map[string][]string{"red1": red, "red2": red, "blue1": blue, "blue2": blue}
	expectRIBs(t, s, want)
	for _, f := range ipFamilies {
		for _, node := range []string{"a", "b"} {
			require.NoError(t, s.Await(ctx, node+"-p1", f.outside, "ext-red", f.web.String()))
			require.NoError(t, s.Await(ctx, node+"-p2", f.outside, "ext-blue", mail[f.name].String()))
		}
	}
	awaitWays(t, s, identities{"a-p1": web, "a-p2": {"ext-blue", mail["ipv4"].String(), mail["ipv6"].String()}})
	s.Witness.Reset()
	for _, f := range ipFamilies {
		for _, node := range []string{"a", "b"} {
			outsideAnswers(t, s, f, node+"-p1", "ext-red", f.web)
			outsideAnswers(t, s, f, node+"-p2", "ext-blue", mail[f.name])
		}
	}
	require.Empty(t, s.Wrong(allowed))
	require.NoError(t, checkRIBs(s, want))
}

// TestNoDefaultRoute: nodes have no default route but those of their networks. Selected pods need no other.
func TestNoDefaultRoute(t *testing.T) {
	s := play(t, stage.Options{Manifests: written(t, []string{"web.yaml"})})
	ctx := t.Context()
	for _, node := range []string{"a", "b", "c"} {
		for _, ip := range []string{"-4", "-6"} {
			_, err := s.Node(node).Run(ctx, "ip", ip, "route", "flush", "default")
			require.NoError(t, err)
		}
		require.Equal(t, []string{""}, inKernel(t, s, node, "ip -4 route show default; ip -6 route show default"))
	}
	for _, f := range ipFamilies {
		for _, node := range []string{"a", "b"} { // one of the host, one that is steered there
			require.NoError(t, s.Await(ctx, node+"-p1", f.outside, "ext-red", f.web.String()))
		}
	}
	s.Witness.Reset()
	for _, f := range ipFamilies {
		for _, node := range []string{"a", "b"} {
			outsideAnswers(t, s, f, node+"-p1", "ext-red", f.web)
			transfers(t, s, f, node+"-p1", "ext-red", f.web)
		}
		everyBackend(t, s, "ext-red", netip.AddrPortFrom(f.web, 80), answers{"a-p1": f.bridge("a"), "b-p1": f.of(f.lan, "a")})
	}
	require.Empty(t, s.Wrong(map[string][]string{"red": {web.source4, web.source6}}))
}
