package ruleset

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// Address sets hold one or more elements for each endpoint and each ingress IP: hundreds of thousands in all. One
// function per kind of object returns its elements, for the whole content and for differences alike.

// AddressSet is a kind of address set, of either family.
type AddressSet uint8

// Kinds of address sets.
const (
	InEgress AddressSet = iota
	InSource
	InSources // one set per path
	inMasqueraded
	inIngress
	InStrays
	inResumed
	inHanded
	inCounted
	inLet
	inHosts
	inPartners
	inClasses
	inOnLink
	inAsked
	inAnswers
	inAsking
	InFirewalled
	InFormer
)

// Element is an element of an address set.
type Element struct {
	Set AddressSet
	// Path is the value in InEgress and InStrays, in inClasses a class and in InFirewalled a policy; in InSources it is the path in
	// the set's name.
	Path plan.PathID
	Key  netip.Addr
	With netip.Addr // second half of the key in InSources, value in InSource
	MAC  plan.MAC   // value in the sets of PathShared
	On   string     // device, second half of the key in inAnswers
}

// PathSet holds the path ids of a plan.
type PathSet map[plan.PathID]bool

// PathsOf returns the path ids of a plan.
func PathsOf(d *plan.DataPlane) PathSet {
	s := make(PathSet, len(d.Paths))
	for _, p := range d.Paths {
		s[p.ID] = true
	}
	return s
}

// OfEndpoint appends the elements of an endpoint. A flow may keep the path of the standby only while that path exists.
func (s PathSet) OfEndpoint(all []Element, e *plan.Endpoint) []Element {
	all = append(all, Element{Set: InEgress, Path: e.Path, Key: e.Addr})
	if e.Path == 0 {
		return all
	}
	if e.Via != (plan.MAC{}) {
		all = append(all, Element{Set: inHosts, Key: e.Addr, MAC: e.Via})
	}
	if e.Source.IsValid() {
		all = append(all, Element{Set: InSource, Key: e.Addr, With: e.Source})
	} else {
		all = append(all, Element{Set: inMasqueraded, Key: e.Addr})
	}
	now := e.Way()
	all = s.ofWay(all, e.Addr, now)
	if e.Kept != now {
		all = s.ofWay(all, e.Addr, e.Kept)
	}
	return all
}

// ofWay appends the element that lets flows of an address have a path and source.
func (s PathSet) ofWay(all []Element, a netip.Addr, way plan.Way) []Element {
	if !s[way.Path] || !way.Source.IsValid() {
		return all
	}
	return append(all, Element{Set: InSources, Path: way.Path, Key: a, With: way.Source})
}

// OfIngress appends the elements of an ingress IP.
func OfIngress(all []Element, i *plan.IngressIP) []Element {
	all = append(all, Element{Set: inIngress, Key: i.Addr})
	if i.Stray != 0 {
		all = append(all, Element{Set: InStrays, Path: i.Stray, Key: i.Addr})
	}
	if i.Via != (plan.MAC{}) {
		all = append(all, Element{Set: inPartners, Key: i.Addr, MAC: i.Via})
	}
	if i.Resumed {
		all = append(all, Element{Set: inResumed, Key: i.Addr})
	}
	if i.Handed {
		all = append(all, Element{Set: inHanded, Key: i.Addr})
	}
	if i.Counted {
		all = append(all, Element{Set: inCounted, Key: i.Addr})
	}
	return all
}

// OfLet appends the element of a pod address that need not be selected.
func OfLet(all []Element, a *plan.Address) []Element {
	return append(all, Element{Set: inLet, Key: a.Addr})
}

// EachElement calls each with the elements of every object of a plan. The slice is valid only during the call.
func EachElement(d *plan.DataPlane, each func([]Element)) {
	paths := PathsOf(d)
	var buf []Element
	for e := range d.Endpoints.All() {
		buf = paths.OfEndpoint(buf[:0], &e)
		each(buf)
	}
	for i := range d.Ingress.All() {
		buf = OfIngress(buf[:0], &i)
		each(buf)
	}
	for a := range d.Let.All() {
		buf = OfLet(buf[:0], &a)
		each(buf)
	}
	for m := range d.Marked.All() {
		buf = OfMarked(buf[:0], &m)
		each(buf)
	}
	for f := range d.Firewalled.All() {
		buf = OfFirewalled(buf[:0], &f)
		each(buf)
	}
	for a := range d.OnLink.All() {
		buf = OfOnLink(buf[:0], &a)
		each(buf)
	}
}

