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
	"github.com/egressway/egressway/internal/kernel/route"
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
	seen    map[int]flushed    // by index of the interface
	LeftOut func(route string) // called for each default route that Prune left out of the main table; nil: nothing is
}

// VRFResult is the outcome of VRFs.Apply.
type VRFResult struct {
	Made   []string         // the devices that were created
	Joined []Port           // the interfaces that were enslaved
	Unmade map[string]error // by name, the reason why a VRF is not as desired
}

// Port is an interface enslaved to a VRF.
type Port struct{ Name, VRF string }

// Err joins the reasons why VRFs are not as desired.
func (r VRFResult) Err() error { return errors.Join(slices.Collect(maps.Values(r.Unmade))...) }

// Apply creates missing VRF devices and enslaves the listed interfaces. One that fails does not stop the others.
func (v *VRFs) Apply(ctx context.Context, h *netlink.Handle, desired []plan.VRF) VRFResult {
	r := VRFResult{Unmade: map[string]error{}}
	for _, d := range desired {
		if err := ctx.Err(); err != nil {
			r.Unmade[d.Name] = err
			break
		}
		device, made, err := applyVRF(h, d)
		if err != nil {
			r.Unmade[d.Name] = err
			continue
		}
		if made {
			r.Made = append(r.Made, d.Name)
		}
		joined, err := v.enslaveAll(h, d, device)
		r.Joined = append(r.Joined, joined...)
		if err != nil {
			r.Unmade[d.Name] = err
		}
	}
	return r
}

// enslaveAll enslaves the interfaces of a VRF, and returns those that were not enslaved before. One that fails does not
// stop the others.
func (v *VRFs) enslaveAll(h *netlink.Handle, d plan.VRF, device *netlink.Vrf) (all []Port, err error) {
	var errs []error
	for _, name := range d.Interfaces {
		joined, err := v.enslave(h, name, device)
		if joined {
			all = append(all, Port{name, d.Name})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("enslave %s to VRF %s: %w", name, d.Name, err))
		}
	}
	return all, errors.Join(errs...)
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
	device, err = adopt(h, v, link)
	return device, made, err
}

// adopt checks that a device is the planned VRF, and sets a VRF of ours up.
func adopt(h *netlink.Handle, v plan.VRF, link netlink.Link) (*netlink.Vrf, error) {
	device, ok := link.(*netlink.Vrf)
	if !ok {
		return nil, fmt.Errorf("adopt VRF %s: the device of this name is a %s, not a VRF", v.Name, link.Type())
	}
	if v.Table != 0 && device.Table != v.Table {
		return nil, fmt.Errorf("adopt VRF %s: its table is %d, not %d as configured", v.Name, device.Table, v.Table)
	}
	return device, setOursUp(h, device)
}

// setOursUp sets a VRF up if it is ours.
func setOursUp(h *netlink.Handle, v *netlink.Vrf) error {
	if v.Group != LinkGroup {
		return nil
	}
	if err := setUp(h, v); err != nil {
		return fmt.Errorf("set VRF %s up: %w", v.Name, err)
	}
	return nil
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
	masters := mastersOf(desired)
	for _, l := range links {
		a := l.Attrs()
		d := devices[a.MasterIndex]
		if stays(a, d, masters[a.Name]) || ctx.Err() != nil {
			continue
		}
		if err := v.release(h, l, d); err != nil {
			errs = append(errs, fmt.Errorf("release %s: %w", a.Name, err))
		}
	}
	return errs
}

// mastersOf returns the names of VRFs by the names of their interfaces.
func mastersOf(desired []plan.VRF) map[string]string {
	masters := map[string]string{}
	for _, d := range desired {
		for _, name := range d.Interfaces {
			masters[name] = d.Name
		}
	}
	return masters
}

// stays reports whether an interface keeps its master: we did not enslave it, or a desired VRF has it; wanted is the
// name of that VRF. Without a VRF as master, its VRF was just deleted, and the next pass restores it.
func stays(a *netlink.LinkAttrs, master *netlink.Vrf, wanted string) bool {
	return len(enslavedMarks(a)) == 0 || wanted != "" && (master == nil || master.Name == wanted)
}

// removeVRFs deletes the VRF devices that we created, unless they are desired.
func removeVRFs(ctx context.Context, h *netlink.Handle, devices map[int]*netlink.Vrf, desired []plan.VRF) (errs []error) {
	keep := map[string]bool{}
	for _, d := range desired {
		keep[d.Name] = true
	}
	for _, d := range devices {
		if d.Group == LinkGroup && !keep[d.Name] && ctx.Err() == nil {
			errs = append(errs, removeVRF(h, d))
		}
	}
	return errs
}

func removeVRF(h *netlink.Handle, d *netlink.Vrf) error {
	if err := h.LinkDel(d); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		return fmt.Errorf("delete VRF %s: %w", d.Name, err)
	}
	return nil
}

