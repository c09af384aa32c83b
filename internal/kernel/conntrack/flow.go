package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
)

// Flow is an egress flow on its host, as conntrack holds it: the data another node needs to continue it. Only flows of TCP and UDP are
// copied. Other protocols but SCTP have no source port to lose, and their next packet makes an entry; that of an SCTP association is made
// by its next HEARTBEAT (RFC 9260, 8.3), since the kernel finds other chunks invalid without one.
type Flow struct {
	Proto    uint8          // unix.IPPROTO_TCP or IPPROTO_UDP
	Src, Dst netip.AddrPort // pod and remote
	SNAT     netip.AddrPort // source address and port that the remote sees
	Path     plan.PathID    // network that it leaves by, as this node's path id
	State    uint8          // of TCP: TCPEstablished and others, numbered as in the kernel; 0: unknown
	Answered bool           // packets were seen both ways (IPS_SEEN_REPLY)
	Assured  bool           // TCP: established; UDP: answered for more than two seconds (IPS_ASSURED)
	Timeout  uint32         // seconds until it expires without a packet; 0 in events about its end
}

// TCP states that matter here (enum tcp_conntrack).
const (
	TCPEstablished uint8 = 3
	TCPTimeWait    uint8 = 7
	TCPClosed      uint8 = 8
)

// Attributes and flags of conntrack messages that the library does not define (linux/netfilter/nfnetlink_conntrack.h,
// nf_conntrack_common.h, nf_conntrack_tcp.h).
const (
	ctaNATSrc        = 6  // CTA_NAT_SRC
	ctaMarkMask      = 21 // CTA_MARK_MASK
	ctaNATV4MinIP    = 1  // CTA_NAT_V4_MINIP; the maximum is the next number
	ctaNATProto      = 3  // CTA_NAT_PROTO
	ctaNATV6MinIP    = 4  // CTA_NAT_V6_MINIP
	ctaNATPortMin    = 1  // CTA_PROTONAT_PORT_MIN
	ctaNATPortMax    = 2  // CTA_PROTONAT_PORT_MAX
	tcpFlagBeLiberal = 8  // IP_CT_TCP_FLAG_BE_LIBERAL

	statusSeenReply = 1 << 1 // IPS_SEEN_REPLY
	statusAssured   = 1 << 2 // IPS_ASSURED
	statusConfirmed = 1 << 3 // IPS_CONFIRMED
	statusSNAT      = 1 << 4 // IPS_SRC_NAT
)

// conntrackMessage returns the netlink type of a message of the conntrack subsystem.
func conntrackMessage(kind uint16) uint16 { return unix.NFNL_SUBSYS_CTNETLINK<<8 | kind }

// Entry holds the attributes of a conntrack entry that matter here.
type Entry struct {
	Flow
	Mark    uint32
	snatted bool
	liberal bool // TCP sequence numbers are not checked, in either direction
}

// DecodeEntry decodes the body of a message about an entry. ok is false if the entry is neither TCP nor UDP, or is in a
// conntrack zone, which is not ours.
func DecodeEntry(body []byte) (e Entry, ok bool) {
	zoned := false
	for typ, value := range nl.Attrs(body, vnl.SizeofNfgenmsg) {
		zoned = zoned || zones(typ, value)
		e.set(typ, value)
	}
	return e, e.Src.IsValid() && e.Dst.IsValid() && hasPorts(e.Proto) && !zoned
}

// set sets the fields of an attribute.
func (e *Entry) set(typ uint16, value []byte) {
	switch typ {
	case vnl.CTA_TUPLE_ORIG:
		e.Src, e.Dst, e.Proto = decodeTuple(value)
	case vnl.CTA_TUPLE_REPLY:
		_, e.SNAT, _ = decodeTuple(value)
	case vnl.CTA_STATUS:
		e.setStatus(nl.BE32(value))
	case vnl.CTA_TIMEOUT:
		e.Timeout = nl.BE32(value)
	case vnl.CTA_MARK:
		e.Mark = nl.BE32(value)
	case vnl.CTA_PROTOINFO:
		e.State, e.liberal = decodeTCP(value)
	}
}

