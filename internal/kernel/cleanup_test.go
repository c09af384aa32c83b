package kernel

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
)

func TestCleanup(t *testing.T) {
	h := netns.Enter(t)
	netns.Uplink(t, "eth0", "10.0.0.1/24")
	netns.Uplink(t, "eth1", "10.1.0.2/24", "2001:db8:1::2/64")
	netns.Uplink(t, "eth2", "10.2.0.2/24", "2001:db8:2::2/64")
	netns.IP(t, "link add vrf-blue type vrf table 1002", "link set vrf-blue up", "rule add pref 720 lookup 1002", "route add default via 10.0.0.254",
		"route add 192.0.2.0/24 via 10.0.0.254 table 1001 proto 143",
		"link add link eth0 name eth0.7 type vlan id 7")
	before := netns.State(t)
	ctx := t.Context()
	vlans := []plan.VLAN{{Name: "eth0.7", Parent: "eth0", ID: 7}, {Name: "up", Parent: "eth0", ID: 8, Addrs: []netip.Prefix{prefix("10.8.0.2/24")}}}
	require.Empty(t, link.ApplyVLANs(ctx, h, vlans).Unmade)
	require.Empty(t, link.ApplyVLANAddresses(ctx, h, vlans))
	desired := []plan.VRF{{Name: "vrf-red", Table: 1001, Create: true, Interfaces: []string{"eth1", "up"}}, {Name: "vrf-blue", Interfaces: []string{"eth2"}}}
	require.NoError(t, new(link.VRFs).Apply(ctx, h, desired).Err())
	require.NoError(t, link.ApplyTunnel(ctx, h, &plan.Tunnel{
		Device: "egressway", VNI: 7, Port: 4790, MTU: 1450, Local: addr("10.0.0.1"), MAC: [6]byte{2, 0, 0, 0, 0, 1},
		Hosts: []plan.TunnelHost{{
			Remote: addr("10.0.0.2"), MAC: [6]byte{2, 0, 0, 0, 0, 2}, NextHop4: addr("169.254.144.1"), NextHop6: addr("fe80::ff:fe00:2"),
		}},
	}))
	require.NoError(t, addRoutes(ctx, h, []plan.Route{
		{Table: 1001, Dst: prefix("0.0.0.0/0"), NextHops: []plan.NextHop{via("10.1.0.1", "eth1")}},
		{Table: 1002, Dst: prefix("::/0"), NextHops: []plan.NextHop{via("2001:db8:2::1", "eth2")}},
		{Table: 254, Dst: prefix("203.0.113.0/24"), NextHops: []plan.NextHop{via("10.0.0.9", "eth0")}},
		{Table: 5002, Dst: prefix("::/0"), NextHops: []plan.NextHop{via("fe80::ff:fe00:2", "egressway")}},
	}))
	require.NoError(t, addRules(ctx, []plan.Rule{{Priority: 799, Mark: 0x800000, Mask: 0x800000, Unreachable: true}}))
	require.Contains(t, netns.IP(t, "link show eth2"), "master vrf-blue")

	require.NoError(t, cleanup(ctx, h, new(link.VRFs)))
	require.Equal(t, before, netns.State(t))
	netns.Quiet(t, func() error { return cleanup(ctx, h, new(link.VRFs)) })
}
