package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/mdlayher/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
)

// eventBuffer holds some 20,000 events while the reader is busy: half a second at 20,000 flows a second.
const eventBuffer = 16 << 20

// listener receives conntrack events that pass a socket filter.
type listener struct {
	filter []bpf.Instruction
	groups []uint32            // NFNLGRP_CONNTRACK_…
	buffer int                 // bytes; the kernel drops events that do not fit
	begun  func()              // called once the subscription is complete
	lost   func(events uint32) // called after the kernel dropped events that would have passed the filter
	event  func(b []byte)      // called for each message with its header, which is valid only during the call
}

// run receives events until ctx ends; then it returns nil.
func (l listener) run(ctx context.Context) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open netfilter socket: %w", err)
	}
	defer func() { _ = c.Close() }()
	if err := l.subscribe(c); err != nil {
		return err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("read conntrack events: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })()

	l.begun()
	buf := make([]byte, 1<<16)
	losses := losses{report: l.lost}
	for {
		var n int
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, _, failed = unix.Recvfrom(int(fd), buf, 0)
			losses.after(int(fd), failed)
			return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(failed, unix.ENOBUFS): // the socket still works
			continue
		case errors.Join(err, failed) != nil:
			return fmt.Errorf("receive conntrack events: %w", errors.Join(err, failed))
		}
		nl.EachMessage(buf[:n], l.event)
	}
}

// losses counts the events that the kernel dropped for lack of room. The first one makes the next read fail with ENOBUFS. From
// then on the kernel drops all events until the reader has emptied the socket, without a second error (netlink_overrun).
type losses struct {
	report func(events uint32)
	known  uint32 // drops that were reported
	more   bool   // further events may have been dropped since
}

// after reports what was dropped before a read that ended with an error, or nil.
func (x *losses) after(fd int, failed error) {
	full := errors.Is(failed, unix.ENOBUFS)
	if !full && (!x.more || !errors.Is(failed, unix.EAGAIN)) {
		return
	}
	x.more = full
	total := drops(fd, x.known)
	if lost := total - x.known; full || lost > 0 {
		x.known = total
		x.report(max(lost, 1))
	}
}

// subscribe makes the socket receive the events that pass the filter.
func (l listener) subscribe(c *netlink.Conn) error {
	if err := c.SetReadBuffer(l.buffer); err != nil {
		return fmt.Errorf("set receive buffer for conntrack events: %w", err)
	}
	filter, err := bpf.Assemble(l.filter)
	if err != nil {
		return fmt.Errorf("assemble filter of conntrack events: %w", err)
	}
	if err := c.SetBPF(filter); err != nil {
		return fmt.Errorf("filter conntrack events: %w", err)
	}
	for _, group := range l.groups {
		if err := c.JoinGroup(group); err != nil {
			return fmt.Errorf("subscribe to conntrack events: %w", err)
		}
	}
	return nil
}

// drops returns how many events that passed the filter the kernel has dropped since the socket was opened, modulo 2^32
// (SO_MEMINFO, Linux 4.12); known if the kernel does not say.
func drops(fd int, known uint32) uint32 {
	var info [9]uint32 // indexed by SK_MEMINFO_…, of which SK_MEMINFO_DROPS is the last
	size := uint32(unsafe.Sizeof(info))
	_, _, failed := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if failed != 0 || uintptr(size) < unsafe.Sizeof(info) {
		return known
	}
	return info[8]
}

// Parts of socket filters. A is the register that most instructions use.

var (
	pass   = []bpf.Instruction{bpf.RetConstant{Val: 1 << 18}} // more than any message's size
	refuse = []bpf.Instruction{bpf.RetConstant{}}
)

// attribute sets A to the offset of an attribute; 0: absent.
func attribute(typ uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadConstant{Dst: bpf.RegA, Val: unix.SizeofNlMsghdr + vnl.SizeofNfgenmsg},
		bpf.LoadConstant{Dst: bpf.RegX, Val: typ},
		bpf.LoadExtension{Num: bpf.ExtNetlinkAttr},
	}
}

// inside sets A to the offset of an attribute nested in the one at A; 0: absent.
func inside(typ uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadConstant{Dst: bpf.RegX, Val: typ},
		bpf.LoadExtension{Num: bpf.ExtNetlinkAttrNested},
	}
}

// value sets A to the value of the attribute at A.
func value(size int) []bpf.Instruction {
	return []bpf.Instruction{bpf.TAX{}, bpf.LoadIndirect{Off: unix.SizeofRtAttr, Size: size}}
}

func passIf(v uint32) []bpf.Instruction {
	return []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipFalse: 1}, pass[0]}
}

func refuseIf(v uint32) []bpf.Instruction {
	return []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipFalse: 1}, refuse[0]}
}

func refuseUnless(test bpf.JumpTest, v uint32) []bpf.Instruction {
	return []bpf.Instruction{bpf.JumpIf{Cond: test, Val: v, SkipTrue: 1}, refuse[0]}
}

// leavesWithSNAT refuses events of entries without our egress bit, and of those whose source did not change.
func leavesWithSNAT(m plan.Marks) []bpf.Instruction {
	return slices.Concat(
		attribute(vnl.CTA_MARK), refuseIf(0), value(4), refuseUnless(bpf.JumpBitsSet, m.EgressBit()),
		attribute(vnl.CTA_STATUS), refuseIf(0), value(4), refuseUnless(bpf.JumpBitsSet, statusSNAT),
	)
}

// messageType returns a netlink type as the filter loads it: headers are in host byte order, but the filter loads big endian.
func messageType(kind uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, conntrackMessage(kind))))
}
