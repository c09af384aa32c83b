package nl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Netfilter is a netfilter socket for dumps and batches of changes. Frequent callers keep it open: closing one after an
// nftables transaction takes as long as the kernel needs to free the removed objects, some milliseconds, and delays the
// next transaction (nft_rcv_nl_event).
type Netfilter struct {
	*Conn
	buf []byte
}

// DialNetfilter opens a netfilter socket.
func DialNetfilter() (*Netfilter, error) {
	sock, err := vnl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netfilter socket: %w", err)
	}
	// Errors need not contain the request.
	_ = unix.SetsockoptInt(sock.GetFd(), unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = sock.SetReceiveBufferSize(ReceiveBuffer, true)
	return &Netfilter{&Conn{sock: sock}, make([]byte, 1<<16)}, nil // larger than any message of a dump
}

// receive reads one datagram and calls each for every reply in it. The body is valid only during the call.
func (c *Netfilter) receive(each func(h syscall.NlMsghdr, body []byte)) error {
	n, _, err := unix.Recvfrom(c.sock.GetFd(), c.buf, 0)
	for errors.Is(err, unix.EINTR) {
		n, _, err = unix.Recvfrom(c.sock.GetFd(), c.buf, 0)
	}
	if err != nil {
		return err
	}
	EachMessage(c.buf[:n], func(m []byte) {
		h := syscall.NlMsghdr{
			Len: uint32(len(m)), Type: binary.NativeEndian.Uint16(m[MessageType:]), Flags: binary.NativeEndian.Uint16(m[messageFlags:]),
			Seq: binary.NativeEndian.Uint32(m[messageSeq:]),
		}
		each(h, m[unix.SizeofNlMsghdr:])
	})
	return nil
}

// Offsets of fields in struct nlmsghdr.
const (
	MessageType  = 4
	messageFlags = 6
	messageSeq   = 8
	MessagePort  = 12 // port of the program that caused an event; 0: packets or a timer did
)

// EachMessage calls each for every message of a datagram, with its header.
func EachMessage(b []byte, each func([]byte)) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return
		}
		each(b[:size])
		b = b[min(Align(size), len(b)):]
	}
}

// Dump sends a dump request and calls each for the body of every entry until each returns false. The body is valid only
// during the call. whole is false if the kernel's list changed meanwhile: then an entry may be missing or come twice. The
// receive buffer has the largest useful size, since for each further answer the kernel counts from the start of its
// list.
func (c *Netfilter) Dump(request Message, each func(body []byte) bool) (whole bool, err error) {
	request.Flags |= unix.NLM_F_DUMP
	if err := c.send([]Message{request}); err != nil {
		return false, fmt.Errorf("send dump request: %w", err)
	}
	d := dump{each: func(_ uint16, body []byte) bool { return each(body) }}
	for !d.ended {
		if err := c.receive(d.take); err != nil {
			return false, fmt.Errorf("receive dump: %w", err)
		}
	}
	return !d.changed, d.err
}

// dump is a dump under way.
type dump struct {
	each    func(kind uint16, body []byte) bool
	changed bool  // the kernel's list changed meanwhile
	ended   bool  // by the kernel, or since each returned false
	stopped bool  // since each returned false
	err     error // the kernel's
}

// take takes one message of the kernel's answer.
func (d *dump) take(h syscall.NlMsghdr, body []byte) {
	d.changed = d.changed || h.Flags&unix.NLM_F_DUMP_INTR != 0
	switch {
	case d.ended:
	case h.Type == unix.NLMSG_DONE || h.Type == unix.NLMSG_ERROR:
		d.ended, d.err = true, AckError(syscall.NetlinkMessage{Header: h, Data: body})
	default:
		d.stopped = !d.each(h.Type, body)
		d.ended = d.stopped
	}
}

// Ask sends a request about one object and returns the bodies of the kernel's answer.
func (c *Netfilter) Ask(request Message) (bodies [][]byte, err error) {
	if err := c.send([]Message{request}); err != nil {
		return nil, fmt.Errorf("send netfilter request: %w", err)
	}
	var refused error
	err = c.receive(func(h syscall.NlMsghdr, body []byte) {
		if h.Type == unix.NLMSG_ERROR {
			refused = AckError(syscall.NetlinkMessage{Header: h, Data: body})
		} else {
			bodies = append(bodies, bytes.Clone(body))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("receive netfilter answer: %w", err)
	}
	return bodies, refused
}

// Exchange sends the requests and calls each for every answer: the index of its request, and either the kernel's error
// or, for a query, the body. A request without a call succeeded. Only the last request of a batch asks for an
// acknowledgement; for the others the kernel answers only errors. The body is valid only during the call.
func (c *Netfilter) Exchange(requests []Message, each func(i int, body []byte, err error)) error {
	const most = 128 // at once: the requests must fit into the send buffer, and the answers are longer
	for done := 0; done < len(requests); {
		part := requests[done:min(done+most, len(requests))]
		part[len(part)-1].Flags |= unix.NLM_F_ACK
		first := c.seq + 1
		if err := c.send(part); err != nil {
			return fmt.Errorf("send netfilter request: %w", err)
		}
		for acknowledged := false; !acknowledged; {
			err := c.receive(func(h syscall.NlMsghdr, body []byte) {
				i := int(h.Seq - first)
				switch {
				case i < 0 || i >= len(part):
				case h.Type == unix.NLMSG_ERROR:
					each(done+i, nil, AckError(syscall.NetlinkMessage{Header: h, Data: body}))
					acknowledged = acknowledged || i == len(part)-1
				default:
					each(done+i, body, nil)
				}
			})
			if err != nil {
				return fmt.Errorf("receive netfilter answer: %w", err)
			}
		}
		done += len(part)
	}
	return nil
}
