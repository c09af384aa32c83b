// Package queue holds up packets that a rule of nftables queues (NFQUEUE) until the daemon lets them go, and finds DNS messages in them.
package queue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
)

// Errors of Open that callers distinguish.
var (
	ErrInUse       = errors.New("another program reads this queue")
	ErrUnsupported = errors.New("the kernel has no nfnetlink_queue")
)

const (
	// Length is the number of packets that wait in the kernel. Those beyond pass unread.
	Length = 4096

	// batch bounds the packets of one Read.
	batch = 256

	// buffer fits a full queue of packets of the usual size.
	buffer = 16 << 20
)

// Messages, attributes and values of linux/netfilter/nfnetlink_queue.h.
const (
	subsystem = 3 // NFNL_SUBSYS_QUEUE

	messagePacket  = 0
	messageVerdict = 1
	messageConfig  = 2
	messageBatch   = 3 // a verdict on all packets up to a number

	configCommand = 1
	configParams  = 2
	configLength  = 3
	configMask    = 4
	configFlags   = 5

	commandBind  = 1
	copyPacket   = 2
	flagFailOpen = 1 << 0 // packets that find no room pass, in the queue as in the socket; otherwise the kernel drops them
	flagGSO      = 1 << 2 // packets come before they are segmented, as the rule sees them

	packetHeader  = 1
	verdictHeader = 2
	packetPayload = 10
)

// Packet is a packet that waits.
type Packet struct {
	ID      uint32
	Payload []byte // from the IP header on
}

// Queue is the reader of a queue. One goroutine calls Read; any may call Accept and Close.
type Queue struct {
	number uint16
	conn   *netlink.Conn
	raw    syscall.RawConn
	buf    []byte
	early  []Packet // came before the answer to the request that opened the queue

	mu      sync.Mutex // guards the fields below
	waiting []verdict  // in the kernel's order
	last    uint32     // the latest packet that was read
}

// verdict is a packet that was read, and whether it may go.
type verdict struct {
	id   uint32
	done bool
}

// Open makes this program the reader of a queue. Without a reader, a rule with the flag bypass lets packets pass.
func Open(number uint16) (*Queue, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netfilter socket for queue %d: %w", number, err)
	}
	q := &Queue{number: number, conn: conn, buf: make([]byte, 1<<17)} // a packet has up to 64 KiB, beside attributes
	q.raw, err = conn.SyscallConn()
	// The kernel lets packets pass that do not fit; the socket reports no error for that (NETLINK_NO_ENOBUFS).
	err = errors.Join(err, conn.SetReadBuffer(buffer), conn.SetOption(netlink.NoENOBUFS, true))
	if err == nil {
		_ = conn.SetOption(netlink.CapAcknowledge, true) // errors need not repeat the request
		err = q.bind()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("read queue %d: %w", number, err)
	}
	return q, nil
}

// bind sends one request with all settings: between two, the kernel would drop packets.
func (q *Queue) bind() error {
	body := nl.AppendAttr(q.header(), configCommand, commandBind, 0, 0, 0)
	body = nl.AppendAttr(body, configParams, 0, 0, 0xff, 0xff, copyPacket)
	body = nl.AppendBE32(body, configLength, Length)
	body = nl.AppendBE32(body, configFlags, flagFailOpen|flagGSO)
	body = nl.AppendBE32(body, configMask, flagFailOpen|flagGSO)
	const seq = 1
	if err := q.send(appendMessage(nil, messageConfig, unix.NLM_F_ACK, seq, body)); err != nil {
		return err
	}
	for {
		acknowledged, err := false, error(nil)
		readErr := q.receive(true, func(m syscall.NetlinkMessage) {
			if m.Header.Type == unix.NLMSG_ERROR && m.Header.Seq == seq {
				acknowledged, err = true, nl.AckError(m)
			} else if p, ok := decode(m); ok {
				q.early = append(q.early, p)
			}
		})
		switch {
		case readErr != nil:
			return readErr
		case acknowledged:
			return explain(err)
		}
	}
}

// explain gives the kernel's errors a meaning. EINVAL is the answer of a kernel without the subsystem, ENOTSUPP (524) of one without the
// flag.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w, or this one lacks CAP_NET_ADMIN: %w", ErrInUse, err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, syscall.Errno(524)):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

// header returns struct nfgenmsg, which names the queue.
func (q *Queue) header() []byte {
	return binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, q.number)
}

