package kernel

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

// RouteProtocol marks every route and rule of ours.
const RouteProtocol = 142

const rtaNHID = 30 // RTA_NH_ID

// routeKey identifies a route within the kernel's tables.
type routeKey struct {
	table  uint32
	dst    netip.Prefix
	metric uint32
}

func (k routeKey) String() string {
	return fmt.Sprintf("%s table %d metric %d", k.dst, k.table, k.metric)
}

// leg is a next hop in the kernel's terms.
type leg struct {
	gateway netip.Addr
	device  int // index; 0: the kernel derives it from the gateway
	onLink  bool
	dead    bool // as read: the device is down or has no carrier
}

// route is a route in the kernel's normal form: with an explicit metric and sorted legs.
type route struct {
	routeKey
	protocol uint8
	kind     uint8 // RTN_UNICAST, RTN_UNREACHABLE, ...
	legs     []leg
	object   bool // the next hops are in a next hop object
}

// same reports whether both routes have the same kind and next hops.
func (r *route) same(o *route) bool {
	return r.kind == o.kind && !r.object && !o.object && slices.EqualFunc(r.legs, o.legs, func(a, b leg) bool {
		return a.gateway == b.gateway && a.onLink == b.onLink && (a.device == b.device || a.device == 0 || b.device == 0)
	})
}

func (r *route) sortLegs() {
	slices.SortFunc(r.legs, func(a, b leg) int {
		return cmp.Or(a.gateway.Compare(b.gateway), cmp.Compare(a.device, b.device))
	})
}

// routeConn changes routes and rules over an rtnetlink socket. Without a socket it opens one for each change.
type routeConn struct{ *nl.Conn }

// verdict judges the kernel's answer for a route, or the state of its devices. If it turns an error into nil, the route
// is left out.
type verdict func(*plan.Route, error) error

// addRoutes adds missing routes and replaces those that differ, and asks for a verdict on each of them. A leg whose
// device is missing or down is left out as long as another leg remains.
func (c routeConn) addRoutes(ctx context.Context, h *netlink.Handle, desired []plan.Route, judge verdict) error {
	wanted, errs := normalRoutes(h, desired, judge)
	const (
		missing = iota
		different
		right
	)
	state, err := nl.Retry(func() (map[routeKey]int, error) {
		state := make(map[routeKey]int, len(wanted))
		return state, dumpOurs(ctx, func(r *route) {
			if w, ok := wanted[r.routeKey]; ok && state[r.routeKey] != right {
				state[r.routeKey] = different
				if w != nil && w.same(r) {
					state[r.routeKey] = right
				}
			}
		})
	})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	var wanting []*route
	var planned, former []*plan.Route
	var messages []nl.Message
	for i := range desired {
		key := keyOf(&desired[i])
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
		messages = append(messages, nl.Message{Type: unix.RTM_NEWROUTE, Flags: flags, Body: r.encode(true)})
	}
	results, err := c.Change(ctx, messages)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	return nl.JoinErrors(append(errs, c.judged(ctx, planned, former, wanting, messages, results, judge)...))
}

// judged returns the errors of adding routes that the verdict lets stand. If a route that is left out was to replace
// another, judged removes the other, as it does former: no peer advertises it any more.
func (c routeConn) judged(ctx context.Context, planned, former []*plan.Route, routes []*route, messages []nl.Message, results []error, judge verdict) (errs []error) {
	for i, err := range results {
		if judged := judge(planned[i], err); judged != nil {
			errs = append(errs, addError(routes[i].routeKey, judged))
		} else if err != nil && messages[i].Flags&unix.NLM_F_REPLACE != 0 {
			former = append(former, planned[i])
		}
	}
	if len(former) == 0 {
		return errs
	}
	return append(errs, c.removeGone(ctx, former))
}

