package kernel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// Injection says how flows of another node are taken into this node's conntrack.
type Injection struct {
	Marks plan.Marks
	// Steering says of a path id whether it leads to another node. A connection that came in by such a path is a stray's:
	// nobody here knew what to do with its packets. A flow that is injected knows, and takes its place.
	Steering func(plan.PathID) bool
	// Replace says that the other node knows better: an egress flow here that has the same ends but another source, or the
	// same source and remote, goes. Without it, what is here stays.
	Replace bool
}

// Injected is what came of flows.
type Injected struct {
	Created   int // new here
	Refreshed int // were here
	Replaced  int // took the place of what was here
	Refused   int // what is here stays, or the kernel said no
}

// InjectFlows makes an entry for each flow: its next packet, either way, goes on with the same source address and port. The
// kernel does not check TCP sequence numbers of such an entry, since it has seen none. One that is here already lives as
// long as it is told to, and longer if it would anyway. The error tells why the kernel refused some.
func InjectFlows(o Injection, flows []Flow) (r Injected, err error) {
	if len(flows) == 0 {
		return r, nil
	}
	for _, f := range flows {
		if ipv4 := f.Src.Addr().Is4(); f.Dst.Addr().Is4() != ipv4 || f.SNAT.Addr().Is4() != ipv4 {
			return Injected{Refused: len(flows)}, fmt.Errorf("inject flow of %s to %s as %s: want addresses of one family", f.Src, f.Dst, f.SNAT)
		}
	}
	c, err := dialConntrack()
	if err != nil {
		return r, err
	}
	defer c.close()
	clashes, errs, err := o.create(c, flows)
	r.Created, r.Refused = len(flows)-len(clashes)-len(errs), len(errs)
	if err != nil {
		return r, err
	}
	again, err := o.resolve(c, clashes, &r)
	if err != nil {
		return r, err
	}
	clashes, more, err := o.create(c, again)
	r.Replaced += len(again) - len(clashes) - len(more)
	r.Refused += len(clashes) + len(more)
	return r, errors.Join(joined(append(errs, more...)), err)
}

// create asks for new entries. It returns the flows of which something is there already, and what else went wrong.
func (o Injection) create(c *ctConn, flows []Flow) (clashes []Flow, errs []error, err error) {
	changes := make([]entryChange, len(flows))
	for i, f := range flows {
		changes[i].message = f.creation(o.Marks)
	}
	if err := c.exchange(changes); err != nil {
		return nil, nil, err
	}
	for i, ch := range changes {
		switch f := flows[i]; {
		case errors.Is(ch.err, unix.EEXIST):
			clashes = append(clashes, f)
		case ch.err != nil:
			errs = append(errs, fmt.Errorf("inject flow of %s to %s as %s: %w", f.Src, f.Dst, f.SNAT, ch.err))
		}
	}
	return clashes, errs, nil
}

// resolve looks at what stands in the way of flows. It returns those that can be created now.
func (o Injection) resolve(c *ctConn, clashes []Flow, r *Injected) (again []Flow, err error) {
	same := make([]entryChange, len(clashes))
	for i, f := range clashes {
		same[i].message = f.about(nl.IPCTNL_MSG_CT_GET, 0)
	}
	if err := c.exchange(same); err != nil {
		return nil, err
	}
	var changes, rivals []entryChange
	var open []int
	for i, f := range clashes {
		if same[i].err != nil || same[i].found.SNAT != f.SNAT {
			open = append(open, i)
			rivals = append(rivals, entryChange{message: f.aboutReply(nl.IPCTNL_MSG_CT_GET, 0)})
			continue
		}
		r.Refreshed++
		if m, needed := f.refresh(o.Marks, same[i].found); needed {
			changes = append(changes, entryChange{message: m})
		}
	}
	if err := c.exchange(rivals); err != nil {
		return nil, err
	}
	for j, i := range open {
		inTheWay := slices.DeleteFunc([]entryChange{same[i], rivals[j]}, func(e entryChange) bool { return e.err != nil })
		if slices.ContainsFunc(inTheWay, func(e entryChange) bool { return !o.replaceable(e.found) }) {
			r.Refused++
			continue
		}
		for _, e := range inTheWay {
			changes = append(changes, entryChange{message: e.found.about(nl.IPCTNL_MSG_CT_DELETE, 0)})
		}
		again = append(again, clashes[i])
	}
	// What went meanwhile is as good as deleted.
	return again, c.exchange(changes)
}

