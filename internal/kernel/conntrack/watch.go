package conntrack

import (
	"context"
	"encoding/binary"
	"slices"

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
	groups := []uint32{unix.NFNLGRP_CONNTRACK_NEW, unix.NFNLGRP_CONNTRACK_UPDATE, unix.NFNLGRP_CONNTRACK_DESTROY}
	return listener{
		filter: eventFilter(m), groups: groups, buffer: buffer,
		begun: func() { each(FlowEvent{Kind: FlowsLost}) },
		lost:  func(uint32) { each(FlowEvent{Kind: FlowsLost}) },
		event: func(b []byte) {
			if e, ok := decodeEvent(m, b); ok {
				each(e)
			}
		},
	}.run(ctx)
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
	ended := messageType(vnl.IPCTNL_MSG_CT_DELETE)
	kind := []bpf.Instruction{bpf.LoadAbsolute{Off: nl.MessageType, Size: 2}}

	udp := slices.Concat(kind, refuseIf(ended), pass)
	tcp := slices.Concat(
		attribute(vnl.CTA_STATUS), value(4), refuseUnless(bpf.JumpBitsSet, statusAssured),
		attribute(vnl.CTA_PROTOINFO), passIf(0),
		inside(vnl.CTA_PROTOINFO_TCP), refuseIf(0), inside(vnl.CTA_PROTOINFO_TCP_STATE), refuseIf(0), value(1),
		[]bpf.Instruction{bpf.StoreScratch{Src: bpf.RegA, N: 0}},
		kind,
	)
	// An entry's end counts if its connection was still open; a change counts if the new state is established or
	// closed.
	closedBefore := slices.Concat(
		[]bpf.Instruction{bpf.LoadScratch{Dst: bpf.RegA, N: 0}},
		refuseIf(uint32(TCPTimeWait)), refuseIf(uint32(TCPClosed)), pass,
	)
	tcp = append(tcp, bpf.JumpIf{Cond: bpf.JumpEqual, Val: ended, SkipFalse: uint8(len(closedBefore))})
	tcp = append(tcp, closedBefore...)
	tcp = append(tcp, slices.Concat(
		[]bpf.Instruction{bpf.LoadScratch{Dst: bpf.RegA, N: 0}},
		passIf(uint32(TCPEstablished)), passIf(uint32(TCPTimeWait)), passIf(uint32(TCPClosed)),
		refuse,
	)...)

	first := slices.Concat(
		[]bpf.Instruction{bpf.LoadAbsolute{Off: nl.MessagePort, Size: 4}}, refuseUnless(bpf.JumpEqual, 0),
		leavesWithSNAT(m),
		attribute(vnl.CTA_TUPLE_ORIG), refuseIf(0),
		inside(vnl.CTA_TUPLE_PROTO), refuseIf(0), inside(vnl.CTA_PROTO_NUM), refuseIf(0), value(1),
		[]bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipFalse: uint8(len(udp))}},
	)
	return slices.Concat(first, udp, refuseUnless(bpf.JumpEqual, unix.IPPROTO_TCP), tcp)
}