// pruneRoutes removes our routes that are not desired, in any table but those held.
func (c routeConn) pruneRoutes(ctx context.Context, desired []plan.Route, held ...uint32) error {
	wanted := make(map[routeKey]bool, len(desired))
	for i := range desired {
		wanted[keyOf(&desired[i])] = true
	}
	stale, err := nl.Retry(func() ([]*route, error) {
		var stale []*route
		seen := map[routeKey]bool{}
		err := dumpOurs(ctx, func(r *route) {
			if (!wanted[r.routeKey] || seen[r.routeKey]) && !slices.Contains(held, r.table) {
				stale = append(stale, r)
			}
			seen[r.routeKey] = true
		})
		return stale, err
	})
	if err != nil {
		return err
	}
	messages, keys := make([]nl.Message, len(stale)), make([]routeKey, len(stale))
	for i, r := range stale {
		messages[i], keys[i] = nl.Message{Type: unix.RTM_DELROUTE, Flags: 0, Body: r.encode(false)}, r.routeKey
	}
	return c.remove(ctx, messages, keys)
}

// keyOf returns the key of a planned route in the kernel's normal form.
func keyOf(r *plan.Route) routeKey {
	k := routeKey{r.Table, r.Dst.Masked(), r.Metric}
	if k.metric == 0 && k.dst.Addr().Is6() {
		k.metric = 1024 // IP6_RT_PRIO_USER
	}
	return k
}

// normalRoutes converts routes to the kernel's normal form; nil: the route is left out. It returns the errors that the
// verdict lets stand.
func normalRoutes(h *netlink.Handle, desired []plan.Route, judge verdict) (map[routeKey]*route, []error) {
	n := newNormalizer(h, judge)
	wanted := make(map[routeKey]*route, len(desired))
	for i := range desired {
		wanted[keyOf(&desired[i])] = n.normal(&desired[i])
	}
	return wanted, n.errs
}

// dumpRoutes calls each for every route of a family, table (0: all) and protocol (0: all), until each returns false.
func dumpRoutes(family uint8, table uint32, protocol uint8, each func(*route) bool) error {
	body := make([]byte, unix.SizeofRtMsg)
	body[0], body[5] = family, protocol
	if table != 0 {
		body = nl.AppendAttr32(body, unix.RTA_TABLE, table)
	}
	return nl.Dump(nl.Message{Type: unix.RTM_GETROUTE, Body: body}, unix.RTM_NEWROUTE, func(b []byte) bool {
		r, ok := decodeRoute(b)
		if !ok || b[0] != family || table != 0 && r.table != table || protocol != 0 && r.protocol != protocol {
			return true
		}
		return each(r)
	})
}

// dumpOurs calls each for every route of ours.
func dumpOurs(ctx context.Context, each func(*route)) error {
	for _, family := range nl.Families() {
		err := dumpRoutes(family, 0, RouteProtocol, func(r *route) bool { each(r); return ctx.Err() == nil })
		if err := errors.Join(err, ctx.Err()); err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
	}
	return nil
}

