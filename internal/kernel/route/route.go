// Package route makes routes and rules equal to a plan, reads those of others, and keeps which planned routes are left
// out.
package route

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
)

// Protocol marks every route and rule of ours.
const Protocol = 142

const rtaNHID = 30 // RTA_NH_ID

// Key identifies a route within the kernel's tables.
type Key struct {
	Table  uint32
	Dst    netip.Prefix
	Metric uint32
}

// String returns the key as errors name it.
func (k Key) String() string {
	return fmt.Sprintf("%s table %d metric %d", k.Dst, k.Table, k.Metric)
}

// Leg is a next hop in the kernel's terms.
type Leg struct {
	Gateway netip.Addr
	Device  int // index; 0: the kernel derives it from the gateway
	onLink  bool
	dead    bool // as read: the device is down or has no carrier
}

// Entry is a route in the kernel's normal form: with an explicit metric and sorted legs.
type Entry struct {
	Key
	Protocol uint8
	Kind     uint8 // RTN_UNICAST, RTN_UNREACHABLE, ...
	Legs     []Leg
	object   bool // the next hops are in a next hop object
}

// Same reports whether both routes have the same kind and next hops.
func (r *Entry) Same(o *Entry) bool {
	return r.Kind == o.Kind && !r.object && !o.object && slices.EqualFunc(r.Legs, o.Legs, func(a, b Leg) bool {
		return a.Gateway == b.Gateway && a.onLink == b.onLink && (a.Device == b.Device || a.Device == 0 || b.Device == 0)
	})
}

func (r *Entry) sortLegs() {
	slices.SortFunc(r.Legs, func(a, b Leg) int {
		return cmp.Or(a.Gateway.Compare(b.Gateway), cmp.Compare(a.Device, b.Device))
	})
}

// Socket changes routes and rules over an rtnetlink socket. Without a socket it opens one for each change.
type Socket struct{ *nl.Conn }

// verdict judges the kernel's answer for a route, or the state of its devices. If it turns an error into nil, the route
// is left out.
type verdict func(*plan.Route, error) error

// AddRoutes adds missing routes and replaces those that differ, and asks for a verdict on each of them. A leg whose
// device is missing or down is left out as long as another leg remains.
func (c Socket) AddRoutes(ctx context.Context, h *netlink.Handle, desired []plan.Route, judge verdict) error {
	wanted, errs := NormalRoutes(h, desired, judge)
	state, err := readStates(ctx, wanted)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	var a additions
	for i := range desired {
		p, key := &desired[i], KeyOf(&desired[i])
		r := wanted[key]
		if r == nil {
			if state[key] == different {
				a.former = append(a.former, p)
			}
			continue
		}
		switch state[key] {
		case missing:
			a.add(p, r, create)
		case different:
			a.add(p, r, replace)
		case right:
		}
		state[key] = right
	}
	return c.addAll(ctx, &a, judge, errs)
}

// routeState compares the kernel's route of a key with the wanted one.
type routeState int

const (
	missing routeState = iota
	different
	right
)

// readStates compares the kernel's routes with those wanted.
func readStates(ctx context.Context, wanted map[Key]*Entry) (map[Key]routeState, error) {
	return nl.Retry(func() (map[Key]routeState, error) {
		state := make(map[Key]routeState, len(wanted))
		return state, DumpOurs(ctx, func(r *Entry) {
			w, ok := wanted[r.Key]
			switch {
			case !ok || state[r.Key] == right:
			case w != nil && w.Same(r):
				state[r.Key] = right
			default:
				state[r.Key] = different
			}
		})
	})
}

// PruneRoutes removes our routes that are not desired, in any table but those held.
func (c Socket) PruneRoutes(ctx context.Context, desired []plan.Route, held ...uint32) error {
	stale, err := readStale(ctx, desired, held)
	if err != nil {
		return err
	}
	messages, keys := make([]nl.Message, len(stale)), make([]Key, len(stale))
	for i, r := range stale {
		messages[i], keys[i] = nl.Message{Type: unix.RTM_DELROUTE, Flags: 0, Body: r.Encode(false)}, r.Key
	}
	return c.remove(ctx, messages, keys)
}

