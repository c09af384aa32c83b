package link

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/kernel/sysctl"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
)

// host has the next hops of the path of an id.
func host(remote string, mac, id byte) plan.TunnelHost {
	return plan.TunnelHost{
		Remote: addr(remote), MAC: [6]byte{2, 0, 0, 0, 0, mac},
		NextHop4: netip.AddrFrom4([4]byte{169, 254, 144, id}), NextHop6: netip.MustParseAddr(fmt.Sprintf("fe80::ff:fe00:%d", id)),
	}
}

func TestTunnel(t *testing.T) {
	h := netns.Enter(t)
	netns.Uplink(t, "eth0", "10.0.0.1/24", "2001:db8::1/64")
	netns.IP(t, "link add vxlan9 type vxlan id 9 dstport 4789 local 10.0.0.1", "link set vxlan9 up")
	before := netns.State(t)
	tunnel := &plan.Tunnel{
		Device: "egressway", VNI: 7946, Port: 4790, MTU: 1450, Local: addr("10.0.0.1"), MAC: [6]byte{2, 0, 0, 0, 0, 1},
		Hosts: []plan.TunnelHost{host("10.0.0.2", 2, 2), host("10.0.0.3", 3, 3)},
	}
	apply := func() error { return ApplyTunnel(t.Context(), h, tunnel) }
	require.NoError(t, apply())
	netns.Quiet(t, apply)

	link := netns.Show(t, "link show egressway")[0]
	require.Equal(t, "02:00:00:00:00:01", link["address"])
	require.EqualValues(t, 1450, link["mtu"])
	data := link["linkinfo"].(map[string]any)["info_data"].(map[string]any)
	require.EqualValues(t, 7946, data["id"])
	require.EqualValues(t, 4790, data["port"])
	require.Equal(t, "10.0.0.1", data["local"])
	require.Equal(t, false, data["learning"])
	require.Contains(t, netns.IP(t, "addr show egressway"), "inet6 fe80::ff:fe00:1/64 scope link")
	filter, _ := sysctl.Read("net", "ipv4", "conf", "egressway", "rp_filter")
	require.Equal(t, 2, filter)
	inherits := func() {
		t.Helper()
		require.Contains(t, netns.IP(t, "-d link show egressway"), " tos inherit ", "the outer header has the packet's DSCP value")
	}
	inherits()
	netns.IP(t, "link set egressway type vxlan id 7946 tos 0") // as earlier versions made the device
	require.NotContains(t, netns.IP(t, "-d link show egressway"), "tos")
	require.NoError(t, apply())
	netns.Quiet(t, apply)
	inherits()
	ipv4 := func() (all []string) {
		for _, line := range netns.Show(t, "-4 addr show egressway") {
			for _, a := range line["addr_info"].([]any) {
				all = append(all, a.(map[string]any)["local"].(string))
			}
		}
		return all
	}
	require.Equal(t, []string{"169.254.142.142"}, ipv4())
	netns.IP(t, "addr add 192.0.0.8/32 dev egressway scope link", "addr del 169.254.142.142/32 dev egressway") // as earlier versions did
	require.NoError(t, apply())
	netns.Quiet(t, apply)
	require.Equal(t, []string{"169.254.142.142"}, ipv4())

	entries := func() (lines []string) {
		for _, family := range []string{"-4", "-6"} {
			for _, n := range netns.Show(t, family+" neigh show dev egressway nud permanent") {
				lines = append(lines, n["dst"].(string)+" "+n["lladdr"].(string))
			}
		}
		// Only bridge(8) shows the state of forwarding entries.
		for _, n := range netns.Forwarding(t, "egressway") {
			lines = append(lines, n["mac"].(string)+" "+n["dst"].(string)+" "+n["state"].(string))
		}
		return lines
	}
	require.ElementsMatch(t, []string{
		"169.254.144.2 02:00:00:00:00:02", "169.254.144.3 02:00:00:00:00:03",
		"fe80::ff:fe00:2 02:00:00:00:00:02", "fe80::ff:fe00:3 02:00:00:00:00:03",
		"02:00:00:00:00:02 10.0.0.2 permanent", "02:00:00:00:00:03 10.0.0.3 permanent",
	}, entries())
	steer := []plan.Route{ // the IPv4 one as earlier versions made it
		{Table: 5002, Dst: prefix("0.0.0.0/0"), NextHops: []plan.NextHop{{Gateway: addr("fe80::ff:fe00:2"), Device: "egressway", OnLink: true}}},
		{Table: 5002, Dst: prefix("::/0"), NextHops: []plan.NextHop{{Gateway: addr("fe80::ff:fe00:2"), Device: "egressway", OnLink: true}}},
	}
	steered := func() error {
		return route.Socket{}.AddRoutes(t.Context(), h, steer, func(_ *plan.Route, err error) error { return err })
	}
	require.NoError(t, steered())
	netns.Quiet(t, steered)
	require.Equal(t, []string{"default [fe80::ff:fe00:2@egressway]"}, netns.Routes(t, "4", 5002, route.Protocol))
	steer[0].NextHops = []plan.NextHop{{Gateway: addr("169.254.144.2"), Device: "egressway", OnLink: true}}
	require.NoError(t, steered())
	netns.Quiet(t, steered)
	require.Equal(t, []string{"default [169.254.144.2@egressway]"}, netns.Routes(t, "4", 5002, route.Protocol))

	// One host moves to another address, one goes, one changes its MAC, one comes; the device stays.
	tunnel.Hosts = []plan.TunnelHost{host("10.0.0.22", 2, 2), host("10.0.0.4", 4, 3)}
	tunnel.MTU, tunnel.MAC = 1400, [6]byte{2, 0, 0, 0, 0, 9}
	require.NoError(t, apply())
	netns.Quiet(t, apply)
	require.ElementsMatch(t, []string{
		"169.254.144.2 02:00:00:00:00:02", "169.254.144.3 02:00:00:00:00:04",
		"fe80::ff:fe00:2 02:00:00:00:00:02", "fe80::ff:fe00:3 02:00:00:00:00:04",
		"02:00:00:00:00:02 10.0.0.22 permanent", "02:00:00:00:00:04 10.0.0.4 permanent",
	}, entries())
	changed := netns.Show(t, "link show egressway")[0]
	require.Equal(t, link["ifindex"], changed["ifindex"])
	require.Equal(t, "02:00:00:00:00:09", changed["address"])
	require.EqualValues(t, 1400, changed["mtu"])

	// A change of an immutable attribute recreates the device; so does another name, with an IPv6 underlay.
	tunnel.VNI = 7947
	require.NoError(t, apply())
	netns.Quiet(t, apply)
	tunnel.Device, tunnel.Local = "egressway6", netip.MustParseAddr("2001:db8::1")
	tunnel.Hosts = []plan.TunnelHost{host("2001:db8::2", 2, 2)}
	require.NoError(t, apply())
	netns.Quiet(t, apply)
	require.NotContains(t, netns.IP(t, "link show type vxlan"), "egressway:")

	tunnel.Device = "vxlan9"
	require.ErrorContains(t, apply(), "create tunnel device vxlan9: another program's vxlan device has this name")
	tunnel = nil
	require.NoError(t, apply())
	require.NoError(t, route.Socket{}.PruneRoutes(t.Context(), nil))
	require.Equal(t, before, netns.State(t), "the foreign device stays as it was")
}

// TestNextHopsOfHosts has no next hop of a family that the kernel lacks, nor one of its own for a host on the shared path.
func TestNextHopsOfHosts(t *testing.T) {
	own, shared := host("10.0.0.2", 2, 2), host("10.0.0.3", 3, 3)
	shared.NextHop4 = netip.Addr{}
	nowhere := host("10.0.0.9", 0, 9)
	nowhere.Remote = netip.Addr{}
	for ipv6, want := range map[bool][]string{
		false: {"10.0.0.2", "10.0.0.3", "169.254.144.2", "169.254.144.9"},
		true:  {"10.0.0.2", "10.0.0.3", "169.254.144.2", "169.254.144.9", "fe80::ff:fe00:2", "fe80::ff:fe00:3", "fe80::ff:fe00:9"},
	} {
		var got []string
		for _, n := range neighboursFor(7, []plan.TunnelHost{own, shared, nowhere}, ipv6) {
			got = append(got, n.IP.String())
		}
		require.ElementsMatch(t, want, got, "IPv6 %t", ipv6)
	}
}