// Remembered reports whether an address that leaves the set is kept for a while in the former set.
func (s AddressSet) Remembered() bool { return s == InEgress || s == InSource || s == inIngress }

// SetName identifies an address set.
type SetName struct {
	Set  AddressSet
	path plan.PathID // of InSources
	ipv6 bool
}

// Name returns the set that has the element.
func (e *Element) Name() SetName {
	n := SetName{Set: e.Set, ipv6: !e.Key.Is4()}
	if e.Set == InSources {
		n.path = e.Path
	}
	return n
}

// String returns the set's name in the kernel.
func (n SetName) String() string {
	suffix := IPv4.Suffix
	if n.ipv6 {
		suffix = IPv6.Suffix
	}
	name := [...]string{
		SetEgress, SetSource, SetSources, SetMasquerade, SetIngress, SetStrays, SetResumed, SetHanded, SetCounted, SetLet,
		SetHosts, SetPartners, SetClasses, SetOnLink, SetAsked, SetAnswers, SetAsking, SetFirewalled, SetFormer,
	}[n.Set] + suffix
	if n.Set == InSources {
		return Named(name, n.path)
	}
	return name
}

// AddressSets maps the names of a plan's address sets, without the former ones, whose elements expire by themselves.
func AddressSets(d *plan.DataPlane) map[string]SetName {
	all := map[string]SetName{}
	for _, v6 := range []bool{false, true} {
		for set := range InFormer {
			if set == InSources {
				for _, p := range d.Paths {
					n := SetName{InSources, p.ID, v6}
					all[n.String()] = n
				}
				continue
			}
			if n := (SetName{Set: set, ipv6: v6}); set.Table().In(d) && (!v6 || set.Table() != TableARP) {
				all[n.String()] = n
			}
		}
	}
	return all
}

// AppendKey appends the key in the form that the kernel compares.
func (e *Element) AppendKey(b []byte) []byte {
	b = appendRaw(b, e.Key)
	if e.Set == InSources {
		b = appendRaw(b, e.With)
	}
	if e.Set == inAnswers {
		b = append(b, DeviceKey(e.On)...)
	}
	return b
}

func appendRaw(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		raw := a.As4()
		return append(b, raw[:]...)
	}
	raw := a.As16()
	return append(b, raw[:]...)
}

// AppendValue appends the map value of the element's key: a path id or an address.
func (e *Element) AppendValue(b []byte) []byte {
	switch e.Set {
	case InEgress, InStrays, inClasses, InFirewalled:
		return binary.BigEndian.AppendUint32(b, uint32(e.Path)) // see PathValue
	case InSource:
		return appendRaw(b, e.With)
	case inHosts, inPartners:
		return append(b, e.MAC[:]...)
	}
	return b
}

// Valued reports whether the set is a map.
func (s AddressSet) Valued() bool {
	return s == InEgress || s == InStrays || s == InSource || s == inClasses || s == InFirewalled || s.Table() == TableNetdev
}

// Table returns the table that has the set.
func (s AddressSet) Table() Table {
	switch s {
	case inHosts, inPartners:
		return TableNetdev
	case inAsked, inAnswers:
		return TableARP
	default:
		return TableInet
	}
}

// Differs returns the ids that only one of the two sets has.
func (s PathSet) Differs(o PathSet) PathSet {
	var all PathSet
	for _, pair := range [][2]PathSet{{s, o}, {o, s}} {
		for id := range pair[0] {
			if !pair[1][id] {
				if all == nil {
					all = PathSet{}
				}
				all[id] = true
			}
		}
	}
	return all
}

// Element returns an element with the given key as the kernel lists it, without a value.
func (n SetName) Element(key string) (e Element, ok bool) {
	e = Element{Set: n.Set, Path: n.path}
	size := int(IPv4.Len)
	if n.ipv6 {
		size = int(IPv6.Len)
	}
	if n.Set == InSources {
		if len(key) != 2*size {
			return e, false
		}
		e.With, _ = netip.AddrFromSlice([]byte(key[size:]))
		key = key[:size]
	}
	if n.Set == inAnswers && len(key) == size+unix.IFNAMSIZ {
		e.On, key = unix.ByteSliceToString([]byte(key[size:])), key[:size]
	}
	e.Key, ok = netip.AddrFromSlice([]byte(key))
	return e, ok && len(key) == size
}
