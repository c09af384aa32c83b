package kernel

import (
	"context"
	"encoding/json"
	"net/netip"
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

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab"
)

// newNode gives the test its own network namespace, with lo up, and returns a handle in it.
func newNode(t *testing.T) *netlink.Handle {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	require.NoError(t, unix.Unshare(unix.CLONE_NEWNET), "this test needs a namespace of its own: run it with the lab wrapper")
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	ip(t, "link set lo up")
	return h
}

// ip runs the lines as arguments of ip(8) and returns what they print.
func ip(t *testing.T, lines ...string) string {
	t.Helper()
	var printed strings.Builder
	for _, line := range lines {
		out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(line)...).CombinedOutput()
		require.NoError(t, err, "ip %s: %s", line, out)
		printed.Write(out)
	}
	return printed.String()
}

// show parses the output of ip -j.
func show(t *testing.T, line string) []map[string]any {
	t.Helper()
	var list []map[string]any
	if out := strings.TrimSpace(ip(t, "-d -j "+line)); out != "" {
		require.NoError(t, json.Unmarshal([]byte(out), &list), "ip -d -j %s: %s", line, out)
	}
	return list
}

// state returns the output of ip about links, addresses, routes and rules, one line each, without values that change by
// themselves.
func state(t *testing.T) []string {
	t.Helper()
	eventually(t, func() bool { return !strings.Contains(ip(t, "-6 addr show"), "tentative") }, "addresses settle")
	var lines []string
	for _, what := range []string{"link show", "addr show", "-4 route show table all", "-6 route show table all", "-4 rule show", "-6 rule show"} {
		for _, entry := range show(t, what) {
			if _, l3mdev := entry["l3mdev"]; l3mdev { // the kernel adds this rule with the first VRF and keeps it
				continue
			}
			line, err := json.Marshal(entry)
			require.NoError(t, err)
			lines = append(lines, what+" "+lifetimes.ReplaceAllString(string(line), ""))
		}
	}
	slices.Sort(lines)
	return lines
}

// lifetimes matches counters that run down.
var lifetimes = regexp.MustCompile(`"(valid|preferred)_life_time":\d{1,9}\b`)

// uplink creates a veth pair: one end is up with addresses, the other is in the same namespace without any.
func uplink(t *testing.T, name string, addrs ...string) {
	t.Helper()
	ip(t, "link add "+name+" type veth peer name "+name+"p", "link set "+name+"p up", "link set "+name+" up")
	for _, a := range addrs {
		line := "addr add " + a + " dev " + name
		if strings.Contains(a, ":") {
			line += " nodad"
		}
		ip(t, line)
	}
}

const patience = lab.Patience

// eventually polls until a condition holds.
func eventually(t *testing.T, holds func() bool, what string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for tick := time.NewTicker(10 * time.Millisecond); !holds(); <-tick.C {
		require.True(t, time.Now().Before(deadline), "not within %s: %s", patience, what)
	}
}

// quiet runs apply and requires that the kernel reports no change during it.
func quiet(t *testing.T, apply func() error) {
	t.Helper()
	before := state(t)
	sock, err := vnl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	require.NoError(t, err)
	defer sock.Close()
	require.NoError(t, apply())
	n, _, err := unix.Recvfrom(sock.GetFd(), make([]byte, 1<<16), unix.MSG_DONTWAIT)
	require.ErrorIs(t, err, unix.EAGAIN, "a second apply touched the kernel (%d bytes of events)", n)
	require.Equal(t, before, state(t), "a second apply changed something")
}

// watchHere runs watch in the test's namespace and returns a channel that receives its wake-ups.
func watchHere(t *testing.T, buffer int, n ...*Node) <-chan struct{} {
	t.Helper()
	if n == nil {
		n = []*Node{{}}
	}
	ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	woken := make(chan struct{}, 1)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- n[0].watch(ctx, buffer, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, unix.Close(ns))
	})
	return woken
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func via(gateway, device string) plan.NextHop {
	return plan.NextHop{Gateway: addr(gateway), Device: device}
}

// forwarding parses the forwarding database of a device from bridge -j.
func forwarding(t *testing.T, device string) (list []map[string]any) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "bridge", "-j", "fdb", "show", "dev", device).Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &list))
	return list
}

// These functions change routes and rules as another program does: through their own sockets.

func addRoutes(ctx context.Context, h *netlink.Handle, desired []plan.Route) error {
	return (*conn)(nil).addRoutes(ctx, h, desired, func(_ *plan.Route, err error) error { return err })
}

func pruneRoutes(ctx context.Context, desired []plan.Route) error {
	return (*conn)(nil).pruneRoutes(ctx, desired)
}

func addRules(ctx context.Context, desired []plan.Rule) error {
	return (*conn)(nil).addRules(ctx, desired)
}

func pruneRules(ctx context.Context, desired []plan.Rule) error {
	return (*conn)(nil).pruneRules(ctx, desired)
}
