package link

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/sysctl"
	"github.com/egressway/egressway/internal/plan"
)

// tunnelAddress is a link-local IPv4 address (RFC 3927): on a device without an IPv4 address, a loose reverse path filter drops
// everything. With a global one, CNIs that look for the node's uplinks would find the tunnel among them, as Cilium does.
var tunnelAddress = netip.PrefixFrom(netip.AddrFrom4([4]byte{169, 254, 142, 142}), 32)

// Nested attributes that contain a device's rp_filter.
const (
	inetConf = 1 // IFLA_INET_CONF
	rpFilter = 8 // IPV4_DEVCONF_RP_FILTER
)

// ApplyTunnel makes our VXLAN device and its neighbour and forwarding entries equal to t; nil removes the device. It
// calls made if it created the device.
func ApplyTunnel(ctx context.Context, h *netlink.Handle, t *plan.Tunnel, made ...func(*plan.Tunnel)) error {
	device, err := makeTunnel(h, t, made)
	if err != nil || t == nil {
		return err
	}
	if err := setTunnel(h, device, t); err != nil {
		return fmt.Errorf("set up tunnel device %s: %w", t.Device, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return applyHosts(h, device, t.Hosts)
}

// inheritTOS is the value of IFLA_VXLAN_TOS that copies the DSCP value of each packet to the outer header.
const inheritTOS = 1

// makeTunnel keeps the device that suits t, or creates it; nil: t is nil.
func makeTunnel(h *netlink.Handle, t *plan.Tunnel, made []func(*plan.Tunnel)) (*netlink.Vxlan, error) {
	device, err := keepTunnel(h, t)
	if err != nil || t == nil || device != nil {
		return device, err
	}
	if device, err = addTunnel(h, t); err != nil {
		return nil, fmt.Errorf("create tunnel device %s: %w", t.Device, err)
	}
	for _, call := range made {
		call(t)
	}
	return device, nil
}

// keepTunnel deletes our VXLAN devices that do not suit t, and returns the one that does; nil: none does. It returns an
// error if a device of another program has the tunnel's name.
func keepTunnel(h *netlink.Handle, t *plan.Tunnel) (device *netlink.Vxlan, err error) {
	links, err := nl.Retry(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		kept, err := keepLink(h, l, t)
		if err != nil {
			return nil, err
		}
		device = cmp.Or(kept, device)
	}
	return device, nil
}

// keepLink returns a link that is our VXLAN device and suits t; it deletes one that does not.
func keepLink(h *netlink.Handle, l netlink.Link, t *plan.Tunnel) (kept *netlink.Vxlan, err error) {
	v, vxlan := l.(*netlink.Vxlan)
	ours := vxlan && v.LinkAttrs.Group == LinkGroup
	switch {
	case ours && suits(v, t):
		kept = v
	case ours:
		err = deleteTunnel(h, v)
	case t != nil && l.Attrs().Name == t.Device:
		err = fmt.Errorf("create tunnel device %s: another program's %s device has this name", t.Device, l.Type())
	}
	return kept, err
}

func deleteTunnel(h *netlink.Handle, v *netlink.Vxlan) error {
	if err := h.LinkDel(v); err != nil {
		return fmt.Errorf("delete tunnel device %s: %w", v.Name, err)
	}
	return nil
}

// suits reports whether a device's immutable attributes are as planned.
func suits(v *netlink.Vxlan, t *plan.Tunnel) bool {
	if t == nil {
		return false
	}
	local, _ := netip.AddrFromSlice(v.SrcAddr)
	return v.Name == t.Device && v.VxlanId == int(t.VNI) && v.Port == int(t.Port) && local.Unmap() == t.Local.Unmap() && !v.Learning
}

func addTunnel(h *netlink.Handle, t *plan.Tunnel) (*netlink.Vxlan, error) {
	attrs := newLinkAttrs(t.Device)
	attrs.MTU, attrs.HardwareAddr = t.MTU, t.MAC[:]
	err := h.LinkAdd(&netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: int(t.VNI), Port: int(t.Port), SrcAddr: t.Local.AsSlice(), NoAge: true, TOS: inheritTOS,
	})
	if err != nil {
		return nil, err
	}
	link, err := h.LinkByName(t.Device)
	if err != nil {
		return nil, err
	}
	v, ok := link.(*netlink.Vxlan)
	if !ok {
		return nil, fmt.Errorf("it is a %s", link.Type())
	}
	return v, nil
}

// setTunnel sets the mutable attributes of a device.
func setTunnel(h *netlink.Handle, v *netlink.Vxlan, t *plan.Tunnel) error {
	var errs []error
	if v.MTU != t.MTU {
		errs = append(errs, h.LinkSetMTU(v, t.MTU))
	}
	if !bytes.Equal(v.HardwareAddr, t.MAC[:]) {
		errs = append(errs, h.LinkSetHardwareAddr(v, t.MAC[:]))
	}
	if v.TOS != inheritTOS {
		errs = append(errs, setInheritTOS(v.Index))
	}
	if filter, _ := sysctl.Read("net", "ipv4", "conf", v.Name, "rp_filter"); filter != 2 {
		errs = append(errs, setLooseFilter(v.Index))
	}
	if v.RawFlags&unix.IFF_UP == 0 && len(nl.Families()) > 1 {
		// The link-local address must derive from the MAC, independently of the node's default: next hops are computed
		// from it.
		errs = append(errs, h.LinkSetIP6AddrGenMode(v, vnl.IN6_ADDR_GEN_MODE_EUI64))
	}
	errs = append(errs, setUp(h, v))
	return errors.Join(append(errs, setTunnelAddress(h, v))...)
}

// setTunnelAddress makes tunnelAddress the only IPv4 address of the device. It deletes others last, as that of an earlier version, since
// the device always needs one.
func setTunnelAddress(h *netlink.Handle, v *netlink.Vxlan) error {
	have, err := nl.Retry(func() ([]netlink.Addr, error) { return h.AddrList(v, netlink.FAMILY_V4) })
	others := slices.DeleteFunc(slices.Clone(have), func(a netlink.Addr) bool {
		p, _ := prefixOf(a.IPNet)
		return p == tunnelAddress
	})
	if err == nil && len(others) == len(have) {
		err = h.AddrAdd(v, &netlink.Addr{
			IPNet: &net.IPNet{IP: tunnelAddress.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)},
			Scope: unix.RT_SCOPE_LINK,
		})
	}
	if err != nil {
		return err
	}
	for _, a := range others {
		err = errors.Join(err, h.AddrDel(v, &a))
	}
	return err
}

