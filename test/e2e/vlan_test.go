package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// trunk has red's switch pass VLAN 1001 alone, tagged, and gives red's routers their addresses in it.
func trunk() map[string][]string {
	exec := map[string][]string{"red-sw": {"ip link set br0 type bridge vlan_filtering 1"}}
	for _, port := range []string{"to-a", "to-b", "to-c", "to-red1", "to-red2"} {
		exec["red-sw"] = append(exec["red-sw"], "bridge vlan del dev "+port+" vid 1", "bridge vlan add dev "+port+" vid 1001")
	}
	for name, number := range map[string]int{"red1": 1, "red2": 2} {
		exec[name] = append(withoutAddresses("eth1", number), subInterface("eth1", number)...)
	}
	return exec
}

// withoutAddresses removes red's addresses from an interface.
func withoutAddresses(device string, number int) []string {
	return []string{fmt.Sprintf("ip addr del 10.1.0.%d/24 dev %s", number, device), fmt.Sprintf("ip addr del fd01::%d/64 dev %s", number, device)}
}

// subInterface makes VLAN 1001 of an interface, with red's addresses.
func subInterface(device string, number int) []string {
	return []string{
		fmt.Sprintf("ip link add link %s name %[1]s.1001 type vlan id 1001", device), "ip link set " + device + ".1001 up",
		fmt.Sprintf("ip addr add 10.1.0.%d/24 dev %s.1001", number, device), fmt.Sprintf("ip addr add fd01::%d/64 dev %s.1001 nodad", number, device),
	}
}

// TestVLANUplink: red's routers are in VLAN 1001 of a trunk. The daemon of a makes the sub-interface, and makes it again when
// another program deletes it; the daemon of b uses the one that exists. It needs no capability but NET_ADMIN for that.
func TestVLANUplink(t *testing.T) {
	exec := trunk()
	exec["a"] = withoutAddresses("eth2", 11)
	exec["b"] = append(append(withoutAddresses("eth2", 12), "ip link set eth2 nomaster"), subInterface("eth2", 12)...)
	s := play(t, stage.Options{Exec: exec, Config: func(c string) string {
		entry := func(node string, number int) string {
			return fmt.Sprintf("\n    - {parent: eth2, vlan: 1001, addresses: [10.1.0.%d/24, \"fd01::%[1]d/64\"], "+
				"nodeSelectors: [{matchLabels: {kubernetes.io/hostname: %s}}]}", number, node)
		}
		const plain = "    interfaces: [eth2]\n"
		require.Contains(t, c, plain)
		// A machine that is busy for 300 ms is no failure here.
		return strings.Replace(c, plain, "    interfaces:"+entry("a", 11)+entry("b", 12)+"\n", 1) +
			"failover: {bfd: {transmitInterval: 1000, receiveInterval: 1000}}\n"
	}})
	ctx := t.Context()
	tagged, err := s.Lab.Witness("red1:eth1.1001", "red2:eth1.1001")
	require.NoError(t, err)
	t.Cleanup(tagged.Close)

	all := asDeployed()
	served := func() {
		t.Helper()
		awaitServed(t, s, all)
		tagged.Reset()
		for _, f := range ipFamilies {
			for _, pod := range []string{"a-p1", "b-p1"} {
				outsideAnswers(t, s, f, pod, "ext-red", f.web)
			}
			everyBackend(t, s, "ext-red", netip.AddrPortFrom(f.web, 80), answers{"a-p1": f.bridge("a"), "b-p1": f.of(f.lan, "a")})
			inVLAN := tagged.Find(func(p lab.Packet) bool { return p.Src == f.web && !p.Out })
			require.NotEmpty(t, inVLAN, "packets with the ingress IP pass by the tag")
			require.NotEmpty(t, tagged.Find(func(p lab.Packet) bool { return p.Dst == f.web && p.Out }), "and so does what comes back")
		}
		requireInnocent(t, s, all)
	}
	served()
	for _, node := range []string{"a", "b"} {
		out, err := s.Node(node).Run(ctx, "ip", "-d", "link", "show", "eth2.1001")
		require.NoError(t, err)
		require.Contains(t, out, "master vrf-red")
		require.Equal(t, node == "a", strings.Contains(out, "group 14200142"), "%s: the daemon of a made it:\n%s", node, out)
	}
	out, err := s.Egressway(ctx, "a", "plan", "--config", "/etc/egressway/config.yaml",
		"--manifests", "/etc/egressway/manifests", "--node", "a")
	require.NoError(t, err)
	require.Contains(t, out, "eth2.1001, VLAN 1001 on eth2, 10.1.0.11/24, fd01::11/64")

	out, err = s.Egressway(ctx, "a", "status", "-o", "wide")
	require.NoError(t, err)
	require.Regexp(t, `eth2\.1001 +red +1001 +eth2 +10\.1\.0\.11/24 fd01::11/64`, out)

	const repaired = `egressway_drift_repaired_total{kind="vlan"}`
	for _, damage := range []string{"ip link del eth2.1001", "ip link set eth2.1001 nomaster", "ip link set eth2.1001 down"} {
		before := awaitMetric(t, s, "a", repaired, atLeast(0))
		run(t, s, "a", damage)
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			out, err := s.Node("a").Run(ctx, "ip", "addr", "show", "up", "master", "vrf-red", "dev", "eth2.1001")
			if err == nil && !strings.Contains(out, "10.1.0.11/24") {
				err = errors.New("the sub-interface is not repaired: " + out)
			}
			return err
		}), damage)
		if strings.Contains(damage, "link del") {
			awaitMetric(t, s, "a", repaired, exactly(before+1))
		}
		served()
	}

	for _, node := range []string{"a", "b"} {
		stopping, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		require.NoError(t, s.Daemons[node].Stop(stopping))
		_, err := s.Node(node).Run(ctx, "ip", "link", "show", "master", "vrf-red", "dev", "eth2.1001")
		require.NoError(t, err, "it stays for the next run")
		_, err = s.Egressway(ctx, node, "cleanup", "--config", "/etc/egressway/config.yaml")
		require.NoError(t, err)
		_, err = s.Node(node).Run(ctx, "ip", "link", "show", "eth2.1001")
		require.Equal(t, node == "b", err == nil, "%s: what others made stays: %v", node, err)
	}
}
