package walk

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
)

// Route is the kernel's routing decision for a packet.
type Route struct {
	Table    uint32
	Prefix   netip.Prefix // of the route; invalid: the kernel did not report it
	Gateway  netip.Addr   // invalid: the destination is on the link
	Device   string
	Protocol uint8 // RTPROT_* of the route; RouteProtocol: ours
	Legs     int   // number of next hops of the route
	Local    bool  // to this node itself
	// Err is the reason if the packet goes nowhere: the error that its sender gets, such as unix.ENETUNREACH.
	Err error
}

// Ours reports whether the daemon made the route: a learned one, or one to another node.
func (r *Route) Ours() bool { return r.Protocol == route.Protocol }

// towards returns the next hop of a packet to an address.
func (r *Route) towards(to netip.Addr) netip.Addr { return cmp.Or(r.Gateway, to) }

// unreachedError is the kernel's answer that a packet goes nowhere.
type unreachedError struct{ errno syscall.Errno }

func (e unreachedError) Error() string { return e.errno.Error() }

// Attributes and flags of route requests that x/sys does not define (include/uapi/linux/rtnetlink.h).
const (
	rtaIPProto = 27 // RTA_IP_PROTO
	rtaSport   = 28 // RTA_SPORT
	rtaDport   = 29 // RTA_DPORT

	lookupTable = 0x1000 // RTM_F_LOOKUP_TABLE: report the route's table
	fibMatch    = 0x2000 // RTM_F_FIB_MATCH: report the route itself, not the packet's way
)

// routeQuestion returns the request for a packet's route; in is the index of the incoming device, 0 for a packet of
// this node.
func routeQuestion(p Packet, in int, flags uint32) nl.Message {
	b := make([]byte, unix.SizeofRtMsg, 128)
	b[0], b[1] = unix.AF_INET, uint8(p.To.BitLen())
	if p.To.Is6() {
		b[0] = unix.AF_INET6
	} else {
		flags |= lookupTable // for IPv6 the table is always reported, and the flag rejected
	}
	binary.NativeEndian.PutUint32(b[8:], flags)
	b = nl.AppendAttr(b, unix.RTA_DST, p.To.AsSlice()...)
	if p.From.IsValid() && !p.From.IsUnspecified() {
		b[2] = uint8(p.From.BitLen())
		b = nl.AppendAttr(b, unix.RTA_SRC, p.From.AsSlice()...)
	}
	if in != 0 {
		b = nl.AppendAttr32(b, unix.RTA_IIF, uint32(in))
	}
	if p.Mark != 0 {
		b = nl.AppendAttr32(b, unix.RTA_MARK, p.Mark)
	}
	return nl.Message{Type: unix.RTM_GETROUTE, Body: p.appendPorts(b)}
}

// appendPorts appends the protocol and the ports of a TCP or UDP packet.
func (p Packet) appendPorts(b []byte) []byte {
	if p.Proto != unix.IPPROTO_TCP && p.Proto != unix.IPPROTO_UDP {
		return b
	}
	b = nl.AppendAttr(b, rtaIPProto, p.Proto)
	if p.SourcePort != 0 {
		b = nl.AppendBE16(b, rtaSport, p.SourcePort)
	}
	if p.Port != 0 {
		b = nl.AppendBE16(b, rtaDport, p.Port)
	}
	return b
}

// askRoute sends the request for one route.
func askRoute(m nl.Message) (*route.Entry, error) {
	c, err := nl.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	replies, err := c.Ask(m)
	if err != nil {
		return nil, fmt.Errorf("ask for a route: %w", err)
	}
	for _, r := range replies {
		switch r.Header.Type {
		case unix.NLMSG_ERROR:
			return nil, routeError(nl.AckError(r))
		case unix.RTM_NEWROUTE:
			found, ok := decodeAnswer(r.Data)
			if !ok {
				continue
			}
			if errno, reject := rejects[found.Kind]; reject {
				return nil, unreachedError{errno}
			}
			return found, nil
		}
	}
	return nil, errors.New("ask for a route: the kernel did not answer")
}