// Read waits for packets and returns those that are there. Each waits in the kernel until Accept. After Close the error is
// os.ErrClosed.
func (q *Queue) Read() (packets []Packet, err error) {
	packets, q.early = q.early, nil
	for wait := len(packets) == 0; len(packets) < batch; wait = len(packets) == 0 {
		before := len(packets)
		err := q.receive(wait, func(m syscall.NetlinkMessage) {
			if p, ok := decode(m); ok {
				packets = append(packets, p)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("read queue %d: %w", q.number, err)
		}
		if !wait && len(packets) == before {
			break
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range packets {
		q.waiting = append(q.waiting, verdict{id: p.ID})
		q.last = p.ID
	}
	return packets, nil
}

// receive reads one datagram and calls each for every message, whose data is valid only during the call. Without wait it returns at once
// where there is none.
func (q *Queue) receive(wait bool, each func(syscall.NetlinkMessage)) error {
	var n int
	var failed error
	err := q.raw.Read(func(fd uintptr) bool {
		n, _, failed = unix.Recvfrom(int(fd), q.buf, unix.MSG_DONTWAIT)
		for errors.Is(failed, unix.EINTR) {
			n, _, failed = unix.Recvfrom(int(fd), q.buf, unix.MSG_DONTWAIT)
		}
		return !wait || !errors.Is(failed, unix.EAGAIN)
	})
	switch {
	case err != nil:
		return errors.Join(os.ErrClosed, err)
	case errors.Is(failed, unix.EAGAIN), errors.Is(failed, unix.ENOBUFS):
		return nil
	case failed != nil:
		return failed
	}
	nl.EachMessage(q.buf[:n], func(b []byte) {
		each(syscall.NetlinkMessage{
			Header: syscall.NlMsghdr{
				Type:  binary.NativeEndian.Uint16(b[nl.MessageType:]),
				Flags: binary.NativeEndian.Uint16(b[nl.MessageType+2:]),
				Seq:   binary.NativeEndian.Uint32(b[nl.MessageType+4:]),
			},
			Data: b[unix.SizeofNlMsghdr:],
		})
	})
	return nil
}

// decode returns the packet of a message; ok is false for messages of other types, such as errors about verdicts that came too late.
func decode(m syscall.NetlinkMessage) (p Packet, ok bool) {
	if m.Header.Type != subsystem<<8|messagePacket {
		return Packet{}, false
	}
	for typ, value := range nl.Attrs(m.Data, nl.NfgenmsgLen) {
		switch typ {
		case packetHeader:
			p.ID, ok = nl.BE32(value), len(value) >= 4
		case packetPayload:
			p.Payload = bytes.Clone(value)
		}
	}
	return p, ok
}

// Accept lets packets go. It ignores those that the kernel has dropped meanwhile.
func (q *Queue) Accept(ids ...uint32) error {
	if len(ids) == 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	oldest, rest := settle(&q.waiting, ids)
	var b []byte
	if oldest != nil {
		b = q.appendVerdict(b, messageBatch, *oldest)
	}
	for _, id := range rest {
		b = q.appendVerdict(b, messageVerdict, id)
	}
	if err := q.send(b); err != nil {
		return fmt.Errorf("accept %d packets of queue %d: %w", len(ids), q.number, err)
	}
	return nil
}

// settle marks packets as done, and removes those at the head of the list that are. upTo is the last of these: one verdict covers all up
// to it; nil: there is none. The rest of ids needs a verdict for each.
func settle(waiting *[]verdict, ids []uint32) (upTo *uint32, rest []uint32) {
	open := make(map[uint32]bool, len(ids))
	for _, id := range ids {
		open[id] = true
	}
	w, done := *waiting, 0
	for i := range w {
		w[i].done = w[i].done || open[w[i].id]
		if i == done && w[i].done {
			done++
		}
	}
	for _, v := range w[:done] {
		if open[v.id] {
			last := v.id
			upTo = &last
			delete(open, v.id)
		}
	}
	*waiting = slices.Delete(w, 0, done)
	for _, id := range ids {
		if open[id] {
			rest = append(rest, id)
			delete(open, id)
		}
	}
	return upTo, rest
}

func (q *Queue) appendVerdict(b []byte, kind uint16, id uint32) []byte {
	const accept = 1 // NF_ACCEPT
	value := binary.BigEndian.AppendUint32(nil, accept)
	return appendMessage(b, kind, 0, 0, nl.AppendAttr(q.header(), verdictHeader, binary.BigEndian.AppendUint32(value, id)...))
}

// appendMessage appends a message with its header; the kernel fills in the port.
func appendMessage(b []byte, kind, flags uint16, seq uint32, body []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, subsystem<<8|kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = append(append(b, 0, 0, 0, 0), body...)
	return append(b, make([]byte, nl.Align(len(b))-len(b))...)
}

func (q *Queue) send(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	var failed error
	err := q.raw.Write(func(fd uintptr) bool {
		failed = unix.Sendto(int(fd), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	if err != nil {
		return errors.Join(os.ErrClosed, err)
	}
	return failed
}

// Close lets all packets go, also those that were not read yet, and gives the queue back. Read returns.
func (q *Queue) Close() error {
	const further = 1 << 30 // no packet has a later number; the kernel's comparison allows for half of all numbers
	q.mu.Lock()
	defer q.mu.Unlock()
	return errors.Join(q.send(q.appendVerdict(nil, messageBatch, q.last+further)), q.conn.Close())
}
