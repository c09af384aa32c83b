package kernel

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

// message is an rtnetlink message without its header.
type message struct {
	typ   uint16
	flags uint16 // in addition to NLM_F_REQUEST and NLM_F_ACK
	body  []byte
}

// routeFamilies returns the address families of this kernel, which may have been started without IPv6.
func routeFamilies() []uint8 {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return []uint8{unix.AF_INET}
	}
	return []uint8{unix.AF_INET, unix.AF_INET6}
}

// conn is an rtnetlink socket for one dump or for batches of changes.
type conn struct {
	sock *vnl.NetlinkSocket
	seq  uint32
}

func dial() (*conn, error) {
	sock, err := vnl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	// Strict checking makes the kernel filter dumps. Kernels before 4.20 lack it, so callers filter too.
	_ = unix.SetsockoptInt(sock.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	_ = sock.SetExtAck(true)
	_ = sock.SetReceiveBufferSize(receiveBuffer, true)
	return &conn{sock: sock}, nil
}

func (c *conn) close() { c.sock.Close() }

// port returns the socket's port id, which events about its changes carry.
func (c *conn) port() (uint32, error) { return c.sock.GetPid() }

// ask sends a request about one object and returns the kernel's answer.
func (c *conn) ask(request message) ([]syscall.NetlinkMessage, error) {
	if err := c.send([]message{request}); err != nil {
		return nil, err
	}
	answer, _, err := c.sock.Receive()
	return answer, err
}

// send sends several messages in one system call.
func (c *conn) send(messages []message) error {
	size := 0
	for i := range messages {
		size += unix.SizeofNlMsghdr + align(len(messages[i].body))
	}
	b := make([]byte, 0, size)
	for _, m := range messages {
		c.seq++
		b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(m.body)))
		b = binary.NativeEndian.AppendUint16(b, m.typ)
		b = binary.NativeEndian.AppendUint16(b, m.flags|unix.NLM_F_REQUEST)
		b = binary.NativeEndian.AppendUint32(b, c.seq)
		b = append(b, 0, 0, 0, 0) // port, filled in by the kernel
		b = append(b, m.body...)
		b = append(b, make([]byte, align(len(b))-len(b))...)
	}
	return unix.Sendto(c.sock.GetFd(), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// Limits of one batch, in messages and in bytes: a batch must fit into the send buffer, and its errors, if every
// message fails, into the receive buffer.
const (
	batch     = 1000
	batchMost = 128 << 10
)

// change sends the messages on a new socket and returns an error, or nil, for each of them.
func change(ctx context.Context, messages []message) ([]error, error) {
	return (*conn)(nil).change(ctx, messages)
}

// change sends the messages and returns an error, or nil, for each of them. Only the last message of a batch asks for
// an acknowledgement; for the others the kernel answers only errors. A nil conn uses a new socket.
func (c *conn) change(ctx context.Context, messages []message) ([]error, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	if c == nil {
		var err error
		if c, err = dial(); err != nil {
			return nil, err
		}
		defer c.close()
	}
	errs := make([]error, len(messages))
	for done := 0; done < len(messages); {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		count, size := 0, 0
		for count < batch && done+count < len(messages) && (count == 0 || size < batchMost) {
			size += unix.SizeofNlMsghdr + align(len(messages[done+count].body))
			count++
		}
		part := messages[done : done+count]
		part[count-1].flags |= unix.NLM_F_ACK
		first := c.seq + 1
		if err := c.send(part); err != nil {
			return nil, fmt.Errorf("send rtnetlink request: %w", err)
		}
		for acknowledged := false; !acknowledged; {
			replies, _, err := c.sock.Receive()
			if err != nil {
				return nil, fmt.Errorf("receive rtnetlink answer: %w", err)
			}
			for _, r := range replies {
				if i := int(int32(r.Header.Seq - first)); r.Header.Type == unix.NLMSG_ERROR && i >= 0 && i < count {
					errs[done+i] = answer(r)
					acknowledged = acknowledged || i == count-1
				}
			}
		}
		done += count
	}
	return errs, nil
}

// dump requests a list and calls each for every entry until each returns false. The body is valid only during the call.
// The error ErrDumpInterrupted means that the list is incomplete, see retried.
func dump(request message, want uint16, each func(body []byte) bool) error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.close()
	request.flags |= unix.NLM_F_DUMP
	if err := c.send([]message{request}); err != nil {
		return fmt.Errorf("send rtnetlink dump request: %w", err)
	}
	for interrupted := false; ; {
		replies, _, err := c.sock.Receive()
		if err != nil {
			return fmt.Errorf("receive rtnetlink dump: %w", err)
		}
		for _, r := range replies {
			interrupted = interrupted || r.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			switch r.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				if err := answer(r); err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: no such table
					return err
				}
				if interrupted {
					return netlink.ErrDumpInterrupted
				}
				return nil
			case want:
				if !each(r.Data) {
					return nil
				}
			}
		}
	}
}

// retried repeats list while the kernel's list changes during the dump.
func retried[T any](list func() (T, error)) (T, error) {
	const tries = 10
	for range tries - 1 {
		if all, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return list()
}