// setLooseFilter sets rp_filter to 2 through netlink: /proc/sys is read-only in an unprivileged container.
func setLooseFilter(device int) error {
	request := vnl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(device)
	request.AddData(msg)
	spec := vnl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil).AddRtAttr(rpFilter, vnl.Uint32Attr(2))
	request.AddData(spec)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set rp_filter: %w", err)
	}
	return nil
}

// setInheritTOS makes a VXLAN device that an earlier version made copy DSCP values.
func setInheritTOS(device int) error {
	request := vnl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(device)
	request.AddData(msg)
	info := vnl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(vnl.IFLA_INFO_KIND, vnl.NonZeroTerminated("vxlan"))
	info.AddRtAttr(vnl.IFLA_INFO_DATA, nil).AddRtAttr(vnl.IFLA_VXLAN_TOS, vnl.Uint8Attr(inheritTOS))
	request.AddData(info)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set tos inherit: %w", err)
	}
	return nil
}

// applyHosts makes the device's permanent neighbours (next hop to MAC) and forwarding entries (MAC to underlay address)
// equal to hosts.
func applyHosts(h *netlink.Handle, v *netlink.Vxlan, hosts []plan.TunnelHost) error {
	wanted := neighboursFor(v.Index, hosts, hasIPv6(v.Name))
	right, stale, err := compareNeighbours(h, v, wanted)
	if err != nil {
		return err
	}
	var errs []error
	for k, n := range wanted {
		if right[k] {
			continue
		}
		if err := h.NeighSet(n); err != nil {
			errs = append(errs, fmt.Errorf("add neighbour %s %s of %s: %w", n.IP, n.HardwareAddr, v.Name, err))
		}
	}
	return errors.Join(append(errs, deleteNeighbours(h, v, stale)...)...)
}

