package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// TestUnnumberedUplink: the uplink of a and its router have no addresses but those of the link. FRR finds the daemon by its router
// advertisements, in the VRF; routes of both families are by IPv6 link-local next hops (RFC 8950), and packets follow them.
func TestUnnumberedUplink(t *testing.T) {
	s := play(t, stage.Options{
		Config: func(c string) string {
			first, rest, ok := strings.Cut(c, "      - address: 10.1.0.1\n")
			_, rest, also := strings.Cut(rest, "  - name: blue\n")
			require.True(t, ok && also)
			return first + "      - interface: eth2\n        dynamicASN: external\n        holdTime: 9s\n        keepaliveTime: 3s\n" +
				"        receive: [{prefix: 0.0.0.0/0}, {prefix: \"::/0\"}]\n  - name: blue\n" + rest
		},
		Exec: map[string][]string{
			"a":      {"ip addr del 10.1.0.11/24 dev eth2", "ip addr del fd01::11/64 dev eth2"},
			"red1":   {"ip addr del 10.1.0.1/24 dev eth1", "ip addr del fd01::1/64 dev eth1"},
			"red-sw": {"ip link set to-b nomaster", "ip link set to-c nomaster", "ip link set to-red2 nomaster"}, // a cable between a and red1
		},
	})
	ctx := t.Context()
	run(t, s, "ext-red", "ip route replace default src 203.0.113.1 via 172.31.11.1", "ip -6 route replace default src 2001:db8:113::1 via fd31:11::1")
	lines := []string{"configure terminal", "router bgp 64601", "neighbor eth1 interface remote-as external", "neighbor eth1 timers 3 9", "neighbor eth1 timers connect 1"}
	for _, family := range []string{"ipv4", "ipv6"} {
		lines = append(lines, "address-family "+family+" unicast", "neighbor eth1 activate", "neighbor eth1 default-originate", "exit-address-family")
	}
	_, err := s.Node("red1").VTY("bgpd", lines...)
	require.NoError(t, err)

	all := asDeployed()
	awaitAll(t, s, all) // by red1 alone
	s.Witness.Reset()
	for _, f := range ipFamilies {
		// The routers' way in and the node's way out.
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			out, err := s.Node("red1").Run(ctx, "ip", map[string]string{"ipv4": "-4", "ipv6": "-6"}[f.name], "route", "get", f.web.String())
			if err == nil && !strings.Contains(out, " fe80::") {
				err = fmt.Errorf("red1 reaches %s by %s", f.web, out)
			}
			return err
		}))
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			out, err := s.Node("a").Run(ctx, "ip", map[string]string{"ipv4": "-4", "ipv6": "-6"}[f.name], "route", "show", "table", "1001", "proto", "142", "default")
			if err == nil && !strings.Contains(out, "fe80::") {
				err = errors.New("a leaves red by " + out)
			}
			return err
		}))
		for _, pod := range []string{"a-p1", "b-p1"} {
			outsideAnswers(t, s, f, pod, "ext-red", f.web)
			transfers(t, s, f, pod, "ext-red", f.web)
		}
		everyBackend(t, s, "ext-red", netip.AddrPortFrom(f.web, 80), answers{"a-p1": f.bridge("a"), "b-p1": f.of(f.lan, "a")})
	}
	requireInnocent(t, s, all)

	// The router restarts: its advertisements and the session come back by themselves.
	require.NoError(t, lab.KillFRR(ctx, s.Node("red1")))
	require.NoError(t, lab.FRR.Start(ctx, s.Node("red1")))
	_, err = s.Node("red1").VTY("bgpd", lines...)
	require.NoError(t, err)
	awaitAll(t, s, all)
	requireInnocent(t, s, all)

	// With the network's source, the pods of a get the address of the VRF device: the uplink has none.
	out, err := s.Node("a").Run(ctx, "ip", "-o", "-6", "addr", "show", "dev", "eth2", "scope", "link")
	require.NoError(t, err)
	nextHop, _, _ := strings.Cut(strings.Fields(out)[3], "/")
	run(t, s, "red1", "ip route add 10.255.0.11/32 via inet6 "+nextHop+" dev eth1", "ip -6 route add fd0a::11/128 via "+nextHop+" dev eth1")
	run(t, s, "a", "ip addr add 10.255.0.11/32 dev vrf-red", "ip addr add fd0a::11/128 dev vrf-red nodad")
	require.NoError(t, s.Edit(ctx, "web.yaml", "sourceIPBy: LoadBalancerIP", "sourceIPBy: Network"))
	byNetwork := identities{"a-p1": {"ext-red", "10.255.0.11", "fd0a::11"}}
	awaitAll(t, s, byNetwork)
	requireInnocent(t, s, all, byNetwork)
}