// encode encodes the body of a request to add or to delete the route.
func (r *route) encode(add bool) []byte {
	b := make([]byte, unix.SizeofRtMsg, 96)
	family, ipv4 := uint8(unix.AF_INET6), r.dst.Addr().Is4()
	if ipv4 {
		family = unix.AF_INET
	}
	b[0], b[1], b[5], b[7] = family, uint8(r.dst.Bits()), r.protocol, r.kind
	b = nl.AppendAttr(b, unix.RTA_DST, r.dst.Addr().AsSlice()...)
	b = nl.AppendAttr32(b, unix.RTA_TABLE, r.table)
	if r.metric != 0 {
		b = nl.AppendAttr32(b, unix.RTA_PRIORITY, r.metric)
	}
	if !add {
		// The key identifies an IPv6 route with all its legs. An IPv4 table may hold several routes of one key, so the
		// legs are needed too.
		b[6] = unix.RT_SCOPE_NOWHERE
		if !ipv4 || r.object || len(r.legs) == 0 {
			return b
		}
	} else if ipv4 && !slices.ContainsFunc(r.legs, func(l leg) bool { return l.gateway.IsValid() }) && r.kind == unix.RTN_UNICAST {
		b[6] = unix.RT_SCOPE_LINK
	}
	if len(r.legs) == 1 {
		binary.NativeEndian.PutUint32(b[8:], r.legs[0].flags())
		if r.legs[0].device != 0 {
			b = nl.AppendAttr32(b, unix.RTA_OIF, uint32(r.legs[0].device))
		}
		return r.legs[0].appendGateway(b, ipv4)
	}
	var legs []byte
	for _, l := range r.legs {
		start := len(legs)
		legs = append(legs, make([]byte, unix.SizeofRtNexthop)...)
		legs[start+2] = uint8(l.flags())
		binary.NativeEndian.PutUint32(legs[start+4:], uint32(l.device))
		legs = l.appendGateway(legs, ipv4)
		binary.NativeEndian.PutUint16(legs[start:], uint16(len(legs)-start))
	}
	if len(legs) > 0 {
		b = nl.AppendAttr(b, unix.RTA_MULTIPATH, legs...)
	}
	return b
}

func (l leg) flags() uint32 {
	if l.onLink {
		return unix.RTNH_F_ONLINK
	}
	return 0
}

// appendGateway appends the gateway in the attribute that its family and the route's require.
func (l leg) appendGateway(b []byte, ipv4 bool) []byte {
	switch {
	case !l.gateway.IsValid():
		return b
	case ipv4 && l.gateway.Is6():
		via := binary.NativeEndian.AppendUint16(nil, unix.AF_INET6)
		return nl.AppendAttr(b, unix.RTA_VIA, append(via, l.gateway.AsSlice()...)...)
	}
	return nl.AppendAttr(b, unix.RTA_GATEWAY, l.gateway.AsSlice()...)
}

// decodeRoute decodes a route; ok is false for entries that are not in a table, such as cached exceptions.
func decodeRoute(b []byte) (r *route, ok bool) {
	if len(b) < unix.SizeofRtMsg || binary.NativeEndian.Uint32(b[8:])&unix.RTM_F_CLONED != 0 {
		return nil, false
	}
	r = &route{protocol: b[5], kind: b[7]}
	r.table = uint32(b[4])
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
			r.table = binary.NativeEndian.Uint32(value)
		case unix.RTA_PRIORITY:
			r.metric = binary.NativeEndian.Uint32(value)
		case unix.RTA_OIF:
			one.device = int(binary.NativeEndian.Uint32(value))
		case rtaNHID:
			r.object = true
		case unix.RTA_MULTIPATH:
			for len(value) >= unix.SizeofRtNexthop {
				n := int(binary.NativeEndian.Uint16(value))
				if n < unix.SizeofRtNexthop || n > len(value) {
					break
				}
				device := int(binary.NativeEndian.Uint32(value[4:]))
				r.legs = append(r.legs, decodeLeg(uint32(value[2]), device, value[:n], unix.SizeofRtNexthop))
				value = value[min(nl.Align(n), len(value)):]
			}
		}
	}
	r.dst = netip.PrefixFrom(dst, int(b[1]))
	// Unreachable IPv6 routes name the loopback device.
	if r.kind == unix.RTN_UNICAST && r.legs == nil {
		r.legs = []leg{one}
	}
	r.sortLegs()
	return r, true
}

func decodeLeg(flags uint32, device int, b []byte, fixed int) leg {
	l := leg{device: device, onLink: flags&unix.RTNH_F_ONLINK != 0, dead: flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0}
	for typ, value := range nl.Attrs(b, fixed) {
		switch typ {
		case unix.RTA_GATEWAY:
			l.gateway, _ = netip.AddrFromSlice(value)
		case unix.RTA_VIA:
			l.gateway, _ = netip.AddrFromSlice(value[min(2, len(value)):])
		}
	}
	return l
}
