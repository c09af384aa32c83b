package link

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
)

func TestVRFCreated(t *testing.T) {
	h, v := netns.Enter(t), new(VRFs)
	netns.Uplink(t, "eth1", "10.1.0.2/24", "2001:db8:1::2/64", "2001:db8:1::3/64")
	netns.Uplink(t, "eth2", "10.2.0.2/24")
	netns.IP(t, "addr add 2001:db8:5::5/64 dev eth1 metric 77 valid_lft 5000 preferred_lft 3000 nodad noprefixroute",
		"route add 192.0.2.0/24 via 10.1.0.1", "-6 route add 2001:db8:9::/48 via 2001:db8:1::1 metric 55",
		"-6 route add 2001:db8:8::/48 dev eth1 table 77", "-6 route add default via fe80::1 dev eth1 proto static",
		"route add 192.0.2.128/25 nexthop via 10.1.0.1 nexthop via 10.2.0.1")
	netns.IP(t, "-6 route add default via fe80::9 dev eth1 proto static metric 9 table 78")
	before := netns.State(t)
	addresses := addressesOf(t, "eth1")

	desired := []plan.VRF{{Name: "vrf-red", Table: 1001, Create: true, Interfaces: []string{"eth1"}}}
	apply := func() error {
		if err := v.Apply(t.Context(), h, desired).Err(); err != nil {
			return err
		}
		return v.Prune(t.Context(), h, desired)
	}
	require.NoError(t, apply())
	links, err := ReadLinks(h)
	require.NoError(t, err)
	found := 0
	for _, l := range links {
		switch l.Name {
		case "vrf-red":
			found++
			require.Equal(t, uint32(1001), l.VRFTable)
			require.True(t, l.Up)
		case "eth1":
			found++
			require.Equal(t, "vrf-red", l.Master)
			require.Subset(t, l.Addrs, []any{prefix("10.1.0.2/24"), prefix("2001:db8:1::2/64"), prefix("2001:db8:1::3/64"), prefix("2001:db8:5::5/64")})
		}
	}
	require.Equal(t, 2, found)
	require.Equal(t, addresses, addressesOf(t, "eth1"), "IPv6 addresses survive as they were")
	in6 := netns.IP(t, "-6 route show table 1001")
	require.Contains(t, in6, "2001:db8:9::/48 via 2001:db8:1::1 dev eth1 metric 55")
	require.Contains(t, in6, "default via fe80::1 dev eth1 proto static")
	require.Contains(t, netns.IP(t, "-6 route show table 77"), "2001:db8:8::/48 dev eth1")
	require.Contains(t, netns.IP(t, "-6 route show table 78"), "default via fe80::9 dev eth1 proto static metric 9")
	require.Contains(t, netns.IP(t, "route show table 1001"), "192.0.2.0/24 via 10.1.0.1 dev eth1")
	netns.Quiet(t, apply)

	// No longer listed: the interface is freed again, and our VRF removed.
	desired = nil
	require.NoError(t, apply())
	require.Equal(t, before, netns.State(t), "the node is as it was")
}

// addressesOf lists the global IPv6 addresses of a device with their flags, in the kernel's order.
func addressesOf(t *testing.T, device string) (lines []string) {
	t.Helper()
	for _, entry := range netns.Show(t, "-6 addr show dev "+device+" scope global") {
		line, err := json.Marshal(entry["addr_info"])
		require.NoError(t, err)
		lines = append(lines, netns.Lifetimes.ReplaceAllString(string(line), ""))
	}
	return lines
}

func TestVRFAdopted(t *testing.T) {
	h, v := netns.Enter(t), new(VRFs)
	netns.Uplink(t, "eth1", "10.1.0.2/24", "2001:db8:1::2/64")
	netns.Uplink(t, "eth2", "10.2.0.2/24")
	netns.Uplink(t, "eth3", "10.3.0.2/24")
	netns.IP(t, "link add vrf-red type vrf table 1001", "link add vrf-blue type vrf table 1002", "link set vrf-red up", "link set vrf-blue up",
		"link set eth1 master vrf-red", "link set eth2 master vrf-blue", "link add br0 type bridge", "link add vrf-odd type dummy")
	before := netns.State(t)
	adopt := []plan.VRF{{Name: "vrf-red", Table: 1001, Create: true, Interfaces: []string{"eth1"}}, {Name: "vrf-blue"}}
	netns.Quiet(t, func() error { return v.Apply(t.Context(), h, adopt).Err() })

	err := v.Apply(t.Context(), h, []plan.VRF{
		{Name: "vrf-red", Table: 7, Create: true, Interfaces: []string{"eth3"}},
		{Name: "vrf-odd", Table: 8, Create: true},
		{Name: "vrf-none"},
		{Name: "vrf-blue", Table: 1002, Interfaces: []string{"eth1", "eth9", "eth3"}},
	})
	for _, want := range []string{
		"VRF vrf-red: its table is 1001, not 7 as configured", "VRF vrf-odd: the device of this name is a dummy, not a VRF",
		"find VRF vrf-none: Link not found", "enslave eth1 to VRF vrf-blue: it is enslaved to vrf vrf-red, free it first",
		"enslave eth9 to VRF vrf-blue: find interface: Link not found",
	} {
		require.ErrorContains(t, err.Err(), want)
	}
	require.Contains(t, netns.IP(t, "link show eth3"), "master vrf-blue", "the good one is not held up by the bad")
	require.NoError(t, v.Prune(t.Context(), h, nil))
	require.Equal(t, before, netns.State(t), "only what we enslaved is freed, no VRF of others goes")
}

