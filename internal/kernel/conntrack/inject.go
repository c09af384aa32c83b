package conntrack

import (
	"errors"
	"fmt"
	"slices"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
)

// Injection defines how another node's flows enter this node's conntrack.
type Injection struct {
	Marks plan.Marks
	// Steering reports whether a path id leads to another node. A connection that came in by such a path is a stray's:
	// this node had no connection for its packets. An injected flow replaces it.
	Steering func(plan.PathID) bool
	// Replace makes the other node's flows win: an injected flow replaces an egress flow here that has the same tuple
	// but another source, or the same source and remote. Without it, the entry here stays.
	Replace bool
}

// Injected is the result of an injection.
type Injected struct {
	Here      []Flow // have their entry: not the refused ones
	Created   int    // new here
	Refreshed int    // existed with the same source
	Replaced  int    // replaced an entry that was here
	Refused   int    // an entry here stays, or the kernel refused the flow
}

// InjectFlows creates an entry for each flow, so that the flow's next packet, in either direction, keeps its source
// address and port. The kernel does not check TCP sequence numbers for such an entry, since it has seen none. An
// existing entry's timeout is raised to the flow's, never lowered. The error says why the kernel refused some flows.
func InjectFlows(o Injection, flows []Flow) (r Injected, err error) {
	if len(flows) == 0 {
		return r, nil
	}
	for _, f := range flows {
		if ipv4 := f.Src.Addr().Is4(); f.Dst.Addr().Is4() != ipv4 || f.SNAT.Addr().Is4() != ipv4 {
			err := fmt.Errorf("inject flow of %s to %s as %s: want addresses of one family", f.Src, f.Dst, f.SNAT)
			return Injected{Refused: len(flows)}, err
		}
	}
	c, err := dialConntrack()
	if err != nil {
		return r, err
	}
	defer c.Close()
	n := injecting{Injection: o, conn: c}
	clashes, err := n.create(flows)
	for attempt := 0; err == nil && len(clashes) > 0 && attempt < attempts; attempt++ {
		clashes, err = n.resolve(clashes)
	}
	n.Refused += len(clashes)
	return n.Injected, errors.Join(nl.JoinErrors(n.errs), err)
}

// attempts limits how often entries in the way of a flow are replaced. A packet that the kernel handles between the deletion of one and
// the creation of the flow's makes another one.
const attempts = 5

// injecting is an injection under way.
type injecting struct {
	Injection
	Injected
	conn *Conn
	errs []error // why the kernel refused some flows
}

// create requests new entries, and returns the flows that clash with an existing entry.
func (n *injecting) create(flows []Flow) (clashes []Flow, err error) {
	changes := make([]entryChange, len(flows))
	for i, f := range flows {
		changes[i].Message = f.creation(n.Marks)
	}
	if err := n.conn.exchange(changes); err != nil {
		return nil, err
	}
	for i, f := range flows {
		if n.clashes(f, changes[i].err, &n.Created) {
			clashes = append(clashes, f)
		}
	}
	return clashes, nil
}

// clashes reports whether a flow clashes with an existing entry, by the answer to the request that creates its entry. It counts a flow that
// does not.
func (n *injecting) clashes(f Flow, answer error, made *int) bool {
	switch {
	case answer == nil:
		*made++
		n.Here = append(n.Here, f)
	case errors.Is(answer, unix.EEXIST):
		return true
	default:
		n.Refused++
		n.errs = append(n.errs, fmt.Errorf("inject flow of %s to %s as %s: %w", f.Src, f.Dst, f.SNAT, answer))
	}
	return false
}

// resolve handles the entries that clash with flows: it refreshes them, or replaces them by the flows' own. It returns the flows that clash
// again.
func (n *injecting) resolve(clashes []Flow) (again []Flow, err error) {
	same := make([]entryChange, len(clashes))
	for i, f := range clashes {
		same[i].Message = f.about(vnl.IPCTNL_MSG_CT_GET, 0)
	}
	if err := n.conn.exchange(same); err != nil {
		return nil, err
	}
	var changes, rivals []entryChange
	var open []int
	for i, f := range clashes {
		if same[i].err != nil || same[i].found.SNAT != f.SNAT {
			open = append(open, i)
			rivals = append(rivals, entryChange{Message: f.aboutReply(vnl.IPCTNL_MSG_CT_GET, 0)})
			continue
		}
		n.Refreshed++
		n.Here = append(n.Here, f)
		if m, needed := f.refresh(n.Marks, same[i].found); needed {
			changes = append(changes, entryChange{Message: m})
		}
	}
	if err := n.conn.exchange(rivals); err != nil {
		return nil, err
	}
	made := map[int]Flow{} // by the index of the request that creates its entry
	for j, i := range open {
		inTheWay := slices.DeleteFunc([]entryChange{same[i], rivals[j]}, func(e entryChange) bool { return e.err != nil })
		if slices.ContainsFunc(inTheWay, func(e entryChange) bool { return !n.replaceable(e.found) }) {
			n.Refused++
			continue
		}
		for _, e := range inTheWay { // an entry that vanished meanwhile is as good as deleted
			changes = append(changes, entryChange{Message: e.found.about(vnl.IPCTNL_MSG_CT_DELETE, 0)})
		}
		made[len(changes)] = clashes[i]
		changes = append(changes, entryChange{Message: clashes[i].creation(n.Marks)})
	}
	if err := n.conn.exchange(changes); err != nil {
		return nil, err
	}
	for i, f := range made {
		if n.clashes(f, changes[i].err, &n.Replaced) {
			again = append(again, f)
		}
	}
	return again, nil
}

