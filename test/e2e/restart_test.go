package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// inKernel is what a command says on a node, line by line.
func inKernel(t *testing.T, s *stage.Stage, node, command string) []string {
	t.Helper()
	out, err := s.Node(node).Run(t.Context(), "sh", "-ec", command)
	require.NoError(t, err)
	return strings.Split(strings.TrimRight(out, "\n"), "\n")
}

// What of a node's kernel must outlive the daemon: our table with all elements and path ids, less its owner; rules, routes and
// devices.
const ours = "nft list table inet egressway | grep -v -e '^table' -e '^.flags' -e '^$'; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; ip -d link"

// volatile is what a kernel says of time and use.
var volatile = regexp.MustCompile(`( expires \d+sec| expires [0-9hmsd]+|timer +[\d.]+)`)

func withoutTime(lines []string) []string {
	for i, l := range lines {
		lines[i] = volatile.ReplaceAllString(l, "")
	}
	return lines
}

// unlearned is all but the routes that peers tell, whose next hops are those of the moment. Traffic shows that they are there.
func unlearned(lines []string) []string {
	return slices.DeleteFunc(withoutTime(lines), func(l string) bool {
		return strings.Contains(l, "proto 142 metric 20 ") || strings.HasPrefix(l, "\tnexthop via")
	})
}

// awaitLearned waits for a default route of each family by both routers of both networks, on node a.
func awaitLearned(t *testing.T, s *stage.Stage) {
	t.Helper()
	awaitLearnedOn(t, s, "a")
}

// awaitWhole waits until nodes a and b have learned from all routers, and all routers from them: nothing is lost from then on. Earlier,
// half of the answers may go to a router that has no route yet.
func awaitWhole(t *testing.T, s *stage.Stage) {
	t.Helper()
	awaitLearnedOn(t, s, "a")
	awaitLearnedOn(t, s, "b")
	for _, n := range []string{"1", "2"} {
		for prefix, hops := range map[string][]string{"192.0.2.10/32": {"10.1.0.11"}, "2001:db8:2::10/128": {"fd01::11"}} {
			require.NoError(t, s.AwaitRoute(t.Context(), "red"+n, prefix, hops...))
		}
		for prefix, hops := range map[string][]string{"192.0.2.20/32": {"10.2.0.11", "10.2.0.12"}, "2001:db8:2::20/128": {"fd02::11", "fd02::12"}} {
			require.NoError(t, s.AwaitRoute(t.Context(), "blue"+n, prefix, hops...))
		}
	}
}

func awaitLearnedOn(t *testing.T, s *stage.Stage, node string) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		routes := inKernel(t, s, node, "for t in 1001 1002; do ip route show table $t proto 142; ip -6 route show table $t proto 142; done")
		if legs := strings.Count(strings.Join(routes, "\n"), "nexthop via"); legs != 8 {
			return fmt.Errorf("%s has %d next hops, want 8: %v", node, legs, routes)
		}
		return nil
	}))
}

// established is how often a router's sessions with a node came up so far, and whether all are up.
func established(s *stage.Stage, router, peer string) (times int, up bool, err error) {
	var all map[string]struct {
		State string `json:"bgpState"`
		Times int    `json:"connectionsEstablished"`
	}
	err = s.Node(router).VTYJSON(&all, "bgpd", "show bgp neighbors "+peer+" json")
	return all[peer].Times, all[peer].State == "Established", err
}

// awaitSession waits until a session came up more often than times.
func awaitSession(t *testing.T, s *stage.Stage, router, peer string, times int) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		now, up, err := established(s, router, peer)
		if err == nil && (now <= times || !up) {
			err = fmt.Errorf("%s has had %d sessions with %s, up now: %t", router, now, peer, up)
		}
		return err
	}))
}

