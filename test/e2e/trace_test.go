package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/trace"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// traced runs egressway trace on a node and gives what it tells, and its exit code.
func traced(t *testing.T, s *stage.Stage, node string, args ...string) (r trace.Result, code int) {
	t.Helper()
	line := mustBinary(t) + " trace " + strings.Join(args, " ")
	out, err := s.Node(node).Run(t.Context(), "sh", "-c", line+" -o json; echo exit $?")
	require.NoError(t, err)
	text, after, found := strings.Cut(out, "exit ")
	require.True(t, found, out)
	_, err = fmt.Sscan(after, &code)
	require.NoError(t, err)
	if text == "" {
		t.Fatalf("%s: exit code %d and no output", line, code)
	}
	require.NoError(t, json.Unmarshal([]byte(text), &r), text)
	if shown, err := s.Node(node).Run(t.Context(), "sh", "-c", line+" || true"); err == nil {
		t.Logf("%s: %s\n%s(exit %d)", node, line, shown, code)
	}
	return r, code
}

func mustBinary(t *testing.T) string {
	t.Helper()
	binary, err := lab.Binary()
	require.NoError(t, err)
	return binary
}

func fromTo(from, to netip.Addr, more ...string) []string {
	return append([]string{"--from", from.String(), "--to", to.String()}, more...)
}

