package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/sysctl"
	"github.com/egressway/egressway/internal/plan"
)

// VLANResult is the outcome of ApplyVLANs.
type VLANResult struct {
	Made    []string         // the devices that were created
	Unmade  map[string]error // by name, the reason why a device is not as desired
	Lacking []string         // the devices that do not exist, or are not the desired ones
}

// ApplyVLANs makes the missing VLAN sub-interfaces, and sets ours up with their MTU. Devices that other programs made stay as
// they are. One that fails does not stop the others.
func ApplyVLANs(ctx context.Context, h *netlink.Handle, desired []plan.VLAN) VLANResult {
	r := VLANResult{Unmade: map[string]error{}}
	if len(desired) == 0 {
		return r
	}
	l, err := listVLANs(h)
	if err == nil {
		err = l.clear(h, desired)
	}
	for _, d := range desired {
		var device *netlink.Vlan
		made, failed := false, errors.Join(err, ctx.Err())
		if failed == nil {
			device, made, failed = l.find(h, d)
		}
		if made {
			r.Made = append(r.Made, d.Name)
		}
		if device == nil {
			r.Lacking = append(r.Lacking, d.Name)
		} else {
			failed = l.setUp(h, device, d)
		}
		if failed != nil {
			r.Unmade[d.Name] = failed
		}
	}
	return r
}

// vlans holds the links of this node by their names.
type vlans map[string]netlink.Link

func listVLANs(h *netlink.Handle) (vlans, error) {
	links, err := nl.Retry(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	all := make(vlans, len(links))
	for _, l := range links {
		all[l.Attrs().Name] = l
	}
	return all, nil
}

// is reports whether a device is the sub-interface of a row, by whatever name.
func (all vlans) is(v *netlink.Vlan, d plan.VLAN) bool {
	parent := all[d.Parent]
	return parent != nil && !elsewhere(&v.LinkAttrs) && v.ParentIndex == parent.Attrs().Index && v.VlanId == int(d.ID)
}

// elsewhere reports whether the parent of a link is in another network namespace: its index means nothing in ours.
func elsewhere(a *netlink.LinkAttrs) bool { return a.NetNsID >= 0 }

// clear deletes those of our sub-interfaces that stand in the way of a row: by its name with another parent or ID, or by
// another name.
func (all vlans) clear(h *netlink.Handle, desired []plan.VLAN) error {
	for name, l := range all {
		v, ok := l.(*netlink.Vlan)
		inTheWay := func(d plan.VLAN) bool { return (d.Name == name) != all.is(v, d) }
		if !ok || v.Group != LinkGroup || !slices.ContainsFunc(desired, inTheWay) {
			continue
		}
		if err := deleteVLAN(h, v); err != nil {
			return err
		}
		delete(all, name)
	}
	return nil
}

// find adopts the sub-interface of a row, or makes it. It reports whether it made one.
func (all vlans) find(h *netlink.Handle, d plan.VLAN) (device *netlink.Vlan, made bool, err error) {
	parent := all[d.Parent]
	if parent == nil {
		return nil, false, fmt.Errorf("make VLAN %d on %s: there is no such interface", d.ID, d.Parent)
	}
	link := all[d.Name]
	if made = link == nil; made {
		attrs := newLinkAttrs(d.Name)
		attrs.ParentIndex, attrs.MTU = parent.Attrs().Index, d.MTU
		if err := h.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: int(d.ID)}); err != nil {
			return nil, false, fmt.Errorf("make VLAN %d on %s as %s: %w", d.ID, d.Parent, d.Name, err)
		}
		if link, err = h.LinkByName(d.Name); err != nil {
			return nil, true, fmt.Errorf("find %s: %w", d.Name, err)
		}
		all[d.Name] = link
	}
	device, ok := link.(*netlink.Vlan)
	switch {
	case !ok:
		return nil, made, fmt.Errorf("adopt %s: the device of this name is a %s, not VLAN %d on %s", d.Name, link.Type(), d.ID, d.Parent)
	case !all.is(device, d):
		return nil, made, fmt.Errorf("adopt %s: it is VLAN %d on %s, not VLAN %d on %s as configured",
			d.Name, device.VlanId, all.nameOf(device.ParentIndex), d.ID, d.Parent)
	}
	return device, made, nil
}

