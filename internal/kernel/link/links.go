// Package link makes VRF devices, VLAN sub-interfaces and the tunnel equal to a plan, and reads links. It restores what the
// kernel flushes from an interface whose VRF changes.
package link

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
)

// ReadLinks reads the interfaces of this node with their addresses, sorted by name.
func ReadLinks(h *netlink.Handle) ([]plan.Link, error) {
	all, err := nl.Retry(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	prefixes, answered, err := readPrefixes()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	names := make(map[int]string, len(all))
	for _, l := range all {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	links := make([]plan.Link, 0, len(all))
	for _, l := range all {
		a := l.Attrs()
		link := plan.Link{
			Name: a.Name, Index: a.Index, Up: isUp(a), Master: names[a.MasterIndex], MTU: a.MTU, Addrs: prefixes[a.Index],
			Ours: a.Group == LinkGroup, OnLink: answered[a.Index],
		}
		switch l := l.(type) {
		case *netlink.Vrf:
			link.VRFTable = l.Table
		case *netlink.Vlan:
			if !elsewhere(a) {
				link.Parent, link.VLAN = names[a.ParentIndex], uint16(l.VlanId)
			}
		}
		links = append(links, link)
	}
	slices.SortFunc(links, func(a, b plan.Link) int { return cmp.Compare(a.Name, b.Name) })
	return links, nil
}

// readPrefixes reads the usable addresses of this node by the index of their interface, sorted, and last those that
// are secondary, temporary, deprecated or tentative. Those of EgressIPs, for which this node answers, are not the node's: it returns only
// which interfaces have some.
func readPrefixes() (prefixes map[int][]netip.Prefix, answered map[int]bool, err error) {
	addrs, err := nl.Retry(readAddresses)
	if err != nil {
		return nil, nil, err
	}
	prefixes, answered = make(map[int][]netip.Prefix, len(addrs)), map[int]bool{}
	for device, all := range addrs {
		slices.SortFunc(all, func(a, b address) int {
			p, q := a.prefix, b.prefix
			return cmp.Or(cmp.Compare(a.last(), b.last()), p.Addr().Compare(q.Addr()), cmp.Compare(p.Bits(), q.Bits()))
		})
		for _, a := range all {
			switch {
			case a.onLink:
				answered[device] = true
			case a.flags&unix.IFA_F_DADFAILED == 0:
				prefixes[device] = append(prefixes[device], a.prefix)
			}
		}
	}
	return prefixes, answered, nil
}

// isUp reports whether an interface is administratively up with carrier. Software devices may not know their state.
func isUp(a *netlink.LinkAttrs) bool {
	return a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_LOWER_UP != 0 &&
		(a.OperState == netlink.OperUp || a.OperState == netlink.OperUnknown)
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones), ok
}