// enslave makes an interface a port of a VRF unless it is one already. It reports whether it did.
func (v *VRFs) enslave(h *netlink.Handle, name string, vrf *netlink.Vrf) (joined bool, err error) {
	link, err := h.LinkByName(name)
	if err != nil {
		return false, fmt.Errorf("find interface: %w", err)
	}
	a := link.Attrs()
	if a.MasterIndex != 0 && a.MasterIndex != vrf.Index {
		return false, fmt.Errorf("it is enslaved to %s, free it first", masterText(h, a.MasterIndex))
	}
	standing, err := readFlushed(a.Index)
	if err != nil {
		return false, err
	}
	if a.MasterIndex == vrf.Index {
		return false, v.remember(h, a.Index, vrf, standing)
	}
	if err := setMaster(h, link, vrf); err != nil {
		return false, err
	}
	return true, errors.Join(standing.restore(a.Index, MainTable, vrf.Table), v.seen[a.Index].restore(a.Index, MainTable, vrf.Table))
}

// masterText names a master for people.
func masterText(h *netlink.Handle, index int) string {
	if m, err := h.LinkByIndex(index); err == nil {
		return m.Type() + " " + m.Attrs().Name
	}
	return strconv.Itoa(index)
}

// remember keeps the addresses and routes of a port. While another program deletes the VRF, standing may be incomplete.
// Asking for the link waits until that ends.
func (v *VRFs) remember(h *netlink.Handle, index int, vrf *netlink.Vrf, standing flushed) error {
	if link, err := h.LinkByIndex(index); err != nil || link.Attrs().MasterIndex != vrf.Index {
		return errors.New("its VRF vanished meanwhile")
	}
	v.keep(index, standing)
	return nil
}

// keep has the next enslave of an interface restore these addresses and routes.
func (v *VRFs) keep(index int, f flushed) {
	if v.seen == nil {
		v.seen = map[int]flushed{}
	}
	v.seen[index] = f
}

// setMaster marks an interface and makes it a port of a VRF. The mark comes first: a mark without a master does no
// harm, but a master without the mark would outlive us.
func setMaster(h *netlink.Handle, link netlink.Link, vrf *netlink.Vrf) error {
	if mark := enslavedMark(link.Attrs()); !slices.Contains(link.Attrs().AltNames, mark) {
		if err := h.LinkAddAltName(link, mark); err != nil {
			return fmt.Errorf("add alternative name %s: %w", mark, err)
		}
	}
	if err := h.LinkSetMaster(link, vrf); err != nil {
		return fmt.Errorf("set master: %w", err)
	}
	return nil
}

// release undoes enslave. vrf is nil if the interface is no longer a port of a VRF. Its static routes move from the VRF's table to the main
// one, except default routes of a family of which that has one: they would take the node's own packets.
func (v *VRFs) release(h *netlink.Handle, link netlink.Link, vrf *netlink.Vrf) error {
	a := link.Attrs()
	delete(v.seen, a.Index)
	if vrf == nil {
		return unmark(h, link)
	}
	standing, err := readFlushed(a.Index)
	if err != nil {
		return err
	}
	has, err := route.ReadDefaults(MainTable)
	if err != nil {
		return fmt.Errorf("list default routes of the main table: %w", err)
	}
	if err := h.LinkSetNoMaster(link); err != nil {
		return fmt.Errorf("set no master: %w", err)
	}
	v.leaveOut(standing.takeDefaults(vrf.Table, has), a, vrf.Table)
	return errors.Join(standing.restore(a.Index, vrf.Table, MainTable), unmark(h, link))
}

// unmark removes the mark of setMaster.
func unmark(h *netlink.Handle, link netlink.Link) error {
	var errs []error
	for _, mark := range enslavedMarks(link.Attrs()) {
		errs = append(errs, h.LinkDelAltName(link, mark))
	}
	return errors.Join(errs...)
}

// leaveOut reports routes of an interface that the main table does not get. The VRF that the interface joins next gets them: it may be the
// same one, made again.
func (v *VRFs) leaveOut(routes []nl.Message, of *netlink.LinkAttrs, table uint32) {
	for i, m := range routes {
		if v.LeftOut != nil {
			v.LeftOut(defaultText(m, of))
		}
		routes[i].Body = inTable(m.Body, table, MainTable)
	}
	if len(routes) > 0 {
		v.keep(of.Index, flushed{routes: routes})
	}
}

// defaultText names a default route by an interface for people.
func defaultText(m nl.Message, by *netlink.LinkAttrs) string {
	r, _ := route.DecodeRoute(m.Body)
	words := []string{r.Dst.String()}
	for _, l := range r.Legs {
		if l.Device == by.Index && l.Gateway.IsValid() {
			words = append(words, "via", l.Gateway.String())
		}
	}
	return strings.Join(append(words, "dev", by.Name), " ")
}

// setUp sets a link up unless it is up already.
func setUp(h *netlink.Handle, link netlink.Link) error {
	if link.Attrs().RawFlags&unix.IFF_UP != 0 {
		return nil
	}
	return h.LinkSetUp(link)
}