func (e *Entry) setStatus(status uint32) {
	e.Answered, e.Assured, e.snatted = status&statusSeenReply != 0, status&statusAssured != 0, status&statusSNAT != 0
}

// decodeTuple decodes one direction of an entry. Protocols without ports have port 0.
func decodeTuple(b []byte) (src, dst netip.AddrPort, proto uint8) {
	from, to := tupleAddresses(b)
	var fromPort, toPort uint16
	for typ, value := range nl.Attrs(nl.Attr(b, 0, vnl.CTA_TUPLE_PROTO), 0) {
		switch typ {
		case vnl.CTA_PROTO_NUM:
			proto = nl.Byte(value)
		case vnl.CTA_PROTO_SRC_PORT:
			fromPort = nl.BE16(value)
		case vnl.CTA_PROTO_DST_PORT:
			toPort = nl.BE16(value)
		}
	}
	return netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort), proto
}

func hasPorts(proto uint8) bool { return proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_UDP }

func decodeTCP(b []byte) (state uint8, liberal bool) {
	flags := uint8(0xff)
	for typ, value := range nl.Attrs(nl.Attr(b, 0, vnl.CTA_PROTOINFO_TCP), 0) {
		switch typ {
		case vnl.CTA_PROTOINFO_TCP_STATE:
			state = nl.Byte(value)
		case vnl.CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, vnl.CTA_PROTOINFO_TCP_FLAGS_REPLY:
			flags &= nl.Byte(value)
		}
	}
	return state, flags&tcpFlagBeLiberal != 0
}

// flow returns the entry as a flow; ok reports whether it is an egress flow that leaves this node with SNAT.
func (e Entry) flow(m plan.Marks) (f Flow, ok bool) {
	f = e.Flow
	f.Path = m.Path(e.Mark)
	return f, e.Mark&m.EgressBit() != 0 && e.snatted
}

// Conn is a netfilter socket for requests about conntrack entries.
type Conn struct{ *nl.Netfilter }

func dialConntrack() (*Conn, error) {
	c, err := nl.DialNetfilter()
	if err != nil {
		return nil, err
	}
	return &Conn{c}, nil
}

// ListFlows calls each for every egress flow that leaves this node with SNAT, until each returns false. each may block:
// the kernel waits. A flow that begins or ends during the listing may be missing, and a flow may come twice.
func ListFlows(ctx context.Context, m plan.Marks, each func(Flow) bool) error {
	return dumpEntries(ctx, m, func(e Entry) bool {
		f, ok := e.flow(m)
		return !ok || each(f)
	})
}

// dumpEntries calls each for every TCP and UDP entry whose mark has the egress bit.
func dumpEntries(ctx context.Context, m plan.Marks, each func(Entry) bool) error {
	return dumpEgress(ctx, m, func(body []byte) bool {
		e, ok := DecodeEntry(body)
		return !ok || each(e)
	})
}

// dumpEgress calls each for the body of every entry whose mark has the egress bit, until each returns false.
func dumpEgress(ctx context.Context, m plan.Marks, each func(body []byte) bool) error {
	c, err := dialConntrack()
	if err != nil {
		return err
	}
	defer c.Close()
	body := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}
	body = appendMark(body, m.EgressBit(), m.EgressBit()) // the kernel skips other marks
	request := nl.Message{Type: conntrackMessage(vnl.IPCTNL_MSG_CT_GET), Body: body}
	_, err = c.Dump(request, func(body []byte) bool { return ctx.Err() == nil && each(body) })
	if err != nil {
		return fmt.Errorf("list egress flows: %w", err)
	}
	return ctx.Err()
}

// entryChange is a request about one entry, with its result.
type entryChange struct {
	nl.Message
	instead nl.Message // request to send if this one fails
	found   Entry      // entry that the kernel returned for a query
	err     error
}

