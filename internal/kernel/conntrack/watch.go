package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
)

// FlowEvent is a change of an egress flow of this node.
type FlowEvent struct {
	Kind FlowEventKind
	Flow Flow // empty with FlowsLost
}

// FlowEventKind is the kind of a FlowEvent.
type FlowEventKind uint8

// The kinds of event.
const (
	FlowsLost   FlowEventKind = iota // events were lost: list the flows again
	FlowChanged                      // began, or changed as WatchFlows describes
	FlowEnded                        // closed or expired
)

// eventBuffer holds some 20,000 events while the reader is busy: half a second at 20,000 flows a second.
const eventBuffer = 16 << 20

// WatchFlows calls each for changes of the egress flows that leave this node with SNAT:
//
//   - TCP: a flow is established, closed (long before its entry goes), or expired;
//   - UDP: a flow began, was answered, or became assured.
//
// Changes that programs make to entries (an injection, a removal) are not reported. The first call is FlowsLost, once
// the subscription is complete. WatchFlows returns nil when ctx ends.
func WatchFlows(ctx context.Context, m plan.Marks, each func(FlowEvent)) error {
	return watchFlows(ctx, m, eventBuffer, each)
}

func watchFlows(ctx context.Context, m plan.Marks, buffer int, each func(FlowEvent)) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open netfilter socket: %w", err)
	}
	defer func() { _ = c.Close() }()
	if err := c.SetReadBuffer(buffer); err != nil {
		return fmt.Errorf("set receive buffer for conntrack events: %w", err)
	}
	filter, err := bpf.Assemble(eventFilter(m))
	if err != nil {
		return fmt.Errorf("assemble filter of conntrack events: %w", err)
	}
	if err := c.SetBPF(filter); err != nil {
		return fmt.Errorf("filter conntrack events: %w", err)
	}
	for _, group := range []uint32{unix.NFNLGRP_CONNTRACK_NEW, unix.NFNLGRP_CONNTRACK_UPDATE, unix.NFNLGRP_CONNTRACK_DESTROY} {
		if err := c.JoinGroup(group); err != nil {
			return fmt.Errorf("subscribe to conntrack events: %w", err)
		}
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("read conntrack events: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })()

	each(FlowEvent{Kind: FlowsLost})
	buf := make([]byte, 1<<16)
	for {
		var n int
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, _, failed = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(failed, unix.ENOBUFS): // events were lost; the socket still works
			each(FlowEvent{Kind: FlowsLost})
			continue
		case errors.Join(err, failed) != nil:
			return fmt.Errorf("receive conntrack events: %w", errors.Join(err, failed))
		}
		nl.EachMessage(buf[:n], func(b []byte) {
			if e, ok := decodeEvent(m, b); ok {
				each(e)
			}
		})
	}
}

// decodeEvent decodes one message with its header. It rejects all that eventFilter rejects as well, for kernels whose
// messages lack attributes that the filter needs.
func decodeEvent(m plan.Marks, b []byte) (FlowEvent, bool) {
	if binary.NativeEndian.Uint32(b[nl.MessagePort:]) != 0 {
		return FlowEvent{}, false
	}
	e, ok := DecodeEntry(b[unix.SizeofNlMsghdr:])
	f, egress := e.flow(m)
	if !ok || !egress {
		return FlowEvent{}, false
	}
	ended := binary.NativeEndian.Uint16(b[nl.MessageType:]) == conntrackMessage(vnl.IPCTNL_MSG_CT_DELETE)
	if f.Proto == unix.IPPROTO_UDP {
		return FlowEvent{FlowChanged, f}, !ended
	}
	kind, reported := f.tcpEvent(ended)
	return FlowEvent{kind, f}, reported
}

// tcpEvent returns the kind of event for a change of a TCP flow's entry, or for its end; ok is false if it is none.
func (f *Flow) tcpEvent(ended bool) (kind FlowEventKind, ok bool) {
	closed := f.State == TCPTimeWait || f.State == TCPClosed
	switch {
	case !f.Assured || ended && closed: // never reported, or its end is reported already
		return 0, false
	case ended || closed:
		return FlowEnded, true
	}
	return FlowChanged, f.State == TCPEstablished
}

