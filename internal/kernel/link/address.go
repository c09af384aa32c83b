package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// addressMark is the protocol of the addresses that we add (IFA_PROTO, since Linux 5.18): the same number as our routes'.
const addressMark = route.Protocol

// onLinkMark is the metric (IFA_RT_PRIORITY, since Linux 4.18) of addresses for which this node answers on the link. No route has
// it: such an address has none but that to the node itself.
const onLinkMark = LinkGroup

// address is an address of an interface, with our marks.
type address struct {
	prefix netip.Prefix
	flags  uint32 // IFA_F
	ours   bool   // of a VLAN sub-interface that we made
	onLink bool   // this node answers for it on the link
}

// last is 1 for an address that others should rather not use, since it may go, and 0 for others. The kernel has one flag for secondary
// (IPv4) and temporary (IPv6) ones.
func (a address) last() int {
	if a.flags&(unix.IFA_F_SECONDARY|unix.IFA_F_DEPRECATED|unix.IFA_F_TENTATIVE) != 0 {
		return 1
	}
	return 0
}

// addressMessage returns a request about an address with our mark.
func addressMessage(kind, flags uint16, device int, p netip.Prefix) nl.Message {
	b := make([]byte, unix.SizeofIfAddrmsg)
	b[0], b[1] = unix.AF_INET6, uint8(p.Bits())
	if p.Addr().Is4() {
		b[0] = unix.AF_INET
	}
	binary.NativeEndian.PutUint32(b[AddrIndex:], uint32(device))
	b = nl.AppendAddr(b, unix.IFA_LOCAL, p.Addr())
	b = nl.AppendAddr(b, unix.IFA_ADDRESS, p.Addr())
	return nl.Message{Type: kind, Flags: flags, Body: nl.AppendAttr(b, ifaProto, addressMark)}
}

// readAddresses lists the addresses of all interfaces, by the interface's index.
func readAddresses() (map[int][]address, error) {
	all := map[int][]address{}
	request := nl.Message{Type: unix.RTM_GETADDR, Body: make([]byte, unix.SizeofIfAddrmsg)}
	err := nl.Dump(request, unix.RTM_NEWADDR, func(b []byte) bool {
		device := int(binary.NativeEndian.Uint32(b[AddrIndex:]))
		all[device] = append(all[device], decodeAddress(b))
		return true
	})
	return all, err
}

func decodeAddress(b []byte) (a address) {
	var local, other netip.Addr
	for typ, value := range nl.Attrs(b, unix.SizeofIfAddrmsg) {
		switch {
		case typ == unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(value)
		case typ == unix.IFA_ADDRESS:
			other, _ = netip.AddrFromSlice(value)
		case typ == ifaProto:
			a.ours = len(value) > 0 && value[0] == addressMark
		case len(value) != 4:
		case typ == unix.IFA_FLAGS:
			a.flags = binary.NativeEndian.Uint32(value)
		case typ == unix.IFA_RT_PRIORITY:
			a.onLink = binary.NativeEndian.Uint32(value) == onLinkMark
		}
	}
	if local.IsValid() { // IFA_ADDRESS is the other end's on a point-to-point link
		other = local
	}
	a.prefix, a.ours = netip.PrefixFrom(other, int(b[1])), a.ours && !a.onLink
	return a
}

// RemoveOnLink removes the addresses for which this node answers on the link, unless they are wanted.
func RemoveOnLink(ctx context.Context, h *netlink.Handle, wanted sorted.List[plan.OnLink]) error {
	names, have, err := listOnLink(h)
	if err != nil {
		return err
	}
	var gone []plan.OnLink
	for _, a := range have {
		if w, ok := wanted.Get(a); !ok || w != a {
			gone = append(gone, a)
		}
	}
	return onLink{names}.remove(ctx, gone)
}

// AddOnLink adds those of the wanted addresses that are missing, and returns them, and the reasons why some could not be added.
func AddOnLink(ctx context.Context, h *netlink.Handle, wanted sorted.List[plan.OnLink]) (made []plan.OnLink, failed map[plan.OnLink]error) {
	names, have, err := listOnLink(h)
	failed = map[plan.OnLink]error{}
	has := map[plan.OnLink]bool{}
	for _, a := range have {
		has[a] = true
	}
	var missing []plan.OnLink
	for a := range wanted.All() {
		switch {
		case err != nil:
			failed[a] = err
		case !has[a]:
			missing = append(missing, a)
		}
	}
	for i, err := range (onLink{names}).add(ctx, missing) {
		if err != nil {
			failed[missing[i]] = err
		} else {
			made = append(made, missing[i])
		}
	}
	return made, failed
}

// listOnLink lists the names of all interfaces, and the addresses for which this node answers.
func listOnLink(h *netlink.Handle) (names map[string]int, all []plan.OnLink, err error) {
	links, err := nl.Retry(h.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	addrs, err := nl.Retry(readAddresses)
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	names = map[string]int{}
	for _, l := range links {
		name, index := l.Attrs().Name, l.Attrs().Index
		names[name] = index
		for _, a := range addrs[index] {
			if a.onLink {
				all = append(all, plan.OnLink{Addr: a.prefix.Addr(), Device: name})
			}
		}
	}
	return names, all, nil
}

// onLink changes addresses for which this node answers.
type onLink struct {
	indices map[string]int // of the interfaces, by name
}

func (o onLink) remove(ctx context.Context, gone []plan.OnLink) error {
	messages := make([]nl.Message, len(gone))
	for i, a := range gone {
		messages[i] = o.message(unix.RTM_DELADDR, 0, a)
	}
	results, err := nl.Change(ctx, messages)
	errs := []error{err}
	for i, err := range results {
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("remove address %s of %s: %w", gone[i].Addr, gone[i].Device, err))
		}
	}
	return errors.Join(errs...)
}

// add returns an error for each of the addresses that could not be added.
func (o onLink) add(ctx context.Context, missing []plan.OnLink) []error {
	messages := make([]nl.Message, len(missing))
	for i, a := range missing {
		messages[i] = o.message(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, a)
	}
	results, failed := nl.Change(ctx, messages)
	errs := make([]error, len(missing))
	for i, a := range missing {
		err := failed
		if i < len(results) {
			err = errors.Join(err, results[i])
		}
		if err != nil {
			errs[i] = fmt.Errorf("add address %s to %s: %w", a.Addr, a.Device, err)
		}
	}
	return errs
}

// message returns a request about an address that is the node's own only as far as the kernel answers for it. It has no subnet. An
// IPv6 address is deprecated, so that the node does not send from it; an IPv4 one comes after the interface's others.
func (o onLink) message(kind, flags uint16, a plan.OnLink) nl.Message {
	m := addressMessage(kind, flags, o.indices[a.Device], netip.PrefixFrom(a.Addr, a.Addr.BitLen()))
	m.Body = nl.AppendAttr32(m.Body, unix.IFA_RT_PRIORITY, onLinkMark)
	m.Body = nl.AppendAttr32(m.Body, unix.IFA_FLAGS, unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE)
	if a.Addr.Is6() {
		lifetimes := make([]byte, 16) // struct ifa_cacheinfo: preferred for 0 seconds, valid without end
		binary.NativeEndian.PutUint32(lifetimes[4:], 0xffffffff)
		m.Body = nl.AppendAttr(m.Body, unix.IFA_CACHEINFO, lifetimes...)
	}
	return m
}
