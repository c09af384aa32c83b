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
	const (
		missing = iota
		different
		right
	)
	state, err := nl.Retry(func() (map[Key]int, error) {
		state := make(map[Key]int, len(wanted))
		return state, DumpOurs(ctx, func(r *Entry) {
			if w, ok := wanted[r.Key]; ok && state[r.Key] != right {
				state[r.Key] = different
				if w != nil && w.Same(r) {
					state[r.Key] = right
				}
			}
		})
	})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	var wanting []*Entry
	var planned, former []*plan.Route
	var messages []nl.Message
	for i := range desired {
		key := KeyOf(&desired[i])
		r := wanted[key]
		if r == nil && state[key] == different {
			former = append(former, &desired[i])
		}
		if r == nil || state[key] == right {
			continue
		}
		// A new route must not replace another program's route of the same key; our own is replaced in one step.
		flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
		if state[key] == different {
			flags = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
		}
		state[key] = right
		wanting, planned = append(wanting, r), append(planned, &desired[i])
		messages = append(messages, nl.Message{Type: unix.RTM_NEWROUTE, Flags: flags, Body: r.Encode(true)})
	}
	results, err := c.Change(ctx, messages)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	return nl.JoinErrors(append(errs, c.judged(ctx, planned, former, wanting, messages, results, judge)...))
}

// judged returns the errors of adding routes that the verdict lets stand. If a route that is left out was to replace
// another, judged removes the other, as it does former: no peer advertises it any more.
func (c Socket) judged(
	ctx context.Context, planned, former []*plan.Route, routes []*Entry, messages []nl.Message, results []error, judge verdict,
) (errs []error) {
	for i, err := range results {
		if judged := judge(planned[i], err); judged != nil {
			errs = append(errs, addError(routes[i].Key, judged))
		} else if err != nil && messages[i].Flags&unix.NLM_F_REPLACE != 0 {
			former = append(former, planned[i])
		}
	}
	if len(former) == 0 {
		return errs
	}
	return append(errs, c.RemoveGone(ctx, former))
}

// PruneRoutes removes our routes that are not desired, in any table but those held.
func (c Socket) PruneRoutes(ctx context.Context, desired []plan.Route, held ...uint32) error {
	wanted := make(map[Key]bool, len(desired))
	for i := range desired {
		wanted[KeyOf(&desired[i])] = true
	}
	stale, err := nl.Retry(func() ([]*Entry, error) {
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
	if err != nil {
		return err
	}
	messages, keys := make([]nl.Message, len(stale)), make([]Key, len(stale))
	for i, r := range stale {
		messages[i], keys[i] = nl.Message{Type: unix.RTM_DELROUTE, Flags: 0, Body: r.Encode(false)}, r.Key
	}
	return c.remove(ctx, messages, keys)
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
		if !ipv4 || r.object || len(r.Legs) == 0 {
			return b
		}
	} else if ipv4 && !slices.ContainsFunc(r.Legs, func(l Leg) bool { return l.Gateway.IsValid() }) && r.Kind == unix.RTN_UNICAST {
		b[6] = unix.RT_SCOPE_LINK
	}
	if len(r.Legs) == 1 {
		binary.NativeEndian.PutUint32(b[8:], r.Legs[0].flags())
		if r.Legs[0].Device != 0 {
			b = nl.AppendAttr32(b, unix.RTA_OIF, uint32(r.Legs[0].Device))
		}
		return r.Legs[0].appendGateway(b, ipv4)
	}
	var legs []byte
	for _, l := range r.Legs {
		start := len(legs)
		legs = append(legs, make([]byte, unix.SizeofRtNexthop)...)
		legs[start+2] = uint8(l.flags())
		binary.NativeEndian.PutUint32(legs[start+4:], uint32(l.Device))
		legs = l.appendGateway(legs, ipv4)
		binary.NativeEndian.PutUint16(legs[start:], uint16(len(legs)-start))
	}
	if len(legs) > 0 {
		b = nl.AppendAttr(b, unix.RTA_MULTIPATH, legs...)
	}
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
	r = &Entry{Protocol: b[5], Kind: b[7]}
	r.Table = uint32(b[4])
	dst := netip.IPv6Unspecified()
	if b[0] == unix.AF_INET {
		dst = netip.IPv4Unspecified()
	}
	one := decodeLeg(binary.NativeEndian.Uint32(b[8:]), 0, b, unix.SizeofRtMsg)
	for typ, value := range nl.Attrs(b, unix.SizeofRtMsg) {
		switch typ {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(value)
		case unix.RTA_TABLE:
			r.Table = binary.NativeEndian.Uint32(value)
		case unix.RTA_PRIORITY:
			r.Metric = binary.NativeEndian.Uint32(value)
		case unix.RTA_OIF:
			one.Device = int(binary.NativeEndian.Uint32(value))
		case rtaNHID:
			r.object = true
		case unix.RTA_MULTIPATH:
			r.Legs = appendLegs(r.Legs, value)
		}
	}
	r.Dst = netip.PrefixFrom(dst, int(b[1]))
	// Unreachable IPv6 routes name the loopback device.
	if r.Kind == unix.RTN_UNICAST && r.Legs == nil {
		r.Legs = []Leg{one}
	}
	r.sortLegs()
	return r, true
}

// appendLegs decodes the value of RTA_MULTIPATH.
func appendLegs(legs []Leg, value []byte) []Leg {
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
		case unix.RTA_GATEWAY:
			l.Gateway, _ = netip.AddrFromSlice(value)
		case unix.RTA_VIA:
			l.Gateway, _ = netip.AddrFromSlice(value[min(2, len(value)):])
		}
	}
	return l
}