func deleteNeighbours(h *netlink.Handle, v *netlink.Vxlan, stale []netlink.Neigh) (errs []error) {
	for _, n := range stale {
		if err := h.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("delete neighbour %s %s of %s: %w", n.IP, n.HardwareAddr, v.Name, err))
		}
	}
	return errs
}

// neighKey identifies a permanent neighbour or forwarding entry of the tunnel device.
type neighKey struct {
	family int
	by     string // next hop, or MAC in the forwarding database
}

func keyOfNeigh(n *netlink.Neigh) neighKey {
	if n.Family == unix.AF_BRIDGE {
		return neighKey{n.Family, string(n.HardwareAddr)}
	}
	return neighKey{n.Family, string(n.IP.To16())}
}

// hasIPv6 reports whether a device may have IPv6 neighbours: the kernel may have been started without IPv6, or the device may not use it.
func hasIPv6(device string) bool {
	off, has := sysctl.Read("net", "ipv6", "conf", device, "disable_ipv6")
	return has && off == 0
}

// neighboursFor returns the neighbours and forwarding entries that a device needs for hosts.
func neighboursFor(device int, hosts []plan.TunnelHost, ipv6 bool) map[neighKey]*netlink.Neigh {
	wanted := map[neighKey]*netlink.Neigh{}
	for i := range hosts {
		for _, n := range []*netlink.Neigh{
			{Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: hosts[i].NextHop4.AsSlice()},
			{Family: unix.AF_INET6, State: netlink.NUD_PERMANENT, IP: hosts[i].NextHop6.AsSlice()},
			{
				Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT | netlink.NUD_NOARP, Flags: netlink.NTF_SELF,
				IP: hosts[i].Remote.AsSlice(),
			},
		} {
			// A host on the shared path has no next hop of its own for IPv4, and plan.Nowhere leads nowhere.
			if n.IP == nil || n.Family == unix.AF_INET6 && !ipv6 {
				continue
			}
			n.LinkIndex, n.HardwareAddr = device, hosts[i].MAC[:]
			wanted[keyOfNeigh(n)] = n
		}
	}
	return wanted
}

// compareNeighbours compares a device's permanent entries: right has the keys of those that are as wanted, stale the
// entries to delete.
func compareNeighbours(
	h *netlink.Handle, v *netlink.Vxlan, wanted map[neighKey]*netlink.Neigh,
) (right map[neighKey]bool, stale []netlink.Neigh, err error) {
	have, err := listPermanent(h, v)
	if err != nil {
		return nil, nil, fmt.Errorf("list neighbours of %s: %w", v.Name, err)
	}
	right = map[neighKey]bool{}
	for _, n := range have {
		w := wanted[keyOfNeigh(&n)]
		switch {
		case asWanted(&n, w):
			right[keyOfNeigh(&n)] = true
		case w == nil || n.Family == unix.AF_BRIDGE: // a MAC may lead to several addresses, a next hop has one MAC
			stale = append(stale, n)
		}
	}
	return right, stale, nil
}

// listPermanent lists a device's permanent neighbours and forwarding entries.
func listPermanent(h *netlink.Handle, v *netlink.Vxlan) (all []netlink.Neigh, err error) {
	for _, family := range append(nl.Families(), unix.AF_BRIDGE) {
		have, err := nl.Retry(func() ([]netlink.Neigh, error) { return h.NeighList(v.Index, int(family)) })
		if err != nil {
			return nil, err
		}
		all = append(all, have...)
	}
	return slices.DeleteFunc(all, func(n netlink.Neigh) bool { return n.State&netlink.NUD_PERMANENT == 0 }), nil
}

// asWanted reports whether an entry is as the wanted one of its key, which is nil if there is none.
func asWanted(have, wanted *netlink.Neigh) bool {
	return wanted != nil && wanted.IP.Equal(have.IP) && bytes.Equal(wanted.HardwareAddr, have.HardwareAddr)
}