// replaceable says whether an entry may go in favour of a flow of another node.
func (o Injection) replaceable(e ctEntry) bool {
	mark := e.mark & o.Marks.Mask
	if mark&o.Marks.EgressBit() != 0 {
		return o.Replace
	}
	return mark != 0 && o.Steering(o.Marks.Path(mark))
}

// creation is the request for the entry of a flow. NAT is set up by a range of one address and one port: status bits of it
// cannot be set. So the reply tuple is that of before NAT.
func (f Flow) creation(m plan.Marks) message {
	r := f.about(nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	b := appendTuple(r.body, nl.CTA_TUPLE_REPLY, f.Proto, f.Dst, f.Src)
	status := uint32(statusConfirmed)
	if f.Answered {
		status |= statusSeenReply
	}
	if f.Assured {
		status |= statusAssured
	}
	b = appendBE32(b, nl.CTA_STATUS, status)
	b = appendBE32(b, nl.CTA_TIMEOUT, max(f.Timeout, 1))
	b = appendMark(b, m.Egress(f.Path), m.Mask)
	first := uint16(ctaNATV4MinIP)
	if f.SNAT.Addr().Is6() {
		first = ctaNATV6MinIP
	}
	b = nested(b, ctaNATSrc, func(b []byte) []byte {
		b = appendAddr(appendAddr(b, first, f.SNAT.Addr()), first+1, f.SNAT.Addr())
		return nested(b, ctaNATProto, func(b []byte) []byte {
			return appendBE16(appendBE16(b, ctaNATPortMin, f.SNAT.Port()), ctaNATPortMax, f.SNAT.Port())
		})
	})
	if f.Proto == unix.IPPROTO_TCP {
		b = appendLiberal(b, f.State)
	}
	r.body = b
	return r
}

// refresh is the request that makes an entry live on, if it needs to, and has it take what it did not see the beginning
// of. One that is being closed stays so.
func (f Flow) refresh(m plan.Marks, found ctEntry) (message, bool) {
	tcp := f.Proto == unix.IPPROTO_TCP
	longer := f.Timeout > found.Timeout && (!tcp || found.State == TCPEstablished)
	moved := found.mark&m.Mask != m.Egress(f.Path)
	strict := tcp && !found.liberal
	if !longer && !moved && !strict {
		return message{}, false
	}
	r := f.about(nl.IPCTNL_MSG_CT_NEW, 0)
	if longer {
		r.body = appendBE32(r.body, nl.CTA_TIMEOUT, f.Timeout)
	}
	if moved {
		r.body = appendMark(r.body, m.Egress(f.Path), m.Mask)
	}
	if strict {
		r.body = appendLiberal(r.body, 0)
	}
	return r, true
}

// appendLiberal has the kernel not check sequence numbers; a state of 0 leaves that of the entry.
func appendLiberal(b []byte, state uint8) []byte {
	return nested(b, nl.CTA_PROTOINFO, func(b []byte) []byte {
		return nested(b, nl.CTA_PROTOINFO_TCP, func(b []byte) []byte {
			if state != 0 {
				b = appendAttr(b, nl.CTA_PROTOINFO_TCP_STATE, state)
			}
			// struct nf_ct_tcp_flags: flags and mask
			b = appendAttr(b, nl.CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, tcpFlagBeLiberal, tcpFlagBeLiberal)
			return appendAttr(b, nl.CTA_PROTOINFO_TCP_FLAGS_REPLY, tcpFlagBeLiberal, tcpFlagBeLiberal)
		})
	})
}
