package link

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
)

// LinkGroup marks the links that we create. It is set at creation, so none of our links ever lacks it.
const LinkGroup = 14200142

// enslavedPrefix begins the alternative name that marks an interface enslaved by us; the interface's index follows.
const enslavedPrefix = "egressway-uplink-"

func enslavedMark(a *netlink.LinkAttrs) string { return enslavedPrefix + strconv.Itoa(a.Index) }

// enslavedMarks returns the marks of an interface: one, or none.
func enslavedMarks(a *netlink.LinkAttrs) []string {
	return slices.DeleteFunc(slices.Clone(a.AltNames), func(n string) bool { return !strings.HasPrefix(n, enslavedPrefix) })
}

// newLinkAttrs returns the attributes of a new link of ours.
func newLinkAttrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.Group = name, LinkGroup
	return a
}

// VRFs applies VRF devices. It remembers the addresses and routes of enslaved interfaces: if another program deletes
// the VRF under them, the kernel flushes these.
type VRFs struct {
	seen   map[int]flushed        // by index of the interface
	Made   func(vrf string)       // called for each device that was created, unless nil
	Joined func(port, vrf string) // called for each interface that was enslaved, unless nil
	Unmade map[string]error       // by name, the reason why a VRF of the last apply is not as desired
}

// Apply creates missing VRF devices and enslaves the listed interfaces. It records the VRFs that failed.
func (v *VRFs) Apply(ctx context.Context, h *netlink.Handle, desired []plan.VRF) error {
	v.Unmade = map[string]error{}
	for _, d := range desired {
		if err := ctx.Err(); err != nil {
			v.Unmade[d.Name] = err
			break
		}
		device, made, err := applyVRF(h, d)
		if err != nil {
			v.Unmade[d.Name] = err
			continue
		}
		var errs []error
		if made && v.Made != nil {
			v.Made(d.Name)
		}
		for _, name := range d.Interfaces {
			if err := v.enslave(h, name, device); err != nil {
				errs = append(errs, fmt.Errorf("enslave %s to VRF %s: %w", name, d.Name, err))
			}
		}
		if err := errors.Join(errs...); err != nil {
			v.Unmade[d.Name] = err
		}
	}
	return errors.Join(slices.Collect(maps.Values(v.Unmade))...)
}

// applyVRF adopts or creates a VRF device, and reports whether it created it.
func applyVRF(h *netlink.Handle, v plan.VRF) (device *netlink.Vrf, made bool, err error) {
	link, err := h.LinkByName(v.Name)
	if errors.As(err, &netlink.LinkNotFoundError{}) && v.Create {
		if err := h.LinkAdd(&netlink.Vrf{LinkAttrs: newLinkAttrs(v.Name), Table: v.Table}); err != nil {
			return nil, false, fmt.Errorf("create VRF %s with table %d: %w", v.Name, v.Table, err)
		}
		made = true
		link, err = h.LinkByName(v.Name)
	}
	if err != nil {
		return nil, made, fmt.Errorf("find VRF %s: %w", v.Name, err)
	}
	device, ok := link.(*netlink.Vrf)
	switch {
	case !ok:
		return nil, made, fmt.Errorf("adopt VRF %s: the device of this name is a %s, not a VRF", v.Name, link.Type())
	case v.Table != 0 && device.Table != v.Table:
		return nil, made, fmt.Errorf("adopt VRF %s: its table is %d, not %d as configured", v.Name, device.Table, v.Table)
	}
	if device.Group == LinkGroup {
		if err := setUp(h, device); err != nil {
			return nil, made, fmt.Errorf("set VRF %s up: %w", v.Name, err)
		}
	}
	return device, made, nil
}

