package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/mdlayher/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// SendBuffer is the size in bytes of the send buffer: it fits a transaction of some 100,000 elements.
const SendBuffer = 64 << 20

// NfgenmsgLen is the length of struct nfgenmsg.
const NfgenmsgLen = 4

// EncodeAttrs encodes attributes. It fails only on those of more than 64 KiB, which do not occur here.
func EncodeAttrs(attributes ...netlink.Attribute) []byte {
	b, _ := netlink.MarshalAttributes(attributes)
	return b
}

// NftMessage returns one message of a batch: struct nfgenmsg, then attributes.
func NftMessage(kind uint16, flags netlink.HeaderFlags, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, attributes...),
	}
}

// NftRequest returns a request to read objects of a table of family inet.
func NftRequest(kind uint16, attributes ...netlink.Attribute) Message {
	m := NftMessage(kind, 0, EncodeAttrs(attributes...))
	return Message{Type: uint16(m.Header.Type), Body: m.Data}
}

// batchEdge returns the message that begins or ends a transaction of the nftables subsystem.
func batchEdge(kind uint16) netlink.Message {
	data := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request},
		Data:   binary.BigEndian.AppendUint16(data, unix.NFNL_SUBSYS_NFTABLES),
	}
}

// maxAnswer is a size in bytes that no error exceeds.
const maxAnswer = 1 << 16

// Writer is the netfilter socket that owns our nftables table and sends all its changes.
type Writer struct {
	sock *vnl.NetlinkSocket
	Port uint32 // port id of the socket, which the kernel shows as the table's owner

	mu  sync.Mutex // one transaction at a time, until its answer is read
	seq uint32
	buf []byte // receive buffer for one answer
}

// OpenWriter opens the socket.
func OpenWriter() (*Writer, error) {
	sock, err := vnl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	w := &Writer{sock: sock, buf: make([]byte, maxAnswer)}
	w.Port, err = sock.GetPid()
	err = errors.Join(err,
		unix.SetsockoptInt(sock.GetFd(), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, SendBuffer),
		sock.SetReceiveBufferSize(SendBuffer, true))
	if err != nil {
		sock.Close()
		return nil, fmt.Errorf("set up nftables socket: %w", err)
	}
	_ = sock.SetExtAck(true)                                                        // error texts of the kernel
	_ = unix.SetsockoptInt(sock.GetFd(), unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) // errors do not repeat the request
	return w, nil
}

// Close closes the socket: a table that it owns loses its owner.
func (w *Writer) Close() { w.sock.Close() }

// Commit sends the messages as one transaction: the kernel carries out all or none of them.
func (w *Writer) Commit(messages []netlink.Message) error {
	if len(messages) == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	edge := len(batchEdge(unix.NFNL_MSG_BATCH_BEGIN).Data) + unix.SizeofNlMsghdr
	size := 2 * edge
	for _, m := range messages {
		size += unix.SizeofNlMsghdr + Align(len(m.Data))
	}
	b := w.append(make([]byte, 0, size), batchEdge(unix.NFNL_MSG_BATCH_BEGIN))
	for i, m := range messages {
		// Errors come without being asked for; only the last message asks for an acknowledgement.
		if m.Header.Flags &^= netlink.Acknowledge; i == len(messages)-1 {
			m.Header.Flags |= netlink.Acknowledge
		}
		b = w.append(b, m)
	}
	last := w.seq
	b = w.append(b, batchEdge(unix.NFNL_MSG_BATCH_END))
	if err := unix.Sendto(w.sock.GetFd(), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return w.answers(last)
}

// append appends a message in wire format. The kernel fills in the port.
func (w *Writer) append(b []byte, m netlink.Message) []byte {
	w.seq++
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+Align(len(m.Data))))
	b = binary.NativeEndian.AppendUint16(b, uint16(m.Header.Type))
	b = binary.NativeEndian.AppendUint16(b, uint16(m.Header.Flags))
	b = binary.NativeEndian.AppendUint32(b, w.seq)
	b = append(append(b, 0, 0, 0, 0), m.Data...)
	return append(b, make([]byte, Align(len(m.Data))-len(m.Data))...)
}

// answers reads the results of the messages just sent. The kernel handles them before the send returns.
func (w *Writer) answers(last uint32) error {
	errs, acknowledged, err := w.results(last)
	if err == nil {
		err = JoinErrors(errs)
	}
	if err != nil || acknowledged {
		return err
	}
	return errors.New("the kernel did not answer")
}

// results collects the kernel's errors, and reports whether it acknowledged the last message.
func (w *Writer) results(last uint32) (errs []error, acknowledged bool, err error) {
	for {
		messages, err := w.receive()
		if err != nil || len(messages) == 0 {
			return errs, acknowledged, err
		}
		for _, m := range messages {
			if m.Header.Type == unix.NLMSG_ERROR {
				errs = append(errs, AckError(m))
				acknowledged = acknowledged || m.Header.Seq == last
			}
		}
	}
}

// receive returns the next answers; none: there are no more.
func (w *Writer) receive() ([]syscall.NetlinkMessage, error) {
	n, _, err := unix.Recvfrom(w.sock.GetFd(), w.buf, unix.MSG_DONTWAIT)
	for errors.Is(err, unix.EINTR) {
		n, _, err = unix.Recvfrom(w.sock.GetFd(), w.buf, unix.MSG_DONTWAIT)
	}
	if errors.Is(err, unix.EAGAIN) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("receive answers: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(w.buf[:n])
	if err != nil {
		return nil, fmt.Errorf("read answers: %w", err)
	}
	return messages, nil
}
