package nl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Routes come in hundreds of thousands, the library does not read a rule's action, and flushed objects must be restored
// with every attribute: these three are read and written as raw messages, all else by the netlink library.

// Message is an rtnetlink message without its header.
type Message struct {
	Type  uint16
	Flags uint16 // in addition to NLM_F_REQUEST and NLM_F_ACK
	Body  []byte
}

// Families returns the address families of this kernel, which may have been started without IPv6.
func Families() []uint8 {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return []uint8{unix.AF_INET}
	}
	return []uint8{unix.AF_INET, unix.AF_INET6}
}

// Conn is an rtnetlink socket for one dump or for batches of changes.
type Conn struct {
	sock *vnl.NetlinkSocket
	seq  uint32
}

// Dial opens an rtnetlink socket.
func Dial() (*Conn, error) {
	sock, err := vnl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	// Strict checking makes the kernel filter dumps. Kernels before 4.20 lack it, so callers filter too.
	_ = unix.SetsockoptInt(sock.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	_ = sock.SetExtAck(true)
	_ = sock.SetReceiveBufferSize(ReceiveBuffer, true)
	return &Conn{sock: sock}, nil
}

// Close closes the socket.
func (c *Conn) Close() { c.sock.Close() }

// Port returns the socket's port id, which events about its changes carry.
func (c *Conn) Port() (uint32, error) { return c.sock.GetPid() }

// Ask sends a request about one object and returns the kernel's answer.
func (c *Conn) Ask(request Message) ([]syscall.NetlinkMessage, error) {
	if err := c.send([]Message{request}); err != nil {
		return nil, err
	}
	answer, _, err := c.sock.Receive()
	return answer, err
}

// send sends several messages in one system call.
func (c *Conn) send(messages []Message) error {
	size := 0
	for i := range messages {
		size += unix.SizeofNlMsghdr + Align(len(messages[i].Body))
	}
	b := make([]byte, 0, size)
	for _, m := range messages {
		c.seq++
		b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(m.Body)))
		b = binary.NativeEndian.AppendUint16(b, m.Type)
		b = binary.NativeEndian.AppendUint16(b, m.Flags|unix.NLM_F_REQUEST)
		b = binary.NativeEndian.AppendUint32(b, c.seq)
		b = append(b, 0, 0, 0, 0) // port, filled in by the kernel
		b = append(b, m.Body...)
		b = append(b, make([]byte, Align(len(b))-len(b))...)
	}
	return unix.Sendto(c.sock.GetFd(), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// Limits of one batch, in messages and in bytes: a batch must fit into the send buffer, and its errors, if every
// message fails, into the receive buffer.
const (
	batch     = 1000
	batchMost = 128 << 10
)

// Change sends the messages on a new socket and returns an error, or nil, for each of them.
func Change(ctx context.Context, messages []Message) ([]error, error) {
	return (*Conn)(nil).Change(ctx, messages)
}

// Change sends the messages and returns an error, or nil, for each of them. Only the last message of a batch asks for
// an acknowledgement; for the others the kernel answers only errors. A nil conn uses a new socket.
func (c *Conn) Change(ctx context.Context, messages []Message) ([]error, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	if c == nil {
		var err error
		if c, err = Dial(); err != nil {
			return nil, err
		}
		defer c.Close()
	}
	errs := make([]error, len(messages))
	for done := 0; done < len(messages); {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		end := done + batchLen(messages[done:])
		if err := c.changeBatch(messages[done:end], errs[done:end]); err != nil {
			return nil, err
		}
		done = end
	}
	return errs, nil
}

// batchLen returns how many of the messages, from the first on, fit into one batch: at least one.
func batchLen(messages []Message) (count int) {
	for size := 0; count < min(batch, len(messages)) && (count == 0 || size < batchMost); count++ {
		size += unix.SizeofNlMsghdr + Align(len(messages[count].Body))
	}
	return count
}

// changeBatch sends one batch and writes the kernel's answers to errs, which is as long as the batch.
func (c *Conn) changeBatch(part []Message, errs []error) error {
	part[len(part)-1].Flags |= unix.NLM_F_ACK
	first := c.seq + 1
	if err := c.send(part); err != nil {
		return fmt.Errorf("send rtnetlink request: %w", err)
	}
	for acknowledged := false; !acknowledged; {
		replies, _, err := c.sock.Receive()
		if err != nil {
			return fmt.Errorf("receive rtnetlink answer: %w", err)
		}
		for _, r := range replies {
			acknowledged = takeAck(r, first, errs) || acknowledged
		}
	}
	return nil
}

// takeAck writes an answer to errs, if it is one to a request of the batch, whose sequence numbers begin with first. It
// reports whether it was the answer to the last request.
func takeAck(r syscall.NetlinkMessage, first uint32, errs []error) (last bool) {
	i := int(int32(r.Header.Seq - first))
	if r.Header.Type != unix.NLMSG_ERROR || i < 0 || i >= len(errs) {
		return false
	}
	errs[i] = AckError(r)
	return i == len(errs)-1
}

// Dump requests a list and calls each for every entry until each returns false. The body is valid only during the call.
// The error ErrDumpInterrupted means that the list is incomplete, see Retry.
func Dump(request Message, want uint16, each func(body []byte) bool) error {
	c, err := Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	request.Flags |= unix.NLM_F_DUMP
	if err := c.send([]Message{request}); err != nil {
		return fmt.Errorf("send rtnetlink dump request: %w", err)
	}
	d := dump{each: func(kind uint16, body []byte) bool { return kind != want || each(body) }}
	for !d.ended {
		replies, _, err := c.sock.Receive()
		if err != nil {
			return fmt.Errorf("receive rtnetlink dump: %w", err)
		}
		for _, r := range replies {
			d.take(r.Header, r.Data)
		}
	}
	return d.result()
}

// result returns the error of a dump that ended.
func (d *dump) result() error {
	if d.err != nil && !errors.Is(d.err, unix.ENOENT) { // ENOENT: no such table
		return d.err
	}
	if d.changed && !d.stopped {
		return netlink.ErrDumpInterrupted
	}
	return nil
}

// Retry repeats list while the kernel's list changes during the dump.
func Retry[T any](list func() (T, error)) (T, error) {
	const tries = 10
	for range tries - 1 {
		if all, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return list()
}