// Prune frees the interfaces that we enslaved and removes the VRF devices that we created, unless they are desired.
func (v *VRFs) Prune(ctx context.Context, h *netlink.Handle, desired []plan.VRF) error {
	links, err := nl.Retry(h.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	devices := map[int]*netlink.Vrf{}
	for _, l := range links {
		if d, ok := l.(*netlink.Vrf); ok {
			devices[d.Index] = d
		}
	}
	errs := append(v.releasePorts(ctx, h, links, devices, desired), removeVRFs(ctx, h, devices, desired)...)
	return errors.Join(append(errs, ctx.Err())...)
}

// releasePorts frees the interfaces that we enslaved, unless the desired VRFs have them. devices holds the VRF devices
// by index.
func (v *VRFs) releasePorts(
	ctx context.Context, h *netlink.Handle, links []netlink.Link, devices map[int]*netlink.Vrf, desired []plan.VRF,
) (errs []error) {
	master := map[string]string{} // of the interfaces that stay enslaved
	for _, d := range desired {
		for _, name := range d.Interfaces {
			master[name] = d.Name
		}
	}
	for _, l := range links {
		a := l.Attrs()
		d, wanted := devices[a.MasterIndex], master[a.Name]
		stays := wanted != "" && (d == nil || d.Name == wanted) // no master: its VRF was just deleted, the next pass restores it
		if len(enslavedMarks(a)) == 0 || stays || ctx.Err() != nil {
			continue
		}
		if err := release(h, l, d); err != nil {
			errs = append(errs, fmt.Errorf("release %s: %w", a.Name, err))
		}
		delete(v.seen, a.Index)
	}
	return errs
}

// removeVRFs deletes the VRF devices that we created, unless they are desired.
func removeVRFs(ctx context.Context, h *netlink.Handle, devices map[int]*netlink.Vrf, desired []plan.VRF) (errs []error) {
	keep := map[string]bool{}
	for _, d := range desired {
		keep[d.Name] = true
	}
	for _, d := range devices {
		if d.Group != LinkGroup || keep[d.Name] || ctx.Err() != nil {
			continue
		}
		if err := h.LinkDel(d); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
			errs = append(errs, fmt.Errorf("delete VRF %s: %w", d.Name, err))
		}
	}
	return errs
}

// enslave makes an interface a port of a VRF unless it is one already.
func (v *VRFs) enslave(h *netlink.Handle, name string, vrf *netlink.Vrf) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface: %w", err)
	}
	a := link.Attrs()
	switch a.MasterIndex {
	case vrf.Index, 0:
	default:
		master := strconv.Itoa(a.MasterIndex)
		if m, err := h.LinkByIndex(a.MasterIndex); err == nil {
			master = m.Type() + " " + m.Attrs().Name
		}
		return fmt.Errorf("it is enslaved to %s, free it first", master)
	}
	standing, err := readFlushed(a.Index)
	if err != nil {
		return err
	}
	if a.MasterIndex == vrf.Index {
		// While another program deletes the VRF, standing may be incomplete. Asking for the link waits until that ends.
		if link, err = h.LinkByIndex(a.Index); err != nil || link.Attrs().MasterIndex != vrf.Index {
			return errors.New("its VRF vanished meanwhile")
		}
		if v.seen == nil {
			v.seen = map[int]flushed{}
		}
		v.seen[a.Index] = standing
		return nil
	}
	// The mark comes first: a mark without a master does no harm, but a master without the mark would outlive us.
	if mark := enslavedMark(a); !slices.Contains(a.AltNames, mark) {
		if err := h.LinkAddAltName(link, mark); err != nil {
			return fmt.Errorf("add alternative name %s: %w", mark, err)
		}
	}
	if err := h.LinkSetMaster(link, vrf); err != nil {
		return fmt.Errorf("set master: %w", err)
	}
	if v.Joined != nil {
		v.Joined(name, vrf.Name)
	}
	return errors.Join(standing.restore(a.Index, MainTable, vrf.Table), v.seen[a.Index].restore(a.Index, MainTable, vrf.Table))
}

// release undoes enslave. vrf is nil if the interface is no longer a port of a VRF.
func release(h *netlink.Handle, link netlink.Link, vrf *netlink.Vrf) error {
	var errs []error
	if vrf != nil {
		index := link.Attrs().Index
		standing, err := readFlushed(index)
		if err != nil {
			return err
		}
		if err := h.LinkSetNoMaster(link); err != nil {
			return fmt.Errorf("set no master: %w", err)
		}
		errs = append(errs, standing.restore(index, vrf.Table, MainTable))
	}
	for _, mark := range enslavedMarks(link.Attrs()) {
		errs = append(errs, h.LinkDelAltName(link, mark))
	}
	return errors.Join(errs...)
}

// setUp sets a link up unless it is up already.
func setUp(h *netlink.Handle, link netlink.Link) error {
	if link.Attrs().RawFlags&unix.IFF_UP != 0 {
		return nil
	}
	return h.LinkSetUp(link)
}