// routeError returns the error for the kernel's refusal to name a route.
func routeError(err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) && slices.Contains(nowhere, errno) {
		return unreachedError{errno}
	}
	return fmt.Errorf("ask for a route: %w", err)
}

// decodeAnswer decodes the answer about one packet: it is marked as a copy of the route, but has the same format.
func decodeAnswer(data []byte) (*route.Entry, bool) {
	body := slices.Clone(data)
	binary.NativeEndian.PutUint32(body[8:], binary.NativeEndian.Uint32(body[8:])&^unix.RTM_F_CLONED)
	return route.DecodeRoute(body)
}

// nowhere lists the errors for packets that are dropped: no route, a route that rejects, or an impossible source.
var nowhere = []syscall.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EXDEV, unix.ENODEV}

// rejects maps the types of routes that drop packets to their errors.
var rejects = map[uint8]syscall.Errno{
	unix.RTN_UNREACHABLE: unix.EHOSTUNREACH, unix.RTN_BLACKHOLE: unix.EINVAL, unix.RTN_PROHIBIT: unix.EACCES,
}

// Route asks the kernel for the route of a packet, with its mark and incoming device.
func (l *Live) Route(p Packet) (*Route, error) {
	in := 0
	if p.In != "" {
		link, ok := l.Link(p.In)
		if !ok {
			return nil, fmt.Errorf("there is no device %s", p.In)
		}
		in = link.Index
	}
	goes, err := askRoute(routeQuestion(p, in, 0))
	if none := (unreachedError{}); errors.As(err, &none) {
		return &Route{Err: none.errno}, nil
	}
	if err != nil {
		return nil, err
	}
	r := &Route{Table: goes.Table, Local: goes.Kind == unix.RTN_LOCAL, Protocol: goes.Protocol}
	for _, leg := range goes.Legs {
		r.Gateway, r.Device = leg.Gateway, l.deviceName(leg.Device)
	}
	// The answer about one packet names no prefix.
	if whole, err := askRoute(routeQuestion(p, in, fibMatch)); err == nil {
		r.Prefix, r.Legs, r.Protocol = whole.Dst, len(whole.Legs), whole.Protocol
	}
	return r, nil
}

func (l *Live) deviceName(index int) string {
	for _, link := range l.Links {
		if link.Index == index {
			return link.Name
		}
	}
	return ""
}

// Routed returns the families for which a table has a route that leads somewhere.
func (*Live) Routed(table uint32) (plan.Families, error) { return route.ReadRouted(table) }

// LiveFlow is a TCP or UDP connection between two addresses.
type LiveFlow struct {
	Proto    uint8          // unix.IPPROTO_TCP or IPPROTO_UDP
	Src, Dst netip.AddrPort // before NAT
	Answers  netip.Addr     // source of replies: Dst, or its replacement by DNAT
	Leaves   netip.AddrPort // source after SNAT
	Mark     uint32
	Answered bool
}

// Flows lists the TCP and UDP connections that an address began and that wanted accepts, up to the number most.
func (*Live) Flows(ctx context.Context, from netip.Addr, wanted func(LiveFlow) bool, most int) (all []LiveFlow, err error) {
	err = conntrack.DumpConnections(from, func(body []byte) bool {
		if f, ok := decodeFlow(body, from); ok && wanted(f) {
			all = append(all, f)
		}
		return ctx.Err() == nil && len(all) < most
	})
	if err != nil {
		return nil, fmt.Errorf("list connections of %s: %w", from, err)
	}
	return all, ctx.Err()
}

// decodeFlow decodes an entry of the conntrack table; ok is false if it is no TCP or UDP connection that from began.
func decodeFlow(body []byte, from netip.Addr) (f LiveFlow, ok bool) {
	e, ok := conntrack.DecodeEntry(body)
	if !ok || e.Src.Addr() != from {
		return f, false
	}
	c := conntrack.DecodeConnection(body)
	return LiveFlow{Proto: e.Proto, Src: e.Src, Dst: e.Dst, Answers: c.Target, Leaves: e.SNAT, Mark: e.Mark, Answered: e.Answered}, true
}
