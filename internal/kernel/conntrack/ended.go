package conntrack

import (
	"context"
	"slices"
	"time"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
)

// Record describes an egress connection of any protocol that leaves or left this node with SNAT, as conntrack holds it.
type Record struct {
	Flow
	Sent, Received Traffic
	Counted        bool      // false: the connection began while net.netfilter.nf_conntrack_acct was 0
	Start          time.Time // zero: it began while net.netfilter.nf_conntrack_timestamp was 0
	End            time.Time // when conntrack forgot it; zero: as with Start, or it goes on
}

// Traffic counts what one end of a connection sent, with IP headers.
type Traffic struct{ Packets, Bytes uint64 }

// Attributes of conntrack messages that the library does not define (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctaTimestampStart = 1 // CTA_TIMESTAMP_START, in nanoseconds since 1970
	ctaTimestampStop  = 2 // CTA_TIMESTAMP_STOP
)

// Ends is a subscription to the ends of connections.
type Ends struct {
	Buffer int                 // bytes of events that wait for the reader; 0: as many as WatchFlows holds
	Begun  func()              // called once the subscription is complete
	Ended  func(Record)        // called for each end
	Lost   func(events uint32) // called when the kernel dropped so many ends for lack of room
}

// WatchEnds reports the ends of the egress connections that left this node with SNAT, whether they were closed, expired, or were
// removed by a program. A TCP connection ends when its entry expires, up to two minutes after its last packet
// (net.netfilter.nf_conntrack_tcp_timeout_time_wait). The kernel reports no end of a connection that began while no program
// listened to conntrack events. WatchEnds returns nil when ctx ends.
func WatchEnds(ctx context.Context, m plan.Marks, w Ends) error {
	if w.Buffer == 0 {
		w.Buffer = eventBuffer
	}
	return listener{
		filter: slices.Concat(leavesWithSNAT(m), pass), groups: []uint32{unix.NFNLGRP_CONNTRACK_DESTROY}, buffer: w.Buffer,
		begun: w.Begun, lost: w.Lost,
		event: func(b []byte) {
			if r, ok := decodeRecord(m, b[unix.SizeofNlMsghdr:]); ok {
				w.Ended(r)
			}
		},
	}.run(ctx)
}

// ListConnections calls each for every egress connection that leaves this node with SNAT, until each returns false. each may
// block: the kernel waits.
func ListConnections(ctx context.Context, m plan.Marks, each func(Record) bool) error {
	return dumpEgress(ctx, m, func(body []byte) bool {
		r, ok := decodeRecord(m, body)
		return !ok || each(r)
	})
}

// decodeRecord decodes the body of a message about an entry. ok is false if it is no egress connection that leaves this node
// with SNAT.
func decodeRecord(m plan.Marks, body []byte) (r Record, ok bool) {
	var e Entry
	zoned := false
	for typ, value := range nl.Attrs(body, vnl.SizeofNfgenmsg) {
		zoned = zoned || zones(typ, value)
		e.set(typ, value)
		r.set(typ, value)
	}
	r.Flow, ok = e.flow(m)
	return r, ok && !zoned && r.Src.Addr().IsValid() && r.Dst.Addr().IsValid()
}

// set sets the fields of an attribute, except the flow.
func (r *Record) set(typ uint16, value []byte) {
	switch typ {
	case vnl.CTA_COUNTERS_ORIG:
		r.Sent, r.Counted = decodeTraffic(value), true
	case vnl.CTA_COUNTERS_REPLY:
		r.Received = decodeTraffic(value)
	case vnl.CTA_TIMESTAMP:
		r.Start, r.End = timeOf(nl.Attr(value, 0, ctaTimestampStart)), timeOf(nl.Attr(value, 0, ctaTimestampStop))
	}
}

func decodeTraffic(b []byte) (t Traffic) {
	for typ, value := range nl.Attrs(b, 0) {
		switch typ {
		case vnl.CTA_COUNTERS_PACKETS:
			t.Packets = nl.BE64(value)
		case vnl.CTA_COUNTERS_BYTES:
			t.Bytes = nl.BE64(value)
		}
	}
	return t
}

// timeOf returns a timestamp; zero: there is none.
func timeOf(b []byte) time.Time {
	ns := nl.BE64(b)
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(ns)).UTC()
}