// eventFilter returns the socket filter that the kernel runs for every conntrack event of the node. It passes only the
// events that decodeEvent accepts, so the others never wake this process.
func eventFilter(m plan.Marks) []bpf.Instruction {
	const header = unix.SizeofNlMsghdr + vnl.SizeofNfgenmsg
	attribute := func(typ uint32) []bpf.Instruction { // A = offset of the attribute; 0: absent
		return []bpf.Instruction{
			bpf.LoadConstant{Dst: bpf.RegA, Val: header},
			bpf.LoadConstant{Dst: bpf.RegX, Val: typ},
			bpf.LoadExtension{Num: bpf.ExtNetlinkAttr},
		}
	}
	inside := func(typ uint32) []bpf.Instruction { // A = offset of an attribute nested in the one at A
		return []bpf.Instruction{
			bpf.LoadConstant{Dst: bpf.RegX, Val: typ},
			bpf.LoadExtension{Num: bpf.ExtNetlinkAttrNested},
		}
	}
	value := func(size int) []bpf.Instruction { // A = value of the attribute at A
		return []bpf.Instruction{bpf.TAX{}, bpf.LoadIndirect{Off: unix.SizeofRtAttr, Size: size}}
	}
	refuseUnless := func(test bpf.JumpTest, v uint32) []bpf.Instruction {
		return []bpf.Instruction{bpf.JumpIf{Cond: test, Val: v, SkipTrue: 1}, bpf.RetConstant{}}
	}
	const whole = 1 << 18 // more than any message's size
	pass := []bpf.Instruction{bpf.RetConstant{Val: whole}}
	refuse := []bpf.Instruction{bpf.RetConstant{}}
	passIf := func(v uint32) []bpf.Instruction {
		return []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipFalse: 1}, pass[0]}
	}
	refuseIf := func(v uint32) []bpf.Instruction {
		return []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipFalse: 1}, refuse[0]}
	}
	program := func(parts ...[]bpf.Instruction) (all []bpf.Instruction) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	// Message headers are in host byte order, but the filter loads big endian.
	ended := uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, conntrackMessage(vnl.IPCTNL_MSG_CT_DELETE))))
	kind := []bpf.Instruction{bpf.LoadAbsolute{Off: nl.MessageType, Size: 2}}

	udp := program(kind, refuseIf(ended), pass)
	tcp := program(
		attribute(vnl.CTA_STATUS), value(4), refuseUnless(bpf.JumpBitsSet, statusAssured),
		attribute(vnl.CTA_PROTOINFO), passIf(0),
		inside(vnl.CTA_PROTOINFO_TCP), refuseIf(0), inside(vnl.CTA_PROTOINFO_TCP_STATE), refuseIf(0), value(1),
		[]bpf.Instruction{bpf.StoreScratch{Src: bpf.RegA, N: 0}},
		kind,
	)
	// An entry's end counts if its connection was still open; a change counts if the new state is established or
	// closed.
	closedBefore := program(
		[]bpf.Instruction{bpf.LoadScratch{Dst: bpf.RegA, N: 0}},
		refuseIf(uint32(TCPTimeWait)), refuseIf(uint32(TCPClosed)), pass,
	)
	tcp = append(tcp, bpf.JumpIf{Cond: bpf.JumpEqual, Val: ended, SkipFalse: uint8(len(closedBefore))})
	tcp = append(tcp, closedBefore...)
	tcp = append(tcp, program(
		[]bpf.Instruction{bpf.LoadScratch{Dst: bpf.RegA, N: 0}},
		passIf(uint32(TCPEstablished)), passIf(uint32(TCPTimeWait)), passIf(uint32(TCPClosed)),
		refuse,
	)...)

	first := program(
		[]bpf.Instruction{bpf.LoadAbsolute{Off: nl.MessagePort, Size: 4}}, refuseUnless(bpf.JumpEqual, 0),
		attribute(vnl.CTA_MARK), refuseIf(0), value(4), refuseUnless(bpf.JumpBitsSet, m.EgressBit()),
		attribute(vnl.CTA_STATUS), refuseIf(0), value(4), refuseUnless(bpf.JumpBitsSet, statusSNAT),
		attribute(vnl.CTA_TUPLE_ORIG), refuseIf(0),
		inside(vnl.CTA_TUPLE_PROTO), refuseIf(0), inside(vnl.CTA_PROTO_NUM), refuseIf(0), value(1),
		[]bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipFalse: uint8(len(udp))}},
	)
	return program(first, udp, refuseUnless(bpf.JumpEqual, unix.IPPROTO_TCP), tcp)
}