// setUp sets our sub-interface up, with its MTU and without a strict reverse path filter, which a device inherits from the
// node's default. One that another program made stays as it is.
func (all vlans) setUp(h *netlink.Handle, device *netlink.Vlan, d plan.VLAN) (err error) {
	if device.Group != LinkGroup {
		return nil
	}
	if d.MTU != 0 && device.MTU != d.MTU {
		err = h.LinkSetMTU(device, d.MTU)
	}
	if strictFilter(d.Name) {
		err = errors.Join(err, setLooseFilter(device.Index))
	}
	// The kernel refuses to set it up while its parent is down, and sets it up with the parent.
	if all[d.Parent].Attrs().RawFlags&unix.IFF_UP != 0 {
		err = errors.Join(err, setUp(h, device))
	}
	if err != nil {
		return fmt.Errorf("set up %s: %w", d.Name, err)
	}
	return nil
}

// strictFilter reports whether the kernel drops packets that come by a device when their source has its route by another one.
// The larger of the device's setting and the node's counts: 1 is strict, 2 is loose.
func strictFilter(device string) bool {
	all, _ := sysctl.Read("net", "ipv4", "conf", "all", "rp_filter")
	own, _ := sysctl.Read("net", "ipv4", "conf", device, "rp_filter")
	return max(all, own) == 1
}

func (all vlans) nameOf(index int) string {
	for name, l := range all {
		if l.Attrs().Index == index {
			return name
		}
	}
	return fmt.Sprintf("interface %d", index)
}

func deleteVLAN(h *netlink.Handle, v *netlink.Vlan) error {
	if err := h.LinkDel(v); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete VLAN sub-interface %s: %w", v.Name, err)
	}
	return nil
}

// PruneVLANs deletes the sub-interfaces that we made, unless they are desired. Their addresses go with them.
func PruneVLANs(ctx context.Context, h *netlink.Handle, desired []plan.VLAN) error {
	links, err := nl.Retry(h.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var errs []error
	for _, l := range links {
		v, ok := l.(*netlink.Vlan)
		wanted := func(d plan.VLAN) bool { return ok && d.Name == v.Name }
		if !ok || v.Group != LinkGroup || slices.ContainsFunc(desired, wanted) || ctx.Err() != nil {
			continue
		}
		errs = append(errs, deleteVLAN(h, v))
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// ApplyVLANAddresses makes the addresses on those of our sub-interfaces that exist equal to the plan: it removes ours that are
// no longer planned, and adds the missing ones. It returns the reasons why a device is not as desired, by name.
func ApplyVLANAddresses(ctx context.Context, h *netlink.Handle, desired []plan.VLAN) map[string]error {
	failed := map[string]error{}
	if len(desired) == 0 {
		return failed
	}
	links, err := listVLANs(h)
	var have map[int][]address
	if err == nil {
		have, err = nl.Retry(readAddresses)
	}
	for _, d := range desired {
		v, ok := links[d.Name].(*netlink.Vlan)
		switch {
		case err != nil:
			failed[d.Name] = fmt.Errorf("set addresses of %s: %w", d.Name, err)
		case ok && v.Group == LinkGroup:
			if err := setAddresses(ctx, v, have[v.Index], d.Addrs); err != nil {
				failed[d.Name] = err
			}
		}
	}
	return failed
}

func setAddresses(ctx context.Context, v *netlink.Vlan, have []address, want []netip.Prefix) error {
	var messages []nl.Message
	var what []string
	for _, a := range have {
		if a.ours && !slices.Contains(want, a.prefix) {
			messages = append(messages, addressMessage(unix.RTM_DELADDR, 0, v.Index, a.prefix))
			what = append(what, "remove address "+a.prefix.String())
		}
	}
	for _, p := range want {
		if slices.ContainsFunc(have, func(a address) bool { return a.prefix == p }) {
			continue
		}
		messages = append(messages, addressMessage(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, v.Index, p))
		what = append(what, "add address "+p.String())
	}
	results, err := nl.Change(ctx, messages)
	errs := []error{err}
	for i, err := range results {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s of %s: %w", what[i], v.Name, err))
		}
	}
	return errors.Join(errs...)
}
