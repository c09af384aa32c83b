package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// VLANID is the ID of a VLAN (IEEE 802.1Q).
type VLANID uint16

// The IDs that a frame may have; 0 and 4095 are reserved.
const (
	minVLAN VLANID = 1
	maxVLAN VLANID = 4094
)

// maxDeviceName is the longest name of an interface, in bytes (IFNAMSIZ without the terminating zero).
const maxDeviceName = 15

// Made reports whether the daemon makes the interface, as a VLAN sub-interface.
func (i *Interface) Made() bool { return i.Parent != "" }

// String returns the interface as check and plan show it.
func (i Interface) String() string {
	if !i.Made() {
		return i.Name
	}
	parts := []string{fmt.Sprintf("%s, VLAN %d on %s", i.Name, i.VLAN, i.Parent)}
	if i.MTU != 0 {
		parts = append(parts, fmt.Sprintf("MTU %d", i.MTU))
	}
	for _, a := range i.Addresses {
		parts = append(parts, a.String())
	}
	return strings.Join(parts, ", ")
}

// carrier identifies the VLAN of a sub-interface: the kernel has at most one for each ID of a parent.
func (i *Interface) carrier() string { return fmt.Sprintf("%s.%d", i.Parent, i.VLAN) }

// setName sets the usual name of a sub-interface that has none.
func (i *Interface) setName() {
	if i.Name == "" && i.Made() && i.VLAN != 0 {
		i.Name = i.carrier()
	}
}

// vlan checks a VLAN sub-interface, and that no other network has its name or its VLAN.
func (v *validator) vlan(e entry, one Interface, used inUse) {
	if v.subInterface(e.path, one) {
		v.uniqueOnNodes(used.vlans, one.carrier(), e, "another entry makes this VLAN's sub-interface already")
		v.uniqueOnNodes(used.devices, one.Name, e, deviceInUse)
	}
}

// given reports whether the file has a value at path.
func (v *validator) given(path string) bool {
	_, ok := v.places[path]
	return ok
}

func (v *validator) givesAny(path string, keys ...string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { return v.given(path + "." + key) })
}

// subInterface checks the keys of a VLAN sub-interface. It returns true if it can be identified: by its parent, its VLAN ID
// and its name.
func (v *validator) subInterface(path string, one Interface) bool {
	if !v.givesAny(path, "parent", "vlan") {
		v.noSubInterface(path)
		return false
	}
	parent, id := v.parent(path+".parent", one), v.vlanID(path+".vlan", one.VLAN)
	if v.given(path+".mtu") && (one.MTU < 1280 || one.MTU > 65535) {
		v.bad(path+".mtu", "1280 to 65535 bytes; without it the parent's MTU")
	}
	v.addresses(path+".addresses", one.Addresses)
	return parent && id && v.nameOfVLAN(path+".name", one)
}

// noSubInterface refuses the keys of a VLAN sub-interface in the entry of an interface that the daemon does not make.
func (v *validator) noSubInterface(path string) {
	for _, key := range []string{"mtu", "addresses"} {
		if v.given(path + "." + key) {
			v.bad(path+"."+key, "only a VLAN sub-interface that the daemon makes has it: give parent and vlan, or leave this out")
		}
	}
}

// parent checks the interface on which a sub-interface is made.
func (v *validator) parent(path string, one Interface) bool {
	isVRF := func(n Network) bool {
		return n.VRF == one.Parent || slices.ContainsFunc(n.Overrides, func(o NetworkOverride) bool { return o.VRF == one.Parent })
	}
	switch {
	case one.Parent == "":
		v.bad(path, "missing: the interface on which VLAN %d is made, such as bond0", one.VLAN)
	case !v.device(path, one.Parent):
	case one.Parent == one.Name:
		v.bad(path, "the sub-interface itself has this name: name the interface that carries the VLAN")
	case one.Parent == v.c.Steering.Device:
		v.bad(path, "steering.device has this name: name the interface that carries the VLAN")
	case slices.ContainsFunc(v.c.Networks, isVRF):
		v.bad(path, "a VRF device carries no VLANs: name the interface that does")
	default:
		return true
	}
	return false
}

func (v *validator) vlanID(path string, id VLANID) bool {
	switch {
	case !v.given(path):
		v.bad(path, "missing: the VLAN ID, %d to %d", minVLAN, maxVLAN)
	case id < minVLAN || id > maxVLAN:
		v.bad(path, "not a VLAN ID: %d to %d", minVLAN, maxVLAN)
	default:
		return true
	}
	return false
}

// nameOfVLAN checks the name of a sub-interface. The usual name is not cut if it is too long: peers and other programs refer
// to the device by its name, and two names may become one by cutting.
func (v *validator) nameOfVLAN(path string, one Interface) bool {
	if !v.given(path) && len(one.Name) > maxDeviceName {
		v.bad(path, "missing: the usual name %s has %d bytes, an interface's name at most %d; give one, such as vlan%d",
			one.Name, len(one.Name), maxDeviceName, one.VLAN)
		return false
	}
	return v.device(path, one.Name)
}

// addresses checks the addresses of a sub-interface.
func (v *validator) addresses(path string, all []netip.Prefix) {
	seen := map[string]string{}
	for i, p := range all {
		path := fmt.Sprintf("%s[%d]", path, i)
		if why := notOwn(p); why != "" {
			v.bad(path, "%s", why)
			continue
		}
		v.unique(seen, p.Addr().String(), path, "the sub-interface has this address already")
	}
}

// notOwn returns why an interface cannot have an address with this prefix length.
func notOwn(p netip.Prefix) string {
	a := p.Addr()
	switch {
	case !p.IsValid():
		return "missing: an address with its prefix length, such as 192.0.2.2/31"
	case a.Is6() && a.IsLinkLocalUnicast():
		return "the kernel gives the interface a link-local address: leave this out"
	case notPeer(a) != "":
		return strings.TrimSuffix(notPeer(a), " of another host")
	case p.Bits() == 0:
		return "no subnet has every address: give the subnet's prefix length"
	case a.BitLen()-p.Bits() > 1 && a == p.Masked().Addr():
		return "the subnet's own address: give one of this node in it"
	case a.Is4() && a.BitLen()-p.Bits() > 1 && !p.Contains(a.Next()):
		return "the subnet's broadcast address: give one of this node in it"
	}
	return ""
}
