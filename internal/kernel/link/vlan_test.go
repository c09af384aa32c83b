package link

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
)

// vlanState is the desired state of sub-interfaces and the VRFs around them, applied as the daemon does.
type vlanState struct {
	h     *netlink.Handle
	vrfs  VRFs
	vlans []plan.VLAN
	in    []plan.VRF
}

func (s *vlanState) apply(t *testing.T) error {
	t.Helper()
	made := ApplyVLANs(t.Context(), s.h, s.vlans)
	failed := maps.Clone(made.Unmade)
	vrfs := s.vrfs.Apply(t.Context(), s.h, s.in)
	maps.Copy(failed, vrfs.Unmade)
	maps.Copy(failed, ApplyVLANAddresses(t.Context(), s.h, s.vlans))
	return errors.Join(append(slices.Collect(maps.Values(failed)),
		PruneVLANs(t.Context(), s.h, s.vlans), s.vrfs.Prune(t.Context(), s.h, s.in))...)
}

// linkOf returns a link as plans see it.
func linkOf(t *testing.T, h *netlink.Handle, name string) plan.Link {
	t.Helper()
	links, err := ReadLinks(h)
	require.NoError(t, err)
	for _, l := range links {
		if l.Name == name {
			return l
		}
	}
	return plan.Link{}
}

func TestVLANMade(t *testing.T) {
	s := &vlanState{h: netns.Enter(t)}
	netns.Uplink(t, "eth1", "10.9.0.2/24")
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/conf/default/rp_filter", []byte("1"), 0), "strict, as distributions have it")
	before := netns.State(t)
	own := []netip.Prefix{prefix("10.1.0.2/31"), prefix("2001:db8:1::2/64")}
	s.vlans = []plan.VLAN{
		{Name: "eth1.1001", Parent: "eth1", ID: 1001, MTU: 1400, Addrs: own}, {Name: "up", Parent: "eth1", ID: 7},
	}
	s.in = []plan.VRF{{Name: "vrf-red", Table: 1001, Create: true, Interfaces: []string{"eth1.1001", "up"}}}
	require.NoError(t, s.apply(t))
	l := linkOf(t, s.h, "eth1.1001")
	require.Equal(t, "eth1", l.Parent)
	require.EqualValues(t, 1001, l.VLAN)
	require.Equal(t, 1400, l.MTU)
	require.Equal(t, "vrf-red", l.Master)
	require.True(t, l.Ours)
	require.True(t, l.Up)
	require.Subset(t, l.Addrs, own)
	require.Equal(t, 1500, linkOf(t, s.h, "up").MTU, "the parent's")
	filter, err := os.ReadFile("/proc/sys/net/ipv4/conf/eth1.1001/rp_filter")
	require.NoError(t, err)
	require.Equal(t, "2\n", string(filter))
	netns.Quiet(t, func() error { return s.apply(t) })
	again := &vlanState{h: s.h, vlans: s.vlans, in: s.in}
	netns.Quiet(t, func() error { return again.apply(t) }) // after a restart

	// No longer listed.
	s.vlans, s.in = nil, nil
	require.NoError(t, s.apply(t))
	require.Equal(t, before, netns.State(t), "the node is as it was")
}

// TestVLANOfBridge makes sub-interfaces of a bridge and of its port.
func TestVLANOfBridge(t *testing.T) {
	s := &vlanState{h: netns.Enter(t)}
	netns.Uplink(t, "eth1")
	netns.IP(t, "link add br0 type bridge", "link set br0 up", "link set eth1 master br0")
	s.vlans = []plan.VLAN{{Name: "br0.7", Parent: "br0", ID: 7}, {Name: "eth1.7", Parent: "eth1", ID: 7}}
	s.in = []plan.VRF{{Name: "vrf-red", Table: 1001, Create: true, Interfaces: []string{"br0.7", "eth1.7"}}}
	require.NoError(t, s.apply(t))
	require.Equal(t, "vrf-red", linkOf(t, s.h, "br0.7").Master)
	require.Equal(t, "vrf-red", linkOf(t, s.h, "eth1.7").Master)
	require.Equal(t, "br0", linkOf(t, s.h, "eth1").Master)
}