// readStale lists our routes that are not desired, and further routes of a key that the kernel has twice.
func readStale(ctx context.Context, desired []plan.Route, held []uint32) ([]*Entry, error) {
	wanted := make(map[Key]bool, len(desired))
	for i := range desired {
		wanted[KeyOf(&desired[i])] = true
	}
	return nl.Retry(func() ([]*Entry, error) {
		var stale []*Entry
		seen := map[Key]bool{}
		err := DumpOurs(ctx, func(r *Entry) {
			if (!wanted[r.Key] || seen[r.Key]) && !slices.Contains(held, r.Table) {
				stale = append(stale, r)
			}
			seen[r.Key] = true
		})
		return stale, err
	})
}

// KeyOf returns the key of a planned route in the kernel's normal form.
func KeyOf(r *plan.Route) Key {
	k := Key{r.Table, r.Dst.Masked(), r.Metric}
	if k.Metric == 0 && k.Dst.Addr().Is6() {
		k.Metric = 1024 // IP6_RT_PRIO_USER
	}
	return k
}

// NormalRoutes converts routes to the kernel's normal form; nil: the route is left out. It returns the errors that the
// verdict lets stand.
func NormalRoutes(h *netlink.Handle, desired []plan.Route, judge verdict) (map[Key]*Entry, []error) {
	n := newNormalizer(h, judge)
	wanted := make(map[Key]*Entry, len(desired))
	for i := range desired {
		wanted[KeyOf(&desired[i])] = n.normal(&desired[i])
	}
	return wanted, n.errs
}

// dumpRoutes calls each for every route of a family, table (0: all) and protocol (0: all), until each returns false.
func dumpRoutes(family uint8, table uint32, protocol uint8, each func(*Entry) bool) error {
	body := make([]byte, unix.SizeofRtMsg)
	body[0], body[5] = family, protocol
	if table != 0 {
		body = nl.AppendAttr32(body, unix.RTA_TABLE, table)
	}
	return nl.Dump(nl.Message{Type: unix.RTM_GETROUTE, Body: body}, unix.RTM_NEWROUTE, func(b []byte) bool {
		r, ok := DecodeRoute(b)
		if !ok || b[0] != family || table != 0 && r.Table != table || protocol != 0 && r.Protocol != protocol {
			return true
		}
		return each(r)
	})
}

// DumpOurs calls each for every route of ours.
func DumpOurs(ctx context.Context, each func(*Entry)) error {
	for _, family := range nl.Families() {
		err := dumpRoutes(family, 0, Protocol, func(r *Entry) bool { each(r); return ctx.Err() == nil })
		if err := errors.Join(err, ctx.Err()); err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
	}
	return nil
}

// Encode encodes the body of a request to add or to delete the route.
func (r *Entry) Encode(add bool) []byte {
	b := make([]byte, unix.SizeofRtMsg, 96)
	family, ipv4 := uint8(unix.AF_INET6), r.Dst.Addr().Is4()
	if ipv4 {
		family = unix.AF_INET
	}
	b[0], b[1], b[5], b[7] = family, uint8(r.Dst.Bits()), r.Protocol, r.Kind
	b = nl.AppendAttr(b, unix.RTA_DST, r.Dst.Addr().AsSlice()...)
	b = nl.AppendAttr32(b, unix.RTA_TABLE, r.Table)
	if r.Metric != 0 {
		b = nl.AppendAttr32(b, unix.RTA_PRIORITY, r.Metric)
	}
	if !add {
		// The key identifies an IPv6 route with all its legs. An IPv4 table may hold several routes of one key, so the
		// legs are needed too.
		b[6] = unix.RT_SCOPE_NOWHERE
		if !ipv4 || r.object {
			return b
		}
	} else if ipv4 && r.staysOnLink() {
		b[6] = unix.RT_SCOPE_LINK
	}
	return r.appendLegs(b)
}

// staysOnLink reports whether the route's destinations are on the links of its devices.
func (r *Entry) staysOnLink() bool {
	return r.Kind == unix.RTN_UNICAST && !slices.ContainsFunc(r.Legs, func(l Leg) bool { return l.Gateway.IsValid() })
}

// appendLegs appends a single leg as attributes of the route, several ones as RTA_MULTIPATH.
func (r *Entry) appendLegs(b []byte) []byte {
	ipv4 := r.Dst.Addr().Is4()
	if len(r.Legs) == 1 {
		l := r.Legs[0]
		binary.NativeEndian.PutUint32(b[8:], l.flags())
		if l.Device != 0 {
			b = nl.AppendAttr32(b, unix.RTA_OIF, uint32(l.Device))
		}
		return l.appendGateway(b, ipv4)
	}
	var legs []byte
	for _, l := range r.Legs {
		legs = l.appendNextHop(legs, ipv4)
	}
	if len(legs) > 0 {
		b = nl.AppendAttr(b, unix.RTA_MULTIPATH, legs...)
	}
	return b
}

