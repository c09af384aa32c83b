package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// destinations is to where a node's table has routes that were learned, sorted, in both families.
func destinations(ctx context.Context, s *stage.Stage, node, table string) (all []string, err error) {
	for _, family := range []string{"-4", "-6"} {
		out, failed := s.Node(node).Run(ctx, "ip", "-j", family, "route", "show", "table", table, "proto", "142")
		if failed != nil {
			return nil, failed
		}
		var routes []struct{ Dst, Type string }
		if err := json.Unmarshal([]byte(out), &routes); err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Type != "unreachable" {
				all = append(all, r.Dst)
			}
		}
	}
	slices.Sort(all)
	return all, nil
}

// TestHostileRoutes has a router tell routes to whatever is not its own: pods, nodes, Services, the API server, ingress IPs, loopback.
// It may tell everything, by its configuration. None of it comes into the node's kernel, and when it tells more than it
// may, its session alone ends.
func TestHostileRoutes(t *testing.T) {
	s := play(t, stage.Options{})
	ctx := t.Context()
	all := asDeployed()
	awaitServed(t, s, all)
	awaitLearned(t, s)
	require.NoError(t, s.EditConfig(func(c string) string {
		head, tail, ok := strings.Cut(c, "receive: [{prefix: 0.0.0.0/0}, {prefix: \"::/0\"}]")
		require.True(t, ok)
		return head + "maxPrefixes: 500\n        receive: [{prefix: 0.0.0.0/0, le: 32}, {prefix: \"::/0\", le: 128}]" + tail
	}))
	vty := func(lines ...string) {
		t.Helper()
		_, err := s.Node("red1").VTY("bgpd", append([]string{"configure terminal", "router bgp 64601", "no bgp network import-check"}, lines...)...)
		require.NoError(t, err)
	}
	// Not those of red: what is behind red1 goes on to answer by it, when it knows no way any more.
	traffic := ask(t, s, "a-p2", "b-p2")
	forbidden4 := []string{
		"10.244.0.0/16", "10.244.1.0/24", "10.244.1.11/32", "10.244.2.11/32", // pods
		"10.0.0.11/32", "10.0.0.12/32", "10.1.0.11/32", // nodes
		"10.96.0.0/16", "10.96.0.10/32", "10.96.0.1/32", // Services, the API server's among them
		"192.0.2.20/32", // an ingress IP of another network; one of its own it would keep from itself
		"127.0.0.0/8", "127.0.0.1/32", "169.254.169.254/32", "224.0.0.0/4", "240.0.0.0/4",
	}
	forbidden6 := []string{"fd44:1::/64", "fd44:1::11/128", "fd00::11/128", "fd96::10/128", "2001:db8:2::20/128", "ff02::1/128"}
	lines := []string{"address-family ipv4 unicast", "network 198.51.100.128/25"}
	for _, p := range forbidden4 {
		lines = append(lines, "network "+p)
	}
	lines = append(lines, "exit-address-family", "address-family ipv6 unicast", "network 2001:db8:100::/64")
	for _, p := range forbidden6 {
		lines = append(lines, "network "+p)
	}
	vty(lines...)
	// 10.244.0.0/16 is around the pods' ranges: what stays in the cluster is exempt from steering, so it is no harm.
	want := []string{"10.244.0.0/16", "198.51.100.128/25", "2001:db8:100::/64", "default", "default"}
	has := func(want []string) error {
		have, err := destinations(ctx, s, "a", "1001")
		if err == nil && !slices.Equal(have, want) {
			err = fmt.Errorf("node a has routes to %v, want %v", have, want)
		}
		return err
	}
	require.NoError(t, lab.Wait(ctx, patience, func() error { return has(want) }))
	traffic.answered(t, 10, all)
	// What is withdrawn goes, as soon as every session has been up for a while: before, an earlier run's routes are held.
	vty("address-family ipv4 unicast", "no network 198.51.100.128/25")
	want = slices.DeleteFunc(want, func(p string) bool { return p == "198.51.100.128/25" })
	require.NoError(t, lab.Wait(ctx, patience, func() error { return has(want) }))

	times := map[string]int{}
	for router, node := range neighbours {
		awaitSession(t, s, router, node, 0)
		n, _, err := established(s, router, node)
		require.NoError(t, err)
		times[router] = n
	}
	lines = []string{"address-family ipv4 unicast"}
	for i := range 10_500 {
		lines = append(lines, fmt.Sprintf("network 100.%d.%d.0/24", 64+i>>8, i&255))
	}
	for some := range slices.Chunk(lines[1:], 500) {
		vty(append(lines[:1:1], some...)...)
	}
	require.NoError(t, lab.Wait(ctx, patience, func() error { return has([]string{"default", "default"}) }))
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		out, err := s.Egressway(ctx, "a", "status", "-o", "json")
		if err == nil && !strings.Contains(out, "more routes than maxPrefixes allows") {
			err = fmt.Errorf("status does not say why a session ended: %s", out)
		}
		return err
	}))
	traffic.answered(t, 20, all)
	traffic.stop(t, all)
	requireInnocent(t, s, all)
	for router, node := range neighbours {
		if router == "red1" {
			continue
		}
		n, up, err := established(s, router, node)
		require.NoError(t, err)
		require.True(t, up, router)
		require.Equal(t, times[router], n, router)
	}
	main, err := destinations(ctx, s, "a", "main")
	require.NoError(t, err)
	require.Empty(t, main)
}