// TestTrace compares what egressway trace tells with where packets truly go.
func TestTrace(t *testing.T) {
	s := play(t, stage.Options{Nodes: []string{"a", "b", "c"}, Config: steady})
	ctx := t.Context()
	all := asDeployed()
	awaitServed(t, s, all)
	require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.10/32", "10.1.0.11"))

	// says compares the verdict about a pod's packets to the outside with who the pod truly is there.
	says := func(t *testing.T, node, pod string, kind trace.Kind, code int) (results []trace.Result) {
		t.Helper()
		for _, f := range ipFamilies {
			r, exit := traced(t, s, node, fromTo(f.pod(pod), f.outside.Addr(), "--dport", "8080")...)
			require.Equal(t, kind, r.Verdict.Kind, r.Verdict.Text)
			require.Equal(t, code, exit)
			results = append(results, r)
		}
		return results
	}
	truly := func(t *testing.T, pod string) {
		t.Helper()
		for _, f := range ipFamilies {
			a, err := s.Node(pod).AskTCP(ctx, f.outside)
			require.NoError(t, err)
			require.NoError(t, stage.Check(a, all[pod].host, all[pod].source(f.outside)))
		}
	}

	t.Run("on the host", func(t *testing.T) {
		truly(t, "a-p1")
		for i, r := range says(t, "a", "a-p1", trace.Leaves, 0) {
			require.Equal(t, "red", r.Verdict.Network)
			require.Equal(t, "vrf-red", r.Verdict.VRF)
			require.Equal(t, ipFamilies[i].web, r.Verdict.Source)
			require.Equal(t, "eth2", r.Verdict.Device)
			require.Equal(t, []string{"shop/web"}, r.Services)
			require.Empty(t, r.Differences)
			require.Empty(t, r.Damage)
			require.NotEmpty(t, r.Flows, "the connection of a moment ago")
		}
		truly(t, "a-p2")
		for i, r := range says(t, "a", "a-p2", trace.Leaves, 0) {
			require.Equal(t, "blue", r.Verdict.Network)
			require.Equal(t, ipFamilies[i].of(ipFamilies[i].blue, "a"), r.Verdict.Source)
			require.Equal(t, []string{"shop/batch"}, r.Services)
		}
	})

	t.Run("on another node", func(t *testing.T) {
		truly(t, "b-p1")
		for i, r := range says(t, "b", "b-p1", trace.Handed, 0) {
			require.Equal(t, "a", r.Verdict.Host)
			require.Equal(t, ipFamilies[i].of(ipFamilies[i].lan, "a"), r.Verdict.NextHop)
			require.Equal(t, []string{"shop/web"}, r.Services)
			require.Empty(t, r.Differences)
		}
	})

	t.Run("not selected", func(t *testing.T) {
		truly(t, "c-p1")
		for _, r := range says(t, "c", "c-p1", trace.Unselected, 0) {
			require.Equal(t, "eth1", r.Verdict.Device)
			require.Empty(t, r.Damage)
		}
	})

	t.Run("in the cluster", func(t *testing.T) {
		for _, f := range ipFamilies {
			_, err := s.Node("a-p1").AskTCP(ctx, netip.AddrPortFrom(f.pod("b-p1"), lab.ResponderPort))
			require.NoError(t, err)
			for _, to := range []netip.Addr{f.pod("b-p1"), f.webCluster.Addr(), f.of(f.lan, "b"), f.of(f.lan, "a"), f.web} {
				r, code := traced(t, s, "a", fromTo(f.pod("a-p1"), to)...)
				require.Equal(t, trace.Cluster, r.Verdict.Kind, r.Verdict.Text)
				require.Zero(t, code)
			}
			_, err = s.Node("c-p1").AskTCP(ctx, netip.AddrPortFrom(f.web, 80)) // not selected
			require.NoError(t, err)
			r, code := traced(t, s, "c", fromTo(f.pod("c-p1"), f.web)...)
			require.Equal(t, trace.Cluster, r.Verdict.Kind, r.Verdict.Text)
			require.Zero(t, code)
			require.NotEmpty(t, r.Flows)
		}
	})

	t.Run("from outside", func(t *testing.T) {
		for _, f := range ipFamilies {
			_, err := s.Node("ext-red").AskTCP(ctx, netip.AddrPortFrom(f.web, 80))
			require.NoError(t, err)
			r, code := traced(t, s, "a", fromTo(f.clientRed, f.web, "--dport", "80")...)
			require.Equal(t, trace.Leaves, r.Verdict.Kind, r.Verdict.Text)
			require.Equal(t, "red", r.Verdict.Network)
			require.Equal(t, f.web, r.Verdict.Source)
			require.Zero(t, code)
			require.Empty(t, r.Differences)

			r, code = traced(t, s, "a", fromTo(f.pod("a-p1"), f.clientRed, "--reply")...)
			require.Equal(t, trace.Leaves, r.Verdict.Kind, r.Verdict.Text)
			require.Zero(t, code)

			// One of the others is the standby, and announces the address as the worse path.
			kinds := map[trace.Kind]int{}
			for _, node := range []string{"b", "c"} {
				r, code = traced(t, s, node, fromTo(f.clientRed, f.web, "--dport", "80")...)
				kinds[r.Verdict.Kind]++
				require.Zero(t, code)
				require.Equal(t, r.Verdict.Kind == trace.Elsewhere, r.Verdict.Host == "a")
			}
			require.Equal(t, map[trace.Kind]int{trace.Leaves: 1, trace.Elsewhere: 1}, kinds)

			r, code = traced(t, s, "a", fromTo(f.clientRed, f.web.Next().Next(), "--dport", "80")...)
			require.Equal(t, trace.Dropped, r.Verdict.Kind, r.Verdict.Text)
			require.Equal(t, 2, code)
		}
	})

	run := func(commands ...string) {
		t.Helper()
		_, err := s.Node("a").Run(ctx, "sh", "-ec", strings.Join(commands, "\n"))
		require.NoError(t, err)
	}
	t.Run("from a network beside the nodes", func(t *testing.T) {
		run("ip link add lan1 type dummy", "ip addr add 198.18.5.1/24 dev lan1", "ip addr add fd18:5::1/64 dev lan1 nodad", "ip link set lan1 up")
		for client, web := range map[string]netip.Addr{"198.18.5.77": ipFamilies[0].web, "fd18:5::77": ipFamilies[1].web} {
			r, code := traced(t, s, "a", "--from", client, "--to", web.String(), "--dport", "80")
			require.Equal(t, trace.Leaves, r.Verdict.Kind, r.Verdict.Text) // a client outside, and no pod of this node
			require.Zero(t, code)
		}
		run("ip link del lan1")
	})

	t.Run("diagnose", func(t *testing.T) {
		out, err := s.Node("a").Run(ctx, "sh", "-c", "cat /etc/egressway/red2.password; echo; "+mustBinary(t)+" diagnose -f - | tar -xzO")
		require.NoError(t, err)
		password, rest, _ := strings.Cut(out, "\n")
		require.NotEmpty(t, password)
		require.NotContains(t, rest, password)
		for _, part := range []string{
			"passwordFile: /etc/egressway/red2.password", "table inet egressway {", "lookup 1001", "proto 142", `"egressServices": [`,
			"egressway_passes_total", "goroutine profile:", "net/ipv4/conf/eth2/rp_filter = ", " connections\n", " as 192.0.2.10:",
		} {
			require.Contains(t, rest, part)
		}
	})

	t.Run("what cannot be", func(t *testing.T) {
		for args, want := range map[string]string{
			"--from nobody --to 198.51.100.10":                             `--from "nobody": an IP address such as 10.244.1.11 or fd44:1::11 is needed`,
			"--from 10.244.1.11 --to 2001:db8::1":                          "--to 2001:db8::1: an address of the same family as --from 10.244.1.11 is needed",
			"--from 10.244.2.11 --to 198.51.100.10":                        "--from 10.244.2.11: a pod of another node, which is reached by eth1 via 10.0.0.12: run this command on that node",
			"--from 10.0.0.11 --to 198.51.100.10":                          "--from 10.0.0.11: an address of this node itself (eth1)",
			"--from 10.244.1.11 --to 198.51.100.10 --dport 0":              `--dport "0": a port from 1 to 65535 is needed`,
			"--from 10.244.1.11 --to 198.51.100.10 --proto sctp":           `--proto "sctp": one of tcp, udp, icmp`,
			"--from 203.0.113.1 --to 192.0.2.10 --reply":                   "--from 203.0.113.1: not a pod of this node; with --reply, give the pod that answers",
			"--from 10.244.1.11 --to 198.51.100.10 --proto icmp --dport 8": "--dport 8: ICMP has no ports",
		} {
			_, err := s.Egressway(ctx, "a", append([]string{"trace"}, strings.Fields(args)...)...)
			require.ErrorContains(t, err, "exit status 1", args)
			require.ErrorContains(t, err, want, args)
		}
	})

	t.Run("no host", func(t *testing.T) {
		const nowhere = "network: red\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: nowhere}}\n"
		require.NoError(t, s.Edit(ctx, "web.yaml", "network: red\n", nowhere))
		awaitDropped(t, s, "a-p1", "b-p1")
		for _, node := range []string{"a", "b"} {
			for _, r := range says(t, node, node+"-p1", trace.Dropped, 2) {
				require.Contains(t, r.Verdict.Text, "no path on this node")
				require.Empty(t, r.Damage)
			}
		}
		require.NoError(t, s.Edit(ctx, "web.yaml", nowhere, "network: red\n"))
		awaitServed(t, s, all)
	})

	t.Run("a route is deleted", func(t *testing.T) {
		s.Daemons["a"].Kill()
		run("ip route del default table 1001 proto 142", "ip -6 route del default table 1001 proto 142")
		awaitDropped(t, s, "a-p1")
		for i, r := range says(t, "a", "a-p1", trace.Dropped, 2) {
			require.Equal(t, fmt.Sprintf("dropped: no route to %s in table 1001", ipFamilies[i].outside.Addr()),
				strings.TrimSuffix(r.Verdict.Text, fmt.Sprintf(", which has no %s route that leads anywhere", []string{"IPv4", "IPv6"}[i])))
			require.Contains(t, r.Daemon, "not running")
		}
		// Others' packets go as ever, and trace says so without the daemon.
		truly(t, "a-p2")
		for _, r := range says(t, "a", "a-p2", trace.Leaves, 0) {
			require.Equal(t, "blue", r.Verdict.Network)
		}
		require.NoError(t, s.StartDaemon("a"))
		awaitServed(t, s, all)
	})

	t.Run("a rule is deleted", func(t *testing.T) {
		s.Daemons["a"].Kill()
		run(`ip rule list | grep 'lookup 1001' | grep -q 701:`, "ip rule del pref 701 lookup 1001", "ip -6 rule del pref 701 lookup 1001")
		awaitDropped(t, s, "a-p1")
		for _, r := range says(t, "a", "a-p1", trace.Dropped, 2) {
			require.Contains(t, r.Verdict.Text, "no rule leads mark")
		}
		require.NoError(t, s.StartDaemon("a"))
		awaitServed(t, s, all)
		says(t, "a", "a-p1", trace.Leaves, 0)
	})

	t.Run("the table is damaged", func(t *testing.T) {
		s.Daemons["a"].Kill()
		run("nft flush chain inet egressway guard")
		for _, r := range says(t, "a", "a-p1", trace.Leaves, 2) {
			require.Equal(t, []string{"chain guard of table inet egressway has no rules"}, r.Damage)
		}
		run("nft delete element inet egressway egress4 '{ 10.244.1.11 }'")
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			a, err := s.Node("a-p1").AskTCP(ctx, stage.Outside4)
			if err != nil {
				return err
			}
			return stage.Check(a, nodeA.host, nodeA.source4)
		}))
		r, code := traced(t, s, "a", "--from", "10.244.1.11", "--to", stage.Outside4.Addr().String())
		require.Equal(t, trace.Unselected, r.Verdict.Kind)
		require.Equal(t, 2, code)

		run("nft delete table inet egressway")
		for _, f := range ipFamilies {
			require.NoError(t, s.Await(ctx, "a-p1", f.outside, nodeA.host, nodeA.source(f.outside)))
		}
		for _, r := range says(t, "a", "a-p1", trace.Damaged, 2) {
			require.Contains(t, r.Verdict.Text, "nftables table inet egressway is missing, so")
			require.Contains(t, r.Verdict.Text, "by eth1 via")
		}
		require.NoError(t, s.StartDaemon("a"))
		awaitServed(t, s, all)
		says(t, "a", "a-p1", trace.Leaves, 0)
	})
}