// TestVRFReleased releases an interface whose VRF has default routes: the main table gets that of the family of which it has none. A VRF
// that is made again gets the other one back.
func TestVRFReleased(t *testing.T) {
	h, v := netns.Enter(t), new(VRFs)
	var left []string
	v.LeftOut = func(route string) { left = append(left, route) }
	netns.Uplink(t, "eth0", "10.0.0.2/24")
	netns.Uplink(t, "eth1", "10.1.0.2/24", "2001:db8:1::2/64")
	netns.IP(t, "route add default via 10.0.0.1 proto dhcp metric 100")
	in := func(table uint32) []plan.VRF {
		return []plan.VRF{{Name: "vrf-red", Table: table, Create: true, Interfaces: []string{"eth1"}}}
	}
	require.NoError(t, v.Apply(t.Context(), h, in(1001)).Err())
	netns.IP(t, "route add default via 10.1.0.1 vrf vrf-red", "route add 192.0.2.0/24 via 10.1.0.1 vrf vrf-red",
		"-6 route add default via 2001:db8:1::1 vrf vrf-red")

	require.NoError(t, v.Prune(t.Context(), h, nil))
	require.Equal(t, []string{"0.0.0.0/0 via 10.1.0.1 dev eth1"}, left)
	main := netns.IP(t, "route show table main")
	require.Contains(t, main, "default via 10.0.0.1 dev eth0 proto dhcp metric 100")
	require.NotContains(t, main, "default via 10.1.0.1", "the node's own packets would leave by it")
	require.Contains(t, main, "192.0.2.0/24 via 10.1.0.1 dev eth1")
	require.Contains(t, netns.IP(t, "-6 route show table main"), "default via 2001:db8:1::1 dev eth1")

	require.NoError(t, v.Apply(t.Context(), h, in(1002)).Err(), "the configured table is another one now")
	require.Contains(t, netns.IP(t, "route show table 1002"), "default via 10.1.0.1 dev eth1")
	require.Contains(t, netns.IP(t, "-6 route show table 1002"), "default via 2001:db8:1::1 dev eth1")
	require.Contains(t, netns.IP(t, "route show table main"), "default via 10.0.0.1 dev eth0 proto dhcp metric 100")
}

func TestVRFDeletedByOthers(t *testing.T) {
	h, v := netns.Enter(t), new(VRFs)
	netns.Uplink(t, "eth1", "10.1.0.2/24", "2001:db8:1::2/64")
	netns.IP(t, "link add eth2 type dummy", "-6 addr add 2001:db8:2::2/64 dev eth2", "-6 route add 2001:db8:9::/48 via 2001:db8:1::1")
	desired := []plan.VRF{{Name: "vrf-red", Table: 1001, Create: true, Interfaces: []string{"eth1", "eth2"}}}
	apply := func() error { return v.Apply(t.Context(), h, desired).Err() }
	require.NoError(t, apply())
	require.Contains(t, netns.IP(t, "-6 addr show eth2"), "2001:db8:2::2/64", "also of an interface that is down")
	netns.Quiet(t, apply) // records the addresses and routes
	addresses, routes := addressesOf(t, "eth1"), netns.IP(t, "-6 route show vrf vrf-red")

	netns.IP(t, "link del vrf-red")
	require.Empty(t, addressesOf(t, "eth1"), "the kernel flushes them")
	require.NoError(t, apply())
	require.Equal(t, addresses, addressesOf(t, "eth1"))
	require.Equal(t, routes, netns.IP(t, "-6 route show vrf vrf-red"))
	netns.Quiet(t, apply)

	// A missing interface must not fail the others.
	netns.IP(t, "link del eth2")
	require.ErrorContains(t, apply(), "enslave eth2 to VRF vrf-red: find interface: Link not found")
	netns.IP(t, "link add eth2 type dummy")
	require.NoError(t, apply())
	require.Contains(t, netns.IP(t, "link show eth2"), "master vrf-red")
}