// failed reports whether the request failed, other than for lack of the entry.
func (c *entryChange) failed() bool { return c.err != nil && !errors.Is(c.err, errNoFlow) }

// exchange sends the requests and fills in their results.
func (c *Conn) exchange(changes []entryChange) error {
	requests := make([]nl.Message, len(changes))
	for i := range changes {
		requests[i] = changes[i].Message
	}
	return c.Netfilter.Exchange(requests, func(i int, body []byte, err error) {
		if changes[i].err = err; err == nil && body != nil {
			changes[i].found, _ = DecodeEntry(body)
		}
	})
}

func appendMark(b []byte, mark, mask uint32) []byte {
	return nl.AppendBE32(nl.AppendBE32(b, vnl.CTA_MARK, mark), ctaMarkMask, mask)
}

func appendTuple(b []byte, typ uint16, proto uint8, src, dst netip.AddrPort) []byte {
	from, to := uint16(vnl.CTA_IP_V4_SRC), uint16(vnl.CTA_IP_V4_DST)
	if src.Addr().Is6() {
		from, to = vnl.CTA_IP_V6_SRC, vnl.CTA_IP_V6_DST
	}
	return nl.AppendNested(b, typ, func(b []byte) []byte {
		b = nl.AppendNested(b, vnl.CTA_TUPLE_IP, func(b []byte) []byte {
			return nl.AppendAddr(nl.AppendAddr(b, from, src.Addr()), to, dst.Addr())
		})
		return nl.AppendNested(b, vnl.CTA_TUPLE_PROTO, func(b []byte) []byte {
			b = nl.AppendAttr(b, vnl.CTA_PROTO_NUM, proto)
			b = nl.AppendBE16(b, vnl.CTA_PROTO_SRC_PORT, src.Port())
			return nl.AppendBE16(b, vnl.CTA_PROTO_DST_PORT, dst.Port())
		})
	})
}

// errNoFlow is the kernel's error for an entry that does not exist.
var errNoFlow = unix.ENOENT

// about returns a request about the flow's entry, identified by the tuple of its original direction.
func (f Flow) about(kind, flags uint16) nl.Message {
	body := appendTuple(f.header(), vnl.CTA_TUPLE_ORIG, f.Proto, f.Src, f.Dst)
	return nl.Message{Type: conntrackMessage(kind), Flags: flags, Body: body}
}

// aboutReply returns a request about the entry that has the flow's reply tuple, even if it belongs to another flow.
func (f Flow) aboutReply(kind, flags uint16) nl.Message {
	body := appendTuple(f.header(), vnl.CTA_TUPLE_REPLY, f.Proto, f.Dst, f.SNAT)
	return nl.Message{Type: conntrackMessage(kind), Flags: flags, Body: body}
}

// header returns struct nfgenmsg.
func (f Flow) header() []byte {
	family := byte(unix.AF_INET)
	if f.Src.Addr().Is6() {
		family = unix.AF_INET6
	}
	return append(make([]byte, 0, 256), family, unix.NFNETLINK_V0, 0, 0)
}

// RemoveFlows deletes the entries of flows. A missing entry is no error.
func RemoveFlows(flows []Flow) error {
	changes := make([]entryChange, len(flows))
	for i, f := range flows {
		changes[i].Message = f.about(vnl.IPCTNL_MSG_CT_DELETE, 0)
	}
	if err := exchangeAll(changes); err != nil {
		return err
	}
	var errs []error
	for i, c := range changes {
		if c.failed() {
			errs = append(errs, fmt.Errorf("remove flow of %s to %s: %w", flows[i].Src, flows[i].Dst, c.err))
		}
	}
	return nl.JoinErrors(errs)
}

func exchangeAll(changes []entryChange) error {
	if len(changes) == 0 {
		return nil
	}
	c, err := dialConntrack()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.exchange(changes)
}