// TestRestart ends the daemon on the host and starts it again: pods and routers, which have BFD, do not notice.
func TestRestart(t *testing.T) {
	s := play(t, stage.Options{Manifests: oneFile(t), BFD: true, BFDInterval: 1000})
	ctx := t.Context()
	all := asDeployed()
	sessions := map[string]string{"red1": "10.1.0.11", "red2": "10.1.0.11", "blue1": "10.2.0.11", "blue2": "10.2.0.11"}
	require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.10/32", "10.1.0.11"))
	require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.20/32", "10.2.0.11", "10.2.0.12"))
	for router, peer := range sessions {
		awaitSession(t, s, router, peer, 0)
	}
	awaitServed(t, s, all)
	for name, end := range map[string]func() error{
		"stopped": func() error { return s.Daemons["a"].Stop(ctx) },
		"killed":  func() error { s.Daemons["a"].Kill(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			awaitWhole(t, s)
			before := unlearned(inKernel(t, s, "a", ours))
			times := map[string]int{}
			for router, peer := range sessions {
				n, _, err := established(s, router, peer)
				require.NoError(t, err)
				times[router] = n
			}
			s.Witness.Reset()
			old := talk(t, s, all)
			traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
			traffic.answered(t, 5, all)

			var watches []*fibWatch
			for router := range sessions {
				watches = append(watches, watchFIB(t, s, router))
			}

			require.NoError(t, end())
			traffic.answered(t, 80, all) // longer than BFD would take to notice
			require.Equal(t, before, unlearned(inKernel(t, s, "a", ours)), "what is in force when the daemon has ended")
			old.goOn(t, all, all)

			require.NoError(t, s.StartDaemon("a"))
			traffic.answered(t, 10, all)
			require.Equal(t, before, unlearned(inKernel(t, s, "a", ours)), "what is in force when the daemon is back")
			awaitLearned(t, s)
			old.goOn(t, all, all)
			traffic.stop(t, all)
			requireInnocent(t, s, all)
			for router, peer := range sessions {
				n, up, err := established(s, router, peer)
				require.NoError(t, err)
				require.True(t, up, "%s", router)
				require.Equal(t, times[router], n, "%s: sessions up to now", router)
			}
			for _, w := range watches {
				require.Empty(t, w.changes("192.0.2.10"), "%s", w.router)
				require.Empty(t, w.changes("2001:db8:2::10"), "%s", w.router)
			}
		})
	}

	t.Run("object removed meanwhile", func(t *testing.T) {
		require.NoError(t, s.Daemons["a"].Stop(ctx))
		require.NoError(t, s.Write(ctx, "shop.yaml", manifest(t, "web.yaml")))
		require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.20/32", "10.2.0.11"), "b has withdrawn")
		require.NoError(t, s.StartDaemon("a"))
		require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.20/32"))
		require.NoError(t, s.AwaitRoute(ctx, "blue2", "2001:db8:2::20/128"))
		after := all.with(identities{"a-p2": nodeA, "b-p2": nodeB})
		awaitAll(t, s, after)
		table := inKernel(t, s, "a", "nft list map inet egressway egress4; nft list map inet egressway egress6")
		require.False(t, slices.ContainsFunc(table, func(l string) bool {
			return strings.Contains(l, "10.244.1.12") || strings.Contains(l, "fd44:1::12")
		}), "%v", table)
	})
}

// foreign is what others have on a node: marks, rules, tables, routes and devices that look like ours but are not.
var foreign = []string{
	"ip rule add fwmark 0x1/0xff lookup 77 priority 900", "ip rule add from 10.9.9.0/24 lookup 78 priority 30000",
	"ip route add 203.0.113.77/32 via 10.0.0.1 table 77", "ip route add 203.0.113.78/32 via 10.0.0.1 proto 141",
	"ip route add 203.0.113.79/32 via 10.0.0.1 table 1003 proto static",
	"ip link add foreign0 type dummy", "ip addr add 10.9.9.1/24 dev foreign0", "ip link set foreign0 up",
	"ip link add vrf-foreign type vrf table 1099", "ip link set vrf-foreign up",
	"nft add table inet foreign", "nft add set inet foreign s '{ type ipv4_addr; }'", "nft add element inet foreign s '{ 192.0.2.10 }'",
	"nft add chain inet foreign c '{ type filter hook prerouting priority mangle; }'", "nft add rule inet foreign c meta mark set meta mark or 0x1",
	"nft add table ip egressway", "nft add chain ip egressway c '{ type nat hook postrouting priority srcnat; }'",
	"nft add rule ip egressway c ip saddr 10.99.0.0/16 masquerade",
}

// TestForeignState has the daemon serve and be cleaned away on a node that is used by others too.
func TestForeignState(t *testing.T) {
	s := play(t, stage.Options{Nodes: []string{"c"}, Exec: map[string][]string{
		"a": append([]string{"ip route add 203.0.113.80/32 via 10.1.0.1 dev eth2"}, foreign...), "b": foreign,
	}})
	ctx := t.Context()
	// Interfaces that were in a VRF come last where the kernel lists its own IPv6 routes by interface.
	const everything = "nft -a list ruleset; ip -d rule; ip -6 -d rule; ip -4 -d route show table all; ip -6 -d route show table all | sort; ip -d link; ip addr; " +
		"grep -r . /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/*l3mdev* 2>/dev/null | grep -v stable_secret"
	all := asDeployed()
	nodes := []string{"a", "b"}
	before := map[string][]string{}
	for _, node := range nodes {
		before[node] = inKernel(t, s, node, everything)
		require.NoError(t, s.StartDaemon(node))
	}
	require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.20/32", "10.2.0.11", "10.2.0.12", "10.2.0.13"))
	delete(all, "c-p1")
	awaitAll(t, s, all)
	for _, node := range nodes {
		require.NotEqual(t, before[node], inKernel(t, s, node, everything))
		_, err := s.Egressway(ctx, node, "cleanup", "--config", "/etc/egressway/config.yaml")
		require.ErrorContains(t, err, "stop it first", "while the daemon runs")
		stopping, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		require.NoError(t, s.Daemons[node].Stop(stopping))
		_, err = s.Egressway(ctx, node, "cleanup", "--config", "/etc/egressway/config.yaml")
		require.NoError(t, err)
		require.Equal(t, withoutTime(before[node]), withoutTime(inKernel(t, s, node, everything)), "node %s", node)
	}
}