// appendNextHop appends the leg as a struct rtnexthop with its attributes.
func (l Leg) appendNextHop(b []byte, ipv4 bool) []byte {
	start := len(b)
	b = append(b, make([]byte, unix.SizeofRtNexthop)...)
	b[start+2] = uint8(l.flags())
	binary.NativeEndian.PutUint32(b[start+4:], uint32(l.Device))
	b = l.appendGateway(b, ipv4)
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

func (l Leg) flags() uint32 {
	if l.onLink {
		return unix.RTNH_F_ONLINK
	}
	return 0
}

// appendGateway appends the gateway in the attribute that its family and the route's require.
func (l Leg) appendGateway(b []byte, ipv4 bool) []byte {
	switch {
	case !l.Gateway.IsValid():
		return b
	case ipv4 && l.Gateway.Is6():
		via := binary.NativeEndian.AppendUint16(nil, unix.AF_INET6)
		return nl.AppendAttr(b, unix.RTA_VIA, append(via, l.Gateway.AsSlice()...)...)
	}
	return nl.AppendAttr(b, unix.RTA_GATEWAY, l.Gateway.AsSlice()...)
}

// DecodeRoute decodes a route; ok is false for entries that are not in a table, such as cached exceptions.
func DecodeRoute(b []byte) (r *Entry, ok bool) {
	if len(b) < unix.SizeofRtMsg || binary.NativeEndian.Uint32(b[8:])&unix.RTM_F_CLONED != 0 {
		return nil, false
	}
	r = &Entry{
		Key:      Key{Table: uint32(b[4]), Dst: netip.PrefixFrom(unspecified(b[0]), int(b[1]))},
		Protocol: b[5],
		Kind:     b[7],
	}
	for typ, value := range nl.Attrs(b, unix.SizeofRtMsg) {
		switch typ {
		case rtaNHID:
			r.object = true
		case unix.RTA_MULTIPATH:
			r.Legs = decodeLegs(value)
		default:
			r.Key.set(typ, value)
		}
	}
	// Unreachable IPv6 routes name the loopback device.
	if r.Kind == unix.RTN_UNICAST && r.Legs == nil {
		r.Legs = []Leg{decodeLeg(binary.NativeEndian.Uint32(b[8:]), 0, b, unix.SizeofRtMsg)}
	}
	r.sortLegs()
	return r, true
}

func unspecified(family uint8) netip.Addr {
	if family == unix.AF_INET {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// set sets the field of an attribute.
func (k *Key) set(typ uint16, value []byte) {
	switch typ {
	case unix.RTA_DST:
		dst, _ := netip.AddrFromSlice(value)
		k.Dst = netip.PrefixFrom(dst, k.Dst.Bits())
	case unix.RTA_TABLE:
		k.Table = binary.NativeEndian.Uint32(value)
	case unix.RTA_PRIORITY:
		k.Metric = binary.NativeEndian.Uint32(value)
	}
}

// decodeLegs decodes the value of RTA_MULTIPATH.
func decodeLegs(value []byte) (legs []Leg) {
	for len(value) >= unix.SizeofRtNexthop {
		n := int(binary.NativeEndian.Uint16(value))
		if n < unix.SizeofRtNexthop || n > len(value) {
			break
		}
		device := int(binary.NativeEndian.Uint32(value[4:]))
		legs = append(legs, decodeLeg(uint32(value[2]), device, value[:n], unix.SizeofRtNexthop))
		value = value[min(nl.Align(n), len(value)):]
	}
	return legs
}

func decodeLeg(flags uint32, device int, b []byte, fixed int) Leg {
	l := Leg{Device: device, onLink: flags&unix.RTNH_F_ONLINK != 0, dead: flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0}
	for typ, value := range nl.Attrs(b, fixed) {
		switch typ {
		case unix.RTA_OIF:
			l.Device = int(binary.NativeEndian.Uint32(value))
		case unix.RTA_GATEWAY:
			l.Gateway, _ = netip.AddrFromSlice(value)
		case unix.RTA_VIA:
			l.Gateway, _ = netip.AddrFromSlice(value[min(2, len(value)):])
		}
	}
	return l
}