func TestVLANOfOthers(t *testing.T) {
	s := &vlanState{h: netns.Enter(t)}
	netns.Uplink(t, "eth1")
	netns.IP(t, "link add link eth1 name eth1.1001 type vlan id 1001", "link add link eth1 name eth1.1002 type vlan id 7",
		"link add eth1.1003 type dummy", "link add link eth1 name storage type vlan id 1004", "addr add 10.7.0.2/24 dev eth1.1002")
	before := netns.State(t)
	s.vlans = []plan.VLAN{{Name: "eth1.1001", Parent: "eth1", ID: 1001, MTU: 1400, Addrs: []netip.Prefix{prefix("10.1.0.2/24")}}}
	netns.Quiet(t, func() error { return s.apply(t) }) // adopted as it is

	s.vlans = append(s.vlans,
		plan.VLAN{Name: "eth1.1002", Parent: "eth1", ID: 1002, Addrs: []netip.Prefix{prefix("10.2.0.2/24")}},
		plan.VLAN{Name: "eth1.1003", Parent: "eth1", ID: 1003}, plan.VLAN{Name: "eth1.1004", Parent: "eth1", ID: 1004},
		plan.VLAN{Name: "eth9.1", Parent: "eth9", ID: 1}, plan.VLAN{Name: "good", Parent: "eth1", ID: 1005},
	)
	r := ApplyVLANs(t.Context(), s.h, s.vlans)
	require.Equal(t, []string{"good"}, r.Made, "the bad ones do not hold it up")
	require.Equal(t, []string{"eth1.1002", "eth1.1003", "eth1.1004", "eth9.1"}, r.Lacking)
	for name, want := range map[string]string{
		"eth1.1002": "adopt eth1.1002: it is VLAN 7 on eth1, not VLAN 1002 on eth1 as configured",
		"eth1.1003": "adopt eth1.1003: the device of this name is a dummy, not VLAN 1003 on eth1",
		"eth1.1004": "make VLAN 1004 on eth1 as eth1.1004: file exists",
		"eth9.1":    "make VLAN 1 on eth9: there is no such interface",
	} {
		require.EqualError(t, r.Unmade[name], want)
	}
	require.Empty(t, ApplyVLANAddresses(t.Context(), s.h, s.vlans))
	s.vlans = nil
	require.NoError(t, s.apply(t))
	require.Equal(t, before, netns.State(t), "only what we made goes")
}

func TestVLANRepaired(t *testing.T) {
	s := &vlanState{h: netns.Enter(t)}
	netns.Uplink(t, "eth1")
	own := []netip.Prefix{prefix("10.1.0.2/24"), prefix("2001:db8:1::2/64")}
	s.vlans = []plan.VLAN{{Name: "eth1.1001", Parent: "eth1", ID: 1001, MTU: 1400, Addrs: own}}
	s.in = []plan.VRF{{Name: "vrf-red", Table: 1001, Create: true, Interfaces: []string{"eth1.1001"}}}
	require.NoError(t, s.apply(t))
	first := linkOf(t, s.h, "eth1.1001")
	for _, damage := range []string{
		"link set eth1.1001 down", "link set eth1.1001 nomaster", "addr del 10.1.0.2/24 dev eth1.1001", "addr del 2001:db8:1::2/64 dev eth1.1001",
		"link set eth1.1001 mtu 1300", "link del vrf-red", "link set eth1 down", "link del eth1.1001",
	} {
		netns.IP(t, damage)
		if damage == "link set eth1 down" {
			require.NoError(t, s.apply(t), "the sub-interface comes up with its parent")
			netns.IP(t, "link set eth1 up")
		}
		require.NoError(t, s.apply(t), damage)
		netns.Eventually(t, func() bool { return linkOf(t, s.h, "eth1.1001").Up }, damage)
		now := linkOf(t, s.h, "eth1.1001")
		require.Equal(t, "vrf-red", now.Master, damage)
		require.Equal(t, 1400, now.MTU, damage)
		require.Subset(t, now.Addrs, own, damage)
		require.Equal(t, damage == "link del eth1.1001", now.Index != first.Index, "%s: it is made again only if it is gone", damage)
	}
	netns.IP(t, "link del eth1")
	require.ErrorContains(t, ApplyVLANs(t.Context(), s.h, s.vlans).Unmade["eth1.1001"], "there is no such interface")
	netns.Uplink(t, "eth1")
	require.NoError(t, s.apply(t))
	require.Equal(t, "vrf-red", linkOf(t, s.h, "eth1.1001").Master)
}

func TestVLANChanged(t *testing.T) {
	s := &vlanState{h: netns.Enter(t)}
	netns.Uplink(t, "eth1")
	netns.Uplink(t, "eth2")
	s.in = []plan.VRF{{Name: "vrf-red", Table: 1001, Create: true, Interfaces: []string{"up"}}}
	row := plan.VLAN{Name: "up", Parent: "eth1", ID: 1001, Addrs: []netip.Prefix{prefix("10.1.0.2/24"), prefix("2001:db8:1::2/64")}}
	becomes := func(change func()) plan.Link {
		change()
		s.vlans = []plan.VLAN{row}
		require.NoError(t, s.apply(t))
		netns.Quiet(t, func() error { return s.apply(t) })
		l := linkOf(t, s.h, row.Name)
		require.Equal(t, row.Parent, l.Parent)
		require.Equal(t, row.ID, l.VLAN)
		require.Equal(t, "vrf-red", l.Master)
		require.Subset(t, l.Addrs, row.Addrs)
		return l
	}
	made := becomes(func() {})
	netns.IP(t, "addr add 10.5.0.2/24 dev up")
	// The primary address goes, and the same address gets another prefix length. Addresses of others stay.
	l := becomes(func() { row.Addrs = []netip.Prefix{prefix("10.1.0.3/24"), prefix("2001:db8:1::2/127")} })
	require.Equal(t, made.Index, l.Index)
	require.Contains(t, l.Addrs, prefix("10.5.0.2/24"))
	require.NotContains(t, l.Addrs, prefix("10.1.0.2/24"))
	require.NotContains(t, l.Addrs, prefix("2001:db8:1::2/64"))
	becomes(func() { row.ID = 1002 })
	becomes(func() { row.Parent = "eth2" })
	becomes(func() { row.Name, s.in[0].Interfaces = "other", []string{"other"} })
	require.Empty(t, linkOf(t, s.h, "up").Name, "the kernel has one sub-interface for each ID of a parent")
}
