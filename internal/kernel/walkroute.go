package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// Route is the kernel's own answer to where a packet goes.
type Route struct {
	Table    uint32
	Prefix   netip.Prefix // of the route; invalid: the kernel did not tell
	Gateway  netip.Addr   // invalid: the destination is on the link
	Device   string
	Protocol uint8 // RTPROT_* of the route, RouteProtocol where it is ours
	Legs     int   // next hops that its flows share
	Local    bool  // to this node itself
	// Err says why it goes nowhere: unix.ENETUNREACH and such, as the sender is told.
	Err error
}

// Ours says that the daemon made the route: one that a peer told of, or one to another node.
func (r *Route) Ours() bool { return r.Protocol == RouteProtocol }

// unreachedError is the kernel's answer that a packet goes nowhere.
type unreachedError struct{ errno syscall.Errno }

func (e unreachedError) Error() string { return e.errno.Error() }

// Attributes of route requests that x/sys does not name (include/uapi/linux/rtnetlink.h).
const (
	rtaIPProto = 27 // RTA_IP_PROTO
	rtaSport   = 28 // RTA_SPORT
	rtaDport   = 29 // RTA_DPORT

	lookupTable = 0x1000 // RTM_F_LOOKUP_TABLE: name the table that the route was found in
	fibMatch    = 0x2000 // RTM_F_FIB_MATCH: tell of the route, not of where this packet goes
)

// routeQuestion asks where a packet goes that comes in by a device; 0: that this node sends.
func routeQuestion(p Packet, in int, flags uint32) message {
	b := make([]byte, unix.SizeofRtMsg, 128)
	b[0], b[1] = unix.AF_INET, uint8(p.To.BitLen())
	if p.To.Is6() {
		b[0] = unix.AF_INET6
	} else {
		flags |= lookupTable // of IPv6 it is always named, and the flag refused
	}
	binary.NativeEndian.PutUint32(b[8:], flags)
	b = appendAttr(b, unix.RTA_DST, p.To.AsSlice()...)
	if p.From.IsValid() && !p.From.IsUnspecified() {
		b[2] = uint8(p.From.BitLen())
		b = appendAttr(b, unix.RTA_SRC, p.From.AsSlice()...)
	}
	if in != 0 {
		b = appendAttr32(b, unix.RTA_IIF, uint32(in))
	}
	if p.Mark != 0 {
		b = appendAttr32(b, unix.RTA_MARK, p.Mark)
	}
	if p.Proto == unix.IPPROTO_TCP || p.Proto == unix.IPPROTO_UDP {
		b = appendAttr(b, rtaIPProto, p.Proto)
		if p.SourcePort != 0 {
			b = appendBE16(b, rtaSport, p.SourcePort)
		}
		if p.Port != 0 {
			b = appendBE16(b, rtaDport, p.Port)
		}
	}
	return message{typ: unix.RTM_GETROUTE, body: b}
}

// askRoute asks for one route.
func askRoute(m message) (*route, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	defer c.close()
	if err := c.send([]message{m}); err != nil {
		return nil, fmt.Errorf("ask for a route: %w", err)
	}
	replies, _, err := c.sock.Receive()
	if err != nil {
		return nil, fmt.Errorf("ask for a route: %w", err)
	}
	for _, r := range replies {
		switch r.Header.Type {
		case unix.NLMSG_ERROR:
			err := answer(r)
			if errno := syscall.Errno(0); errors.As(err, &errno) && slices.Contains(nowhere, errno) {
				return nil, unreachedError{errno}
			}
			return nil, fmt.Errorf("ask for a route: %w", err)
		case unix.RTM_NEWROUTE:
			body := slices.Clone(r.Data)
			// What is told of one packet is marked as a copy of the route, but reads the same.
			binary.NativeEndian.PutUint32(body[8:], binary.NativeEndian.Uint32(body[8:])&^unix.RTM_F_CLONED)
			if found, ok := decodeRoute(body); ok {
				if errno, reject := rejects[found.kind]; reject {
					return nil, unreachedError{errno}
				}
				return found, nil
			}
		}
	}
	return nil, errors.New("ask for a route: the kernel did not answer")
}

// nowhere are the answers about packets that are dropped: no route, one that says so, or a source that cannot be.
var nowhere = []syscall.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EXDEV, unix.ENODEV}

// rejects are the routes that drop.
var rejects = map[uint8]syscall.Errno{
	unix.RTN_UNREACHABLE: unix.EHOSTUNREACH, unix.RTN_BLACKHOLE: unix.EINVAL, unix.RTN_PROHIBIT: unix.EACCES,
}

// Route asks the kernel where a packet goes, with its mark, by the device that it comes in by.
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
	r := &Route{Table: goes.table, Local: goes.kind == unix.RTN_LOCAL, Protocol: goes.protocol}
	for _, leg := range goes.legs {
		r.Gateway, r.Device = leg.gateway, l.deviceName(leg.device)
	}
	// Of an answer about one packet the kernel names no prefix.
	if whole, err := askRoute(routeQuestion(p, in, fibMatch)); err == nil {
		r.Prefix, r.Legs, r.Protocol = whole.dst, len(whole.legs), whole.protocol
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

// Routed says whether a table has any route that leads somewhere, per family.
func (*Live) Routed(table uint32) (plan.Families, error) { return readRouted(table) }

// LiveFlow is a connection of a pair of addresses.
type LiveFlow struct {
	Proto    uint8          // unix.IPPROTO_TCP or IPPROTO_UDP
	Src, Dst netip.AddrPort // as it began
	Answers  netip.Addr     // who answers: Dst, or what DNAT made of it
	Leaves   netip.AddrPort // source after SNAT
	Mark     uint32
	Answered bool
}

// Flows are the TCP and UDP connections that an address began and that are wanted, at most so many.
func (*Live) Flows(ctx context.Context, from netip.Addr, wanted func(LiveFlow) bool, most int) (all []LiveFlow, err error) {
	err = dumpConnections(from, func(body []byte) bool {
		if e, ok := decodeEntry(body); ok && e.Src.Addr() == from {
			c := decodeConnection(body)
			f := LiveFlow{Proto: e.Proto, Src: e.Src, Dst: e.Dst, Answers: c.target, Leaves: e.SNAT, Mark: e.mark, Answered: e.Answered}
			if wanted(f) {
				all = append(all, f)
			}
		}
		return ctx.Err() == nil && len(all) < most
	})
	if err != nil {
		return nil, fmt.Errorf("list connections of %s: %w", from, err)
	}
	return all, ctx.Err()
}