// replaceable reports whether a flow of another node may replace an entry.
func (o Injection) replaceable(e Entry) bool {
	mark := e.Mark & o.Marks.Mask
	if mark&o.Marks.EgressBit() != 0 {
		return o.Replace
	}
	return mark != 0 && o.Steering(o.Marks.Path(mark))
}

// creation returns the request for a flow's entry. The NAT status bits cannot be set directly, so NAT is requested as a
// range of one address and one port, and the reply tuple is the one before NAT.
func (f Flow) creation(m plan.Marks) nl.Message {
	r := f.about(vnl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	b := appendTuple(r.Body, vnl.CTA_TUPLE_REPLY, f.Proto, f.Dst, f.Src)
	status := uint32(statusConfirmed)
	if f.Answered {
		status |= statusSeenReply
	}
	if f.Assured {
		status |= statusAssured
	}
	b = nl.AppendBE32(b, vnl.CTA_STATUS, status)
	b = nl.AppendBE32(b, vnl.CTA_TIMEOUT, max(f.Timeout, 1))
	b = appendMark(b, m.Egress(f.Path), m.Mask)
	first := uint16(ctaNATV4MinIP)
	if f.SNAT.Addr().Is6() {
		first = ctaNATV6MinIP
	}
	b = nl.AppendNested(b, ctaNATSrc, func(b []byte) []byte {
		b = nl.AppendAddr(nl.AppendAddr(b, first, f.SNAT.Addr()), first+1, f.SNAT.Addr())
		return nl.AppendNested(b, ctaNATProto, func(b []byte) []byte {
			return nl.AppendBE16(nl.AppendBE16(b, ctaNATPortMin, f.SNAT.Port()), ctaNATPortMax, f.SNAT.Port())
		})
	})
	if f.Proto == unix.IPPROTO_TCP {
		b = appendLiberal(b, f.State)
	}
	r.Body = b
	return r
}

// refresh returns the request that brings an existing entry up to the flow, as far as needed.
func (f Flow) refresh(m plan.Marks, found Entry) (nl.Message, bool) {
	d := f.differs(m, found)
	if d == (difference{}) {
		return nl.Message{}, false
	}
	r := f.about(vnl.IPCTNL_MSG_CT_NEW, 0)
	if d.longer {
		r.Body = nl.AppendBE32(r.Body, vnl.CTA_TIMEOUT, f.Timeout)
	}
	if d.moved {
		r.Body = appendMark(r.Body, m.Egress(f.Path), m.Mask)
	}
	if d.strict {
		r.Body = appendLiberal(r.Body, 0)
	}
	return r, true
}

// difference is what an existing entry lacks for a flow to continue.
type difference struct {
	longer bool // the flow's timeout is longer
	moved  bool // the entry has the mark of another path
	strict bool // the kernel checks the entry's TCP sequence numbers
}

// differs compares an existing entry with the flow. The timeout of a TCP connection that is closing stays.
func (f Flow) differs(m plan.Marks, found Entry) difference {
	tcp := f.Proto == unix.IPPROTO_TCP
	return difference{
		longer: f.Timeout > found.Timeout && (!tcp || found.State == TCPEstablished),
		moved:  found.Mark&m.Mask != m.Egress(f.Path),
		strict: tcp && !found.liberal,
	}
}

// appendLiberal appends the attributes that turn off TCP sequence checks; state 0 keeps the entry's state.
func appendLiberal(b []byte, state uint8) []byte {
	return nl.AppendNested(b, vnl.CTA_PROTOINFO, func(b []byte) []byte {
		return nl.AppendNested(b, vnl.CTA_PROTOINFO_TCP, func(b []byte) []byte {
			if state != 0 {
				b = nl.AppendAttr(b, vnl.CTA_PROTOINFO_TCP_STATE, state)
			}
			// struct nf_ct_tcp_flags: flags and mask
			b = nl.AppendAttr(b, vnl.CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, tcpFlagBeLiberal, tcpFlagBeLiberal)
			return nl.AppendAttr(b, vnl.CTA_PROTOINFO_TCP_FLAGS_REPLY, tcpFlagBeLiberal, tcpFlagBeLiberal)
		})
	})
}
