// Package netns gives tests of the kernel network namespaces: one of the test's own, or several that stand for machines.
package netns

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
)

// Enter gives the test its own network namespace, with lo up, and returns a handle in it.
func Enter(t *testing.T) *netlink.Handle {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	require.NoError(t, unix.Unshare(unix.CLONE_NEWNET), "this test needs a namespace of its own: run it with the lab wrapper")
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	IP(t, "link set lo up")
	return h
}

// IP runs the lines as arguments of ip(8) and returns their output.
func IP(t *testing.T, lines ...string) string {
	t.Helper()
	var printed strings.Builder
	for _, line := range lines {
		out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(line)...).CombinedOutput()
		require.NoError(t, err, "ip %s: %s", line, out)
		printed.Write(out)
	}
	return printed.String()
}

// Show parses the output of ip -j.
func Show(t *testing.T, line string) []map[string]any {
	t.Helper()
	var list []map[string]any
	if out := strings.TrimSpace(IP(t, "-d -j "+line)); out != "" {
		require.NoError(t, json.Unmarshal([]byte(out), &list), "ip -d -j %s: %s", line, out)
	}
	return list
}

// State returns the output of ip about links, addresses, routes and rules, one line each, without values that change by
// themselves.
func State(t *testing.T) []string {
	t.Helper()
	Eventually(t, func() bool { return !strings.Contains(IP(t, "-6 addr show"), "tentative") }, "addresses settle")
	var lines []string
	for _, what := range []string{
		"link show", "addr show", "-4 route show table all", "-6 route show table all", "-4 rule show",
		"-6 rule show",
	} {
		for _, entry := range Show(t, what) {
			if _, l3mdev := entry["l3mdev"]; l3mdev { // the kernel adds this rule with the first VRF and keeps it
				continue
			}
			line, err := json.Marshal(entry)
			require.NoError(t, err)
			lines = append(lines, what+" "+Lifetimes.ReplaceAllString(string(line), ""))
		}
	}
	slices.Sort(lines)
	return lines
}

// Lifetimes matches counters that run down.
var Lifetimes = regexp.MustCompile(`"(valid|preferred)_life_time":\d{1,9}\b`)

// Uplink creates a veth pair: one end is up with addresses, the other is in the same namespace without any.
func Uplink(t *testing.T, name string, addrs ...string) {
	t.Helper()
	IP(t, "link add "+name+" type veth peer name "+name+"p", "link set "+name+"p up", "link set "+name+" up")
	for _, a := range addrs {
		line := "addr add " + a + " dev " + name
		if strings.Contains(a, ":") {
			line += " nodad"
		}
		IP(t, line)
	}
}

// Patience is how long Eventually polls.
const Patience = lab.Patience

// Eventually polls until a condition holds.
func Eventually(tb testing.TB, holds func() bool, what string) {
	tb.Helper()
	deadline := time.Now().Add(Patience)
	for tick := time.NewTicker(10 * time.Millisecond); !holds(); <-tick.C {
		require.True(tb, time.Now().Before(deadline), "not within %s: %s", Patience, what)
	}
}

// Quiet runs apply and requires that the kernel reports no change during it.
func Quiet(t *testing.T, apply func() error) {
	t.Helper()
	before := State(t)
	sock, err := vnl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	require.NoError(t, err)
	defer sock.Close()
	require.NoError(t, apply())
	n, _, err := unix.Recvfrom(sock.GetFd(), make([]byte, 1<<16), unix.MSG_DONTWAIT)
	require.ErrorIs(t, err, unix.EAGAIN, "a second apply touched the kernel (%d bytes of events)", n)
	require.Equal(t, before, State(t), "a second apply changed something")
}

// Forwarding parses the forwarding database of a device from bridge -j.
func Forwarding(t *testing.T, device string) (list []map[string]any) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "bridge", "-j", "fdb", "show", "dev", device).Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &list))
	return list
}

// Ruleset returns the listing of all nftables tables.
func Ruleset(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// NFT runs nft and returns its output.
func NFT(t *testing.T, line string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", line).CombinedOutput()
	return string(out), err
}

// MustNFT runs nft, which must succeed.
func MustNFT(t *testing.T, line string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", line).CombinedOutput()
	require.NoError(t, err, "nft %s: %s", line, out)
}

// Routes lists the routes of a table, of one protocol, as "dst [type] gateway@device,... metric", in ip's order.
func Routes(t *testing.T, family string, table uint32, protocol uint8) []string {
	t.Helper()
	var lines []string
	for _, r := range Show(t, fmt.Sprintf("-%s route show table %d proto %d", family, table, protocol)) {
		legs, _ := r["nexthops"].([]any)
		if legs == nil {
			legs = []any{r}
		}
		var hops []string
		for _, l := range legs {
			leg := l.(map[string]any)
			gateway := gatewayOf(leg)
			if gateway != nil || leg["dev"] != nil && r["type"] == "unicast" {
				hops = append(hops, fmt.Sprintf("%v@%v", cmp.Or(gateway, any("-")), leg["dev"]))
			}
		}
		slices.Sort(hops)
		line := fmt.Sprint(r["dst"], " ", hops)
		if r["type"] != "unicast" {
			line = fmt.Sprint(r["type"], " ", r["dst"])
		}
		if m, ok := r["metric"].(float64); ok && m != 1024 {
			line += fmt.Sprint(" metric ", uint32(m))
		}
		lines = append(lines, line)
	}
	return lines
}

// gatewayOf returns a next hop's gateway, which may be of the other family; nil: it has none.
func gatewayOf(leg map[string]any) any {
	if via, ok := leg["via"].(map[string]any); ok {
		return via["host"]
	}
	return leg["gateway"]
}

// ProcessorTime reports an operation's CPU time, which on a busy machine says more than its duration.
func ProcessorTime(b *testing.B) (end func()) {
	b.Helper()
	before := ProcessorUsed(b)
	return func() { b.ReportMetric(float64(ProcessorUsed(b)-before)/float64(b.N)/1e6, "cpu-ms/op") }
}

// ProcessorUsed returns the CPU time that this process used so far.
func ProcessorUsed(b *testing.B) (nanoseconds int64) {
	b.Helper()
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}