// TestRoutesToNeighbours has routers tell routes to other routers, nodes and parts of the subnets they share with a node, each
// longer than the node's own to the subnet. They may tell everything, by their configuration. Only what is around a subnet
// comes into the kernel, the sessions with the other routers go on, and status says why.
func TestRoutesToNeighbours(t *testing.T) {
	s := play(t, stage.Options{})
	ctx := t.Context()
	all := asDeployed()
	awaitServed(t, s, all)
	awaitLearned(t, s)
	require.NoError(t, s.EditConfig(func(c string) string {
		const everything = "receive: [{prefix: 0.0.0.0/0, le: 32}, {prefix: \"::/0\", le: 128}]"
		head, tail, ok := strings.Cut(c, "receive: [{prefix: 0.0.0.0/0}, {prefix: \"::/0\"}]")
		require.True(t, ok)
		c = head + everything + tail
		head, tail, ok = strings.Cut(c, "asn: 64600\n")
		require.True(t, ok)
		return head + "asn: 64600\n        " + everything + "\n" + tail
	}))
	times := map[string]int{}
	for router, node := range neighbours {
		awaitSession(t, s, router, node, 0)
		n, _, err := established(s, router, node)
		require.NoError(t, err)
		times[router] = n
	}
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2")
	tell := func(router, asn string, v4, v6 []string) {
		t.Helper()
		lines := []string{"configure terminal", "route-map NOTHING permit 10", "router bgp " + asn, "no bgp network import-check", "address-family ipv4 unicast"}
		for _, p := range v4 {
			lines = append(lines, "network "+p)
		}
		lines = append(lines, "exit-address-family", "address-family ipv6 unicast")
		for _, p := range v6 {
			lines = append(lines, "network "+p)
		}
		_, err := s.Node(router).VTY("bgpd", lines...)
		require.NoError(t, err)
	}
	has := func(table string, want ...string) {
		t.Helper()
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			have, err := destinations(ctx, s, "a", table)
			if err == nil && !slices.Equal(have, want) {
				err = fmt.Errorf("node a has routes to %v in table %s, want %v", have, table, want)
			}
			return err
		}))
	}
	// The other router, parts of the subnet that hold it, and what is around the subnet.
	tell("red1", "64601", []string{"10.1.0.2/32", "10.1.0.0/25", "10.1.0.0/30", "10.1.0.0/16"}, []string{"fd01::2/128", "fd01::/65", "fd01::/48"})
	// Node b, at times with a neighbour of its address.
	tell("gw", "64600", []string{"10.0.0.12/31", "10.0.0.0/28", "10.0.0.0/25", "10.0.0.0/16"}, []string{"fd00::12/127", "fd00::/65", "fd00::/48"})
	has("1001", "10.1.0.0/16", "default", "default", "fd01::/48")
	has("main", "10.0.0.0/16", "fd00::/48")
	traffic.answered(t, 60, all)
	has("1001", "10.1.0.0/16", "default", "default", "fd01::/48")
	has("main", "10.0.0.0/16", "fd00::/48")
	traffic.stop(t, all)
	for router, node := range neighbours {
		n, up, err := established(s, router, node)
		require.NoError(t, err)
		require.True(t, up, router)
		require.Equal(t, times[router], n, router)
	}
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		out, err := s.Egressway(ctx, "a", "status", "-o", "json")
		if err != nil {
			return err
		}
		if n := strings.Count(out, "a subnet of this node's links"); n != 2 {
			return fmt.Errorf("status says of %d sessions that routes are not learned, not of 2: %s", n, out)
		}
		return nil
	}))
}
